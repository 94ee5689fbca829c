"""The storage removes ranges that are given up, and nothing else (rule C11)."""

import asyncio
from pathlib import Path

import pytest
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.offline.inspect_file import inspect_file
from octavo.bookie.offline.layout import Layout
from octavo.bookie.offline.rebuild_index import IndexRebuild
from octavo.bookie.storage.manifest_keeper import MANIFEST_NAME
from octavo.bookie.storage.storage import Storage, StorageSettings
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.faulty_filesystem import MemoryFileSystem
from support.disks.held_disk import HeldDisk

pytestmark = pytest.mark.usefixtures("logged")

UNLIMITED = RateLimiter(1e12)


def never(error: BaseException) -> None:
    raise AssertionError("the storage failed") from error


SCRIPT, OTHER = LedgerScript(7), LedgerScript(8)


async def opened(disk: MemoryFileSystem, *, ledgers_hot_max: int = 100) -> Storage:
    settings = StorageSettings(checkpoint_seconds=86_400, ledgers_hot_max=ledgers_hot_max)
    storage = await Storage.open(
        disk, directory=Path("/d"), journal_directory=Path("/j"), settings=settings, on_fatal=never
    )
    for script in (SCRIPT, OTHER):
        await storage.writer.add(script.ledger_id, script.key, script.entries(range(10)), recovery=True)
    await storage.checkpoint()
    return storage


async def test_mark_survives_that_the_state_of_its_ledger_is_evicted() -> None:
    storage = await opened(MemoryFileSystem(), ledgers_hot_max=1)
    await storage.relief.mark(SCRIPT.ledger_id, 5)
    await storage.relief.remove({SCRIPT.ledger_id: [(0, 4)]})
    await storage.checkpoint()
    for number in range(100, 130):
        storage.ledgers.get(number)
    assert storage.ledgers.hot_count < 10
    assert storage.ledgers.relieved_below(SCRIPT.ledger_id) == 5
    found = await storage.reader.read(SCRIPT.ledger_id, 0, 20, entries_max=99, bytes_max=99_999)
    assert (found.entries, found.unknown) == (SCRIPT.entries(range(5, 10)), [(0, 4)])
    await storage.close()


async def test_add_whose_look_up_meets_what_is_being_removed_is_stored() -> None:
    met = False

    def first_read(name: str, path: Path) -> bool:
        nonlocal met
        first = name == "read" and path.suffix == ".runs" and not met
        met |= first
        return first

    disk = HeldDisk(first_read)
    storage = await opened(disk)
    await storage.relief.mark(SCRIPT.ledger_id, 5)
    disk.hold()
    adding = storage.writer.add(SCRIPT.ledger_id, SCRIPT.key, [SCRIPT.entry(3)], recovery=True)
    await disk.held.wait()
    removing = asyncio.ensure_future(storage.relief.remove({SCRIPT.ledger_id: [(0, 4)]}))
    for _ in range(1_000):  # as far as it comes: it waits for the look-up
        await asyncio.sleep(0)
    assert storage.ledgers.relieving
    disk.release()
    await removing
    await adding
    found = await storage.reader.read(SCRIPT.ledger_id, 0, 4, entries_max=99, bytes_max=99_999)
    assert (ids_of(found.entries), found.unknown) == ([3], [(0, 2), (4, 4)])
    assert storage.ledgers.relieving == {}
    await storage.close()


async def test_no_add_waits_for_a_removal() -> None:
    disk = HeldDisk(lambda name, path: name == "sync" and path.suffix == ".runs")
    storage = await opened(disk)
    await storage.relief.mark(SCRIPT.ledger_id, 5)
    disk.hold()
    removing = asyncio.ensure_future(storage.relief.remove({SCRIPT.ledger_id: [(0, 4)]}))
    await disk.held.wait()
    for script, ids, recovery in ((SCRIPT, [3], True), (SCRIPT, [7], True), (SCRIPT, [10], False), (OTHER, [2], True)):
        await storage.writer.add(script.ledger_id, script.key, script.entries(ids), recovery=recovery)
    assert not removing.done()
    disk.release()
    await removing
    found = await storage.reader.read(SCRIPT.ledger_id, 0, 20, entries_max=99, bytes_max=99_999)
    assert ids_of(found.entries) == [3, 5, 6, 7, 8, 9, 10]
    await storage.close()


