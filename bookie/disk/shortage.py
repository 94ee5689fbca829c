"""The resource that a disk has run out of, when a write fails for lack of space: bytes, inodes, a quota, the size of a
file."""

import errno
import os
from pathlib import Path


def describe_shortage(error: OSError, path: Path) -> str:
    """The shortage at ``path``, in words, with the remedy.

    The kernel says "no space left" also where no inode is left and gigabytes are free.
    """
    match error.errno:
        case errno.ENOSPC if _has_no_inodes(path) or _has_no_inodes(path.parent):
            return "no inodes left on the disk (`df -i` shows them); remove files that are not needed"
        case errno.EDQUOT:
            return "the quota of the disk is used up; free some space, or raise the quota"
        case errno.EFBIG:
            return "a file may not grow further; raise the limit of file sizes (`ulimit -f`)"
        case _:
            return f"{error.strerror or error}; free some space"


def _has_no_inodes(path: Path) -> bool:
    try:
        status = os.statvfs(path)
    except OSError:
        return False
    # A file system that makes inodes as it needs them says that it has none at all.
    return status.f_files > 0 and status.f_favail == 0
