"""Deleted ledgers' space comes back, and nothing else changes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import replace
from pathlib import Path

import pytest
from octavo.bookie.disk.filesystem import FileSystem
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.entrylog.format import PAGE_BYTES
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.storage.compaction import COPY_BYTES, CompactionResult
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.protocol.errors import NoSuchLedgerError
from octavo.protocol.ids import EntryId
from simulation.engine.loop import SimulationLoop
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.crash_workload import log_writes
from support.disks.faulty_filesystem import MemoryFileSystem
from support.disks.recording_filesystem import Recording, RecordingFileSystem

pytestmark = pytest.mark.usefixtures("logged")

SETTINGS = StorageSettings(
    cache_bytes_max=20_000,
    cache_spread=0.0,
    entry_log_bytes=30_000,
    checkpoint_seconds=3600,
    journal=JournalSettings(segment_bytes=1024 * 1024, first_fill_bytes=0),
)
DATA, JOURNAL = Path("/bookie/data"), Path("/bookie/journal")
FAST = RateLimiter(1e12)
KEPT = LedgerScript(1)
ALL = 1.1
"""A bound above every live share: a compaction lets go even of a log that is being written and has nothing dead."""


def never(error: BaseException) -> None:
    raise AssertionError("the storage failed") from error


async def open_storage(filesystem: FileSystem, settings: StorageSettings = SETTINGS) -> Storage:
    return await Storage.open(filesystem, directory=DATA, journal_directory=JOURNAL, settings=settings, on_fatal=never)


@pytest.fixture
def filesystem() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.fixture
async def storage(filesystem: MemoryFileSystem) -> AsyncIterator[Storage]:
    opened = await open_storage(filesystem)
    yield opened
    await opened.close()


async def add(storage: Storage, script: LedgerScript, ids: range) -> None:
    await storage.writer.add(script.ledger_id, script.key, script.entries(ids), recovery=False)


async def compact(storage: Storage, live_share_below: float = 0.9) -> CompactionResult:
    """Twice: the first lets go of the log that is being written, which a checkpoint then finishes."""
    first = await storage.compact(live_share_below, FAST)
    await storage.checkpoint()
    second = await storage.compact(live_share_below, FAST)
    return second._replace(logs_removed=first.logs_removed + second.logs_removed)


async def read(storage: Storage, script: LedgerScript, last: int = 5_000) -> list[bytes]:
    found: list[bytes] = []
    first = 0
    while first <= last:
        result = await storage.reader.read(script.ledger_id, first, last, entries_max=500, bytes_max=100_000)
        assert not result.unknown
        found += result.entries
        first = result.last_covered + 1
    return found


def log_files(filesystem: MemoryFileSystem) -> list[Path]:
    return [path for path in filesystem.files(DATA / "entries") if path.suffix == ".log"]


def disk_bytes(filesystem: MemoryFileSystem) -> int:
    return sum(len(filesystem.content(path)) for path in filesystem.files() if path.is_relative_to(DATA))


async def many_logs(storage: Storage, *, ledgers: range, kept: LedgerScript = KEPT) -> list[LedgerScript]:
    """Every log has entries of every ledger, and of the one that is kept."""
    entries = 50
    scripts = [LedgerScript(ledger_id) for ledger_id in ledgers]
    for first in range(0, entries * 4, entries):
        for script in scripts:
            await add(storage, script, range(first, first + entries))
        await add(storage, kept, range(first, first + entries))
    await storage.checkpoint()
    return scripts


async def test_space_comes_back_to_within_ten_percent_of_what_counts(
    storage: Storage, filesystem: MemoryFileSystem
) -> None:
    kept = LedgerScript(1, payload_bytes=400)
    scripts = await many_logs(storage, ledgers=range(2, 30), kept=kept)
    before = disk_bytes(filesystem)
    assert len(log_files(filesystem)) > 10
    for script in scripts:
        await storage.writer.delete(script.ledger_id)
    result = await compact(storage, 0.8)
    assert result.logs_removed > 10
    live = sum(map(len, kept.entries(range(200))))
    assert live <= disk_bytes(filesystem) <= 1.1 * live
    assert before > 5 * live
    assert await read(storage, kept) == kept.entries(range(200))
    await storage.close()
    again = await open_storage(filesystem)
    assert await read(again, kept) == kept.entries(range(200))
    assert again.ledgers.live_ids() == [1]
    with pytest.raises(NoSuchLedgerError):
        await add(again, scripts[0], range(1_000, 1_001))
    await again.close()


async def test_logs_above_the_threshold_are_left_alone(storage: Storage, filesystem: MemoryFileSystem) -> None:
    scripts = await many_logs(storage, ledgers=range(2, 6))
    await storage.writer.delete(scripts[0].ledger_id)
    files = log_files(filesystem)
    assert (await compact(storage, 0.5)).logs_removed == 0
    assert log_files(filesystem) == files
    assert (await compact(storage, 0.95)).logs_removed > 0


async def test_deleted_ledger_is_refused_at_once_and_stays_so(filesystem: MemoryFileSystem) -> None:
    storage = await open_storage(filesystem)
    script = LedgerScript(9)
    await add(storage, script, range(10))
    poll = storage.reader.wait_lac(script.ledger_id, 50)
    deletion = storage.writer.delete(script.ledger_id)
    await poll  # readers that wait for the ledger are released
    for _ in range(2):
        with pytest.raises(NoSuchLedgerError):
            storage.writer.add(script.ledger_id, script.key, [script.entry(10)], recovery=True)
        with pytest.raises(NoSuchLedgerError):
            storage.writer.fence(script.ledger_id, script.key)
        with pytest.raises(NoSuchLedgerError):
            storage.reader.wait_lac(script.ledger_id, None)
        with pytest.raises(NoSuchLedgerError):
            storage.writer.write_lac(script.ledger_id, script.key, script.explicit_lac(5), EntryId(5))
        with pytest.raises(NoSuchLedgerError):
            await storage.reader.read(script.ledger_id, 0, 9, entries_max=10, bytes_max=1_000)
        with pytest.raises(NoSuchLedgerError):
            await storage.reader.list_entries(script.ledger_id)
        await deletion
        await storage.close()
        storage = await open_storage(filesystem)
    await storage.close()


async def test_slow_add_that_meets_a_deletion_stores_nothing(storage: Storage) -> None:
    script = LedgerScript(9)
    await add(storage, script, range(10))
    await storage.checkpoint()
    resent = storage.writer.add(script.ledger_id, script.key, script.entries(range(5)), recovery=False)
    await storage.writer.delete(script.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await resent


class SlowJournal(MemoryFileSystem):
    """While ``held``, no sync in the journal's directory returns."""

    def __init__(self) -> None:
        super().__init__()
        self.held = asyncio.Event()
        self.released = asyncio.Event()

    async def step(self, name: str, path: Path) -> None:
        if self.held.is_set() and name == "sync" and path.parent == JOURNAL:
            await self.released.wait()
        await super().step(name, path)


