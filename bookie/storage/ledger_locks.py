"""One lock per ledger, taken to name this bookie as holding its copies, and to drop them (rule C1).

A lock is made when it is wanted, and forgotten when it is free.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class LedgerLocks:
    """Locks by ledger id; a task that waits for one gets it in the order of arrival. Not reentrant."""

    def __init__(self) -> None:
        self._locks: dict[int, tuple[asyncio.Lock, int]] = {}
        """Each with the number of tasks that hold it or wait for it."""

    @contextlib.asynccontextmanager
    async def hold(self, ledger_id: int) -> AsyncIterator[None]:
        """Hold the ledger's lock inside the block."""
        lock, users = self._locks.get(ledger_id, (None, 0))
        if lock is None:
            lock = asyncio.Lock()
        self._locks[ledger_id] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            users = self._locks[ledger_id][1] - 1
            if users:
                self._locks[ledger_id] = lock, users
            else:
                del self._locks[ledger_id]

    def is_held(self, ledger_id: int) -> bool:
        """Whether a task holds the ledger's lock or waits for it."""
        return ledger_id in self._locks

    @property
    def count(self) -> int:
        """Ledgers whose lock is held or waited for."""
        return len(self._locks)
