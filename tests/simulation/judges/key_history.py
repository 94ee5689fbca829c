"""What programs were told about the keys of a log's entries, checked against what the log holds in the end (rule P21).

A key has one entry within the window, and every answer with a position names an entry with that key. What was truncated
meanwhile is not known any more: the next leader does not know the keys of what is gone.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from octavo.client.log.seam.entries import LogEntry
from simulation.judges.history import Violation

WINDOW_ENTRIES: Final = 12
"""Of every log whose entries have keys: so few that keys leave the window and come again."""

KEYS: Final = tuple(f"key-{number}" for number in range(6))
"""All keys that programs use: fewer than fit into the window, so that most adds meet a key that is known."""


class KeyHistory:
    """The keys of one log."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._answers: list[tuple[str, int]] = []

    def answered(self, key: str, position: int) -> None:
        """Record that an add with this key, or a question for it, was answered with a position."""
        self._answers.append((key, position))

    def check(self, entries: Mapping[int, LogEntry], first: int) -> None:
        """Check the answers and the window. ``entries`` has all that the log holds from ``first`` on."""
        for key, position in self._answers:
            entry = entries.get(position)
            if position >= first and (entry is None or entry.key != key):
                found = "nothing" if entry is None else repr(entry.key)
                raise Violation("P21", f"log {self._name}: {key} was said to be at {position}, and there is {found}")
        for key in KEYS:
            held = sorted(at for at, entry in entries.items() if at >= first and entry.key == key)
            for one, following in pairwise(held):
                if following - one <= WINDOW_ENTRIES:
                    raise Violation("P21", f"log {self._name}: {key} is at {one} and at {following}, in one window")
