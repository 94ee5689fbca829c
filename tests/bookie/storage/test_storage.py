"""What a bookie's storage takes, keeps and gives back."""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from octavo.bookie.disk.filesystem import FileSystem, RealFileSystem
from octavo.bookie.index.format import IndexDamagedError
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.protocol.entries import header_of
from octavo.protocol.errors import (
    BookieShuttingDownError,
    BookieStorageError,
    DuplicateEntryError,
    LedgerFencedError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from octavo.protocol.ids import EntryId, LedgerId
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.faulty_filesystem import MemoryFileSystem
from support.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.usefixtures("logged")

SMALL = StorageSettings(
    cache_bytes_max=20_000,
    entry_log_bytes=30_000,
    checkpoint_journal_bytes=400_000,
    checkpoint_seconds=3600,
    journal=JournalSettings(segment_bytes=64 * 1024, first_fill_bytes=0),
)
DATA, JOURNAL = Path("/bookie/data"), Path("/bookie/journal")


def never(error: BaseException) -> None:
    raise AssertionError("the storage failed") from error


async def open_storage(
    filesystem: FileSystem,
    settings: StorageSettings = SMALL,
    on_fatal: Callable[[BaseException], None] = never,
) -> Storage:
    return await Storage.open(
        filesystem, directory=DATA, journal_directory=JOURNAL, settings=settings, on_fatal=on_fatal
    )


async def read_all(storage: Storage, script: LedgerScript, last: int = 10**6) -> list[bytes]:
    """Everything up to ``last``; nothing may be unknown."""
    found: list[bytes] = []
    first = 0
    while first <= last:
        result = await storage.reader.read(script.ledger_id, first, last, entries_max=500, bytes_max=100_000)
        assert not result.unknown
        found += result.entries
        first = result.last_covered + 1
    return found


@pytest.fixture
def filesystem() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.fixture
async def storage(filesystem: MemoryFileSystem) -> AsyncIterator[Storage]:
    opened = await open_storage(filesystem)
    yield opened
    await opened.close()


async def test_entries_are_read_back_from_cache_from_log_and_after_a_restart(filesystem: MemoryFileSystem) -> None:
    script, other = LedgerScript(7), LedgerScript(8)
    storage = await open_storage(filesystem)
    for first in range(0, 1000, 50):
        ids = range(first, first + 50)
        await storage.writer.add(script.ledger_id, script.key, script.entries(ids), recovery=False)
        await storage.writer.add(
            other.ledger_id, other.key, other.entries(range(first * 2, first * 2 + 100, 2)), recovery=False
        )
        assert ids_of(await read_all(storage, script)) == list(range(first + 50))
    await storage.admission.wait_for_room()
    assert await read_all(storage, script) == script.entries(range(1000))
    assert storage.statistics().log_bytes == 0, "flushed, not yet checkpointed"
    await storage.checkpoint()
    assert storage.statistics().log_bytes > 100_000
    assert await read_all(storage, script) == script.entries(range(1000))
    assert storage.ledgers.live_ids() == [7, 8]
    await storage.close()

    again = await open_storage(filesystem)
    assert await read_all(again, script) == script.entries(range(1000))
    assert await read_all(again, other) == other.entries(range(0, 2000, 2))
    assert await again.reader.list_entries(script.ledger_id) == [(0, 999)]
    assert len(await again.reader.list_entries(other.ledger_id)) == 1000
    assert again.ledgers.live_ids() == [7, 8]
    await again.close()


async def test_real_files_hold_what_memory_files_hold(tmp_path: Path) -> None:
    filesystem = RealFileSystem()
    script = LedgerScript(1)
    for round_number in range(3):
        storage = await Storage.open(
            filesystem, directory=tmp_path / "d", journal_directory=tmp_path / "j", settings=SMALL, on_fatal=never
        )
        first = round_number * 300
        adds = [
            storage.writer.add(script.ledger_id, script.key, script.entries(range(at, at + 10)), recovery=False)
            for at in range(first, first + 300, 10)
        ]
        await asyncio.gather(*adds)
        await storage.checkpoint()
        assert await read_all(storage, script) == script.entries(range(first + 300))
        await storage.close()
    await filesystem.close()


async def test_read_covers_what_it_says_and_stops_at_either_limit(storage: Storage) -> None:
    script = LedgerScript(1)
    await storage.writer.add(script.ledger_id, script.key, script.entries([0, 1, 2, 5, 6, 9]), recovery=False)
    ledger = script.ledger_id
    result = await storage.reader.read(ledger, 0, 20, entries_max=100, bytes_max=10**6)
    assert (ids_of(result.entries), result.last_covered) == ([0, 1, 2, 5, 6, 9], 20)
    result = await storage.reader.read(ledger, 0, 20, entries_max=2, bytes_max=10**6)
    assert (ids_of(result.entries), result.last_covered) == ([0, 1], 1)
    result = await storage.reader.read(ledger, 1, 20, entries_max=100, bytes_max=200)
    assert (ids_of(result.entries), result.last_covered) == ([1, 2], 4), "3 and 4 are known to be absent"
    result = await storage.reader.read(ledger, 5, 20, entries_max=100, bytes_max=0)
    assert (ids_of(result.entries), result.last_covered) == ([5], 5), "one at least"
    result = await storage.reader.read(ledger, 0, 20, stripe=(3, (0, 1)), entries_max=100, bytes_max=10**6)
    assert (ids_of(result.entries), result.last_covered) == ([0, 1, 6, 9], 20)
    result = await storage.reader.read(ledger, 10, 2**62, entries_max=1, bytes_max=10**6)
    assert (result.entries, result.last_covered) == ([], 2**62)
    result = await storage.reader.read(LedgerId(99), 0, 5, entries_max=1, bytes_max=1)
    assert (result.entries, result.last_covered, result.unknown) == ([], 5, [])


async def test_striped_reads_are_the_same_from_log_and_cache(storage: Storage) -> None:
    script = LedgerScript(1)
    held = [entry_id for entry_id in range(300) if entry_id % 3 != 1]
    await storage.writer.add(script.ledger_id, script.key, script.entries(held), recovery=False)
    for _ in range(2):
        for residues in ((0,), (2,), (0, 2), (1,)):
            result = await storage.reader.read(
                script.ledger_id, 0, 299, stripe=(3, residues), entries_max=1000, bytes_max=10**6
            )
            assert ids_of(result.entries) == [entry_id for entry_id in held if entry_id % 3 in residues]
        assert ids_of(await read_all(storage, script)) == held
        await storage.checkpoint()


async def test_key_is_pinned_by_the_first_add_and_survives(filesystem: MemoryFileSystem) -> None:
    script = LedgerScript(1)
    storage = await open_storage(filesystem)
    await storage.writer.add(script.ledger_id, script.key, [script.entry(0)], recovery=False)
    for _ in range(2):
        with pytest.raises(UnauthorizedError):
            storage.writer.add(script.ledger_id, b"another key", [script.entry(1)], recovery=False)
        with pytest.raises(UnauthorizedError):
            storage.writer.fence(script.ledger_id, b"another key")
        with pytest.raises(UnauthorizedError):
            storage.writer.write_lac(script.ledger_id, b"another key", script.explicit_lac(0), EntryId(0))
        await storage.close()
        storage = await open_storage(filesystem)
    await storage.writer.add(script.ledger_id, script.key, [script.entry(1)], recovery=False)
    await storage.close()


async def test_fenced_storage_refuses_plain_adds_takes_recovery_adds_and_remembers(
    filesystem: MemoryFileSystem,
) -> None:
    script, unheard = LedgerScript(1), LedgerScript(2)
    storage = await open_storage(filesystem)
    before = storage.writer.add(script.ledger_id, script.key, [script.entry(0)], recovery=False)
    fences = [storage.writer.fence(script.ledger_id, script.key), storage.writer.fence(unheard.ledger_id, b"whatever")]
    for ledger in (script, unheard):
        with pytest.raises(LedgerFencedError, match=r"octavo ledger show") as refused:
            storage.writer.add(ledger.ledger_id, ledger.key, [ledger.entry(1)], recovery=False)
        assert not refused.value.may_have_happened
    await asyncio.gather(before, *fences)
    await storage.writer.fence(script.ledger_id, script.key)
    await storage.writer.add(script.ledger_id, script.key, [script.entry(1)], recovery=True)
    assert storage.reader.last_add_confirmed(unheard.ledger_id) == (True, True, None, None, False)
    await storage.close()
    storage = await open_storage(filesystem)
    for ledger in (script, unheard):
        with pytest.raises(LedgerFencedError):
            storage.writer.add(ledger.ledger_id, ledger.key, [ledger.entry(2)], recovery=False)
    await storage.writer.add(unheard.ledger_id, unheard.key, [unheard.entry(0)], recovery=True)  # no key was pinned
    assert ids_of(await read_all(storage, script)) == [0, 1]
    await storage.close()


@pytest.mark.parametrize("flushed", [False, True])
async def test_same_bytes_again_succeed_and_other_bytes_are_refused_whole(storage: Storage, flushed: bool) -> None:
    script = LedgerScript(1)
    await storage.writer.add(script.ledger_id, script.key, script.entries(range(10)), recovery=False)
    if flushed:
        await storage.checkpoint()
    again = storage.writer.add(script.ledger_id, script.key, script.entries(range(5, 15)), recovery=False)
    await again
    assert await read_all(storage, script) == script.entries(range(15))
    frame = [script.entry(14), script.entry(15, version=1), script.entry(16)]
    await storage.writer.add(script.ledger_id, script.key, [script.entry(15)], recovery=False)
    with pytest.raises(DuplicateEntryError, match="entry 15"):
        await storage.writer.add(script.ledger_id, script.key, frame, recovery=False)
    assert await read_all(storage, script) == script.entries(range(16)), "all of a frame or nothing"
    assert storage.statistics().duplicates_refused == 1


async def test_concurrent_adds_of_one_id_agree_on_one_value(storage: Storage) -> None:
    script = LedgerScript(1)
    await storage.writer.add(script.ledger_id, script.key, script.entries([0, 9]), recovery=False)
    adds = [
        storage.writer.add(script.ledger_id, script.key, [script.entry(5, version=version)], recovery=False)
        for version in (1, 2, 1)
    ]
    later = storage.writer.add(script.ledger_id, script.key, [script.entry(10)], recovery=False)
    outcomes = await asyncio.gather(*adds, return_exceptions=True)
    await later
    assert [type(outcome) for outcome in outcomes] == [type(None), DuplicateEntryError, type(None)]
    assert (await read_all(storage, script))[1] == script.entry(5, version=1)
    assert ids_of(await read_all(storage, script)) == [0, 5, 9, 10]


async def test_a_second_fence_is_answered_once_the_first_is_durable(storage: Storage) -> None:
    """Rule F2: a second recovering client relies on it just as much."""
    script = LedgerScript(1)
    first = storage.writer.fence(script.ledger_id, script.key)
    second = storage.writer.fence(script.ledger_id, script.key)
    assert not second.done(), "the first is not on disk yet"
    await second
    assert first.done()


async def test_an_add_waits_for_earlier_adds_of_the_ledger_that_wait_for_the_disk(storage: Storage) -> None:
    script = LedgerScript(1)
    await storage.writer.add(script.ledger_id, script.key, script.entries([0, 5]), recovery=False)
    frame = [script.entry(3, version=1), script.entry(6, version=1)]
    waiting = storage.writer.add(script.ledger_id, script.key, frame, recovery=False)
    later = storage.writer.add(script.ledger_id, script.key, [script.entry(6, version=2)], recovery=False)
    outcomes = await asyncio.gather(waiting, later, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), DuplicateEntryError]
    assert (await read_all(storage, script))[-1] == script.entry(6, version=1)


