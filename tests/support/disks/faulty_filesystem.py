"""A file system in memory that lies until it is synced, for tests of everything a bookie writes.

:class:`MemoryFileSystem` honours the promises of ``octavo.bookie.disk.filesystem`` and no more:

* Each file has a *volatile* content, which reads see, and a *durable* one. A sync makes durable what had been
  written when it was called. A crash keeps, drops or tears every page that is not durable, each by itself, drawn
  from a seed.
* A crash may leave anything in the blocks that unsynced writes touch, also in a block that held durable bytes: the
  page cache writes whole pages, and a drive without power-loss protection promises nothing about a page that it was
  writing.
* Each directory has volatile and durable names. Unsynced creations, renames and removals survive as a prefix of their
  order, drawn from the seed; often none does.
* A failed sync leaves the pages clean and their durable content to chance, as kernels do.

A crash is either asked for (:meth:`crash`) or planned (``crash_at=n``: during the n-th changing operation, counted
from 1). From then on no operation of the object ever returns, so no code runs "after the power cut"; :attr:`crashed`
tells the test, which cancels its tasks and goes on with :meth:`after_crash`, a new object holding what survived.
"""

import asyncio
import contextlib
import errno
import os
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from octavo.bookie.disk.direct_io import DIRECT_BLOCK_BYTES
from octavo.bookie.disk.filesystem import DiskSpace

PAGE_BYTES = 512
"""Smallest piece that survives or is lost by itself: a disk sector, smaller than a page to make more tears."""


