"""What the operating system's files promise beyond reading and writing: nothing is left open."""

import asyncio
import os
from pathlib import Path

import pytest
from octavo.bookie.disk.filesystem import RealFileSystem


def descriptors_of(path: Path) -> int:
    """How many descriptors of this process are open on a file."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{number}") == str(path)
        except FileNotFoundError:  # the one that lists them
            continue
    return count


@pytest.mark.parametrize("direct", [False, True])
async def test_opening_that_is_cancelled_leaves_nothing_open(tmp_path: Path, direct: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    filesystem = RealFileSystem()
    opening = asyncio.ensure_future(filesystem.open(path, direct=direct))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await filesystem.exists(path)  # behind the opening in the same lane
    await asyncio.sleep(0)
    assert descriptors_of(path) == 0
    await filesystem.close()
