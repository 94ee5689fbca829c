"""The trace of a universe: a hash over every event, counters of injected faults, and lines for the reader.

Two runs of one seed must give the same hash. Lines are kept as tuples and formatted only when they are printed, because
most universes pass and their traces are never read.
"""

from collections import Counter
from struct import Struct
from zlib import crc32

_MOMENT = Struct(">d")

LINES_MAX = 20_000
"""Largest number of lines that are kept, the first ones."""


class Trace:
    """The trace of one universe."""

    def __init__(self) -> None:
        self.hash = 0
        self.events = 0
        self.counters: Counter[str] = Counter()
        self._lines: list[tuple[float, str, str, tuple[object, ...]]] = []

    def count(self, what: str, number: int = 1) -> None:
        """Count an injected fault or another event."""
        self.counters[what] += number

    def note(self, now: float, where: str, text: str, *arguments: object) -> None:
        """Add a line. ``text``, a ``%`` format, goes into the hash; ``arguments`` are plain values."""
        self.events += 1
        self.hash = crc32(_MOMENT.pack(now), crc32(text.encode(), self.hash))
        if len(self._lines) < LINES_MAX:
            self._lines.append((now, where, text, arguments))

    def delivered(self, now: float, where: str, data: bytes) -> None:
        """Record that bytes arrived over the network."""
        self.events += 1
        self.hash = crc32(data, crc32(_MOMENT.pack(now), self.hash))

    def stored(self, now: float, where: str, kind: str, size: int) -> None:
        """Record a changing operation of a disk."""
        self.events += 1
        self.hash = crc32(_MOMENT.pack(now + size), crc32(kind.encode(), self.hash))

    def lines(self) -> list[str]:
        """The lines as text."""
        return [
            f"{moment:12.6f}  {where:<10} {text % arguments if arguments else text}"
            for moment, where, text, arguments in self._lines
        ]
