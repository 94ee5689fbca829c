"""Standard error, and a log that is standard output, for processes that must not stop or wait because of their log.

A disk that is full, a pipe whose reader has gone, or one whose reader does not read: the line is dropped and counted,
and the next line that can be written tells how many are missing. Logging never decides what a bookie does (rule B11).
"""

import contextlib
import io
import os
import select
import socket
import stat
import sys
from typing import Final, TextIO

PATIENCE_SECONDS: Final = 0.1
"""How long a line waits for a reader that does not keep up. After one such wait the next lines wait no longer, until
the reader has read again."""

_PIPE_BYTES: Final = select.PIPE_BUF
"""A pipe that ``poll`` calls writable takes this much without blocking."""


class LogOutput(io.TextIOBase):
    """A text stream on a file descriptor, without a buffer, whose ``write`` neither raises nor blocks for long."""

    def __init__(self, descriptor: int, *, notes: bool = True) -> None:
        """``notes``: whether a line tells how many lines are missing before it."""
        self._descriptor = descriptor
        self._notes = notes
        self.dropped_lines = 0
        """Lines that were dropped since the process began."""
        self._missing = 0
        self._in_line = False
        self._patient = True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream."""
        return "utf-8"

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        try:
            return os.isatty(self._descriptor)
        except OSError:
            return False

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str) -> int:
        """Write ``text``, or drop it. Returns the number of its characters, as other streams do."""
        if not text:
            return 0
        missing = self._missing
        note = f"octavo: {missing} lines of this log could not be written\n" if missing and self._notes else ""
        # What was written in part is ended first, so that each line begins where a line begins.
        begun = "\n" if missing and self._in_line else ""
        if self._put(f"{begun}{note}{text}".encode("utf-8", "backslashreplace")):
            self._missing = 0
            self._in_line = not text.endswith("\n")
        else:
            lines = max(text.count("\n"), 1)
            self._missing += lines
            self.dropped_lines += lines
        return len(text)

    def flush(self) -> None:
        """There is no buffer."""

    def _put(self, data: bytes) -> bool:
        """Whether all of it was written."""
        view = memoryview(data)
        try:
            mode = os.fstat(self._descriptor).st_mode
            while view:
                view = view[self._some(mode, view) :]
        except OSError:
            self._in_line = self._in_line or len(view) < len(data)
            return False
        return True

    def _some(self, mode: int, data: memoryview) -> int:
        """Write some of the data; returns how much. Raises :class:`OSError`."""
        if stat.S_ISREG(mode):
            return os.write(self._descriptor, data)
        self._wait_for_reader()
        if stat.S_ISSOCK(mode):
            with socket.socket(fileno=os.dup(self._descriptor)) as connection:
                return connection.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        return os.write(self._descriptor, data[:_PIPE_BYTES])

    def _wait_for_reader(self) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        if not poll.poll(PATIENCE_SECONDS * 1000 if self._patient else 0):
            self._patient = False
            raise BlockingIOError("the reader does not read")
        self._patient = True


def use_log_outputs() -> None:
    """Let this process write its standard error as a log, and its standard output if that is a file.

    Standard output that is a terminal or a pipe stays as it is: its reader asked for it, and its end is the end of the
    program as everywhere. A stream that is no stream of the process, as where a program runs a command inside itself,
    stays as it is, too.
    """
    if _is_of_process(sys.stderr, 2):
        sys.stderr = LogOutput(2)
    with contextlib.suppress(OSError):  # it is closed
        if _is_of_process(sys.stdout, 1) and stat.S_ISREG(os.fstat(1).st_mode):
            sys.stdout = LogOutput(1, notes=False)  # its lines may be JSON


def _is_of_process(stream: TextIO, descriptor: int) -> bool:
    try:
        return stream.fileno() == descriptor
    except (OSError, ValueError):
        return False
