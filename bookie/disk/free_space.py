"""Keeps an eye on the room on a bookie's disk, for the registration: new ledgers go where there is more of it."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from octavo.bookie.disk.filesystem import DiskSpace
from octavo.protocol.errors import OctavoError

log = structlog.get_logger("octavo.bookie")

LOOK_SECONDS = 60.0
"""Time between two looks. Placement wants to know in which direction a disk goes, not its level of the moment."""

TOLD_SHARE = 0.05
"""Share of the disk by which its room must have moved to be told again: every registration changed is read by every
client of the cluster."""


class FreeSpace:
    """Looks at a disk from time to time. ``moved`` is awaited when :attr:`told_bytes` has changed, and again later
    if it raises an :class:`OctavoError`."""

    def __init__(self, look: Callable[[], Awaitable[DiskSpace]], moved: Callable[[], Awaitable[None]]) -> None:
        self._look = look
        self._moved = moved
        self._task: asyncio.Task[None] | None = None
        self.told_bytes: int | None = None
        """Free bytes as the cluster is to be told them; None while the disk cannot be asked."""

    async def start(self) -> None:
        """Look for the first time, which is not told to ``moved``, and go on looking."""
        await self._refresh()
        self._task = asyncio.get_running_loop().create_task(self._keep_looking())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_looking(self) -> None:
        untold = False
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            untold |= await self._refresh()
            if untold:
                try:
                    await self._moved()
                    untold = False
                except OctavoError as error:
                    # The metadata store is out of reach: told at the next look.
                    log.warning("free space not told", error=type(error).__name__, reason=error.message)

    async def _refresh(self) -> bool:
        try:
            space = await self._look()
        except OSError as error:
            # A disk that does not answer fails louder elsewhere; its bookie is then weighed like an ordinary one.
            log.warning("free space unknown", reason=str(error))
            changed, self.told_bytes = self.told_bytes is not None, None
            return changed
        if self.told_bytes is not None and abs(space.free_bytes - self.told_bytes) < TOLD_SHARE * space.total_bytes:
            return False
        self.told_bytes = space.free_bytes
        return True
