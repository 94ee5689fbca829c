"""The seam between a bookie and its disks: everything a bookie reads or writes goes through a :class:`FileSystem`.

What the storage code may rely on, and a simulated file system must honour:

* No write is durable before ``sync`` (or the sync of ``write_and_sync``) has returned. Until then a crash may lose,
  keep or tear it, page by page and in any order. ``sync`` covers everything written to that file before it.
* A file created, renamed or removed is durable only once ``sync_directory`` of its directory has returned.
* After a failed ``sync`` the content on disk is unknown, and repeating it proves nothing: kernels drop the dirty pages.
  The caller must stop the bookie (rule B1).
* Every failure is an ``OSError``.

Operations on one file may overlap; each is atomic only as far as stated above. Blocking calls run in threads of the
implementation, so no operation blocks the event loop.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

from octavo.bookie.disk.async_writes import AsyncWrites
from octavo.bookie.disk.descriptors import open_descriptor, reserve
from octavo.bookie.disk.direct_io import DirectWriter
from octavo.bookie.disk.real_file import DirectFile, Lane, RealFile
from octavo.security import forks


class DiskSpace(NamedTuple):
    """Space of the file system that holds a path, in bytes. ``free_bytes`` is available to unprivileged processes."""

    total_bytes: int
    free_bytes: int


class File(Protocol):
    """An open file. Offsets and sizes in bytes."""

    @property
    def path(self) -> Path: ...

    async def size(self) -> int:
        """Current size."""

    async def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset``; fewer only at the end of the file."""

    async def write(self, offset: int, buffers: Sequence[bytes]) -> None:
        """Write the buffers one after another from ``offset`` on. Not durable before a sync."""

    def write_and_sync(self, offset: int, buffers: Sequence[bytes]) -> Awaitable[None]:
        """Write as ``write`` does; these bytes, and the metadata needed to read them back, are durable when it returns.

        Other unsynced writes to the file stay unsynced. One step of the file's thread.
        """

    async def sync(self) -> None:
        """Make everything written so far durable: data and the metadata needed to read it back."""

    async def allocate(self, size: int) -> None:
        """Make the file at least ``size`` bytes long with space reserved on disk; new bytes read as zero."""

    async def truncate(self, size: int) -> None:
        """Cut or extend to ``size`` bytes."""

    async def close(self) -> None:
        """Release the handle after the operations already started. Does not sync."""


class FileSystem(Protocol):
    """The disks of a host, as one bookie uses them."""

    async def open(
        self, path: Path, *, create: bool = False, dedicated_thread: bool = False, direct: bool = False
    ) -> File:
        """Open for reading and writing. ``create`` creates the file and raises FileExistsError if it exists; without
        it a missing file raises FileNotFoundError. ``dedicated_thread`` gives the file's writes a thread of their own,
        so that no other file adds to the journal's latency. A cancelled call leaves nothing open.

        ``direct`` makes the file's writes bypass the page cache where the file system supports it: for files that are
        written forward and not read at the same time. Its writes are whole blocks: offsets and sizes are multiples of
        ``DIRECT_BLOCK_BYTES``, so that no write changes a block in part."""

    async def list_directory(self, path: Path) -> list[str]:
        """Names in a directory, sorted."""

    async def exists(self, path: Path) -> bool: ...

    async def make_directory(self, path: Path) -> None:
        """Create a directory and its parents, durably. An existing directory is left as it is."""

    async def rename(self, source: Path, target: Path) -> None:
        """Rename within one directory, replacing ``target``."""

    async def remove(self, path: Path) -> None:
        """Remove a file; a missing one is a FileNotFoundError."""

    async def sync_directory(self, path: Path) -> None:
        """Make creations, renames and removals in ``path`` durable."""

    async def lock(self, path: Path) -> Callable[[], None]:
        """Lock ``path`` (a file, created if missing) exclusively until the returned function is called or the process
        ends. Raises BlockingIOError while another process holds the lock."""

    async def disk_space(self, path: Path) -> DiskSpace: ...

    async def close(self) -> None:
        """Stop the threads after the operations already started."""


def is_disk_full(error: OSError) -> bool:
    """Whether a write failed for lack of space: on the disk, within a quota, or within the maximum size of a file."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class SyncFailedError(OSError):
    """A sync failed. Its errno is EIO whatever the disk returned, so that no caller mistakes it for a full disk, waits
    for space and tries again (rule B1)."""


async def sync_file(file: File) -> None:
    """Sync a file. Raises SyncFailedError."""
    try:
        await file.sync()
    except OSError as error:
        raise SyncFailedError(errno.EIO, f"sync failed: {error.strerror or error}", str(file.path)) from error


async def sync_names(filesystem: FileSystem, directory: Path) -> None:
    """Make creations, renames and removals in ``directory`` durable. Raises SyncFailedError."""
    try:
        await filesystem.sync_directory(directory)
    except OSError as error:
        raise SyncFailedError(errno.EIO, f"sync failed: {error.strerror or error}", str(directory)) from error


async def read_file(filesystem: FileSystem, path: Path) -> bytes:
    """A whole small file. FileNotFoundError when it is missing."""
    file = await filesystem.open(path)
    try:
        return await file.read(0, await file.size())
    finally:
        await file.close()


_gates: WeakKeyDictionary[FileSystem, dict[Path, list[asyncio.Lock]]] = WeakKeyDictionary()
"""For each path that is being changed a lock, as often as there are callers that hold it or wait for it."""


@contextlib.asynccontextmanager
async def file_gate(filesystem: FileSystem, path: Path) -> AsyncIterator[None]:
    """Held by one caller at a time, in the order in which they come: a writer that changes the file at ``path`` in
    several steps would else use another's temporary file (rule B9)."""
    gates = _gates.setdefault(filesystem, {})
    users = gates.setdefault(path, [])
    gate = users[0] if users else asyncio.Lock()
    users.append(gate)
    try:
        async with gate:
            yield
    finally:
        users.pop()
        if not users and gates.get(path) is users:
            del gates[path]


