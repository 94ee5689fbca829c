"""Room for unacknowledged adds, and the adds of the current turn of the event loop.

Two windows bound the adds of a writer that are not acknowledged, one by their number and one by their bytes. What finds
room is collected until the turn of the loop ends, and is then sent together, or waits for later adds while a frame is
under way (:mod:`octavo.client.write.front.batching`). The writer of a ledger and the front of a log's writer are such
windows; each has a queue of its own kind for what finds no room.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from octavo.client.options import ClientOptions
from octavo.client.write.front.batching import (
    FLOW_ADDS_MIN,
    WAIT_SECONDS_MAX,
    Flow,
    earliest_next_frame,
    interval_left,
    should_wait_for_more,
)
from octavo.client.write.front.precise_time import precise_time_of
from octavo.protocol.errors import OctavoError
from octavo.security import forks

type Futures = list[asyncio.Future[Any] | None]
"""One item per entry; None for an entry without a future of its own (all but the last of an ``add_many``)."""


class AddWindow:
    """See the module. A subclass sends what has been collected (:meth:`_send_turn`).

    ``add`` of a subclass has a path of its own for an add that finds room. The lines of :meth:`_put_into_window` are
    written out there, because no other path's cost counts for every single entry.
    """

    def __init__(self, options: ClientOptions, *, wait_seconds_max: float = WAIT_SECONDS_MAX) -> None:
        """``wait_seconds_max``: the longest time that adds wait for later adds to join their frame."""
        self._options = options
        self._wait_seconds_max = wait_seconds_max
        self._loop = asyncio.get_running_loop()
        self._create_future: Callable[[], asyncio.Future[Any]] = self._loop.create_future
        self._skips_queue = True
        """Whether an add that finds room may skip the queue: the queue is empty, and the writer takes adds as they
        come. Derived; checked for every add."""
        self._free_entries = options.window_entries
        self._free_bytes = options.window_bytes
        self._payloads: list[bytes] = []
        self._futures: Futures = []
        self._turn_scheduled = False
        self._wait_timer: asyncio.TimerHandle | None = None
        """Runs while adds wait for later ones."""
        self._now = precise_time_of(self._loop)
        self._flow = Flow()
        self._frame_interval_seconds = options.frame_interval_seconds
        self._next_frame_at = 0.0
        """Before this time of the loop few adds are not sent; only with an interval between frames."""
        forks.hold(self)

    def on_forked(self) -> None:
        """In a forked child no add takes the short way any more, and the long one is refused (rule H1).

        Used only inside this package.
        """
        self._skips_queue = False
        self._refuse_for_ever(forks.forked_error())

    def _refuse_for_ever(self, error: OctavoError) -> None:
        """Let every add from now on raise the error. Nothing else: the process is not this object's own."""
        raise NotImplementedError

    @property
    def _frames_under_way(self) -> int:
        """Frames sent and not acknowledged."""
        raise NotImplementedError

    def _send_turn(self) -> None:
        """Send the adds that have been collected."""
        raise NotImplementedError

    def _end_turn(self) -> None:
        """The turn of the loop has ended: send its adds, unless they wait for later ones."""
        self._turn_scheduled = False
        payloads = self._payloads
        due_at = self._flow.due_at
        early = due_at > 0.0 and self._now() < due_at
        if payloads and not should_wait_for_more(self._frames_under_way, payloads, early=early):
            if self._frame_interval_seconds and (
                left := interval_left(payloads, self._loop.time(), self._next_frame_at)
            ):
                self._send_in(left)
            else:
                self._send_turn()
        elif payloads and self._wait_timer is None:
            self._wait_timer = self._loop.call_later(self._wait_seconds_max, self._waited_in_full)

    def _waited_in_full(self) -> None:
        self._flow.on_waited_in_full(self._now())
        self._send_turn()

    def _send_in(self, seconds: float) -> None:
        """Send what has been collected, and what is added until then, after this time. It replaces the longest wait for
        an acknowledgement, which has come."""
        at = self._loop.time() + seconds
        if self._wait_timer is not None:
            if self._wait_timer.when() <= at:
                return
            self._wait_timer.cancel()
        self._wait_timer = self._loop.call_at(at, self._send_turn)

    def _take_turn(self) -> tuple[list[bytes], Futures]:
        """The adds that have been collected, which are sent now."""
        if self._wait_timer is not None:
            self._wait_timer.cancel()
            self._wait_timer = None
        payloads, self._payloads = self._payloads, []
        futures, self._futures = self._futures, []
        flow = self._flow
        flow.sent_at = self._now()
        if flow.due_at:
            flow.on_sent()
        if self._frame_interval_seconds:
            self._next_frame_at = earliest_next_frame(self._loop.time(), self._frame_interval_seconds, len(payloads))
        return payloads, futures

    def _frame_acknowledged(self, flushes: object) -> None:
        """Something under way has been acknowledged: adds that wait may leave, with those that the callers add now.
        While there are ``flushes``, callers that wait for all adds, they wait for no later ones. Called before what
        waits for room is let in."""
        payloads = self._payloads
        if len(payloads) >= FLOW_ADDS_MIN and not flushes:
            self._flow.on_acknowledged(self._now(), len(payloads), self._free_entries, self._free_bytes)
        if payloads and not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._end_turn)

    def _hurry(self) -> None:
        """A caller waits for all adds made so far: they wait for no later ones."""
        if self._flow.due_at:
            self._flow.give_up()
            if self._payloads and not self._turn_scheduled:
                self._turn_scheduled = True
                self._loop.call_soon(self._end_turn)

    def _has_room(self, size: int) -> bool:
        """Whether the windows have room. A payload larger than the whole window of bytes is let in when no other add is
        unacknowledged."""
        return self._free_entries > 0 and (
            size <= self._free_bytes or self._free_entries == self._options.window_entries
        )

    def _put_into_window(self, payload: bytes, future: asyncio.Future[Any] | None) -> None:
        """Add to the adds of this turn; the caller has checked that there is room."""
        self._free_entries -= 1
        self._free_bytes -= len(payload)
        self._payloads.append(payload)
        self._futures.append(future)
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._end_turn)
