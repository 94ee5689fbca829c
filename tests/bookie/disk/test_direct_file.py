"""Files written past the page cache, beside a plain model of their bytes. Where the file system under the tests has no
direct writes, the same must hold of ordinary ones."""

import asyncio
import errno
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import override

import pytest
from octavo.bookie.disk.async_writes import AsyncWrites
from octavo.bookie.disk.direct_io import BUFFER_BYTES, DIRECT_BLOCK_BYTES, DirectWriter
from octavo.bookie.disk.filesystem import File, RealFileSystem

SIZE = 4 * BUFFER_BYTES // DIRECT_BLOCK_BYTES * DIRECT_BLOCK_BYTES


@pytest.fixture(params=["kernel", "thread"])
def by_kernel(request: pytest.FixtureRequest) -> bool:
    """Whether the kernel performs the writes asynchronously."""
    return bool(request.param == "kernel")


@asynccontextmanager
async def direct_file(
    path: Path, *, size: int = SIZE, by_kernel: bool = True, writes: type[AsyncWrites] = AsyncWrites
) -> AsyncIterator[File]:
    filesystem = RealFileSystem(open_async_writes=writes.open if by_kernel else lambda: None)
    file = await filesystem.open(path, create=True, dedicated_thread=True, direct=True)
    await file.allocate(size)
    try:
        yield file
    finally:
        await file.close()
        await filesystem.close()


def written_by_kernel(path: Path) -> bool:
    """Whether this machine lets the kernel write ``path`` by itself."""
    context, writer = AsyncWrites.open(), DirectWriter.open(path)
    for opened in (context, writer):
        if opened is not None:
            opened.close()
    return context is not None and writer is not None


def writes_that_end_with(result: int) -> type[AsyncWrites]:
    """Asynchronous writes that the kernel accepts, and that end with this result; nothing is written."""

    class Ended(AsyncWrites):
        @override
        def write_and_sync(
            self, descriptor: int, address: int, size: int, offset: int, on_written: Callable[[int], None]
        ) -> bool:
            on_written(result)
            return True

    return Ended


def pieces(chance: random.Random, size: int) -> list[bytes]:
    """``size`` bytes in some buffers."""
    data, cuts = chance.randbytes(size), sorted(chance.randrange(size + 1) for _ in range(chance.randrange(5)))
    return [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, size], strict=True)]


def whole_blocks(data: bytes) -> bytes:
    """``data`` and zeros up to the next block."""
    return data + bytes(-len(data) % DIRECT_BLOCK_BYTES)


