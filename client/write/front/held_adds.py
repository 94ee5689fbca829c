"""Adds under ids chosen by the application, held until every lower id is there. Pure.

Theory of operation
-------------------

The application adds ids in any order; the bookies get an ordinary ledger, sealed and sent in the order of ids (rule
W12). So an add of the lowest *missing* id is released at once, together with the adds held directly behind it; an add
above the gap is held::

    released          missing   held
    [0][1][2][3][4]   ( 5 )     [6][7]   ( 8 )   [9]

The missing id is always accepted, otherwise nothing would ever be released. At most ``ahead_max`` ids and ``bytes_max``
payload bytes are held; an id beyond that is refused (:class:`TooFarAheadError`) and may be offered again when the gap
has closed. An id that was released, or is held, is refused (:class:`AlreadyAddedError`).

``T`` is the type of a tag that the shell gets back with each payload.
"""

from octavo.protocol.light_dataclass import dataclass


class TooFarAheadError(Exception):
    """The id is too far above the missing one to be held; the message says why."""


class AlreadyAddedError(Exception):
    """An add with this id was released, or is held."""


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
        """The lowest id that has not been offered: everything below it was released."""
        return self._missing

    @property
    def held_ids(self) -> list[int]:
        """The ids above the gap, lowest first."""
        return sorted(self._held)

    @property
    def held_bytes(self) -> int:
        """Their payload bytes."""
        return self._held_bytes

    def offer(self, entry_id: int, payload: bytes, tag: T) -> list[Held[T]]:
        """Offer an add. Returns the adds that are released by it, in the order of their ids; none if it is held.

        Raises :class:`TooFarAheadError` and :class:`AlreadyAddedError`, and then changes nothing.
        """
        if entry_id < self._missing or entry_id in self._held:
            raise AlreadyAddedError
        add = Held(entry_id, payload, tag)
        if entry_id == self._missing:
            return self._release(add)
        ahead = entry_id - self._missing
        if ahead >= self._ahead_max:
            raise TooFarAheadError(f"it is {ahead} ahead, and at most {self._ahead_max - 1} are held")
        if self._held_bytes + len(payload) > self._bytes_max:
            raise TooFarAheadError(f"with it more than {self._bytes_max} bytes would be held")
        self._held[entry_id] = add
        self._held_bytes += len(payload)
        return []

    def give_up(self) -> list[Held[T]]:
        """Drop everything that is held and return it, lowest id first."""
        held = [self._held[entry_id] for entry_id in self.held_ids]
        self._held.clear()
        self._held_bytes = 0
        return held

    def _release(self, add: Held[T]) -> list[Held[T]]:
        released = [add]
        self._missing += 1
        while (following := self._held.pop(self._missing, None)) is not None:
            self._held_bytes -= len(following.payload)
            released.append(following)
            self._missing += 1
        return released

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is impossible."""
        assert all(self._missing < entry_id < self._missing + self._ahead_max for entry_id in self._held)
        assert all(add.entry_id == entry_id for entry_id, add in self._held.items())
        assert sum(len(add.payload) for add in self._held.values()) == self._held_bytes <= self._bytes_max
