"""The disk of one bookie, in memory: a :class:`octavo.bookie.disk.filesystem.FileSystem`.

It outlives the bookie, so that one which was killed finds its files when it starts again. A sync has nothing to do: as
after ``kill -9`` on a real host, what was written is still there.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from octavo.bookie.disk.filesystem import DiskSpace

_CAPACITY_BYTES: Final = 1 << 40
"""What the bookie is told of the disk: it is never short of space."""


class MemoryDisk:
    """Names and files. Used by one event loop at a time."""

    def __init__(self) -> None:
        self._files: dict[str, _Content] = {}
        self._directories: set[str] = {"/"}
        self._locked: set[str] = set()
        self._frozen = False

    def freeze(self) -> None:
        """The bookie is killed: no operation ends any more, and none changes anything."""
        self._frozen = True

    def thaw(self) -> None:
        """Another bookie is about to start. Its predecessor's locks have ended with it."""
        self._frozen = False
        self._locked.clear()

    async def step(self) -> None:
        """An operation begins: other tasks run first, as they do while a thread works."""
        await asyncio.sleep(0)
        while self._frozen:
            await asyncio.get_running_loop().create_future()

    # --- FileSystem -------------------------------------------------------------------------------------------------

    async def open(
        self, path: Path, *, create: bool = False, dedicated_thread: bool = False, direct: bool = False
    ) -> "MemoryFile":
        await self.step()
        name = str(path)
        self._check_directory(name)
        if not create:
            return MemoryFile(self, path, self._content(name))
        if name in self._files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        self._files[name] = content = _Content()
        return MemoryFile(self, path, content)

    async def list_directory(self, path: Path) -> list[str]:
        await self.step()
        folder = str(path)
        if folder not in self._directories:
            raise _missing(folder)
        names = (*self._files, *self._directories)
        return sorted(name.rpartition("/")[2] for name in names if name != folder and _folder_of(name) == folder)

    async def exists(self, path: Path) -> bool:
        await self.step()
        return str(path) in self._files or str(path) in self._directories

    async def make_directory(self, path: Path) -> None:
        await self.step()
        self._directories.update(map(str, (path, *path.parents)))

    async def rename(self, source: Path, target: Path) -> None:
        await self.step()
        self._content(str(source))
        self._files[str(target)] = self._files.pop(str(source))

    async def remove(self, path: Path) -> None:
        await self.step()
        self._content(str(path))
        del self._files[str(path)]

    async def sync_directory(self, path: Path) -> None:
        await self.step()
        if str(path) not in self._directories:
            raise _missing(str(path))

    async def lock(self, path: Path) -> Callable[[], None]:
        await self.step()
        name = str(path)
        self._check_directory(name)
        if name in self._locked:
            raise BlockingIOError(errno.EAGAIN, "locked", name)
        self._locked.add(name)
        return lambda: self._locked.discard(name)

    async def disk_space(self, path: Path) -> DiskSpace:
        await self.step()
        return DiskSpace(_CAPACITY_BYTES, _CAPACITY_BYTES - sum(len(one.written) for one in self._files.values()))

    async def close(self) -> None:
        return None

    def _check_directory(self, name: str) -> None:
        if _folder_of(name) not in self._directories:
            raise _missing(name)

    def _content(self, name: str) -> "_Content":
        found = self._files.get(name)
        if found is None:
            raise _missing(name)
        return found


class _Content:
    """The bytes of a file, whatever its name. Space that was allocated and never written takes no memory."""

    __slots__ = ("size", "written")

    def __init__(self) -> None:
        self.written = bytearray()
        self.size = 0
        """Of the file; what lies behind ``written`` reads as zero."""

    def read(self, offset: int, size: int) -> bytes:
        size = max(0, min(size, self.size - offset))
        return bytes(self.written[offset : offset + size]).ljust(size, b"\0")

    def write(self, offset: int, data: bytes) -> None:
        if not data:  # as real files do, also far behind the end
            return
        if offset > len(self.written):
            self.written.extend(bytes(offset - len(self.written)))
        self.written[offset : offset + len(data)] = data
        self.size = max(self.size, len(self.written))

    def resize(self, size: int) -> None:
        del self.written[size:]
        self.size = size


class MemoryFile:
    """An open file of a :class:`MemoryDisk`: a :class:`octavo.bookie.disk.filesystem.File`."""

    def __init__(self, disk: MemoryDisk, path: Path, content: _Content) -> None:
        self._disk = disk
        self._path = path
        self._content = content

    @property
    def path(self) -> Path:
        return self._path

    async def size(self) -> int:
        await self._disk.step()
        return self._content.size

    async def read(self, offset: int, size: int) -> bytes:
        await self._disk.step()
        return self._content.read(offset, size)

    async def write(self, offset: int, buffers: Sequence[bytes]) -> None:
        data = b"".join(buffers)
        await self._disk.step()
        self._content.write(offset, data)

    async def write_and_sync(self, offset: int, buffers: Sequence[bytes]) -> None:
        await self.write(offset, buffers)

    async def sync(self) -> None:
        await self._disk.step()

    async def allocate(self, size: int) -> None:
        await self._disk.step()
        self._content.size = max(self._content.size, size)

    async def truncate(self, size: int) -> None:
        await self._disk.step()
        self._content.resize(size)

    async def close(self) -> None:
        return None


def _folder_of(name: str) -> str:
    return name.rpartition("/")[0] or "/"


def _missing(name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
