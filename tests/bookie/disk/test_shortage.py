"""What a disk has run out of, as an operator is told."""

import errno
import os
from pathlib import Path

import pytest
from octavo.bookie.config import load_config
from octavo.bookie.disk.shortage import describe_shortage
from octavo.bookie.start_errors import disk_error


def full(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


@pytest.mark.parametrize(
    ("number", "inodes", "told"),
    [
        (errno.ENOSPC, (1000, 10), "No space left on device; free some space"),
        (errno.ENOSPC, (1000, 0), "no inodes left"),
        (errno.ENOSPC, (0, 0), "No space left on device; free some space"),
        (errno.EDQUOT, (1000, 10), "quota"),
        (errno.EFBIG, (1000, 10), "ulimit -f"),
    ],
)
def test_what_is_missing_is_named(
    number: int, inodes: tuple[int, int], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(tmp_path)
    # Block sizes, blocks, files, free files, those for other users than root, flags, the longest name.
    shown = os.statvfs_result((*real[:5], *inodes, inodes[1], *real[8:]))
    monkeypatch.setattr(os, "statvfs", lambda _path: shown)
    assert told in describe_shortage(full(number, tmp_path), tmp_path)
    config = load_config(None, {}, {"data_dir": tmp_path, "metadata": "memory://x"})
    error = disk_error(full(number, tmp_path / "x"), config.data_dir)
    assert error.message.startswith(f"{tmp_path}/x: ")
    assert told in error.message


def test_a_path_that_does_not_exist_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "no" / "such" / "file"
    assert describe_shortage(full(errno.ENOSPC, path), path) == "No space left on device; free some space"
