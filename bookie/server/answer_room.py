"""Look-ups wait here for their turn: per connection in the order of the requests, over all connections as the rules of
``answer_budget`` say.

A look-up that may not begin is tried again when one of its own connection is over or its socket has drained, and every
``LOOK_SECONDS``, when all sockets are looked at anew. One whose connection holds nothing waits for room alone: it is
tried whenever any look-up is over, the longest waiting first.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from octavo.bookie.server.answer_budget import AnswerBudget, Grant, Share
from octavo.protocol.entries import SEALED_BYTES_MAX
from octavo.protocol.limits import FRAME_BYTES_MAX

READS_AT_ONCE = 8
"""Look-ups of one connection that run at a time: enough to keep a disk busy."""

READ_BYTES_AT_ONCE = 8 * 1024 * 1024
"""What they may bring together, as they were granted, or one of them alone. Eight reads of our clients fit."""

ANSWER_BYTES_MIN = 4 * FRAME_BYTES_MAX
"""Least size of a room: the largest answer must find place beside another one."""

LOOK_SECONDS = 0.05
"""Between two looks at the sockets while somebody waits."""

WATCH_SECONDS = 1.0
"""The same while nobody waits and only stalled peers are looked for."""


class Wanted(NamedTuple):
    """A look-up that has yet to begin."""

    entry_bytes: int
    """Asked for, of entries."""
    least: int
    beside: int
    """See :meth:`AnswerBudget.grant`."""
    begin: Callable[[Grant], None]


class AnswerQueue:
    """The look-ups of one connection. :meth:`finished` must follow every grant."""

    def __init__(
        self,
        room: "AnswerRoom",
        *,
        unsent_bytes: Callable[[], int],
        sent_bytes: Callable[[], int],
        put_out: Callable[[float, int], None],
    ) -> None:
        """``unsent_bytes`` wait for the socket now, of the ``sent_bytes`` given to it since the start. ``put_out`` ends
        the connection; it is told for how many seconds how many bytes have not been taken."""
        self._room = room
        self._unsent_bytes = unsent_bytes
        self._sent_bytes = sent_bytes
        self.put_out = put_out
        self.share = Share()
        self.paused = False
        """While the socket has more than it can take nothing begins."""
        self.waiting: deque[Wanted] = deque()
        self._running = 0
        self._granted_bytes = 0
        self._forgotten = False

    def put(
        self, entry_bytes: int, begin: Callable[[Grant], None], *, least: int = SEALED_BYTES_MAX, beside: int = 0
    ) -> None:
        """``begin`` is called in this step, or when it is this look-up's turn."""
        self.waiting.append(Wanted(entry_bytes, least, beside, begin))
        self.go()

    async def turn(self, entry_bytes: int, *, least: int = SEALED_BYTES_MAX, beside: int = 0) -> Grant:
        """Leave for a look-up, waited for."""
        future: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()

        def begin(grant: Grant) -> None:
            if future.done():
                self.finished(grant)
            else:
                future.set_result(grant)

        self.put(entry_bytes, begin, least=least, beside=beside)
        return await future

    def go(self) -> None:
        """Begin whatever may begin now."""
        while self.waiting and not self.paused and self._running < READS_AT_ONCE:
            wanted = self.waiting[0]
            if self._running and self._granted_bytes + wanted.entry_bytes > READ_BYTES_AT_ONCE:
                break  # goes on when one of its own is over
            grant = self._room.budget.grant(self.share, wanted.entry_bytes, least=wanted.least, beside=wanted.beside)
            if grant is None:
                self._room.wait(self)
                return
            self.waiting.popleft()
            self._running += 1
            self._granted_bytes += grant.bytes_max
            wanted.begin(grant)
        self._room.wait_no_longer(self)

    def finished(self, grant: Grant) -> None:
        """The look-up is over, and its answer has been given to the socket."""
        if self._forgotten:
            return
        self._running -= 1
        self._granted_bytes -= grant.bytes_max
        self._room.budget.release(self.share, grant)
        self.look()
        self.go()
        self._room.serve_starved()

    def look(self) -> None:
        """See what the socket has taken."""
        unsent = self._unsent_bytes()
        taken = self._sent_bytes() - unsent
        self._room.budget.observe(self.share, unsent=unsent, taken=taken, now=asyncio.get_running_loop().time())
        if unsent:
            self._room.watch()

    def forget(self) -> None:
        """The connection is gone: what waits never begins."""
        self.waiting.clear()
        self._forgotten = True
        self._room.leave(self)


class AnswerRoom:
    """The memory for answers of all connections, and who waits for some of it."""

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max >= ANSWER_BYTES_MIN, f"answers need {ANSWER_BYTES_MIN} bytes at least"
        self.budget = AnswerBudget(bytes_max)
        self.put_out = 0
        """Connections ended because they took nothing."""
        self._queues: dict[Share, AnswerQueue] = {}
        self._waiting: dict[AnswerQueue, None] = {}
        self._starved: dict[AnswerQueue, None] = {}
        """Of those that wait: they hold nothing."""
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._closed = False

    def enter(self, queue: AnswerQueue) -> None:
        self._queues[queue.share] = queue

    def leave(self, queue: AnswerQueue) -> None:
        self.wait_no_longer(queue)
        self.budget.forget(queue.share)
        self._queues.pop(queue.share, None)
        self.serve_starved()

    def wait(self, queue: AnswerQueue) -> None:
        self._waiting[queue] = None
        if queue.share.held:
            self._starved.pop(queue, None)
        else:
            self._starved[queue] = None
        self._look_in(LOOK_SECONDS)

    def wait_no_longer(self, queue: AnswerQueue) -> None:
        if self._waiting:
            self._waiting.pop(queue, None)
            self._starved.pop(queue, None)

    def watch(self) -> None:
        """Somebody has something to take."""
        if self._timer is None:
            self._look_in(WATCH_SECONDS)

    def serve_starved(self) -> None:
        """Those that hold nothing, the longest waiting first, as far as the room goes."""
        for queue in list(self._starved):
            queue.go()
            if queue in self._starved:
                return

    def close(self) -> None:
        """No more looks."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _look_in(self, seconds: float) -> None:
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
            self._queues[share].look()
        self.serve_starved()
        for queue in list(self._waiting):
            queue.go()
        now = asyncio.get_running_loop().time()
        for share in self.budget.stalled(now, room_is_wanted=bool(self._starved)):
            self.put_out += 1
            self._queues[share].put_out(now - share.moved_at, share.unsent)
        if self._waiting:
            self._look_in(LOOK_SECONDS)
        elif self.budget.held:
            self._look_in(WATCH_SECONDS)
