"""The front of a writer: the adds of its callers, from the call to the answer. It knows no bookies.

Two windows bound the adds that are not acknowledged, one by their number and one by their bytes: that is the *room*.
What finds room is collected until the turn of the event loop ends; then it is sent together, or waits for later adds
while a frame is under way (:mod:`octavo.client.write.front.batching`). What finds none waits in the *queue*, first in,
first out; while the queue is not empty every later add joins it.

::

    add -> [queue] -> the turn's adds -> batches, sent -> acknowledged
           no room,   found room         position fixed
           or held

An add's position is fixed when it is *sent*, and never changes afterwards. A front that is *held* sends nothing: adds
gather in the queue, and those that were collected in the turn in which the hold began stay collected. They have no
position either.

A front *withdraws* adds, or does not. Where it does, an add without a position whose caller is cancelled did not happen
(rule P16). What decides is the add's future, in the step that looks: while it is open the add is let in and sent; once
it is done, whatever made it so, nothing of the add is let in any more. So a time-out or a cancellation and the answer
that makes room, or ends the hold, may fall into one turn of the loop in any order.

Per entry all of this costs one future and two list appends; everything else is per turn. :func:`short_way` is the path
of an add that finds room.
"""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, MutableMapping, Sequence
from functools import wraps
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

from octavo.client.arguments import check_position
from octavo.client.options import ClientOptions
from octavo.client.same_loop import check_loop
from octavo.client.write.front.adds import EMPTY_DEQUE, Payload, checked_payload, checked_payloads
from octavo.client.write.front.batching import (
    FLOW_ADDS_MIN,
    WAIT_SECONDS_MAX,
    Flow,
    earliest_next_frame,
    interval_left,
    should_wait_for_more,
)
from octavo.client.write.front.precise_time import precise_time_of
from octavo.protocol.errors import OctavoError, PositionMismatchError
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from octavo.security import forks

type Futures = list[asyncio.Future[Any] | None]
"""One item per entry; None for an entry without a future of its own (all but the last of an ``add_many``)."""


class Batch:
    """Adds of one turn, which were sent together: consecutive positions from ``first`` on."""

    __slots__ = ("first", "futures", "in_flight", "payloads")

    def __init__(self, first: int, payloads: list[bytes], futures: Futures) -> None:
        self.first = first
        self.payloads = payloads
        self.futures = futures
        self.in_flight = True
        """Whether it was handed on, to what takes it at present: it must not be handed to that again."""


class Waiting:
    """Payloads that wait for room; those before ``at`` have found it. ``future`` is that of the last one. Without
    payloads: a flush, which waits for what is before it in the queue, and then for its acknowledgement."""

    __slots__ = ("at", "count", "expected", "future", "payloads")

    def __init__(self, payloads: Sequence[bytes], future: asyncio.Future[Any], expected: int | None = None) -> None:
        self.payloads = payloads
        self.count = len(payloads)
        """How many there were."""
        self.future = future
        self.expected = expected
        """The position that the add must get, if it says so."""
        self.at = 0


type AtTurnEnd = Callable[[Callable[[], None]], object]
"""Calls a step once, when the turn of the event loop ends (:meth:`octavo.client.wire.turn.Turn.at_end`)."""


class FrontSide(NamedTuple):
    """The writer that a front is a part of, as the front sees it: what it is told, and asked."""

    send_turn: Callable[[], None]
    """Send the adds that have been collected (:meth:`Front.take_batch`), or leave them where they are."""
    check_usable: Callable[[], None]
    """Raise what an add would be refused with now."""
    refuse_for_ever: Callable[[OctavoError], None]
    """Let every add from now on raise the error. Nothing else: the process is not this writer's own."""
    queued: Callable[[Waiting], None] | None = None
    """An add is about to join the queue; None: there is nothing to be noted of it."""


