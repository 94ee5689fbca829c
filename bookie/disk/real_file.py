"""Files of the operating system. Blocking calls run in threads, or the kernel performs them asynchronously."""

import asyncio
import contextlib
import errno
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

from octavo.bookie.disk.async_writes import AsyncWrites
from octavo.bookie.disk.completion import Completion
from octavo.bookie.disk.direct_io import DirectWriter
from octavo.bookie.disk.writeback import drop_behind, start_writeback
from octavo.security import forks

_WRITEV_BUFFERS_MAX = 1024
"""IOV_MAX on Linux: one vectored write takes no more buffers."""

_WRITEBACK_BYTES_MIN = 64 * 1024
"""Size of a write that the kernel starts to put on the disk at once; smaller ones stay in the page cache for a
while."""


class Lane:
    """One thread that runs operations in order and returns their results to the event loop.

    Lighter than a ThreadPoolExecutor (no second future, no lock pair per call), because every lone add passes here.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        forks.hold(self)

    def on_forked(self) -> None:
        """In a forked child (rule H1) there is no thread that would do the work."""
        self._jobs = cast("queue.SimpleQueue[Any]", _NoThread())

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
            # RuntimeError: the loop is closed, so nothing waits for the result.
            with contextlib.suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            del job, future, function, arguments, result, error


class _NoThread:
    """The queue of a lane in a forked child."""

    def put(self, _job: object) -> None:
        raise forks.forked_error()


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # its caller cancelled it; the operation itself has run
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


def _write_through_cache(descriptor: int, kept_bytes: int, offset: int, buffers: Sequence[bytes]) -> None:
    _write_all(descriptor, offset, buffers)
    size = sum(map(len, buffers))
    if size >= _WRITEBACK_BYTES_MIN:
        start_writeback(descriptor, offset, size)
        if kept_bytes:
            drop_behind(descriptor, offset, size, kept_bytes)


def _write_and_sync(descriptor: int, offset: int, buffers: Sequence[bytes]) -> None:
    """Usually one system call, hence one switch of the interpreter lock between this thread and the loop's."""
    if len(buffers) <= _WRITEV_BUFFERS_MAX and os.pwritev(descriptor, buffers, offset, os.RWF_DSYNC) == sum(
        map(len, buffers)
    ):
        return
    _write_all(descriptor, offset, buffers)
    os.fdatasync(descriptor)


def _write_rest(descriptor: int, offset: int, rest: bytes) -> None:
    """Finish a short write: a signal interrupted it, or the disk is full and the next attempt raises ENOSPC."""
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
    """A file of the operating system. Writes and syncs run in order in one lane; reads run in a thread pool. The page
    cache keeps the newest ``kept_bytes`` of what is appended to it; 0: as much as the kernel likes."""

    def __init__(
        self,
        path: Path,
        descriptor: int,
        lane: Lane,
        readers: ThreadPoolExecutor,
        *,
        owns_lane: bool,
        kept_bytes: int = 0,
    ) -> None:
        self._path = path
        self._kept_bytes = kept_bytes
        self._descriptor = descriptor
        self._lane = lane
        self._readers = readers
        self._owns_lane = owns_lane
        self._reads_running = 0
        self._closing = False
        forks.hold(self)

    def on_forked(self) -> None:
        """In a forked child (rule H1): the file is the parent's."""
        self._closing = True
        forks.lead_nowhere(self._descriptor)

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
            raise OSError(f"{self._path}: the file system is closed") from error
        self._reads_running += 1
        running.add_done_callback(self._read_finished)
        # The descriptor must stay open until the thread has finished, even if the caller is cancelled.
        return await asyncio.shield(running)

    def _read_finished(self, running: asyncio.Future[bytes]) -> None:
        self._reads_running -= 1
        if not running.cancelled():
            running.exception()  # retrieved, because the caller may have been cancelled
        if self._closing and not self._reads_running:
            self._close_descriptor()

    async def write(self, offset: int, buffers: Sequence[bytes]) -> None:
        await self._lane.submit(_write_through_cache, self._descriptor, self._kept_bytes, offset, buffers)

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
        forks.let_go(self)
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)  # Linux releases the descriptor even if it returns an error


_WOULD_BLOCK = frozenset({errno.EAGAIN, errno.EOPNOTSUPP})


class DirectFile(RealFile):
    """A file whose writes bypass the page cache. The kernel performs them asynchronously where it can, otherwise the
    lane does.

    Writes run one after another, because they share a buffer.
    """

    def __init__(
        self, *arguments: Any, writer: DirectWriter, async_writes: AsyncWrites | None, owns_lane: bool
    ) -> None:
        super().__init__(*arguments, owns_lane=owns_lane)
        self._writer = writer
        self._async_writes = async_writes
        self._under_way = False
        """Whether the buffer is in use. The write's caller may have been cancelled in the meantime."""
        self._idle: list[asyncio.Future[None]] = []

    def on_forked(self) -> None:
        """As of any file, and of its second descriptor."""
        super().on_forked()
        forks.lead_nowhere(self._writer.descriptor)
        self._async_writes = None

    async def write(self, offset: int, buffers: Sequence[bytes]) -> None:
        await self._by_lane(self._writer.write, offset, buffers)

    def write_and_sync(self, offset: int, buffers: Sequence[bytes]) -> Awaitable[None]:
        if self._async_writes is None or self._under_way:
            return self._by_lane(self._writer.write_and_sync, offset, buffers)
        size = self._writer.gather(offset, buffers)
        if size is None:
            return self._by_lane(self._writer.write_and_sync, offset, buffers)
        future = Completion()
        self._under_way = True
        written = partial(self._written, future, offset, size)
        if not self._async_writes.write_and_sync(self._writer.descriptor, self._writer.address, size, offset, written):
            written(-errno.EAGAIN)
        return future

    def _written(self, future: Completion, offset: int, size: int, result: int) -> None:
        if -result in _WOULD_BLOCK:
            # The lane performs the blocking write. No caller can cancel its future.
            job = self._lane.submit(self._writer.write_gathered, offset, size)
            job.add_done_callback(partial(self._finish, future))
            return
        error = None
        if result != size:
            code = -result if result < 0 else errno.EIO
            why = os.strerror(code) if result < 0 else f"{result} of {size} bytes written"
            error = OSError(code, why, str(self._path))
        self._release()
        future.complete(error)

    def _finish(self, future: Completion, job: asyncio.Future[Any]) -> None:
        self._release()
        future.complete(job.exception())

    async def _by_lane(self, function: Callable[..., None], *arguments: Any) -> None:
        while self._under_way:
            idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(idle)
            await idle
        future = Completion()
        self._under_way = True
        self._lane.submit(function, *arguments).add_done_callback(partial(self._finish, future))
        await future

    def _release(self) -> None:
        self._under_way = False
        waiting, self._idle = self._idle, []
        for idle in waiting:
            _settle(idle, None, None)

    async def close(self) -> None:
        if self._closing:  # its lane may have stopped: nothing would answer
            return
        with contextlib.suppress(OSError):
            await self._by_lane(lambda: None)
        await super().close()

    def _close_descriptor(self) -> None:
        forks.let_go(self)
        try:
            if self._descriptor >= 0:
                self._writer.close()
        finally:
            super()._close_descriptor()
