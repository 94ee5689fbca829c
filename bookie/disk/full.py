"""What becomes of a write that found the disk full: it waits and is tried again, and nothing that was accepted is lost.

The journal holds everything that has not reached its place yet, so waiting is safe; adds are held back meanwhile as
by a slow disk. Only writes that can be undone wait here (a piece of an entry log, an index part, the manifest). A
*sync* that fails is never tried again, whatever it says (rule B1)."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
from octavo.bookie.disk.filesystem import is_disk_full

log = structlog.get_logger("octavo.bookie")

RETRY_SECONDS = 1.0
"""Between two attempts while nobody says that there is room: often enough to come back soon, rarely enough to cost
nothing."""


class DiskFullWaits:
    """Where writers wait for room. ``on_full`` is called whenever one begins to wait."""

    def __init__(self, on_full: Callable[[Path], None]) -> None:
        self._on_full = on_full
        self._room = asyncio.Event()
        self._given_up = False
        self._waiting: Counter[Path] = Counter()
        self.met = 0
        """How many times a writer found the disk full."""

    async def until_it_fits[T](self, path: Path, attempt: Callable[[], Awaitable[T]]) -> T:
        """What ``attempt`` gives, tried until the disk has room for it. It must be harmless to repeat after it has
        failed for want of room. Raises OSError: any other, and this one once :meth:`give_up` has been called."""
        while True:
            try:
                return await attempt()
            except OSError as error:
                if not is_disk_full(error) or self._given_up:
                    raise
                await self._wait(path, error)

    async def _wait(self, path: Path, error: OSError) -> None:
        self.met += 1
        if not self._waiting:
            log.error("disk full, waiting for room", path=str(path), reason=error.strerror or str(error))
        self._on_full(path)
        self._room.clear()
        self._waiting[path] += 1
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._room.wait(), RETRY_SECONDS)
        finally:
            self._waiting[path] -= 1
            self._waiting += Counter()  # drops what is zero

    @property
    def waiting_at(self) -> frozenset[Path]:
        """Where writers wait now."""
        return frozenset(self._waiting)

    def made_room(self) -> None:
        """Space has been freed: whoever waits tries again at once."""
        self._room.set()

    def give_up(self) -> None:
        """From now on a full disk is an error: the storage closes, and its journal has everything."""
        self._given_up = True
        self._room.set()