@pytest.mark.parametrize("seed", range(6))
async def test_forward_writes_of_any_size_leave_what_was_written(tmp_path: Path, by_kernel: bool, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path / "file"
    async with direct_file(path, by_kernel=by_kernel) as file:
        model = bytearray(await file.size())
        at = 0
        for _ in range(60):
            if chance.random() < 0.2:
                at += chance.randrange(3) * DIRECT_BLOCK_BYTES
            buffers = pieces(chance, chance.choice([0, 1, 1, 4, chance.randrange(20)]) * DIRECT_BLOCK_BYTES)
            data = b"".join(buffers)
            await (file.write_and_sync if chance.random() < 0.8 else file.write)(at, buffers)
            model[at : at + len(data)] = data
            at += len(data)
        await file.sync()
        # Reads see it too, whichever way it was written.
        assert await file.read(0, at) == model[:at]
    written = path.read_bytes()
    assert written[:at] == model[:at]
    assert not any(written[at : at + 2 * DIRECT_BLOCK_BYTES])


async def test_what_does_not_fit_in_the_buffer_is_written_whole(tmp_path: Path, by_kernel: bool) -> None:
    data = whole_blocks(random.Random(1).randbytes(2 * BUFFER_BYTES + 777))
    head, tail = whole_blocks(b"head"), whole_blocks(b"tail")
    async with direct_file(tmp_path / "file", by_kernel=by_kernel) as file:
        await file.write_and_sync(0, [head])
        await file.write_and_sync(len(head), [data])
        await file.write_and_sync(len(head + data), [tail])
        assert await file.read(0, len(head + data + tail)) == head + data + tail


async def test_many_small_buffers_are_written_in_order(tmp_path: Path, by_kernel: bool) -> None:
    buffers = [bytes([number % 251]) * (number % 7) for number in range(3000)]
    buffers.append(bytes(-sum(map(len, buffers)) % DIRECT_BLOCK_BYTES))
    async with direct_file(tmp_path / "file", by_kernel=by_kernel) as file:
        await file.write_and_sync(0, buffers)
        assert await file.read(0, sum(map(len, buffers))) == b"".join(buffers)


@pytest.mark.parametrize(("offset", "size"), [(100, 4096), (0, 100), (4096, 4095)])
async def test_write_of_a_part_of_a_block_is_refused(tmp_path: Path, by_kernel: bool, offset: int, size: int) -> None:
    """It would write the other bytes of the block again."""
    async with direct_file(tmp_path / "file", by_kernel=by_kernel) as file:
        await file.write_and_sync(0, [b"x" * 8192])
        with pytest.raises(AssertionError, match="whole blocks"):
            await file.write_and_sync(offset, [bytes(size)])
        with pytest.raises(AssertionError, match="whole blocks"):
            await file.write(offset, [bytes(size)])
        assert await file.read(0, 8192) == b"x" * 8192


async def test_overlapping_calls_all_take_effect(tmp_path: Path, by_kernel: bool) -> None:
    async with direct_file(tmp_path / "file", by_kernel=by_kernel) as file:
        writes = [file.write_and_sync(number * 4096, [bytes([number]) * 4096]) for number in range(20)]
        await asyncio.gather(*writes)
        assert await file.read(0, 20 * 4096) == b"".join(bytes([number]) * 4096 for number in range(20))


async def test_a_cancelled_waiter_withdraws_nothing(tmp_path: Path, by_kernel: bool) -> None:
    async with direct_file(tmp_path / "file", by_kernel=by_kernel) as file:
        abandoned = asyncio.ensure_future(file.write_and_sync(0, [b"a" * 4096]))
        await asyncio.sleep(0)
        abandoned.cancel()
        await file.write_and_sync(4096, [b"b" * 4096])
        assert await file.read(0, 8192) == b"a" * 4096 + b"b" * 4096


@pytest.mark.parametrize("refusal", [errno.EAGAIN, errno.EOPNOTSUPP])
async def test_what_the_kernel_cannot_begin_at_once_is_written_by_a_thread(tmp_path: Path, refusal: int) -> None:
    async with direct_file(tmp_path / "file", writes=writes_that_end_with(-refusal)) as file:
        await file.write_and_sync(0, [b"a" * 4096])
        await file.write_and_sync(4096, [b"b" * 4096])
        assert await file.read(0, 8192) == b"a" * 4096 + b"b" * 4096


@pytest.mark.parametrize(
    ("result", "expected"), [(-errno.EIO, errno.EIO), (0, errno.EIO), (-errno.ENOSPC, errno.ENOSPC)]
)
async def test_a_failed_or_short_write_of_the_kernel_is_an_error(tmp_path: Path, result: int, expected: int) -> None:
    async with direct_file(tmp_path / "file", writes=writes_that_end_with(result)) as file:
        if not written_by_kernel(tmp_path / "file"):
            return
        with pytest.raises(OSError, match="file") as raised:
            await file.write_and_sync(0, [b"a" * 4096])
        assert raised.value.errno == expected


async def test_without_direct_writes_ordinary_ones_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really_open = os.open

    def refuse_direct(path: Path, flags: int, *more: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct writes here")
        return really_open(path, flags, *more)

    monkeypatch.setattr(os, "open", refuse_direct)
    async with direct_file(tmp_path / "file") as file:
        await file.write_and_sync(0, [b"a" * 4096])
        await file.write_and_sync(4096, [b"b" * 4096])
        assert await file.read(0, 8192) == b"a" * 4096 + b"b" * 4096


def test_a_write_touches_its_own_blocks_only(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 4 * DIRECT_BLOCK_BYTES)
    writer = DirectWriter.open(path)
    if writer is None:
        return  # this file system makes ordinary writes
    writer.write_and_sync(DIRECT_BLOCK_BYTES, [b"a" * 100, b"b" * (DIRECT_BLOCK_BYTES - 100)])
    writer.close()
    left = path.read_bytes()
    assert left[:DIRECT_BLOCK_BYTES] == b"x" * DIRECT_BLOCK_BYTES
    assert left[DIRECT_BLOCK_BYTES : 2 * DIRECT_BLOCK_BYTES] == b"a" * 100 + b"b" * (DIRECT_BLOCK_BYTES - 100)
    assert left[2 * DIRECT_BLOCK_BYTES :] == b"x" * 2 * DIRECT_BLOCK_BYTES


def test_a_write_that_does_not_fit_in_the_buffer_is_not_gathered(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(16 * DIRECT_BLOCK_BYTES))
    writer = DirectWriter.open(path)
    if writer is None:
        return
    assert writer.gather(0, [b"a" * DIRECT_BLOCK_BYTES]) == DIRECT_BLOCK_BYTES
    assert writer.gather(0, [bytes(BUFFER_BYTES + DIRECT_BLOCK_BYTES)]) is None
    writer.close()
