"""Keeps a log that is a stream small: truncation, retention, pages, and the deletion of streams that no log needs.

Every step can be done by any client at any time, and begun again after a crash.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from octavo.client.log.ages.ages import LogAges, LogFacts, Sealed
from octavo.client.log.ages.keeper import AgeKeeper, told_idle
from octavo.client.log.cursors.floor import agree_on_cut
from octavo.client.log.cursors.reading import read_cursors
from octavo.client.log.documents.chain import NO_RETENTION, Retention
from octavo.client.log.documents.cursors import CursorState
from octavo.client.log.documents.names import cursors_document, list_document
from octavo.client.log.documents.reading import read_stream_log
from octavo.client.log.documents.stream import StreamLogDocument, Truncating
from octavo.client.log.seam.access import LedgerAccess
from octavo.client.log.stream.changes import ForgetAbandoned, MarkStreamDeleted, RaiseFirst
from octavo.client.log.stream.retention import stream_retention_cut
from octavo.client.log.stream.update import update_stream_log
from octavo.metadata.store.values import Versioned
from octavo.metadata.stream.model import StreamFragment, StreamMetadata
from octavo.metadata.stream.page_reference import PageReference
from octavo.metadata.stream.pages import PageMissingError
from octavo.metadata.updates.paging import StreamPages, delete_stream, tidy_stream, truncate_stream
from octavo.protocol.errors import MetadataConflictError, NoSuchLedgerError
from octavo.protocol.ids import LedgerId


class StreamHousekeeper:
    """See the module. Of one log."""

    def __init__(self, access: LedgerAccess, name: str, log_id: str) -> None:
        self._access = access
        self._store = access.store
        self._name = name
        self._log_id = log_id
        self.ages = AgeKeeper(access, name, log_id)
        self._pages = StreamPages(access.store)
        self._tidied: StreamLogDocument | None = None
        """The document as the last round left it."""
        self._latest: StreamLogDocument | None = None
        """The document as it was last seen."""
        self._has_rolled = False
        """A fragment was begun since the last round."""

    # --- while a client leads -----------------------------------------------------------------------------------------

    def document_changed(self, document: StreamLogDocument) -> None:
        """The document has changed, perhaps by this client."""
        self._latest = document

    def rolled(self) -> None:
        """This client has begun a fragment: what lies before it is sealed, and the next round notes that (rule P19)."""
        self._has_rolled = True

    def on_wanted(self, begin: Callable[[], object]) -> None:
        """As :meth:`octavo.client.log.seam.lead.Upkeep.on_wanted`: no round of a stream is wanted before its time."""

    def may_be_due(self) -> bool:
        """Whether a round may find anything to do. Needs no read, so that an idle log without retention costs none."""
        document = self._tidied
        if document is None or document != self._latest or self._has_rolled:
            return True
        return document.retention != NO_RETENTION or bool(document.abandoned)

    async def tidy(self) -> tuple[Versioned[StreamLogDocument], Versioned[StreamMetadata]]:
        """One round: retention, what truncation has left in the stream, pages, abandoned streams. What then stands."""
        self._has_rolled = False
        known = await read_stream_log(self._store, self._name, log_id=self._log_id)
        root = await self._store.read_stream(known.value.ledger_id)
        ages, cursors = await self._count(known.value, root.value)
        cut = await self._retention_cut(known.value, root.value, cursors, ages)
        cut = await self._agreed(known.value, root.value, cut)
        if cut > known.value.first_position:
            known, root = await self.truncate(cut, retention=known.value.retention)
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
        """The position below which retention would truncate the log now."""
        if document.retention == NO_RETENTION:
            return document.first_position
        cursors = await read_cursors(self._store, self._log_id) if document.retention.cursors else {}
        ages = None
        if document.retention.seconds is not None or cursors:
            ages = await self.ages.look(age_facts(document, root), cursors)
        return await self._retention_cut(document, root, cursors, ages)

    async def would_drop(self, retention: Retention) -> int:
        """The position below which this retention, which need not be the log's, would truncate it now. The ages are
        stored from time to time, so the count goes on from client to client (rule P19)."""
        known = await read_stream_log(self._store, self._name, log_id=self._log_id)
        root = await self._store.read_stream(known.value.ledger_id)
        document = replace(known.value, retention=retention)
        ages, cursors = await self._count(document, root.value)
        return await self._retention_cut(document, root.value, cursors, ages)

    async def _agreed(self, document: StreamLogDocument, root: StreamMetadata, cut: int) -> int:
        """Of what retention would drop, what cursors let go for certain (rule P20)."""
        first = document.first_position
        if not document.retention.cursors or cut <= first:
            return cut

        async def cut_of(cursors: Mapping[str, CursorState]) -> int:
            ages = await self.ages.look(age_facts(document, root), cursors)
            return await self._retention_cut(document, root, cursors, ages)

        return await agree_on_cut(self._store, self._log_id, first, cut_of)

    async def _retention_cut(
        self,
        document: StreamLogDocument,
        root: StreamMetadata,
        cursors: Mapping[str, CursorState],
        ages: LogAges | None,
    ) -> int:
        """Ages are proven, not believed (rules P8, P19 and U7). ``ages``: None where nothing depends on them."""
        retention = document.retention
        if retention == NO_RETENTION:
            return document.first_position
        idle = self._idle_cursors(root, cursors, ages) if ages is not None else frozenset()
        held = {name: cursor.position for name, cursor in cursors.items() if name not in idle}
        held_back = held if cursors else None
        old_stop = ages.stop_of_older_than(retention.seconds) if ages is not None and retention.seconds else None
        length = root.length if root.has_end else root.last_fragment.length_before
        cut = stream_retention_cut(root, retention, old_stop=old_stop, length=length, cursors=held_back)
        if cut.page is not None:
            # Where another client has paged out meanwhile the exact cut is left to the next round.
            with contextlib.suppress(PageMissingError):
                part = await self._pages.part(root, cut.page)
                cut = stream_retention_cut(
                    root, retention, old_stop=old_stop, length=length, cursors=held_back, part=part
                )
        # A key must be known after a takeover, too: the next leader reads the window (rule P21).
        kept = cut.position if document.keys is None else _known_stop(root) - document.keys.entries
        return max(document.first_position, min(cut.position, kept))

    async def _count(
        self, document: StreamLogDocument, root: StreamMetadata
    ) -> tuple[LogAges, Mapping[str, CursorState]]:
        """The ages of the log's entries, stored from time to time, and its cursors if they hold entries back."""
        cursors = await read_cursors(self._store, self._log_id) if document.retention.cursors else {}
        waited = [] if document.retention.seconds is None else [document.retention.seconds]
        waited += [self._access.options.log_cursor_idle_seconds] if cursors else []
        return await self.ages.note(age_facts(document, root), cursors, waited), cursors

    async def idle_cursors(
        self, document: StreamLogDocument, root: StreamMetadata, cursors: Mapping[str, CursorState]
    ) -> frozenset[str]:
        """The names of the cursors that retention ignores now, or would if it looked at cursors."""
        if not document.retention.cursors:
            idle_seconds = self._access.options.log_cursor_idle_seconds
            return await told_idle(self._access, cursors, idle_seconds, _known_stop(root))
        return self._idle_cursors(root, cursors, await self.ages.look(age_facts(document, root), cursors))

    def _idle_cursors(self, root: StreamMetadata, cursors: Mapping[str, CursorState], ages: LogAges) -> frozenset[str]:
        idle_seconds = self._access.options.log_cursor_idle_seconds
        known_stop = _known_stop(root)
        # A cursor at the end waits for the leader, not the other way round.
        return frozenset(
            name
            for name, cursor in cursors.items()
            if cursor.position < known_stop and ages.is_unmoved(name, cursor, idle_seconds)
        )

    # --- truncation and deletion --------------------------------------------------------------------------------------

    async def truncate(
        self, before: int, noted: Truncating | None = None, *, retention: Retention | None = None
    ) -> tuple[Versioned[StreamLogDocument], Versioned[StreamMetadata]]:
        """Let readers have nothing below ``before``, and drop what of the stream lies below it. The part of the last
        fragment that does goes once there is another one (rule P7).

        ``noted``: before the end was looked at; None for positions that are not above it for certain. Raises
        :class:`EndMovedError` if the note is gone by now. ``retention``: by which it was decided; nothing happens if it
        is another one by now (rule P20).
        """
        change = RaiseFirst(before, noted, retention)
        known = await update_stream_log(self._store, self._name, change, log_id=self._log_id)
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
        await self.ages.delete()
        with contextlib.suppress(MetadataConflictError):
            await self._store.delete_document(list_document(self._name), known.version)


def age_facts(document: StreamLogDocument, root: StreamMetadata) -> LogFacts:
    """The facts about ages in the metadata. Places are entry ids: positions may be taken a second time by a later
    term."""
    pieces: list[PageReference | StreamFragment] = [*root.pages, *root.fragments]
    return LogFacts(
        stop=root.last_fragment.first_entry_id,
        start=root.start_place,
        is_counted=document.counts_ages,
        told=tuple(Sealed(piece.first_entry_id, piece.opened_at_ms) for piece in pieces),
    )


def _known_stop(root: StreamMetadata) -> int:
    end = root.end_position
    return root.last_fragment.first_position if end is None else end + 1
