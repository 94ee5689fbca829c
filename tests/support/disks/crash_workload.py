"""What a storage does while its crashes are enumerated, what it has promised at each instant, and whether a disk
keeps it.

Workloads note what they send and what is promised to them in the recording; :class:`Promises` is what those notes, up
to the instant of the crash, add up to.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from octavo.bookie.disk.filesystem import FileSystem
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.entrylog.format import PAGE_BYTES
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.storage.manifest import decode_manifest
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.protocol.errors import BookieInDoubtError, LedgerFencedError, NoSuchLedgerError
from octavo.protocol.ids import EntryId
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.faulty_filesystem import MemoryFileSystem
from support.disks.recording_filesystem import BytesChange, Event, NameChange, Noted, Recording, RecordingFileSystem

DATA, JOURNAL = Path("/d"), Path("/j")
LEDGERS = range(1, 7)
SCRIPTS = {ledger_id: LedgerScript(ledger_id, payload_bytes=30) for ledger_id in LEDGERS}
PRIVATE = frozenset({4})
"""Ledgers whose adds and copies say that they are private."""
LAST_ID = 1000
"""Above every id that a workload sends."""
TERM_NEVER_FENCED = 4
"""Above every term that a workload fences."""

SMALL = StorageSettings(
    cache_bytes_max=2_500,
    entry_log_bytes=9_000,
    checkpoint_journal_bytes=1 << 40,
    checkpoint_seconds=86_400,
    journal=JournalSettings(segment_bytes=16 * 1024, first_fill_bytes=0),
)
"""A log, a cache and a journal segment are full after a few adds; a log has room for entries after the page that a
checkpoint has ended. Checkpoints come when the workload asks."""


class Sent(NamedTuple):
    """These ids may be found from now on."""

    ledger_id: int
    ids: tuple[int, ...]


class Acknowledged(NamedTuple):
    """These ids must be found from now on."""

    ledger_id: int
    ids: tuple[int, ...]


class Fenced(NamedTuple):
    """The ledger must refuse ordinary adds of this term and of all before it from now on."""

    ledger_id: int
    term: int


class Deleting(NamedTuple):
    """The ledger may be gone from now on, with all it held."""

    ledger_id: int


class Deleted(NamedTuple):
    """The ledger must be gone from now on."""

    ledger_id: int


class Dropping(NamedTuple):
    """The entries of the ledger may be given up from now on, all of them or none."""

    ledger_id: int


class Trimming(NamedTuple):
    """What lies below this id may be unknown from now on."""

    ledger_id: int
    first_kept: int


class Trimmed(NamedTuple):
    """What lies below this id must be unknown from now on."""

    ledger_id: int
    first_kept: int


class Relieving(NamedTuple):
    """These ids may be unknown from now on, until they are acknowledged again."""

    ledger_id: int
    first: int
    last: int


class Phase(NamedTuple):
    """What the storage is busy with from now on; None: nothing but adds."""

    name: str | None


class Promises:
    """The sum of the notes up to an instant."""

    def __init__(self) -> None:
        self.sent: dict[int, set[int]] = {ledger_id: set() for ledger_id in LEDGERS}
        self.acknowledged: dict[int, set[int]] = {ledger_id: set() for ledger_id in LEDGERS}
        self.fenced: dict[int, int] = {}
        """Ledger -> the highest term that was fenced."""
        self.deleting: set[int] = set()
        self.deleted: set[int] = set()
        self.dropping: dict[int, set[int]] = {}
        """Ledger -> the ids that are all there unless it has been dropped."""
        self.ever_dropped: set[int] = set()
        self.trimming: dict[int, int] = {}
        """Ledger -> the highest id to which a trim was asked for."""
        self.trimmed: dict[int, int] = {}
        """The same of trims that were answered."""
        self.relieved: dict[int, set[int]] = {}
        """Ledger -> the ids that may have been given up, and must not be denied."""
        self.phase: str | None = None

    def copy(self) -> "Promises":
        other = Promises()
        for event in self.as_notes():
            other.take(event)
        other.ever_dropped = set(self.ever_dropped)
        other.relieved = {ledger_id: set(ids) for ledger_id, ids in self.relieved.items()}
        return other

    def as_notes(self) -> list[object]:
        """Notes that add up to the same."""
        return [
            *(Sent(ledger_id, tuple(ids)) for ledger_id, ids in self.sent.items()),
            *(Acknowledged(ledger_id, tuple(ids)) for ledger_id, ids in self.acknowledged.items()),
            *(Fenced(ledger_id, term) for ledger_id, term in self.fenced.items()),
            *map(Deleting, self.deleting),
            *map(Deleted, self.deleted),
            *(Trimming(*trim) for trim in self.trimming.items()),
            *(Trimmed(*trim) for trim in self.trimmed.items()),
            *self._dropping_as_notes(),
        ]

    def _dropping_as_notes(self) -> Iterator[object]:
        for ledger_id, ids in self.dropping.items():
            kept = tuple(self.acknowledged[ledger_id])
            yield Acknowledged(ledger_id, tuple(ids))
            yield Dropping(ledger_id)
            yield Acknowledged(ledger_id, kept)

    def take(self, note: object) -> None:
        if isinstance(note, Sent):
            self.sent[note.ledger_id].update(note.ids)
            self.dropping.pop(note.ledger_id, None)
        elif isinstance(note, Acknowledged):
            self.acknowledged[note.ledger_id].update(note.ids)
        elif isinstance(note, Fenced):
            self.fenced[note.ledger_id] = max(note.term, self.fenced.get(note.ledger_id, 0))
        elif isinstance(note, Deleting):
            self.deleting.add(note.ledger_id)
        elif isinstance(note, Deleted):
            self.deleted.add(note.ledger_id)
        elif isinstance(note, Dropping):
            self.dropping[note.ledger_id] = self.acknowledged[note.ledger_id]
            self.acknowledged[note.ledger_id] = set()
            self.ever_dropped.add(note.ledger_id)
        elif isinstance(note, Trimming):
            self.trimming[note.ledger_id] = max(note.first_kept, self.trimming.get(note.ledger_id, 0))
        elif isinstance(note, Trimmed):
            self.trimmed[note.ledger_id] = max(note.first_kept, self.trimmed.get(note.ledger_id, 0))
        elif isinstance(note, Relieving):
            known = self.acknowledged[note.ledger_id]
            gone = {one for one in known if note.first <= one <= note.last}
            self.acknowledged[note.ledger_id] = known - gone
            self.relieved.setdefault(note.ledger_id, set()).update(gone)
        elif isinstance(note, Phase):
            self.phase = note.name


def promises_at(events: Iterable[Event], start: Promises | None = None) -> list[Promises]:
    """The promises after 0, 1, 2, ... events; neighbours share one object as long as nothing is noted."""
    current = start.copy() if start is not None else Promises()
    found = [current]
    for event in events:
        if isinstance(event, Noted):
            current = _and(current, event.what)
        found.append(current)
    return found


def _and(promises: Promises, note: object) -> Promises:
    both = promises.copy()
    both.phase = promises.phase
    both.take(note)
    return both


def log_writes(recording: Recording) -> tuple[list[str], int]:
    """The writes to pages of entry logs that a manifest counted, which must not be, and the number of writes to logs
    that a manifest counted."""
    contents: dict[int, bytes] = {}
    log_ids: dict[int, int] = {}
    counted: dict[int, int] = {}
    again: list[str] = []
    after = 0
    for event in recording.events:
        if isinstance(event, BytesChange):
            if event.data is not None:
                contents[event.inode] = event.data
            log_id = log_ids.get(event.inode)
            if log_id is not None and log_id in counted:
                after += 1
                if event.offset // PAGE_BYTES < -(-counted[log_id] // PAGE_BYTES):
                    again.append(f"log {log_id} from {event.offset} on, {counted[log_id]} bytes count")
        elif isinstance(event, NameChange) and event.target is not None and event.target.name == "manifest":
            counted.update(decode_manifest(contents[event.inode]).logs)
        elif isinstance(event, NameChange) and event.target is not None and event.target.suffix == ".log":
            log_ids[event.inode] = int(event.target.stem, 16)
    return again, after


class Driver:
    """A storage on a recording file system, driven by a workload."""

    def __init__(self, storage: Storage, recording: Recording) -> None:
        self.storage = storage
        self._recording = recording

    def add(self, ledger_id: int, ids: Iterable[int], *, recovery: bool = False) -> asyncio.Future[None]:
        script, sent = SCRIPTS[ledger_id], tuple(ids)
        self._recording.note(Sent(ledger_id, sent))
        if ledger_id in PRIVATE:
            self.storage.writer.make_private(script.ledger_id, script.key)
        future = self.storage.writer.add(script.ledger_id, script.key, script.entries(sent), recovery=recovery)
        return self._noted(ledger_id, sent, future)

    def copy_in(self, ledger_id: int, ids: Iterable[int]) -> asyncio.Future[None]:
        """Copies of another bookie's entries, without the ledger's key (rule C7)."""
        script, sent = SCRIPTS[ledger_id], tuple(ids)
        self._recording.note(Sent(ledger_id, sent))
        private = ledger_id in PRIVATE
        future = self.storage.writer.copy_in(script.ledger_id, script.entries(sent), private=private)
        return self._noted(ledger_id, sent, future)

    def _noted(self, ledger_id: int, sent: tuple[int, ...], future: asyncio.Future[None]) -> asyncio.Future[None]:
        def acknowledged(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._recording.note(Acknowledged(ledger_id, sent))

        future.add_done_callback(acknowledged)
        return future

    async def fence(self, ledger_id: int, term: int = 0) -> None:
        assert term < TERM_NEVER_FENCED
        await self.storage.writer.fence(SCRIPTS[ledger_id].ledger_id, SCRIPTS[ledger_id].key, term)
        self._recording.note(Fenced(ledger_id, term))

    async def delete(self, ledger_id: int) -> None:
        async with self.phase("delete"):
            self._recording.note(Deleting(ledger_id))
            await self.storage.writer.delete(SCRIPTS[ledger_id].ledger_id)
            self._recording.note(Deleted(ledger_id))

    async def drop(self, ledger_id: int) -> None:
        async with self.phase("drop"):
            self._recording.note(Dropping(ledger_id))
            await self.storage.writer.drop(SCRIPTS[ledger_id].ledger_id)

    async def trim(self, ledger_id: int, first_kept: int) -> None:
        async with self.phase("trim"):
            self._recording.note(Trimming(ledger_id, first_kept))
            await self.storage.writer.trim(SCRIPTS[ledger_id].ledger_id, first_kept)
            self._recording.note(Trimmed(ledger_id, first_kept))

    async def relieve(self, ledger_id: int, first: int, last: int) -> None:
        """What is in the index by then (rule C11)."""
        known, relief = SCRIPTS[ledger_id].ledger_id, self.storage.relief
        async with self.phase("relief"):
            self._recording.note(Relieving(ledger_id, first, last))
            await relief.mark(known, last + 1)
            assert await relief.remove({known: [(first, last)]})

    async def compact(self, live_share_below: float) -> None:
        async with self.phase("compaction"):
            for _ in range(2):
                await self.storage.compact(live_share_below, RateLimiter(1e12))

    def write_lac(self, ledger_id: int, lac: int) -> None:
        script = SCRIPTS[ledger_id]
        self.storage.writer.write_lac(script.ledger_id, script.key, script.explicit_lac(lac), EntryId(lac))

    @asynccontextmanager
    async def phase(self, name: str) -> AsyncIterator[None]:
        self._recording.note(Phase(name))
        yield
        self._recording.note(Phase(None))

    async def checkpoint(self) -> None:
        async with self.phase("checkpoint"):
            await self.storage.checkpoint()


def disk(files: Mapping[Path, bytes]) -> MemoryFileSystem:
    """A file system with exactly these files."""
    filesystem = MemoryFileSystem()
    for path, content in files.items():
        filesystem.set_content(path, content)
    return filesystem


def _must_not_fail(error: BaseException) -> None:
    raise AssertionError("the storage failed") from error


async def open_storage(filesystem: FileSystem, settings: StorageSettings = SMALL) -> Storage:
    return await Storage.open(
        filesystem, directory=DATA, journal_directory=JOURNAL, settings=settings, on_fatal=_must_not_fail
    )


@asynccontextmanager
async def recorded(
    files: Mapping[Path, bytes], settings: StorageSettings = SMALL
) -> AsyncIterator[tuple[Driver, Recording]]:
    """A driver of a storage on these files, opened, and at the end closed, under recording."""
    recording = Recording(files)
    recording.note(Phase("replay"))
    storage = await open_storage(RecordingFileSystem(disk(files), recording), settings)
    recording.note(Phase(None))
    yield Driver(storage, recording), recording
    recording.note(Phase("close"))
    await storage.close()
    recording.note(Phase(None))


async def verify(files: Mapping[Path, bytes], promises: Promises) -> None:
    """Start a storage on the disk and hold it to the promises. Raises AssertionError."""
    storage = await open_storage(disk(files))
    assert not storage.corruption, "a power cut was taken for damage"
    assert storage.doubted_ids_stop is None, "a power cut was taken for damage"
    for ledger_id, script in SCRIPTS.items():
        if ledger_id in promises.deleting and await _is_gone(storage, script):
            continue
        assert ledger_id not in promises.deleted, f"ledger {ledger_id} came back"
        state = storage.ledgers.get(ledger_id)
        given_up = state.dropped or state.in_doubt  # what is missing of it is not denied (rule C8)
        first_kept = state.first_kept
        assert promises.trimmed.get(ledger_id, 0) <= first_kept <= promises.trimming.get(ledger_id, 0), (
            "a trim was lost"
        )
        if first_kept:
            trimmed = await storage.reader.read(script.ledger_id, 0, first_kept - 1, entries_max=9, bytes_max=5_000)
            assert (trimmed.entries, trimmed.unknown) == ([], [(0, first_kept - 1)]), "what was trimmed is denied"
        below = state.relieved_below
        held = await _read_all(storage, script, first_kept, may_be_unknown=given_up or below > 0)
        ids = ids_of(held)
        for one in promises.relieved.get(ledger_id, set()) - set(ids):
            read = await storage.reader.read(script.ledger_id, one, one, entries_max=1, bytes_max=5_000)
            assert read.unknown == [(one, one)], f"ledger {ledger_id} denies {one}, which was given up"
        acknowledged, sent = promises.acknowledged[ledger_id], promises.sent[ledger_id]
        if not state.dropped:
            acknowledged = acknowledged | promises.dropping.get(ledger_id, set())
        acknowledged = {one for one in acknowledged if one >= first_kept}
        assert acknowledged <= set(ids), f"ledger {ledger_id} lost {sorted(acknowledged - set(ids))}"
        if ids and ledger_id in PRIVATE:
            private, _ = storage.reader.private_key(script.ledger_id)
            assert private, f"private ledger {ledger_id} is public"
        assert set(ids) <= sent, f"ledger {ledger_id} made up {sorted(set(ids) - sent)}"
        assert held == script.entries(ids), f"ledger {ledger_id}: other bytes"
        if given_up:
            assert ledger_id in promises.ever_dropped
            with pytest.raises(BookieInDoubtError):
                await storage.reader.list_entries(script.ledger_id)
        else:
            listed = await storage.reader.list_entries(script.ledger_id, max(first_kept, below))
            assert [i for low, high in listed for i in range(low, high + 1)] == [one for one in ids if one >= below]
        for term in range(promises.fenced.get(ledger_id, -1) + 1):
            with pytest.raises(LedgerFencedError):
                storage.writer.add(script.ledger_id, script.key, [script.entry(LAST_ID)], recovery=False, term=term)
        if not given_up:
            last = [script.entry(LAST_ID)]
            await storage.writer.add(script.ledger_id, script.key, last, recovery=False, term=TERM_NEVER_FENCED)
    statistics = storage.statistics()
    assert not statistics.entries_damaged
    assert not statistics.index_damage_seen
    await storage.close()


async def _is_gone(storage: Storage, script: LedgerScript) -> bool:
    """Every operation on the ledger is refused as one on a deleted ledger, or none is."""
    try:
        await storage.reader.read(script.ledger_id, 0, 1, entries_max=1, bytes_max=1)
    except NoSuchLedgerError:
        with pytest.raises(NoSuchLedgerError):
            storage.writer.add(script.ledger_id, script.key, [script.entry(LAST_ID)], recovery=True)
        with pytest.raises(NoSuchLedgerError):
            storage.writer.fence(script.ledger_id, script.key)
        with pytest.raises(NoSuchLedgerError):
            await storage.reader.list_entries(script.ledger_id)
        assert script.ledger_id not in storage.ledgers.live_ids()
        return True
    return False


async def _read_all(storage: Storage, script: LedgerScript, first: int, *, may_be_unknown: bool) -> list[bytes]:
    held: list[bytes] = []
    while first <= LAST_ID:
        result = await storage.reader.read(script.ledger_id, first, LAST_ID, entries_max=64, bytes_max=5_000)
        assert may_be_unknown or not result.unknown, f"ledger {script.ledger_id}: {result.unknown} unknown"
        held += result.entries
        first = result.last_covered + 1
    return held
