"""Splits bytes into lines and joins them again, in chunks.

A file is a sequence of lines, each ended by ``\\n``, except perhaps the last. Only ``\\n`` ends a line; ``\\r``, NUL
and all other bytes are payload. The lines of :class:`LineSplitter`, joined by :data:`LINES`, are the file again, apart
from a newline after the last line: :attr:`LineSplitter.final_newline` tells whether the file had one.
"""

from octavo.protocol.errors import EntryTooLargeError
from octavo.protocol.light_dataclass import dataclass


class LineSplitter:
    """Splits chunks of bytes into lines. Holds at most one incomplete line, never longer than ``line_bytes_max``."""

    def __init__(self, line_bytes_max: int, *, advice: str = "use --whole-file to store the file in chunks") -> None:
        """``advice``: what to do about a line that is too long, for the error message."""
        self._line_bytes_max = line_bytes_max
        self._advice = advice
        self._pieces: list[bytes] = []
        self._piece_bytes = 0
        self._lines = 0
        self.final_newline = True
        """Whether the input so far ended with a newline; true for empty input. Final after :meth:`finish`."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that ``chunk`` completes, without ``\\n``. Raises :class:`EntryTooLargeError` naming the line."""
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines:
            if self._pieces:
                self._pieces.append(lines[0])
                lines[0] = b"".join(self._pieces)
                self._pieces.clear()
                self._piece_bytes = 0
            if max(map(len, lines)) > self._line_bytes_max:
                number = next(i for i, line in enumerate(lines, self._lines + 1) if len(line) > self._line_bytes_max)
                raise self._too_long(number)
            self._lines += len(lines)
        if rest:
            self._pieces.append(rest)
            self._piece_bytes += len(rest)
            if self._piece_bytes > self._line_bytes_max:
                raise self._too_long(self._lines + 1)
        if chunk:
            self.final_newline = not rest
        return lines

    def finish(self) -> list[bytes]:
        """The last line, if it had no newline: a list of one or none."""
        if not self._pieces:
            return []
        last = b"".join(self._pieces)
        self._pieces.clear()
        self._piece_bytes = 0
        self._lines += 1
        return [last]

    def _too_long(self, number: int) -> EntryTooLargeError:
        return EntryTooLargeError(
            f"line {number} is longer than the {self._line_bytes_max} bytes that one entry can hold; {self._advice}"
        )


class ChunkSplitter:
    """Splits chunks of bytes into entries of ``entry_bytes`` each, the last perhaps shorter; used like
    :class:`LineSplitter`.
    """

    def __init__(self, entry_bytes: int) -> None:
        self._entry_bytes = entry_bytes
        self._pieces: list[bytes] = []
        self._piece_bytes = 0
        self.final_newline = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """The entries that ``chunk`` completes."""
        self._pieces.append(chunk)
        self._piece_bytes += len(chunk)
        if self._piece_bytes < self._entry_bytes:
            return []
        data = b"".join(self._pieces)
        whole = len(data) - len(data) % self._entry_bytes
        rest = data[whole:]
        self._pieces = [rest] if rest else []
        self._piece_bytes = len(rest)
        return [data[start : start + self._entry_bytes] for start in range(0, whole, self._entry_bytes)]

    def finish(self) -> list[bytes]:
        """The last, shorter entry: a list of one or none."""
        rest = b"".join(self._pieces)
        self._pieces.clear()
        self._piece_bytes = 0
        return [rest] if rest else []


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The separator between payloads, and what follows the last one."""

    between: bytes
    after_last: bytes

    def join(self, payloads: list[bytes], *, ends: bool) -> bytes:
        """The payloads as they are in the file. ``ends``: the last of them is the last one of the file."""
        if not payloads:
            return b""
        return self.between.join(payloads) + (self.after_last if ends else self.between)


LINES = OutputFormat(b"\n", b"\n")
LINES_WITHOUT_FINAL_NEWLINE = OutputFormat(b"\n", b"")
NOTHING_BETWEEN = OutputFormat(b"", b"")
