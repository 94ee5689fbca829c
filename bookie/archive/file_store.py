"""Objects in a folder, of one host or of a file system that the bookies share: ``file:///srv/archive``.

An object is written under another name, synced, renamed, and its folder synced: under its own name it is always whole.
The folder of the URL must exist: one in which nothing is mounted would otherwise be filled.
"""

import asyncio
import contextlib
import errno
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from octavo.bookie.archive.errors import ArchiveError, ObjectMissingError, StoreAwayError, StoreRefusedError
from octavo.bookie.archive.store import ObjectFacts
from octavo.bookie.disk.descriptors import open_descriptor

UNFINISHED = ".unfinished-"
"""Begins the names of files that are being written. Those that a killed process left may be removed."""

_REFUSALS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}


class FileStore:
    """A driver of ``file://``. Each operation runs in a thread, and cancelling one waits for the step under way."""

    def __init__(self, root: Path, prefix: str, *, threads: int = 4) -> None:
        self._root = root
        self._folder = root / prefix
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="octavo-file-store")

    @property
    def url(self) -> str:
        return self._folder.as_uri()

    async def put(self, key: str, parts: AsyncIterator[bytes]) -> None:
        target = self._folder / key
        temporary = target.parent / f"{UNFINISHED}{secrets.token_hex(8)}"

        def undo(descriptor: int) -> None:
            os.close(descriptor)
            temporary.unlink(missing_ok=True)

        descriptor = await self._run(key, lambda: _create(self._root, temporary), undo=undo)
        try:
            try:
                async for part in parts:
                    await self._run(key, lambda part=part: _write(descriptor, part))  # type: ignore[misc]
                await self._run(key, lambda: os.fsync(descriptor))
            finally:
                os.close(descriptor)
            await self._run(key, lambda: _rename(temporary, target))
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise

    async def get(self, key: str, start: int, stop: int) -> bytes:
        return await self._run(key, lambda: _read(self._folder / key, start, stop))

    async def head(self, key: str) -> ObjectFacts:
        return await self._run(key, lambda: _facts(self._folder, self._folder / key))

    async def delete(self, key: str) -> None:
        await self._run(key, lambda: _remove(self._folder / key))

    async def list(self, prefix: str) -> AsyncIterator[ObjectFacts]:
        for facts in await self._run(prefix, lambda: [*_walk(self._folder, self._folder / prefix)]):
            yield facts

    async def close(self) -> None:
        self._threads.shutdown(wait=False)

    async def _run[T](self, key: str, step: Callable[[], T], *, undo: Callable[[T], None] | None = None) -> T:
        """Run a step in a thread. ``undo``: for its result where the caller was cancelled and does not get it."""
        running = asyncio.get_running_loop().run_in_executor(self._threads, step)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # The thread uses a descriptor that the caller closes next.
            while not running.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({running})
            if running.exception() is None and undo is not None:
                undo(running.result())
            raise
        except OSError as error:
            raise self._translated(key, error) from error

    def _translated(self, key: str, error: OSError) -> ArchiveError:
        about = f"{self.url}/{key}: {error.strerror}"
        if isinstance(error, FileNotFoundError):
            return ObjectMissingError(about)
        if error.errno in _REFUSALS:
            return StoreRefusedError(about)
        return StoreAwayError(about)


def _create(root: Path, path: Path) -> int:
    missing = []
    folder = path.parent
    while not folder.is_dir():
        if folder == root:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(root))
        missing.append(folder)
        folder = folder.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)
    return open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _rename(source: Path, target: Path) -> None:
    source.rename(target)
    _sync_folder(target.parent)


def _sync_folder(path: Path) -> None:
    descriptor = open_descriptor(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path, start: int, stop: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        pieces = []
        while start < stop and (piece := os.pread(file.fileno(), stop - start, start)):
            pieces.append(piece)
            start += len(piece)
        return b"".join(pieces)


def _facts(folder: Path, path: Path) -> ObjectFacts:
    status = path.stat()
    return ObjectFacts(path.relative_to(folder).as_posix(), status.st_size, status.st_mtime_ns // 1_000_000)


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except FileNotFoundError:
        return
    _sync_folder(path.parent)


def _walk(folder: Path, below: Path) -> Iterator[ObjectFacts]:
    for parent, _, names in os.walk(below, onerror=_raise_unless_missing):
        for name in names:
            if not name.startswith(UNFINISHED):
                # An object that was deleted since is left out.
                with contextlib.suppress(FileNotFoundError):
                    yield _facts(folder, Path(parent, name))


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