class Inode:
    """One file's bytes, whatever its name."""

    def __init__(self, content: bytes = b"") -> None:
        self.volatile = bytearray(content)
        self.durable = bytearray(content)
        self.dirty: dict[int, int] = {}
        """Page -> serial number of its last change that no sync has covered."""
        self.size_dirty = False
        self._serial = 0

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        if end > len(self.volatile):
            self.resize(end)
        self.volatile[offset:end] = data
        self._touch(offset, end)

    def resize(self, size: int) -> None:
        old = len(self.volatile)
        if size < old:
            del self.volatile[size:]
            self._touch(size, size + 1)
            self.dirty = {page: serial for page, serial in self.dirty.items() if page * PAGE_BYTES < max(size, 1)}
        else:
            self.volatile.extend(bytes(size - old))
            self._touch(old, size)
        self.size_dirty = True

    def _touch(self, start: int, stop: int) -> None:
        self._serial += 1
        touched = range(start // PAGE_BYTES, (stop + PAGE_BYTES - 1) // PAGE_BYTES)
        self.dirty.update(dict.fromkeys(touched, self._serial))

    def begin_sync(self) -> Callable[[], None]:
        """What to call when the sync ends: makes durable what is in the file now, not what is written meanwhile."""
        covered, size = dict(self.dirty), len(self.volatile)
        images = [(start, bytes(self.volatile[start:stop])) for start, stop in _ranges_of(covered)]

        def finish() -> None:
            _set_size(self.durable, size)
            for start, image in images:
                self.durable[start : start + len(image)] = image
            if self.dirty == covered:
                self.dirty.clear()
            else:
                self.dirty = {page: serial for page, serial in self.dirty.items() if covered.get(page) != serial}
            if len(self.volatile) == size:
                self.size_dirty = False

        return finish

    def fail_sync(self, chance: random.Random) -> None:
        """A sync failed: some pages are on disk, some are not, and all are clean."""
        self.durable = bytearray(self._lottery(chance))
        self.dirty.clear()
        self.size_dirty = False

    def after_crash(self, chance: random.Random) -> bytes:
        return self._lottery(chance)

    def _lottery(self, chance: random.Random) -> bytes:
        if not self.dirty and not self.size_dirty:
            return bytes(self.durable)
        mood = chance.random()  # whole outcomes are as interesting as mixed ones
        if mood < 0.2:
            return bytes(self.durable)
        if mood < 0.35:
            return bytes(self.volatile)
        kept = bytearray(self.durable)
        if chance.random() < 0.5:
            _set_size(kept, len(self.volatile))
        for page in self.dirty:
            fate = chance.random()
            if fate < 0.4:
                _grow_to(kept, self.volatile, page)
                _copy_page(kept, self.volatile, page)
            elif fate < 0.5:  # torn inside the page
                _grow_to(kept, self.volatile, page)
                _copy_page(kept, self.volatile, page, chance.randrange(PAGE_BYTES))
        for block in sorted({page * PAGE_BYTES // DIRECT_BLOCK_BYTES for page in self.dirty}):
            if chance.random() < 0.15:
                _scramble_block(kept, block, chance)
        return bytes(kept)


def _ranges_of(pages: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The pages' bytes as ranges, exclusive: pages that follow each other are one."""
    first = following = None
    for page in sorted(pages):
        if page != following:
            if first is not None and following is not None:
                yield first * PAGE_BYTES, following * PAGE_BYTES
            first = page
        following = page + 1
    if first is not None and following is not None:
        yield first * PAGE_BYTES, following * PAGE_BYTES


def _set_size(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _grow_to(target: bytearray, source: bytes | bytearray, page: int) -> None:
    size = min((page + 1) * PAGE_BYTES, len(source))
    if size > len(target):
        _set_size(target, size)


def _copy_page(target: bytearray, source: bytes | bytearray, page: int, size: int = PAGE_BYTES) -> None:
    start = page * PAGE_BYTES
    stop = min(start + size, len(source), len(target))
    if stop > start:
        target[start:stop] = source[start:stop]


def _scramble_block(content: bytearray, block: int, chance: random.Random) -> None:
    """What an interrupted write leaves in a block at worst: neither the old bytes nor the new ones."""
    start = block * DIRECT_BLOCK_BYTES
    size = min(DIRECT_BLOCK_BYTES, len(content) - start)
    if size > 0:
        content[start : start + size] = chance.randbytes(size) if chance.random() < 0.7 else bytes(size)


def _directory_of(name: str) -> str:
    return name.rpartition("/")[0] or "/"


class MemoryFile:
    """An open file of a :class:`MemoryFileSystem`."""

    def __init__(self, filesystem: "MemoryFileSystem", path: Path, inode: Inode, *, direct: bool = False) -> None:
        self._filesystem = filesystem
        self._path = path
        self._inode = inode
        self._direct = direct
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryFile {self._path}>"

    @property
    def path(self) -> Path:
        return self._path

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(f"{self._path} is closed")

    async def size(self) -> int:
        self._check_open()
        await self._filesystem.step("size", self._path)
        return len(self._inode.volatile)

    async def read(self, offset: int, size: int) -> bytes:
        self._check_open()
        await self._filesystem.step("read", self._path)
        return bytes(self._inode.volatile[offset : offset + size])

    async def write(self, offset: int, buffers: Sequence[bytes]) -> None:
        self._check_open()
        data = b"".join(buffers)
        assert not self._direct or offset % DIRECT_BLOCK_BYTES == len(data) % DIRECT_BLOCK_BYTES == 0
        fitting = self._filesystem.fitting(self._inode, offset + len(data))
        kept = data[: max(0, fitting - offset)]
        await self._filesystem.change("write", self._path, lambda: self._inode.write(offset, kept))
        if len(kept) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    async def write_and_sync(self, offset: int, buffers: Sequence[bytes]) -> None:
        await self.write(offset, buffers)
        await self.sync()

    async def sync(self) -> None:
        self._check_open()
        await self._filesystem.sync_inode(self._path, self._inode)

    async def allocate(self, size: int) -> None:
        self._check_open()
        if self._filesystem.fitting(self._inode, size) < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        if size > len(self._inode.volatile):
            await self._filesystem.change("allocate", self._path, lambda: self._inode.resize(size))

    async def truncate(self, size: int) -> None:
        self._check_open()
        await self._filesystem.change("truncate", self._path, lambda: self._inode.resize(size))

    async def close(self) -> None:
        if not self._closed:
            self._filesystem.open_files[self._path] -= 1
            self._filesystem.open_files += Counter()  # drops what is zero
        self._closed = True


Fault = Callable[[str, Path], BaseException | None]
"""Called before every operation with its name (``read``, ``write``, ``sync``, ``allocate``, ``truncate``, ``create``,
``rename``, ``remove``, ``sync_directory``, ...) and path; the exception it returns is what the operation fails with."""


class MemoryFileSystem:
    """See the module. ``operations`` counts the changing operations begun; ``history`` names them, in order."""

    def __init__(self, *, crash_at: int | None = None, seed: int = 0) -> None:
        self.crash_at = crash_at
        self.operations = 0
        self.history: list[tuple[str, Path]] = []
        self.crashed = asyncio.Event()
        self.fault: Fault | None = None
        self.open_files: Counter[Path] = Counter()
        """How many handles are open, by the path they were opened by."""
        self.capacity_bytes: int | None = None
        """Size of the disk: what finds no room is written as far as it goes, and fails with ENOSPC. None: no limit."""
        self._chance = random.Random(seed)
        # By text, not by Path: a Path computes its hash from its parts, in Python, each time.
        self._names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        self._pending: dict[str, list[Callable[[dict[str, Inode]], None]]] = {}
        """Directory -> its unsynced changes, in order."""
        self._directories: set[str] = {"/"}
        self._locked: set[str] = set()

    # --- for tests -------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Cut the power now: no operation returns any more."""
        self.crashed.set()

    def after_crash(self, seed: int) -> "MemoryFileSystem":
        """A new file system with what survived. Legal at any time; the old object is dead afterwards."""
        self.crashed.set()
        chance = random.Random(seed)
        survivor = MemoryFileSystem(seed=seed)
        names = dict(self._durable_names)
        for changes in self._pending.values():
            for change in changes[: chance.choice([0, 0, len(changes), chance.randint(0, len(changes))])]:
                change(names)
        contents = {id(inode): inode.after_crash(chance) for inode in names.values()}
        survivor._names = {path: Inode(contents[id(inode)]) for path, inode in names.items()}
        survivor._durable_names = dict(survivor._names)
        survivor._directories = set(self._directories)
        return survivor

    @property
    def used_bytes(self) -> int:
        """Bytes of all files that have a name."""
        return sum(len(inode.volatile) for inode in self._names.values())

    def fitting(self, inode: Inode, size: int) -> int:
        """How far the file can grow towards ``size``; never less than it has."""
        if self.capacity_bytes is None:
            return size
        free = max(0, self.capacity_bytes - self.used_bytes)
        return min(size, len(inode.volatile) + free) if size > len(inode.volatile) else size

    def content(self, path: Path) -> bytes:
        """A file's bytes as reads see them."""
        return bytes(self._names[str(path)].volatile)

    def set_content(self, path: Path, content: bytes) -> None:
        """Surgery: give a file these bytes, durably, creating it if it is missing."""
        inode = self._names.setdefault(str(path), Inode())
        self._durable_names.setdefault(str(path), inode)
        inode.volatile[:] = content
        inode.durable[:] = content
        inode.dirty.clear()
        self._directories.update(map(str, path.parents))

    def damage(self, path: Path, offset: int, mask: int = 0x01) -> None:
        """Surgery: flip bits of one byte, on disk and as reads see it."""
        inode = self._names[str(path)]
        inode.volatile[offset] ^= mask
        if offset < len(inode.durable):
            inode.durable[offset] ^= mask

    def files(self, directory: Path | None = None) -> list[Path]:
        """Every file there is, sorted, or those of one directory."""
        paths = map(Path, self._names)
        return sorted(path for path in paths if directory is None or path.parent == directory)

    # --- how operations run ------------------------------------------------------------------------------------------

    async def _hang(self) -> NoReturn:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("a crashed file system answered")

    async def step(self, name: str, path: Path) -> None:
        """One operation begins: other tasks run first, as they do while a thread works."""
        await asyncio.sleep(0)
        if self.crashed.is_set():
            await self._hang()
        if self.fault is not None and (error := self.fault(name, path)) is not None:
            raise error

    async def change(self, name: str, path: Path, act: Callable[[], None]) -> None:
        """One changing operation. At a planned crash it has acted, unsynced, and does not return."""
        await self.step(name, path)
        planned = self._count(name, path)
        act()
        if planned:
            self.crash()
            await self._hang()

    def _count(self, name: str, path: Path) -> bool:
        self.operations += 1
        self.history.append((name, path))
        return self.operations == self.crash_at

    async def sync_inode(self, path: Path, inode: Inode) -> None:
        finish = inode.begin_sync()
        try:
            await self.step("sync", path)
        except OSError:
            inode.fail_sync(self._chance)
            raise
        if self._count("sync", path):
            self.crash()
            await self._hang()
        finish()

    def _rename_entry(self, name: str, change: Callable[[dict[str, Inode]], None]) -> None:
        change(self._names)
        self._pending.setdefault(_directory_of(name), []).append(change)

    def _check_directory(self, directory: str) -> None:
        if directory not in self._directories:
            raise FileNotFoundError(f"no directory {directory}")

    # --- the interface of FileSystem -------------------------------------------------------------------------------

    async def open(
        self, path: Path, *, create: bool = False, dedicated_thread: bool = False, direct: bool = False
    ) -> MemoryFile:
        name = str(path)
        self._check_directory(_directory_of(name))
        if create:
            if name in self._names:
                raise FileExistsError(f"{path} exists")
            inode = Inode()

            def add(names: dict[str, Inode]) -> None:
                names[name] = inode

            await self.change("create", path, lambda: self._rename_entry(name, add))
        else:
            await self.step("open", path)
            if name not in self._names:
                raise FileNotFoundError(f"no file {path}")
        self.open_files[path] += 1
        return MemoryFile(self, path, self._names[name], direct=direct)

    async def list_directory(self, path: Path) -> list[str]:
        await self.step("list_directory", path)
        directory = str(path)
        self._check_directory(directory)
        return sorted(
            name.rpartition("/")[2]
            for name in (*self._names, *self._directories)
            if _directory_of(name) == directory and name != directory
        )

    async def exists(self, path: Path) -> bool:
        await self.step("exists", path)
        name = str(path)
        return name in self._names or name in self._directories

    async def make_directory(self, path: Path) -> None:
        await self.step("make_directory", path)
        self._directories.update(map(str, (path, *path.parents)))

    async def rename(self, source: Path, target: Path) -> None:
        before, after = str(source), str(target)
        if before not in self._names:
            raise FileNotFoundError(f"no file {source}")

        def move(names: dict[str, Inode]) -> None:
            if before in names:
                names[after] = names.pop(before)

        await self.change("rename", target, lambda: self._rename_entry(after, move))

    async def remove(self, path: Path) -> None:
        name = str(path)
        if name not in self._names:
            raise FileNotFoundError(f"no file {path}")

        def drop(names: dict[str, Inode]) -> None:
            names.pop(name, None)

        await self.change("remove", path, lambda: self._rename_entry(name, drop))

    async def sync_directory(self, path: Path) -> None:
        directory = str(path)
        self._check_directory(directory)
        covered = len(self._pending.get(directory, []))
        await self.step("sync_directory", path)
        if self._count("sync_directory", path):
            self.crash()
            await self._hang()
        changes = self._pending.get(directory, [])
        for change in changes[:covered]:
            change(self._durable_names)
        del changes[:covered]

    async def lock(self, path: Path) -> Callable[[], None]:
        await self.step("lock", path)
        name = str(path)
        self._check_directory(_directory_of(name))
        if name in self._locked:
            raise BlockingIOError(f"{path} is locked")
        self._locked.add(name)
        return lambda: self._locked.discard(name)

    async def disk_space(self, path: Path) -> DiskSpace:
        await self.step("disk_space", path)
        if self.capacity_bytes is None:
            return DiskSpace(2**40, 2**40)
        return DiskSpace(self.capacity_bytes, max(0, self.capacity_bytes - self.used_bytes))

    async def close(self) -> None:
        return None


async def run_until_crash(filesystem: MemoryFileSystem, workload: Callable[[], Coroutine[Any, Any, None]]) -> bool:
    """Run ``workload`` until it ends or the power is cut, then end every task it left behind. True after a crash.

    An exception of the workload is raised here.
    """
    before = asyncio.all_tasks()
    task = asyncio.ensure_future(workload())
    crash = asyncio.ensure_future(filesystem.crashed.wait())
    await asyncio.wait({task, crash}, return_when=asyncio.FIRST_COMPLETED)
    crashed = filesystem.crashed.is_set()
    if crashed:
        # Until every task has met a hanging operation and been cancelled out of it.
        while remaining := asyncio.all_tasks() - before - {crash}:
            for other in remaining:
                other.cancel()
            await asyncio.wait(remaining, timeout=0.01)
        with contextlib.suppress(asyncio.CancelledError, Exception):
            task.result()
    crash.cancel()
    if not crashed:
        task.result()
    return crashed
