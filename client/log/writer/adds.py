"""The front of a log's writer: adds that wait for room, adds of this turn, and runs that are not acknowledged yet.

An add's position is fixed when it is *sent*, that is, when the turn of the loop in which it found room ends; it never
changes afterwards, however often the add is sent again after a failure (rule P5). Payloads are kept until they are
acknowledged for that reason. An add that waits for room has no position yet and is withdrawn when its caller is
cancelled or times out: it did not happen.

What decides is the add's future, in the step that looks: while it is open the add is let in and sent; once it is done,
whatever made it so, nothing of the add is let in any more (rule P16). So a time-out or a cancellation and the answer
that makes room, or ends the hold, may fall into one turn of the loop in any order.

::

    add -> [queue] -> the turn's adds -> runs, sent or to be sent again -> acknowledged
           no room,   found room         position fixed
           or held

While the writer is *held* (it rolls, or takes the log over from itself) nothing is sent: adds gather in the queue, and
those that were collected in the turn in which that began stay collected. They have no position either.
Per entry this costs one future and two list appends; everything else is per turn.
"""

import asyncio
import copy
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from octavo.client.arguments import check_position
from octavo.client.options import ClientOptions
from octavo.client.same_loop import check_loop
from octavo.client.statistics.writers import AddStatistics
from octavo.client.write.front.adds import Payload, checked_payload, checked_payloads
from octavo.client.write.front.window import AddWindow, Futures
from octavo.protocol.errors import (
    Doubt,
    OctavoError,
    OctavoTimeoutError,
    PositionMismatchError,
    WouldBlock,
)
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX


class Run:
    """Adds of one turn, which were sent together: consecutive positions from ``first`` on."""

    __slots__ = ("bytes", "first", "futures", "in_flight", "payloads")

    def __init__(self, first: int, payloads: list[bytes], futures: Futures) -> None:
        self.first = first
        self.payloads = payloads
        self.futures = futures
        self.bytes = sum(map(len, payloads))
        self.in_flight = False
        """Whether the present segment has it: it must not be handed to that segment again."""


class _Waiting:
    """Payloads that wait for room; those before ``at`` have found it. ``future`` is that of the last one. Without
    payloads: a flush, which waits for what is before it in the queue, and then for its acknowledgement."""

    __slots__ = ("at", "expected", "future", "payloads")

    def __init__(self, payloads: Sequence[bytes], future: asyncio.Future[Any], expected: int | None) -> None:
        self.payloads = payloads
        self.future = future
        self.expected = expected
        self.at = 0


