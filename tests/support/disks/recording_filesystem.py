"""A :class:`FileSystem` that passes everything on and writes down what it was asked, for building crash states.

The record is a list of :data:`Event`: when a change of bytes or names began and ended, when a sync began and ended,
and what the test *noted* in between (what was sent, acknowledged, fenced, deleted). A crash may come between any two
events. What a sync covers follows the promise of ``octavo.bookie.disk.filesystem`` to the letter: what had *returned*
when it was called.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from octavo.bookie.disk.direct_io import DIRECT_BLOCK_BYTES
from octavo.bookie.disk.filesystem import DiskSpace, File, FileSystem


class BytesChange(NamedTuple):
    """Bytes written at an offset, or (``data`` None) the file brought to the size ``offset``."""

    serial: int
    inode: int
    offset: int
    data: bytes | None


class NameChange(NamedTuple):
    """An entry of a directory made, moved or removed (``target`` None); ``source`` is None for a new one."""

    serial: int
    directory: Path
    inode: int
    source: Path | None
    target: Path | None


class Ended(NamedTuple):
    """The change with this serial number has returned."""

    serial: int


class SyncBegun(NamedTuple):
    """A sync of a file (its inode) or of a directory."""

    serial: int
    what: int | Path


class SyncEnded(NamedTuple):
    """The sync with this serial number has returned."""

    serial: int


class Noted(NamedTuple):
    """Something the test wants to be held to, or to be known by, from here on."""

    what: object


Event = BytesChange | NameChange | Ended | SyncBegun | SyncEnded | Noted


class Recording:
    """The events of one run, and what was on disk before it."""

    def __init__(self, initial: Mapping[Path, bytes]) -> None:
        self.initial = dict(initial)
        self.inodes: dict[Path, int] = {path: number for number, path in enumerate(sorted(initial))}
        self.initial_inodes = dict(self.inodes)
        self.events: list[Event] = []
        self._serial = 0
        self._next_inode = len(self.inodes)

    def note(self, what: object) -> None:
        self.events.append(Noted(what))

    def serial(self) -> int:
        self._serial += 1
        return self._serial

    def new_inode(self) -> int:
        self._next_inode += 1
        return self._next_inode


class RecordingFile:
    """An open file whose changes are recorded."""

    def __init__(self, inner: File, inode: int, recording: Recording, *, direct: bool = False) -> None:
        self._inner = inner
        self._inode = inode
        self._recording = recording
        self._direct = direct

    @property
    def path(self) -> Path:
        return self._inner.path

    async def size(self) -> int:
        return await self._inner.size()

    async def read(self, offset: int, size: int) -> bytes:
        return await self._inner.read(offset, size)

    async def _change(self, offset: int, data: bytes | None, act: Awaitable[None]) -> None:
        recording = self._recording
        serial = recording.serial()
        recording.events.append(BytesChange(serial, self._inode, offset, data))
        await act
        recording.events.append(Ended(serial))

    async def write(self, offset: int, buffers: Sequence[bytes]) -> None:
        data = b"".join(buffers)
        assert not self._direct or offset % DIRECT_BLOCK_BYTES == len(data) % DIRECT_BLOCK_BYTES == 0
        await self._change(offset, data, self._inner.write(offset, [data]))

    async def write_and_sync(self, offset: int, buffers: Sequence[bytes]) -> None:
        await self.write(offset, buffers)
        await self.sync()

    async def sync(self) -> None:
        serial = self._recording.serial()
        self._recording.events.append(SyncBegun(serial, self._inode))
        await self._inner.sync()
        self._recording.events.append(SyncEnded(serial))

    async def allocate(self, size: int) -> None:
        await self._change(max(size, await self._inner.size()), None, self._inner.allocate(size))

    async def truncate(self, size: int) -> None:
        await self._change(size, None, self._inner.truncate(size))

    async def close(self) -> None:
        await self._inner.close()


class RecordingFileSystem:
    """See the module. Directories are durable when made, as the interface promises."""

    def __init__(self, inner: FileSystem, recording: Recording) -> None:
        self._inner = inner
        self._recording = recording

    async def open(
        self, path: Path, *, create: bool = False, dedicated_thread: bool = False, direct: bool = False
    ) -> RecordingFile:
        recording = self._recording
        if not create:
            inner = await self._inner.open(path, dedicated_thread=dedicated_thread, direct=direct)
            return RecordingFile(inner, recording.inodes[path], recording, direct=direct)
        inner = await self._inner.open(path, create=True, dedicated_thread=dedicated_thread, direct=direct)
        inode = recording.new_inode()
        self._rename(NameChange(recording.serial(), path.parent, inode, None, path))
        return RecordingFile(inner, inode, recording, direct=direct)

    def _rename(self, change: NameChange) -> None:
        """Names change at one instant: begun and ended together, after the fact."""
        recording = self._recording
        if change.source is not None:
            recording.inodes.pop(change.source, None)
        if change.target is not None:
            recording.inodes[change.target] = change.inode
        recording.events += (change, Ended(change.serial))

    async def list_directory(self, path: Path) -> list[str]:
        return await self._inner.list_directory(path)

    async def exists(self, path: Path) -> bool:
        return await self._inner.exists(path)

    async def make_directory(self, path: Path) -> None:
        await self._inner.make_directory(path)

    async def rename(self, source: Path, target: Path) -> None:
        inode = self._recording.inodes[source]
        await self._inner.rename(source, target)
        self._rename(NameChange(self._recording.serial(), target.parent, inode, source, target))

    async def remove(self, path: Path) -> None:
        inode = self._recording.inodes.get(path, -1)
        await self._inner.remove(path)
        self._rename(NameChange(self._recording.serial(), path.parent, inode, path, None))

    async def sync_directory(self, path: Path) -> None:
        serial = self._recording.serial()
        self._recording.events.append(SyncBegun(serial, path))
        await self._inner.sync_directory(path)
        self._recording.events.append(SyncEnded(serial))

    async def lock(self, path: Path) -> Callable[[], None]:
        return await self._inner.lock(path)

    async def disk_space(self, path: Path) -> DiskSpace:
        return await self._inner.disk_space(path)

    async def close(self) -> None:
        await self._inner.close()
