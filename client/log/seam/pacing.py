"""Spreads takeovers that begin together.

When the session of a client that leads a thousand logs expires, or a quorum of bookies restarts, a thousand logs are to
be taken over at the same moment, by one client or by many standbys in one process. Each takeover fences two ledgers on
every bookie and changes metadata three times; all at once they would delay each other, and everything else, for longer
than they take one after another. A single takeover is not delayed, and neither is one of a stream at rest: it asks no
bookie for anything, and its one change of the metadata shares a transaction with others.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

UNDELAYED: Final = 16
"""Takeovers of one client that may be under way without a pause."""

SPREAD_SECONDS: Final = 0.005
"""Pause for each takeover under way, on average half of it: some 400 takeovers a second begin."""


def pause_seconds(under_way: int, uniform: Callable[[float, float], float]) -> float:
    """How long a takeover waits before it begins. ``under_way``: takeovers running now, this one included."""
    if under_way <= UNDELAYED:
        return 0.0
    return uniform(0.0, SPREAD_SECONDS * under_way)


class TakeoverPacing:
    """Of one client."""

    def __init__(self, uniform: Callable[[float, float], float]) -> None:
        self._uniform = uniform
        self.under_way = 0
        """Takeovers that are under way or wait for their turn."""

    @asynccontextmanager
    async def turn(self, *, fences: bool = True) -> AsyncIterator[None]:
        """Wait for one's turn; the block is the takeover. ``fences``: whether it asks bookies for anything."""
        if not fences:
            yield
            return
        self.under_way += 1
        try:
            pause = pause_seconds(self.under_way, self._uniform)
            if pause:
                await asyncio.sleep(pause)
            yield
        finally:
            self.under_way -= 1
