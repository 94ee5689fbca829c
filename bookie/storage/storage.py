"""The storage of one bookie: what it has accepted, durable, and readable again.

The flow of an add: checks and cache and journal queue in one synchronous step -> the journal's group commit -> the
future is done. Later, in the background: write cache -> entry log -> index -> journal trimmed (``checkpoint``). A
read looks into the same places, newest first (``storage_reads``).

Life: ``open`` (replays the journal, and makes what it found durable anew, rule B1) -> use -> ``close``. A failed
write or sync breaks a promise: ``on_fatal`` is called once, and the process must end.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath

import structlog
from octavo.bookie.disk.filesystem import DiskSpace, FileSystem, is_disk_full
from octavo.bookie.disk.full_disk import FullDiskRetry
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.entrylog.logs import EntryLogs
from octavo.bookie.index.index import Index
from octavo.bookie.journal.journal import (
    Journal,
    JournalCorruption,
    JournalPosition,
    JournalSettings,
    settle_future,
)
from octavo.bookie.storage.cache import WriteCache
from octavo.bookie.storage.checkpoint import Checkpointer
from octavo.bookie.storage.compaction import CompactionResult, Compactor
from octavo.bookie.storage.index_merger import IndexMerger
from octavo.bookie.storage.ledger_state import LedgerState, PackedStates
from octavo.bookie.storage.ledgers import LedgerTable, add_waiter, is_known
from octavo.bookie.storage.log_stream import LogStream
from octavo.bookie.storage.manifest import EVERY_LEDGER, Manifest
from octavo.bookie.storage.manifest_keeper import (
    ManifestKeeper,
    journal_goes_back_to,
    read_manifest,
    refuse_old_manifest,
    remove_orphans,
)
from octavo.bookie.storage.reads import EntryReader, ReadResult
from octavo.bookie.storage.replay import replay_journal
from octavo.bookie.storage.scrubber import Scrubber, ScrubResult
from octavo.bookie.storage.settings import LacView, StorageSettings, StorageStatistics
from octavo.bookie.storage.writes import EntryWriter
from octavo.protocol.entries import SealedBatch, verify_batch
from octavo.protocol.errors import (
    BookieInDoubtError,
    BookieShuttingDownError,
    BookieStorageError,
    NoSuchLedgerError,
)
from octavo.protocol.ids import EntryId, LedgerId

__all__ = ["LacView", "ReadResult", "Storage", "StorageSettings", "StorageStatistics"]

log = structlog.get_logger()


class Storage:
    """See the module. Used from one event loop; nothing here is thread-safe."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: Path,
        entry_directories: Sequence[Path],
        settings: StorageSettings,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """Use :meth:`open`."""
        self._filesystem = filesystem
        self._directory = directory
        self._settings = settings
        self._on_fatal = on_fatal
        self._packed = PackedStates()
        self._ledgers = LedgerTable(self._packed, settings.ledgers_hot_max)
        self._cache = WriteCache(settings.cache_bytes_max)
        self._entry_homes = (directory, *entry_directories)
        self._logs = EntryLogs(filesystem, [folder / "entries" for folder in self._entry_homes])
        self._waits = FullDiskRetry(self._met_full_disk, settings.full_disk_retry_seconds)
        self._journal: Journal
        self._keeper: ManifestKeeper
        self._checkpointer: Checkpointer
        self._merger: IndexMerger
        self._compactor: Compactor
        self._scrubber: Scrubber
        self._reader: EntryReader
        self._writer: EntryWriter
        self._index: Index
        self._failure: BaseException | None = None
        self._closing = False
        self._gave_up = False
        self._flush_wanted = asyncio.Event()
        self._checkpoint_wanted = asyncio.Event()
        self._merge_wanted = asyncio.Event()
        self._room_made = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self.disk_full = asyncio.Event()
        """Set when a write has found no room and waits for some; see :meth:`take_full_directories`."""
        self._full_places: set[Path] = set()
        self.corruption: list[JournalCorruption] = []
        """Damage of the journal found by replay: lost copies, each reported once (rule B3)."""

    # --- opening ----------------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        filesystem: FileSystem,
        *,
        directory: Path,
        journal_directory: Path,
        entry_directories: Sequence[Path] = (),
        settings: StorageSettings | None = None,
        on_fatal: Callable[[BaseException], None],
        rng: random.Random | None = None,
        made_before: bool = False,
    ) -> "Storage":
        """Open what is there, or begin anew; returns once everything found is durable.

        ``directory`` has manifest and index; entry logs are begun by turns there and in ``entry_directories``.
        ``rng`` draws the journal's seeds; without it the operating system does. ``made_before``: it must be there.

        Raises :class:`IndexDamagedError` when manifest, a footer or the ledger states do not verify (the index can be
        rebuilt), OSError when the disk cannot be used.
        """
        storage = cls(filesystem, directory, entry_directories, settings or StorageSettings(), on_fatal)
        async with contextlib.AsyncExitStack() as opened:
            await storage._open(journal_directory, opened, rng, made_before=made_before)
            opened.pop_all()
        return storage

    async def _open(
        self,
        journal_directory: Path,
        opened: contextlib.AsyncExitStack,
        rng: random.Random | None,
        *,
        made_before: bool,
    ) -> None:
        """``opened`` gets what must be closed if opening fails or is cancelled: tasks and files would outlive it."""
        filesystem, directory, settings = self._filesystem, self._directory, self._settings
        for folder in (*self._logs.directories, directory / "index"):
            await filesystem.make_directory(folder)
        manifest = await read_manifest(filesystem, directory, made_before=made_before)
        self._journal = await Journal.open(
            filesystem,
            journal_directory,
            settings=settings.journal or JournalSettings(segment_bytes=settings.journal_segment_bytes),
            start=JournalPosition(*manifest.mark) if manifest.mark is not None else None,
            on_failure=self._fail,
            rng=rng,
        )
        if not journal_goes_back_to(manifest, self._journal.segments):
            await refuse_old_manifest(filesystem, directory, self._logs.directories, manifest)
        manifest = await remove_orphans(filesystem, self._logs.directories, directory / "index", manifest)
        await self._logs.find()
        self._index = await Index.open(
            filesystem, directory / "index", manifest.part_ids, cache_bytes=settings.index_cache_bytes
        )
        opened.push_async_callback(self._index.close)
        async for ledger_id, state in self._index.states():
            self._packed.put(ledger_id, state)
        opened.push_async_callback(self._logs.close)
        opened.push_async_callback(self._journal.close)
        self._keeper = ManifestKeeper(filesystem, directory, manifest, self._index, self._waits)
        self._ledgers.doubt_stop = manifest.doubt_stop
        self._assemble()
        await self._replay(manifest)
        # The mark of this checkpoint lies in the new incarnation of the journal: all older segments go (rule B1).
        await self._journal.start()
        await self._checkpointer.checkpoint()
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise(), name="octavo-storage")
        self._merge_wanted.set()

    def _assemble(self) -> None:
        settings, is_gone = self._settings, self._ledgers.is_gone
        stream = LogStream(self._logs, self._keeper, settings.entry_log_bytes)
        self._checkpointer = Checkpointer(
            keeper=self._keeper,
            stream=stream,
            waits=self._waits,
            cache=self._cache,
            index=self._index,
            journal=self._journal,
            packed=self._packed,
            is_gone=is_gone,
            on_room=self._room_made.set,
            on_freeze=self._disarm,
        )
        self._ledgers.checkpointer = self._checkpointer
        self._reader = EntryReader(self._cache, self._checkpointer, self._index, self._logs)
        self._writer = EntryWriter(
            self._journal, self._cache, self._ledgers, self._reader,
            changed=self._changed, check_usable=self._check_usable,
        )  # fmt: skip
        self._scrubber = Scrubber(self._logs, self._index, self._keeper, self._reader)
        upkeep = asyncio.Lock()
        self._merger = IndexMerger(self._index, self._keeper, upkeep, is_gone)
        self._compactor = Compactor(
            self._logs,
            self._index,
            self._keeper,
            self._reader,
            waits=self._waits,
            stream=LogStream(self._logs, self._keeper, settings.entry_log_bytes),
            upkeep=upkeep,
            is_gone=is_gone,
            unfinished=lambda: {writer.log_id for writer in stream.unfinished},
            highest=lambda ledger_id: self._ledgers.get(ledger_id).highest,
        )

    def _lost_beginning(self, manifest: Manifest) -> list[JournalCorruption]:
        """Without a mark replay cannot tell that the journal's first segments are missing."""
        if manifest.mark is not None or journal_goes_back_to(manifest, self._journal.segments):
            return []
        oldest = min(self._journal.segments)
        what = f"the manifest has no mark, and the journal begins with segment {oldest}: what was before is gone"
        log.error("journal damaged", path=str(self._journal.directory), reason=what)
        return [JournalCorruption(self._journal.directory, 0, None, what)]

    async def _replay(self, manifest: Manifest) -> None:
        dirty = self._checkpointer.dirty
        before = self._lost_beginning(manifest)
        await replay_journal(
            self._journal,
            self._cache,
            self._ledgers,
            changed=lambda ledger: dirty.__setitem__(ledger.ledger_id, ledger),
            flush=self._checkpointer.flush,
            unreadable_is_lost=manifest.doubt_stop == EVERY_LEDGER,
        )
        self.corruption = [*before, *self._journal.corruption]
        if self.corruption:
            # Durable with the checkpoint of this start, which comes before the damaged journal is let go.
            self._keeper.doubt_stop = self._ledgers.doubt_stop = EVERY_LEDGER
        if self._ledgers.doubt_stop is not None:
            log.error("the bookie is in doubt: it may have lost acknowledged entries", ledgers_below=self.doubt_stop)

    # --- writes -----------------------------------------------------------------------------------------------

    def add(
        self,
        ledger_id: LedgerId,
        ledger_key: bytes,
        entries: Sequence[bytes],
        *,
        recovery: bool,
        batch: SealedBatch | None = None,
    ) -> asyncio.Future[None]:
        """Take a frame of sealed entries, all or none; the future is done once they are durable.

        ``batch`` is what ``verify_batch`` said of them (it is asked if it is not given). The first add of a ledger
        pins its key. An id already held with the same bytes is a success once the held copy is durable; a held copy
        that is damaged is replaced (rule W11). Cancelling the future withdraws nothing.

        Raises at once :class:`UnauthorizedError`, :class:`LedgerFencedError` (not recovery), :class:`NoSuchLedgerError`
        (deleted), :class:`BookieStorageError` (broken), :class:`BookieShuttingDownError`. The future may fail with
        :class:`DuplicateEntryError` and, after a slow look-up, with the same.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        batch = batch or verify_batch(ledger_id, entries)
        done = partial(settle_future, future)
        self._writer.add(ledger_id, ledger_key, entries, recovery=recovery, batch=batch, done=done)
        return future

    def add_then(
        self,
        ledger_id: LedgerId,
        ledger_key: bytes,
        entries: Sequence[bytes],
        *,
        recovery: bool,
        batch: SealedBatch,
        done: Callable[[BaseException | None], None],
    ) -> None:
        """As :meth:`add`, without a future: ``done`` is called with the failure, or None, in the very step in which the
        outcome is known, and not when this raises. It must be quick and must not raise."""
        self._writer.add(ledger_id, ledger_key, entries, recovery=recovery, batch=batch, done=done)

    def fence(self, ledger_id: LedgerId, ledger_key: bytes) -> asyncio.Future[None]:
        """Refuse ordinary adds from now on; the future is done once that is durable (rules F2 and B2). Idempotent.

        An unknown ledger is fenced too, and no key is pinned (rule F0). Raises :class:`UnauthorizedError` at once.
        """
        return self._writer.fence(ledger_id, ledger_key)

    def write_lac(self, ledger_id: LedgerId, ledger_key: bytes, sealed: bytes, lac: EntryId) -> None:
        """Apply an explicit LAC that ``verify_explicit_lac`` has passed; journaled, not waited for (rule W2).

        Raises :class:`UnauthorizedError`, :class:`NoSuchLedgerError`.
        """
        self._writer.write_lac(ledger_id, ledger_key, sealed, lac)

    def last_add_confirmed(self, ledger_id: LedgerId) -> LacView:
        """What is known of the ledger's end, from entries and explicit LACs."""
        ledger, in_doubt = self._ledgers.get(ledger_id), self._ledgers.in_doubt(ledger_id)
        return LacView(is_known(ledger), ledger.fenced, ledger.last_add_confirmed, ledger.explicit_lac, in_doubt)

    async def last_add_confirmed_entry(self, ledger_id: LedgerId) -> bytes | None:
        """The sealed entry that vouches for the highest LAC: the intact one with the highest id. None when none is
        held."""
        return await self._reader.highest_entry(ledger_id, self._not_deleted(ledger_id).highest)

    def wait_lac(self, ledger_id: LedgerId, above: int | None) -> asyncio.Future[None]:
        """Done once a LAC above ``above`` is known or the ledger is fenced; cancel it to give up. Free while idle."""
        self._check_usable()
        return add_waiter(self._not_deleted(ledger_id), above)

    # --- reads ------------------------------------------------------------------------------------------------

    async def read(
        self,
        ledger_id: LedgerId,
        first: int,
        last: int,
        *,
        stripe: tuple[int, Sequence[int]] = (1, (0,)),
        entries_max: int,
        bytes_max: int,
    ) -> ReadResult:
        """Entries of ``first..last`` whose id modulo ``stripe[0]`` is among ``stripe[1]``, up to either limit, but
        one at least if one is found. Ids that damage or an I/O error hides are unknown, never absent (rule R2), and
        so is all that is missing of a ledger in doubt (rule B4)."""
        return await self._reader.read(
            ledger_id, first, last, highest=self._not_deleted(ledger_id).highest, stripe=stripe,
            entries_max=entries_max, bytes_max=bytes_max, in_doubt=self._ledgers.in_doubt(ledger_id),
        )  # fmt: skip

    async def list_entries(self, ledger_id: LedgerId) -> list[tuple[int, int]]:
        """The ids held, as intervals. Raises :class:`BookieStorageError` where damage hides them,
        :class:`BookieInDoubtError` for a ledger in doubt, where the ids left out would be negatives."""
        ledger = self._not_deleted(ledger_id)
        if self._ledgers.in_doubt(ledger_id):
            raise BookieInDoubtError(
                f"ledger {ledger_id}: this bookie may have lost what it held of it", may_have_happened=False
            )
        return await self._reader.ranges(ledger_id, ledger.highest)

    def ledgers(self) -> list[int]:
        """Every ledger heard of that has not been deleted here, ascending."""
        return self._ledgers.live_ids()

    def _not_deleted(self, ledger_id: LedgerId) -> LedgerState:
        ledger = self._ledgers.get(ledger_id)
        if ledger.deleted:
            raise NoSuchLedgerError(f"ledger {ledger_id} has been deleted", may_have_happened=False)
        return ledger

    # --- deletion, compaction ---------------------------------------------------------------------------------

    def delete(self, ledger_id: LedgerId) -> asyncio.Future[None]:
        """Forget a ledger for good: from now on it is refused with :class:`NoSuchLedgerError`, and a tombstone keeps it
        so (rule B5). The future is done once the tombstone is durable; then what it held may go. Idempotent.

        Only for ledgers that the metadata say are deleted."""
        return self._writer.delete(ledger_id)

    async def compact(self, live_share_below: float, limiter: RateLimiter) -> CompactionResult:
        """Give back the space of deleted ledgers in entry logs of which a smaller share still counts. Raises OSError,
        but for want of room."""
        if self._checkpointer.roll_log_if(lambda totals: self._live_share(totals) < live_share_below):
            self._checkpoint_wanted.set()  # not waited for: on a full disk it could wait for this very compaction
        result = await self._compactor.compact(live_share_below, limiter)
        await self._merger.purge()
        return result

    async def scrub(self, limiter: RateLimiter) -> ScrubResult:
        """Verify everything in entry logs and index once; damage is reported and counted as by reads."""
        return await self._scrubber.round(limiter)

    def _live_share(self, totals: Mapping[int, int]) -> float:
        live = sum(length for ledger_id, length in totals.items() if not self._ledgers.is_gone(ledger_id))
        return live / (sum(totals.values()) or 1)

    # --- doubt ------------------------------------------------------------------------------------------------

    @property
    def doubt_stop(self) -> int | None:
        """Of ledgers with lower ids acknowledged entries, keys or fences may have been lost here; None: of none.
        Ordinary adds to them are refused, and nothing of them is ever absent (rules B3 and B4). Kept over restarts."""
        return self._ledgers.doubt_stop

    @property
    def doubts_every_ledger(self) -> bool:
        """The doubt awaits :meth:`limit_doubt`."""
        return self.doubt_stop == EVERY_LEDGER

    async def limit_doubt(self, stop: int) -> None:
        """All ledgers with ids from ``stop`` on were created after the doubt began. Durable when it returns.
        Raises OSError."""
        assert self.doubts_every_ledger, "doubt is limited once; only copying from peers ends it"
        await self._keeper.limit_doubt(stop)
        self._ledgers.doubt_stop = stop

    # --- room, statistics -------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """More adds may come. Without room callers stop reading sockets; adds are taken nevertheless."""
        return self._cache.has_room and self._journal.pending_bytes < self._settings.cache_bytes_max

    async def room(self) -> None:
        """Returns once there is room, or the storage has failed or is closing."""
        while not (self.has_room or self._closing or self._failure is not None):
            if not self._cache.has_room:
                self._room_made.clear()
                await self._room_made.wait()
            else:
                await asyncio.wait([self._writer.barrier()])

    @property
    def memory_bytes(self) -> int:
        """Memory held for entries and the index's cache."""
        return self._cache.cost_bytes + self._journal.pending_bytes + self._index.cache_bytes

    def statistics(self) -> StorageStatistics:
        checkpointer = self._checkpointer
        return StorageStatistics(
            ledgers=self._ledgers.count(),
            cache_bytes=self._cache.cost_bytes,
            journal_bytes=self._journal.bytes_appended - checkpointer.mark_bytes,
            journal_pending_bytes=self._journal.pending_bytes,
            log_bytes=sum(self._keeper.log_sizes.values()),
            entry_logs=len(self._keeper.log_sizes),
            index_parts=len(self._index.parts),
            index_cache_bytes=self._index.cache_bytes,
            checkpoints=checkpointer.checkpoints,
            merges=self._merger.merges,
            entries_damaged=self._reader.entries_damaged,
            index_damage_seen=self._index.damage_seen,
            duplicates_refused=self._writer.duplicates_refused,
            logs_compacted=self._compactor.logs_removed,
            logs_kept_damaged=self._compactor.logs_kept,
            compaction_bytes_copied=self._compactor.bytes_copied,
            compaction_bytes_freed=self._compactor.bytes_removed,
            scrub_rounds=self._scrubber.rounds,
            bytes_scrubbed=self._scrubber.bytes_scrubbed,
            disk_full_met=self._waits.times_full,
        )

    async def disk_space(self) -> DiskSpace:
        """Of the disk with entry logs that has the most room."""
        spaces = [await self._filesystem.disk_space(folder) for folder in self._entry_homes]
        return max(spaces, key=lambda space: space.free_bytes)

    def take_full_directories(self) -> frozenset[Path]:
        """The directories in which writes have found no room since the last call, or wait for some."""
        self.disk_full.clear()
        places = self._full_places | self._waits.waiting_at
        self._full_places.clear()
        found = {self._journal.directory} if self._journal.out_of_space else set()
        for place in places:  # entry logs wait only when no directory of theirs has room
            found.update(self._entry_homes if place in self._logs.directories else [self._directory])
        return frozenset(found)

    def note_short_directories(self, short: Collection[PurePath]) -> None:
        """Begin no entry log on these disks while there is another."""
        self._logs.full = {folder / "entries" for folder in self._entry_homes if folder in short}
        if not short:
            self._waits.space_freed()

    async def release_spares(self) -> None:
        """Give back what the journal keeps ready for later. Never raises OSError."""
        await self._journal.release_spares()
        self._waits.space_freed()

    # --- background -------------------------------------------------------------------------------------------

    def _changed(self, ledger: LedgerState) -> None:
        checkpointer, settings = self._checkpointer, self._settings
        checkpointer.dirty[ledger.ledger_id] = ledger
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(
                settings.checkpoint_seconds, self._checkpoint_wanted.set
            )
        if self._cache.is_full:
            self._flush_wanted.set()
        if (
            self._journal.bytes_appended - checkpointer.mark_bytes >= settings.checkpoint_journal_bytes
            or len(checkpointer.dirty) >= settings.checkpoint_ledgers
        ):
            self._checkpoint_wanted.set()

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise BookieStorageError(f"the storage has failed: {self._failure!r}", may_have_happened=False)
        if self._closing:
            raise BookieShuttingDownError("the bookie is stopping")

    async def _supervise(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._flush_when_wanted())
                group.create_task(self._checkpoint_when_wanted())
                group.create_task(self._merge_when_wanted())
        except* Exception as errors:
            error = errors.exceptions[0]
            if self._closing and isinstance(error, OSError) and is_disk_full(error):
                self._gave_up = True
                log.warning("closing with a full disk: the journal keeps what found no room", reason=str(error))
            else:
                self._fail(error)

    def _goes_on(self) -> bool:
        return not self._closing

    async def _flush_when_wanted(self) -> None:
        while self._goes_on():
            await self._flush_wanted.wait()
            self._flush_wanted.clear()
            while self._cache.is_full:
                await self._checkpointer.flush()

    async def _checkpoint_when_wanted(self) -> None:
        while self._goes_on():
            await self._checkpoint_wanted.wait()
            if self._goes_on():
                await self.checkpoint()

    async def _merge_when_wanted(self) -> None:
        while self._goes_on():
            await self._merge_wanted.wait()
            self._merge_wanted.clear()
            while self._goes_on() and await self._merger.merge():
                pass

    async def checkpoint(self) -> None:
        """Make everything accepted so far durable outside the journal. Raises OSError, which is fatal."""
        await self._checkpointer.checkpoint()
        self._merge_wanted.set()

    def _met_full_disk(self, path: Path) -> None:
        self._full_places.add(path)
        self.disk_full.set()

    def _disarm(self) -> None:
        """A checkpoint has fixed what it covers: what asked for it is answered."""
        self._checkpoint_wanted.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail(self, error: BaseException) -> None:
        if self._failure is not None or (self._closing and self._supervisor is None):
            return
        self._failure = error
        log.critical("storage failed", reason=repr(error))
        self._room_made.set()
        self._on_fatal(error)

    async def close(self) -> None:
        """Finish what was begun, checkpoint, close. Adds and fences are refused from the first moment on.

        After a failure nothing more is written. Raises OSError when the last checkpoint fails; the journal then has
        it all.
        """
        if self._closing:
            return
        self._closing = True
        self._waits.stop_retrying()
        for waiter in self._ledgers.all_waiters():
            waiter.cancel()
        for event in (self._flush_wanted, self._checkpoint_wanted, self._merge_wanted, self._room_made):
            event.set()
        if self._timer is not None:
            self._timer.cancel()
        async with contextlib.AsyncExitStack() as closing:  # each is closed whatever happens to the others
            closing.push_async_callback(self._logs.close)
            closing.push_async_callback(self._index.close)
            closing.push_async_callback(self._journal.close)
            closing.push_async_callback(self._compactor.close)
            await self._writer.drain()
            if self._supervisor is not None:
                await self._supervisor
            if self._failure is None:
                if self._checkpointer.is_dirty and not self._gave_up:
                    await self._checkpointer.checkpoint()
                await self._checkpointer.close()
