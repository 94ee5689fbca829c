"""Figures of the operating system and the interpreter about this process."""

import asyncio
import os
import resource
import sys
from pathlib import Path
from typing import NamedTuple

from octavo.metrics.histogram import Histogram

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    """Of this process, now. None where the system does not tell."""

    cpu_seconds: float
    resident_bytes: int | None
    open_files: int | None
    open_files_max: int


class ProcessStatistics:
    """Histograms that the process's pulse fills, and the process's use of the machine."""

    def __init__(self) -> None:
        self.loop_lag_seconds = Histogram()
        self.gc_pause_seconds = Histogram()
        self.profiling = asyncio.Lock()
        """Held while a profile is taken: one at a time."""

    @property
    def log_lines_dropped(self) -> int:
        """Lines of the process's log that could not be written. Standard error counts them in a bookie's process
        (:mod:`octavo.bookie.log_output`)."""
        return getattr(sys.stderr, "dropped_lines", 0)

    def usage(self) -> Usage:
        """As of now."""
        spent = resource.getrusage(resource.RUSAGE_SELF)
        return Usage(
            cpu_seconds=spent.ru_utime + spent.ru_stime,
            resident_bytes=_resident_bytes(),
            open_files=_open_files(),
            open_files_max=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )


def _resident_bytes() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


def _open_files() -> int | None:
    try:
        return len(os.listdir("/proc/self/fd")) - 1
    except OSError:
        return None
