"""The one task under which a long-lived object runs all its background tasks.

A TaskGroup entered inside a caller's ``await`` would cancel that caller when a child fails. So the group lives in a
task of its own. The failure of a child ends the group and is reported once, to ``on_failure``; the owner of the
supervisor then fails its callers' requests, and no caller is cancelled.

A program that cancels the tasks of its event loop ends the group, too, or a child of it. That is a failure like any
other, a :class:`TasksCancelledError` (rule H2).
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from octavo.metadata.own_tasks import tasks_cancelled, when_cancelled


class Supervisor:
    """Runs coroutines until :meth:`close`. ``on_failure`` is called with what a child raised, after all other children
    were cancelled."""

    def __init__(self, name: str, on_failure: Callable[[BaseException], None]) -> None:
        self._name = name
        self._on_failure = on_failure
        self._queue: asyncio.Queue[Coroutine[Any, Any, None]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._failing = False
        """A child has failed, and the others are being cancelled for it."""

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` in the background. Does nothing after the supervisor has ended."""
        if self._closed:
            work.close()
            return
        self._queue.put_nowait(work)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)
            when_cancelled(self._task, self._cancelled)

    async def close(self) -> None:
        """Cancel everything and wait until it has ended. Any task may call it, any number of times."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            # `wait` does not raise what the task raised, and does not cancel the task if this caller is cancelled.
            await asyncio.wait([self._task])
        self._discard_queue()

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    group.create_task(await self._queue.get()).add_done_callback(self._child_ended)
        except Exception as error:  # reported to the owner, which fails what depends on it
            self._closed = True
            self._on_failure(_first(error))
        finally:
            self._discard_queue()

    def _child_ended(self, child: asyncio.Task[None]) -> None:
        if not child.cancelled():
            self._failing |= child.exception() is not None
        elif not (self._closed or self._failing) and self._task is not None:
            self._task.cancel()  # its group would not miss it

    def _cancelled(self) -> None:
        """The group was cancelled: by :meth:`close`, or by the program."""
        self._discard_queue()
        if not self._closed:
            self._closed = True
            self._on_failure(tasks_cancelled(self._name))

    def _discard_queue(self) -> None:
        # A task cancelled before its first step never gets to its own clean-up.
        while not self._queue.empty():
            self._queue.get_nowait().close()


def _first(error: Exception) -> Exception:
    """The first error in an exception group: the other children were cancelled because of it."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
