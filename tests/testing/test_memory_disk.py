"""The disk in memory answers as the operating system's files do."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from octavo.bookie.disk.filesystem import FileSystem, RealFileSystem
from octavo.testing.memory_disk import MemoryDisk

NAMES = ("a", "b", "c.tmp")


class Script:
    """Random operations in one folder; ``answers`` are what they return, or the kind of error that they raise."""

    def __init__(self, filesystem: FileSystem, folder: Path, seed: int) -> None:
        self.filesystem = filesystem
        self.folder = folder
        self.rng = random.Random(seed)
        self.answers: list[object] = []

    async def run(self, steps: int) -> list[object]:
        await self.filesystem.make_directory(self.folder)
        for _ in range(steps):
            path = self.folder / self.rng.choice(NAMES)
            act = self.rng.choice(
                (self.create, self.write, self.write, self.read, self.resize, self.rename, self.remove, self.look)
            )
            try:
                answer = await act(path)
            except OSError as error:
                answer = type(error).__name__, error.errno
            self.answers.append((act.__name__, path.name, answer))
        return self.answers

    async def create(self, path: Path) -> object:
        file = await self.filesystem.open(path, create=True)
        await file.allocate(self.rng.randrange(100))
        await file.close()
        return None

    async def write(self, path: Path) -> object:
        offset, data = self.rng.randrange(200), self.rng.randbytes(self.rng.randrange(50))
        file = await self.filesystem.open(path)
        await (file.write_and_sync if self.rng.random() < 0.5 else file.write)(offset, [data[:5], data[5:]])
        await file.sync()
        await file.close()
        return None

    async def read(self, path: Path) -> object:
        offset, size = self.rng.randrange(250), self.rng.randrange(250)
        file = await self.filesystem.open(path)
        try:
            return await file.size(), await file.read(offset, size)
        finally:
            await file.close()

    async def resize(self, path: Path) -> object:
        size = self.rng.randrange(200)
        file = await self.filesystem.open(path)
        await (file.truncate if self.rng.random() < 0.5 else file.allocate)(size)
        await file.close()
        return None

    async def rename(self, path: Path) -> object:
        await self.filesystem.rename(path, self.folder / self.rng.choice(NAMES))
        await self.filesystem.sync_directory(self.folder)
        return None

    async def remove(self, path: Path) -> object:
        await self.filesystem.remove(path)
        return None

    async def look(self, path: Path) -> object:
        listed = await self.filesystem.list_directory(self.folder)
        return listed, await self.filesystem.exists(path), await self.filesystem.exists(self.folder / "no" / "such")


@pytest.mark.parametrize("seed", range(10))
async def test_every_answer_is_that_of_real_files(tmp_path: Path, seed: int) -> None:
    real = RealFileSystem()
    try:
        expected = await Script(real, tmp_path / "d", seed).run(150)
    finally:
        await real.close()
    assert await Script(MemoryDisk(), Path("/x/d"), seed).run(150) == expected
    assert {str(answer)[2:7] for answer in expected} >= {"creat", "write", "read'"}


async def missing_folder(disk: FileSystem, folder: Path) -> object:
    return await disk.open(folder / "no" / "file", create=True)


async def missing_list(disk: FileSystem, folder: Path) -> object:
    return await disk.list_directory(folder / "no")


async def missing_sync(disk: FileSystem, folder: Path) -> None:
    await disk.sync_directory(folder / "no")


async def locked_twice(disk: FileSystem, folder: Path) -> object:
    unlock = await disk.lock(folder / "lock")
    unlock()
    unlock = await disk.lock(folder / "lock")
    try:
        return await disk.lock(folder / "lock")
    finally:
        unlock()


@pytest.mark.parametrize("act", [missing_folder, missing_list, missing_sync, locked_twice])
async def test_every_refusal_is_that_of_real_files(tmp_path: Path, act: Callable[[FileSystem, Path], "object"]) -> None:
    real = RealFileSystem()
    kinds = []
    memory = MemoryDisk()
    await memory.make_directory(Path("/d"))
    for disk, folder in ((real, tmp_path), (memory, Path("/d"))):
        with pytest.raises(OSError) as refusal:  # noqa: PT011 - the kind is compared
            await act(disk, folder)  # type: ignore[misc]
        kinds.append(type(refusal.value))
    await real.close()
    assert kinds[0] is kinds[1]


async def test_space_that_was_only_allocated_takes_no_memory() -> None:
    disk = MemoryDisk()
    file = await disk.open(Path("/f"), create=True)
    await file.allocate(1 << 40)
    assert await file.size() == 1 << 40
    assert await file.read(1 << 39, 4) == bytes(4)
    space = await disk.disk_space(Path("/"))
    assert space.free_bytes == space.total_bytes
