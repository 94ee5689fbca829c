"""Locks, which elections use too: one client at a time holds one, and the next is the one that has waited longest."""

from collections.abc import Sequence
from typing import Final

from octavo.metadata.store.driver import Kind
from octavo.metadata.store.handle import Handle
from octavo.metadata.store.leases import HeldLease
from octavo.metadata.store.lock_line import LockLine
from octavo.metadata.store.names import check_name
from octavo.metadata.store.values import LockHolder
from octavo.metadata.store.watch import HubWatch
from octavo.protocol.errors import InvalidArgumentError

_HOLDER_CHARACTERS_MAX: Final = 512


class LockRecords:
    """The locks of one handle. :class:`MetadataStore` says what each method guarantees."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.line = LockLine(handle.records, handle.keeper, handle.hub, handle.new_token)
        """Those who wait, for each lock."""

    async def try_lock(self, name: str, holder: str) -> HeldLease | None:
        _check_lock(name, holder)
        self._handle.records()
        return None if await self.line.waiting(name) else await self._acquire(name, holder)

    async def lock(self, name: str, holder: str) -> HeldLease:
        _check_lock(name, holder)
        lease = await self.try_lock(name, holder) if await self.read(name) is None else None
        if lease is not None:
            return lease
        place = await self.line.wait_turn(name, holder)
        while lease is None:
            try:
                lease = await self._acquire_in_turn(name, holder, place)
            finally:
                # Not waited for: the next client in the line finds the lock held.
                self._handle.keeper.release_soon(place)
            if lease is None:
                place = await self.line.wait_turn(name, holder, again=True)
        return lease

    async def _acquire_in_turn(self, name: str, holder: str, place: HeldLease) -> HeldLease | None:
        """The lock, once it is free; None if the place in the line was lost meanwhile."""
        while True:
            # Every round needs a new watch: between "free" and our attempt the lock may be taken and freed again, and
            # a watch that has reported "free" need not report it a second time.
            async with self.watch(name) as watch:
                async for present in watch:
                    if present is None:
                        break
            if place.lost:
                return None
            lease = await self._acquire(name, holder)
            if lease is not None:
                return lease

    async def _acquire(self, name: str, holder: str) -> HeldLease | None:
        return await self._handle.keeper.acquire(Kind.LOCK, name, holder.encode(), take_over=False)

    async def read(self, name: str) -> LockHolder | None:
        check_name(name)
        record = await self._handle.records().read(Kind.LOCK, name)
        return None if record is None else LockHolder(record.value.decode(), record.version)

    async def read_many(self, names: Sequence[str]) -> list[LockHolder | None]:
        for name in names:
            check_name(name)
        records = await self._handle.records().read_many(Kind.LOCK, names)
        return [None if record is None else LockHolder(record.value.decode(), record.version) for record in records]

    def watch(self, name: str) -> HubWatch[LockHolder | None]:
        check_name(name)
        self._handle.records()

        async def load(_previous: LockHolder | None) -> LockHolder | None:
            return await self.read(name)

        return self._handle.hub.watch((Kind.LOCK, name), load)


def _check_lock(name: str, holder: str) -> None:
    check_name(name)
    if len(holder) > _HOLDER_CHARACTERS_MAX:
        raise InvalidArgumentError(f"the name of a lock's holder has at most {_HOLDER_CHARACTERS_MAX} characters")
