"""Keeps a log that is a chain small: truncation, retention, pages of old segments, and the deletion of dropped ledgers.

Every step can be done by any client at any time and begun again after a crash: what must not be forgotten stands in
the list before it is done. Ledgers are named in ``dropped`` before they are deleted; pages are made before the list
names them and are deleted after the list has dropped them.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from octavo.client.log.ages.ages import LogAges, LogFacts, Sealed
from octavo.client.log.ages.keeper import AgeKeeper, told_idle
from octavo.client.log.chain.bounds import (
    DROPPED_AT_ONCE_MAX,
    DROPPED_MAX,
    pages_max,
    pages_to_merge,
    segments_to_fold,
)
from octavo.client.log.chain.changes import DropPage, FoldPage, ForgetDropped, MarkDeleted, MergePages, Truncate
from octavo.client.log.chain.retention import pieces_of, retention_cut
from octavo.client.log.chain.update import update_log
from octavo.client.log.cursors.floor import agree_on_cut
from octavo.client.log.cursors.reading import read_cursors
from octavo.client.log.documents.chain import (
    LogDocument,
    PageReference,
    Retention,
    Segment,
    decode_page,
    encode_page,
    page_reference,
)
from octavo.client.log.documents.cursors import CursorState
from octavo.client.log.documents.names import cursors_document, list_document, page_document
from octavo.client.log.documents.reading import read_log
from octavo.client.log.seam.access import LedgerAccess
from octavo.client.log.seam.concurrently import together
from octavo.client.log.seam.end_moved import EndMovedError
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned
from octavo.protocol.errors import MetadataConflictError
from octavo.protocol.ids import LedgerId

_DELETES_AT_ONCE: Final = 16
"""Ledgers deleted at the same time."""

_ROUND: Final = 8 * _DELETES_AT_ONCE
"""Ledgers deleted between two changes of the list."""


async def read_page(store: MetadataStore, name: str, page: PageReference) -> tuple[Segment, ...] | None:
    """The segments of a page; None when it has been dropped meanwhile."""
    found = await store.read_document(page.document)
    return None if found is None else decode_page(found.value, f"log {name}, page {page.document}")


class Housekeeper:
    """See the module. Of one log."""

    def __init__(
        self, access: LedgerAccess, name: str, log_id: str, *, dropped_at_once_max: int = DROPPED_AT_ONCE_MAX
    ) -> None:
        self._access = access
        self._dropped_at_once_max = dropped_at_once_max
        self._store = access.store
        self._name = name
        self._log_id = log_id
        self.ages = AgeKeeper(access, name, log_id)
        self._is_wanted = False
        """A round is wanted at once, and nothing has been told of it."""
        self._on_wanted: Callable[[], object] | None = None
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
        if document.retention.seconds is None or self.ages.latest is None:
            return False
        # Proven time is never ahead of this host's: nothing else can have grown old, and no other count is due.
        elapsed_ms = self.ages.elapsed_ms()
        if retention_cut(document, old_stop=document.known_stop, cursors={}) <= document.first_position:
            return False
        return self.ages.latest.may_tell_more(elapsed_ms, document.retention.seconds)

    def tidy_soon(self, document: LogDocument) -> None:
        """Do not wait for the next round where there is something to do."""
        if document.dropped or segments_to_fold(document, self._page_segments):
            if self._on_wanted is not None:
                self._on_wanted()
            else:
                self._is_wanted = True

    def on_wanted(self, begin: Callable[[], object]) -> None:
        """Call ``begin`` when a round is wanted at once."""
        self._on_wanted = begin
        if self._is_wanted:
            self._is_wanted = False
            begin()

    async def tidy(self) -> Versioned[LogDocument]:
        """One round: retention, pages, dropped ledgers. Gives the list as it then stands."""
        known = await read_log(self._store, self._name, log_id=self._log_id)
        ages, cursors = await self._count(known.value)
        cut = await self._agreed(known.value, self._retention_cut(known.value, cursors, ages))
        if cut > known.value.first_position or _has_truncated_page(known.value):
            known = await self.truncate(cut, retention=known.value.retention)
        known = await self._fold(known)
        known = await self._merge_pages(known)
        known = await self.delete_dropped(known)
        self._tidied = known.value
        return known

    async def make_room(self, known: Versioned[LogDocument]) -> Versioned[LogDocument]:
        """Bound the list before a client takes the log over. Leaders that lead only for moments, and candidates that
        fail again and again, would let it grow until it cannot be changed."""
        if len(known.value.dropped) > DROPPED_MAX:
            known, _ = await self._delete_some(known)
        return await self._merge_pages(await self._fold(known))

    async def retention_cut(self, document: LogDocument) -> int:
        """The position below which retention would truncate the log now."""
        retention = document.retention
        cursors = await read_cursors(self._store, self._log_id) if retention.cursors else {}
        if retention.seconds is None and not cursors:
            return retention_cut(document, old_stop=None, cursors=None)
        return self._retention_cut(document, cursors, await self.ages.look(age_facts(document), cursors))

    async def would_drop(self, retention: Retention) -> int:
        """The position below which this retention, which need not be the log's, would truncate it now. The ages are
        stored from time to time, so the count goes on from client to client (rule P19)."""
        known = await read_log(self._store, self._name, log_id=self._log_id)
        document = replace(known.value, retention=retention)
        ages, cursors = await self._count(document)
        return self._retention_cut(document, cursors, ages)

    async def _agreed(self, document: LogDocument, cut: int) -> int:
        """Of what retention would drop, what cursors let go for certain (rule P20)."""
        first = document.first_position
        if not document.retention.cursors or cut <= first:
            return cut

        async def cut_of(cursors: Mapping[str, CursorState]) -> int:
            return self._retention_cut(document, cursors, await self.ages.look(age_facts(document), cursors))

        return await agree_on_cut(self._store, self._log_id, first, cut_of)

    def _retention_cut(self, document: LogDocument, cursors: Mapping[str, CursorState], ages: LogAges) -> int:
        """Ages are proven, not believed (rules P8 and P19)."""
        seconds = document.retention.seconds
        idle = self._idle_cursors(document, cursors, ages)
        held = {name: cursor.position for name, cursor in cursors.items() if name not in idle}
        old_stop = None if seconds is None else ages.stop_of_older_than(seconds)
        return retention_cut(document, old_stop=old_stop, cursors=held if cursors else None)

    async def _count(self, document: LogDocument) -> tuple[LogAges, Mapping[str, CursorState]]:
        """The ages of the log's entries, stored from time to time, and its cursors if they hold entries back."""
        cursors = await read_cursors(self._store, self._log_id) if document.retention.cursors else {}
        waited = [] if document.retention.seconds is None else [document.retention.seconds]
        waited += [self._access.options.log_cursor_idle_seconds] if cursors else []
        return await self.ages.note(age_facts(document), cursors, waited), cursors

    async def idle_cursors(self, document: LogDocument, cursors: Mapping[str, CursorState]) -> frozenset[str]:
        """The names of the cursors that retention ignores now, or would if it looked at cursors."""
        if not document.retention.cursors:
            idle_seconds = self._access.options.log_cursor_idle_seconds
            return await told_idle(self._access, cursors, idle_seconds, document.known_stop)
        return self._idle_cursors(document, cursors, await self.ages.look(age_facts(document), cursors))

    def _idle_cursors(self, document: LogDocument, cursors: Mapping[str, CursorState], ages: LogAges) -> frozenset[str]:
        idle_seconds = self._access.options.log_cursor_idle_seconds
        return frozenset(
            name
            for name, cursor in cursors.items()
            # A cursor at the end waits for the leader, not the other way round.
            if cursor.position < document.known_stop and ages.is_unmoved(name, cursor, idle_seconds)
        )

    # --- truncation -----------------------------------------------------------------------------------------------

    async def truncate(
        self, before: int, looked: Versioned[LogDocument] | None = None, *, retention: Retention | None = None
    ) -> Versioned[LogDocument]:
        """Let readers have nothing below ``before``, and drop the segments that lie below it altogether.

        ``looked``: the list by which ``before`` was found not to be above the end; None for positions that are not
        above it for certain. Raises :class:`EndMovedError` if the list is another one by now (rule P7). ``retention``:
        by which it was decided; nothing happens if it is another one by now (rule P20).
        """
        known = looked
        while True:
            known = known or await read_log(self._store, self._name, log_id=self._log_id)
            change = Truncate(before, looked=None if looked is None else looked.value, retention=retention)
            after = await self._truncate_some(known, change)
            known = None
            if after is not None and not _has_truncated_page(after.value):
                return after
            if after is not None:
                await self.delete_dropped(after)

    async def _truncate_some(self, known: Versioned[LogDocument], change: Truncate) -> Versioned[LogDocument] | None:
        """Truncate, and drop as many pages as one change of the list may. None where another client is at it, too."""
        before = change.before
        whole: dict[str, tuple[LedgerId, ...]] = {}
        split: tuple[PageReference, PageReference | None, tuple[LedgerId, ...]] | None = None
        for page in known.value.pages:
            is_whole = page.stop_position <= before
            dropped = len(known.value.dropped) + sum(map(len, whole.values()))
            if whole and dropped + page.segments > self._dropped_at_once_max:
                break
            if not is_whole and page.first_position >= before:
                break
            segments = await read_page(self._store, self._name, page)
            if segments is None:
                return None
            if not is_whole:
                split = await self._split(page, segments, before)
                break
            whole[page.document] = tuple(segment.ledger_id for segment in segments)
        change = replace(change, split=split, whole_pages=whole)
        try:
            after = await update_log(self._store, self._name, change, log_id=self._log_id, known=known)
        except EndMovedError:
            if split is not None and split[1] is not None:
                await self._store.delete_document(split[1].document)
            raise
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
    def _page_segments(self) -> int:
        return self._access.options.log_page_segments

    async def _fold(self, known: Versioned[LogDocument]) -> Versioned[LogDocument]:
        """Move the oldest segments into pages while the list is too long (rule P9)."""
        while count := segments_to_fold(known.value, self._page_segments):
            oldest = known.value.segments[:count]
            page = await self._make_page(oldest)
            change = FoldPage(page, oldest)
            known = await update_log(self._store, self._name, change, log_id=self._log_id, known=known)
            if page not in known.value.pages:
                await self._store.delete_document(page.document)
                break
        return known

    async def _merge_pages(self, known: Versioned[LogDocument]) -> Versioned[LogDocument]:
        """Make one page of several while there are too many (rule P9)."""
        while pages := tuple(pages_to_merge(known.value.pages, pages_max(self._page_segments))):
            segments: list[Segment] = []
            for page in pages:
                found = await read_page(self._store, self._name, page)
                if found is None:
                    return known  # dropped by another client
                segments += found
            merged = await self._make_page(segments)
            change = MergePages(pages, merged)
            known = await update_log(self._store, self._name, change, log_id=self._log_id, known=known)
            done = merged in known.value.pages
            for document in [page.document for page in pages] if done else [merged.document]:
                await self._store.delete_document(document)
            if not done:
                break
        return known

    # --- deletion -------------------------------------------------------------------------------------------------

    async def delete_dropped(self, known: Versioned[LogDocument]) -> Versioned[LogDocument]:
        """Delete the ledgers that the list has dropped, and forget them."""
        is_done = False
        while known.value.dropped and not is_done:
            before = known.value.dropped
            known, existed = await self._delete_some(known)
            is_done = not existed and len(known.value.dropped) >= len(before)
        return known

    async def _delete_some(self, known: Versioned[LogDocument]) -> tuple[Versioned[LogDocument], bool]:
        """Delete the first of the dropped ledgers; whether there was any."""
        some = [dropped.ledger_id for dropped in known.value.dropped[:_ROUND]]
        permits = asyncio.Semaphore(_DELETES_AT_ONCE)

        async def delete(ledger_id: LedgerId) -> bool:
            async with permits:
                return await self._access.delete(ledger_id)

        found = dict(zip(some, await together(map(delete, some)), strict=True))
        existed = [ledger_id for ledger_id in some if found[ledger_id]]
        missing = [ledger_id for ledger_id in some if not found[ledger_id]]
        change = ForgetDropped(existed, missing)
        known = await update_log(self._store, self._name, change, log_id=self._log_id, known=known)
        return known, bool(existed)

    async def delete_log(self) -> None:
        """Delete the log: its ledgers, pages and cursors, its list last. Goes on where another client left off."""
        known = await read_log(self._store, self._name, log_id=self._log_id, deleted=True)
        known = await update_log(self._store, self._name, MarkDeleted(), log_id=self._log_id, known=known)
        known = await self.delete_dropped(known)
        while known.value.pages:
            page = known.value.pages[0]
            # The document goes after the page has left the list: if it is gone, so is the page.
            ledgers = [segment.ledger_id for segment in await read_page(self._store, self._name, page) or ()]
            change = DropPage(page, ledgers)
            known = await update_log(self._store, self._name, change, log_id=self._log_id, known=known)
            await self._store.delete_document(page.document)
            known = await self.delete_dropped(known)
        # Also pages that no list ever named, because the client that made them died first.
        async for document in self._store.list_documents(page_document(self._log_id, "")):
            await self._store.delete_document(document)
        await self._store.delete_document(cursors_document(self._log_id))
        await self.ages.delete()
        with contextlib.suppress(MetadataConflictError):
            await self._store.delete_document(list_document(self._name), known.version)


def _has_truncated_page(document: LogDocument) -> bool:
    """Whether a page lies below the beginning altogether: a truncation of many pages was interrupted."""
    return bool(document.pages) and document.pages[0].stop_position <= document.first_position


def age_facts(document: LogDocument) -> LogFacts:
    """The facts about ages in the list."""
    return LogFacts(
        stop=document.known_stop,
        start=document.first_position,
        term=document.term,
        end_of_term=document.end_of_term,
        is_counted=document.counts_ages,
        # An empty segment is as old as its making, which is among the times that may show a clock that was behind.
        told=tuple(Sealed(piece.stop, piece.newest_ms) for piece in pieces_of(document)),
    )
