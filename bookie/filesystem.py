"""The seam between a bookie and its disks: everything a bookie reads or writes goes through a :class:`FileSystem`.

What the storage code may rely on, and a simulated file system must honour:

* Nothing written is durable before ``sync`` (or the sync of ``write_and_sync``) has returned; until then a crash may
  lose, keep or tear it, page by page and in any order. ``sync`` covers everything written to that file before it.
* A file created, renamed or removed is durable only once ``sync_directory`` of its directory has returned.
* A failed ``sync`` says nothing about what is on disk, and repeating it proves nothing: kernels drop the dirty pages.
  The caller must stop the bookie (PROTOCOL B1).
* Every failure is an ``OSError``.

Operations on one file may overlap; each is atomic only as far as the above says. Blocking happens in threads that
belong to the seam, so no operation here ever holds up the event loop.
"""

import asyncio
import contextlib
import fcntl
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

_WRITEV_BUFFERS_MAX = 1024
"""IOV_MAX on Linux: one vectored write takes no more buffers."""


class DiskSpace(NamedTuple):
    """Space of the file system that holds a path, in bytes. ``free`` is what an ordinary process may still use."""

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
        """Write as ``write`` does; these bytes, and what is needed to read them back, are durable when it returns.

        Says nothing about what ``write`` left unsynced elsewhere in the file. One step of the file's thread.
        """

    async def sync(self) -> None:
        """Make everything written so far durable (data and what is needed to read it back)."""

    async def allocate(self, size: int) -> None:
        """Make the file at least ``size`` bytes long with space reserved on disk; new bytes read as zero."""

    async def truncate(self, size: int) -> None:
        """Cut or extend to ``size`` bytes."""

    async def close(self) -> None:
        """Release the handle, after the operations already begun. Does not sync."""


class FileSystem(Protocol):
    """A host's disks as one bookie sees them."""

    async def open(self, path: Path, *, create: bool = False, dedicated_thread: bool = False) -> File:
        """Open for reading and writing. ``create`` makes the file and fails with FileExistsError when it is there;
        without it a missing file is a FileNotFoundError. ``dedicated_thread`` gives the file's writes a thread of their
        own, for the journal, whose latency nothing else may add to."""

    async def list_directory(self, path: Path) -> list[str]:
        """Names in a directory, sorted."""

    async def exists(self, path: Path) -> bool: ...

    async def make_directory(self, path: Path) -> None:
        """Create a directory and its parents, durably; it may exist already."""

    async def rename(self, source: Path, target: Path) -> None:
        """Rename within one directory, replacing ``target``."""

    async def remove(self, path: Path) -> None:
        """Remove a file; a missing one is a FileNotFoundError."""

    async def sync_directory(self, path: Path) -> None:
        """Make creations, renames and removals in ``path`` durable."""

    async def lock(self, path: Path) -> Callable[[], None]:
        """Hold ``path`` (a file, created if missing) exclusively until the returned function is called or the process
        ends. BlockingIOError when another process holds it."""

    async def disk_space(self, path: Path) -> DiskSpace: ...

    async def close(self) -> None:
        """Stop the seam's threads, after the operations already begun."""


async def read_file(filesystem: FileSystem, path: Path) -> bytes:
    """A whole small file. FileNotFoundError when it is missing."""
    file = await filesystem.open(path)
    try:
        return await file.read(0, await file.size())
    finally:
        await file.close()


async def replace_file(filesystem: FileSystem, path: Path, content: bytes) -> None:
    """Replace a small file atomically and durably: a crash leaves the old content or the new, never a mixture."""
    temporary = path.with_name(path.name + ".tmp")
    with contextlib.suppress(FileNotFoundError):
        await filesystem.remove(temporary)
    file = await filesystem.open(temporary, create=True)
    try:
        await file.write_and_sync(0, [content])
    finally:
        await file.close()
    await filesystem.rename(temporary, path)
    await filesystem.sync_directory(path.parent)


class _Lane:
    """One thread that runs operations in order and hands results back to the loop.

    Lighter than a ThreadPoolExecutor (no second future, no lock pair per call): this is on the path of every lone add.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        self._jobs.put((future, function, arguments))
        return future

    def stop(self) -> None:
        self._jobs.put(None)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function, arguments = job
            try:
                result, error = function(*arguments), None
            except BaseException as raised:
                result, error = None, raised
            # A closed loop has nobody waiting any more.
            with contextlib.suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            del job, future, function, arguments, result, error


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # cancelled by its waiter; the operation itself has run
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _write_all(descriptor: int, offset: int, buffers: Sequence[bytes]) -> None:
    for start in range(0, len(buffers), _WRITEV_BUFFERS_MAX):
        part = buffers[start : start + _WRITEV_BUFFERS_MAX]
        expected = sum(map(len, part))
        written = os.pwritev(descriptor, part, offset)
        if written != expected:
            _write_rest(descriptor, offset + written, b"".join(part)[written:])
        offset += expected


def _write_and_sync(descriptor: int, offset: int, buffers: Sequence[bytes]) -> None:
    """Usually one system call, hence one hand-over of the interpreter between this thread and the loop's."""
    if len(buffers) <= _WRITEV_BUFFERS_MAX and os.pwritev(descriptor, buffers, offset, os.RWF_DSYNC) == sum(
        map(len, buffers)
    ):
        return
    _write_all(descriptor, offset, buffers)
    os.fdatasync(descriptor)


