"""Queues look-ups until there is memory for their answers. The look-ups of one connection begin in the order of the
requests; ``answer_budget`` decides which connection may begin one.

A look-up that may not begin is tried again when another one of its connection has ended or its socket has drained, and
every ``observe_seconds``, when all sockets are observed. A look-up whose connection holds nothing is *starved*: it
waits for memory alone, and is tried whenever any look-up has ended, the longest waiting first.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from octavo.bookie.memory.answer_budget import (
    STALLED_SECONDS_MAX,
    STALLED_SECONDS_MIN,
    AnswerBudget,
    Grant,
    Share,
)
from octavo.protocol.entries import SEALED_BYTES_MAX
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.limits import FRAME_BYTES_MAX

READS_AT_ONCE = 8
"""Look-ups of one connection that run at a time: enough to keep a disk busy."""

READ_BYTES_AT_ONCE = 8 * 1024 * 1024
"""Total bytes granted to them at a time, unless a single one needs more. Eight reads of Octavo's client fit."""

ANSWER_BYTES_MIN = 4 * FRAME_BYTES_MAX
"""Least memory for answers: the largest answer must fit beside another one."""


@dataclass(frozen=True, slots=True)
class AnswerTiming:
    """How often sockets are observed, and when a client that does not read its responses is evicted. Seconds."""

    observe_seconds: float = 0.05
    """Interval while a look-up waits."""
    watch_seconds: float = 1.0
    """Interval while none waits and only stalled clients are looked for."""
    stalled_seconds_max: float = STALLED_SECONDS_MAX
    stalled_seconds_min: float = STALLED_SECONDS_MIN
    """See ``answer_budget``."""


class Demand(NamedTuple):
    """The memory that an answer asks for; see :meth:`AnswerBudget.grant`."""

    entry_bytes: int
    entry_bytes_min: int = SEALED_BYTES_MAX
    other_bytes: int = 0


class _Waiting(NamedTuple):
    """A look-up that has yet to begin."""

    demand: Demand
    begin: Callable[[Grant], None]


class AnswerQueue:
    """The look-ups of one connection. :meth:`finish` must follow every grant."""

    def __init__(
        self,
        memory: "AnswerMemory",
        *,
        unsent_bytes: Callable[[], int],
        written_bytes: Callable[[], int],
        evict: Callable[[float, int], None],
    ) -> None:
        """``written_bytes`` returns the bytes written to the socket since the connection began, ``unsent_bytes`` how
        many of them are still in its buffer. ``evict`` ends the connection; its arguments are the seconds without
        progress and the unsent bytes."""
        self._memory = memory
        self._unsent_bytes = unsent_bytes
        self._written_bytes = written_bytes
        self.evict = evict
        self.share = Share()
        self.paused = False
        """True while the socket is congested: no look-up begins."""
        self._waiting: deque[_Waiting] = deque()
        self._running = 0
        self._granted_bytes = 0
        self._closed = False

    @property
    def waiting(self) -> int:
        """Look-ups that have yet to begin."""
        return len(self._waiting)

    def put(self, demand: Demand, begin: Callable[[Grant], None]) -> None:
        """Queue a look-up. ``begin`` is called when it is its turn, which may be in this step."""
        self._waiting.append(_Waiting(demand, begin))
        self.start_ready()

    async def wait_turn(self, demand: Demand) -> Grant:
        """Queue a look-up and wait for its turn."""
        future: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()

        def begin(grant: Grant) -> None:
            if future.done():
                self.finish(grant)
            else:
                future.set_result(grant)

        self.put(demand, begin)
        return await future

    def start_ready(self) -> None:
        """Begin the look-ups that may begin now."""
        while self._waiting and not self.paused and self._running < READS_AT_ONCE:
            demand, begin = self._waiting[0]
            if self._running and self._granted_bytes + demand.entry_bytes > READ_BYTES_AT_ONCE:
                break  # continues when another look-up of this connection has ended
            grant = self._memory.budget.grant(
                self.share, demand.entry_bytes, entry_bytes_min=demand.entry_bytes_min, other_bytes=demand.other_bytes
            )
            if grant is None:
                self._memory.add_waiting(self)
                return
            self._waiting.popleft()
            self._running += 1
            self._granted_bytes += grant.bytes_max
            begin(grant)
        self._memory.remove_waiting(self)

    def finish(self, grant: Grant) -> None:
        """Release the grant of a look-up that has ended and whose answer has been written to the socket."""
        if self._closed:
            return
        self._running -= 1
        self._granted_bytes -= grant.bytes_max
        self._memory.budget.release(self.share, grant)
        self.observe_socket()
        self.start_ready()
        self._memory.start_starved()

    def observe_socket(self) -> None:
        """Report to the budget how much the socket has sent."""
        unsent = self._unsent_bytes()
        taken = self._written_bytes() - unsent
        self._memory.budget.observe(self.share, unsent=unsent, taken=taken, now=asyncio.get_running_loop().time())
        if unsent:
            self._memory.watch()

    def close(self) -> None:
        """Drop the waiting look-ups, because the connection is lost."""
        self._waiting.clear()
        self._closed = True
        self._memory.remove_queue(self)


