"""The line of those who wait for a lock: first come, first served (rule M4).

A client that finds a lock held joins the line: it makes a record in its session, whose version is its place, because
versions rise. It waits until the record before its own is gone, then until the lock is free, and takes it. A client
that has not waited takes a free lock only if the line is empty. A waiter that dies leaves the line with its session.

The line keeps the order; that one client at a time has the lock is decided by the record of the lock alone. A client of
an earlier version does not know the line, and may overtake it.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from octavo.metadata.store.driver import Kind, Record, RecordStore
from octavo.metadata.store.leases import HeldLease, LeaseKeeper
from octavo.metadata.store.watch import WatchHub
from octavo.protocol.errors import MetadataUnavailableError

_MARK: Final = "~"
"""Between the name of a lock and the token of a waiter. No name has it."""

_RETRY_SECONDS: Final = 0.5
"""Pause before a client whose session has ended joins the line again."""

_WAITERS_MAX: Final = 10_000
"""Waiters of one lock whose order is kept."""


class LockLine:
    """The lines of all locks, for one handle."""

    def __init__(
        self, records: Callable[[], RecordStore], keeper: LeaseKeeper, hub: WatchHub, new_token: Callable[[], str]
    ) -> None:
        """``records``: the store; raises :class:`ClientClosedError` once the handle is closed."""
        self._records = records
        self._keeper = keeper
        self._hub = hub
        self._new_token = new_token

    async def waiting(self, name: str) -> int:
        """How many clients wait for the lock."""
        return len(await self._waiting(name))

    async def wait_turn(self, name: str, holder: str, *, again: bool = False) -> HeldLease:
        """Join the line, and return once this client is the first: the place in the line, to be released once the
        client has the lock. Cancelling the wait leaves the line. ``again``: the client has lost its place, and joins
        also if the store does not answer for a while."""
        place = await (self._join_again if again else self._join)(name, holder)
        try:
            while True:
                before = await self._before(name, place)
                if before is None and not place.lost:
                    return place
                if before is not None:
                    await self._wait_gone(before)
                if place.lost:
                    place = await self._join_again(name, holder)
        except BaseException:
            self._keeper.release_soon(place)
            raise

    async def _join(self, name: str, holder: str) -> HeldLease:
        while True:
            key = f"{name}{_MARK}{self._new_token()}"
            place = await self._keeper.acquire(Kind.WAITER, key, holder.encode(), take_over=False)
            if place is not None:
                return place

    async def _join_again(self, name: str, holder: str) -> HeldLease:
        """As :meth:`_join`, also if the store does not answer for a while."""
        while True:
            with contextlib.suppress(MetadataUnavailableError):
                return await self._join(name, holder)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _before(self, name: str, place: HeldLease) -> str | None:
        """The key of the waiter before this one, if there is one."""
        earlier = [one for one in await self._waiting(name) if one.version < place.fencing_number]
        return max(earlier, key=lambda one: one.version).key if earlier else None

    async def _waiting(self, name: str) -> list[Record]:
        records = self._records()
        keys = await records.list_keys(Kind.WAITER, prefix=name + _MARK, after="", limit=_WAITERS_MAX)
        found = await asyncio.gather(*(records.read(Kind.WAITER, key) for key in keys))
        return [record for record in found if record is not None]

    async def _wait_gone(self, key: str) -> None:
        async def load(_previous: bool | None) -> bool:
            return await self._records().read(Kind.WAITER, key) is not None

        async with self._hub.watch((Kind.WAITER, key), load) as watch:
            async for is_there in watch:
                if not is_there:
                    return