async def test_full_disk_leaves_everything_as_it_was_and_holds_up_nothing() -> None:
    disk = MemoryFileSystem()
    storage = await opened(disk)
    await storage.relief.mark(SCRIPT.ledger_id, 5)
    for room in range(0, 600, 40):
        disk.capacity_bytes = disk.used_bytes + room
        removed = await storage.relief.remove({SCRIPT.ledger_id: [(0, 4)]})
        disk.capacity_bytes = None
        if removed:
            break
        found = await storage.reader.read(SCRIPT.ledger_id, 0, 9, entries_max=99, bytes_max=99_999)
        assert ids_of(found.entries) == list(range(10))
    assert room > 0
    assert await storage.relief.remove({SCRIPT.ledger_id: [(0, 4)]})
    found = await storage.reader.read(SCRIPT.ledger_id, 0, 9, entries_max=99, bytes_max=99_999)
    assert (ids_of(found.entries), found.unknown) == ([5, 6, 7, 8, 9], [(0, 4)])
    await storage.close()
    again = await Storage.open(disk, directory=Path("/d"), journal_directory=Path("/j"), on_fatal=never)
    found = await again.reader.read(SCRIPT.ledger_id, 0, 9, entries_max=99, bytes_max=99_999)
    assert (ids_of(found.entries), found.unknown) == ([5, 6, 7, 8, 9], [(0, 4)])
    await again.close()


async def test_what_is_not_in_the_index_yet_waits_for_a_checkpoint() -> None:
    storage = await opened(MemoryFileSystem())
    await storage.writer.add(SCRIPT.ledger_id, SCRIPT.key, SCRIPT.entries([20]), recovery=True)
    await storage.relief.mark(SCRIPT.ledger_id, 30)
    assert await storage.relief.remove({SCRIPT.ledger_id: [(0, 4), (20, 24)]}) == {}
    await storage.checkpoint()
    removed = await storage.relief.remove({SCRIPT.ledger_id: [(0, 4), (20, 24)]})
    assert removed[SCRIPT.ledger_id].entries == 6
    await storage.close()


async def test_thousands_of_ranges_of_one_stream_go_at_once() -> None:
    storage = await opened(MemoryFileSystem())
    ids = range(0, 20_000, 2)
    await storage.writer.add(SCRIPT.ledger_id, SCRIPT.key, SCRIPT.entries(ids[10:]), recovery=True)
    await storage.checkpoint()
    await storage.relief.mark(SCRIPT.ledger_id, 20_000)
    ranges = [(first, first + 1) for first in range(0, 20_000, 4)]
    assert len(ranges) == 5_000
    assert await storage.relief.remove({SCRIPT.ledger_id: ranges})
    held = [*range(10), *ids[10:]]
    kept = [one for one in held if one % 4 >= 2]
    found = await storage.reader.read(SCRIPT.ledger_id, 0, 20_000, entries_max=20_000, bytes_max=10**8)
    assert ids_of(found.entries) == [one for one in kept if one <= found.last_covered]
    assert len(found.entries) > 1000
    assert await storage.relief.remove({SCRIPT.ledger_id: ranges})  # nothing is left of them
    await storage.close()


async def test_live_share_is_counted_again_when_more_is_given_up() -> None:
    disk = MemoryFileSystem()
    await (await opened(disk)).close()
    storage = await Storage.open(disk, directory=Path("/d"), journal_directory=Path("/j"), on_fatal=never)
    for script in (SCRIPT, OTHER):
        await storage.relief.mark(script.ledger_id, 9)
        await storage.relief.remove({script.ledger_id: [(0, 1)]})
    assert (await storage.compact(0.5, UNLIMITED)).logs_removed == 0
    for script in (SCRIPT, OTHER):
        await storage.relief.remove({script.ledger_id: [(2, 8)]})
    assert (await storage.compact(0.5, UNLIMITED)).logs_removed == 1
    for script in (SCRIPT, OTHER):
        found = await storage.reader.read(script.ledger_id, 0, 20, entries_max=99, bytes_max=99_999)
        assert (found.entries, found.unknown) == ([script.entry(9)], [(0, 8)])
    await storage.close()


async def test_offline_tools_know_marks() -> None:
    disk = MemoryFileSystem()
    storage = await opened(disk)
    await storage.relief.mark(SCRIPT.ledger_id, 5)
    await storage.relief.remove({SCRIPT.ledger_id: [(0, 4)]})
    segments = [path for path in disk.files() if path.name.startswith("journal-") and path.suffix == ".segment"]
    lines = [line for path in segments for line in [line async for line in inspect_file(disk, path)]]
    assert any("RELIEF" in line and "below entry 5" in line for line in lines)
    await storage.close()
    parts = [path for path in disk.files() if path.suffix == ".runs"]
    lines = [line for path in parts for line in [line async for line in inspect_file(disk, path)]]
    assert any("may have given up entries below 5" in line for line in lines)
    await disk.remove(Path("/d") / MANIFEST_NAME)
    await IndexRebuild(disk, Layout.of(Path("/d"), Path("/j"))).run()
    again = await Storage.open(disk, directory=Path("/d"), journal_directory=Path("/j"), on_fatal=never)
    found = await again.reader.read(SCRIPT.ledger_id, 0, 9, entries_max=99, bytes_max=99_999)
    assert {*ids_of(found.entries)} >= set(range(5, 10))
    hidden = [one for low, high in found.unknown for one in range(low, high + 1)]
    assert {*ids_of(found.entries), *hidden} >= set(range(10))
    await again.close()