class AnswerMemory:
    """The memory for answers of all connections, and the queues that wait for some of it."""

    def __init__(self, bytes_max: int, timing: AnswerTiming | None = None) -> None:
        assert bytes_max >= ANSWER_BYTES_MIN, f"answers need {ANSWER_BYTES_MIN} bytes at least"
        self._timing = timing or AnswerTiming()
        self.budget = AnswerBudget(
            bytes_max,
            stalled_seconds_max=self._timing.stalled_seconds_max,
            stalled_seconds_min=self._timing.stalled_seconds_min,
        )
        self.connections_evicted = 0
        """Connections closed because their clients did not read responses."""
        self._queues: dict[Share, AnswerQueue] = {}
        self._waiting: dict[AnswerQueue, None] = {}
        self._starved: dict[AnswerQueue, None] = {}
        """The waiting queues whose connections hold nothing."""
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._closed = False

    @property
    def is_watching(self) -> bool:
        """Whether another look at the sockets is due."""
        return self._timer is not None

    def add_queue(self, queue: AnswerQueue) -> None:
        self._queues[queue.share] = queue

    def remove_queue(self, queue: AnswerQueue) -> None:
        self.remove_waiting(queue)
        self.budget.forget(queue.share)
        self._queues.pop(queue.share, None)
        self.start_starved()

    def add_waiting(self, queue: AnswerQueue) -> None:
        """Note that the queue waits for memory, and have its sockets observed meanwhile."""
        self._waiting[queue] = None
        if queue.share.held:
            self._starved.pop(queue, None)
        else:
            self._starved[queue] = None
        self._observe_within(self._timing.observe_seconds)

    def remove_waiting(self, queue: AnswerQueue) -> None:
        """Note that the queue no longer waits for memory."""
        if self._waiting:
            self._waiting.pop(queue, None)
            self._starved.pop(queue, None)

    def watch(self) -> None:
        """Make sure that the sockets are observed, because one of them has unsent bytes."""
        if self._timer is None:
            self._observe_within(self._timing.watch_seconds)

    def start_starved(self) -> None:
        """Begin look-ups of starved queues, the longest waiting first, as far as the memory goes."""
        for queue in list(self._starved):
            queue.start_ready()
            if queue in self._starved:
                return

    def close(self) -> None:
        """Stop observing the sockets."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _observe_within(self, seconds: float) -> None:
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        due_at = loop.time() + seconds
        if self._timer is not None:
            if self._due_at <= due_at:
                return
            self._timer.cancel()
        self._due_at = due_at
        self._timer = loop.call_at(due_at, self._look)

    def _look(self) -> None:
        self._timer = None
        for share in self.budget.holding:
            self._queues[share].observe_socket()
        self.start_starved()
        for queue in list(self._waiting):
            queue.start_ready()
        now = asyncio.get_running_loop().time()
        for share in self.budget.stalled(now, memory_is_wanted=bool(self._starved)):
            self.connections_evicted += 1
            self._queues[share].evict(now - share.progress_at, share.unsent)
        if self._waiting:
            self._observe_within(self._timing.observe_seconds)
        elif self.budget.held:
            self._observe_within(self._timing.watch_seconds)
