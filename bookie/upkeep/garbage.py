"""Deletes the ledgers of a bookie that the metadata say are deleted (rule B5).

The order of a round makes it safe. First the collector takes the set of ledgers that the bookie holds, then it reads
the metadata: a ledger created meanwhile is in neither. Then it asks for each candidate singly, in a way that is never
answered from stale data. It deletes nothing when the metadata cannot be read to their end, are older than the bookie's
directories (``metadata_check``), or list ledgers out of order; nor when they list none at all, unless two rounds in a
row saw that. A ledger whose id was never allocated is kept: a client has fenced it or added to it before it was
created, or the metadata are older than the ledger.
"""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import structlog
from octavo.bookie.storage.storage import Storage
from octavo.bookie.upkeep.metadata_check import MetadataCheck
from octavo.metadata import MetadataStore
from octavo.protocol.errors import MetadataError
from octavo.protocol.ids import LedgerId

log = structlog.get_logger("octavo.bookie")

DELETIONS_AT_ONCE = 256
"""Tombstones awaited together: they share the journal's syncs."""


class Collection(NamedTuple):
    """The result of a round."""

    ledgers_seen: int
    deleted: int
    never_allocated: int = 0
    """Ledgers held whose ids the metadata have never allocated."""
    streams_trimmed: int = 0
    """Streams of which this bookie held something that truncation has removed, and has dropped it (rule U5)."""
    entries_trimmed: int = 0
    """That it held of these streams and has dropped."""
    bytes_trimmed: int = 0
    """Of these entries; the next compactions free the space."""


class GarbageCollector:
    """Compares a storage with the metadata. One round at a time."""

    def __init__(self, storage: Storage, store: MetadataStore, metadata: MetadataCheck) -> None:
        self._storage = storage
        self._store = store
        self._metadata = metadata
        self._listed_none_before = False
        self.deleted = 0

    async def collect(self) -> Collection:
        """One round. Raises :class:`MetadataError`, :class:`MetadataUnavailableError` and the storage's errors; ledgers
        found deleted before the error have been deleted."""
        held = self._storage.ledgers.live_ids()
        if not held:
            return Collection(0, 0)
        ids_stop = await self.check_metadata()
        allocated = [ledger_id for ledger_id in held if ledger_id < ids_stop]
        never_allocated = len(held) - len(allocated)
        if never_allocated:
            log.warning(
                "ledgers kept whose ids the metadata have never allocated", ledgers=never_allocated, highest=held[-1]
            )
        listing = _Listing(self._store.list_ledgers())
        candidates = [ledger_id for ledger_id in allocated if not await listing.has(ledger_id)]
        await listing.finish()
        await self.check_metadata()
        if not listing.count and not self._listed_none_before:
            self._listed_none_before = True
            log.warning(
                "the metadata list no ledger; nothing is deleted unless the next round sees the same", held=len(held)
            )
            return Collection(len(held), 0, never_allocated)
        self._listed_none_before = not listing.count
        deleted = 0
        for start in range(0, len(candidates), DELETIONS_AT_ONCE):
            deleted += await self._delete_confirmed(candidates[start : start + DELETIONS_AT_ONCE])
        self.deleted += deleted
        return Collection(len(held), deleted, never_allocated)

    async def check_metadata(self) -> LedgerId:
        """The lowest ledger id that has never been allocated. Raises :class:`MetadataError` while the metadata may be
        older than what bookies have on their disks, and what the store raises."""
        storage = self._storage
        # The bookie allocated the id that limits its doubt.
        return await self._metadata.check(allocated=None if storage.doubts_every_ledger else storage.doubted_ids_stop)

    async def _delete_confirmed(self, candidates: Sequence[int]) -> int:
        absent = await self._store.confirm_absent(list(map(LedgerId, candidates)))
        for durable in [self._storage.writer.delete(ledger_id) for ledger_id in absent]:
            await durable
        return len(absent)


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
