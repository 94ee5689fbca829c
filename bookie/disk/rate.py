"""How fast work in the background may go."""

import asyncio


class RateLimiter:
    """Lets ``bytes_per_second`` through, in the loop's time. Whoever took too much pays before the next piece."""

    def __init__(self, bytes_per_second: float) -> None:
        assert bytes_per_second > 0
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0

    async def take(self, size: int) -> None:
        """Returns when ``size`` more bytes may be worked on. Always lets the loop turn."""
        now = asyncio.get_running_loop().time()
        delay = max(0.0, self._free_at - now)
        self._free_at = max(self._free_at, now) + size / self._bytes_per_second
        await asyncio.sleep(delay)
