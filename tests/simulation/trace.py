"""What a universe did: a hash over everything that happened, counters of what was injected, and lines for people.

Two runs of one seed must give the same hash. Lines are kept as tuples and put into words only when somebody reads
them, so that a campaign pays next to nothing for them.
"""

from collections import Counter
from struct import Struct
from zlib import crc32

_MOMENT = Struct(">d")

LINES_MAX = 20_000
"""Lines kept, the latest; more than a person will read."""


class Trace:
    """The record of one universe."""

    def __init__(self) -> None:
        self.hash = 0
        self.events = 0
        self.counters: Counter[str] = Counter()
        self._lines: list[tuple[float, str, str, tuple[object, ...]]] = []

    def count(self, what: str, number: int = 1) -> None:
        """Note that something was injected, or came about."""
        self.counters[what] += number

    def note(self, now: float, where: str, text: str, *arguments: object) -> None:
        """A line for people, which is part of the hash. ``text`` is a ``%`` format; arguments are plain values."""
        self.events += 1
        self.hash = crc32(_MOMENT.pack(now), crc32(text.encode(), self.hash))
        if len(self._lines) < LINES_MAX:
            self._lines.append((now, where, text, arguments))

    def delivered(self, now: float, where: str, data: bytes) -> None:
        """Bytes arrived over the network."""
        self.events += 1
        self.hash = crc32(data, crc32(_MOMENT.pack(now), self.hash))

    def stored(self, now: float, where: str, kind: str, size: int) -> None:
        """A disk did something."""
        self.events += 1
        self.hash = crc32(_MOMENT.pack(now + size), crc32(kind.encode(), self.hash))

    def lines(self) -> list[str]:
        """The record, readable."""
        return [
            f"{moment:12.6f}  {where:<10} {text % arguments if arguments else text}"
            for moment, where, text, arguments in self._lines
        ]
