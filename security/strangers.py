"""Connections of which the server does not know the principal yet, where it serves principals only (rule B12).

They have a share of the places, and give way, the oldest first: to each other when the share is used up, and to any new
connection when the server has no place left. So connections that only wait keep no principal out. Each must
authenticate within the time that it has for its hello.
"""

from typing import Final, Protocol

STRANGERS_SHARE: Final = 4
"""Strangers have a fourth of the places: many clients may be in the middle of their authentication, and principals keep
most places for themselves."""


class Stranger(Protocol):
    """A connection without a principal."""

    def make_way(self) -> None:
        """Close at once: the place is needed."""


class Strangers:
    """The strangers of a server with this number of places for connections. Pure."""

    def __init__(self, connections_max: int) -> None:
        self._places = max(connections_max // STRANGERS_SHARE, 1)
        self._waiting: dict[Stranger, None] = {}
        """The oldest first."""

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, stranger: Stranger) -> None:
        """A connection has come. If the share is used up, the oldest stranger makes way."""
        if len(self._waiting) >= self._places:
            self.give_way()
        self._waiting[stranger] = None

    def leave(self, stranger: Stranger) -> None:
        """It is lost, or its principal is known."""
        self._waiting.pop(stranger, None)

    def give_way(self) -> bool:
        """The oldest stranger makes way; False if there is none."""
        if not self._waiting:
            return False
        oldest = next(iter(self._waiting))
        del self._waiting[oldest]
        oldest.make_way()
        return True
