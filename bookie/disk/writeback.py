"""Advice to the kernel about written bytes in the page cache: when to put them on the disk, and when to drop them.

Linux leaves written bytes in memory for up to half a minute, or until a sync. Then a gigabyte goes to the disk at once,
and the journal's writes wait behind it. Started soon after each write, it goes on evenly, and a sync finds little left.

Afterwards the bytes would stay in the page cache until memory is short, although few of them are ever read. Memory that
a program touches for the first time is dear where a host lends it to a virtual machine page by page, and so is memory
that the kernel must take from something else. So only the newest bytes of a file stay; the memory of older ones serves
the next writes. What a reader fetches later is cached as usual.

None of this makes anything durable. These are hints: where a call is missing, or fails, the next sync does all the
work, and it is the sync that reports errors of the disk.
"""

import contextlib
import ctypes
import os
from collections.abc import Callable

_PAGE_BYTES = 4096

_START_WRITING = 2
"""SYNC_FILE_RANGE_WRITE: start writing dirty pages; wait for nothing. It takes no notice of errors of earlier writes,
and so hides none from the sync."""


def _load() -> Callable[[int, int, int], object] | None:
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):  # not Linux
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    function.restype = ctypes.c_int
    return lambda descriptor, offset, size: function(descriptor, offset, size, _START_WRITING)


_start = _load()


def start_writeback(descriptor: int, offset: int, size: int) -> None:
    """Start writing these bytes of the file to the disk. May wait for the disk's queue: not for the event loop's
    thread."""
    if _start is not None:
        _start(descriptor, offset, size)


def bytes_behind(offset: int, size: int, kept_bytes: int) -> tuple[int, int]:
    """Where the bytes begin, and how many there are, that fall out of the newest ``kept_bytes`` of a file by a write of
    ``size`` bytes at its end, ``offset``; in whole pages. Those of one write adjoin those of the next."""
    begin, end = (max(0, at - kept_bytes) // _PAGE_BYTES * _PAGE_BYTES for at in (offset, offset + size))
    return begin, end - begin


def drop_behind(descriptor: int, offset: int, size: int, kept_bytes: int) -> None:
    """After a write at the end of the file, drop from the page cache what lies further back than ``kept_bytes``. Bytes
    that are not on the disk yet stay. May wait for the disk's queue: not for the event loop's thread."""
    begin, length = bytes_behind(offset, size, kept_bytes)
    if length and hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, begin, length, os.POSIX_FADV_DONTNEED)
