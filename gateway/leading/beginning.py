"""The beginning of a lead: what the log says of offsets and producers (rules K2 and K5).

The leader reads from the latest snapshot that counts; without one from the first entry of the last day on, where older
producers count as forgotten. It needs the last batch in any case, and looks for that from the end backwards where the
entries that it reads have none.
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Final, NamedTuple

from octavo.client.log.log import Log
from octavo.gateway.leading.anchors import Anchors
from octavo.gateway.leading.index import OffsetIndex, Point
from octavo.gateway.leading.snapshots import Snapshots
from octavo.gateway.records.appends import Appends
from octavo.gateway.records.batch import read_header
from octavo.gateway.records.offsets import Anchor
from octavo.gateway.records.producers import IDLE_MS_MAX, Producers
from octavo.gateway.records.takeover import Takeover
from octavo.protocol.entries import EPOCH
from octavo.protocol.errors import LogDamagedError

_LOOK_BACK_MAX: Final = 16
"""Entries that are read at a time when the last batch is looked for. The last entry nearly always is it."""


class Beginning(NamedTuple):
    """The state with which a leader begins."""

    appends: Appends
    known: OffsetIndex
    """Where batches are."""
    start_offset: int
    """Consumers get nothing below it."""


class Beginner:
    """See the module. For one partition."""

    def __init__(
        self, log: Log, anchors: Anchors, snapshots: Snapshots, highest_ids_stop: Callable[[], Awaitable[int]]
    ) -> None:
        """``highest_ids_stop`` gives a producer id above every one that was given out so far."""
        self._log = log
        self._anchors = anchors
        self._snapshots = snapshots
        self._highest_ids_stop = highest_ids_stop

    async def begin(self, end: int, now_ms: int) -> Beginning:
        """Read what a leader needs whose term begins at ``end``.

        Raises:
            OctavoError: The metadata store or the bookies do not answer, or an entry is lost.
        """
        anchor = await self._anchors.read()
        snapshot, next_offset_min = await self._snapshots.find(self._log, end)
        lowest = max(self._log.first_position, anchor.position)
        start_offset = await start_offset_of(self._log, anchor, lowest, end)
        if snapshot is not None:
            producers, first = snapshot.producers, snapshot.position
        else:
            first = end if lowest >= end else min(max(lowest, await self._first_of_the_last_day(now_ms)), end)
            producers = Producers(forgotten_below=await self._highest_ids_stop() if first > 0 else 0)
        last = await last_batch(self._log, lowest, end)
        if last is None and next_offset_min == 0 and lowest > anchor.position:
            raise LogDamagedError(
                f"log {self._log.name}: another program has truncated it, and nothing tells which offset comes next"
            )
        next_offset_min = max(next_offset_min, last or 0)
        takeover = Takeover(anchor, producers, first_position=first, next_offset_min=next_offset_min)
        index = OffsetIndex(Point(start_offset, lowest))
        if first < end:
            async with aclosing(self._log.entries(first, end - 1)) as entries:
                async for entry in entries:
                    batch = read_header(entry.payload)
                    takeover.entry(entry.position, batch, entry.sealed_at_ms)
                    if batch is not None:
                        index.note(Point(batch.base_offset, entry.position), len(entry.payload))
        return Beginning(takeover.begin(end, now_ms), index, start_offset)

    async def _first_of_the_last_day(self, now_ms: int) -> int:
        return await self._log.position_at(EPOCH + timedelta(milliseconds=max(0, now_ms - IDLE_MS_MAX)))


class Extent(NamedTuple):
    """The offsets of a partition, as its log and its anchor tell them."""

    start_offset: int
    """Consumers get nothing below it."""
    next_offset: int
    """Of the next record."""


async def extent_of(log: Log, anchors: Anchors, end: int) -> Extent:
    """The offsets of a partition below an end of its log, for who does not lead it.

    Raises:
        OctavoError: The metadata store or the bookies do not answer, or an entry is lost.
    """
    anchor = await anchors.read()
    lowest = max(log.first_position, anchor.position)
    last = await last_batch(log, lowest, end)
    start_offset = await start_offset_of(log, anchor, lowest, end)
    return Extent(start_offset, max(anchor.base_offset, anchor.start_offset, last or 0))


async def start_offset_of(log: Log, anchor: Anchor, lowest: int, end: int) -> int:
    """That of the anchor; of a log that was cut above it, that of its first batch."""
    if lowest == anchor.position:
        return anchor.start_offset
    first = await first_batch(log, lowest, end)
    return anchor.start_offset if first is None else max(anchor.start_offset, first.offset)


async def last_batch(log: Log, lowest: int, stop: int) -> int | None:
    """The offset behind the last batch in ``lowest`` to ``stop``, ``stop`` excluded."""
    count = 1
    while stop > lowest:
        start = max(lowest, stop - count)
        for entry in reversed(await log.read(start, stop - 1)):
            batch = read_header(entry.payload)
            if batch is not None:
                return batch.next_offset
        stop, count = start, min(2 * count, _LOOK_BACK_MAX)
    return None


async def first_batch(log: Log, first: int, stop: int) -> Point | None:
    """The first batch from a position on, below ``stop``."""
    if first >= stop:
        return None
    async with aclosing(log.entries(first, stop - 1)) as entries:
        async for entry in entries:
            batch = read_header(entry.payload)
            if batch is not None:
                return Point(batch.base_offset, entry.position)
    return None


async def batch_of(log: Log, offset: int, lowest: int, stop: int) -> int:
    """The position of the last batch that begins at or below an offset, for who does not lead the partition.

    ``lowest``: where the partition begins, and the position where all begin above the offset. It reads about twenty
    entries of a large log.

    Raises:
        OctavoError: The bookies do not answer, or an entry is lost.
    """
    low, high = lowest, stop
    while high - low > 1:
        middle = (low + high) // 2
        found = await first_batch(log, middle, high)
        if found is None or found.offset > offset:
            high = middle
        else:
            low = found.position
    return low
