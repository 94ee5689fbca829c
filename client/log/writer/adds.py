"""The adds of a log's writer: their front, and what only a log's adds have.

Payloads are kept until they are acknowledged, because an add keeps its position however often it is sent again after a
failure (rule P5). They are sent to the log's active segment, and when that fails, to the next one. While the writer
rolls, or takes the log over from itself, the front is held.

An add that waits for room has no position yet, and is withdrawn when its caller is cancelled or it times out: it did
not happen (rule P16). Of any other add that fails, the error's doubt says which positions it may have (rule W6).
"""

import asyncio
import copy
from collections import deque
from collections.abc import Callable
from typing import Any

from octavo.client.log.seam.active_segment import ActiveSegment
from octavo.client.options import ClientOptions
from octavo.client.write.front.adds import Payload, checked_payload
from octavo.client.write.front.front import Front, FrontSide, Waiting
from octavo.protocol.errors import Doubt, OctavoError, OctavoTimeoutError, WouldBlock


class LogAdds:
    """See the module. ``segment``: what is written at first."""

    def __init__(
        self,
        segment: ActiveSegment,
        *,
        log_id: str,
        term: int,
        options: ClientOptions,
        check_usable: Callable[[], None],
        refuse_for_ever: Callable[[OctavoError], None],
    ) -> None:
        """``check_usable`` and ``refuse_for_ever`` are those of :class:`~octavo.client.write.front.front.FrontSide`."""
        self.segment = segment
        """What is written now."""
        self._identity = log_id, term
        self._options = options
        self._timeout_seconds = options.log_add_timeout_seconds
        self._check_usable = check_usable
        self.on_full: Callable[[], None] | None = None
        """Called for each batch while the segment is large enough for a roll."""
        self.front = Front(
            options,
            FrontSide(self.send_turn, check_usable, refuse_for_ever, self._queued),
            segment.core.at_turn_end,
            withdraws=True,
            has_short_way=self._timeout_seconds is None,
        )
        self.front.begin_at(segment.first_position)

    # --- adding -------------------------------------------------------------------------------------------------------

    def add_nowait(self, payload: Payload) -> asyncio.Future[int]:
        """As :meth:`LogWriter.add_nowait`."""
        payload = checked_payload(payload)
        self._check_usable()
        front = self.front
        if front.would_wait(len(payload)):
            raise WouldBlock(
                f"the window of {self._options.window_entries} entries and {self._options.window_bytes} bytes is full, "
                "or the log is being rolled or healed"
            )
        future = front.create_future()
        if self._timeout_seconds is not None:
            self._bound(future)
        front.put(payload, future)
        return future

    async def wait_settled(self) -> None:
        """Return once every add made so far is acknowledged or refused. Does not raise what adds are refused with."""
        settled = self.front.wait_settled()
        if not settled.done():
            await asyncio.wait([settled])

    def _queued(self, waiting: Waiting) -> None:
        if self._timeout_seconds is not None:
            self._bound(waiting.future)
        waiting.future.add_done_callback(lambda _future: self.front.withdraw_queued(waiting))

    # --- sending ------------------------------------------------------------------------------------------------------

    def send_turn(self) -> None:
        """Send the adds that have been collected to the segment."""
        batch = self.front.take_batch()
        if batch is not None:
            self._send(batch.payloads)

    def _send(self, payloads: list[bytes]) -> None:
        """Hand payloads to the segment. Failures come back later, as the segment's."""
        segment = self.segment
        segment.core.push(payloads)
        if self.on_full is not None and segment.core.length_pushed >= segment.full_at:
            self.on_full()

    @property
    def in_flight(self) -> bool:
        """Whether the segment has anything that is not acknowledged."""
        return any(batch.in_flight for batch in self.front.batches)

    @property
    def pending(self) -> bool:
        """Whether any add is not answered yet."""
        return bool(self.front.batches or self.front.payloads or self.front.queue)

    def forget_segment(self) -> None:
        """The segment failed: what it had and is not acknowledged is to be sent again."""
        for batch in self.front.batches:
            batch.in_flight = False

    def release(self) -> None:
        """Send what no segment has, in order, then what waits in the queue."""
        front = self.front
        front.held = False
        for batch in list(front.batches):
            if front.held:  # the segment failed at once
                return
            if not batch.in_flight:
                batch.in_flight = True
                self._send(batch.payloads)
        if not front.held:
            self.send_turn()
        front.admit()

    # --- failing ------------------------------------------------------------------------------------------------------

    def _bound(self, future: asyncio.Future[int]) -> None:
        """Let the add end after the time that it may take."""
        assert self._timeout_seconds is not None, "adds to this log may take any time"
        timer = self.front.loop.call_later(self._timeout_seconds, self._time_out, future)
        future.add_done_callback(lambda _future: timer.cancel())

    def _time_out(self, future: asyncio.Future[int]) -> None:
        """Withdraw the add if nothing of it was sent; otherwise it is in doubt."""
        if future.done():
            return
        doubt = self._doubt_when_late(future)
        error = OctavoTimeoutError(
            f"the add was not acknowledged within {self._timeout_seconds} s", may_have_happened=doubt is not None
        )
        error.doubt = doubt
        future.set_exception(error)
        # From here on nothing more of it is let in. What found room and was not promised a position is withdrawn in
        # this very step, which may make room for others.
        self.front.withdraw_collected()
        self.front.admit()

    def _doubt_when_late(self, future: asyncio.Future[int]) -> Doubt | None:
        """The doubt about an add that may happen although its caller is told that it is too late; None if it will
        not. Of an ``add_many``, what has found room is sent, and the others are withdrawn."""
        front = self.front
        front.withdraw_collected()
        total = front.many.get(future, 1)
        for batch in front.batches:
            if future in batch.futures:
                return Doubt(*self._identity, batch.first + batch.futures.index(future), total)
        if future in front.futures:
            if not front.promised and future not in front.many:
                return None
            front.promised = True  # the position that the caller is told now
            return Doubt(*self._identity, front.next_position + front.futures.index(future), total)
        waiting = front.queue[0] if front.queue else None
        if waiting is None or waiting.future is not future or waiting.at == 0:
            return None
        front.promised = True
        return Doubt(*self._identity, front.end - 1, waiting.at, total - waiting.at)

    def _doubt_once_refused(
        self, future: asyncio.Future[int], last: int, found_room: int | None = None
    ) -> Doubt | None:
        """The doubt about an add of which nothing more is sent; None if nothing of it was. ``last`` is the position of
        its last payload that found room, ``found_room`` how many did (None: all)."""
        total = self.front.many.get(future, 1)
        first = last + 1 - (total if found_room is None else found_room)
        sent = min(last + 1, self.front.next_position) - first
        return Doubt(*self._identity, first + sent - 1, sent, total - sent) if sent > 0 else None

    def refuse_unsent(self, error: OctavoError) -> None:
        """Nothing is sent any more: adds that were not sent did not happen."""
        front = self.front
        front.held = True
        futures, queue = front.give_up_unsent()
        # The beginning of an add_many may have been sent in earlier turns.
        for position, future in enumerate(futures, front.next_position):
            if future is not None:
                _reject(future, error, self._doubt_once_refused(future, position))
        # No flush waits for what was collected any more.
        front.flushes = deque((min(stop, front.next_position), flushed) for stop, flushed in front.flushes)
        last = front.next_position + len(futures) - 1
        for waiting in queue:
            if waiting.payloads:
                _reject(waiting.future, error, self._doubt_once_refused(waiting.future, last, waiting.at))
            elif not waiting.future.done():
                front.flushes.append((front.next_position, waiting.future))
        front.settle_flushes()

    def refuse_all(self, error: OctavoError) -> None:
        """The writer adds nothing any more: adds that were sent are in doubt, all others did not happen."""
        self.refuse_unsent(error)
        batches, flushes = self.front.give_up_sent()
        for batch in batches:
            for position, future in enumerate(batch.futures, batch.first):
                if future is not None:
                    _reject(future, error, self._doubt_once_refused(future, position))
        for _, flushed in flushes:
            _reject(flushed, error, None)


def copy_error(error: OctavoError, doubt: Doubt | None = None) -> OctavoError:
    """The same error as an exception of its own, of an add that is in doubt or (None) did not happen: one that is
    raised twice would collect both tracebacks."""
    fresh = copy.copy(error)
    fresh.may_have_happened = doubt is not None
    fresh.doubt = doubt
    fresh.__cause__ = error
    return fresh


def _reject(future: asyncio.Future[Any], error: OctavoError, doubt: Doubt | None) -> None:
    if not future.done():
        future.set_exception(copy_error(error, doubt))
        # If the caller does not look at the future, closing the writer reports the failure.
        future.exception()
