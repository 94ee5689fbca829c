"""Ledgers that are being created in their callers' tasks, so that closing the client can interrupt them.

A creation could run in a task of its own. For a program that creates thousands of ledgers a second those tasks would
cost as much as deriving the ledgers' keys. So a creation runs in the task of its caller, and closing interrupts it
there as :func:`asyncio.timeout` does: the task is cancelled inside the creation, and where the creation ends the
cancellation is withdrawn and becomes an error. The caller's own code never sees it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable

from octavo.metadata.store.store import MetadataStore
from octavo.protocol.errors import ClientClosedError, OctavoError
from octavo.protocol.ids import LedgerId


class Creations:
    """The creations of one client."""

    def __init__(self) -> None:
        self._under_way: dict[asyncio.Task[object], bool] = {}
        """Task -> whether it was interrupted. A task is in one creation at most, because it awaits it."""
        self._ended: asyncio.Event | None = None

    def __len__(self) -> int:
        return len(self._under_way)

    async def run[T](self, creation: Awaitable[T]) -> T:
        """Await ``creation``, which cleans up when it is cancelled. Raises :class:`ClientClosedError` if it was
        interrupted, unless the application has cancelled the task as well."""
        task = asyncio.current_task()
        assert task is not None, "a coroutine is awaited in a task"
        cancelled_before = task.cancelling()
        self._under_way[task] = False
        try:
            return await creation
        except asyncio.CancelledError:
            if self._under_way[task] and task.cancelling() <= cancelled_before + 1:
                raise ClientClosedError("the client was closed while it was creating a ledger") from None
            raise
        finally:
            if self._under_way.pop(task):
                task.uncancel()
            if self._ended is not None and not self._under_way:
                self._ended.set()

    async def interrupt(self) -> None:
        """Interrupt all creations; return when they have cleaned up."""
        for task in self._under_way:
            self._under_way[task] = True
            task.cancel()
        if self._under_way:
            self._ended = asyncio.Event()
            await self._ended.wait()


async def delete_created(store: MetadataStore, ledger_id: LedgerId, *, seconds: float) -> None:
    """Delete a ledger that has not been handed out, even if this task is cancelled. Tries for so long."""

    async def delete() -> None:
        # It was not created after all; or the metadata store does not answer, and an empty open ledger remains.
        with contextlib.suppress(OctavoError, TimeoutError):
            async with asyncio.timeout(seconds):
                await store.delete_ledger(ledger_id)

    deletion = asyncio.get_running_loop().create_task(delete())
    while not deletion.done():
        # The caller is raising an exception already: a cancellation adds nothing to that.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([deletion])
