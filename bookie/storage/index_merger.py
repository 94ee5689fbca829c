"""Keeps the number of index parts small, and removes from them what is garbage: the runs of deleted and dropped
ledgers, what streams have been trimmed of, and ranges that are given up. One change at a time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType

import structlog
from octavo.bookie.disk.filesystem import is_disk_full
from octavo.bookie.index.format import IndexDamagedError
from octavo.bookie.index.index import Index
from octavo.bookie.index.merge import choose_merge, merge_parts
from octavo.bookie.index.part import Part
from octavo.bookie.index.runs import first_reaching
from octavo.bookie.storage.manifest_keeper import ManifestKeeper

log = structlog.get_logger("octavo.bookie")

GARBAGE_SHARE_MAX = 0.2
"""A part of which more runs than this are garbage is written again without them."""

_YIELD_RUNS = 256

_ID_LAST = 2**63 - 1


class IndexMerger:
    """Rewrites parts. ``upkeep`` is held while parts change places; compaction holds it too. ``is_gone`` names ledgers
    that are durably deleted or dropped, ``first_kept`` the id below which a ledger is durably trimmed."""

    def __init__(
        self,
        index: Index,
        keeper: ManifestKeeper,
        upkeep: asyncio.Lock,
        is_gone: Callable[[int], bool],
        first_kept: Callable[[int], int],
    ) -> None:
        self._index = index
        self._keeper = keeper
        self._upkeep = upkeep
        self._is_gone = is_gone
        self._first_kept = first_kept
        self._unmergeable: set[int] = set()
        self.merges = 0
        self.bytes_written = 0

    async def merge(self) -> bool:
        """Merge some neighbouring parts, if that is worth while. False when nothing was done. Raises OSError other
        than for a full disk."""
        async with self._upkeep:
            parts = self._index.parts
            chosen = choose_merge([part.size for part in parts])
            return chosen is not None and await self._rewrite(parts[chosen[0] : chosen[1]])

    async def purge(self) -> int:
        """Write the parts again that are full of garbage; how many were. Raises as :meth:`merge`."""
        rewritten = 0
        for part in self._index.parts:
            async with self._upkeep:
                if part in self._index.parts and await self._is_full_of_garbage(part):
                    rewritten += await self._rewrite([part])
        return rewritten

    async def purge_ledger(self, ledger_id: int) -> bool:
        """Write every part again that has runs of the ledger, which is gone. False when one of them could not be
        written: the disk is full, or the part is damaged. Raises as :meth:`merge`."""
        for part in self._index.parts:
            async with self._upkeep:
                if part in self._index.parts:
                    lookup = await self._index.lookup_in([part], ledger_id, 0, _ID_LAST)
                    if (lookup.runs or lookup.unknown) and not await self._rewrite([part]):
                        return False
        return True

    @contextlib.asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Inside the block no part is merged or compacted but by :meth:`purge_ranges`; checkpoints add parts."""
        async with self._upkeep:
            yield

    async def purge_ranges(self, without: Mapping[int, Sequence[tuple[int, int]]]) -> bool:
        """Write every part again that has ids of these intervals, without them, the oldest first: what is removed of a
        newer part must not uncover the copy that it replaced. Inside :meth:`changing`. False when one of them could not
        be written: the disk is full, which is not waited for, or the part is damaged. Raises as :meth:`merge`."""
        for part in self._index.parts:
            if await self._has_any(part, without) and not await self._rewrite([part], without, waits=False):
                return False
        return True

    async def _has_any(self, part: Part, without: Mapping[int, Sequence[tuple[int, int]]]) -> bool:
        for ledger_id, intervals in without.items():
            at = 0
            while at < len(intervals):
                found = await self._index.first_id([part], ledger_id, intervals[at][0])
                if found is None:
                    break
                # A part that names ids between the intervals only is asked once for each gap that has some.
                at = first_reaching(intervals, found)
                if at < len(intervals) and intervals[at][0] <= found:
                    return True
                await asyncio.sleep(0)
        return False

    async def _is_full_of_garbage(self, part: Part) -> bool:
        runs = garbage = first_kept = 0
        current = -1
        try:
            async for ledger_id, run in part.runs():
                if ledger_id != current:
                    current, first_kept = ledger_id, self._first_kept(ledger_id)
                runs += 1
                garbage += run.last < first_kept or self._is_gone(ledger_id)
                if runs % _YIELD_RUNS == 0:
                    await asyncio.sleep(0)
        except IndexDamagedError as error:
            self._index.report(error)
            return False
        return garbage > runs * GARBAGE_SHARE_MAX

    async def _rewrite(
        self,
        old: Sequence[Part],
        without: Mapping[int, Sequence[tuple[int, int]]] = MappingProxyType({}),
        *,
        waits: bool = True,
    ) -> bool:
        """``waits``: for free space for the manifest; otherwise a full disk leaves everything as it was."""
        if any(part.part_id in self._unmergeable for part in old):
            return False
        try:
            writer = await self._index.new_part(self._keeper.new_part_id())
            try:
                merged = await merge_parts(old, writer, self._is_gone, self._first_kept, without)
            except BaseException:  # cancelled or failed: no manifest names the part
                with contextlib.suppress(OSError):
                    await writer.abandon()
                raise
        except IndexDamagedError as error:
            # The damaged part is kept: its intact blocks can still be read.
            self._index.report(error)
            self._unmergeable.update(part.part_id for part in old if part.path == error.path)
            return False
        except OSError as error:
            if not is_disk_full(error):
                raise
            log.warning("index parts not merged: the disk is full", reason=str(error))
            return False
        try:
            await self._keeper.replace_parts(old, merged, waits=waits)
        except BaseException as error:
            if merged not in self._index.parts:
                await merged.retire()
            if not waits and isinstance(error, OSError) and is_disk_full(error):
                log.warning("index part not written again: the disk is full", reason=str(error))
                return False
            raise
        self.merges += 1
        self.bytes_written += merged.size
        return True
