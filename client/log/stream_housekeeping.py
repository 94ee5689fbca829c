"""What keeps a log that is a stream small: truncation, retention, pages, and the deletion of streams that no log needs.

Every step can be done by any client at any time, and begun again after a crash.
"""

import asyncio
import contextlib
from collections.abc import Mapping

from octavo.client.log.cursor_document import CursorState
from octavo.client.log.cursor_reading import read_cursors
from octavo.client.log.document import NO_RETENTION
from octavo.client.log.ledgers import LedgerAccess
from octavo.client.log.names import cursors_document, list_document
from octavo.client.log.stream_changes import ForgetAbandoned, MarkStreamDeleted, RaiseFirst
from octavo.client.log.stream_document import StreamLogDocument, Truncating
from octavo.client.log.stream_retention import stream_retention_cut
from octavo.client.log.update import read_stream_log, update_stream_log
from octavo.metadata.pages import PageMissingError
from octavo.metadata.paging import StreamPages, delete_stream, tidy_stream, truncate_stream
from octavo.metadata.store import Versioned
from octavo.metadata.stream_model import StreamMetadata
from octavo.protocol.errors import MetadataConflictError, NoSuchLedgerError
from octavo.protocol.ids import LedgerId


class StreamHousekeeper:
    """See the module. Of one log."""

    def __init__(self, access: LedgerAccess, name: str, log_id: str) -> None:
        self._access = access
        self._store = access.store
        self._name = name
        self._log_id = log_id
        self._pages = StreamPages(access.store)
        self._tidied: StreamLogDocument | None = None
        """The document as the last round left it."""
        self._latest: StreamLogDocument | None = None
        """The document as it was last seen."""

    # --- while a client leads -----------------------------------------------------------------------------------------

    def document_changed(self, document: StreamLogDocument) -> None:
        """The document has changed, perhaps by this client."""
        self._latest = document

    async def wait(self, seconds: float) -> None:
        """Wait until a round is due."""
        await asyncio.sleep(seconds)

    def may_be_due(self) -> bool:
        """Whether a round may find anything to do. Needs no read, so that an idle log without retention costs none."""
        document = self._tidied
        if document is None or document != self._latest:
            return True
        return document.retention != NO_RETENTION or bool(document.abandoned)

    async def tidy(self) -> tuple[Versioned[StreamLogDocument], Versioned[StreamMetadata]]:
        """One round: retention, what truncation has left in the stream, pages, abandoned streams. What then stands."""
        known = await read_stream_log(self._store, self._name, log_id=self._log_id)
        root = await self._store.read_stream(known.value.ledger_id)
        cut = await self.retention_cut(known.value, root.value)
        if cut > known.value.first_position:
            known, root = await self.truncate(cut)
        elif min(cut, root.value.last_fragment.first_position) > root.value.start:
            root = await self.follow_document(known.value)
        root = await tidy_stream(
            self._store, known.value.ledger_id, writer_token=self._access.random_token(), known=root
        )
        known = await self.delete_abandoned(known)
        self._tidied = self._latest = known.value
        return known, root

    # --- retention ----------------------------------------------------------------------------------------------------

    async def retention_cut(self, document: StreamLogDocument, root: StreamMetadata) -> int:
        """The position below which retention would truncate the log now. Ages are those by this client's clock or by
        the store's, whichever makes entries and cursors younger (rules P8 and U7)."""
        if document.retention == NO_RETENTION:
            return document.first_position
        cursors = await read_cursors(self._store, self._log_id) if document.retention.cursors else {}
        now_ms = self._access.clock_ms()
        cut = await self._retention_cut(document, root, cursors, now_ms)
        if cut > document.first_position and (document.retention.seconds is not None or cursors):
            store_ms = await self._store.time_ms()
            if store_ms < now_ms:
                cut = await self._retention_cut(document, root, cursors, store_ms)
        return cut

    async def _retention_cut(
        self, document: StreamLogDocument, root: StreamMetadata, cursors: Mapping[str, CursorState], now_ms: int
    ) -> int:
        idle = self._idle_cursors(root, cursors, now_ms)
        held = {name: cursor.position for name, cursor in cursors.items() if name not in idle}
        held_back = held if cursors else None
        length = root.length if root.has_end else root.last_fragment.length_before
        cut = stream_retention_cut(root, document.retention, now_ms=now_ms, length=length, cursors=held_back)
        if cut.page is not None:
            # Where another client has paged out meanwhile the exact cut is left to the next round.
            with contextlib.suppress(PageMissingError):
                part = await self._pages.part(root, cut.page)
                cut = stream_retention_cut(
                    root, document.retention, now_ms=now_ms, length=length, cursors=held_back, part=part
                )
        return max(document.first_position, cut.position)

    async def idle_cursors(self, root: StreamMetadata, cursors: Mapping[str, CursorState]) -> frozenset[str]:
        """The names of the cursors that retention ignores now."""
        idle = self._idle_cursors(root, cursors, self._access.clock_ms())
        return idle and idle & self._idle_cursors(root, cursors, await self._store.time_ms())

    def _idle_cursors(self, root: StreamMetadata, cursors: Mapping[str, CursorState], now_ms: int) -> frozenset[str]:
        idle_ms = self._access.options.log_cursor_idle_seconds * 1000
        end = root.end_position
        known_stop = root.last_fragment.first_position if end is None else end + 1
        # A cursor at the end waits for the leader, not the other way round.
        return frozenset(
            name
            for name, cursor in cursors.items()
            if now_ms - cursor.touched_at_ms > idle_ms and cursor.position < known_stop
        )

    # --- truncation and deletion --------------------------------------------------------------------------------------

    async def truncate(
        self, before: int, noted: Truncating | None = None
    ) -> tuple[Versioned[StreamLogDocument], Versioned[StreamMetadata]]:
        """Let readers have nothing below ``before``, and drop what of the stream lies below it. The part of the last
        fragment that does goes once there is another one (rule P7).

        ``noted``: before the end was looked at; None for positions that are not above it for certain. Raises
        :class:`EndMovedError` if the note is gone by now.
        """
        known = await update_stream_log(self._store, self._name, RaiseFirst(before, noted), log_id=self._log_id)
        return known, await self.follow_document(known.value)

    async def follow_document(self, document: StreamLogDocument) -> Versioned[StreamMetadata]:
        """Truncate the stream where the document says that the log begins."""
        return await truncate_stream(
            self._store, document.ledger_id, document.first_position, writer_token=self._access.random_token()
        )

    async def delete_abandoned(self, known: Versioned[StreamLogDocument]) -> Versioned[StreamLogDocument]:
        """Delete the streams of creators that died (rule P13), and note which were there."""
        deleted: list[LedgerId] = []
        missing: list[LedgerId] = []
        for one in known.value.abandoned:
            (deleted if await self._delete(one.ledger_id) else missing).append(one.ledger_id)
        if not deleted and not missing:
            return known
        change = ForgetAbandoned(deleted, missing)
        return await update_stream_log(self._store, self._name, change, log_id=self._log_id, known=known)

    async def _delete(self, ledger_id: LedgerId) -> bool:
        """Delete a stream with its pages; False when it did not exist."""
        try:
            await delete_stream(self._store, ledger_id)
        except NoSuchLedgerError:
            return False
        return True

    async def delete_log(self) -> None:
        """Delete the log: its stream and its cursors, its document last. Goes on where another client left off."""
        known = await read_stream_log(self._store, self._name, log_id=self._log_id, deleted=True)
        known = await update_stream_log(self._store, self._name, MarkStreamDeleted(), log_id=self._log_id, known=known)
        for ledger_id in (known.value.ledger_id, *(one.ledger_id for one in known.value.abandoned)):
            await self._delete(ledger_id)
        await self._store.delete_document(cursors_document(self._log_id))
        with contextlib.suppress(MetadataConflictError):
            await self._store.delete_document(list_document(self._name), known.version)