class Front:
    """See the module. One writer has it as a part, and calls everything here but :meth:`on_forked`."""

    __slots__ = (
        *("__weakref__", "_flow", "_frame_interval_seconds", "_has_short_way", "_next_frame_at", "_now", "_options"),
        *(
            "_side",
            "_wait_seconds_max",
            "_wait_timer",
            "_waits_until",
            "_was_held",
            "_withdraws",
            "accepting",
            "acknowledged_stop",
            "at_turn_end",
        ),
        *("batches", "create_future", "flushes", "free_bytes", "free_entries", "futures", "held", "loop", "many"),
        *("next_position", "payloads", "promised", "queue", "queued_entries", "room_is_held", "short_bytes"),
        *("short_entries", "skips_queue", "turn_scheduled"),
    )

    def __init__(
        self,
        options: ClientOptions,
        side: FrontSide,
        at_turn_end: AtTurnEnd,
        *,
        withdraws: bool = False,
        has_short_way: bool = True,
        wait_seconds_max: float = WAIT_SECONDS_MAX,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """``has_short_way``: an add that finds room need not be told to ``side`` first. ``wait_seconds_max``: the
        longest time that adds wait for later adds to join their frame. ``clock`` gives the seconds by which frames are
        due; None: the loop's, with more than whole milliseconds."""
        self._options, self._side = options, side
        self._withdraws, self._has_short_way = withdraws, has_short_way
        self._wait_seconds_max = wait_seconds_max
        self.loop = asyncio.get_running_loop()
        self.at_turn_end = at_turn_end
        self.create_future: Callable[[], asyncio.Future[Any]] = self.loop.create_future
        self.accepting = True
        """Whether it takes adds; once it does not, every add asks :attr:`FrontSide.check_usable` first."""
        self.held = False
        """Whether nothing is sent at present."""
        self._was_held = False
        """Since adds were sent last: callers of collected adds may have gone."""
        self.skips_queue = has_short_way
        """Whether an add that finds room may skip the queue: the queue is empty, and the front takes adds as they come.
        Derived; checked for every add."""
        self.promised = False
        """An add that is collected expects the position that it has among them: none of them is withdrawn."""

        self.free_entries, self.free_bytes = options.window_entries, options.window_bytes
        self.room_is_held = False
        """Whether an entry takes room until :meth:`free_room` says otherwise, and not only until it is acknowledged."""
        self.short_entries = 0
        """Acknowledged entries that take room."""
        self.short_bytes = 0
        """Their payload bytes."""

        self.many: MutableMapping[asyncio.Future[Any], int] = WeakKeyDictionary() if withdraws else {}
        """How many payloads the ``add_many`` of a future has; only where adds may be withdrawn."""
        self.queue: deque[Waiting] = EMPTY_DEQUE
        self.queued_entries = 0
        """Payloads in the queue that have not found room, those of callers who have gone included."""
        self.payloads: list[bytes] = []
        """Collected, and not sent."""
        self.futures: Futures = []
        self.batches: deque[Batch] = EMPTY_DEQUE
        """Sent, and not acknowledged."""
        self.flushes: deque[tuple[int, asyncio.Future[None]]] = EMPTY_DEQUE
        """Of each caller that waits for an acknowledgement: the position after the last that it waits for."""
        self.next_position = 0
        """Of the next add that is sent."""
        self.acknowledged_stop = 0
        """All positions below are acknowledged."""

        self.turn_scheduled = False
        self._wait_timer: asyncio.Handle | None = None
        """Runs while adds wait for later ones, until :attr:`_waits_until` on the loop's clock."""
        self._waits_until = 0.0
        self._now = precise_time_of(self.loop) if clock is None else clock
        self._flow = Flow()
        self._frame_interval_seconds = options.frame_interval_seconds
        self._next_frame_at = 0.0
        """Before this time of the loop few adds are not sent; only with an interval between frames."""
        forks.hold(self)

    def begin_at(self, position: int) -> None:
        """The first add gets this position."""
        self.next_position = self.acknowledged_stop = position

    def on_forked(self) -> None:
        """In a forked child no add takes the short way any more, and the long one is refused (rule H1)."""
        self.stop_accepting()
        self._side.refuse_for_ever(forks.forked_error())

    # --- what is known --------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """The position that the next add gets which is let in."""
        return self.next_position + len(self.payloads)

    @property
    def pending(self) -> int:
        """Adds made and not acknowledged, those that wait for room included."""
        return self.end + self.queued_entries - self.acknowledged_stop

    def has_room(self, size: int) -> bool:
        """Whether the windows have room. A payload larger than the whole window of bytes is let in when no other add is
        unacknowledged."""
        return self.free_entries > 0 and (size <= self.free_bytes or self.free_entries == self._options.window_entries)

    def would_wait(self, size: int) -> bool:
        """Whether an add of ``size`` bytes would have to wait."""
        return bool(self.queue) or self.held or not self.has_room(size)

    # --- adding ---------------------------------------------------------------------------------------------------

    def put(self, payload: bytes, future: asyncio.Future[Any] | None) -> None:
        """Add to the adds of this turn; the caller has checked that there is room. :func:`short_way` does the same."""
        self.free_entries -= 1
        self.free_bytes -= len(payload)
        self.payloads.append(payload)
        self.futures.append(future)
        if not self.turn_scheduled:
            self.turn_scheduled = True
            self.at_turn_end(self._end_turn)

    def begin(self, payload: Payload, expected: int | None = None) -> asyncio.Future[Any]:
        """The long way of an add: the future of its position. It waits for room if there is none."""
        check_loop(self.loop)
        payload = checked_payload(payload)
        if expected is not None:
            check_position(expected, "expected_position")
        self._side.check_usable()
        future = self.create_future()
        self.enqueue(Waiting((payload,), future, expected))
        return future

    async def add_many(self, payloads: Iterable[Payload]) -> range:
        """Add under consecutive positions, and return them once the last is acknowledged."""
        check_loop(self.loop)
        checked = checked_payloads(payloads)
        self._side.check_usable()
        if not checked:
            return range(self.end, self.end)
        future = self.create_future()
        self.enqueue(Waiting(checked, future))
        last = await future
        return range(last + 1 - len(checked), last + 1)

    def enqueue(self, waiting: Waiting) -> None:
        """Append to the queue, whether there is room or not. The caller limits the size of the queue."""
        if self._withdraws and waiting.count > 1:
            self.many[waiting.future] = waiting.count
        if self._side.queued is not None:
            self._side.queued(waiting)
        if self.queue is EMPTY_DEQUE:
            self.queue = deque()
        self.queue.append(waiting)
        self.queued_entries += waiting.count
        self.skips_queue = False
        self.admit()

    def wait_settled(self) -> asyncio.Future[None]:
        """Answered once every add made so far is acknowledged, or was withdrawn or refused."""
        settled: asyncio.Future[None] = self.loop.create_future()
        if self.queue is EMPTY_DEQUE:
            self.queue = deque()
        self.queue.append(Waiting((), settled))
        self.admit()
        return settled

    def withdraw_queued(self, waiting: Waiting) -> None:
        """Its caller has gone, or has been answered. What has not found room is never let in, as :meth:`admit` knows;
        it takes no memory, and does not keep out what is behind it."""
        if waiting.at < len(waiting.payloads):
            waiting.payloads = waiting.payloads[: waiting.at]
            if self.queue and self.queue[0] is waiting:
                self.admit()

    def admit(self) -> None:
        """Let adds in from the queue while there is room, in order, unless their caller has gone (rule P16)."""
        queue = self.queue
        while queue:
            waiting = queue[0]
            if self._withdraws and waiting.future.done():
                self._drop_first()
                continue
            payloads, at, last = waiting.payloads, waiting.at, len(waiting.payloads) - 1
            if not payloads:
                queue.popleft()
                self.answer_up_to(self.end, waiting.future)
                continue
            if self.held:
                return
            if waiting.expected is not None and not self._matches(waiting.expected):
                self._drop_first()
                self._refuse_position(waiting)
                continue
            while at <= last and self.has_room(len(payloads[at])):
                self.put(payloads[at], waiting.future if at == last else None)
                at += 1
            self.queued_entries -= at - waiting.at
            waiting.at = at
            if at <= last:
                return
            queue.popleft()
        self.skips_queue = self._has_short_way and self.accepting and not self.held

    def _drop_first(self) -> None:
        waiting = self.queue.popleft()
        self.queued_entries -= waiting.count - waiting.at

    def _matches(self, expected: int) -> bool:
        """Whether the next add that is let in gets this position. If so none before it is withdrawn any more."""
        if expected != self.end:
            return False
        self.promised = True
        return True

    def _refuse_position(self, waiting: Waiting) -> None:
        """It has left the queue."""
        end = self.end
        waiting.future.set_exception(
            PositionMismatchError(
                f"the add expected position {waiting.expected}, and would have got {end}; it was not sent", end=end
            )
        )

    # --- sending --------------------------------------------------------------------------------------------------

    def _end_turn(self) -> None:
        """The turn of the loop has ended: send its adds, unless they wait for later ones."""
        self.turn_scheduled = False
        payloads = self.payloads
        due_at = self._flow.due_at
        early = due_at > 0.0 and self._now() < due_at
        waits = (early or self.batches) and should_wait_for_more(len(self.batches), payloads, early=early)
        if payloads and not waits:
            if self._frame_interval_seconds and (
                left := interval_left(payloads, self.loop.time(), self._next_frame_at)
            ):
                self._send_in(left)
            else:
                self._side.send_turn()
        elif payloads and self._wait_timer is None:
            self._waits_until = self.loop.time() + self._wait_seconds_max
            self._wait_timer = self.loop.call_at(self._waits_until, self._waited_in_full)

    def _waited_in_full(self) -> None:
        self._flow.on_waited_in_full(self._now())
        self._side.send_turn()

    def _send_in(self, seconds: float) -> None:
        """Send what has been collected, and what is added until then, after this time. It replaces the longest wait for
        an acknowledgement, which has come."""
        at = self.loop.time() + seconds
        if self._wait_timer is not None:
            if self._waits_until <= at:
                return
            self._wait_timer.cancel()
        self._waits_until = at
        self._wait_timer = self.loop.call_at(at, self._side.send_turn)

    def take_batch(self) -> Batch | None:
        """Fix the positions of the adds that have been collected, which are sent now; None: there is nothing to send,
        or the front is held."""
        if self.held:
            return None
        if self._was_held:
            self._was_held = False
            self.withdraw_collected()
        if self._wait_timer is not None:
            self._wait_timer.cancel()
            self._wait_timer = None
        payloads, self.payloads = self.payloads, []
        futures, self.futures = self.futures, []
        self.promised = False
        flow = self._flow
        flow.sent_at = self._now()
        if flow.due_at:
            flow.on_sent()
        if self._frame_interval_seconds:
            self._next_frame_at = earliest_next_frame(self.loop.time(), self._frame_interval_seconds, len(payloads))
        if not payloads:
            return None
        batch = Batch(self.next_position, payloads, futures)
        self.next_position += len(payloads)
        if self.batches is EMPTY_DEQUE:
            self.batches = deque()
        self.batches.append(batch)
        return batch

    def withdraw_collected(self) -> None:
        """Forget the collected adds whose callers are gone, unless a position was promised behind them. Part of an
        ``add_many`` stays: what came before it may have been sent."""
        payloads, futures = self.payloads, self.futures
        if self.promised:
            return
        gone = {
            at for at, future in enumerate(futures) if future is not None and future.done() and future not in self.many
        }
        if not gone:
            return
        for at in gone:
            self.free_entries += 1
            self.free_bytes += len(payloads[at])
        stops = sorted(self.next_position + at for at in gone)
        self.flushes = deque((stop - bisect_left(stops, stop), flushed) for stop, flushed in self.flushes)
        self.payloads = [payload for at, payload in enumerate(payloads) if at not in gone]
        self.futures = [future for at, future in enumerate(futures) if at not in gone]
        self.settle_flushes()

    def hold(self) -> None:
        """Send nothing from now on; what has been added this turn keeps its place."""
        self.held = self._was_held = True
        self.skips_queue = False

    def leave_short_way(self) -> None:
        """Every later add goes the long way: its caller changes payloads first."""
        self._has_short_way = self.skips_queue = False

    def stop_accepting(self) -> None:
        """Every later add is asked about first."""
        self.accepting = self.skips_queue = False

    # --- acknowledging --------------------------------------------------------------------------------------------

    def bytes_below(self, stop: int) -> int:
        """How many payload bytes below this position were sent and are not acknowledged."""
        return sum(len(payload) for batch in self.batches for payload in batch.payloads[: max(stop - batch.first, 0)])

    def acknowledge(self, stop: int, payload_bytes: int) -> None:
        """Everything below the position ``stop`` is acknowledged, ``payload_bytes`` more than before: tell the callers;
        what waits may be sent now."""
        entries = max(stop - self.acknowledged_stop, 0)
        self.acknowledged_stop += entries
        if self.room_is_held:
            self.short_entries += entries
            self.short_bytes += payload_bytes
        else:
            self.free_entries += entries
            self.free_bytes += payload_bytes
        batches = self.batches
        while batches:
            batch = batches[0]
            taken = stop - batch.first
            if taken <= 0:
                break
            futures = batch.futures
            if taken >= len(futures):
                batches.popleft()
            else:
                futures, batch.futures = futures[:taken], futures[taken:]
                batch.payloads = batch.payloads[taken:]
            for position, future in enumerate(futures, batch.first):
                # Done already if the caller was cancelled; the entry was added all the same.
                if future is not None and not future.done():
                    future.set_result(position)
            batch.first += len(futures)
        payloads = self.payloads
        # While callers wait for all adds, these wait for no later ones.
        if len(payloads) >= FLOW_ADDS_MIN and not self.flushes:
            self._flow.on_acknowledged(self._now(), len(payloads), self.free_entries, self.free_bytes)
        if payloads and not self.turn_scheduled:
            # Adds that wait may leave, with those that the callers add now.
            self.turn_scheduled = True
            self.at_turn_end(self._end_turn)
        if self.queue:
            self.admit()
        if self.flushes:
            self.settle_flushes()

    def free_room(self, entries: int, payload_bytes: int) -> None:
        """Acknowledged entries need no room any more; only where :attr:`room_is_held`."""
        self.short_entries -= entries
        self.short_bytes -= payload_bytes
        self.free_entries += entries
        self.free_bytes += payload_bytes
        if self.queue:
            self.admit()

    def answer_up_to(self, stop: int, flushed: asyncio.Future[None]) -> None:
        """Answer once everything below the position ``stop`` is acknowledged. Adds that were made so far wait for no
        later ones."""
        if self.flushes is EMPTY_DEQUE:
            self.flushes = deque()
        self.flushes.append((stop, flushed))
        self.settle_flushes()
        if self.flushes and self._flow.due_at:
            self._flow.give_up()
            if self.payloads and not self.turn_scheduled:
                self.turn_scheduled = True
                self.at_turn_end(self._end_turn)

    def settle_flushes(self) -> None:
        """Answer the flushes of adds that are all acknowledged, or were withdrawn or refused."""
        stop = self.acknowledged_stop if self.batches or self.payloads else self.next_position
        while self.flushes and self.flushes[0][0] <= stop:
            flushed = self.flushes.popleft()[1]
            if not flushed.done():
                flushed.set_result(None)

    # --- failing --------------------------------------------------------------------------------------------------

    def give_up_unsent(self) -> tuple[Futures, deque[Waiting]]:
        """Forget what was not sent: the futures of what was collected, from :attr:`next_position` on, and what waited
        for room. Nothing is accepted any more."""
        self.stop_accepting()
        futures, self.futures, self.payloads = self.futures, [], []
        queue, self.queue, self.queued_entries = self.queue, EMPTY_DEQUE, 0
        return futures, queue

    def give_up_sent(self) -> tuple[deque[Batch], deque[tuple[int, asyncio.Future[None]]]]:
        """Forget what was sent and is not acknowledged, and who waits for that."""
        batches, self.batches = self.batches, EMPTY_DEQUE
        flushes, self.flushes = self.flushes, EMPTY_DEQUE
        return batches, flushes


def short_way[Add: Callable[..., Coroutine[Any, Any, Any]]](long_way: Add) -> Add:
    """Make an ``add`` of a class that has a front as ``_front``: an add that finds room skips the queue, and any other
    goes the ``long_way``.

    The lines of :meth:`Front.put` are written out here, because no other path's cost counts for every single entry."""

    @wraps(long_way)
    async def add(self: Any, payload: Payload, **others: Any) -> Any:
        front: Front = self._front
        if type(payload) is bytes and front.skips_queue and front.free_entries > 0 and not others:
            size = len(payload)
            if size <= front.free_bytes and size <= ENTRY_PAYLOAD_BYTES_MAX:
                front.free_entries -= 1
                front.free_bytes -= size
                future = front.create_future()
                front.payloads.append(payload)
                front.futures.append(future)
                if not front.turn_scheduled:
                    front.turn_scheduled = True
                    front.at_turn_end(front._end_turn)
                try:
                    return await future
                except RuntimeError:  # asyncio's, about a future of another event loop
                    check_loop(front.loop, may_have_happened=True)
                    raise
        return await long_way(self, payload, **others)

    return cast(Add, add)
