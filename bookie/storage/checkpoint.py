"""From the write cache to entry logs and the index, and the order in which that becomes durable.

*Flush*: the active half of the cache is swapped out and written to the current entry log, sorted by ledger and
entry, into the page cache only; where its runs lie is kept in memory (``flushed``). In the background it is spread over
time (``flush_pace``); what a caller waits for is not.

*Checkpoint* (rule B7), each step complete before the next begins:

1. one synchronous step: swap the cache, capture the journal's position (the *mark*) and the set of changed ledger
   states;
2. write the swapped half, as a flush; freeze what has been flushed so far; fill the log's last page, so that
   later flushes do not write it again;
3. sync the entry logs it lies in, and wait until the journal is synced up to the mark;
4. write and sync an index part with the frozen runs and the states;
5. replace the manifest: it names the part, the logs' lengths and the mark. This is the instant of the checkpoint;
6. trim the journal up to the mark.

A crash before 5 leaves files that no manifest names; the next start removes them and replays the journal from the
old mark. Adds, and flushes, go on during 3 to 6. On a full disk they wait for free space; any other OSError here is
fatal to the bookie (rule B1), and nothing is retried.

States may be newer than the mark when they are encoded: they only grow, and replay repeats what follows the mark.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from octavo.bookie.disk.full_disk import FullDiskRetry
from octavo.bookie.entrylog.format import Total, Totals
from octavo.bookie.index.index import Index
from octavo.bookie.index.part import Part, PartWriter
from octavo.bookie.index.runs import Run, RunMap, coalesce, run_bytes, runs_from, span
from octavo.bookie.journal.journal import Journal, JournalPosition, RecordKind
from octavo.bookie.storage.cache import Generation, WriteCache
from octavo.bookie.storage.flush_pace import FlushPace
from octavo.bookie.storage.ledger_state import BARRIER, LedgerState
from octavo.bookie.storage.ledgers import LedgerTable
from octavo.bookie.storage.log_stream import LogStream
from octavo.bookie.storage.manifest_keeper import ManifestKeeper
from octavo.metrics.histogram import Histogram

_WRITE_BYTES = 512 * 1024
"""One slice of a flush, a vectored write: large enough for the disk; small enough to leave the loop quickly, and not to
hold up the journal's next write by more than a millisecond or two."""
_WRITE_BUFFERS = 512
"""Buffers of one vectored write, and runs handled between two yields: well under a millisecond of Python work."""
_YIELD_LEDGERS = 128
_RUN_WORK = 64
_YIELD_WORK = 16_384
"""An index run costs as much work as ``_RUN_WORK`` of its entries; after ``_YIELD_WORK`` the loop gets its turn."""


class Frozen(NamedTuple):
    """The state that a checkpoint will make durable, fixed in its synchronous steps."""

    mark: JournalPosition
    states: dict[int, LedgerState]
    barrier: asyncio.Future[None]
    """Done when the journal is synced up to the mark."""


