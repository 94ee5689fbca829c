"""The storage of one bookie: keeps accepted entries durable and serves reads.

The flow of an add: checks, cache and journal queue in one synchronous step -> the journal's group commit -> the answer
to the caller. Later, in the background: write cache -> entry log -> index -> journal trimmed (``checkpoint``). A read
looks into the same places, newest first (``reads``).

:class:`Storage` puts the parts together, opens and closes them. Its callers use the parts: ``writer`` for adds and
fences, ``reader`` for reads, ``relief`` to give up ranges, ``admission`` to ask whether there is memory for an add,
``space`` for the disks.

Life: ``open`` (replays the journal, and writes what it found to new files before it returns, rule B1) -> use ->
``close``. After a failed write or sync ``on_fatal`` is called once, and the process must end.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import structlog
from octavo.bookie.disk.filesystem import FileSystem, is_disk_full
from octavo.bookie.disk.full_disk import FullDiskRetry
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.entrylog.format import Totals
from octavo.bookie.entrylog.logs import EntryLogs
from octavo.bookie.index.index import Index
from octavo.bookie.journal.journal import Journal, JournalCorruption, JournalPosition, JournalSettings
from octavo.bookie.storage.admission import Admission, Health
from octavo.bookie.storage.background import Background, CheckpointTrigger
from octavo.bookie.storage.cache import WriteCache
from octavo.bookie.storage.checkpoint import Checkpointer
from octavo.bookie.storage.compaction import CompactionResult, Compactor
from octavo.bookie.storage.damage import DamageReports
from octavo.bookie.storage.index_merger import IndexMerger
from octavo.bookie.storage.ledger_reader import LedgerReader
from octavo.bookie.storage.ledger_state import PackedStates
from octavo.bookie.storage.ledgers import LedgerLocks, LedgerTable
from octavo.bookie.storage.log_stream import LogStream
from octavo.bookie.storage.manifest import DOUBT_OF_EVERY_LEDGER, EVERY_LEDGER, Manifest
from octavo.bookie.storage.manifest_keeper import (
    ManifestKeeper,
    journal_goes_back_to,
    read_manifest,
    refuse_old_manifest,
    remove_orphans,
)
from octavo.bookie.storage.reads import EntryReader, ReadResult
from octavo.bookie.storage.relief import Relief
from octavo.bookie.storage.replay import replay_journal
from octavo.bookie.storage.scrubber import Scrubber
from octavo.bookie.storage.settings import LacView, StorageSettings, StorageStatistics
from octavo.bookie.storage.space import StorageSpace
from octavo.bookie.storage.writes import EntryWriter
from octavo.protocol.held_entries import Doubt
from octavo.protocol.ids import LedgerId

__all__ = ["LacView", "ReadResult", "Storage", "StorageSettings", "StorageStatistics"]

log = structlog.get_logger()


class Storage:
    """See the module. Used from one event loop; nothing here is thread-safe."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: Path,
        entry_homes: Sequence[Path],
        settings: StorageSettings,
        *,
        health: Health,
        journal: Journal,
        logs: EntryLogs,
        index: Index,
        packed_states: PackedStates,
        manifest: Manifest,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        """Use :meth:`open`."""
        self._health, self._journal, self._logs, self._index = health, journal, logs, index
        self._disk_retry = disk_retry = FullDiskRetry(settings.full_disk_retry_seconds)
        self._keeper = keeper = ManifestKeeper(filesystem, directory, manifest, index, disk_retry)
        self._cache = cache = WriteCache(settings.cache_bytes_max, lambda: 1.0 - settings.cache_spread * rng.random())
        stream = LogStream(logs, keeper, settings.entry_log_bytes)
        trigger = CheckpointTrigger(settings.checkpoint_seconds)
        self.ledgers = ledgers = LedgerTable(packed_states, settings.ledgers_hot_max)
        ledgers.doubt = manifest.doubt
        self.admission = Admission(health, cache, journal, settings.cache_bytes_max)
        self.space = StorageSpace(filesystem, directory, entry_homes, logs=logs, journal=journal, disk_retry=disk_retry)
        self._checkpointer = checkpointer = Checkpointer(
            keeper=keeper, stream=stream, disk_retry=disk_retry, cache=cache, index=index, journal=journal,
            ledgers=ledgers, on_memory_freed=self.admission.memory_freed, on_freeze=trigger.disarm, clock=clock,
        )  # fmt: skip
        self.damage = DamageReports()
        entries = self._entries = EntryReader(cache, checkpointer, index, logs, self.damage)
        self.copy_locks = LedgerLocks()
        self._clearing_lock = asyncio.Lock()
        upkeep = asyncio.Lock()
        self._merger = IndexMerger(index, keeper, upkeep, ledgers.is_gone, ledgers.first_kept)
        self._background = Background(
            settings=settings, health=health, trigger=trigger, cache=cache, journal=journal, ledgers=ledgers,
            checkpointer=checkpointer, merger=self._merger,
        )  # fmt: skip
        self.writer = EntryWriter(
            journal=journal, cache=cache, ledgers=ledgers, reader=entries,
            health=health, admission=self.admission, background=self._background,
            clear_dropped=self._clear_dropped,
        )  # fmt: skip
        self.reader = LedgerReader(ledgers, entries, health)
        self.scrubber = Scrubber(logs, index, keeper, entries, damage=self.damage, live_ids=ledgers.live_ids)
        self._compactor = Compactor(
            logs,
            index,
            keeper,
            entries,
            disk_retry=disk_retry,
            stream=LogStream(logs, keeper, settings.entry_log_bytes),
            upkeep=upkeep,
            is_gone=ledgers.is_gone,
            unfinished=lambda: {writer.log_id for writer in stream.unfinished},
            highest=lambda ledger_id: ledgers.get(ledger_id).highest,
            first_kept=ledgers.first_kept,
            relieved_below=ledgers.relieved_below,
        )
        self.relief = Relief(
            journal=journal, ledgers=ledgers, health=health, entries=entries, merger=self._merger,
            background=self._background, on_removed=self._compactor.relieved,
        )  # fmt: skip
        self.corruption: list[JournalCorruption] = []
        """Damage of the journal found by replay: lost copies, each reported once (rule B3)."""

    # --- opening and closing ----------------------------------------------------------------------------------

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
        must_exist: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> "Storage":
        """Open the existing storage, or create it. Returns once everything found is durable.

        ``directory`` contains the manifest and the index. Entry logs are created in it and in ``entry_directories`` in
        turn. ``rng`` draws the journal's seeds and the sizes at which the cache is flushed; without it the operating
        system does. ``must_exist``: a missing manifest is an error, because this bookie has had one. ``clock`` gives
        seconds for the statistics; by default the event loop does.

        Raises :class:`IndexDamagedError` when manifest, a footer or the ledger states do not verify (the index can be
        rebuilt), OSError when the disk cannot be used.
        """
        settings = settings or StorageSettings()
        clock = clock or asyncio.get_running_loop().time
        rng = rng or random.SystemRandom()
        health = Health(on_fatal)
        entry_homes = (directory, *entry_directories)
        logs = EntryLogs(filesystem, [folder / "entries" for folder in entry_homes])
        # What must be closed if opening fails or is cancelled: tasks and files would outlive it.
        async with contextlib.AsyncExitStack() as opened:
            for folder in (*logs.directories, directory / "index"):
                await filesystem.make_directory(folder)
            manifest = await read_manifest(filesystem, directory, must_exist=must_exist)
            journal = await Journal.open(
                filesystem,
                journal_directory,
                settings=settings.journal or JournalSettings(segment_bytes=settings.journal_segment_bytes),
                start=JournalPosition(*manifest.mark) if manifest.mark is not None else None,
                on_failure=health.fail,
                rng=rng,
                clock=clock,
            )
            if not journal_goes_back_to(manifest, journal.segments):
                await refuse_old_manifest(filesystem, directory, logs.directories, manifest)
            manifest = await remove_orphans(filesystem, logs.directories, directory / "index", manifest)
            await logs.find()
            index = await Index.open(
                filesystem,
                directory / "index",
                manifest.part_ids,
                cache_bytes=settings.index_cache_bytes,
                clock=clock,
            )
            opened.push_async_callback(index.close)
            packed_states = PackedStates()
            async for ledger_id, state in index.states():
                packed_states.put(ledger_id, state)
            opened.push_async_callback(logs.close)
            opened.push_async_callback(journal.close)
            storage = cls(
                filesystem, directory, entry_homes, settings,
                health=health, journal=journal, logs=logs, index=index, packed_states=packed_states, manifest=manifest,
                clock=clock, rng=rng,
            )  # fmt: skip
            with storage._checkpointer.hurrying():
                await storage._replay(manifest)
            # The mark of this checkpoint lies in the new incarnation of the journal, so that the checkpoint deletes all
            # older segments (rule B1).
            await journal.start()
            await storage.checkpoint()
            storage._background.start()
            opened.pop_all()
        return storage

    async def _replay(self, manifest: Manifest) -> None:
        lost = _lost_beginning(self._journal, manifest)
        await replay_journal(
            self._journal,
            self._cache,
            self.ledgers,
            flush=self._checkpointer.flush,
            unreadable_is_lost=manifest.doubt == DOUBT_OF_EVERY_LEDGER,
        )
        self.corruption = [*lost, *self._journal.corruption]
        if self.corruption:
            # Durable with the checkpoint of this start, which comes before the damaged journal is removed.
            self._keeper.doubt = self.ledgers.doubt = DOUBT_OF_EVERY_LEDGER
        if self.doubted_ids_stop is not None:
            log.error(
                "the bookie is in doubt: it may have lost acknowledged entries", ledgers_below=self.doubted_ids_stop
            )

    async def close(self) -> None:
        """Finish the work under way, take a checkpoint, and close. Adds and fences are refused from the call on.

        After a failure nothing more is written. Raises OSError when the last checkpoint fails; the journal then holds
        everything accepted.
        """
        if self._health.closing:
            return
        self._health.close()
        self._disk_retry.stop_retrying()
        for waiter in self.ledgers.all_waiters():
            waiter.cancel()
        async with contextlib.AsyncExitStack() as closing:  # each is closed even if another fails
            closing.enter_context(self._checkpointer.hurrying())
            closing.push_async_callback(self._logs.close)
            closing.push_async_callback(self._index.close)
            closing.push_async_callback(self._journal.close)
            closing.push_async_callback(self._compactor.close)
            await self.writer.drain()
            await self._background.wait_ended()
            if self._health.failure is None:
                try:
                    if self._checkpointer.is_dirty and not self._background.gave_up:
                        await self._checkpointer.checkpoint()
                finally:  # also when the disk is full
                    await self._checkpointer.close()

    # --- upkeep -----------------------------------------------------------------------------------------------

    async def checkpoint(self) -> None:
        """Make everything accepted so far durable outside the journal. Raises OSError, which is fatal."""
        await self._background.checkpoint()

    def request_checkpoint(self) -> None:
        """Have a checkpoint taken soon, in the background."""
        self._background.request_checkpoint()

    async def compact(self, live_share_below: float, limiter: RateLimiter) -> CompactionResult:
        """Free the space of garbage in entry logs whose live share is below ``live_share_below``. Raises
        OSError, except for a full disk."""
        if self._checkpointer.roll_log_if(lambda totals: self._live_share(totals) < live_share_below):
            self.request_checkpoint()  # not waited for: on a full disk it could wait for this compaction
        result = await self._compactor.compact(live_share_below, limiter)
        await self._merger.purge()
        return result

    async def has_compactable(self, live_share_below: float, limiter: RateLimiter) -> bool:
        """Whether :meth:`compact` would remove an entry log."""
        return any(share.live_share < live_share_below for share in await self._compactor.shares(limiter))

    def _live_share(self, totals: Totals) -> float:
        live = sum(
            total.bytes
            for ledger_id, total in totals.items()
            if not self.ledgers.is_gone(ledger_id) and total.is_live(self.ledgers.first_kept(ledger_id))
        )
        return live / (sum(total.bytes for total in totals.values()) or 1)

    # --- copies -----------------------------------------------------------------------------------------------

    def holds_entries(self, ledger_id: LedgerId) -> bool:
        """Whether entries of the ledger may be held: it is neither deleted nor dropped, nor only fenced."""
        ledger = self.ledgers.get(ledger_id)
        return ledger.highest is not None and not ledger.deleted and not ledger.dropped

    async def _clear_dropped(self, ledger_id: LedgerId) -> None:
        """Prepare a dropped ledger for new entries: remove the places of the old ones from the index, which then shows
        what is missing. On a full disk, or if the index is damaged, some may be left; their entries are then unknown.
        Raises OSError, which is fatal."""
        async with self._clearing_lock:
            try:
                await self.checkpoint()
                await self._merger.purge_ledger(ledger_id)
            except OSError as error:
                if not (self._health.closing and is_disk_full(error)):
                    self._health.fail(error)
                raise

    # --- doubt ------------------------------------------------------------------------------------------------

    @property
    def doubted_ids_stop(self) -> int | None:
        """This bookie may have lost acknowledged entries, keys or fences of ledgers with ids below this one; None if it
        has lost none. Ordinary adds to these ledgers are refused for ever (rules B3 and D1). Kept across restarts."""
        return None if self.ledgers.doubt is None else self.ledgers.doubt.stop

    @property
    def doubts_every_ledger(self) -> bool:
        """Whether :meth:`limit_doubt` must be called."""
        return self.doubted_ids_stop == EVERY_LEDGER

    async def limit_doubt(self, stop: int) -> None:
        """Limit the doubt to ids below ``stop``, because all other ledgers were created after the doubt began. Durable
        when it returns. Raises OSError."""
        assert self.doubts_every_ledger, "doubt is limited once; only copying from other bookies ends it"
        await self._change_doubt(Doubt(stop))

    @property
    def doubt(self) -> Doubt | None:
        """The ledgers for which this bookie never answers *absent*, because it may have lost their entries (rule D2);
        None if there are none."""
        doubt = self.ledgers.doubt
        return None if doubt is None or doubt.is_over else doubt

    async def narrow_doubt(
        self, sure_below: int, exceptions: Mapping[int, int], term_floors: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        """Take ledgers out of the doubt; see :meth:`Doubt.narrowed` and :meth:`Doubt.with_term_floors`, whose
        :class:`ValueError` it raises. The caller ensures that nothing of these ledgers is missing here, and that no
        term above a stream's floor was open when the doubt began. Durable when it returns. Raises OSError, which is
        fatal."""
        assert not self.doubts_every_ledger, "doubt is limited before it is narrowed"
        if self.ledgers.doubt is None:
            raise ValueError("this bookie is not in doubt")
        narrowed = self.ledgers.doubt.narrowed(sure_below, exceptions)
        await self._change_doubt(narrowed.with_term_floors(term_floors))

    async def _change_doubt(self, doubt: Doubt) -> None:
        try:
            await self._keeper.change_doubt(doubt)
        except OSError as error:  # the caller is a task that goes on without it: the bookie must not (rule B1)
            if not (self._health.closing and is_disk_full(error)):
                self._health.fail(error)
            raise
        self.ledgers.doubt = doubt

    # --- statistics -------------------------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """Memory held for entries and the index's cache."""
        return (
            self._cache.cost_bytes
            + self._journal.pending_bytes
            + self.admission.waiting_bytes
            + self._index.cache_bytes
        )

    def statistics(self) -> StorageStatistics:
        checkpointer = self._checkpointer
        return StorageStatistics(
            ledgers=self.ledgers.count(),
            cache_bytes=self._cache.cost_bytes,
            journal_bytes=self._journal.bytes_appended - checkpointer.mark_bytes,
            journal=self._journal.statistics(),
            log_bytes=sum(self._keeper.log_sizes.values()),
            log_bytes_live=self._compactor.live_bytes,
            entry_logs=len(self._keeper.log_sizes),
            index_parts=len(self._index.parts),
            index_cache_bytes=self._index.cache_bytes,
            index_lookup_seconds=self._index.lookup_seconds,
            checkpoints=checkpointer.checkpoints,
            checkpoint_seconds=checkpointer.seconds,
            checkpoint_age_seconds=checkpointer.age_seconds,
            merges=self._merger.merges,
            merge_bytes=self._merger.bytes_written,
            entries_damaged=self._entries.entries_damaged,
            index_damage_seen=self._index.damage_seen,
            duplicates_refused=self.writer.duplicates_refused,
            fences=self.writer.fences,
            logs_compacted=self._compactor.logs_removed,
            logs_kept_damaged=self._compactor.logs_kept,
            compaction_bytes_copied=self._compactor.bytes_copied,
            compaction_bytes_freed=self._compactor.bytes_removed,
            scrub_rounds=self.scrubber.rounds,
            scrub_age_seconds=self.scrubber.age_seconds,
            bytes_scrubbed=self.scrubber.bytes_scrubbed,
            disk_full_met=self._disk_retry.times_full,
        )


def _lost_beginning(journal: Journal, manifest: Manifest) -> list[JournalCorruption]:
    """Return the damage if the journal's first segments are missing and the manifest has no mark: replay itself notices
    that only if there is a mark."""
    if manifest.mark is not None or journal_goes_back_to(manifest, journal.segments):
        return []
    oldest = min(journal.segments)
    what = f"the manifest has no mark, and the journal begins with segment {oldest}: everything before it is lost"
    log.error("journal damaged", path=str(journal.directory), reason=what)
    return [JournalCorruption(journal.directory, 0, None, what)]
