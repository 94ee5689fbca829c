"""Decides when the adds that a writer has collected are sent, and cuts them into frames. Pure.

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

The longer an acknowledgement takes, because the bookies are busy or far away, the more adds share the next frame.

Adds that come while a frame is under way promise more, whatever is acknowledged: they are a *flow*. Its frames follow
one another at an interval of :data:`FLOW_INTERVAL_SECONDS` (:class:`Flow`), if the acknowledgement comes earlier. The
adds themselves are the clock: the first one that comes after the interval takes the others along. Callers that go on
when they are answered add nothing while a frame is under way, and wait for nothing. Some of them may be out of step;
then few come after the acknowledgement, waiting collects nothing, and is given up for a while.

An application that would rather save processor time than time sets the shortest time between two frames
(``frame_interval_seconds`` of :class:`~octavo.client.options.ClientOptions`). It holds back adds only behind a frame
that carried several: a caller that adds one entry after another, each alone in its frame, still waits for nothing.

What it never does: hold back an add whose writer is idle; hold adds back for longer than :data:`WAIT_SECONDS_MAX`,
unless the application has set an interval; change their order.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from octavo.protocol.limits import ADD_ENTRIES_TARGET, FRAME_PAYLOAD_BYTES_TARGET

FRAMES_UNDER_WAY_MAX: Final = 1
"""Frames under way from which on small ones wait."""

WAIT_SECONDS_MAX: Final = 0.003
"""Longest time that adds wait for later ones: longer than :data:`FLOW_INTERVAL_SECONDS` by what a timer that counts
whole milliseconds may be early. Only adds behind a frame whose acknowledgement takes longer wait so long."""

ENTRIES_MAX: Final = 64
"""This number of entries is sent at once: their seals and futures cost the client several times what a frame costs."""

BYTES_MAX: Final = 64 * 1024
"""This number of bytes is sent at once: they take a bookie and its disk longer than a frame costs."""

FLOW_INTERVAL_SECONDS: Final = 0.002
"""Time from one frame of a flow to the next. Measured: half of the processor time of frames that leave at once, for
about the same median latency (decision 017)."""

FLOW_ADDS_MIN: Final = 2
"""This many adds during one frame's round trip count as a flow."""

REST_FRAMES_STEP: Final = 4
REST_FRAMES_MAX: Final = 256
"""Upper bound of the pause, in frames, after repeated waits that collected nothing."""


class Flow:
    """Whether adds come whatever is acknowledged, and when their next frame is due. Times are in seconds of one
    clock."""

    __slots__ = ("_rest", "_rest_left", "due_at", "sent_at")

    def __init__(self) -> None:
        self.due_at = 0.0
        """Few adds wait until this time although nothing is under way; 0: they do not."""
        self.sent_at = 0.0
        """When the last frame was sent."""
        self._rest = 0
        """Length of the latest pause, in frames, after a wait that collected nothing, less what went well since."""
        self._rest_left = 0

    def on_acknowledged(self, now: float, came: int, free_entries: int, free_bytes: int) -> None:
        """A frame is acknowledged. ``came`` adds, :data:`FLOW_ADDS_MIN` or more, have come while it was under way, and
        the window has room for ``free_entries`` and ``free_bytes`` more."""
        self.due_at = 0.0
        due_at = self.sent_at + FLOW_INTERVAL_SECONDS
        if now >= due_at:
            return
        if self._rest_left:
            self._rest_left -= 1
        elif free_entries >= came and free_bytes >= BYTES_MAX:
            self.due_at = due_at

    def on_sent(self) -> None:
        """The frame that was waited for is sent. Not called for a frame that nothing made wait."""
        self.due_at = 0.0
        self._rest //= 2

    def on_waited_in_full(self, now: float) -> None:
        """Adds have waited for as long as any may, and leave."""
        if self.due_at and now >= self.due_at:
            # None has come since the frame was due: callers wait for this very frame.
            self.due_at = 0.0
            self._rest = self._rest_left = min(2 * self._rest + REST_FRAMES_STEP, REST_FRAMES_MAX)

    def give_up(self) -> None:
        """A caller waits for all adds made so far: they leave at once. Nothing is learned from it."""
        self.due_at = 0.0


def should_wait_for_more(frames_under_way: int, payloads: Sequence[bytes], *, early: bool = False) -> bool:
    """Whether these adds, at least one, wait for later ones; then until the next acknowledgement, or
    :data:`WAIT_SECONDS_MAX`. ``early``: their frame is not due (:attr:`Flow.due_at`)."""
    return (early or frames_under_way >= FRAMES_UNDER_WAY_MAX) and _are_few(payloads)


def interval_left(payloads: Sequence[bytes], now: float, next_frame_at: float) -> float:
    """How long, in seconds, these adds, at least one, wait because a frame was sent a moment ago; 0 for not at all.
    ``next_frame_at``: see :func:`earliest_next_frame`."""
    return next_frame_at - now if now < next_frame_at and _are_few(payloads) else 0.0


def earliest_next_frame(now: float, interval_seconds: float, entries: int) -> float:
    """Before which time few adds do not follow a frame of ``entries`` entries that is sent now. A single entry is
    followed at once: its caller may be the only one, and wait for it."""
    return now + interval_seconds if entries > 1 else now


def frames_of(payloads: Sequence[bytes]) -> list[tuple[int, int]]:
    """Cut payloads into frames, as ``(start, stop)``: each within both limits, or a single larger entry."""
    if 0 < len(payloads) <= ADD_ENTRIES_TARGET and sum(map(len, payloads)) <= FRAME_PAYLOAD_BYTES_TARGET:
        return [(0, len(payloads))]
    ends = list(accumulate(map(len, payloads)))
    frames = []
    start = below = 0
    while start < len(payloads):
        stop = bisect_right(ends, below + FRAME_PAYLOAD_BYTES_TARGET, start, len(ends))
        stop = max(min(stop, start + ADD_ENTRIES_TARGET), start + 1)
        frames.append((start, stop))
        start, below = stop, ends[stop - 1]
    return frames


def _are_few(payloads: Sequence[bytes]) -> bool:
    return len(payloads) < ENTRIES_MAX and sum(map(len, payloads)) < BYTES_MAX
