"""Makes copying into this bookie wait, so that the adds of applications come first (rule A9)."""

import asyncio
from collections.abc import Callable

from octavo.protocol.adaptive_rate import AdaptiveRate


class Pace:
    """Makes those wait who copy. A turn of a second's worth of bytes may be taken in advance."""

    def __init__(self, rate: AdaptiveRate, add_delay_seconds: Callable[[], float]) -> None:
        self._rate = rate
        self._add_delay_seconds = add_delay_seconds
        self._free_at = 0.0
        self._adjust_at = 0.0

    async def take(self, size_bytes: int, *, urgent: bool = False) -> None:
        """Wait until so many bytes may be copied. ``urgent``: one live copy is left, and nothing is waited for."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now >= self._adjust_at:
            self._adjust_at = now + 1.0
            self._rate.adjust(self._add_delay_seconds())
        begin = max(self._free_at, now - 1.0)
        self._free_at = begin + size_bytes / self._rate.per_second
        if not urgent and self._free_at > now:
            await asyncio.sleep(self._free_at - now)
