"""Files are opened although the process has no file descriptor left (rule B12).

Connections of clients may use up the descriptors. A checkpoint that cannot open its file then is no sign of a broken
disk. So some descriptors are kept in reserve for files; where those are used up, opening waits, as for a slow disk.
Called in the threads that perform blocking calls.
"""

import errno
import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger("octavo.bookie")

RESERVE: Final = 16
"""Descriptors for files that are opened at one time: those of a checkpoint and of a compaction on several disks."""

RETRY_SECONDS: Final = 0.05
"""Pause before the next attempt: connections end all the time."""

WAIT_SECONDS_MAX: Final = 60.0
"""After so long the process has lost its descriptors for good, and the error is raised."""

DESCRIPTORS_FOR_FILES: Final = 256
"""Descriptors that a bookie needs for everything but its clients: journal, entry logs and parts of the index that are
open for reading, the metadata store, administration, and the other bookies that repair reads from."""

_NONE_LEFT: Final = frozenset({errno.EMFILE, errno.ENFILE})


class DescriptorReserve:
    """Descriptors of nothing, to be given up for files. Any number of threads may use one."""

    def __init__(self, size: int = RESERVE) -> None:
        self._size = size
        self._kept: list[int] = []
        self._lock = threading.Lock()
        self._told = False
        self.restock()

    def opened[T](self, opening: Callable[[], T]) -> T:
        """The result of ``opening``, which opens a file and has done nothing if no descriptor is left.

        Raises OSError: any other error, and EMFILE or ENFILE after :data:`WAIT_SECONDS_MAX`.
        """
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            try:
                result = opening()
            except OSError as error:
                if error.errno not in _NONE_LEFT or time.monotonic() >= deadline:
                    raise
                self._tell(error)
                if not self._give_up_one():
                    time.sleep(RETRY_SECONDS)
            else:
                self.restock()
                return result

    def restock(self) -> None:
        """Keep as many descriptors as there are to be."""
        if len(self._kept) == self._size:
            return
        with self._lock:
            try:
                while len(self._kept) < self._size:
                    self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return  # later
            self._told = False

    def close(self) -> None:
        """Give up all of them."""
        with self._lock:
            while self._kept:
                os.close(self._kept.pop())

    def _give_up_one(self) -> bool:
        with self._lock:
            if not self._kept:
                return False
            os.close(self._kept.pop())
            return True

    def _tell(self, error: OSError) -> None:
        if not self._told:
            self._told = True
            log.error("no file descriptor is left: files wait for one", reason=error.strerror, limit=limit_of_files())


_reserve: DescriptorReserve | None = None


def open_descriptor(path: Path, flags: int, mode: int = 0o777) -> int:
    """``os.open``, with the process's reserve."""
    return reserve().opened(lambda: os.open(path, flags, mode))


def reserve() -> DescriptorReserve:
    """That of the process, from the first file that it opens."""
    global _reserve  # noqa: PLW0603 - descriptors are the process's, too
    if _reserve is None:
        _reserve = DescriptorReserve()
    return _reserve


def limit_of_files() -> int:
    """How many descriptors the process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_limit_of_files() -> int:
    """Take as many descriptors as the system allows this process; returns how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def connections_within(limit: int, wanted: int) -> int:
    """How many of the ``wanted`` connections a bookie may serve with this number of descriptors. A further fourth may
    be in their TLS handshake."""
    return max(min(wanted, (limit - DESCRIPTORS_FOR_FILES) * 4 // 5), 1)
