"""The background tasks of a long-lived object, which fail and end together.

The failure of a task ends the others and is reported once, to ``on_failure``; the owner of the supervisor then fails
its callers' requests, and no caller is cancelled. While there is nothing to be done there is no task: a thousand
writers that are idle are objects in memory.

A program that cancels the tasks of its event loop ends one of these, too. That is a failure like any other, a
:class:`TasksCancelledError` (rule H2).
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from octavo.metadata.own_tasks import tasks_cancelled


class Supervisor:
    """Runs coroutines until :meth:`close`. ``on_failure`` is called with what one of them raised, after all others
    were cancelled and have ended."""

    __slots__ = ("_closed", "_failure", "_name", "_on_failure", "_tasks")

    def __init__(self, name: str, on_failure: Callable[[BaseException], None]) -> None:
        self._name = name
        self._on_failure = on_failure
        self._tasks: dict[asyncio.Task[None], None] | None = None
        """Those that have not ended, in the order in which they were started; made by the first one."""
        self._closed = False
        self._failure: BaseException | None = None
        """What is to be reported: a task has failed, and the others are being cancelled for it."""

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` in the background. Does nothing after the supervisor has ended."""
        if self._closed or self._failure is not None:
            work.close()
            return
        if self._tasks is None:
            self._tasks = {}
        task = asyncio.get_running_loop().create_task(work, name=self._name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Cancel everything and wait until it has ended. Any task may call it, any number of times."""
        self._closed = True
        if self._tasks:
            self._cancel_all()
            # `wait` does not raise what a task raised, and does not cancel it if this caller is cancelled.
            await asyncio.wait(list(self._tasks))

    def _cancel_all(self) -> None:
        for task in list(self._tasks or ()):
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        assert self._tasks is not None, "it was started"
        del self._tasks[task]
        if self._closed:
            if not task.cancelled():
                task.exception()  # it is not asked for any more
            return
        if self._failure is None:
            self._failure = tasks_cancelled(self._name) if task.cancelled() else task.exception()
            if self._failure is not None:
                self._cancel_all()
        elif not task.cancelled():
            task.exception()  # it has failed because it was cancelled
        if self._failure is not None and not self._tasks:
            self._closed = True
            self._on_failure(self._failure)