def _write_rest(descriptor: int, offset: int, rest: bytes) -> None:
    """Finish a short write (a signal, or the disk filling up: then the next attempt raises ENOSPC)."""
    view = memoryview(rest)
    while view:
        written = os.pwrite(descriptor, view, offset)
        offset += written
        view = view[written:]


def _read_all(descriptor: int, offset: int, size: int) -> bytes:
    data = os.pread(descriptor, size, offset)
    if len(data) == size or not data:
        return data
    parts = [data]
    got = len(data)
    while got < size and (data := os.pread(descriptor, size - got, offset + got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts)


class RealFile:
    """A file of the operating system. Writes and syncs run in order in one lane; reads run in a pool beside them."""

    def __init__(
        self, path: Path, descriptor: int, lane: _Lane, readers: ThreadPoolExecutor, *, owns_lane: bool
    ) -> None:
        self._path = path
        self._descriptor = descriptor
        self._lane = lane
        self._readers = readers
        self._owns_lane = owns_lane
        self._reads_running = 0
        self._closing = False

    def __repr__(self) -> str:
        return f"<RealFile {self._path}>"

    @property
    def path(self) -> Path:
        return self._path

    async def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    async def read(self, offset: int, size: int) -> bytes:
        if self._closing:
            raise OSError(f"{self._path} is closed")
        loop = asyncio.get_running_loop()
        try:
            running = loop.run_in_executor(self._readers, _read_all, self._descriptor, offset, size)
        except RuntimeError as error:
            raise OSError(f"{self._path}: the file system seam is closed") from error
        self._reads_running += 1
        running.add_done_callback(self._read_finished)
        # The descriptor must stay open until the thread is done, though its waiter may be cancelled.
        return await asyncio.shield(running)

    def _read_finished(self, running: asyncio.Future[bytes]) -> None:
        self._reads_running -= 1
        if not running.cancelled():
            running.exception()  # retrieved here too: its waiter may have been cancelled
        if self._closing and not self._reads_running:
            self._close_descriptor()

    async def write(self, offset: int, buffers: Sequence[bytes]) -> None:
        await self._lane.submit(_write_all, self._descriptor, offset, buffers)

    def write_and_sync(self, offset: int, buffers: Sequence[bytes]) -> Awaitable[None]:
        return self._lane.submit(_write_and_sync, self._descriptor, offset, buffers)

    async def sync(self) -> None:
        await self._lane.submit(os.fdatasync, self._descriptor)

    async def allocate(self, size: int) -> None:
        await self._lane.submit(self._allocate, size)

    def _allocate(self, size: int) -> None:
        os.posix_fallocate(self._descriptor, 0, size)

    async def truncate(self, size: int) -> None:
        await self._lane.submit(os.ftruncate, self._descriptor, size)

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._owns_lane:
            self._lane.stop()
            await asyncio.get_running_loop().run_in_executor(self._readers, self._lane.join)
        else:
            await self._lane.submit(lambda: None)
        if not self._reads_running:
            self._close_descriptor()

    def _close_descriptor(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class RealFileSystem:
    """The operating system's files, with all blocking calls in threads of this object."""

    def __init__(self, *, reader_threads: int = 4) -> None:
        self._lane = _Lane("octavo-background-io")
        self._readers = ThreadPoolExecutor(reader_threads, thread_name_prefix="octavo-read-io")

    async def open(self, path: Path, *, create: bool = False, dedicated_thread: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        descriptor = await self._lane.submit(os.open, path, flags, 0o640)
        lane = _Lane(f"octavo-io-{path.name}") if dedicated_thread else self._lane
        return RealFile(path, descriptor, lane, self._readers, owns_lane=dedicated_thread)

    async def list_directory(self, path: Path) -> list[str]:
        return sorted(await self._lane.submit(os.listdir, path))

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
        descriptor = await self._lane.submit(_lock, path)
        return lambda: os.close(descriptor)

    async def disk_space(self, path: Path) -> DiskSpace:
        status = await self._lane.submit(os.statvfs, path)
        return DiskSpace(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)

    async def close(self) -> None:
        self._lane.stop()
        await asyncio.to_thread(self._join)

    def _join(self) -> None:
        self._lane.join()
        self._readers.shutdown(wait=True)


def _make_directory(path: Path) -> None:
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        _sync_directory(directory.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
