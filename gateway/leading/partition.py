"""A partition that this gateway leads: one term of its log (rules K2 to K4, and K7).

Batches come in from producers, are judged and handed to the log's writer in one step, and are answered once they are
acknowledged. A batch that was handed over is added whatever becomes of its request: no closed connection and no
time-out cancels it. Any failure of an add ends the lead, and everything under way is answered with an error after which
producers try again: whether it is in the log, the next leader finds out.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Final

from octavo.client.log.documents.chain import Retention
from octavo.client.log.log import Log
from octavo.client.log.writer.writer import LogWriter
from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.leading.anchors import Anchors
from octavo.gateway.leading.beginning import Beginning, first_batch
from octavo.gateway.leading.index import Point
from octavo.gateway.leading.led_log import LedLog
from octavo.gateway.leading.recent import Recent
from octavo.gateway.leading.scans import Scan, Scans
from octavo.gateway.records.batch import BatchHeader, TimedOffset, first_record_at, read_header, stamped
from octavo.protocol.entries import EPOCH
from octavo.protocol.errors import TruncatedError

_SEALED_BEFORE_MS_MAX: Final = 2 * 3600 * 1000
"""A batch is not accepted whose times lie more than an hour ahead, and the clock may have gone back by as much since: a
record with a time was sealed at most this long before that time."""

END: Final = -1
"""The high watermark, in a request to delete records."""

SNAPSHOT_BYTES: Final = 64 * 1024 * 1024
"""Of batches between two snapshots: a new leader reads at most about this before it leads."""


class LedPartition:
    """See the module."""

    def __init__(
        self,
        log: Log,
        writer: LogWriter,
        beginning: Beginning,
        anchors: Anchors,
        scans: Scans,
        *,
        is_current: Callable[[], bool],
        on_lost: Callable[["LedPartition"], object],
        on_snapshot_due: Callable[["LedPartition"], object],
    ) -> None:
        """``is_current``: whether no other gateway can lead yet, by the lease of this one. ``on_lost`` is called once,
        when the lead is over."""
        self.log = log
        self.writer = writer
        self._led = LedLog[int](
            log,
            writer,
            Code.NOT_LEADER_OR_FOLLOWER,
            is_current=is_current,
            on_acknowledged=self._acknowledged,
            on_lost=self._has_lost,
        )
        self.appends = beginning.appends
        self.start_offset = beginning.start_offset
        self._anchors = anchors
        self.scans = scans
        """Of all partitions of the gateway."""
        self._index = beginning.known
        self._recent = Recent(self.appends.next_offset)
        self._on_lost = on_lost
        self._on_snapshot_due = on_snapshot_due
        self._loop = asyncio.get_running_loop()
        self._grown: asyncio.Future[None] | None = None
        """What consumers wait for, if any do."""
        self._bytes_since_snapshot = 0

    @property
    def high_watermark(self) -> int:
        """Records with lower offsets are acknowledged."""
        return self.appends.high_watermark

    # --- producing ----------------------------------------------------------------------------------------------------

    def add(self, view: memoryview, batch: BatchHeader, now_ms: int) -> asyncio.Future[int]:
        """Judge a checked batch, and hand it to the log; a future of its base offset, which the caller must shield.
        ``now_ms``: the time of day.

        Raises:
            RefusedError: The batch does not follow what its producer has sent; or the lead is over.
        """
        self.check_leads()
        repeat = self.appends.judge(batch)
        if repeat is not None:
            return self._answer_to_repeat(repeat.base_offset, is_acknowledged=repeat.is_acknowledged)
        base_offset = self.appends.next_offset
        self._led.add(stamped(view, base_offset, self.writer.term))
        self.appends.hand_over(batch, now_ms)
        return self._led.answer(base_offset)

    def _answer_to_repeat(self, base_offset: int, *, is_acknowledged: bool) -> asyncio.Future[int]:
        if not is_acknowledged:
            return self._led.answers[base_offset]
        answer: asyncio.Future[int] = self._loop.create_future()
        answer.set_result(base_offset)
        return answer

    def _acknowledged(self, position: int, payload: bytes) -> None:
        done = self.appends.acknowledge(position)
        self._index.note(Point(done.base_offset, done.position), len(payload))
        self._recent.add(done.base_offset, self.high_watermark, payload)
        self._led.answers.pop(done.base_offset).set_result(done.base_offset)
        self._wake()
        self._bytes_since_snapshot += len(payload)
        if self._bytes_since_snapshot >= SNAPSHOT_BYTES:
            self._bytes_since_snapshot = 0
            self._on_snapshot_due(self)

    # --- consuming ----------------------------------------------------------------------------------------------------

    def check_offset(self, offset: int) -> None:
        """Raise :class:`RefusedError` if no consumer can begin at this offset, or the lead is over."""
        self.check_leads()
        if not self.start_offset <= offset <= self.high_watermark:
            text = f"offset {offset}; the partition has {self.start_offset} to {self.high_watermark}"
            raise RefusedError(Code.OFFSET_OUT_OF_RANGE, text)

    async def read(self, offset: int, bytes_max: int) -> list[bytes]:
        """Whole batches from the one that holds the offset on: at least one if there is one (rule K7).

        Raises:
            RefusedError: The offset is out of range, or the lead is over.
            OctavoError: The batch cannot be read from any bookie.
        """
        self.check_offset(offset)
        if offset == self.high_watermark:
            return []
        found = self._recent.read(offset, bytes_max)
        return await self._read_log(offset, bytes_max) if found is None else found

    async def _read_log(self, offset: int, bytes_max: int) -> list[bytes]:
        log_id = self.log.log_id
        scan = self.scans.take(log_id, offset)
        try:
            if scan is None:
                scan = await self._scan_from(offset)
            found = await scan.read(bytes_max)
            if not scan.is_over and self._led.lost is None:
                self.scans.keep(log_id, scan)
                scan = None
        except TruncatedError as error:
            # By the leader before this one, which has raised the anchor first.
            self._begin_at((await self._anchors.read()).start_offset)
            raise RefusedError(Code.OFFSET_OUT_OF_RANGE, str(error)) from error
        finally:
            if scan is not None:
                await scan.close()
        return found

    async def _scan_from(self, offset: int) -> Scan:
        stop = self.appends.acknowledged_stop
        return Scan(self.log.entries(await self._find(offset, stop), stop - 1), offset)

    async def _find(self, offset: int, stop: int) -> int:
        """The position of the last batch that begins at or below the offset."""
        low, high = self._index.around(offset, stop)
        while high - low > 1:
            middle = (low + high) // 2
            point = await first_batch(self.log, middle, high)
            if point is None or point.offset > offset:
                high = middle
            else:
                self._index.learn(point)
                low = point.position
        return low

    async def first_at(self, time_ms: int) -> TimedOffset | None:
        """The first record with a time at or after the asked one; None: there is none.

        Times of records are their producers', and in no order, so batches are looked at one after another, from the
        first that can have such a time. Where that batch is compressed, its first record is given.

        Raises:
            RefusedError: The lead is over.
            OctavoError: A batch cannot be read from any bookie.
        """
        self.check_leads()
        stop = self.appends.acknowledged_stop
        sealed = EPOCH + timedelta(milliseconds=max(0, time_ms - _SEALED_BEFORE_MS_MAX))
        first = await self.log.position_at(sealed)
        if first < stop:
            async with aclosing(self.log.entries(first, stop - 1)) as entries:
                async for entry in entries:
                    batch = read_header(entry.payload)
                    if batch is None or batch.max_timestamp_ms < time_ms or batch.next_offset <= self.start_offset:
                        continue
                    return first_record_at(entry.payload, batch, time_ms)
        return None

    def growth(self) -> "asyncio.Future[None]":
        """Done once the high watermark has risen, or the lead is over. Not to be cancelled."""
        if self._grown is None:
            self._grown = self._loop.create_future()
        grown = self._grown
        if self._led.lost is not None:
            self._wake()
        return grown

    def _wake(self) -> None:
        if self._grown is not None:
            self._grown.set_result(None)
            self._grown = None

    # --- removing -----------------------------------------------------------------------------------------------------

    async def delete_below(self, offset: int) -> int:
        """Consumers get no record below the offset from now on; :data:`END`: none of the present ones.

        Gives the offset at which the partition then begins. Bytes are freed by whole fragments of the log.

        Raises:
            RefusedError: The offset is out of range, or the lead is over.
            OctavoError: The metadata store or the bookies do not answer.
        """
        self.check_leads()
        stop, high_watermark = self.appends.acknowledged_stop, self.high_watermark
        offset = high_watermark if offset == END else offset
        if not 0 <= offset <= high_watermark:
            raise RefusedError(Code.OFFSET_OUT_OF_RANGE, f"offset {offset}; the partition ends at {high_watermark}")
        if offset <= self.start_offset:
            return self.start_offset
        first = Point(high_watermark, stop)
        if offset < high_watermark:
            found = await first_batch(self.log, await self._find(offset, stop), stop)
            assert found is not None, "a batch holds the offset"
            first = found
        await self._truncate(first, offset)
        return self.start_offset

    async def retain(self, retention: Retention) -> None:
        """Let go what this retention lets go: whole fragments of the log, by what its ages prove (rule K15).

        Raises:
            RefusedError: The lead is over.
            OctavoError: The metadata store or the bookies do not answer.
        """
        self.check_leads()
        cut = await self.log.would_drop(retention)
        stop, high_watermark = self.appends.acknowledged_stop, self.high_watermark
        if not self.log.first_position < cut <= stop:
            return
        found = await first_batch(self.log, cut, stop)
        first = Point(high_watermark, cut) if found is None else Point(found.offset, cut)
        await self._truncate(first, first.offset)

    async def _truncate(self, first: Point, start_offset: int) -> None:
        """Remove the entries below a place; consumers get nothing below the offset from now on."""
        self.check_leads()
        # The anchor comes first: the next leader knows the next offset although no entry is left (rule K2).
        anchor = await self._anchors.raise_to(
            position=first.position, base_offset=first.offset, start_offset=start_offset
        )
        self.check_leads()
        self._begin_at(anchor.start_offset)
        self._index.cut(first)
        await self.log.truncate(first.position)

    def _begin_at(self, offset: int) -> None:
        self.start_offset = max(self.start_offset, offset)

    # --- the end ------------------------------------------------------------------------------------------------------

    def check_leads(self) -> None:
        """Raise :class:`RefusedError` if the lead is over, or may be."""
        self._led.check_leads()

    def leads(self) -> bool:
        """Whether the lead is not over, and cannot be."""
        return self._led.leads()

    def _has_lost(self) -> None:
        self._wake()
        self._on_lost(self)

    async def close(self) -> None:
        """End the lead: wait for what is under way, then give the log back. Raises :class:`OctavoError`."""
        await self.scans.end_of(self.log.log_id)
        await self._led.close()
