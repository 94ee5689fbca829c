"""Retries of writes that found the disk full: the write waits and is tried again, and nothing accepted is lost.

Waiting is safe because the journal holds every entry that has not reached its entry log yet. Meanwhile the bookie holds
adds back, as it does for a slow disk. Only writes that can be undone wait here: a piece of an entry log, an index part,
the manifest. A *sync* that fails is never tried again, whatever its error says (rule B1)."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import structlog
from octavo.bookie.disk.filesystem import is_disk_full
from octavo.bookie.disk.shortage import describe_shortage

log = structlog.get_logger("octavo.bookie")

RETRY_SECONDS = 1.0
"""Default time between two attempts when no freed space is announced: short enough to resume soon after another process
has freed some, long enough to cost nothing."""


class FullDiskRetry:
    """Retries writes while the disk is full. ``retry_seconds`` is the time between two attempts while
    :meth:`space_freed` is not called."""

    def __init__(self, retry_seconds: float = RETRY_SECONDS) -> None:
        self._retry_seconds = retry_seconds
        self._freed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._stopped = False
        self._waiting: Counter[Path] = Counter()
        self._urgent = 0
        self._urgent_changed = asyncio.Event()
        self._full_places: set[Path] = set()
        self.met = asyncio.Event()
        """Set when a write begins to wait; cleared by :meth:`take_full_places`."""
        self.times_full = 0
        """How many attempts found the disk full."""

    async def retry_while_full[T](self, path: Path, attempt: Callable[[], Awaitable[T]], *, yields: bool = False) -> T:
        """The result of ``attempt``, repeated for as long as it fails because the disk is full.

        ``attempt`` must be safe to repeat after such a failure. ``yields``: no attempt is made inside
        :meth:`kept_for_urgent_writes`; all other writes are *urgent*. Raises OSError: every other error at once, and a
        full disk after :meth:`stop_retrying`."""
        waited = False
        try:
            while True:
                try:
                    if not yields:
                        return await attempt()
                    async with self._turn:
                        return await attempt()
                except OSError as error:
                    if not is_disk_full(error) or self._stopped:
                        raise
                    self._urgent += not yields and not waited
                    waited = True
                    await self._wait(path, error)
        finally:
            self._urgent -= not yields and waited
            self._urgent_changed.set()

    async def _wait(self, path: Path, error: OSError) -> None:
        self.times_full += 1
        self._urgent_changed.set()
        if not self._waiting:
            reason = describe_shortage(error, path)
            log.error("disk full, waiting for free space", path=str(path), reason=reason)
        self._full_places.add(path)
        self.met.set()
        self._freed.clear()
        self._waiting[path] += 1
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._freed.wait(), self._retry_seconds)
        finally:
            self._waiting[path] -= 1
            self._waiting += Counter()  # removes paths whose count is zero

    def take_full_places(self) -> set[Path]:
        """Paths at which writes have found the disk full since the last call, or wait now."""
        places, self._full_places = self._full_places | self._waiting.keys(), set()
        self.met.clear()
        return places

    def space_freed(self) -> None:
        """Disk space has been freed: waiting writes try again at once."""
        self._freed.set()

    @property
    def urgent_writes_wait(self) -> bool:
        """Whether a write that does not yield waits for free space: an index part or the manifest."""
        return self._urgent > 0

    @contextlib.asynccontextmanager
    async def kept_for_urgent_writes(self) -> AsyncIterator[None]:
        """Inside, no write that yields (entries, whose journal is written already) takes free space. Compaction needs
        it to copy live entries and to replace the manifest, and frees more."""
        async with self._turn:
            yield

    async def urgent_writes_ended(self) -> None:
        """Returns when no urgent write waits, or when one has found the disk full again."""
        seen = self.times_full
        while self._urgent and self.times_full == seen:
            self._urgent_changed.clear()
            await self._urgent_changed.wait()

    def stop_retrying(self) -> None:
        """From now on a full disk is an error: the storage is closing, and its journal holds everything."""
        self._stopped = True
        self._freed.set()
