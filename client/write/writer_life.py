"""The states of a writer as a table: when it accepts adds, why it failed, what closing reports. Pure.

Theory of operation
-------------------

A writer *fails* at most once (rule W7): it is fenced, its ledger is deleted, an add misses the quorum timeout. Closing
has two steps: the writer first waits for pending adds (DRAINING), then settles the end of the ledger (SETTLING). From
SETTLING on nothing more is acknowledged, so that the end of the ledger is fixed, and a later failure changes nothing
(rule W9)::

    OPEN ----close----> DRAINING ----drained----> SETTLING ----ended----> CLOSED
     |                     |                                                ^
     fail                 fail                                              |
     v                     v                                              ended
    FAILED ---close---> CLOSING_FAILED -------------------------------------'

Closing a failed writer writes the end, too; it has nothing to wait for. Closing may be cut short in any of its steps,
by the end of the program for example.

Closing may be *refused*, because copies are missing that the ledger requires (rule G4): the writer is UNCLOSED then. It
takes no adds, and goes on with those that it has; closing it again is another DRAINING::

    DRAINING ----refused----> UNCLOSED ----close----> DRAINING

:data:`TRANSITIONS` has an entry for every state and event. An event that cannot happen in a state is ``None`` there:
meeting it is a defect. An event that comes too late to matter leaves the state as it is.

What it never does: accept an add in any state but OPEN; replace the first failure by a later one; leave CLOSED.
"""

import enum
from collections.abc import Mapping
from typing import Final

from octavo.protocol.errors import OctavoError


class WriterState(enum.Enum):
    """See the module."""

    OPEN = "open"
    FAILED = "failed"
    DRAINING = "closing, waiting for pending adds"
    UNCLOSED = "not closed, waiting for copies"
    SETTLING = "closing, writing the end of the ledger"
    CLOSING_FAILED = "failed, closing"
    CLOSED = "closed"


class WriterEvent(enum.Enum):
    """An event in the life of a writer."""

    FAIL = "fail"
    """It cannot go on."""
    CLOSE = "close"
    """The application closes it."""
    DRAINED = "drained"
    """Every add is acknowledged, or the time for that is over."""
    REFUSED = "refused"
    """Closing is given up: the ledger stays open, and another attempt may succeed."""
    ENDED = "ended"
    """Closing is over, however it went."""


def _table() -> dict[tuple[WriterState, WriterEvent], WriterState | None]:
    s = WriterState
    columns = (WriterEvent.FAIL, WriterEvent.CLOSE, WriterEvent.DRAINED, WriterEvent.REFUSED, WriterEvent.ENDED)
    rows: dict[WriterState, tuple[WriterState | None, ...]] = {
        #                  FAIL              CLOSE             DRAINED           REFUSED     ENDED
        s.OPEN:           (s.FAILED,         s.DRAINING,       None,             None,       None),
        s.FAILED:         (s.FAILED,         s.CLOSING_FAILED, None,             None,       None),
        s.DRAINING:       (s.CLOSING_FAILED, s.DRAINING,       s.SETTLING,       s.UNCLOSED, s.CLOSED),
        s.UNCLOSED:       (s.FAILED,         s.DRAINING,       None,             None,       s.CLOSED),
        s.SETTLING:       (s.SETTLING,       s.SETTLING,       None,             None,       s.CLOSED),
        s.CLOSING_FAILED: (s.CLOSING_FAILED, s.CLOSING_FAILED, s.CLOSING_FAILED, None,       s.CLOSED),
        s.CLOSED:         (s.CLOSED,         s.CLOSED,         None,             None,       None),
    }  # fmt: skip
    return {
        (state, event): following for state, row in rows.items() for event, following in zip(columns, row, strict=True)
    }


TRANSITIONS: Final[Mapping[tuple[WriterState, WriterEvent], WriterState | None]] = _table()
"""State and event -> the state that follows; None: the event cannot happen in that state."""


class WriterLife:
    """See the module."""

    __slots__ = ("_adds_failed", "close_error", "failure", "state")

    def __init__(self) -> None:
        self.state = WriterState.OPEN
        self.failure: OctavoError | None = None
        """Why the writer cannot go on; None while it can, and if it was closed before anything went wrong."""
        self.close_error: OctavoError | None = None
        """What closing reports; None if every add was acknowledged and the end was written."""
        self._adds_failed = False

    def fail(self, error: OctavoError) -> bool:
        """Fail the writer. Returns whether this is its first failure: if so every unacknowledged add fails with it."""
        if not self._go(WriterEvent.FAIL):
            return False
        self.failure = error
        return True

    def close(self) -> bool:
        """Begin closing. Returns whether this call was the first."""
        return self._go(WriterEvent.CLOSE)

    def drained(self) -> None:
        """End the wait for pending adds: from now on nothing is acknowledged."""
        self._go(WriterEvent.DRAINED)

    def refused(self) -> None:
        """Note that closing was refused: the next call of :meth:`close` begins it anew."""
        self._go(WriterEvent.REFUSED)

    def adds_failed(self) -> None:
        """Note that an add failed: closing reports it, because the application may not have looked at its future."""
        self._adds_failed = True

    def settled(self, reason: OctavoError, *, end_written: bool) -> None:
        """Note the result of writing the end. ``reason``: why the end was not written or, if it was, why adds that were
        still pending failed."""
        if self._adds_failed or not end_written:
            self.close_error = self.failure or reason

    def ended(self) -> None:
        """Note that closing is over."""
        self._go(WriterEvent.ENDED)

    def _go(self, event: WriterEvent) -> bool:
        following = TRANSITIONS[self.state, event]
        assert following is not None, f"{event.value}: not while the writer is {self.state.value}"
        changed = following is not self.state
        self.state = following
        return changed
