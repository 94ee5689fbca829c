"""Rate limit of background work."""

import asyncio


class RateLimiter:
    """Lets ``bytes_per_second`` through, measured in the event loop's time. A piece that exceeds the rate delays the
    next one."""

    def __init__(self, bytes_per_second: float) -> None:
        assert bytes_per_second > 0
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0

    async def take(self, size: int) -> None:
        """Wait until ``size`` more bytes may be processed. Always yields to the event loop."""
        delay = max(0.0, self._free_at - asyncio.get_running_loop().time())
        self.charge(size)
        await asyncio.sleep(delay)

    def charge(self, size: int) -> None:
        """Let the next piece wait for ``size`` bytes that have been processed already."""
        self._free_at = max(self._free_at, asyncio.get_running_loop().time()) + size / self._bytes_per_second
