"""Verifies everything that has been stored, slowly, so that damage is known before the last good copy is lost.

A round reads every entry log up to its length in the manifest and every block of the index. Damage is logged as reads
log it: once, with file and offset, and counted. Nothing is repaired here: an entry that does not verify is *unknown* to
readers anyway (rule R2). The ledgers that are concerned are reported at the end of every round that finds damage, so
that repair can copy what was lost: those whose places in the index lie in damaged bytes, and those whose places a
damaged block of the index may have held."""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import structlog
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.entrylog.format import HEADER_BYTES, is_header
from octavo.bookie.entrylog.logs import EntryLogs
from octavo.bookie.entrylog.walk import DamagedStretch, walk_log
from octavo.bookie.index.format import IndexDamagedError, Key
from octavo.bookie.index.index import Index
from octavo.bookie.index.runs import Run, run_bytes, sizes_between
from octavo.bookie.storage.damage import ID_LAST, DamageReports
from octavo.bookie.storage.manifest_keeper import ManifestKeeper
from octavo.bookie.storage.reads import EntryReader

log = structlog.get_logger("octavo.bookie")

PIECE_BYTES = 64 * 1024
"""Verified between two turns of the loop: a small part of a millisecond."""


class ScrubResult(NamedTuple):
    """The totals of a round."""

    bytes: int
    entries: int
    damaged_places: int


class Scrubber:
    """Verifies what a storage holds. One round at a time."""

    def __init__(
        self,
        logs: EntryLogs,
        index: Index,
        keeper: ManifestKeeper,
        reader: EntryReader,
        *,
        damage: DamageReports,
        live_ids: Callable[[], Sequence[int]],
    ) -> None:
        """``live_ids`` gives the ledgers held, ascending."""
        self._damage = damage
        self._live_ids = live_ids
        self._logs = logs
        self._index = index
        self._keeper = keeper
        self._reader = reader
        self.bytes_scrubbed = 0
        self.rounds = 0
        self._completed_at = asyncio.get_running_loop().time()

    @property
    def age_seconds(self) -> float:
        """Time since a round was completed, or since the start."""
        return asyncio.get_running_loop().time() - self._completed_at

    async def round(self, limiter: RateLimiter) -> ScrubResult:
        """Everything once, at that rate."""
        size = entries = damaged = 0
        stretches: dict[int, list[DamagedStretch]] = {}
        hidden: list[tuple[Key, Key]] = []
        for log_id in sorted(self._keeper.log_sizes):
            stop = self._keeper.log_sizes.get(log_id)
            if stop is not None:  # it has been compacted meanwhile
                found = await self._scrub_log(log_id, stop, limiter, stretches)
                size, entries, damaged = size + found.bytes, entries + found.entries, damaged + found.damaged_places
        for part in self._index.parts:
            if part not in self._index.parts:
                continue  # merged into another while those before it were verified: its file is closed
            part.acquire()
            try:
                async for length, damage in part.verify():
                    size += length
                    self.bytes_scrubbed += length
                    if damage is not None:
                        damaged += 1
                        self._index.report(damage)
                        hidden += [damage.keys] if damage.keys is not None else []
                    await limiter.take(length)
            finally:
                await part.release()
        self._report_hidden(hidden)
        if stretches:
            await self._report_stretches(stretches)
        self.rounds += 1
        self._completed_at = asyncio.get_running_loop().time()
        return ScrubResult(size, entries, damaged)

    def _report_hidden(self, hidden: Sequence[tuple[Key, Key]]) -> None:
        """Report the ledgers whose runs a damaged block of the index may have held."""
        if not hidden:
            return
        live = self._live_ids()
        for (ledger_first, entry_first), (ledger_last, entry_last) in hidden:
            for ledger_id in live[bisect_left(live, ledger_first) : bisect_right(live, ledger_last)]:
                first = entry_first if ledger_id == ledger_first else 0
                last = entry_last if ledger_id == ledger_last else ID_LAST
                self._damage.report(ledger_id, first, last)

    async def _report_stretches(self, stretches: Mapping[int, Sequence[DamagedStretch]]) -> None:
        """Report the entries whose places lie in damaged stretches, by log: one pass over the index."""
        for part in self._index.parts:
            if part not in self._index.parts:
                continue
            part.acquire()
            try:
                for block in part.run_blocks:
                    try:
                        runs = await part.runs_in(block)
                    except IndexDamagedError:
                        continue  # reported as hidden
                    for ledger_id, run in runs:
                        for first, last in _entries_in(run, stretches):
                            self._damage.report(ledger_id, first, last)
                    await asyncio.sleep(0)
            finally:
                await part.release()

    async def _scrub_log(
        self, log_id: int, stop: int, limiter: RateLimiter, stretches: dict[int, list[DamagedStretch]]
    ) -> ScrubResult:
        entries = damaged = pending = 0

        async def read(offset: int, size: int) -> bytes:
            return await self._logs.read(log_id, offset, size)

        with self._reader.places_kept():
            try:
                if not is_header(log_id, await read(0, HEADER_BYTES)):
                    damaged += 1
                    self._reader.report(log_id, 0, 0, "the header of the entry log does not verify")
            except OSError as error:
                self._reader.report(log_id, 0, 1, f"cannot be read: {error}")
                stretches.setdefault(log_id, []).append(DamagedStretch(0, stop))
                return ScrubResult(0, 0, 1)
            async for found in walk_log(read, stop=stop):
                if isinstance(found, DamagedStretch):
                    damaged += 1
                    pending += found.size
                    self._reader.report(log_id, found.offset, 1, f"{found.size} bytes are no intact entry")
                    stretches.setdefault(log_id, []).append(found)
                else:
                    entries += 1
                    pending += len(found.sealed)
                if pending >= PIECE_BYTES:
                    self.bytes_scrubbed += pending
                    await limiter.take(pending)
                    pending = 0
        self.bytes_scrubbed += pending
        await asyncio.sleep(0)
        return ScrubResult(stop, entries, damaged)


def _entries_in(run: Run, stretches: Mapping[int, Sequence[DamagedStretch]]) -> Iterator[tuple[int, int]]:
    """For each damaged stretch that the run touches, the first and the last id with bytes in it."""
    if not isinstance(run.place, int):
        return
    for stretch in stretches.get(run.place, ()):
        stretch_stop = stretch.offset + stretch.size
        if stretch_stop <= run.offset or stretch.offset >= run.offset + run_bytes(run):
            continue
        stops = list(accumulate(sizes_between(run, 0, len(run.ids)), initial=run.offset))[1:]
        start = bisect_right(stops, stretch.offset)
        stop = min(bisect_left(stops, stretch_stop), len(stops) - 1)
        yield run.ids[start], run.ids[stop]
