"""Makes copying into this bookie wait, so that the adds of applications come first (rule A9)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

from octavo.protocol.adaptive_rate import AdaptiveRate
from octavo.protocol.background_pacing import GivingWay

ADVANCE_SECONDS: Final = 0.25
"""After a pause, the bytes of this number of seconds may be copied at once."""

PIECES_PER_SECOND: Final = 32
"""Copies come in pieces of this part of a second's bytes: an add waits for a whole piece to be read, verified or
synced."""

PIECE_BYTES_MIN: Final = 64 * 1024
PIECE_BYTES_MAX: Final = 1024 * 1024
"""Large enough that the round trip counts for little, small enough to be synced at once."""


class Pace:
    """Delays copying to a rate, and says how large the pieces are in which it goes on."""

    def __init__(self, rate: AdaptiveRate, add_delay_seconds: Callable[[], float]) -> None:
        self._rate = rate
        self._giving_way = GivingWay(rate, add_delay_seconds)
        self._free_at = 0.0

    @property
    def piece_bytes(self) -> int:
        """Entry bytes to be copied in one piece at the present rate."""
        return min(max(PIECE_BYTES_MIN, self._rate.per_second // PIECES_PER_SECOND), PIECE_BYTES_MAX)

    async def take(self, size_bytes: int, *, urgent: bool = False) -> None:
        """Wait until this number of bytes may be copied. ``urgent``: one live copy is left, and nothing is waited
        for."""
        loop = asyncio.get_running_loop()
        while (pause_seconds := self._giving_way.look(loop.time())) and not urgent:  # noqa: ASYNC110
            await asyncio.sleep(pause_seconds)
        now = loop.time()
        begin = max(self._free_at, now - ADVANCE_SECONDS)
        self._free_at = begin + size_bytes / self._rate.per_second
        if not urgent and self._free_at > now:
            await asyncio.sleep(self._free_at - now)


class ByteLimit:
    """Admits work on a limited number of bytes at a time, in the order of arrival. A piece that is larger is admitted
    alone."""

    def __init__(self, bytes_max: Callable[[], int]) -> None:
        """``bytes_max`` is asked at each decision; what it says may change. Pieces that are admitted already stay."""
        self._bytes_max = bytes_max
        self._held = 0
        self._line = asyncio.Lock()
        self._freed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def hold(self, size_bytes: int) -> AsyncIterator[None]:
        """Wait until there is room; the bytes are held inside the block."""
        async with self._line:
            while self._held and self._held + size_bytes > self._bytes_max():
                self._freed.clear()
                await self._freed.wait()
            self._held += size_bytes
        try:
            yield
        finally:
            self._held -= size_bytes
            self._freed.set()
