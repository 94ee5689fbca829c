"""Ledgers being created in their callers' tasks, which the closing of a client must be able to end.

A creation could run in a task of its own; a program that makes thousands of ledgers a second would pay for them as
much as for the ledgers' keys. So it runs in the task of whoever asked, and closing interrupts it there as
:func:`asyncio.timeout` does: the task is cancelled inside the creation, and where the creation ends the cancellation is
taken back and becomes an error. Nothing of it is left for the caller's own code to see.
"""

import asyncio
from collections.abc import Awaitable

from octavo.protocol.errors import ClientClosedError


class Creations:
    """The creations of one client."""

    def __init__(self) -> None:
        self._under_way: dict[asyncio.Task[object], bool] = {}
        """Task -> whether it was interrupted. A task is in one creation at most: it awaits it."""
        self._ended: asyncio.Event | None = None

    def __len__(self) -> int:
        return len(self._under_way)

    async def run[T](self, creation: Awaitable[T]) -> T:
        """Await ``creation``, which tidies up when it is cancelled. Raises :class:`ClientClosedError` when it was
        interrupted, unless the task was cancelled by somebody else as well."""
        task = asyncio.current_task()
        assert task is not None, "whoever awaits does so in a task"
        cancelled_before = task.cancelling()
        self._under_way[task] = False
        try:
            return await creation
        except asyncio.CancelledError:
            if self._under_way[task] and task.cancelling() <= cancelled_before + 1:
                raise ClientClosedError("the client was closed while it created a ledger") from None
            raise
        finally:
            if self._under_way.pop(task):
                task.uncancel()
            if self._ended is not None and not self._under_way:
                self._ended.set()

    async def interrupt(self) -> None:
        """End all of them; returns once they have tidied up."""
        for task in self._under_way:
            self._under_way[task] = True
            task.cancel()
        if self._under_way:
            self._ended = asyncio.Event()
            await self._ended.wait()
