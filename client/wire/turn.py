"""What a client does at the end of a turn of the event loop: its writers cut what was added in the turn into frames,
and then each connection sends what the writers have posted to it.

So what all ledgers of a client have for one bookie in a turn leaves in one frame, and the end of a turn costs one
callback of the loop, however many ledgers were written.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Posted(Protocol):
    """A connection to which something was posted in this turn."""

    def send_posted(self) -> None:
        """Send it."""


class Turn:
    """See the module. One a client; used from one event loop."""

    __slots__ = ("_connections", "_loop", "_scheduled", "_steps")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._steps: list[Callable[[], None]] = []
        self._connections: list[Posted] = []
        self._scheduled = False

    def at_end(self, step: Callable[[], None]) -> None:
        """Call ``step`` once, when the turn ends: before the connections send what was posted to them. During the end
        of a turn: when the next one ends."""
        self._steps.append(step)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._end)

    def sends(self, connection: Posted) -> None:
        """Something was posted to the connection, for the first time in this turn. The caller asks once a turn."""
        self._connections.append(connection)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        steps, self._steps = self._steps, []
        left = iter(steps)
        try:
            for step in left:
                try:
                    step()
                except Exception as error:  # a defect in one ledger's writer must not hold up the other ledgers
                    self._report(error)
        finally:
            # Not empty if the process is being interrupted: what is left is for the next turn.
            self._steps[:0] = left
            connections, self._connections = self._connections, []
            self._scheduled = bool(self._steps)
            if self._scheduled:
                self._loop.call_soon(self._end)
        for connection in connections:
            try:
                connection.send_posted()
            except Exception as error:
                self._report(error)

    def _report(self, error: Exception) -> None:
        self._loop.call_exception_handler({"message": "the end of a client's turn failed", "exception": error})
