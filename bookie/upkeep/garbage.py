"""Which ledgers of a bookie are garbage: those that the metadata say are deleted (rule B5).

The order is what makes it safe: first the local set is taken, then the metadata are read, so that a ledger made
meanwhile is in neither; then each candidate is asked for singly. Nothing is deleted when the metadata cannot be read
to their end, are of another cluster, do not know this bookie, or list ledgers out of order; nor when they list none
at all, unless two rounds in a row saw that."""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import structlog
from octavo.bookie.storage.storage import Storage
from octavo.metadata import MetadataStore
from octavo.protocol.errors import MetadataError, NoSuchLedgerError
from octavo.protocol.ids import BookieId, LedgerId

log = structlog.get_logger("octavo.bookie")

DELETIONS_AT_ONCE = 256
"""Tombstones awaited together: they share the journal's syncs."""


class Collection(NamedTuple):
    """What a round did."""

    ledgers_seen: int
    deleted: int


class GarbageCollector:
    """Compares a storage with the metadata. One round at a time."""

    def __init__(self, storage: Storage, store: MetadataStore, *, bookie_id: str, cluster_id: str) -> None:
        self._storage = storage
        self._store = store
        self._bookie_id = bookie_id
        self._cluster_id = cluster_id
        self._listed_none_before = False
        self.deleted = 0

    async def collect(self) -> Collection:
        """One round. Raises :class:`MetadataError`, :class:`MetadataUnavailableError` and the storage's errors; what
        had been found until then is deleted already, rightly."""
        held = self._storage.ledgers.live_ids()
        if not held:
            return Collection(0, 0)
        await self._check_metadata()
        listing = _Listing(self._store.list_ledgers())
        candidates = [ledger_id for ledger_id in held if not await listing.has(ledger_id)]
        await listing.finish()
        await self._check_metadata()
        if not listing.count and not self._listed_none_before:
            self._listed_none_before = True
            log.warning("the metadata list no ledger; nothing is deleted unless they say so again", held=len(held))
            return Collection(len(held), 0)
        self._listed_none_before = not listing.count
        deleted = 0
        for start in range(0, len(candidates), DELETIONS_AT_ONCE):
            deleted += await self._delete_confirmed(candidates[start : start + DELETIONS_AT_ONCE])
        self.deleted += deleted
        return Collection(len(held), deleted)

    async def _check_metadata(self) -> None:
        """A store that was lost and begun anew would list nothing."""
        cluster_id = await self._store.cluster_id()
        if cluster_id != self._cluster_id:
            raise MetadataError(f"the metadata store is of cluster {cluster_id}, not {self._cluster_id}")
        if await self._store.read_cookie(BookieId(self._bookie_id)) is None:
            raise MetadataError(f"the metadata store does not know bookie {self._bookie_id}")

    async def _delete_confirmed(self, candidates: Sequence[int]) -> int:
        waiting = []
        for ledger_id in map(LedgerId, candidates):
            try:
                await self._store.read_ledger(ledger_id)
            except NoSuchLedgerError:
                waiting.append(self._storage.writer.delete(ledger_id))
        for durable in waiting:
            await durable
        return len(waiting)


class _Listing:
    """Looks ids up in an ascending stream of ids, themselves ascending, without holding it in memory."""

    def __init__(self, ledger_ids: AsyncIterator[LedgerId]) -> None:
        self._ledger_ids = ledger_ids
        self._current: int | None = -1
        self.count = 0

    async def has(self, wanted: int) -> bool:
        while self._current is not None and self._current < wanted:
            await self._advance()
        return self._current == wanted

    async def finish(self) -> None:
        """Read on to the end: only a listing that does not fail counts."""
        while self._current is not None:
            await self._advance()

    async def _advance(self) -> None:
        before = self._current
        self._current = await anext(self._ledger_ids, None)
        if self._current is not None:
            self.count += 1
            if before is not None and self._current <= before:
                raise MetadataError(f"ledgers are listed out of order: {self._current} after {before}")
