"""What is said to be durable, the operating system has been asked to make so: no test of bytes could tell, short of
pulling the plug."""

import ctypes
import os
import platform
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, override

import pytest
from octavo.bookie.disk.async_writes import SYSTEM_CALLS, AsyncWrites, c_system_call
from octavo.bookie.disk.direct_io import BUFFER_BYTES
from octavo.bookie.disk.filesystem import RealFileSystem, replace_file

_CONTROL_BLOCK = struct.Struct("<QIIHhIQQqQII")
"""struct iocb, as in linux/aio_abi.h: data, key, flags of the write, opcode, priority, descriptor, ..."""


class Kernel:
    """Sees every call that makes something durable."""

    def __init__(self) -> None:
        self.synced: list[Path] = []
        """Paths of files and directories that were synced, or written to with a sync, in order."""

    def _note(self, descriptor: int) -> None:
        self.synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    def syncing(self, call: Callable[[int], None]) -> Callable[[int], None]:
        def sync(descriptor: int) -> None:
            self._note(descriptor)
            call(descriptor)

        return sync

    def writing(self, call: Callable[..., int]) -> Callable[..., int]:
        def write(descriptor: int, buffers: Sequence[bytes], offset: int, flags: int = 0) -> int:
            if flags & os.RWF_DSYNC:
                self._note(descriptor)
            return call(descriptor, buffers, offset, flags)

        return write

    def open_async_writes(self) -> AsyncWrites | None:
        call = c_system_call()

        def syscall(*arguments: Any) -> int:
            if arguments[0].value == SYSTEM_CALLS[platform.machine()][3]:
                block = ctypes.string_at(arguments[3][0], _CONTROL_BLOCK.size)
                _, _, flags, _, _, descriptor, *_ = _CONTROL_BLOCK.unpack(block)
                if flags & os.RWF_DSYNC:
                    self._note(descriptor)
            return call(*arguments)

        return AsyncWrites.open(syscall)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    seen = Kernel()
    monkeypatch.setattr(os, "fsync", seen.syncing(os.fsync))
    monkeypatch.setattr(os, "fdatasync", seen.syncing(os.fdatasync))
    monkeypatch.setattr(os, "pwritev", seen.writing(os.pwritev))
    return seen


@pytest.fixture
async def filesystem(kernel: Kernel) -> AsyncIterator[RealFileSystem]:
    opened = RealFileSystem(open_async_writes=kernel.open_async_writes)
    yield opened
    await opened.close()


SMALL, MANY, LARGE = [b"x" * 4096], [b"y" * 4] * 3072, [b"z" * (BUFFER_BYTES + 4096)]


@pytest.mark.parametrize("direct", ["kernel", "thread", "page cache"])
@pytest.mark.parametrize("buffers", [SMALL, MANY, LARGE], ids=["small", "many", "large"])
async def test_a_write_that_is_durable_was_written_with_a_sync(
    tmp_path: Path, kernel: Kernel, direct: str, buffers: list[bytes]
) -> None:
    filesystem = RealFileSystem(open_async_writes=kernel.open_async_writes if direct == "kernel" else lambda: None)
    path = tmp_path / "file"
    file = await filesystem.open(path, create=True, dedicated_thread=True, direct=direct != "page cache")
    await file.allocate(1 << 24)
    await file.write(0, buffers)
    assert kernel.synced == []
    for attempt in range(1, 4):
        await file.write_and_sync(0 if attempt == 1 else 1 << 20, buffers)
        assert len(kernel.synced) >= attempt
    assert set(kernel.synced) == {path}
    await file.close()
    await filesystem.close()


async def test_a_write_that_the_kernel_cannot_begin_is_made_by_the_thread_with_a_sync(
    tmp_path: Path, kernel: Kernel
) -> None:
    class Refusing(AsyncWrites):
        @override
        def write_and_sync(self, *_arguments: object) -> bool:
            return False

    filesystem = RealFileSystem(open_async_writes=Refusing.open)
    file = await filesystem.open(tmp_path / "file", create=True, direct=True)
    await file.write_and_sync(0, SMALL)
    assert kernel.synced == [tmp_path / "file"]
    await file.close()
    await filesystem.close()


async def test_syncs_reach_the_kernel(tmp_path: Path, filesystem: RealFileSystem, kernel: Kernel) -> None:
    file = await filesystem.open(tmp_path / "file", create=True)
    await file.write(0, SMALL)
    await file.sync()
    assert kernel.synced == [tmp_path / "file"]
    await filesystem.sync_directory(tmp_path)
    assert kernel.synced[1:] == [tmp_path]
    await filesystem.make_directory(tmp_path / "one" / "two")
    assert kernel.synced[2:] == [tmp_path, tmp_path / "one"]
    await file.close()


async def test_a_replaced_file_is_synced_before_it_gets_its_name_and_the_name_after(
    tmp_path: Path, filesystem: RealFileSystem, kernel: Kernel
) -> None:
    await replace_file(filesystem, tmp_path / "manifest", b"content")
    assert kernel.synced == [tmp_path / "manifest.tmp", tmp_path]
