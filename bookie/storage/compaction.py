"""Frees the space of what is garbage: of deleted and dropped ledgers, and of what streams have been trimmed of. The
live entries of a log are copied, and the log is removed.

For one log, each step complete before the next begins:

1. the entries that the current index parts place in this log are read, verified, and appended to a log of
   compaction's own;
2. the last page of that log is filled, because the next copies go into the same log; it is synced; an index part with
   the new places is written and synced;
3. one new manifest puts the part just above those that were asked, names the new log and leaves the old one out: the
   instant of the change. Entries written to the same ids meanwhile are in newer layers, and win;
4. reads that may have looked up the old places end; the old log is removed.

A crash before 3 leaves files that no manifest names, a crash after it the old log: the next start removes them. A log
without live entries needs no copy and no space: it is removed first, also on a full disk.

A log is kept unchanged when one of its entries does not verify or cannot be read, or when damage in the index hides
which of its entries are live (BookKeeper issue 4607): its bytes may be the last copy."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import structlog
from octavo.bookie.disk.filesystem import is_disk_full
from octavo.bookie.disk.full_disk import FullDiskRetry
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.entrylog.format import Total
from octavo.bookie.entrylog.logs import EntryLogs
from octavo.bookie.index.index import Index
from octavo.bookie.index.part import Part
from octavo.bookie.index.runs import Run, clip, coalesce, sizes_between, span
from octavo.bookie.storage.log_stream import LogStream
from octavo.bookie.storage.manifest_keeper import ManifestKeeper
from octavo.bookie.storage.reads import EntryReader, Selection
from octavo.protocol.errors import BookieStorageError

log = structlog.get_logger("octavo.bookie")

COPY_BYTES = 1 << 20
"""Entries copied at a time: large reads and writes, small memory."""

WINDOW_IDS = 1 << 16
"""Ids of a ledger looked up at a time."""

WINDOW_IDS_MAX = 1 << 22
"""The same, four times as many after each stretch that has none in the log that is compacted."""


class LogShare(NamedTuple):
    """How much of a finished log may be live."""

    log_id: int
    bytes: int
    """Of the file."""
    entry_bytes: int
    """Of the entries in it. Fillers are neither live nor reclaimed: a log would be copied again and again for them."""
    live_bytes: int
    live_ledgers: tuple[int, ...]
    """That may have something live in it, ascending."""

    @property
    def live_share(self) -> float:
        return self.live_bytes / self.entry_bytes if self.entry_bytes else 0.0


class CompactionResult(NamedTuple):
    """The result of a round."""

    logs_removed: int
    bytes_removed: int
    bytes_copied: int
    logs_kept: int
    """Logs that should have been compacted but are damaged."""
    out_of_space: bool
    """There were more logs to compact and no space to copy into."""


class _Live(NamedTuple):
    """The live bytes of a ledger when they were last counted, in the logs that were finished then."""

    logs: frozenset[int]
    bytes: Mapping[int, int] | None


class _DamagedError(Exception):
    """The log must be kept."""


class Compactor:
    """Compacts finished logs, one at a time. ``unfinished`` returns the logs that flushes still write, ``highest``
    an id above which nothing of a ledger is held, ``first_kept`` the id below which it is durably trimmed; ``upkeep``
    excludes merges, which would replace the parts that were asked. ``relieved_below`` returns the id below which ranges
    of a ledger may have been given up."""

    def __init__(
        self,
        logs: EntryLogs,
        index: Index,
        keeper: ManifestKeeper,
        reader: EntryReader,
        *,
        disk_retry: FullDiskRetry,
        stream: LogStream,
        upkeep: asyncio.Lock,
        is_gone: Callable[[int], bool],
        unfinished: Callable[[], set[int]],
        highest: Callable[[int], int | None],
        first_kept: Callable[[int], int],
        relieved_below: Callable[[int], int],
    ) -> None:
        self._logs = logs
        self._index = index
        self._keeper = keeper
        self._reader = reader
        self._disk_retry = disk_retry
        self._stream = stream
        self._upkeep = upkeep
        self._is_gone = is_gone
        self._unfinished = unfinished
        self._highest = highest
        self._first_kept = first_kept
        self._relieved_below = relieved_below
        self._relieved: dict[int, _Live] = {}
        """Of ledgers of which ranges were given up, as long as no more is."""
        self._kept: set[int] = set()
        self._running = asyncio.Lock()
        self.logs_removed = 0
        self.bytes_copied = 0
        self.bytes_removed = 0
        self.live_bytes = 0
        """Of all finished logs whose totals can be read, when a compaction last looked."""

    @property
    def logs_kept(self) -> int:
        """Damaged logs met so far, kept as they are."""
        return len(self._kept)

    async def shares(self, limiter: RateLimiter) -> list[LogShare]:
        """Every finished log whose totals can be read, by log id. Totals read from disk count against the rate."""
        busy = self._unfinished() | {writer.log_id for writer in self._stream.unfinished}
        finished = self._keeper.log_sizes.keys() - busy
        found = []
        for log_id, size in sorted(self._keeper.log_sizes.items()):
            if log_id in busy or log_id in self._kept:
                continue
            try:
                totals = await self._logs.totals(log_id, size)
            except (BookieStorageError, OSError) as error:
                self._keep(log_id, str(error))
                continue
            live = {
                ledger_id: total.bytes
                for ledger_id, total in totals.items()
                if not self._is_gone(ledger_id) and total.is_live(self._first_kept(ledger_id))
            }
            entry_bytes = sum(total.bytes for total in totals.values())
            live_bytes = await self._live_bytes(log_id, live, finished)
            found.append(LogShare(log_id, size, entry_bytes, live_bytes, tuple(sorted(live))))
            await limiter.take(16 * len(totals))
        return found

    def relieved(self, ledger_ids: Iterable[int]) -> None:
        """Ranges of these ledgers have been given up: what is live of them is counted again."""
        for ledger_id in ledger_ids:
            self._relieved.pop(ledger_id, None)

    async def _live_bytes(self, log_id: int, totals: Mapping[int, int], finished: Collection[int]) -> int:
        """How much of these bytes by ledger is live, as far as is known: totals do not tell what is garbage because it
        lay in ranges that were given up (rule C11). Only the index tells whether a log has nothing live in it."""
        live = 0
        for ledger_id, size in totals.items():
            if self._relieved_below(ledger_id):
                known = self._relieved.get(ledger_id)
                if known is None:
                    sizes = await self._reader.bytes_by_log(ledger_id, self._highest(ledger_id) or 0)
                    # Of logs that are still written the share is not known yet.
                    known = self._relieved[ledger_id] = _Live(frozenset(finished if sizes is not None else ()), sizes)
                if log_id in known.logs:
                    size = min(size, (known.bytes or {}).get(log_id, 0))  # noqa: PLW2901
            live += size
        return live

    async def compact(self, live_share_below: float, limiter: RateLimiter) -> CompactionResult:
        """Compact every finished log with a lower live share, emptiest first. Raises OSError other than for a full
        disk."""
        async with self._running:
            before = (self.logs_removed, self.bytes_removed, self.bytes_copied)
            found = await self.shares(limiter)
            self.live_bytes = sum(share.live_bytes for share in found)
            shares = [share for share in found if share.live_share < live_share_below]
            empty = [share for share in shares if not share.live_ledgers]
            if empty:
                await self._remove(empty, {}, None, None)
            out_of_space = False
            for share in sorted(shares, key=lambda share: share.live_bytes):
                if not share.live_ledgers:
                    continue
                try:
                    async with self._upkeep:
                        await self._compact_log(share, limiter)
                except _DamagedError as error:
                    self._keep(share.log_id, str(error))
                except OSError as error:
                    if not is_disk_full(error):
                        raise
                    log.warning("compaction stopped: the disk is full", log=share.log_id, reason=str(error))
                    out_of_space = True
                    break
            await self._finish_stream()
            return CompactionResult(
                self.logs_removed - before[0],
                self.bytes_removed - before[1],
                self.bytes_copied - before[2],
                len(self._kept),
                out_of_space,
            )

    async def _finish_stream(self) -> None:
        """Leave no log unfinished between rounds: remove those that no manifest names, in memory or on disk."""
        self._stream.roll()
        writers = self._stream.unfinished
        await self._stream.finish(writers)
        for writer in writers:
            if writer.log_id not in self._keeper.log_sizes and not self._keeper.may_be_behind:
                await self._logs.remove(writer.log_id)

    async def close(self) -> None:
        """Close the files of a cancelled compaction. Raises OSError."""
        await self._stream.close()

    def _keep(self, log_id: int, reason: str) -> None:
        self._kept.add(log_id)
        log.error("damaged entry log is kept and not compacted", path=str(self._logs.path(log_id)), reason=reason)

    # --- one log --------------------------------------------------------------------------------------------------

    async def _compact_log(self, share: LogShare, limiter: RateLimiter) -> None:
        parts = self._index.parts
        copied: list[tuple[int, list[Run]]] = []
        for ledger_id in share.live_ledgers:
            runs: list[Run] = []
            async for run in self._runs_in(parts, ledger_id, share.log_id):
                for piece in _pieces(run):
                    runs.append(await self._copy(ledger_id, piece, limiter))  # noqa: PERF401 - the rate is kept in order
            if runs and not self._is_gone(ledger_id):
                copied.append((ledger_id, runs))
        if not copied:
            await self._remove([share], {}, None, None)
            return
        await self._stream.fill_page()
        writers = self._stream.unfinished
        for writer in writers:
            await writer.sync()
        sizes = {writer.log_id: writer.size for writer in writers}
        part = await self._write_part(copied)
        await self._remove([share], sizes, part, parts[-1])
        await self._stream.finish(writers)

    async def _runs_in(self, parts: tuple[Part, ...], ledger_id: int, log_id: int) -> AsyncIterator[Run]:
        start, width, highest = self._first_kept(ledger_id), WINDOW_IDS, self._highest(ledger_id)
        while highest is not None and not self._is_gone(ledger_id):
            first = await self._index.first_id(parts, ledger_id, start)
            if first is None or first > highest:
                return
            lookup = await self._index.lookup_in(parts, ledger_id, first, first + width - 1)
            if lookup.unknown:
                raise _DamagedError(f"the index is damaged for ledger {ledger_id}")
            found = False
            for run in lookup.runs:
                if run.place == log_id:
                    found = True
                    yield run
            start, width = first + width, WINDOW_IDS if found else min(width * 4, WINDOW_IDS_MAX)

    async def _copy(self, ledger_id: int, piece: Run, limiter: RateLimiter) -> Run:
        size = span(piece, 0, len(piece.ids)).size
        await limiter.take(2 * size)
        entries = await self._reader.fetch(ledger_id, Selection(piece, range(len(piece.ids))))
        intact = [sealed for sealed in entries if sealed is not None]
        if len(intact) != len(entries):
            raise _DamagedError(f"entries of ledger {ledger_id} among {piece.first} to {piece.last} cannot be read")
        place = await self._stream.append(intact, {ledger_id: Total(size, piece.last)})
        self.bytes_copied += size
        return piece._replace(place=place.log_id, offset=place.offset)

    async def _write_part(self, copied: list[tuple[int, list[Run]]]) -> Part:
        writer = await self._index.new_part(self._keeper.new_part_id())
        try:
            for ledger_id, runs in copied:
                for run in coalesce(runs):
                    await writer.add_run(ledger_id, run)
                await asyncio.sleep(0)
            return await writer.finish()
        except BaseException:  # cancelled or failed: no manifest names the part
            with contextlib.suppress(OSError):
                await writer.abandon()
            raise

    async def _remove(
        self, shares: list[LogShare], added: dict[int, int], part: Part | None, above: Part | None
    ) -> None:
        gone = {share.log_id for share in shares}
        try:
            await self._keeper.exchange_logs(gone, added, part, above)
        except BaseException:
            if part is not None and part not in self._index.parts:
                await part.retire()
            raise
        await self._reader.quiesce()
        for share in shares:
            await self._logs.remove(share.log_id)
            self.logs_removed += 1
            self.bytes_removed += share.bytes
        self._disk_retry.space_freed()


def _pieces(run: Run) -> Iterator[Run]:
    """The run cut into pieces of about :data:`COPY_BYTES`."""
    start, size = 0, 0
    for at, length in enumerate(sizes_between(run, 0, len(run.ids))):
        size += length
        if size >= COPY_BYTES:
            piece = clip(run, run.ids[start], run.ids[at])
            assert piece is not None
            yield piece
            start, size = at + 1, 0
    if start < len(run.ids):
        piece = clip(run, run.ids[start], run.last)
        assert piece is not None
        yield piece
