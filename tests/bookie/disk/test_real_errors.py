"""Errors of the operating system reach the caller of a real file: none is taken for success, and nothing stays open."""

import asyncio
import errno
import os
import resource
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from octavo.bookie.disk.direct_io import BUFFER_BYTES, DIRECT_BLOCK_BYTES, DirectWriter
from octavo.bookie.disk.filesystem import RealFileSystem, SyncFailedError, replace_file
from octavo.bookie.disk.real_file import DirectFile, Lane

BLOCK = DIRECT_BLOCK_BYTES
MODES = ["page cache", "thread", "kernel that would block"]


class BlockingKernel:
    """Stands for the kernel's asynchronous writes where it would have to wait for each: the lane performs them."""

    def write_and_sync(
        self, _descriptor: int, _address: int, _size: int, _offset: int, on_written: Callable[[int], None]
    ) -> bool:
        on_written(-errno.EAGAIN)
        return True


class Disk:
    """Real files in a folder, and an operating system whose calls fail as a test wants."""

    def __init__(self, filesystem: RealFileSystem, folder: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.filesystem = filesystem
        self.path = folder / "file"
        self._mode = mode
        self._monkeypatch = monkeypatch

    async def file(self, size: int = 16 * BLOCK) -> DirectFile:
        file = await self.filesystem.open(
            self.path, create=True, dedicated_thread=True, direct=self._mode != "page cache"
        )
        await file.allocate(size)
        writer = DirectWriter.open(self.path)
        if self._mode == "kernel that would block" and writer is not None:
            await file.close()
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            kernel: object = BlockingKernel()
            return DirectFile(
                *(self.path, descriptor, Lane("test"), ThreadPoolExecutor(1)),
                writer=writer,
                async_writes=kernel,  # type: ignore[arg-type]
                owns_lane=True,
            )
        if writer is not None:
            writer.close()
        return file  # type: ignore[return-value]

    def fail(self, name: str, error: int, *, times: int = 1) -> list[int]:
        """Make calls of the operating system fail; how many have."""
        really = getattr(os, name)
        failed: list[int] = []

        def call(*arguments: object) -> object:
            if len(failed) < times:
                failed.append(error)
                raise OSError(error, os.strerror(error))
            return really(*arguments)

        self._monkeypatch.setattr(os, name, call)
        return failed


@pytest.fixture(params=MODES)
async def disk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Disk]:
    filesystem = RealFileSystem(open_async_writes=lambda: None)
    yield Disk(filesystem, tmp_path, request.param, monkeypatch)
    await filesystem.close()


def descriptors_of(path: Path) -> int:
    count = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{number}") == str(path)
        except FileNotFoundError:  # the one that lists them
            continue
    return count


LARGE = [bytes(BUFFER_BYTES + BLOCK)]
SMALL = [b"a" * BLOCK]
MANY = [b"b" * 4] * BLOCK


