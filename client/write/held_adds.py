"""Adds whose ids the caller chose, held until every lower id is there. Pure.

Theory of operation
-------------------

Callers bring ids in any order; bookies are to see an ordinary ledger, sealed and sent in the order of ids (rule
W12). So an add whose id is the lowest *missing* one goes on at once, and takes with it whatever was held right behind
it; one above the gap is held::

    gone on           missing   held
    [0][1][2][3][4]   ( 5 )     [6][7]   ( 8 )   [9]

The missing id is always let in, or nothing would ever move. What is held is bounded by ``ahead_max`` ids and
``bytes_max`` payload bytes; an id beyond that is refused (:class:`TooFarAheadError`) and may be brought again once the
gap has closed. An id that went on or is held is not taken twice (:class:`AlreadyAddedError`).

``T`` is whatever the shell wants back with a payload; here it is only handed on.
"""

from dataclasses import dataclass


class TooFarAheadError(Exception):
    """The id is beyond what is held; the message says why."""


class AlreadyAddedError(Exception):
    """An add with this id went on, or is held."""


@dataclass(frozen=True, slots=True)
class Held[T]:
    """One add."""

    entry_id: int
    payload: bytes
    tag: T


class HeldAdds[T]:
    """See the module."""

    __slots__ = ("_ahead_max", "_bytes_max", "_held", "_held_bytes", "_missing")

    def __init__(self, *, ahead_max: int, bytes_max: int, first_entry_id: int = 0) -> None:
        self._ahead_max = ahead_max
        self._bytes_max = bytes_max
        self._missing = first_entry_id
        self._held: dict[int, Held[T]] = {}
        self._held_bytes = 0

    @property
    def missing(self) -> int:
        """The lowest id that has not been brought: everything below it went on."""
        return self._missing

    @property
    def held_ids(self) -> list[int]:
        """The ids above the gap, lowest first."""
        return sorted(self._held)

    def offer(self, entry_id: int, payload: bytes, tag: T) -> list[Held[T]]:
        """Bring an add; the adds that go on now, in the order of their ids: none if it is held.

        Raises :class:`TooFarAheadError`, :class:`AlreadyAddedError`; nothing has changed then.
        """
        if entry_id < self._missing or entry_id in self._held:
            raise AlreadyAddedError
        add = Held(entry_id, payload, tag)
        if entry_id == self._missing:
            return self._let_on(add)
        ahead = entry_id - self._missing
        if ahead >= self._ahead_max:
            raise TooFarAheadError(f"it is {ahead} ahead, and at most {self._ahead_max - 1} are held")
        if self._held_bytes + len(payload) > self._bytes_max:
            raise TooFarAheadError(f"with it more than {self._bytes_max} bytes would be held")
        self._held[entry_id] = add
        self._held_bytes += len(payload)
        return []

    def give_up(self) -> list[Held[T]]:
        """Everything held, lowest first; nothing is held afterwards."""
        held = [self._held[entry_id] for entry_id in self.held_ids]
        self._held.clear()
        self._held_bytes = 0
        return held

    def _let_on(self, add: Held[T]) -> list[Held[T]]:
        going = [add]
        self._missing += 1
        while (following := self._held.pop(self._missing, None)) is not None:
            self._held_bytes -= len(following.payload)
            going.append(following)
            self._missing += 1
        return going

    def check_invariants(self) -> None:
        """Raise AssertionError unless the state is one that can be."""
        assert all(self._missing < entry_id < self._missing + self._ahead_max for entry_id in self._held)
        assert all(add.entry_id == entry_id for entry_id, add in self._held.items())
        assert sum(len(add.payload) for add in self._held.values()) == self._held_bytes <= self._bytes_max
