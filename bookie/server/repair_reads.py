"""The reads of repairs wait here: behind ordinary reads, and at a limited rate, over all connections of the bookie.

One repair's read begins at a time, in the order of arrival, once the bytes of those before it are within the rate. It
waits while an ordinary read is under way, but no longer than :data:`PATIENCE_SECONDS`: copies must be made before the
next bookie is lost, also of a bookie that is always busy. The rate falls while ordinary adds are slower than
without these reads: they wait for the same disks and the same processor (rule A9).
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from octavo.bookie.disk.rate import RateLimiter
from octavo.protocol.adaptive_rate import AdaptiveRate
from octavo.protocol.background_pacing import GivingWay

PATIENCE_SECONDS: Final = 0.05
"""Longest wait for ordinary reads: twenty reads of 1 MiB each second get through in any case."""

BYTES_PER_SECOND_MIN: Final = 4 * 1024 * 1024
"""Least rate to which slow adds press these reads: as for copying into a bookie."""


class RepairReads:
    """See the module."""

    def __init__(self, bytes_per_second: int, add_delay_seconds: Callable[[], float] = lambda: 0.0) -> None:
        """``add_delay_seconds``: how long ordinary adds take at present; 0 while there are none."""
        self._rate = AdaptiveRate(per_second_min=BYTES_PER_SECOND_MIN, per_second_max=bytes_per_second)
        self._giving_way = GivingWay(self._rate, add_delay_seconds)
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
            while pause_seconds := self._giving_way.look(asyncio.get_running_loop().time()):  # noqa: ASYNC110
                await asyncio.sleep(pause_seconds)
            self._limiter.change_rate(self._rate.per_second)
            await self._limiter.take(0)
            if self._ordinary:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._idle.wait(), PATIENCE_SECONDS)

    def count(self, size: int) -> None:
        """A repair's read has returned this number of bytes; they delay the next one."""
        self.reads += 1
        self.bytes_read += size
        self._limiter.charge(size)
