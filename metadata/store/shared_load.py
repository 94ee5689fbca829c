"""Shares one read among many concurrent callers; each caller gets the result of a read that began after its call.

A caller that arrives while a read is under way waits for the next read, together with all other callers that arrive
meanwhile. So no caller gets a value older than its call, and any number of callers costs one read at a time.
"""

import asyncio
from collections.abc import Awaitable, Callable

from octavo.metadata.own_tasks import tasks_cancelled, when_cancelled
from octavo.protocol.errors import ClientClosedError, InternalError, OctavoError


class SharedLoad[T]:
    """Shares the reads of ``load``. A caller that is cancelled disturbs no other."""

    def __init__(self, load: Callable[[], Awaitable[T]]) -> None:
        self._load = load
        self._next: asyncio.Future[T] | None = None
        """The result of the next read, if a caller waits for it."""
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._under_way: asyncio.Future[T] | None = None
        """The result of the read that is being made."""

    async def load(self) -> T:
        """The result of ``load``; raises what it raises."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        following = self._next
        if self._task is None:
            task = asyncio.create_task(self._run(), name="shared load")
            self._task = when_cancelled(task, lambda: self._cancelled(task))
        try:
            # Shielded: a cancelled caller must not cancel the read for the other callers.
            return await asyncio.shield(following)
        except OctavoError as error:
            # A fresh instance: one error object raised in many tasks would collect all their tracebacks.
            raise type(error)(error.message, may_have_happened=error.may_have_happened) from error

    async def close(self) -> None:
        """Fail all waiting callers with :class:`ClientClosedError`."""
        self._closed = True
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while self._next is not None:
            self._under_way, self._next = self._next, None
            try:
                value = await self._load()
            except OctavoError as error:
                _fail(self._under_way, error)
            except Exception as error:
                broken = InternalError(f"a shared read failed: {error!r}")
                broken.__cause__ = error
                _fail(self._under_way, broken)
            else:
                self._under_way.set_result(value)
        self._task = None

    def _cancelled(self, task: asyncio.Task[None]) -> None:
        """By :meth:`close`, or by the program."""
        if self._task is not task:
            return
        self._task = None
        waiting = (self._under_way, self._next)
        self._under_way = self._next = None
        for future in waiting:
            if future is not None and not future.done():
                closed = ClientClosedError("the metadata store has been closed")
                _fail(future, closed if self._closed else tasks_cancelled("a read of the metadata"))


def _fail[T](future: asyncio.Future[T], error: OctavoError) -> None:
    future.set_exception(error)
    future.exception()  # mark as retrieved: all callers may have been cancelled
