"""Rate limit of background work."""

import asyncio

PAUSE_LOOK_SECONDS = 0.5
"""How soon work goes on after its pause has been ended early."""


class RateLimiter:
    """Lets ``bytes_per_second`` through, measured in the event loop's time. A piece that exceeds the rate delays the
    next one."""

    def __init__(self, bytes_per_second: float) -> None:
        assert bytes_per_second > 0
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0
        self._paused_until = 0.0

    @property
    def paused_seconds(self) -> float:
        """For how long nothing passes from now on."""
        return max(0.0, self._paused_until - asyncio.get_running_loop().time())

    def pause(self, seconds: float) -> None:
        """Let nothing through for so long; replaces the pause that there may be."""
        self._paused_until = asyncio.get_running_loop().time() + seconds

    def change_rate(self, bytes_per_second: float) -> None:
        """Let ``bytes_per_second`` through from the next piece on."""
        assert bytes_per_second > 0
        self._bytes_per_second = bytes_per_second

    async def take(self, size: int) -> None:
        """Wait until ``size`` more bytes may be processed. Always yields to the event loop."""
        delay = max(0.0, self._free_at - asyncio.get_running_loop().time())
        self.charge(size)
        await asyncio.sleep(delay)
        while paused_seconds := self.paused_seconds:  # noqa: ASYNC110 - the pause may be ended or prolonged meanwhile
            await asyncio.sleep(min(PAUSE_LOOK_SECONDS, paused_seconds))

    def charge(self, size: int) -> None:
        """Let the next piece wait for ``size`` bytes that have been processed already."""
        self._free_at = max(self._free_at, asyncio.get_running_loop().time()) + size / self._bytes_per_second
