"""How fast copies may be made. The decision is pure; the shell waits."""

import asyncio
from collections.abc import Callable


class PaceControl:
    """Rate of copying into a bookie, between two limits, which follows the delay of ordinary adds (rule A9). Pure.

    Once a second :meth:`adjust` is told the delay. While it is above the target, the rate is halved, down to the lower
    limit: adds of the application come first. Otherwise it rises by an eighth of the upper limit.
    """

    def __init__(self, *, per_second_min: int, per_second_max: int, add_delay_seconds: float) -> None:
        self._min, self._max = min(per_second_min, per_second_max), per_second_max
        self._target_seconds = add_delay_seconds
        self.per_second = per_second_max

    def adjust(self, add_delay_seconds: float) -> int:
        """The rate from now on, in bytes per second."""
        if add_delay_seconds > self._target_seconds:
            self.per_second = max(self.per_second // 2, self._min)
        else:
            self.per_second = min(self.per_second + self._max // 8, self._max)
        return self.per_second


class Pace:
    """Makes those wait who copy. A turn of a second's worth of bytes may be taken in advance."""

    def __init__(self, control: PaceControl, add_delay_seconds: Callable[[], float]) -> None:
        self._control = control
        self._add_delay_seconds = add_delay_seconds
        self._free_at = 0.0
        self._adjust_at = 0.0

    async def take(self, size_bytes: int, *, urgent: bool = False) -> None:
        """Wait until so many bytes may be copied. ``urgent``: one live copy is left, and nothing is waited for."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now >= self._adjust_at:
            self._adjust_at = now + 1.0
            self._control.adjust(self._add_delay_seconds())
        begin = max(self._free_at, now - 1.0)
        self._free_at = begin + size_bytes / self._control.per_second
        if not urgent and self._free_at > now:
            await asyncio.sleep(self._free_at - now)