async def test_nothing_goes_before_the_tombstone_is_durable() -> None:
    filesystem = SlowJournal()
    storage = await open_storage(filesystem)
    scripts = await many_logs(storage, ledgers=range(2, 4))
    await compact(storage, 0.0)
    filesystem.held.set()
    deletion = storage.writer.delete(scripts[0].ledger_id)
    files = log_files(filesystem)
    assert (await storage.compact(0.9, FAST)).logs_removed == 0
    assert log_files(filesystem) == files
    filesystem.released.set()
    await deletion
    assert (await compact(storage, 0.9)).logs_removed >= 2
    await storage.close()


async def test_readers_and_a_writer_go_on_while_everything_moves_under_them(storage: Storage) -> None:
    scripts = await many_logs(storage, ledgers=range(2, 8))
    written = 200
    stop = False

    async def keep_reading() -> int:
        rounds = 0
        while not stop:
            assert await read(storage, KEPT, 199) == KEPT.entries(range(200))
            rounds += 1
        return rounds

    async def keep_writing() -> None:
        nonlocal written
        while not stop:
            await add(storage, KEPT, range(written, written + 20))
            written += 20

    readers = [asyncio.ensure_future(keep_reading()) for _ in range(3)]
    writer = asyncio.ensure_future(keep_writing())
    for script in scripts:
        await storage.writer.delete(script.ledger_id)
        await compact(storage, 0.9)
        await storage.checkpoint()
    stop = True
    assert min(await asyncio.gather(*readers)) > 3
    await writer
    assert ids_of(await read(storage, KEPT, written)) == list(range(written))
    assert storage.statistics().logs_compacted > 10


