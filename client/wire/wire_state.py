"""The life of a wire (one TCP connection to a bookie) as a table. Pure.

Theory of operation
-------------------

A wire is made before its TCP connection is. It says hello, and once the bookie's hello has arrived and agrees it is
*up*. Two things make a wire that is up stop taking requests, independently of each other: the socket does not keep up
with the bytes written (*paused*), or as many requests are outstanding as a bookie accepts from one connection
(*full*)::

    CONNECTING --made--> GREETING --greeted--> READY <--> FULL
                            |                    |          |
                            v                    v          v
                      GREETING_PAUSED -----> PAUSED --> PAUSED_FULL

    a wire that was up:  --lost--> LOST         one that never was:  --lost--> FAILED

Requests are taken in READY only. LOST and FAILED are final: the transport may still report what happens to it, and
nothing comes of that.

:data:`TRANSITIONS` has an entry for every state and event. An event that cannot happen in a state is ``None`` there:
meeting it is a defect, and :func:`after` raises.
"""

import enum
from collections.abc import Mapping
from typing import Final


class WireState(enum.Enum):
    """See the module."""

    CONNECTING = "connecting"
    """There is no TCP connection yet."""
    GREETING = "greeting"
    """This side's hello is sent, the bookie's has not arrived."""
    GREETING_PAUSED = "greeting, paused"
    READY = "ready"
    """Up, and takes requests."""
    FULL = "full"
    """Up; too many requests are outstanding."""
    PAUSED = "paused"
    """Up; the socket does not keep up."""
    PAUSED_FULL = "paused and full"
    LOST = "lost"
    """The connection was up and is gone."""
    FAILED = "failed"
    """The connection is gone, or was never made, before it was up."""

    @property
    def was_up(self) -> bool:
        """Whether hellos have been exchanged, be the connection lost since or not."""
        return self not in (
            WireState.CONNECTING, WireState.GREETING, WireState.GREETING_PAUSED, WireState.FAILED
        )  # fmt: skip

    @property
    def is_over(self) -> bool:
        """Whether the connection is gone for good."""
        return self is WireState.LOST or self is WireState.FAILED


class WireEvent(enum.Enum):
    """An event in the life of a wire."""

    MADE = "made"
    """The TCP connection stands."""
    GREETED = "greeted"
    """The bookie's hello has arrived and agrees."""
    FILLED = "filled"
    """As many requests are outstanding as a bookie accepts."""
    DRAINED = "drained"
    """So few requests are outstanding again that more can be taken."""
    SOCKET_FULL = "socket full"
    """The transport asks to stop writing."""
    SOCKET_DRAINED = "socket drained"
    """The transport takes more again."""
    LOSE = "lose"
    """The connection is lost, or given up."""


def _table() -> dict[tuple[WireState, WireEvent], WireState | None]:
    s = WireState
    columns = (
        WireEvent.MADE, WireEvent.GREETED, WireEvent.FILLED, WireEvent.DRAINED,
        WireEvent.SOCKET_FULL, WireEvent.SOCKET_DRAINED, WireEvent.LOSE,
    )  # fmt: skip
    rows: dict[WireState, tuple[WireState | None, ...]] = {
        #                   MADE        GREETED   FILLED  DRAINED   SOCKET_FULL        SOCKET_DRAINED  LOSE
        s.CONNECTING:      (s.GREETING, None,     None,   None,     None,              None,           s.FAILED),
        s.GREETING:        (None,       s.READY,  None,   None,     s.GREETING_PAUSED, None,           s.FAILED),
        s.GREETING_PAUSED: (None,       s.PAUSED, None,   None,     None,              s.GREETING,     s.FAILED),
        s.READY:           (None,       None,     s.FULL, None,     s.PAUSED,          None,           s.LOST),
        s.FULL:            (None,       None,     None,   s.READY,  s.PAUSED_FULL,     None,           s.LOST),
        s.PAUSED:          (None,       None,     None,   None,     None,              s.READY,        s.LOST),
        s.PAUSED_FULL:     (None,       None,     None,   s.PAUSED, None,              s.FULL,         s.LOST),
        s.LOST:            (s.LOST,     None,     None,   None,     s.LOST,            s.LOST,         s.LOST),
        s.FAILED:          (s.FAILED,   None,     None,   None,     s.FAILED,          s.FAILED,       s.FAILED),
    }  # fmt: skip
    return {
        (state, event): following for state, row in rows.items() for event, following in zip(columns, row, strict=True)
    }


TRANSITIONS: Final[Mapping[tuple[WireState, WireEvent], WireState | None]] = _table()
"""State and event -> the state that follows; None: the event cannot happen in that state."""


def after(state: WireState, event: WireEvent) -> WireState:
    """The state that follows."""
    following = TRANSITIONS[state, event]
    assert following is not None, f"a wire that is {state.value} cannot be {event.value}"
    return following