async def replace_file(filesystem: FileSystem, path: Path, content: bytes) -> None:
    """Replace a small file atomically and durably: a crash leaves the old content or the new, never a mixture. Calls
    for one path are made one after another (rule B9)."""
    async with file_gate(filesystem, path):
        await _replace(filesystem, path, content)


async def _replace(filesystem: FileSystem, path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with contextlib.suppress(FileNotFoundError):
        await filesystem.remove(temporary)
    file = await filesystem.open(temporary, create=True)
    try:
        # Two steps: a write that finds the disk full may be tried again, a failed sync may not.
        await file.write(0, [content])
        await sync_file(file)
    finally:
        await file.close()
    await filesystem.rename(temporary, path)
    await sync_names(filesystem, path.parent)


class RealFileSystem:
    """The operating system's files. All blocking calls run in threads of this object."""

    def __init__(
        self,
        *,
        reader_threads: int = 4,
        page_cache_bytes: int = 0,
        open_async_writes: Callable[[], AsyncWrites | None] = AsyncWrites.open,
    ) -> None:
        """``page_cache_bytes``: the newest bytes of each file that stay in the page cache when they have been written;
        0: as many as the kernel likes. ``open_async_writes``: makes the context in which the kernel performs direct
        writes asynchronously. Called for the first file with direct writes; where it returns None, threads perform all
        of them."""
        self._page_cache_bytes = page_cache_bytes
        self._lane = Lane("octavo-background-io")
        self._readers = ThreadPoolExecutor(reader_threads, thread_name_prefix="octavo-read-io")
        self._async_writes: AsyncWrites | None = None
        self._open_async_writes = open_async_writes
        self._async_writes_tried = False

    async def open(
        self, path: Path, *, create: bool = False, dedicated_thread: bool = False, direct: bool = False
    ) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        opening = self._lane.submit(_open, path, flags, direct)
        try:
            descriptor, writer = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)
            raise
        lane = Lane(f"octavo-io-{path.name}") if dedicated_thread else self._lane
        if writer is None:
            return RealFile(
                *(path, descriptor, lane, self._readers), owns_lane=dedicated_thread, kept_bytes=self._page_cache_bytes
            )
        if not self._async_writes_tried:
            self._async_writes_tried = True
            self._async_writes = self._open_async_writes()
        return DirectFile(
            *(path, descriptor, lane, self._readers),
            writer=writer,
            async_writes=self._async_writes,
            owns_lane=dedicated_thread,
        )

    async def list_directory(self, path: Path) -> list[str]:
        return sorted(await self._lane.submit(_list_directory, path))

    async def exists(self, path: Path) -> bool:
        return bool(await self._lane.submit(os.path.exists, path))

    async def make_directory(self, path: Path) -> None:
        await self._lane.submit(_make_directory, path)

    async def rename(self, source: Path, target: Path) -> None:
        await self._lane.submit(os.rename, source, target)

    async def remove(self, path: Path) -> None:
        await self._lane.submit(os.unlink, path)

    async def sync_directory(self, path: Path) -> None:
        await self._lane.submit(_sync_directory, path)

    async def lock(self, path: Path) -> Callable[[], None]:
        return _Lock(await self._lane.submit(_lock, path))

    async def disk_space(self, path: Path) -> DiskSpace:
        status = await self._lane.submit(os.statvfs, path)
        return DiskSpace(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)

    async def close(self) -> None:
        if self._async_writes is not None:
            self._async_writes.close()
            self._async_writes = None
        self._lane.stop()
        await asyncio.to_thread(self._join)

    def _join(self) -> None:
        self._lane.join()
        self._readers.shutdown(wait=True)


def _open(path: Path, flags: int, direct: bool) -> tuple[int, DirectWriter | None]:
    descriptor = open_descriptor(path, flags, 0o640)
    try:
        return descriptor, DirectWriter.open(path) if direct else None
    except BaseException:
        os.close(descriptor)
        raise


def _list_directory(path: Path) -> list[str]:
    return reserve().opened(lambda: os.listdir(path))


def _close_unwanted(opening: asyncio.Future[tuple[int, DirectWriter | None]]) -> None:
    """The caller was cancelled while the file was being opened: close its descriptors."""
    if opening.cancelled() or opening.exception() is not None:
        return
    descriptor, writer = opening.result()
    os.close(descriptor)
    if writer is not None:
        writer.close()


def _make_directory(path: Path) -> None:
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        _sync_directory(directory.parent)


def _sync_directory(path: Path) -> None:
    descriptor = open_descriptor(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Lock:
    """A directory's lock; called to give it back. A forked child gives up its share of it, so that the lock ends with
    the bookie (rule H1)."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        forks.hold(self)

    def __call__(self) -> None:
        forks.let_go(self)
        with contextlib.suppress(OSError):  # where a file system cannot: the close ends it
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # also of a child that has not come to its own share yet
        os.close(self._descriptor)

    def on_forked(self) -> None:
        forks.lead_nowhere(self._descriptor)


def _lock(path: Path) -> int:
    descriptor = open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
