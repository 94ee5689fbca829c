"""Monitors the free space of a bookie's disk for its registration: placement prefers bookies with more free space."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from octavo.bookie.disk.filesystem import DiskSpace
from octavo.protocol.errors import OctavoError

log = structlog.get_logger("octavo.bookie")

CHECK_SECONDS = 60.0
"""Default time between two checks. Placement needs the trend of a disk, not its exact level."""

CHANGE_SHARE_MIN = 0.05
"""Share of the disk by which free space must change before it is reported again: every client of the cluster reads
every changed registration."""


class FreeSpaceMonitor:
    """Checks a disk at intervals. ``read_space`` returns its space. ``on_change`` is awaited when
    :attr:`reported_bytes` has changed, and again at the next check if it raises an :class:`OctavoError`."""

    def __init__(
        self,
        read_space: Callable[[], Awaitable[DiskSpace]],
        on_change: Callable[[], Awaitable[None]],
        *,
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        self._read_space = read_space
        self._on_change = on_change
        self._check_seconds = check_seconds
        self._task: asyncio.Task[None] | None = None
        self.reported_bytes: int | None = None
        """Free bytes to report to the cluster; None while the disk's space cannot be read."""

    async def start(self) -> None:
        """Check once, without calling ``on_change``, and start the periodic checks."""
        await self._refresh()
        self._task = asyncio.get_running_loop().create_task(self._check_periodically())

    async def stop(self) -> None:
        """Stop checking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _check_periodically(self) -> None:
        unreported = False
        while True:
            await asyncio.sleep(self._check_seconds)
            unreported |= await self._refresh()
            if unreported:
                try:
                    await self._on_change()
                    unreported = False
                except OctavoError as error:
                    # The metadata store is unavailable: the next check reports the change.
                    log.warning("cannot report free disk space", error=type(error).__name__, reason=error.message)

    async def _refresh(self) -> bool:
        try:
            space = await self._read_space()
        except OSError as error:
            # A failing disk causes louder errors elsewhere. Placement gives this bookie an average weight meanwhile.
            log.warning("cannot read free disk space", reason=str(error))
            changed, self.reported_bytes = self.reported_bytes is not None, None
            return changed
        reported = self.reported_bytes
        if reported is not None and abs(space.free_bytes - reported) < CHANGE_SHARE_MIN * space.total_bytes:
            return False
        self.reported_bytes = space.free_bytes
        return True
