"""Whether a bookie may believe what the metadata say of deleted ledgers (rule B5).

Metadata that were restored from a backup are older than the bookie's directories: ledgers that they do not list may
hold acknowledged entries. The bookie compares what only it knows: its cluster, the generation of its own start, and the
ledger ids that were allocated before. Of the ids it makes a note on its disk, from which a later start sees that the
metadata are older (:mod:`octavo.bookie.identity.older_metadata`).
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from octavo.metadata import MetadataStore
from octavo.metadata.updates.garbage_hold import read_hold
from octavo.protocol.errors import MetadataError
from octavo.protocol.ids import BookieId, LedgerId


class KnownStart(NamedTuple):
    """This start of the bookie, as its directories have it."""

    bookie_id: BookieId
    cluster_id: str
    generation: int
    ledger_ids_stop: int = 0
    """All ledger ids below this had been allocated at this start."""


class MetadataCheck:
    """Compares the metadata with this start of the bookie."""

    def __init__(
        self,
        store: MetadataStore,
        start: KnownStart,
        note_ids_stop: Callable[[LedgerId], Awaitable[None]] | None = None,
    ) -> None:
        """``note_ids_stop`` makes it durable that all ledger ids below its argument have been allocated."""
        self._store = store
        self._start = start
        self._note_ids_stop = note_ids_stop
        self._ids_stop_seen = start.ledger_ids_stop

    async def check(self, *, allocated: int | None = None) -> LedgerId:
        """The lowest ledger id that has never been allocated. ``allocated``: an id that was allocated once.

        Raises :class:`MetadataError` when the metadata are of another cluster or older than what the bookie knows, or
        put garbage collection on hold, and what the store raises.
        """
        start = self._start
        hold = await read_hold(self._store)
        if hold is not None:
            raise MetadataError(
                f"garbage collection is on hold since {hold.since.isoformat(timespec='seconds')}: {hold.reason}; "
                "`octavo cluster release-garbage` ends the hold"
            )
        cluster_id = await self._store.cluster_id()
        if cluster_id != start.cluster_id:
            raise MetadataError(f"the metadata store is of cluster {cluster_id}, not {start.cluster_id}")
        cookie = await self._store.read_cookie(start.bookie_id)
        if cookie is None:
            raise MetadataError(f"the metadata store does not know bookie {start.bookie_id}")
        if cookie.value.generation != start.generation:
            raise MetadataError(
                f"the metadata have generation {cookie.value.generation} of bookie {start.bookie_id}, its directories "
                f"{start.generation}: the metadata were restored from a backup, or another process has started as it"
            )
        ids_stop = await self._store.ledger_ids_stop()
        if ids_stop < self._ids_stop_seen or (allocated is not None and ids_stop <= allocated):
            known = max(self._ids_stop_seen - 1, -1 if allocated is None else allocated)
            raise MetadataError(
                f"the metadata have allocated ledger ids below {ids_stop}, but id {known} was allocated before: they "
                "were restored from a backup"
            )
        if ids_stop > self._ids_stop_seen:
            self._ids_stop_seen = ids_stop
            if self._note_ids_stop is not None:
                await self._note_ids_stop(ids_stop)
        return ids_stop