async def test_deletion_stops_adds_that_wait_for_the_disk(storage: Storage) -> None:
    """Rule B5: a late add must not bring a deleted ledger back."""
    script = LedgerScript(1)
    await storage.writer.add(script.ledger_id, script.key, script.entries([0, 9]), recovery=False)
    waiting = storage.writer.add(script.ledger_id, script.key, [script.entry(5)], recovery=False)
    deleted = storage.writer.delete(script.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await waiting
    await deleted


async def test_fence_stops_adds_that_wait_for_the_disk(storage: Storage) -> None:
    script = LedgerScript(1)
    await storage.writer.add(script.ledger_id, script.key, script.entries([0, 9]), recovery=False)
    waiting = storage.writer.add(script.ledger_id, script.key, [script.entry(5)], recovery=False)
    fence = storage.writer.fence(script.ledger_id, script.key)
    with pytest.raises(LedgerFencedError):
        await waiting
    await fence
    assert ids_of(await read_all(storage, script)) == [0, 9]


async def test_cancelled_waiters_withdraw_nothing(storage: Storage) -> None:
    script = LedgerScript(1)
    for frame in ([0], [1], [1], [2]):
        storage.writer.add(script.ledger_id, script.key, script.entries(frame), recovery=False).cancel()
    await storage.writer.add(script.ledger_id, script.key, [script.entry(3)], recovery=False)
    assert ids_of(await read_all(storage, script)) == [0, 1, 2, 3]


async def test_lac_rises_with_entries_and_explicit_lacs_and_survives(filesystem: MemoryFileSystem) -> None:
    script = LedgerScript(1)
    storage = await open_storage(filesystem)
    assert storage.reader.last_add_confirmed(script.ledger_id) == (False, False, None, None, False)
    assert await storage.reader.last_add_confirmed_entry(script.ledger_id) is None
    await storage.writer.add(script.ledger_id, script.key, script.entries(range(5), lac=2), recovery=False)
    assert storage.reader.last_add_confirmed(script.ledger_id).last_add_confirmed == 2
    storage.writer.write_lac(script.ledger_id, script.key, script.explicit_lac(4), EntryId(4))
    storage.writer.write_lac(script.ledger_id, script.key, script.explicit_lac(3), EntryId(3))
    for _ in range(2):
        view = storage.reader.last_add_confirmed(script.ledger_id)
        assert view == (True, False, 4, script.explicit_lac(4), False)
        entry = await storage.reader.last_add_confirmed_entry(script.ledger_id)
        assert entry == script.entry(4, lac=2)
        await storage.close()
        storage = await open_storage(filesystem)
    await storage.close()


async def test_explicit_lac_waits_for_the_next_sync_and_makes_none(filesystem: MemoryFileSystem) -> None:
    script = LedgerScript(1)
    storage = await open_storage(filesystem)
    await storage.writer.add(script.ledger_id, script.key, script.entries(range(5), lac=2), recovery=False)
    storage.writer.write_lac(script.ledger_id, script.key, script.explicit_lac(4), EntryId(4))
    assert storage.reader.last_add_confirmed(script.ledger_id).last_add_confirmed == 4
    for _ in range(20):
        await asyncio.sleep(0)
    pending = storage.statistics().journal.pending_bytes
    assert pending > 0
    await storage.writer.add(script.ledger_id, script.key, [script.entry(5, lac=2)], recovery=False)
    assert storage.statistics().journal.pending_bytes == 0
    await storage.close()


async def test_waiting_for_a_lac_ends_on_a_higher_one_or_a_fence(storage: Storage) -> None:
    script = LedgerScript(1)
    await storage.writer.add(script.ledger_id, script.key, script.entries([0], lac=None), recovery=False)
    any_lac, above_two = storage.reader.wait_lac(script.ledger_id, None), storage.reader.wait_lac(script.ledger_id, 2)
    given_up = storage.reader.wait_lac(script.ledger_id, 1)
    given_up.cancel()
    await asyncio.sleep(0)
    storage.writer.add(script.ledger_id, script.key, [script.entry(1, lac=0)], recovery=False)
    assert any_lac.done()
    assert not above_two.done()
    storage.writer.write_lac(script.ledger_id, script.key, script.explicit_lac(2), EntryId(2))
    assert not above_two.done()
    storage.writer.write_lac(script.ledger_id, script.key, script.explicit_lac(3), EntryId(3))
    assert above_two.done()
    assert storage.reader.wait_lac(script.ledger_id, 2).done()
    waiting = storage.reader.wait_lac(script.ledger_id, 100)
    storage.writer.fence(script.ledger_id, script.key)
    assert waiting.done()


async def test_storage_without_room_says_so_and_gets_room_again(storage: Storage) -> None:
    script = LedgerScript(1, payload_bytes=1000)
    added = 0
    while storage.admission.has_room:
        storage.writer.add(script.ledger_id, script.key, script.entries(range(added, added + 5)), recovery=False)
        added += 5
    await asyncio.wait_for(storage.admission.wait_for_room(), WAIT_SECONDS)
    assert storage.admission.has_room
    for first in range(added, added + 200, 10):
        await storage.admission.wait_for_room()
        storage.writer.add(script.ledger_id, script.key, script.entries(range(first, first + 10)), recovery=False)
        assert storage.memory_bytes < 4 * SMALL.cache_bytes_max
    await storage.writer.add(script.ledger_id, script.key, [script.entry(added + 200)], recovery=False)
    assert ids_of(await read_all(storage, script)) == list(range(added + 201))


async def test_damaged_entry_is_unknown_and_new_bytes_take_its_place(filesystem: MemoryFileSystem) -> None:
    script = LedgerScript(1)
    storage = await open_storage(filesystem)
    await storage.writer.add(script.ledger_id, script.key, script.entries(range(10)), recovery=False)
    await storage.checkpoint()
    (log,) = [path for path in filesystem.files(DATA / "entries") if path.suffix == ".log"]
    filesystem.damage(log, filesystem.content(log).index(script.entry(4)) + 50)
    result = await storage.reader.read(script.ledger_id, 0, 20, entries_max=100, bytes_max=10**6)
    assert result.unknown == [(4, 4)]
    assert ids_of(result.entries) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert storage.statistics().entries_damaged == 1
    await storage.writer.add(script.ledger_id, script.key, script.entries([3, 4, 5]), recovery=True)
    assert await read_all(storage, script) == script.entries(range(10))
    await storage.close()
    storage = await open_storage(filesystem)
    assert await read_all(storage, script) == script.entries(range(10))
    filesystem.damage(log, filesystem.content(log).index(script.entry(9)) + 50)
    assert await storage.reader.last_add_confirmed_entry(script.ledger_id) == script.entry(8)
    await storage.close()


async def test_truncated_or_missing_log_makes_entries_unknown_not_absent(filesystem: MemoryFileSystem) -> None:
    script = LedgerScript(1)
    storage = await open_storage(filesystem)
    await storage.writer.add(script.ledger_id, script.key, script.entries(range(10)), recovery=False)
    await storage.close()
    (log,) = [path for path in filesystem.files(DATA / "entries") if path.suffix == ".log"]
    content = filesystem.content(log)
    filesystem.set_content(log, content[: content.index(script.entry(6)) + 3])
    storage = await open_storage(filesystem)
    result = await storage.reader.read(script.ledger_id, 0, 20, entries_max=100, bytes_max=10**6)
    assert (ids_of(result.entries), result.unknown) == ([0, 1, 2, 3, 4, 5], [(6, 9)])
    await storage.close()
    await filesystem.remove(log)
    storage = await open_storage(filesystem)
    result = await storage.reader.read(script.ledger_id, 2, 20, entries_max=100, bytes_max=10**6)
    assert (result.entries, result.unknown) == ([], [(2, 9)])
    await storage.close()


async def test_every_flipped_bit_of_the_index_is_noticed(filesystem: MemoryFileSystem) -> None:
    script = LedgerScript(1)
    storage = await open_storage(filesystem)
    await storage.writer.add(script.ledger_id, script.key, script.entries([0, 1, 2, 4, 8]), recovery=False)
    await storage.close()
    (part,) = filesystem.files(DATA / "index")
    manifest = DATA / "manifest"
    saved = {path: filesystem.content(path) for path in filesystem.files()}
    unknown = refused = 0
    targets = [(part, at) for at in range(24, len(saved[part]))] + [
        (manifest, at) for at in range(len(saved[manifest]))
    ]
    for path, at in targets[:: max(1, len(targets) // 150)]:
        copy = MemoryFileSystem()
        for name, content in saved.items():
            copy.set_content(name, content)
        copy.damage(path, at)
        try:
            storage = await open_storage(copy)
        except IndexDamagedError as error:
            refused += path.name in error.message
            continue
        result = await storage.reader.read(script.ledger_id, 0, 9, entries_max=10, bytes_max=10**6)
        assert (result.entries, result.unknown) == ([], [(0, 8)])
        with pytest.raises(BookieStorageError):
            await storage.reader.list_entries(script.ledger_id)
        unknown += 1
        await storage.close()
    assert unknown > 20
    assert refused > 50


async def test_failed_write_or_sync_is_fatal_and_nothing_is_acknowledged_after_it(
    filesystem: MemoryFileSystem,
) -> None:
    for operation, folder in (("sync", "entries"), ("write", "entries"), ("sync", "index"), ("sync", "journal")):
        filesystem = MemoryFileSystem()
        failures: list[BaseException] = []
        storage = await open_storage(filesystem, on_fatal=failures.append)
        script = LedgerScript(1)
        await storage.writer.add(script.ledger_id, script.key, script.entries(range(100)), recovery=False)

        def fault(name: str, path: Path, operation: str = operation, folder: str = folder) -> OSError | None:
            return OSError(5, "broken") if name == operation and path.parent.name == folder else None

        filesystem.fault = fault
        storage.request_checkpoint()
        add = storage.writer.add(script.ledger_id, script.key, script.entries(range(100, 110)), recovery=False)
        await eventually(lambda happened=failures: bool(happened))  # type: ignore[misc]
        if folder == "journal":
            with pytest.raises(BookieStorageError):
                await add
        with pytest.raises(BookieStorageError):
            storage.writer.add(script.ledger_id, script.key, [script.entry(200)], recovery=False)
        await storage.close()
        assert len(failures) == 1
        filesystem.fault = None
        again = await open_storage(filesystem.after_crash(1))
        assert ids_of(await read_all(again, script))[:100] == list(range(100))
        await again.close()


@pytest.mark.parametrize("place", ["entries", "index", "manifest.tmp", "journal"])
async def test_sync_that_finds_the_disk_full_is_fatal_and_not_tried_again(
    filesystem: MemoryFileSystem, place: str
) -> None:
    """Unlike a write: what the sync lost it may have lost for good, whatever reason it gives (rule B1)."""
    failures: list[BaseException] = []
    storage = await open_storage(filesystem, on_fatal=failures.append)
    script, failed = LedgerScript(1), 0

    def full(name: str, path: Path) -> OSError | None:
        nonlocal failed
        if name != "sync" or place not in path.parts:
            return None
        failed += 1
        return OSError(errno.ENOSPC, "no room") if failed == 1 else None

    await storage.writer.add(script.ledger_id, script.key, [script.entry(0)], recovery=False)
    filesystem.fault = full
    if place == "journal":
        with pytest.raises(BookieStorageError):
            await storage.writer.add(script.ledger_id, script.key, [script.entry(1)], recovery=False)
    else:
        with pytest.raises(OSError, match="sync failed") as caught:
            await storage.checkpoint()
        assert caught.value.errno == errno.EIO
    assert failed == 1
    with contextlib.suppress(OSError):
        await storage.close()


async def test_parts_are_merged_and_nothing_changes(filesystem: MemoryFileSystem) -> None:
    scripts = [LedgerScript(ledger_id) for ledger_id in (3, 5, 900)]
    storage = await open_storage(filesystem)
    for round_number in range(9):
        for script in scripts:
            ids = range(round_number * 10, round_number * 10 + 10)
            await storage.writer.add(script.ledger_id, script.key, script.entries(ids), recovery=False)
        if round_number == 4:
            await storage.writer.fence(scripts[0].ledger_id, scripts[0].key)
            scripts.pop(0)
        storage.request_checkpoint()
        await eventually(lambda expected=round_number + 2: storage.statistics().checkpoints == expected)  # type: ignore[misc]
    await eventually(lambda: storage.statistics().merges >= 2)
    assert storage.statistics().index_parts < 6
    for _ in range(2):
        for script in scripts:
            assert await read_all(storage, script) == script.entries(range(90))
        assert ids_of(await read_all(storage, LedgerScript(3))) == list(range(50))
        with pytest.raises(LedgerFencedError):
            storage.writer.add(LedgerId(3), LedgerScript(3).key, [LedgerScript(3).entry(77)], recovery=False)
        await storage.close()
        storage = await open_storage(filesystem)
    await storage.close()
    names = {path.name for path in filesystem.files(DATA / "index")}
    assert len(names) == storage.statistics().index_parts, "merged parts are removed"


async def test_ledgers_out_of_memory_are_as_before(filesystem: MemoryFileSystem) -> None:
    settings = StorageSettings(ledgers_hot_max=4, checkpoint_seconds=3600, journal=SMALL.journal)
    storage = await open_storage(filesystem, settings)
    scripts = [LedgerScript(ledger_id) for ledger_id in range(0, 3000, 100)]
    for script in scripts:
        await storage.writer.add(script.ledger_id, script.key, [script.entry(0)], recovery=False)
    await storage.writer.fence(scripts[3].ledger_id, scripts[3].key)
    await storage.checkpoint()
    for script in scripts:
        with pytest.raises(UnauthorizedError):
            storage.writer.add(script.ledger_id, b"wrong", [script.entry(1)], recovery=False)
        assert storage.reader.last_add_confirmed(script.ledger_id).fenced == (script is scripts[3])
        await storage.writer.add(script.ledger_id, script.key, [script.entry(1, lac=0)], recovery=True)
    assert storage.ledgers.hot_count <= 4 + len(scripts)
    assert storage.ledgers.live_ids() == [script.ledger_id for script in scripts]
    await storage.close()


async def test_closed_storage_refuses_and_ends_waits(filesystem: MemoryFileSystem) -> None:
    storage = await open_storage(filesystem)
    script = LedgerScript(1)
    last = storage.writer.add(script.ledger_id, script.key, [script.entry(0)], recovery=False)
    waiting = storage.reader.wait_lac(script.ledger_id, None)
    await storage.close()
    await last
    assert waiting.cancelled()
    with pytest.raises(BookieShuttingDownError):
        storage.writer.add(script.ledger_id, script.key, [script.entry(1)], recovery=False)
    await storage.close()
    assert header_of(script.entry(0)).entry_id == 0


async def test_duplicate_is_no_success_before_the_held_copy_is_durable(filesystem: MemoryFileSystem) -> None:
    failures: list[BaseException] = []
    storage = await open_storage(filesystem, on_fatal=failures.append)
    script = LedgerScript(1)
    await storage.writer.add(script.ledger_id, script.key, [script.entry(0)], recovery=False)
    filesystem.fault = lambda name, path: OSError(5, "broken") if (name, path.parent) == ("sync", JOURNAL) else None
    adds = [storage.writer.add(script.ledger_id, script.key, [script.entry(1)], recovery=False) for _ in range(2)]
    outcomes = await asyncio.gather(*adds, return_exceptions=True)
    assert all(isinstance(outcome, BookieStorageError) for outcome in outcomes)
    await storage.close()


async def test_intact_entry_in_the_place_of_another_is_not_served(filesystem: MemoryFileSystem) -> None:
    script = LedgerScript(1)
    storage = await open_storage(filesystem)
    await storage.writer.add(script.ledger_id, script.key, script.entries(range(10)), recovery=False)
    await storage.checkpoint()
    (log,) = [path for path in filesystem.files(DATA / "entries") if path.suffix == ".log"]
    content = filesystem.content(log)
    filesystem.set_content(log, content.replace(script.entry(3), script.entry(6)))
    result = await storage.reader.read(script.ledger_id, 0, 20, entries_max=100, bytes_max=10**6)
    assert (ids_of(result.entries), result.unknown) == ([0, 1, 2, 4, 5, 6, 7, 8, 9], [(3, 3)])
    await storage.close()


async def test_pinned_keys_and_deletions_outlive_a_power_cut_with_the_journal_alone(
    filesystem: MemoryFileSystem,
) -> None:
    storage = await open_storage(filesystem)
    kept, deleted = LedgerScript(1), LedgerScript(2)
    for script in (kept, deleted):
        await storage.writer.add(script.ledger_id, script.key, [script.entry(0)], recovery=False)
    await storage.writer.delete(deleted.ledger_id)
    storage = await open_storage(filesystem.after_crash(1))
    with pytest.raises(UnauthorizedError):
        storage.writer.add(kept.ledger_id, bytes(len(kept.key)), [kept.entry(1)], recovery=False)
    with pytest.raises(NoSuchLedgerError):
        storage.writer.add(deleted.ledger_id, deleted.key, [deleted.entry(1)], recovery=False)
    await storage.close()
