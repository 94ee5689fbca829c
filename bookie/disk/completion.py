"""A future whose waiting task goes on in the very step that completes it.

A task that waits for an ordinary future goes on in the next turn of the event loop: one more look at all sockets, which
every lone add would pay for between its sync and its answer.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any


class Completion(asyncio.Future[None]):
    """See the module. A callback of the event loop completes it, never a task: a task cannot go on inside another
    one."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[Callable[[Any], object], Context | None]] = []

    def add_done_callback(self, callback: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        """Call ``callback`` once this is complete: in the same step, or soon if it is complete already or is
        cancelled."""
        if self.done():
            super().add_done_callback(callback, context=context)
        else:
            self._waiting.append((callback, context))

    def remove_done_callback(self, callback: Callable[[Any], object], /) -> int:
        """Forget ``callback``; how often it had been added."""
        kept = [waiting for waiting in self._waiting if waiting[0] != callback]
        removed, self._waiting = len(self._waiting) - len(kept), kept
        return removed + super().remove_done_callback(callback)

    def cancel(self, msg: Any | None = None) -> bool:
        """As of any future: callbacks are called soon."""
        if not super().cancel(msg):
            return False
        waiting, self._waiting = self._waiting, []
        for callback, context in waiting:
            super().add_done_callback(callback, context=context)
        return True

    def complete(self, error: BaseException | None) -> None:
        """Complete it; nothing happens if it was cancelled."""
        if self.done():
            return
        if error is None:
            self.set_result(None)
        else:
            self.set_exception(error)
        waiting, self._waiting = self._waiting, []
        for callback, context in waiting:
            if context is None:
                callback(self)
            else:
                context.run(callback, self)
