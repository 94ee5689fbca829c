"""Makes copying into this bookie wait, so that the adds of applications come first (rule A9)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from octavo.protocol.adaptive_rate import AdaptiveRate


class Pace:
    """Delays copying to a rate. A turn of a second's worth of bytes may be taken in advance."""

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


class ByteLimit:
    """Admits work on so many bytes at a time, in the order of arrival. A piece that is larger is admitted alone."""

    def __init__(self, bytes_max: int) -> None:
        self._max = bytes_max
        self._held = 0
        self._line = asyncio.Lock()
        self._freed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def hold(self, size_bytes: int) -> AsyncIterator[None]:
        """Wait until there is room; the bytes are held inside the block."""
        async with self._line:
            while self._held and self._held + size_bytes > self._max:
                self._freed.clear()
                await self._freed.wait()
            self._held += size_bytes
        try:
            yield
        finally:
            self._held -= size_bytes
            self._freed.set()