class Checkpointer:
    """Moves entries from the cache into entry logs and index, and owns the runs that are between them."""

    def __init__(
        self,
        *,
        keeper: ManifestKeeper,
        stream: LogStream,
        disk_retry: FullDiskRetry,
        cache: WriteCache,
        index: Index,
        journal: Journal,
        ledgers: LedgerTable,
        on_memory_freed: Callable[[], None],
        on_freeze: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """``on_memory_freed`` is called when the cache accepts more again, ``on_freeze`` in the synchronous step of a
        checkpoint. ``clock`` gives seconds for the statistics."""
        self._keeper = keeper
        self._stream = stream
        self._disk_retry = disk_retry
        self._cache = cache
        self._index = index
        self._journal = journal
        self._ledgers = ledgers
        self._on_memory_freed = on_memory_freed
        self._on_freeze = on_freeze
        self._time = asyncio.get_running_loop().time
        self._swapped_at = self._time()
        self._hurries = 0
        self._flush_lock = asyncio.Lock()
        self._commit_lock = asyncio.Lock()
        self.flushed: dict[int, RunMap] = {}
        """In entry logs since the last freeze; newer than ``committing``."""
        self.committing: dict[int, RunMap] = {}
        self.mark_bytes = 0
        """The journal's ``bytes_appended`` at the last mark."""
        self._clock = clock
        self.seconds = Histogram()
        """The times that checkpoints took, without waiting to begin."""
        self.completed_at = clock()
        """When the last one was complete; before the first, when the storage was opened."""

    @property
    def checkpoints(self) -> int:
        """How many have been completed."""
        return self.seconds.count

    @property
    def age_seconds(self) -> float:
        """Time since the last checkpoint was complete, or since the storage was opened."""
        return self._clock() - self.completed_at

    def layers(self, ledger_id: int) -> list[RunMap]:
        """The ledger's run maps between cache and index, newest first."""
        found = (self.flushed.get(ledger_id), self.committing.get(ledger_id))
        return [run_map for run_map in found if run_map is not None]

    @property
    def is_dirty(self) -> bool:
        """There is something that a checkpoint would make durable outside the journal."""
        return bool(self._ledgers.dirty or self.flushed or self._cache.active.ledgers)

    # --- flush ------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Write the active half to the entry log. Raises OSError."""
        async with self._flush_lock:
            if self._cache.active.ledgers:
                await self._write_generation(self._cache.swap())

    @contextlib.contextmanager
    def hurrying(self) -> Iterator[None]:
        """Inside the block flushes do not pause: something waits for them."""
        self._hurries += 1
        try:
            yield
        finally:
            self._hurries -= 1

    async def _write_generation(self, generation: Generation) -> None:
        self._on_memory_freed()
        now = self._time()
        pace = FlushPace(now, generation.entry_bytes, now - self._swapped_at)
        self._swapped_at = now
        batch: list[tuple[int, Run]] = []
        size = written = 0
        for ledger_id in sorted(generation.ledgers):
            if self._ledgers.is_gone(ledger_id):
                continue
            for run in runs_from(generation.ledgers[ledger_id].runs, self._ledgers.first_kept(ledger_id)):
                length = run_bytes(run)
                batch.append((ledger_id, run))
                size += length
                if size >= _WRITE_BYTES or len(batch) >= _WRITE_BUFFERS:
                    await self._write_batch(batch)
                    written += size
                    batch, size = [], 0
                    await self._keep_pace(pace, written)
        if batch:
            await self._write_batch(batch)
        self._cache.flushed()
        self._on_memory_freed()
        await _dismantle(generation)

    async def _keep_pace(self, pace: FlushPace, written: int) -> None:
        """Pause before the next slice, as long as ``pace`` says and nothing waits for the flush."""
        while not self._hurries:
            seconds = pace.pause_seconds(written, self._cache.filled_share, self._time())
            if not seconds:
                return
            await asyncio.sleep(seconds)

    async def _write_batch(self, batch: list[tuple[int, Run]]) -> None:
        buffers = []
        totals: Totals = {}
        current, size, highest = batch[0][0], 0, 0
        for ledger_id, run in batch:
            assert isinstance(run.place, bytes), "cached runs are in memory"
            start, length = span(run, 0, len(run.ids))
            buffers.append(run.place if length == len(run.place) else run.place[start : start + length])
            if ledger_id != current:
                totals[current] = Total(size, highest)
                current, size = ledger_id, 0
            size, highest = size + length, run.last
        totals[current] = Total(size, highest)
        log_id, offset = await self._disk_retry.retry_while_full(
            self._stream.directory, lambda: self._stream.append(buffers, totals), yields=True
        )
        placed: dict[int, list[Run]] = {}
        for (ledger_id, run), buffer in zip(batch, buffers, strict=True):
            placed.setdefault(ledger_id, []).append(run._replace(place=log_id, offset=offset))
            offset += len(buffer)
        for ledger_id, runs in placed.items():
            run_map = self.flushed.get(ledger_id)
            if run_map is None:
                run_map = self.flushed[ledger_id] = RunMap()
            for run in coalesce(runs):
                run_map.put(run)

    def roll_log_if(self, wanted: Callable[[Totals], bool]) -> bool:
        """Write no more to the active log if ``wanted`` is true for the totals of each ledger in it: after the next
        checkpoint it can be compacted. Returns False and does nothing while a flush writes to it."""
        totals = self._stream.totals
        if self._flush_lock.locked() or not totals or not wanted(totals):
            return False
        self._stream.roll()
        return True

    # --- checkpoint -------------------------------------------------------------------------------------------

    async def checkpoint(self) -> None:
        """Make everything up to now durable outside the journal, and trim it. Raises OSError, JournalFailedError."""
        async with self._commit_lock:
            began_at = self._clock()
            async with self._flush_lock:
                frozen, generation = self._freeze()
                if generation is not None:
                    await self._write_generation(generation)
                assert not self.committing, "one commit at a time"
                self.committing, self.flushed = self.flushed, {}
                await self._stream.fill_page()
                writers = self._stream.unfinished
                sizes = {writer.log_id: writer.size for writer in writers}
            for writer in writers:
                await writer.sync()
            await frozen.barrier
            part = await self._disk_retry.retry_while_full(
                self._index.directory, lambda: self._write_part(frozen.states)
            )
            try:
                await self._keeper.commit_checkpoint((frozen.mark.segment, frozen.mark.offset), part, sizes)
            except BaseException:  # the storage closes on a full disk, or fails: the index will not close the part
                if part is not None and part not in self._index.parts:
                    await part.retire()
                raise
            self.committing = {}
            self._ledgers.committed()
            await self._journal.trim(frozen.mark)
            self._disk_retry.space_freed()
            await self._stream.finish([writer for writer in writers if writer.size == sizes[writer.log_id]])
            self.completed_at = self._clock()
            self.seconds.observe(self.completed_at - began_at)

    def _freeze(self) -> tuple[Frozen, Generation | None]:
        """The synchronous step: whatever the journal holds up to the mark is in the swapped half or flushed
        before."""
        self._on_freeze()
        mark = self._journal.mark()
        states = self._ledgers.freeze()
        self.mark_bytes = self._journal.bytes_appended
        generation = self._cache.swap() if self._cache.active.ledgers else None
        barrier: asyncio.Future[None]
        if self._journal.synced_position < mark:
            barrier = self._journal.append(RecordKind.LEDGER_KEY, [BARRIER])
        else:
            barrier = asyncio.get_running_loop().create_future()
            barrier.set_result(None)
        return Frozen(mark, states, barrier), generation

    async def _write_part(self, states: dict[int, LedgerState]) -> Part | None:
        if not states and not self.committing:
            return None
        writer = await self._index.new_part(self._keeper.new_part_id())
        try:
            await self._fill_part(writer, states)
            return await writer.finish()
        except BaseException:  # cancelled or failed: no manifest names the part
            with contextlib.suppress(OSError):
                await writer.abandon()
            raise

    async def _fill_part(self, writer: PartWriter, states: dict[int, LedgerState]) -> None:
        handled = 0
        for ledger_id in sorted(self.committing):
            if self._ledgers.is_gone(ledger_id):
                continue
            for run in coalesce(runs_from(self.committing[ledger_id].runs, self._ledgers.first_kept(ledger_id))):
                await writer.add_run(ledger_id, run)
                handled += _RUN_WORK + len(run.ids)
                if handled > _YIELD_WORK:
                    handled = 0
                    await asyncio.sleep(0)
        for at, ledger_id in enumerate(sorted(states)):
            await writer.add_state(ledger_id, self._ledgers.pack(states[ledger_id]))
            if at % _YIELD_LEDGERS == 0:
                await asyncio.sleep(0)

    async def close(self) -> None:
        """Close the entry logs. What was not checkpointed is in the journal."""
        with contextlib.suppress(OSError):
            await self._stream.close()


async def _dismantle(generation: Generation) -> None:
    """Free a half in pieces: dropping a hundred thousand runs at once would hold up the loop."""
    handled = 0
    while generation.ledgers:
        _, run_map = generation.ledgers.popitem()
        while run_map.runs:
            handled += min(len(run_map.runs), _WRITE_BUFFERS)
            del run_map.runs[-_WRITE_BUFFERS:]
            if handled >= _WRITE_BUFFERS:
                handled = 0
                await asyncio.sleep(0)
