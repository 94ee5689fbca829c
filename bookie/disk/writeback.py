"""Starts the kernel's write-back of bytes in the page cache, so that it is spread over time.

Linux leaves written bytes in memory for up to half a minute, or until a sync. Then a gigabyte goes to the disk at once,
and the journal's writes wait behind it. Started soon after each write, it goes on evenly, and a sync finds little left.

This makes nothing durable. It is a hint: where the call is missing, or fails, the next sync does all the work, and it
is the sync that reports errors of the disk.
"""

import ctypes
from collections.abc import Callable

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
