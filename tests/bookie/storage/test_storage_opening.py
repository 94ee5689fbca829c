"""An opening or closing that is cut short leaves no task behind: such a task would outlive the files it works on."""

import asyncio
from pathlib import Path

import pytest
from octavo.bookie.disk.filesystem import replace_file
from octavo.bookie.index.format import IndexDamagedError
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.storage.manifest import EMPTY, encode_manifest
from octavo.bookie.storage.manifest_keeper import read_manifest, remove_orphans
from octavo.bookie.storage.storage import Storage, StorageSettings
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.faulty_filesystem import MemoryFileSystem, run_until_crash

pytestmark = pytest.mark.usefixtures("logged")

SETTINGS = StorageSettings(
    checkpoint_seconds=3600, journal=JournalSettings(segment_bytes=64 * 1024, first_fill_bytes=0)
)
SCRIPT = LedgerScript(1)


async def open_storage(filesystem: MemoryFileSystem) -> Storage:
    def failed(error: BaseException) -> None:
        assert filesystem.crashed.is_set() or isinstance(error, asyncio.CancelledError), error

    return await Storage.open(
        filesystem,
        directory=Path("/data"),
        journal_directory=Path("/journal"),
        settings=SETTINGS,
        on_fatal=failed,
    )


async def disk_with_something_to_replay() -> MemoryFileSystem:
    filesystem = MemoryFileSystem()

    async def add_and_crash() -> None:
        storage = await open_storage(filesystem)
        await storage.writer.add(SCRIPT.ledger_id, SCRIPT.key, SCRIPT.entries(range(20)), recovery=False)
        filesystem.crash()

    assert await run_until_crash(filesystem, add_and_crash)
    return filesystem.after_crash(seed=1)


async def check_opens_with(filesystem: MemoryFileSystem, entries: int) -> None:
    storage = await open_storage(filesystem)
    result = await storage.reader.read(SCRIPT.ledger_id, 0, entries - 1, entries_max=100, bytes_max=100_000)
    assert ids_of(result.entries) == list(range(entries))
    await storage.close()
    assert await tasks_left() == []


async def tasks_left() -> list[str]:
    await asyncio.sleep(0)  # those that have just been cancelled end in this turn
    return [name for task in asyncio.all_tasks() if (name := task.get_name()).startswith("octavo")]


async def test_an_opening_cancelled_at_any_moment_leaves_no_task_and_opens_the_next_time() -> None:
    cut_short = 0
    while True:
        filesystem = await disk_with_something_to_replay()
        opening = asyncio.create_task(open_storage(filesystem))
        for _ in range(cut_short):
            await asyncio.sleep(0)
        if opening.done():
            break
        opening.cancel()
        await asyncio.wait([opening])
        assert opening.cancelled()
        assert await tasks_left() == [], f"cancelled after {cut_short} turns"
        await check_opens_with(filesystem, 20)
        cut_short += 1
    assert cut_short > 20
    await opening.result().close()


async def test_a_closing_cancelled_at_any_moment_leaves_no_task_and_loses_nothing() -> None:
    cut_short = 1  # after none it has not begun
    while True:
        filesystem = await disk_with_something_to_replay()
        storage = await open_storage(filesystem)
        await storage.writer.add(SCRIPT.ledger_id, SCRIPT.key, SCRIPT.entries(range(20, 30)), recovery=False)
        closing = asyncio.create_task(storage.close())
        for _ in range(cut_short):
            await asyncio.sleep(0)
        if closing.done():
            break
        closing.cancel()
        await asyncio.wait([closing])
        assert await tasks_left() == [], f"cancelled after {cut_short} turns"
        await check_opens_with(filesystem, 30)
        cut_short += 1
    assert cut_short > 5


# --- the manifest ---------------------------------------------------------------------------------------------------

DATA = Path("/data")


async def test_a_lost_manifest_beside_index_files_is_no_new_bookie() -> None:
    filesystem = MemoryFileSystem()
    storage = await open_storage(filesystem)
    await storage.writer.add(SCRIPT.ledger_id, SCRIPT.key, SCRIPT.entries(range(20)), recovery=False)
    await storage.checkpoint()
    await storage.close()
    await filesystem.remove(DATA / "manifest")
    with pytest.raises(IndexDamagedError, match="there are index files"):
        await read_manifest(filesystem, DATA, must_exist=False)


async def test_a_manifest_that_a_kill_left_unsynced_is_durable_before_it_is_acted_upon() -> None:
    newer = EMPTY._replace(next_part_id=7)
    filesystem = MemoryFileSystem()
    await filesystem.make_directory(DATA / "index")
    await replace_file(filesystem, DATA / "manifest", encode_manifest(EMPTY))
    filesystem.set_content(DATA / "manifest.tmp", encode_manifest(newer))
    await filesystem.rename(DATA / "manifest.tmp", DATA / "manifest")  # the process is killed here
    assert await read_manifest(filesystem, DATA, must_exist=True) == newer
    for seed in range(20):
        assert await read_manifest(filesystem.after_crash(seed), DATA, must_exist=True) == newer


async def test_numbers_of_files_that_a_crash_left_are_not_used_again() -> None:
    filesystem = MemoryFileSystem()
    for name in ("entries/00000005.log", "index/0000000b.index"):
        filesystem.set_content(DATA / name, b"left by a crash")
    cleared = await remove_orphans(filesystem, [DATA / "entries"], DATA / "index", EMPTY)
    assert (cleared.next_log_id, cleared.next_part_id) == (6, 12)
    assert filesystem.files(DATA / "entries") == filesystem.files(DATA / "index") == []
