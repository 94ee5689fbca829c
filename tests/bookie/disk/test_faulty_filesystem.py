"""The in-memory file system keeps the promises of the real one, and breaks everything beyond them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from octavo.bookie.disk.direct_io import DIRECT_BLOCK_BYTES
from octavo.bookie.disk.filesystem import FileSystem, RealFileSystem, read_file, replace_file
from support.disks.faulty_filesystem import PAGE_BYTES, MemoryFileSystem, run_until_crash


@pytest.fixture(params=["real", "memory"])
async def filesystem(request: pytest.FixtureRequest) -> AsyncIterator[FileSystem]:
    made: FileSystem = RealFileSystem() if request.param == "real" else MemoryFileSystem()
    yield made
    await made.close()


async def test_both_file_systems_keep_the_same_contract(filesystem: FileSystem, tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    await filesystem.make_directory(directory)
    path = directory / "file"
    with pytest.raises(FileNotFoundError):
        await filesystem.open(path)
    file = await filesystem.open(path, create=True)
    with pytest.raises(FileExistsError):
        await filesystem.open(path, create=True)
    await file.write(2, [b"cd", b"e"])
    await file.write_and_sync(0, [b"ab"])
    assert await file.read(0, 100) == b"abcde"
    assert await file.read(1, 2) == b"bc"
    assert await file.read(5, 1) == b""
    await file.allocate(8)
    assert await file.size() == 8
    await file.allocate(4)
    assert await file.size() == 8
    await file.truncate(3)
    assert await file.read(0, 100) == b"abc"
    await file.close()
    with pytest.raises(OSError, match="closed"):
        await file.read(0, 1)
    await filesystem.rename(path, directory / "other")
    await filesystem.sync_directory(directory)
    assert await filesystem.list_directory(directory) == ["other"]
    assert await filesystem.exists(directory / "other")
    assert not await filesystem.exists(path)
    await replace_file(filesystem, directory / "other", b"new")
    assert await read_file(filesystem, directory / "other") == b"new"
    await filesystem.remove(directory / "other")
    with pytest.raises(FileNotFoundError):
        await filesystem.remove(directory / "other")
    unlock = await filesystem.lock(directory / "lock")
    with pytest.raises(BlockingIOError):
        await filesystem.lock(directory / "lock")
    unlock()
    (await filesystem.lock(directory / "lock"))()
    assert (await filesystem.disk_space(directory)).free_bytes > 0


async def test_crash_keeps_what_was_synced_and_gambles_with_the_rest(tmp_path: Path) -> None:
    outcomes = set()
    for seed in range(60):
        filesystem = MemoryFileSystem()
        await filesystem.make_directory(tmp_path)
        file = await filesystem.open(tmp_path / "f", create=True)
        await file.write_and_sync(0, [b"s" * DIRECT_BLOCK_BYTES])
        await filesystem.sync_directory(tmp_path)
        await file.write(DIRECT_BLOCK_BYTES, [b"u" * PAGE_BYTES, b"v" * PAGE_BYTES])
        survivor = filesystem.after_crash(seed)
        content = survivor.content(tmp_path / "f")
        assert content[:DIRECT_BLOCK_BYTES] == b"s" * DIRECT_BLOCK_BYTES
        outcomes.add(content[DIRECT_BLOCK_BYTES:])
    assert b"" in outcomes
    assert b"u" * PAGE_BYTES + b"v" * PAGE_BYTES in outcomes
    assert bytes(PAGE_BYTES) + b"v" * PAGE_BYTES in outcomes, "pages persist in any order"


async def test_crash_may_leave_anything_in_a_block_that_an_unsynced_write_shares_with_synced_bytes(
    tmp_path: Path,
) -> None:
    survived = set()
    for seed in range(60):
        filesystem = MemoryFileSystem()
        await filesystem.make_directory(tmp_path)
        file = await filesystem.open(tmp_path / "f", create=True)
        await file.write_and_sync(0, [b"s" * PAGE_BYTES])
        await filesystem.sync_directory(tmp_path)
        await file.write(PAGE_BYTES, [b"u"])
        survived.add(filesystem.after_crash(seed).content(tmp_path / "f")[:PAGE_BYTES] == b"s" * PAGE_BYTES)
    assert survived == {True, False}


async def test_crash_loses_names_whose_directory_was_not_synced(tmp_path: Path) -> None:
    outcomes = set()
    for seed in range(40):
        filesystem = MemoryFileSystem()
        await filesystem.make_directory(tmp_path)
        file = await filesystem.open(tmp_path / "f", create=True)
        await file.write_and_sync(0, [b"x"])
        outcomes.add(await filesystem.after_crash(seed).exists(tmp_path / "f"))
    assert outcomes == {True, False}


async def test_planned_crash_stops_everything_and_failed_sync_leaves_data_to_chance(tmp_path: Path) -> None:
    filesystem = MemoryFileSystem(crash_at=3)
    reached = []

    async def workload() -> None:
        await filesystem.make_directory(tmp_path)
        file = await filesystem.open(tmp_path / "f", create=True)
        await file.write(0, [b"x"])
        reached.append("written")
        await file.sync()
        reached.append("synced")

    assert await run_until_crash(filesystem, workload)
    assert reached == ["written"]
    assert [name for name, _ in filesystem.history] == ["create", "write", "sync"]

    outcomes = set()
    for seed in range(40):
        filesystem = MemoryFileSystem(seed=seed)
        await filesystem.make_directory(tmp_path)
        file = await filesystem.open(tmp_path / "f", create=True)
        await filesystem.sync_directory(tmp_path)
        await file.write(0, [b"x"])
        filesystem.fault = lambda name, _path: OSError(5, "gone") if name == "sync" else None
        with pytest.raises(OSError, match="gone"):
            await file.sync()
        filesystem.fault = None
        await file.sync()  # the second one succeeds and proves nothing
        outcomes.add(filesystem.after_crash(1).content(tmp_path / "f"))
    assert outcomes > {b"\0", b"x"}, "old bytes, new ones, and arbitrary ones"


async def test_sync_does_not_cover_what_is_written_while_it_runs(tmp_path: Path) -> None:
    seen = set()
    for seed in range(40):
        filesystem = MemoryFileSystem()
        await filesystem.make_directory(tmp_path)
        file = await filesystem.open(tmp_path / "f", create=True)
        await filesystem.sync_directory(tmp_path)
        await file.write(0, [b"a" * PAGE_BYTES])
        syncing = asyncio.ensure_future(file.sync())
        writing = asyncio.ensure_future(file.write(0, [b"b"]))
        await asyncio.gather(syncing, writing)
        seen.add(filesystem.after_crash(seed).content(tmp_path / "f")[:1])
    assert seen > {b"a", b"b"}, "and arbitrary bytes, because the second write was not synced"