class AddFront(AddWindow):
    """See the module. A subclass sends runs (:meth:`_send`) and says what an add is refused with
    (:meth:`check_usable`)."""

    _create_future: Callable[[], asyncio.Future[int]]

    def __init__(self, *, log_id: str, term: int, next_position: int, options: ClientOptions) -> None:
        super().__init__(options)
        self._identity = log_id, term
        self._timeout_seconds = options.log_add_timeout_seconds
        self._next_position = next_position
        """Of the next add that is sent."""
        self._acknowledged_stop = next_position
        """All positions below are acknowledged."""
        self._skips_queue = self._timeout_seconds is None
        self._held = False
        self._was_held = False
        """Since adds were sent last: callers of collected adds may have gone."""
        self._promised = False
        """An add that is collected expects the position that it has among them: none of them is withdrawn."""
        self._accepting = True
        self._room_until_full = False
        """Whether an entry takes room until it has all of its copies, and not only until it is acknowledged (rule
        G2)."""
        self._short_entries = 0
        """Acknowledged entries that take room, as they lack copies."""
        self._short_bytes = 0
        """Their payload bytes."""
        self._many: WeakKeyDictionary[asyncio.Future[int], int] = WeakKeyDictionary()
        """How many payloads the ``add_many`` of a future has."""
        self._queue: deque[_Waiting] = deque()
        self._runs: deque[Run] = deque()
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()

    # --- what a subclass does -----------------------------------------------------------------------------------------

    def check_usable(self) -> None:
        """Check that an add would not be refused now. Used only inside this package."""
        raise NotImplementedError

    def _send(self, run: Run) -> None:
        """Hand the adds to the segment that is written. Failures come back later, as the segment's."""
        raise NotImplementedError

    # --- adding -------------------------------------------------------------------------------------------------------

    async def add(self, payload: Payload, *, expected_position: int | None = None) -> int:
        """Append an entry; its position, once it and all before it are acknowledged (rule P1).

        Waits for room in the window, and while the writer heals. Cancelling withdraws an add that waits for room or for
        the writer; any other is added all the same. With ``expected_position`` the add is refused, before it is sent,
        unless it would get that position (rule P12). ``may_have_happened`` of an error says whether the entry may
        exist; ``log.outcome(error)`` says whether it does.

        Examples:
            >>> await writer.add(b"payload")
            0
            >>> await writer.add(b"next", expected_position=1)
            1

        Raises:
            PositionMismatchError: The entry would get another position than ``expected_position``.
            EntryTooLargeError: The payload has more than ``octavo.protocol.limits.ENTRY_PAYLOAD_BYTES_MAX`` bytes.
            InvalidArgumentError: The payload is no bytes, or the position none.
            ClientClosedError: The writer or its client is closed.
            NotLeaderError: Another client has taken the log over.
            NoSuchLogError: The log has been deleted.
            LogDamagedError: A segment of the log is lost.
            OctavoTimeoutError: It was not acknowledged within ``log_add_timeout_seconds``.
        """
        # The one path whose cost is counted per entry.
        if type(payload) is bytes and self._skips_queue and self._free_entries > 0 and expected_position is None:
            size = len(payload)
            if size <= self._free_bytes and size <= ENTRY_PAYLOAD_BYTES_MAX:
                self._free_entries -= 1
                self._free_bytes -= size
                future = self._create_future()
                self._payloads.append(payload)
                self._futures.append(future)
                if not self._turn_scheduled:
                    self._turn_scheduled = True
                    self._loop.call_soon(self._end_turn)
                try:
                    return await future
                except RuntimeError:  # asyncio's, about a future of another event loop
                    check_loop(self._loop, may_have_happened=True)
                    raise
        check_loop(self._loop)
        payload = checked_payload(payload)
        if expected_position is not None:
            check_position(expected_position, "expected_position")
        self.check_usable()
        future = self._create_future()
        self._enqueue([payload], future, expected_position)
        return await future

    def add_nowait(self, payload: Payload) -> asyncio.Future[int]:
        """Queue an entry; a future of its position.

        The future gets every failure of the entry that :meth:`add` names.

        Examples:
            >>> future = writer.add_nowait(b"payload")
            >>> await future
            0

        Raises:
            WouldBlock: The window is full, or the writer heals or rolls; nothing is queued.
            OctavoError: At once what :meth:`add` refuses a payload with, or this writer.
        """
        payload = checked_payload(payload)
        self.check_usable()
        if self._queue or self._held or not self._has_room(len(payload)):
            raise WouldBlock(
                f"the window of {self._options.window_entries} entries and {self._options.window_bytes} bytes is full, "
                "or the log is being rolled or healed"
            )
        future = self._create_future()
        self._bound(future)
        self._put_into_window(payload, future)
        return future

    async def add_many(self, payloads: Iterable[Payload]) -> range:
        """Append entries with consecutive positions; the positions, once the last is acknowledged.

        They may be more than a window. All payloads are checked before the first is queued. If it fails, a beginning
        may have been added: ``log.added(error)`` says how many.

        Examples:
            >>> await writer.add_many([b"first", b"second"])
            range(0, 2)

        Raises:
            OctavoError: As :meth:`add`.
        """
        check_loop(self._loop)
        checked = checked_payloads(payloads)
        self.check_usable()
        if not checked:
            end = self._next_position + len(self._payloads)
            return range(end, end)
        future = self._create_future()
        if len(checked) > 1:
            self._many[future] = len(checked)
        self._enqueue(checked, future, None)
        last = await future
        return range(last + 1 - len(checked), last + 1)

    async def flush(self) -> None:
        """Return once every add made so far is acknowledged, those that wait for room included (rule P17).

        Examples:
            >>> future = writer.add_nowait(b"payload")
            >>> await writer.flush()
            >>> future.result()
            0

        Raises:
            OctavoError: The writer's failure.
        """
        check_loop(self._loop)
        await self._wait_settled()
        self.check_usable()

    async def _wait_settled(self) -> None:
        """Return once every add made so far is acknowledged or refused. Does not raise what adds are refused with."""
        settled: asyncio.Future[None] = self._loop.create_future()
        self._queue.append(_Waiting((), settled, None))
        self._admit()
        if not settled.done():
            await asyncio.wait([settled])

    # --- the queue ----------------------------------------------------------------------------------------------------

    def _enqueue(self, payloads: Sequence[bytes], future: asyncio.Future[int], expected: int | None) -> None:
        waiting = _Waiting(payloads, future, expected)
        self._bound(future)
        future.add_done_callback(lambda _future: self._gone(waiting))
        self._queue.append(waiting)
        self._skips_queue = False
        self._admit()

    def _gone(self, waiting: _Waiting) -> None:
        """Its caller has gone, or has been answered. What has not found room is never let in, as :meth:`_admit` knows;
        it takes no memory, and does not keep out what is behind it."""
        if waiting.at < len(waiting.payloads):
            waiting.payloads = waiting.payloads[: waiting.at]
            if self._queue and self._queue[0] is waiting:
                self._admit()

    def _admit(self) -> None:
        """Let adds in from the queue while there is room, in order, unless its caller has gone (rule P16)."""
        queue = self._queue
        while queue:
            waiting = queue[0]
            if waiting.future.done():
                queue.popleft()
                continue
            payloads, at, last = waiting.payloads, waiting.at, len(waiting.payloads) - 1
            if not payloads:
                queue.popleft()
                self._flush_up_to(self._next_position + len(self._payloads), waiting.future)
                continue
            if self._held:
                return
            if waiting.expected is not None and not self._matches(waiting.expected):
                queue.popleft()
                self._refuse_position(waiting)
                continue
            while at <= last and self._has_room(len(payloads[at])):
                self._put_into_window(payloads[at], waiting.future if at == last else None)
                at += 1
            waiting.at = at
            if at <= last:
                return
            queue.popleft()
        self._skips_queue = not self._held and self._accepting and self._timeout_seconds is None

    def _matches(self, expected: int) -> bool:
        """Whether the next add that is let in gets this position. If so none before it is withdrawn any more."""
        if expected != self._next_position + len(self._payloads):
            return False
        self._promised = True
        return True

    def _refuse_position(self, waiting: _Waiting) -> None:
        """It has left the queue."""
        end = self._next_position + len(self._payloads)
        waiting.future.set_exception(
            PositionMismatchError(
                f"the add expected position {waiting.expected}, and would have got {end}; it was not sent", end=end
            )
        )

    # --- sending and acknowledging ------------------------------------------------------------------------------------

    @property
    def _frames_under_way(self) -> int:
        return len(self._runs)

    def _send_turn(self) -> None:
        """Fix the positions of the adds that have been collected, and send them."""
        if self._held:
            return
        if self._was_held:
            self._was_held = False
            self._withdraw_collected()
        payloads, futures = self._take_turn()
        self._promised = False
        if not payloads:
            return
        run = Run(self._next_position, payloads, futures)
        self._next_position += len(payloads)
        self._runs.append(run)
        run.in_flight = True
        self._send(run)

    def _withdraw_collected(self) -> None:
        """Forget the collected adds whose callers are gone, unless a position was promised behind them. Part of an
        ``add_many`` stays: what came before it may have been sent."""
        payloads, futures = self._payloads, self._futures
        if self._promised:
            return
        gone = {
            at for at, future in enumerate(futures) if future is not None and future.done() and future not in self._many
        }
        if not gone:
            return
        for at in gone:
            self._free_entries += 1
            self._free_bytes += len(payloads[at])
        stops = sorted(self._next_position + at for at in gone)
        self._flushes = deque((stop - bisect_left(stops, stop), flushed) for stop, flushed in self._flushes)
        self._payloads = [payload for at, payload in enumerate(payloads) if at not in gone]
        self._futures = [future for at, future in enumerate(futures) if at not in gone]
        self._settle_flushes()

    @property
    def _unacknowledged(self) -> int:
        """Adds that have a position and are not acknowledged."""
        return self._next_position - self._acknowledged_stop

    def _hold(self) -> None:
        """Send nothing from now on; what has been added this turn keeps its place."""
        self._held = self._was_held = True
        self._skips_queue = False

    def _forget_segment(self) -> None:
        """The segment failed: what it had and is not acknowledged is to be sent again."""
        for run in self._runs:
            run.in_flight = False

    def _release(self) -> None:
        """Send what no segment has, in order, then what waits in the queue."""
        self._held = False
        for run in list(self._runs):
            if self._held:  # the segment failed at once
                return
            if not run.in_flight:
                run.in_flight = True
                self._send(run)
        if not self._held:
            self._send_turn()
        self._admit()

    def _acknowledge(self, stop: int) -> None:
        """Everything below ``stop`` is acknowledged."""
        runs = self._runs
        while runs:
            run = runs[0]
            taken = stop - run.first
            if taken <= 0:
                break
            futures = run.futures
            if taken >= len(futures):
                runs.popleft()
                freed = run.bytes
            else:
                futures, run.futures = futures[:taken], futures[taken:]
                freed = sum(map(len, run.payloads[:taken]))
                run.payloads = run.payloads[taken:]
                run.bytes -= freed
            if self._room_until_full:
                self._short_entries += len(futures)
                self._short_bytes += freed
            else:
                self._free_entries += len(futures)
                self._free_bytes += freed
            for position, future in enumerate(futures, run.first):
                # Done already if the caller was cancelled; the entry was added all the same.
                if future is not None and not future.done():
                    future.set_result(position)
            run.first += len(futures)
        self._acknowledged_stop = max(self._acknowledged_stop, stop)
        self._frame_acknowledged(self._flushes)
        if self._queue:
            self._admit()
        if self._flushes:
            self._settle_flushes()

    def _have_copies(self, entries: int, payload_bytes: int) -> None:
        """``entries`` acknowledged entries need no more copies: their room is free."""
        self._short_entries -= entries
        self._short_bytes -= payload_bytes
        self._free_entries += entries
        self._free_bytes += payload_bytes
        if self._queue:
            self._admit()

    def _flush_up_to(self, stop: int, flushed: asyncio.Future[None]) -> None:
        """Answer once everything below ``stop`` is acknowledged."""
        self._flushes.append((stop, flushed))
        self._settle_flushes()
        if self._flushes:
            self._hurry()

    def _settle_flushes(self) -> None:
        """Answer the flushes of adds that are all acknowledged, or were withdrawn or refused."""
        stop = self._acknowledged_stop if self._runs or self._payloads else self._next_position
        while self._flushes and self._flushes[0][0] <= stop:
            flushed = self._flushes.popleft()[1]
            if not flushed.done():
                flushed.set_result(None)

    def _add_statistics(self, *, segment_failed: bool) -> AddStatistics:
        """Where the adds are now. ``segment_failed``: what was sent is in doubt."""
        collected, sent = self._payloads, sum(len(run.payloads) for run in self._runs)
        return AddStatistics(
            queued_entries=sum(len(waiting.payloads) - waiting.at for waiting in self._queue),
            queued_bytes=sum(sum(map(len, waiting.payloads[waiting.at :])) for waiting in self._queue),
            collected_entries=len(collected),
            collected_bytes=sum(map(len, collected)),
            unacknowledged_entries=sent,
            unacknowledged_bytes=sum(run.bytes for run in self._runs),
            in_doubt_entries=sent if segment_failed else 0,
            held_entries=self._short_entries,
            held_bytes=self._short_bytes,
            free_entries=self._free_entries,
            free_bytes=self._free_bytes,
        )

    # --- failing ------------------------------------------------------------------------------------------------------

    def _bound(self, future: asyncio.Future[int]) -> None:
        """Let the add end after the time that it may take, if there is one."""
        if self._timeout_seconds is not None:
            timer = self._loop.call_later(self._timeout_seconds, self._time_out, future)
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
        self._withdraw_collected()
        self._admit()

    def _doubt_when_late(self, future: asyncio.Future[int]) -> Doubt | None:
        """The doubt about an add that may happen although its caller is told that it is too late; None if it will
        not. Of an ``add_many``, what has found room is sent, and the others are withdrawn."""
        self._withdraw_collected()
        total = self._many.get(future, 1)
        for run in self._runs:
            if future in run.futures:
                return Doubt(*self._identity, run.first + run.futures.index(future), total)
        if future in self._futures:
            if not self._promised and future not in self._many:
                return None
            self._promised = True  # the position that the caller is told now
            return Doubt(*self._identity, self._next_position + self._futures.index(future), total)
        waiting = self._queue[0] if self._queue else None
        if waiting is None or waiting.future is not future or waiting.at == 0:
            return None
        self._promised = True
        return Doubt(*self._identity, self._next_position + len(self._payloads) - 1, waiting.at, total - waiting.at)

    def _doubt_once_refused(
        self, future: asyncio.Future[int], last: int, found_room: int | None = None
    ) -> Doubt | None:
        """The doubt about an add of which nothing more is sent; None if nothing of it was. ``last`` is the position of
        its last payload that found room, ``found_room`` how many did (None: all)."""
        total = self._many.get(future, 1)
        first = last + 1 - (total if found_room is None else found_room)
        sent = min(last + 1, self._next_position) - first
        return Doubt(*self._identity, first + sent - 1, sent, total - sent) if sent > 0 else None

    def _stop_accepting(self) -> None:
        """Every later add asks :meth:`check_usable` first."""
        self._accepting = self._skips_queue = False

    def _refuse_unsent(self, error: OctavoError) -> None:
        """Nothing is sent any more: adds that were not sent did not happen."""
        self._stop_accepting()
        self._held = True
        futures, self._futures, self._payloads = self._futures, [], []
        queue, self._queue = self._queue, deque()
        # The beginning of an add_many may have been sent in earlier turns.
        for position, future in enumerate(futures, self._next_position):
            if future is not None:
                _reject(future, error, self._doubt_once_refused(future, position))
        # No flush waits for what was collected any more.
        self._flushes = deque((min(stop, self._next_position), flushed) for stop, flushed in self._flushes)
        last = self._next_position + len(futures) - 1
        for waiting in queue:
            if waiting.payloads:
                _reject(waiting.future, error, self._doubt_once_refused(waiting.future, last, waiting.at))
            elif not waiting.future.done():
                self._flushes.append((self._next_position, waiting.future))
        self._settle_flushes()

    def _refuse_all(self, error: OctavoError) -> None:
        """The writer adds nothing any more: adds that were sent are in doubt, all others did not happen."""
        self._refuse_unsent(error)
        runs, self._runs = self._runs, deque()
        flushes, self._flushes = self._flushes, deque()
        for run in runs:
            for position, future in enumerate(run.futures, run.first):
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