@pytest.mark.parametrize("buffers", [SMALL, MANY, LARGE], ids=["small", "many", "large"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
async def test_synced_write_that_fails_is_never_reported_as_durable(
    disk: Disk, buffers: Sequence[bytes], error: int
) -> None:
    file = await disk.file()
    failed = disk.fail("pwritev", error)
    with pytest.raises(OSError, match=os.strerror(error)) as raised:
        await file.write_and_sync(0, buffers)
    assert (raised.value.errno, failed) == (error, [error])
    await file.write_and_sync(0, buffers)  # the file is still usable: what to do next is the caller's decision
    assert await file.read(0, 4) == buffers[0][:4]
    await file.close()
    assert descriptors_of(disk.path) == 0


@pytest.mark.parametrize("buffers", [MANY, LARGE], ids=["many", "large"])
async def test_synced_write_whose_sync_fails_is_never_reported_as_durable(disk: Disk, buffers: Sequence[bytes]) -> None:
    """Writes that take several calls are synced by a call of its own."""
    file = await disk.file()
    failed = disk.fail("fdatasync", errno.EIO)
    outcome = await asyncio.gather(file.write_and_sync(0, buffers), return_exceptions=True)
    if failed:
        assert [getattr(error, "errno", None) for error in outcome] == [errno.EIO]
    else:
        assert list(outcome) == [None], "written with RWF_DSYNC"
    await file.close()


async def test_unsynced_write_and_sync_that_fail_say_so(disk: Disk) -> None:
    file = await disk.file()
    disk.fail("pwritev", errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        await file.write(0, SMALL)
    disk.fail("fdatasync", errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        await file.sync()
    disk.fail("pread", errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        await file.read(0, 10)
    disk.fail("ftruncate", errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        await file.truncate(BLOCK)
    disk.fail("posix_fallocate", errno.ENOSPC)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        await file.allocate(1 << 20)
    await file.close()


async def test_short_writes_are_finished(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal ends a write after some whole blocks."""
    file = await disk.file()
    really = os.pwritev
    written = []

    def pwritev(descriptor: int, buffers: Sequence[bytes], offset: int, flags: int = 0) -> int:
        with memoryview(buffers[0])[:BLOCK] as first:
            written.append(really(descriptor, [first], offset, flags))
        return written[-1]

    data = [bytes([number]) * BLOCK for number in range(1, 6)]
    monkeypatch.setattr(os, "pwritev", pwritev)
    await file.write_and_sync(0, data)
    await file.write(5 * BLOCK, data)
    monkeypatch.setattr(os, "pwritev", really)
    assert await file.read(0, 10 * BLOCK) == b"".join(data) * 2
    assert set(written) == {BLOCK}
    await file.close()


async def test_file_that_may_not_grow_fails_as_a_full_disk_does(disk: Disk) -> None:
    """A limit of the process, enforced by the kernel: the write is cut short, and the rest fails."""
    file = await disk.file(size=4 * BLOCK)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6 * BLOCK, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            await file.write_and_sync(4 * BLOCK, [b"c" * BLOCK] * 4)
        with pytest.raises(OSError, match="File too large"):
            await file.allocate(8 * BLOCK)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await file.write_and_sync(4 * BLOCK, [b"d" * BLOCK] * 4)
    assert await file.read(4 * BLOCK, 4 * BLOCK) == b"d" * 4 * BLOCK
    await file.close()


async def test_close_that_fails_says_so_once_and_leaves_nothing_open(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await disk.file()
    await file.write_and_sync(0, SMALL)
    really = os.close

    def close(descriptor: int) -> None:
        """Linux releases the descriptor whatever close returns."""
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        really(descriptor)
        if path == str(disk.path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "close", close)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        await file.close()
    monkeypatch.setattr(os, "close", really)
    assert descriptors_of(disk.path) == 0
    other = os.open(disk.path, os.O_RDONLY)  # most likely gets the number of the closed one
    await file.close()
    os.fstat(other)
    os.close(other)


@pytest.mark.parametrize("call", ["fsync", "fdatasync", "pwritev", "rename"])
async def test_replaced_file_keeps_its_old_content_or_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    filesystem = RealFileSystem()
    path = tmp_path / "manifest"
    await replace_file(filesystem, path, b"old")
    failed = Disk(filesystem, tmp_path, "page cache", monkeypatch).fail(call, errno.ENOSPC)
    with pytest.raises(OSError, match="sync failed" if "sync" in call else "No space left") as raised:
        await replace_file(filesystem, path, b"new")
    assert failed
    assert isinstance(raised.value, SyncFailedError) == ("sync" in call)
    assert path.read_bytes() in ({b"old", b"new"} if call == "fsync" else {b"old"})
    assert descriptors_of(tmp_path / "manifest.tmp") == 0
    await replace_file(filesystem, path, b"new")
    assert path.read_bytes() == b"new"
    await filesystem.close()
