"""The end of a turn of the event loop: the writers of a client cut what was added in the turn into frames, then each
connection sends what the writers have posted to it.

So what all ledgers of a client have for one bookie in a turn leaves in one frame, and the end of a turn costs one
callback of the loop, however many ledgers were written. Neither do ledgers have timers of their own for what is to be
looked at a little later (:meth:`Turn.at_end_after`).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol


class Posted(Protocol):
    """A connection to which something was posted in this turn."""

    def send_posted(self) -> None:
        """Send it."""


class Turn:
    """See the module. One a client; used from one event loop."""

    __slots__ = ("_connections", "_delayed", "_loop", "_scheduled", "_steps", "_timer", "_timer_due_at")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._steps: list[Callable[[], None]] = []
        self._connections: list[Posted] = []
        self._scheduled = False
        self._delayed: dict[float, deque[tuple[float, Callable[[], None]]]] = {}
        """Delay -> the steps with this delay and when each is due, in this order."""
        self._timer: asyncio.Handle | None = None
        """Runs while a step is delayed, until the first one is due."""
        self._timer_due_at = 0.0

    def at_end(self, step: Callable[[], None]) -> None:
        """Call ``step`` once, when the turn ends: before the connections send what was posted to them. During the end
        of a turn: when the next one ends."""
        self._steps.append(step)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._end)

    def at_end_after(self, seconds: float, step: Callable[[], None]) -> None:
        """Call ``step`` once, at the end of a turn that begins ``seconds`` from now or later: callers who were answered
        meanwhile have added what they add next. Steps are delayed by few different times."""
        due_at = self._loop.time() + seconds
        delayed = self._delayed.get(seconds)
        if delayed is None:
            delayed = self._delayed[seconds] = deque()
        delayed.append((due_at, step))
        if self._timer is None or due_at < self._timer_due_at:
            self._arm(due_at)

    def _arm(self, due_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_due_at = self._loop.call_at(due_at, self._due), due_at

    def _due(self) -> None:
        self._timer = None
        self.at_end(self._end_delays)

    def _end_delays(self) -> None:
        now = self._loop.time()
        due = []
        for seconds, delayed in list(self._delayed.items()):
            while delayed and delayed[0][0] <= now:
                due.append(delayed.popleft()[1])
            if not delayed:
                del self._delayed[seconds]
        if self._timer is None and self._delayed:
            self._arm(min(delayed[0][0] for delayed in self._delayed.values()))
        self._perform(due)

    def sends(self, connection: Posted) -> None:
        """Something was posted to the connection, for the first time in this turn. The caller asks once a turn."""
        self._connections.append(connection)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        """Neither list is empty afterwards if the process is being interrupted: what is left is for the next turn."""
        try:
            steps, self._steps = self._steps, []
            if steps:
                self._perform(steps)
            connections, self._connections = iter(self._connections), []
            try:
                for connection in connections:
                    try:
                        connection.send_posted()
                    except Exception as error:
                        self._report(error)
            finally:
                self._connections[:0] = connections
        finally:
            self._scheduled = bool(self._steps or self._connections)
            if self._scheduled:
                self._loop.call_soon(self._end)

    def _perform(self, steps: list[Callable[[], None]]) -> None:
        left = iter(steps)
        try:
            for step in left:
                try:
                    step()
                except Exception as error:  # a defect in one ledger's writer must not hold up the other ledgers
                    self._report(error)
        finally:
            self._steps[:0] = left

    def _report(self, error: Exception) -> None:
        self._loop.call_exception_handler({"message": "the end of a client's turn failed", "exception": error})
