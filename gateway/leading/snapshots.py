"""Snapshots of a partition's producers in the metadata store (rule K5)."""

from typing import NamedTuple

from octavo.client.log.log import Log
from octavo.gateway.records.appends import Appends
from octavo.gateway.records.names import page_document, snapshot_document, snapshots_prefix
from octavo.gateway.records.producers import Producers
from octavo.gateway.records.snapshot import (
    SnapshotHead,
    decode_producers,
    decode_snapshot,
    encode_pages,
    encode_snapshot,
)
from octavo.metadata import MetadataStore
from octavo.protocol.errors import MetadataConflictError, MetadataError

_KEPT = 2
"""Snapshots of a partition: the latest may be of a log that was shortened since."""


class FoundSnapshot(NamedTuple):
    """The producers of a snapshot that counts."""

    producers: Producers
    position: int


class Snapshots:
    """Those of one partition."""

    def __init__(self, store: MetadataStore, log_id: str) -> None:
        self._store = store
        self._log_id = log_id

    async def find(self, log: Log, end: int) -> tuple[FoundSnapshot | None, int]:
        """The latest snapshot that counts, and the highest next offset of all. A damaged one counts as none."""
        next_offset_min, found = 0, None
        for name in sorted(await self._heads(), reverse=True):
            try:
                head = await self._read_head(name)
                if head is None:
                    continue
                next_offset_min = max(next_offset_min, head.next_offset)
                if found is None and head.counts(end=end, term_below=await _term_below(log, head.position, end)):
                    found = FoundSnapshot(decode_producers(head, await self._pages(head)), head.position)
            except MetadataError:
                continue
        return found, next_offset_min

    async def store(self, log: Log, appends: Appends) -> None:
        """Store what is acknowledged now, unless it is stored already, and delete older snapshots.

        Raises:
            OctavoError: The log or the metadata store does not answer. Nothing depends on it.
        """
        position, next_offset = appends.acknowledged_stop, appends.high_watermark
        forgotten_below = appends.producers.forgotten_below
        pages = encode_pages(appends.producers, log_id=self._log_id, position=position)
        heads = await self._heads()
        name = snapshot_document(self._log_id, position)
        term = await _term_below(log, position, position)
        if name in heads or term is None:
            return
        for number, page in enumerate(pages):
            await self._put_page(page_document(self._log_id, position, number), page)
        head = SnapshotHead(self._log_id, term, position, next_offset, forgotten_below, len(pages))
        try:
            await self._store.create_document(name, encode_snapshot(head))
        except MetadataConflictError:
            return
        for old in sorted([*heads, name], reverse=True)[_KEPT:]:
            await self._delete(old)

    async def delete_all(self) -> None:
        """Delete all snapshots: the log is being deleted."""
        async for name in self._store.list_documents(snapshots_prefix(self._log_id)):
            await self._store.delete_document(name)

    async def _put_page(self, name: str, page: bytes) -> None:
        """A page without a head may be left of a leader that ended while it stored one: this one replaces it."""
        present = await self._store.read_document(name)
        await self._store.put_document(name, page, None if present is None else present.version)

    async def _heads(self) -> list[str]:
        prefix = snapshots_prefix(self._log_id)
        return [name async for name in self._store.list_documents(prefix) if "-" not in name.removeprefix(prefix)]

    async def _read_head(self, name: str) -> SnapshotHead | None:
        stored = await self._store.read_document(name)
        return None if stored is None else decode_snapshot(stored.value, self._log_id)

    async def _pages(self, head: SnapshotHead) -> list[bytes]:
        names = [page_document(self._log_id, head.position, number) for number in range(head.pages)]
        stored = [await self._store.read_document(name) for name in names]
        return [page.value for page in stored if page is not None]

    async def _delete(self, head: str) -> None:
        """The head first: a head whose pages are gone is damaged."""
        await self._store.delete_document(head)
        pages = [name async for name in self._store.list_documents(f"{head}-")]
        for page in pages:
            await self._store.delete_document(page)


async def _term_below(log: Log, position: int, end: int) -> int | None:
    """The term of the entry below a position; None if the log has none there."""
    if not log.first_position < position <= end:
        return None
    (entry,) = await log.read(position - 1, position - 1)
    return entry.term
