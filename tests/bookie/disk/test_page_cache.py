"""What of a written file stays in the page cache (octavo.bookie.disk.writeback)."""

import ctypes
import mmap
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from octavo.bookie.disk.filesystem import RealFileSystem
from octavo.bookie.disk.writeback import bytes_behind, drop_behind

MEBIBYTE = 1024 * 1024
PAGE = 4096
WRITE = 512 * 1024


@pytest.mark.parametrize(
    ("offset", "size", "kept", "behind"),
    [
        (0, 100, 0, (0, 0)),  # less than a page
        (0, 3 * PAGE, PAGE, (0, 2 * PAGE)),
        (0, PAGE, PAGE, (0, 0)),
        (PAGE, 1, PAGE, (0, 0)),
        (2 * PAGE, PAGE, PAGE, (PAGE, PAGE)),
        (2 * PAGE + 1, PAGE - 1, PAGE, (PAGE, PAGE)),
        (5 * PAGE, PAGE, 100 * PAGE, (0, 0)),
    ],
)
def test_what_falls_out_of_the_newest_bytes(offset: int, size: int, kept: int, behind: tuple[int, int]) -> None:
    assert bytes_behind(offset, size, kept) == behind


def test_what_successive_writes_drop_adjoins_and_spares_the_newest() -> None:
    kept, end, dropped_to = 10_000, 0, 0
    for size in (1, 5000, PAGE, 70_000, 3, 20_000, 123_456) * 3:
        begin, length = bytes_behind(end, size, kept)
        end += size
        assert begin == dropped_to
        dropped_to = begin + length
        assert max(0, end - kept - PAGE) < dropped_to + 1
        assert dropped_to <= max(0, end - kept)


def test_a_file_that_cannot_be_told_is_left_alone() -> None:
    reading, writing = os.pipe()
    try:
        drop_behind(writing, MEBIBYTE, MEBIBYTE, PAGE)  # a pipe has no page cache: ESPIPE
    finally:
        os.close(reading)
        os.close(writing)


def pages_in_cache(path: Path) -> list[bool]:
    """Of each page of the file, whether it is in the page cache."""
    size = path.stat().st_size
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        pages = (ctypes.c_ubyte * (-(-size // PAGE)))()
        start = ctypes.c_char.from_buffer(mapped)
        failed = ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), pages
        )
        del start
        assert not failed, os.strerror(ctypes.get_errno())
    return [bool(one & 1) for one in pages]


@pytest.fixture(params=[MEBIBYTE, 0], ids=["newest", "all"])
async def filesystem(request: pytest.FixtureRequest) -> AsyncIterator[RealFileSystem]:
    filesystem = RealFileSystem(page_cache_bytes=request.param)
    try:
        yield filesystem
    finally:
        await filesystem.close()


async def test_only_the_newest_bytes_of_a_file_stay_and_all_can_be_read(
    filesystem: RealFileSystem, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file = await filesystem.open(tmp_path / "log", create=True)
    blocks = [os.urandom(WRITE) for _ in range(8)]
    for number, block in enumerate(blocks):
        await file.write(number * WRITE, [block[:1000], block[1000:]])
        await file.sync()  # what is not on the disk stays in any case
    cached = pages_in_cache(tmp_path / "log")
    newest = MEBIBYTE // PAGE
    assert all(cached[-newest:])
    if request.node.callspec.id == "newest":
        assert not any(cached[: -newest - WRITE // PAGE])
    else:
        assert all(cached)
    for number, block in enumerate(blocks):
        assert await file.read(number * WRITE, WRITE) == block
    await file.close()
