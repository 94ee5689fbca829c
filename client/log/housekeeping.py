"""What keeps a log small: truncation, retention, pages of old segments, and the deletion of dropped ledgers.

Every step can be done by any client at any time and begun again after a crash: what must not be forgotten stands in
the list before it is done. Ledgers are named in ``dropped`` before they are deleted; pages are made before the list
names them and are deleted after the list has dropped them.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Final

from octavo.client.log.changes import FoldPage, ForgetDropped, MarkDeleted, Truncate
from octavo.client.log.cursors import CursorState, read_cursors
from octavo.client.log.document import (
    LogDocument,
    LogState,
    PageReference,
    Segment,
    decode_page,
    encode_page,
    page_reference,
)
from octavo.client.log.ledgers import LedgerAccess
from octavo.client.log.names import cursors_document, list_document, page_document
from octavo.client.log.retention import retention_cut
from octavo.client.log.together import together
from octavo.client.log.update import read_log, update_log
from octavo.metadata.store import MetadataStore, Versioned
from octavo.protocol.errors import InvalidArgumentError, MetadataConflictError
from octavo.protocol.ids import LedgerId

_DELETES_AT_ONCE: Final = 16
"""Ledgers deleted at the same time."""

_LIST_SEGMENTS_MAX: Final = 2000
"""Segments of a list, whatever the size of a page. A segment takes at most some 160 bytes, and a document 512 KiB."""


def segments_max(page_segments: int) -> int:
    """Segments that a list keeps before the oldest move into a page of so many."""
    return min(10 * page_segments, _LIST_SEGMENTS_MAX)


async def read_page(store: MetadataStore, name: str, page: PageReference) -> tuple[Segment, ...] | None:
    """The segments of a page; None when it has been dropped meanwhile."""
    found = await store.read_document(page.document)
    return None if found is None else decode_page(found.value, f"log {name}, page {page.document}")


class Housekeeper:
    """See the module. Of one log."""

    def __init__(self, access: LedgerAccess, name: str, log_id: str) -> None:
        self._access = access
        self._store = access.store
        self._name = name
        self._log_id = log_id
        self._wanted = asyncio.Event()
        self._tidied: LogDocument | None = None
        """The list as the last round left it."""
        self._latest: LogDocument | None = None
        """The list as it was last seen."""

    def list_changed(self, document: LogDocument) -> None:
        """The list has changed, perhaps by this client."""
        self._latest = document

    def may_be_due(self) -> bool:
        """Whether a round may find anything to do. Needs no read, so that an idle log costs none."""
        document = self._tidied
        if document is None or document != self._latest or document.dropped or document.retention.cursors:
            return True
        if document.retention.seconds is None:
            return False
        return retention_cut(document, now_ms=self._access.clock_ms(), cursors={}) > document.first_position

    def tidy_soon(self, document: LogDocument) -> None:
        """Do not wait for the next round where there is something to do."""
        if document.dropped or len(document.segments) > self._segments_max:
            self._wanted.set()

    async def wait(self, seconds: float) -> None:
        """Wait until a round is due."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wanted.wait()
        self._wanted.clear()

    async def tidy(self) -> Versioned[LogDocument]:
        """One round: retention, pages, dropped ledgers. Gives the list as it then stands."""
        known = await read_log(self._store, self._name, log_id=self._log_id)
        cut = await self.retention_cut(known.value)
        if cut > known.value.first_position:
            known = await self.truncate(cut)
        known = await self._fold(known)
        known = await self.delete_dropped(known)
        self._tidied = known.value
        return known

    async def retention_cut(self, document: LogDocument) -> int:
        """The position below which retention would truncate the log now.

        Ages are those by this client's clock or by the store's, whichever makes entries and cursors younger: a client
        whose clock is ahead must not drop what is to be kept (rule P8).
        """
        cursors = await read_cursors(self._store, self._log_id) if document.retention.cursors else {}
        now_ms = self._access.clock_ms()
        cut = self._retention_cut(document, cursors, now_ms)
        if cut > document.first_position and (document.retention.seconds is not None or cursors):
            store_ms = await self._store.time_ms()
            if store_ms < now_ms:
                cut = self._retention_cut(document, cursors, store_ms)
        return cut

    def _retention_cut(self, document: LogDocument, cursors: Mapping[str, CursorState], now_ms: int) -> int:
        idle_ms = self._access.options.log_cursor_idle_seconds * 1000
        held = {
            name: cursor.position
            for name, cursor in cursors.items()
            # A cursor at the end waits for the leader, not the other way round.
            if now_ms - cursor.touched_at_ms <= idle_ms or cursor.position >= document.known_stop
        }
        return retention_cut(document, now_ms=now_ms, cursors=held if cursors else None)

    # --- truncation -----------------------------------------------------------------------------------------------

    async def truncate(self, before: int) -> Versioned[LogDocument]:
        """Let readers have nothing below ``before``, and drop the segments that lie below it altogether."""
        while True:
            known = await read_log(self._store, self._name, log_id=self._log_id)
            whole: dict[str, tuple[LedgerId, ...]] = {}
            split: tuple[PageReference, PageReference | None, tuple[LedgerId, ...]] | None = None
            for page in known.value.pages:
                if page.first_position >= before and page.stop_position > before:
                    break
                segments = await read_page(self._store, self._name, page)
                if segments is None:
                    break  # dropped by another client: read again
                if page.stop_position <= before:
                    whole[page.document] = tuple(segment.ledger_id for segment in segments)
                else:
                    split = await self._split(page, segments, before)
                    break
            else:
                segments = ()
            if segments is None:
                continue
            change = Truncate(before, split, whole)
            after = await update_log(self._store, self._name, change, log_id=self._log_id, known=known)
            documents = {page.document for page in known.value.pages} - {page.document for page in after.value.pages}
            for document in documents:
                await self._store.delete_document(document)
            if split is not None and split[1] is not None and split[1] not in after.value.pages:
                await self._store.delete_document(split[1].document)
            return after

    async def _split(
        self, page: PageReference, segments: Sequence[Segment], before: int
    ) -> tuple[PageReference, PageReference | None, tuple[LedgerId, ...]] | None:
        below = [segment for segment in segments if (stop := segment.stop_position) is not None and stop <= before]
        if not below:
            return None
        kept = segments[len(below) :]
        reference = await self._make_page(kept) if kept else None
        return page, reference, tuple(segment.ledger_id for segment in below)

    async def _make_page(self, segments: Sequence[Segment]) -> PageReference:
        document = page_document(self._log_id, self._access.random_token())
        await self._store.create_document(document, encode_page(segments))
        return page_reference(document, segments)

    # --- pages ----------------------------------------------------------------------------------------------------

    @property
    def _segments_max(self) -> int:
        return segments_max(self._access.options.log_page_segments)

    async def _fold(self, known: Versioned[LogDocument]) -> Versioned[LogDocument]:
        """Move the oldest segments into pages while the list is too long (rule P9)."""
        count = self._access.options.log_page_segments
        while len(known.value.segments) > self._segments_max:
            oldest = known.value.segments[:count]
            page = await self._make_page(oldest)
            change = FoldPage(page, oldest)
            known = await update_log(self._store, self._name, change, log_id=self._log_id, known=known)
            if page not in known.value.pages:
                await self._store.delete_document(page.document)
                break
        return known

    # --- deletion -------------------------------------------------------------------------------------------------

    async def delete_dropped(self, known: Versioned[LogDocument]) -> Versioned[LogDocument]:
        """Delete the ledgers that the list has dropped, and forget them."""
        while known.value.dropped:
            some = [dropped.ledger_id for dropped in known.value.dropped[: 8 * _DELETES_AT_ONCE]]
            permits = asyncio.Semaphore(_DELETES_AT_ONCE)

            async def delete(ledger_id: LedgerId, permits: asyncio.Semaphore = permits) -> bool:
                async with permits:
                    return await self._access.delete(ledger_id)

            found = dict(zip(some, await together(map(delete, some)), strict=True))
            existed = [ledger_id for ledger_id in some if found[ledger_id]]
            missing = [ledger_id for ledger_id in some if not found[ledger_id]]
            change = ForgetDropped(existed, missing)
            before = known.value.dropped
            known = await update_log(self._store, self._name, change, log_id=self._log_id, known=known)
            if not existed and len(known.value.dropped) >= len(before):
                break
        return known

    async def delete_log(self) -> None:
        """Delete the log: its ledgers, pages and cursors, its list last. Goes on where another client left off."""
        while True:
            known = await read_log(self._store, self._name, log_id=self._log_id, deleted=True)
            if known.value.state is LogState.DELETED:
                break
            paged: list[LedgerId] = []
            for page in known.value.pages:
                segments = await read_page(self._store, self._name, page)
                paged += [segment.ledger_id for segment in segments or ()]
            try:
                marked = await update_log(
                    self._store, self._name, MarkDeleted(paged, known.value.pages), log_id=self._log_id, known=known
                )
            except InvalidArgumentError:
                continue
            known = marked
            break
        known = await self.delete_dropped(known)
        # Also pages that no list ever named, because the client that made them died first.
        async for document in self._store.list_documents(page_document(self._log_id, "")):
            await self._store.delete_document(document)
        await self._store.delete_document(cursors_document(self._log_id))
        with contextlib.suppress(MetadataConflictError):
            await self._store.delete_document(list_document(self._name), known.version)
