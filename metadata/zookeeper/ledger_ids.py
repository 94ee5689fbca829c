"""Allocates ledger ids: each handle reserves a block of ids from one counter in ZooKeeper and hands them out by itself.

The counter is changed by compare-and-set. A block whose reservation was left without an answer is lost; it is never
given out twice.
"""

import asyncio
import random
from dataclasses import replace
from typing import Final

from octavo.metadata.zookeeper.layout import LedgerIdCounter, Paths, Stat, decode_ledger_ids, encode_ledger_ids
from octavo.metadata.zookeeper.messages import BAD_VERSION, NO_NODE, OK, Answer, set_value
from octavo.metadata.zookeeper.nodes import Nodes
from octavo.protocol.errors import MetadataUnavailableError, OctavoError
from octavo.protocol.ids import ID_MAX, LedgerId

IDS_AT_ONCE_MAX: Final = 1000
"""Largest block of ledger ids. A handle starts with a block of one and doubles it each time, so that a handle that
creates many ledgers changes the counter once per thousand. Ids left over when a handle closes are lost; there are
2**63."""

IDS_AHEAD_MIN: Final = 64
"""From this block size on, the next block is reserved while the current one is still in use: a handle that needs blocks
this large creates thousands of ledgers a second, all of which would have to wait."""

_CONFLICT_PAUSE_SECONDS: Final = 0.005
"""Longest pause after a conflict with another handle, multiplied by the number of attempts so far."""


class LedgerIds:
    """The ids that one handle has reserved."""

    def __init__(self, nodes: Nodes, paths: Paths, rng: random.Random) -> None:
        self._nodes = nodes
        self._paths = paths
        self._rng = rng
        self._next_id = self._stop_id = 0
        """Start and stop of the ids reserved and not yet given out."""
        self._ids_at_once = 1
        self._ids_known = 0
        """All ids below this are known to have been reserved by some handle."""
        self._taking = asyncio.Lock()
        self._spare: tuple[int, int] | None = None
        """A further block, reserved ahead."""
        self._ahead: asyncio.Task[None] | None = None

    async def allocate(self) -> LedgerId:
        """See :meth:`RecordStore.allocate_ledger_id`."""
        while self._next_id >= self._stop_id:
            async with self._taking:
                if self._next_id >= self._stop_id:
                    if self._spare is None:
                        self._spare = await self._take_ids()
                    (self._next_id, self._stop_id), self._spare = self._spare, None
        self._next_id += 1
        if (
            self._ids_at_once >= IDS_AHEAD_MIN
            and self._stop_id - self._next_id < self._ids_at_once // 2
            and self._spare is None
            and self._ahead is None
        ):
            self._ahead = asyncio.create_task(self._take_ahead(), name="ledger ids")
            self._ahead.add_done_callback(self._taken_ahead)
        return LedgerId(self._next_id - 1)

    async def close(self) -> None:
        """Stop reserving ids."""
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)

    async def _take_ahead(self) -> None:
        """Reserve the next block while ids are left in the current one, so that no caller has to wait for it."""
        try:
            async with self._taking:
                if self._spare is None:
                    self._spare = await self._take_ids()
        except OctavoError:
            return  # the next caller that needs a block reserves it itself and gets the error

    def _taken_ahead(self, _ahead: asyncio.Task[None]) -> None:
        self._ahead = None

    async def is_allocated(self, ledger_id: LedgerId) -> bool:
        """See :meth:`RecordStore.is_allocated`."""
        if ledger_id >= self._ids_known:
            await self.stop()
        return ledger_id < self._ids_known

    async def stop(self) -> LedgerId:
        """See :meth:`RecordStore.ledger_ids_stop`."""
        async with self._nodes.operation("ledger ids"):
            stop = (await self._read_ids())[0].next_id
        self._know_ids(stop)
        return LedgerId(stop)

    async def _take_ids(self) -> tuple[int, int]:
        path = self._paths.ledger_ids
        async with self._nodes.operation("ledger ids") as operation:
            attempts = 0
            while True:
                counter, stat = await self._read_ids()
                first = counter.next_id
                taken_ids = replace(counter, next_id=min(first + self._ids_at_once, ID_MAX))
                stop = taken_ids.next_id
                if first >= stop:
                    raise MetadataUnavailableError("all ledger ids have been allocated", may_have_happened=False)

                async def settle() -> Answer | None:
                    # It does not matter which handle reserved the block: reserving another one costs nothing.
                    return Answer(BAD_VERSION)

                taken = await self._nodes.change(
                    operation, set_value(path, encode_ledger_ids(taken_ids), stat.version), settle
                )
                if self._nodes.expect(taken, path, BAD_VERSION).code == OK:
                    break
                attempts += 1
                await asyncio.sleep(_CONFLICT_PAUSE_SECONDS * attempts * self._rng.random())
        self._know_ids(stop)
        self._ids_at_once = min(2 * self._ids_at_once, IDS_AT_ONCE_MAX)
        return first, stop

    async def _read_ids(self) -> tuple[LedgerIdCounter, Stat]:
        node = await self._nodes.read(self._paths.ledger_ids)
        if node is None:
            self._nodes.refuse(NO_NODE, self._paths.ledger_ids)
        return decode_ledger_ids(node.value, self._paths.ledger_ids), node.stat

    def _know_ids(self, stop: int) -> None:
        self._ids_known = max(self._ids_known, stop)
