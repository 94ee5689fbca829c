"""Decides when the adds that a writer has collected are sent as a frame. Pure.

Theory of operation
-------------------

A frame costs the client and each bookie as much processor time as a hundred further entries in it would: system
calls, wake-ups of processes, a group of the journal. While a frame is *under way* (sent and not acknowledged), the
journal of each bookie is writing and syncing; a second frame would wait there for that sync to end. Its adds lose
little if they wait in the writer instead, where later adds join them.

So the acknowledgements are the clock. Adds leave at once while fewer than :data:`FRAMES_UNDER_WAY_MAX` frames are under
way: a lone add never waits. Otherwise they wait for the next acknowledgement, but no longer than
:data:`WAIT_SECONDS_MAX`, and no more than :data:`ENTRIES_MAX` entries or :data:`BYTES_MAX` bytes of them: in a
frame of this size its own cost is small, and the client can prepare the next one while it travels.

There is nothing to adapt: the longer an acknowledgement takes, because the bookies are busy or far away, the more
adds share the next frame.

An application that would rather save processor time than half a millisecond sets the shortest time between two frames
(``frame_interval_seconds`` of :class:`~octavo.client.options.ClientOptions`). It holds back adds only behind a frame
that carried several: a caller that adds one entry after another, each alone in its frame, still waits for nothing.

What it never does: hold adds back while nothing is under way, unless the application has set an interval; change their
order.
"""

from collections.abc import Sequence
from typing import Final

FRAMES_UNDER_WAY_MAX: Final = 1
"""Frames under way from which on small ones wait."""

WAIT_SECONDS_MAX: Final = 0.002
"""Longest time that adds wait for later ones. Only adds behind a frame whose acknowledgement takes longer wait so
long."""

ENTRIES_MAX: Final = 64
"""This number of entries is sent at once: their seals and futures cost the client several times what a frame costs."""

BYTES_MAX: Final = 64 * 1024
"""This number of bytes is sent at once: they take a bookie and its disk longer than a frame costs."""


def should_wait_for_more(frames_under_way: int, payloads: Sequence[bytes]) -> bool:
    """Whether these adds, at least one, wait for later ones; then until the next acknowledgement, or
    :data:`WAIT_SECONDS_MAX`."""
    return frames_under_way >= FRAMES_UNDER_WAY_MAX and _are_few(payloads)


def interval_left(payloads: Sequence[bytes], now: float, next_frame_at: float) -> float:
    """How long, in seconds, these adds, at least one, wait because a frame was sent a moment ago; 0 for not at all.
    ``next_frame_at``: see :func:`earliest_next_frame`."""
    return next_frame_at - now if now < next_frame_at and _are_few(payloads) else 0.0


def earliest_next_frame(now: float, interval_seconds: float, entries: int) -> float:
    """Before which time few adds do not follow a frame of ``entries`` entries that is sent now. A single entry is
    followed at once: its caller may be the only one, and wait for it."""
    return now + interval_seconds if entries > 1 else now


def _are_few(payloads: Sequence[bytes]) -> bool:
    return len(payloads) < ENTRIES_MAX and sum(map(len, payloads)) < BYTES_MAX
