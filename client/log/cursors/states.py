"""One cursor as one client knows it, and the part that it has yet to store. Pure (rules P11 and P15).

All consumers of a client that have a cursor of this name share one *cell*, so that none takes back what another has
asked for. Its position is the highest that any of them has handled, or that the store has told.

=============  ===========  ===========  ===================  ========================  ==========
input          KNOWN        MOVED        STORING              MOVED_MEANWHILE           ENDED
=============  ===========  ===========  ===================  ========================  ==========
advance        MOVED        as it is     MOVED_MEANWHILE      as it is                  refused
touch          MOVED        as it is     MOVED_MEANWHILE      as it is                  as it is
take           nothing      STORING      never                never                     nothing
stored         as it is     as it is     KNOWN                MOVED                     as it is
not_stored     as it is     as it is     MOVED                MOVED                     as it is
end            ENDED        ENDED        ENDED                ENDED                     as it is
=============  ===========  ===========  ===================  ========================  ==========

*take* gives what a write is to store; one write is under way at a time. *stored* tells what then stands in the store,
which another client may have moved further. *not_stored*: the write failed, and may have happened all the same; that
does no harm, because what is stored is the highest that was asked for. *end*: the cursor, or its log, has been deleted.
An ended cell is never used again: a cursor that is made anew gets another cell, so that what consumers did with the
old one neither makes the cursor again nor moves the new one.
"""

from enum import Enum, auto
from typing import Final

from octavo.client.log.documents.cursors import CursorState
from octavo.protocol.errors import OctavoError


class CellState(Enum):
    """See the module."""

    KNOWN = auto()
    """What the client knows is what it has stored, or read."""
    MOVED = auto()
    """There is something to be stored."""
    STORING = auto()
    """It is being stored."""
    MOVED_MEANWHILE = auto()
    """Something is being stored, and there is more."""
    ENDED = auto()
    """The cursor has been deleted."""


_AFTER_MOVE: Final = {
    CellState.KNOWN: CellState.MOVED,
    CellState.STORING: CellState.MOVED_MEANWHILE,
}
_AFTER_STORED: Final = {
    CellState.STORING: CellState.KNOWN,
    CellState.MOVED_MEANWHILE: CellState.MOVED,
}
_AFTER_FAILURE: Final = {
    CellState.STORING: CellState.MOVED,
    CellState.MOVED_MEANWHILE: CellState.MOVED,
}


class CursorCell:
    """See the module."""

    __slots__ = ("_failure", "_known", "_state", "name")

    def __init__(self, name: str, stored: CursorState) -> None:
        self.name = name
        self._known = stored
        self._state = CellState.KNOWN
        self._failure: OctavoError | None = None

    @property
    def state(self) -> CellState:
        """See the module."""
        return self._state

    @property
    def position(self) -> int:
        """The first position that is not handled yet, as this client knows it. Never falls."""
        return self._known.position

    @property
    def is_moved(self) -> bool:
        """Whether there is something to be stored that no write is storing."""
        return self._state in (CellState.MOVED, CellState.MOVED_MEANWHILE)

    def check(self) -> None:
        """Raise why the cursor has ended, if it has."""
        if self._failure is not None:
            raise self._failure

    def advance(self, position: int, now_ms: int) -> None:
        """A consumer has handled everything below ``position``. Raises why the cursor has ended."""
        self.check()
        self._move(CursorState(position, now_ms))

    def touch(self, now_ms: int) -> None:
        """A consumer is alive."""
        if self._state is not CellState.ENDED:
            self._move(CursorState(self.position, now_ms))

    def _move(self, state: CursorState) -> None:
        self._known = self._known.raised_to(state)
        self._state = _AFTER_MOVE.get(self._state, self._state)

    def take(self) -> CursorState | None:
        """The position to be stored now; None: nothing."""
        if self._state in (CellState.KNOWN, CellState.ENDED):
            return None
        assert self._state is CellState.MOVED, "one write at a time"
        self._state = CellState.STORING
        return self._known

    def stored(self, found: CursorState) -> None:
        """The position that was taken is stored; ``found`` stands in the store."""
        if self._state is not CellState.ENDED:
            self.learn(found)
            self._state = _AFTER_STORED.get(self._state, self._state)

    def not_stored(self) -> None:
        """The position that was taken may not be stored."""
        self._state = _AFTER_FAILURE.get(self._state, self._state)

    def learn(self, found: CursorState) -> None:
        """This stands in the store."""
        if self._state is not CellState.ENDED:
            self._known = self._known.raised_to(found)

    def end(self, failure: OctavoError) -> None:
        """The cursor does not exist any more."""
        if self._state is not CellState.ENDED:
            self._state = CellState.ENDED
            self._failure = failure