async def test_an_entry_written_anew_while_its_log_is_compacted_wins(
    storage: Storage, filesystem: MemoryFileSystem
) -> None:
    """W11: the damaged copy that compaction copies nothing of is replaced; what replaced it is not hidden later."""
    scripts = await many_logs(storage, ledgers=range(2, 4))
    path = log_files(filesystem)[0]
    filesystem.damage(path, filesystem.content(path).index(KEPT.entry(3)) + 50)
    await storage.writer.delete(scripts[0].ledger_id)
    assert (await compact(storage, 0.9)).logs_kept == 1
    assert path in log_files(filesystem)
    await storage.writer.add(KEPT.ledger_id, KEPT.key, [KEPT.entry(3)], recovery=True)
    await storage.checkpoint()
    assert await read(storage, KEPT) == KEPT.entries(range(200))


class Meanwhile(RateLimiter):
    """Does something while a log is compacted: in the given call, counted from 1."""

    def __init__(self, act: Callable[[], Awaitable[None]], *, at_take: int) -> None:
        super().__init__(1e12)
        self._act = act
        self._takes_left = at_take

    async def take(self, size: int) -> None:
        await super().take(size)
        self._takes_left -= 1
        if not self._takes_left:
            await self._act()


async def test_what_is_written_while_a_log_is_compacted_stands_above_what_compaction_copied(
    filesystem: MemoryFileSystem,
) -> None:
    """The old copy rots just after it has been copied, a new one is written, and then the copy rots: the new one is
    the one that counts, before and after a restart."""
    storage = await open_storage(filesystem)
    other, doomed = LedgerScript(2), LedgerScript(3)
    for script in (KEPT, other, doomed):
        await add(storage, script, range(50))
    await storage.checkpoint()
    await storage.writer.delete(doomed.ledger_id)
    await storage.compact(0.9, FAST)  # lets go of the log
    await storage.checkpoint()
    sealed, (old,) = KEPT.entry(3), log_files(filesystem)
    copies: list[Path] = []

    async def write_anew() -> None:
        copies.extend(path for path in log_files(filesystem) if path != old and sealed in filesystem.content(path))
        filesystem.damage(old, filesystem.content(old).index(sealed) + 50)
        await storage.writer.add(KEPT.ledger_id, KEPT.key, [sealed], recovery=True)
        await storage.checkpoint()
        (copy,) = copies
        filesystem.damage(copy, filesystem.content(copy).index(sealed) + 50)

    killed = MemoryFileSystem()

    def note_removal(name: str, path: Path) -> None:
        """Keep the disk as it is when the old log goes, before anything else replaces the manifest."""
        if name == "remove" and path == old:
            for there in filesystem.files():
                killed.set_content(there, filesystem.content(there))

    filesystem.fault = note_removal
    meanwhile = Meanwhile(write_anew, at_take=3)  # the log's totals, ledger 1, ledger 2
    assert (await storage.compact(0.9, meanwhile)).logs_removed == 1
    assert copies
    assert (await read(storage, KEPT)) == KEPT.entries(range(50))
    await storage.close()
    for disk in (killed, filesystem):
        storage = await open_storage(disk)
        assert (await read(storage, KEPT)) == KEPT.entries(range(50))
        assert (await read(storage, other)) == other.entries(range(50))
        await storage.close()


