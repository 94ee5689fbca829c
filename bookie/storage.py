"""The storage of one bookie: what it has accepted, durable, and readable again.

The flow of an add: checks and cache and journal queue in one synchronous step -> the journal's group commit -> the future is
done. Later, in the background: write cache -> entry log -> index -> journal trimmed (``checkpoint``). A read looks into the
same places, newest first (``storage_reads``).

Life: ``open`` (replays the journal, and makes what it found durable anew, PROTOCOL B1) -> use -> ``close``. A failed write or
sync breaks a promise: ``on_fatal`` is called once, and the process must end.
"""

import asyncio
import hmac
from array import array
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from octavo.bookie.checkpoint import Checkpointer, remove_orphans
from octavo.bookie.checkpoint_manifest import EMPTY, Manifest, decode_manifest, encode_manifest
from octavo.bookie.entry_log import EntryLogs
from octavo.bookie.filesystem import DiskSpace, FileSystem, read_file, replace_file
from octavo.bookie.index import Index
from octavo.bookie.index_format import IndexDamagedError
from octavo.bookie.index_runs import Run, run_bytes
from octavo.bookie.journal import Journal, JournalCorruption, JournalPosition, JournalSettings, RecordKind
from octavo.bookie.ledger_state import (
    LedgerState,
    PackedStates,
    decode_add,
    decode_ledger_record,
    encode_add_head,
    encode_ledger_record,
)
from octavo.bookie.storage_ledgers import LedgerTable, add_waiter, is_known, wake_waiters
from octavo.bookie.storage_reads import EntryReader, ReadResult, Selection
from octavo.bookie.write_cache import WriteCache
from octavo.protocol.entries import SealedBatch, header_of, verify_batch
from octavo.protocol.errors import (
    BookieShuttingDownError,
    BookieStorageError,
    DuplicateEntryError,
    InternalError,
    LedgerFencedError,
    NoSuchLedgerError,
    OctavoError,
    UnauthorizedError,
)
from octavo.protocol.ids import EntryId, LedgerId

__all__ = ["LacView", "ReadResult", "Storage", "StorageSettings", "StorageStatistics"]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Sizes in bytes, times in seconds."""

    cache_bytes_max: int = 64 * 1024 * 1024
    """A generation of the write cache; there are two, and as much again may wait for the journal."""
    entry_log_bytes: int = 1024 * 1024 * 1024
    """Size at which the next entry log is begun: compaction rewrites one at a time."""
    checkpoint_journal_bytes: int = 512 * 1024 * 1024
    """Journal bytes after which a checkpoint is taken: bounds the replay at a start."""
    checkpoint_seconds: float = 60.0
    """Longest time between a change and the checkpoint that covers it."""
    checkpoint_ledgers: int = 65_536
    """Changed ledgers after which a checkpoint is taken: bounds the states held as objects."""
    index_cache_bytes: int = 32 * 1024 * 1024
    ledgers_hot_max: int = 65_536
    journal_segment_bytes: int = 64 * 1024 * 1024
    journal: JournalSettings | None = field(default=None)
    """All settings of the journal; None: the defaults with ``journal_segment_bytes``."""


class LacView(NamedTuple):
    """What a bookie knows of a ledger's end, without a look at the disk."""

    known: bool
    """It has heard of the ledger."""
    fenced: bool
    last_add_confirmed: int | None
    explicit: bytes | None
    """The sealed explicit LAC, if there is one."""


class StorageStatistics(NamedTuple):
    """Counts since the start, and sizes of this moment, in bytes."""

    ledgers: int
    cache_bytes: int
    journal_bytes: int
    """Journaled since the last checkpoint's mark."""
    journal_pending_bytes: int
    log_bytes: int
    index_parts: int
    index_cache_bytes: int
    checkpoints: int
    merges: int
    entries_damaged: int
    index_damage_seen: int
    duplicates_refused: int


class _SlowAdd(NamedTuple):
    entries: Sequence[bytes]
    batch: SealedBatch
    recovery: bool
    future: asyncio.Future[None]


