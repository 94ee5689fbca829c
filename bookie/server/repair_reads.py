"""The reads of repairs wait here: behind ordinary reads, and at a limited rate, over all connections of the bookie.

One repair's read begins at a time, in the order of arrival, once the bytes of those before it are within the rate. It
waits while an ordinary read is under way, but no longer than :data:`PATIENCE_SECONDS`: copies must be made before the
next bookie is lost, also of a bookie that is always busy.
"""

import asyncio
import contextlib
from typing import Final

from octavo.bookie.disk.rate import RateLimiter

PATIENCE_SECONDS: Final = 0.05
"""Longest wait for ordinary reads: twenty reads of 1 MiB each second get through in any case."""


class RepairReads:
    """See the module."""

    def __init__(self, bytes_per_second: float) -> None:
        self._limiter = RateLimiter(bytes_per_second)
        self._line = asyncio.Lock()
        self._ordinary = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.reads = 0
        self.bytes_read = 0

    def ordinary_begins(self) -> None:
        """Note that a read begins that is not part of a repair."""
        self._ordinary += 1
        self._idle.clear()

    def ordinary_ends(self) -> None:
        """Note that such a read has ended."""
        self._ordinary -= 1
        if not self._ordinary:
            self._idle.set()

    async def wait_turn(self) -> None:
        """Wait until a repair's read may begin."""
        async with self._line:
            await self._limiter.take(0)
            if self._ordinary:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._idle.wait(), PATIENCE_SECONDS)

    def count(self, size: int) -> None:
        """A repair's read has returned so many bytes; they delay the next one."""
        self.reads += 1
        self.bytes_read += size
        self._limiter.charge(size)
