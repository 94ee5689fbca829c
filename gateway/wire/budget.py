"""Bytes that all connections of a gateway share (rule K13).

What clients send, and what they leave unread, lies in the gateway's memory. Both are charged against a budget. Who
finds it used up waits in turn.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ByteBudget:
    """See the module. ``total``: bytes that may be held at a time."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.waits = 0
        """How often bytes were waited for."""

    @property
    def held(self) -> int:
        """Bytes that are held now."""
        return self._held

    @property
    def left(self) -> int:
        """Bytes that may be held besides."""
        return max(0, self._total - self._held)

    @asynccontextmanager
    async def holding(self, size: int) -> AsyncIterator[None]:
        """Hold bytes for the time of a block. More than the total are held alone."""
        size = min(size, self._total)
        if self._waiting or self._held + size > self._total:
            await self._wait(size)
        else:
            self._held += size
        try:
            yield
        finally:
            self._held -= size
            self._admit()

    async def _wait(self, size: int) -> None:
        self.waits += 1
        admitted = asyncio.get_running_loop().create_future()
        self._waiting.append((size, admitted))
        try:
            await admitted
        except BaseException:
            if admitted.done() and not admitted.cancelled():
                self._held -= size
            self._admit()
            raise

    def _admit(self) -> None:
        while self._waiting:
            size, admitted = self._waiting[0]
            if admitted.done():
                self._waiting.popleft()
                continue
            if self._held + size > self._total:
                return
            self._waiting.popleft()
            self._held += size
            admitted.set_result(None)