class Storage:
    """See the module. Used from one event loop; nothing here is thread-safe."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: Path,
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
        self._logs = EntryLogs(filesystem, directory / "entries")
        self._journal: Journal
        self._checkpointer: Checkpointer
        self._reader: EntryReader
        self._index: Index
        self._failure: BaseException | None = None
        self._closing = False
        self._flush_wanted = asyncio.Event()
        self._checkpoint_wanted = asyncio.Event()
        self._merge_wanted = asyncio.Event()
        self._room_made = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._slow_tasks: set[asyncio.Task[None]] = set()
        self._duplicates_refused = 0
        self.corruption: list[JournalCorruption] = []
        """Damage of the journal found by replay: lost copies, each reported once (PROTOCOL B3)."""

    # --- opening ---------------------------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        filesystem: FileSystem,
        *,
        directory: Path,
        journal_directory: Path,
        settings: StorageSettings | None = None,
        on_fatal: Callable[[BaseException], None],
    ) -> "Storage":
        """Open what is there, or begin anew; returns once everything found is durable.

        Raises :class:`IndexDamagedError` when manifest, a footer or the ledger states do not verify (restore the file or
        rebuild the bookie from its peers), OSError when the disk cannot be used.
        """
        storage = cls(filesystem, directory, settings or StorageSettings(), on_fatal)
        await storage._open(journal_directory)
        return storage

    async def _open(self, journal_directory: Path) -> None:
        filesystem, directory, settings = self._filesystem, self._directory, self._settings
        for folder in (directory / "entries", directory / "index"):
            await filesystem.make_directory(folder)
        manifest = await _read_manifest(filesystem, directory)
        next_part_id, next_log_id = await remove_orphans(filesystem, directory, manifest)
        manifest = manifest._replace(next_part_id=next_part_id, next_log_id=next_log_id)
        self._index = await Index.open(
            filesystem, directory / "index", manifest.part_ids, cache_bytes=settings.index_cache_bytes
        )
        async for ledger_id, state in self._index.states():
            self._packed.put(ledger_id, state)
        self._journal = await Journal.open(
            filesystem,
            journal_directory,
            settings=settings.journal or JournalSettings(segment_bytes=settings.journal_segment_bytes),
            start=JournalPosition(*manifest.mark) if manifest.mark is not None else None,
            on_failure=self._fail,
        )
        self._checkpointer = Checkpointer(
            filesystem,
            directory,
            manifest=manifest,
            cache=self._cache,
            index=self._index,
            journal=self._journal,
            packed=self._packed,
            entry_log_bytes=settings.entry_log_bytes,
            on_room=self._room_made.set,
            on_freeze=self._disarm,
        )
        self._ledgers.checkpointer = self._checkpointer
        self._reader = EntryReader(self._cache, self._checkpointer, self._index, self._logs)
        await self._replay()
        # The mark of this checkpoint lies in the new incarnation of the journal: all older segments go (PROTOCOL B1).
        await self._journal.start()
        await self._checkpointer.checkpoint()
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise(), name="octavo-storage")
        self._merge_wanted.set()

    async def _replay(self) -> None:
        records = 0
        async for kind, body, position in self._journal.replay():
            try:
                self._replay_record(kind, body)
            except (ValueError, OctavoError) as error:
                raise BookieStorageError(
                    f"the journal record before {position} verifies but makes no sense: {error}"
                ) from error
            records += 1
            if self._cache.is_full:
                await self._checkpointer.flush()
        self.corruption = list(self._journal.corruption)
        for place in self.corruption:
            log.error("journal damaged", path=str(place.path), offset=place.offset, reason=place.what)
        log.info("journal replayed", records=records)

    def _replay_record(self, kind: RecordKind, body: bytes) -> None:
        if kind is RecordKind.ADD:
            ledger_id, run, lac_plus_one = decode_add(body)
            self._cache.put(ledger_id, run, run_bytes(run))
            ledger = self._ledgers.get(ledger_id)
            ledger.highest_plus_one = max(ledger.highest_plus_one, run.last + 1)
            ledger.lac_plus_one = max(ledger.lac_plus_one, lac_plus_one)
        else:
            ledger_id, rest = decode_ledger_record(body)
            if kind is RecordKind.LEDGER_KEY and not rest:
                return  # a barrier
            ledger = self._ledgers.get(ledger_id)
            if kind is RecordKind.LEDGER_KEY:
                ledger.ledger_key = rest
            elif kind is RecordKind.FENCE:
                ledger.fenced = True
            elif kind is RecordKind.TOMBSTONE:
                ledger.deleted = True
            else:
                _apply_explicit_lac(ledger, rest, header_of(rest).entry_id)
        self._checkpointer.dirty[ledger_id] = ledger

    # --- adds ------------------------------------------------------------------------------------------------------------

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

        ``batch`` is what ``verify_batch`` said of them (it is asked if it is not given). The first add of a ledger pins its
        key. An id already held with the same bytes is a success once the held copy is durable; a held copy that is
        damaged is replaced (PROTOCOL W11). Cancelling the future withdraws nothing.

        Raises at once :class:`UnauthorizedError`, :class:`LedgerFencedError` (not recovery), :class:`NoSuchLedgerError`
        (deleted), :class:`BookieStorageError` (broken), :class:`BookieShuttingDownError`. The future may fail with
        :class:`DuplicateEntryError` and, after a slow look-up, with the same.
        """
        if batch is None:
            batch = verify_batch(ledger_id, entries)
        ledger = self._ledgers.get(ledger_id)
        self._admit(ledger, ledger_key, recovery)
        if ledger.ledger_key is None:
            self._pin(ledger, ledger_key)
        if batch.entry_ids[0] >= ledger.highest_plus_one and ledger.slow_adds is None:
            return self._append(ledger, entries, batch)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        slow_add = _SlowAdd(entries, batch, recovery, future)
        if ledger.slow_adds is None:
            ledger.slow_adds = deque((slow_add,))
            self._spawn(self._work_off(ledger, ledger.slow_adds))
        else:
            ledger.slow_adds.append(slow_add)
        return future

    def _admit(self, ledger: LedgerState, ledger_key: bytes, recovery: bool) -> None:
        self._check_usable()
        pinned = ledger.ledger_key
        if pinned is not None and not hmac.compare_digest(pinned, ledger_key):
            raise UnauthorizedError(f"ledger {ledger.ledger_id}: not the ledger's key")
        if not ledger_key:
            raise UnauthorizedError(f"ledger {ledger.ledger_id}: adds need the ledger key")
        if ledger.deleted:
            raise NoSuchLedgerError(f"ledger {ledger.ledger_id} has been deleted")
        if ledger.fenced and not recovery:
            raise LedgerFencedError(f"ledger {ledger.ledger_id} is fenced", may_have_happened=False)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise BookieStorageError(f"the storage has failed: {self._failure!r}", may_have_happened=False)
        if self._closing:
            raise BookieShuttingDownError("the bookie is stopping")

    def _pin(self, ledger: LedgerState, ledger_key: bytes) -> None:
        ledger.ledger_key = ledger_key
        self._journal.append(RecordKind.LEDGER_KEY, [encode_ledger_record(ledger.ledger_id, ledger_key)])
        self._changed(ledger)

    def _append(self, ledger: LedgerState, entries: Sequence[bytes], batch: SealedBatch) -> asyncio.Future[None]:
        """Entries none of which is held: cache, journal, state, in one synchronous step."""
        data = b"".join(entries)
        sizes = list(map(len, entries))
        size = sizes[0]
        packed: int | array[int] = size if sizes.count(size) == len(sizes) else array("I", sizes)
        ids = batch.entry_ids
        kept = ids if isinstance(ids, range) else array("Q", ids)
        run = Run(ids[0], ids[-1], kept, packed, data, 0)
        future = self._journal.append(RecordKind.ADD, (encode_add_head(ledger.ledger_id, run), data))
        self._cache.put(ledger.ledger_id, run, len(data))
        if run.last >= ledger.highest_plus_one:
            ledger.highest_plus_one = run.last + 1
        if batch.last_add_confirmed_plus_one > ledger.lac_plus_one:
            ledger.lac_plus_one = batch.last_add_confirmed_plus_one
            if ledger.waiters is not None:
                wake_waiters(ledger)
        self._changed(ledger)
        return future

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

    def _barrier(self) -> asyncio.Future[None]:
        """Done once everything journaled so far is durable. A record of its own, so that nobody shares a future."""
        return self._journal.append(RecordKind.LEDGER_KEY, [encode_ledger_record(0)])

    async def _work_off(self, ledger: LedgerState, queue: deque[_SlowAdd]) -> None:
        """Adds of ids that may be held, one after another, and every add of the ledger that came after them."""
        while queue:
            slow_add = queue[0]
            try:
                missing = await self._missing(ledger, slow_add)
                # From here to the end of the turn nothing else runs: the answer above still holds.
                if ledger.fenced and not slow_add.recovery:
                    raise LedgerFencedError(f"ledger {ledger.ledger_id} is fenced", may_have_happened=False)  # noqa: TRY301
                self._check_usable()
                durable = self._append_some(ledger, slow_add, missing)
            except OctavoError as error:
                _settle(slow_add.future, error)
            except Exception as error:
                log.exception("add failed", ledger=ledger.ledger_id)
                failed = InternalError(f"ledger {ledger.ledger_id}: the add failed: {error!r}")
                _settle(slow_add.future, failed)
            else:
                durable.add_done_callback(_Relay(slow_add.future))
            queue.popleft()
        ledger.slow_adds = None

    def _append_some(self, ledger: LedgerState, slow_add: _SlowAdd, missing: list[int]) -> asyncio.Future[None]:
        entries, batch = slow_add.entries, slow_add.batch
        if not missing:
            return self._barrier()
        if len(missing) < len(entries):
            ids = tuple(batch.entry_ids[at] for at in missing)
            entries, batch = [entries[at] for at in missing], batch._replace(entry_ids=ids)
        return self._append(ledger, entries, batch)

    async def _missing(self, ledger: LedgerState, slow_add: _SlowAdd) -> list[int]:
        """Positions in the frame to be stored: not held, or held in a copy that does not verify.

        Raises :class:`DuplicateEntryError`.
        """
        ids = slow_add.batch.entry_ids
        positions = {entry_id: at for at, entry_id in enumerate(ids)}
        missing = set(range(len(ids)))
        lookup = await self._reader.lookup(ledger.ledger_id, ids[0], ids[-1])
        for run in lookup.runs:
            wanted = [at for at, entry_id in enumerate(run.ids) if entry_id in positions]
            held = await self._reader.fetch(ledger.ledger_id, Selection(run, wanted))
            for at, sealed in zip(wanted, held, strict=True):
                entry_id = run.ids[at]
                if sealed is None:
                    continue
                if sealed != slow_add.entries[positions[entry_id]]:
                    self._duplicates_refused += 1
                    log.error("other bytes for a held entry refused", ledger=ledger.ledger_id, entry=entry_id)
                    raise DuplicateEntryError(
                        f"ledger {ledger.ledger_id} entry {entry_id} is held with other bytes; nothing was stored",
                        may_have_happened=False,
                    )
                missing.discard(positions[entry_id])
        return sorted(missing)

    # --- fencing and the last add confirmed ------------------------------------------------------------------------------

    def fence(self, ledger_id: LedgerId, ledger_key: bytes) -> asyncio.Future[None]:
        """Refuse ordinary adds from now on; the future is done once that is durable (PROTOCOL F2). Idempotent.

        A ledger never heard of is fenced too, and no key is pinned (F0). Raises :class:`UnauthorizedError` at once.
        """
        self._check_usable()
        ledger = self._ledgers.get(ledger_id)
        if ledger.ledger_key is not None and not hmac.compare_digest(ledger.ledger_key, ledger_key):
            raise UnauthorizedError(f"ledger {ledger_id}: not the ledger's key")
        if not ledger.fenced:
            ledger.fenced = True
            log.info("ledger fenced", ledger=ledger_id)
        # A second fence is journaled again: its future then says that the first is durable too.
        future = self._journal.append(RecordKind.FENCE, [encode_ledger_record(ledger_id)])
        self._changed(ledger)
        wake_waiters(ledger)
        return future

    def write_lac(self, ledger_id: LedgerId, ledger_key: bytes, sealed: bytes, lac: EntryId) -> None:
        """Apply an explicit LAC that ``verify_explicit_lac`` has passed; journaled, not waited for (PROTOCOL W2).

        Raises :class:`UnauthorizedError`, :class:`NoSuchLedgerError`.
        """
        ledger = self._ledgers.get(ledger_id)
        self._admit(ledger, ledger_key, recovery=True)
        if ledger.ledger_key is None:
            self._pin(ledger, ledger_key)
        if not _apply_explicit_lac(ledger, sealed, lac):
            return
        self._journal.append(RecordKind.EXPLICIT_LAC, [encode_ledger_record(ledger_id, sealed)])
        self._changed(ledger)
        wake_waiters(ledger)

    def last_add_confirmed(self, ledger_id: LedgerId) -> LacView:
        """What is known of the ledger's end, from entries and explicit LACs."""
        ledger = self._ledgers.get(ledger_id)
        return LacView(is_known(ledger), ledger.fenced, ledger.last_add_confirmed, ledger.explicit_lac)

    async def last_add_confirmed_entry(self, ledger_id: LedgerId) -> bytes | None:
        """The sealed entry that vouches for the highest LAC: the intact one with the highest id. None when none is held."""
        return await self._reader.highest_entry(ledger_id, self._ledgers.get(ledger_id).highest)

    def wait_lac(self, ledger_id: LedgerId, above: int | None) -> asyncio.Future[None]:
        """Done once a LAC above ``above`` is known or the ledger is fenced; cancel it to give up. Free while idle."""
        self._check_usable()
        return add_waiter(self._ledgers.get(ledger_id), above)

    # --- reads -----------------------------------------------------------------------------------------------------------

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
        """Entries of ``first..last`` whose id modulo ``stripe[0]`` is among ``stripe[1]``, up to either limit, but one at
        least if one is found. Ids that damage or an I/O error hides are unknown, never absent (PROTOCOL R2)."""
        return await self._reader.read(
            ledger_id, first, last, highest=self._ledgers.get(ledger_id).highest, stripe=stripe,
            entries_max=entries_max, bytes_max=bytes_max,
        )  # fmt: skip

    async def list_entries(self, ledger_id: LedgerId) -> list[tuple[int, int]]:
        """The ids held, as intervals. Raises :class:`BookieStorageError` where damage hides them."""
        return await self._reader.ranges(ledger_id, self._ledgers.get(ledger_id).highest)

    def ledgers(self) -> list[int]:
        """Every ledger heard of, ascending."""
        return self._ledgers.ledger_ids()

    # --- room, statistics --------------------------------------------------------------------------------------------------

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
                await asyncio.wait([self._barrier()])

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
            log_bytes=checkpointer.log_bytes,
            index_parts=len(self._index.parts),
            index_cache_bytes=self._index.cache_bytes,
            checkpoints=checkpointer.checkpoints,
            merges=checkpointer.merges,
            entries_damaged=self._reader.entries_damaged,
            index_damage_seen=self._index.damage_seen,
            duplicates_refused=self._duplicates_refused,
        )

    async def disk_space(self) -> DiskSpace:
        return await self._filesystem.disk_space(self._directory)

    # --- background ------------------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._slow_tasks.add(task)
        task.add_done_callback(self._slow_tasks.discard)

    async def _supervise(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._flush_when_wanted())
                group.create_task(self._checkpoint_when_wanted())
                group.create_task(self._merge_when_wanted())
        except* Exception as errors:
            self._fail(errors.exceptions[0])

    async def _flush_when_wanted(self) -> None:
        while not self._closing:
            await self._flush_wanted.wait()
            self._flush_wanted.clear()
            while self._cache.is_full:
                await self._checkpointer.flush()

    async def _checkpoint_when_wanted(self) -> None:
        while not self._closing:
            await self._checkpoint_wanted.wait()
            if self._closing:
                return
            await self.checkpoint()

    async def _merge_when_wanted(self) -> None:
        while not self._closing:
            await self._merge_wanted.wait()
            self._merge_wanted.clear()
            while not self._closing and await self._checkpointer.merge():
                pass

    async def checkpoint(self) -> None:
        """Make everything accepted so far durable outside the journal. Raises OSError, which is fatal."""
        await self._checkpointer.checkpoint()
        self._merge_wanted.set()

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

        After a failure nothing more is written. Raises OSError when the last checkpoint fails; the journal then has it all.
        """
        if self._closing:
            return
        self._closing = True
        for waiter in self._ledgers.all_waiters():
            waiter.cancel()
        for event in (self._flush_wanted, self._checkpoint_wanted, self._merge_wanted, self._room_made):
            event.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._slow_tasks:
            await asyncio.wait(self._slow_tasks)
        if self._supervisor is not None:
            await self._supervisor
        try:
            if self._failure is None:
                if self._checkpointer.is_dirty:
                    await self._checkpointer.checkpoint()
                await self._checkpointer.close()
        finally:
            await self._journal.close()
            await self._index.close()
            await self._logs.close()


class _Relay:
    """Hands the outcome of a journal append to the future that a caller holds."""

    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future = future

    def __call__(self, done: asyncio.Future[None]) -> None:
        _settle(self._future, done.exception())


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # nobody may wait for it any more


def _apply_explicit_lac(ledger: LedgerState, sealed: bytes, lac: int) -> bool:
    """Keep the explicit LAC if it is the highest so far."""
    if ledger.explicit_lac is not None and header_of(ledger.explicit_lac).entry_id >= lac:
        return False
    ledger.explicit_lac = sealed
    ledger.lac_plus_one = max(ledger.lac_plus_one, lac + 1)
    return True


async def _read_manifest(filesystem: FileSystem, directory: Path) -> Manifest:
    path = directory / "manifest"
    try:
        return decode_manifest(await read_file(filesystem, path))
    except ValueError as error:
        raise IndexDamagedError(path, 0, f"{error}; restore it, or rebuild the bookie from its peers") from error
    except FileNotFoundError:
        # The manifest is written before anything it could name: files without it mean that it was lost.
        if await filesystem.list_directory(directory / "index"):
            raise IndexDamagedError(path, 0, "the file is missing though there are index files") from None
        await replace_file(filesystem, path, encode_manifest(EMPTY))
        return EMPTY
