"""Writes of real files that the operating system cuts short or refuses are errors, whichever way they take."""

import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_BYTES = 64 * 1024

PROGRAM = """
import asyncio, errno, resource, signal, sys
from pathlib import Path
from octavo.bookie.disk.async_writes import AsyncWrites
from octavo.bookie.disk.filesystem import RealFileSystem

async def main(path, direct, by_kernel, synced):
    filesystem = RealFileSystem(open_async_writes=AsyncWrites.open if by_kernel else lambda: None)
    file = await filesystem.open(Path(path), create=True, direct=direct)
    data = [b"a" * 4096] * 32
    try:
        await (file.write_and_sync(0, data) if synced else file.write(0, data))
    except OSError as error:
        print("refused", errno.errorcode[error.errno])
    else:
        print("written")
    await file.close()
    await filesystem.close()

# A file may not grow over the limit: the write that would is cut short there, and the next one fails.
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
asyncio.run(main(sys.argv[1], *("yes" == flag for flag in sys.argv[3:])))
"""


@pytest.mark.parametrize("synced", ["yes", "no"])
@pytest.mark.parametrize(("direct", "by_kernel"), [("no", "no"), ("yes", "no"), ("yes", "yes")])
def test_a_write_that_is_cut_short_is_finished_or_fails(
    tmp_path: Path, direct: str, by_kernel: str, synced: str
) -> None:
    """Rule B1: nothing that is not on disk is reported as written."""
    path = tmp_path / "file"
    command = [sys.executable, "-P", "-c", PROGRAM, str(path), str(LIMIT_BYTES), direct, by_kernel, synced]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "refused EFBIG\n", done
    assert path.stat().st_size <= LIMIT_BYTES