Damage = Callable[[MemoryFileSystem, Path], None]


def _rot_an_entry(filesystem: MemoryFileSystem, data: Path) -> None:
    path = log_files(filesystem)[0]
    filesystem.damage(path, filesystem.content(path).index(KEPT.entry(3)) + 50)


def _rot_the_index(filesystem: MemoryFileSystem, data: Path) -> None:
    for path in filesystem.files(data / "index"):
        filesystem.damage(path, 40)


@pytest.mark.parametrize("damage", [_rot_an_entry, _rot_the_index])
async def test_log_is_kept_where_damage_hides_what_counts(
    storage: Storage, filesystem: MemoryFileSystem, damage: Damage, logged: list[MutableMapping[str, object]]
) -> None:
    scripts = await many_logs(storage, ledgers=range(2, 4))
    await storage.writer.delete(scripts[0].ledger_id)
    damage(filesystem, DATA)
    first = log_files(filesystem)[0]
    for _ in range(2):
        await compact(storage, 0.9)
    assert first in log_files(filesystem)
    assert storage.statistics().logs_kept_damaged >= 1
    kept = [event for event in logged if event["event"] == "damaged entry log is kept and not compacted"]
    assert [event["path"] for event in kept].count(str(first)) == 1, "reported once"


async def test_log_is_kept_where_another_part_of_the_index_still_tells_of_its_ledger(
    storage: Storage, filesystem: MemoryFileSystem
) -> None:
    """Entries of the same ledger that can be found elsewhere say nothing about entries that damage hides."""
    doomed = LedgerScript(2)
    await add(storage, doomed, range(50))
    await add(storage, KEPT, range(50))
    await storage.checkpoint()
    (first,) = log_files(filesystem)
    parts = filesystem.files(DATA / "index")
    await storage.compact(ALL, FAST)  # lets go of the log
    await add(storage, KEPT, range(50, 100))
    await storage.checkpoint()
    assert len(log_files(filesystem)) == 2
    for path in parts:
        filesystem.damage(path, 40)
    await storage.writer.delete(doomed.ledger_id)
    await compact(storage)
    assert first in log_files(filesystem)


async def test_copies_outlive_a_power_cut_at_the_instant_their_log_goes() -> None:
    filesystem = MemoryFileSystem()
    storage = await open_storage(filesystem)
    scripts = await many_logs(storage, ledgers=range(2, 4))
    await storage.writer.delete(scripts[0].ledger_id)
    await storage.compact(0.0, FAST)  # lets go of the log that is being written
    await storage.checkpoint()

    def cut_the_power(name: str, path: Path) -> None:
        if name == "remove" and path.suffix == ".log":
            filesystem.crash()

    filesystem.fault = cut_the_power
    compacting = asyncio.ensure_future(storage.compact(0.9, FAST))
    await filesystem.crashed.wait()
    for seed in range(5):
        again = await open_storage(filesystem.after_crash(seed))
        assert await read(again, KEPT) == KEPT.entries(range(200))
        await again.close()
    compacting.cancel()
    await asyncio.gather(compacting, return_exceptions=True)


async def test_a_run_larger_than_what_is_copied_at_a_time_is_copied_to_its_end() -> None:
    filesystem = MemoryFileSystem()
    storage = await open_storage(filesystem, replace(SETTINGS, cache_bytes_max=16 << 20, entry_log_bytes=64 << 20))
    kept, doomed = LedgerScript(1, payload_bytes=COPY_BYTES // 8), LedgerScript(2, payload_bytes=COPY_BYTES // 8)
    for entry_id in range(20):
        for script in (kept, doomed):
            await add(storage, script, range(entry_id, entry_id + 1))
    await storage.checkpoint()
    await storage.writer.delete(doomed.ledger_id)
    assert (await compact(storage)).logs_removed == 1
    assert await read(storage, kept, 19) == kept.entries(range(20))
    await storage.close()


async def test_index_forgets_runs_of_deleted_ledgers(storage: Storage, filesystem: MemoryFileSystem) -> None:
    scripts = [LedgerScript(ledger_id) for ledger_id in range(2, 40)]
    for first in range(0, 600, 60):
        for script in (KEPT, *scripts):
            await add(storage, script, range(first, first + 60, 3))
    await storage.checkpoint()
    before = sum(len(filesystem.content(path)) for path in filesystem.files(DATA / "index"))
    for script in scripts:
        await storage.writer.delete(script.ledger_id)
    await compact(storage, 0.9)
    after = sum(len(filesystem.content(path)) for path in filesystem.files(DATA / "index"))
    assert after < before / 3
    assert ids_of(await read(storage, KEPT)) == list(range(0, 600, 3))


async def test_compaction_cut_short_at_any_point_leaves_a_storage_that_closes_and_opens_again() -> None:
    finished = False
    turns = 0
    while not finished:
        turns += 7
        filesystem = MemoryFileSystem()
        storage = await open_storage(filesystem)
        scripts = await many_logs(storage, ledgers=range(2, 4))
        await storage.writer.delete(scripts[0].ledger_id)
        compacting = asyncio.ensure_future(storage.compact(0.9, FAST))
        for _ in range(turns):
            await asyncio.sleep(0)
        finished = compacting.done()
        compacting.cancel()
        await asyncio.gather(compacting, return_exceptions=True)
        assert await read(storage, KEPT) == KEPT.entries(range(200))
        await storage.close()
        assert not filesystem.open_files, "nothing is left open"
        again = await open_storage(filesystem)
        assert await read(again, KEPT) == KEPT.entries(range(200))
        await again.close()
    assert turns > 50


def test_rate_limits_what_is_copied() -> None:
    loop = SimulationLoop()  # its time passes only while nothing else happens

    async def copy() -> float:
        limiter = RateLimiter(1_000)
        began_at = loop.time()
        await limiter.take(20)  # the first is free, and pays for the wait of the second
        await limiter.take(1)
        return loop.time() - began_at

    assert loop.run_until_complete(copy()) == pytest.approx(0.02)
    loop.close()


async def test_damaged_totals_are_made_again_by_a_scan(storage: Storage, filesystem: MemoryFileSystem) -> None:
    scripts = await many_logs(storage, ledgers=range(2, 4))
    for path in filesystem.files(DATA / "entries"):
        if path.suffix == ".totals":
            filesystem.damage(path, 20)
    for script in scripts:
        await storage.writer.delete(script.ledger_id)
    assert (await compact(storage, 0.9)).logs_removed > 2
    assert await read(storage, KEPT) == KEPT.entries(range(200))


async def test_copies_from_the_next_log_begin_in_a_page_of_their_own() -> None:
    recording = Recording({})
    storage = await open_storage(RecordingFileSystem(MemoryFileSystem(), recording))
    scripts = await many_logs(storage, ledgers=range(2, 6))
    for script in scripts:
        await storage.writer.delete(script.ledger_id)
    assert (await compact(storage)).logs_removed > 1
    again, after = log_writes(recording)
    assert after, "nothing was copied to a log that held copies from another"
    assert not again
    assert await read(storage, KEPT) == KEPT.entries(range(200))
    await storage.close()


async def test_a_log_of_fillers_and_living_entries_is_not_compacted(
    storage: Storage, filesystem: MemoryFileSystem
) -> None:
    """A filler takes most of a log that few checkpoints have made: compacting it would make another like it."""
    for entry_id in range(4):
        await add(storage, KEPT, range(entry_id, entry_id + 1))
        await storage.checkpoint()
    (log,) = log_files(filesystem)
    assert len(filesystem.content(log)) >= 4 * PAGE_BYTES
    await storage.compact(ALL, FAST)  # lets go of the log
    await add(storage, KEPT, range(4, 5))
    await storage.checkpoint()
    files = log_files(filesystem)
    assert len(files) == 2
    assert await storage.compact(1.0, FAST) == CompactionResult(0, 0, 0, 0, out_of_space=False)
    assert log_files(filesystem) == files
