"""A writer's view of the metadata of the stream whose current term is its own: what it learns, and what it changes.

Only the writer changes the last fragment of its open term, or puts the stream at rest (rule T9). Other clients may
change older fragments, truncate the stream, take it over, or delete it. As soon as the term is not open any more, or is
not the highest one, it is over for this writer (rule T10).
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from octavo.client.write.ensemble_changes import Commit
from octavo.client.write.own_metadata import watch_own
from octavo.metadata.ledger.changes import who_fenced
from octavo.metadata.ledger.debts import Debt
from octavo.metadata.ledger.term import Term
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned, Watch
from octavo.metadata.stream.changes import ChangeFragment, RenewTerm, Rest, StreamChange, TermEnd
from octavo.metadata.stream.model import StreamFragment, StreamMetadata, StreamState, position_in
from octavo.metadata.stream.pages import PageMissingError
from octavo.metadata.updates.page_out import read_again
from octavo.metadata.updates.paging import StreamPages
from octavo.metadata.updates.update import update_stream
from octavo.protocol.errors import (
    InternalError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    OctavoError,
    TermOverError,
)
from octavo.protocol.ids import BookieId, EntryId
from octavo.protocol.quorums import Quorums


class NextTerm(NamedTuple):
    """The beginning of the next term."""

    quorums: Quorums
    bookies: tuple[BookieId, ...]
    """As many as the ensemble has."""


class OwnTerm:
    """See the module; :class:`~octavo.client.write.own_metadata.OwnMetadata` of a term.

    ``stream``: its current term has just been opened by the writer. ``clock_ms``: the time of day, noted in new
    fragments."""

    def __init__(
        self,
        stream: Versioned[StreamMetadata],
        *,
        store: MetadataStore,
        retry_seconds: float,
        clock_ms: Callable[[], int],
    ) -> None:
        self._stream = stream
        self._term = stream.value.current_term
        self._store = store
        self._retry_seconds = retry_seconds
        self._closing = False
        self._watch: Watch[Versioned[StreamMetadata] | None] | None = None
        self._base = stream.value.last_fragment
        self._base_in_doubt: StreamFragment | None = None
        """The fragment of a change whose outcome is unknown: the store may or may not have made it."""
        self._renewal: RenewTerm | None = None
        """A renewal that was sent and is not known to stand, or not to stand."""
        self._clock_ms = clock_ms

    @property
    def term(self) -> Term:
        """The term that this client has opened last."""
        return self._term

    @property
    def stored(self) -> StreamMetadata:
        """The latest metadata seen or written."""
        return self._stream.value

    @property
    def root(self) -> Versioned[StreamMetadata]:
        """The same, with their version."""
        return self._stream

    # --- changes by other clients -----------------------------------------------------------------------------------

    def begin_watching(self, on_lost: Callable[[OctavoError], None]) -> None:
        """As :meth:`OwnMetadata.begin_watching`: the writer may not go on when the stream is deleted or the term is
        over."""
        self._watch = watch_own(self._store.watch_stream(self._term.ledger_id), self._adopt_stream, on_lost)

    def heed_close_only(self) -> None:
        """As :meth:`OwnMetadata.heed_close_only`."""
        self._closing = True

    def stop_watching(self) -> None:
        """As :meth:`OwnMetadata.stop_watching`."""
        if self._watch is not None:
            self._watch.stop()

    def mark_deleted(self) -> OctavoError | None:
        """As :meth:`OwnMetadata.mark_deleted`."""
        return self._adopt_stream(None)

    def _adopt_stream(self, stream: Versioned[StreamMetadata] | None) -> OctavoError | None:
        if self._closing:
            return None
        ledger_id, term = self._term.ledger_id, self._term.number
        if stream is not None and self._renewal is not None and stream.value.owner == self._renewal.owner:
            return None  # the answer to the renewal is still to come
        if stream is None:
            return NoSuchLedgerError(f"stream {ledger_id} has been deleted")
        if stream.value.term < term:
            return None  # older than what this writer has seen
        if stream.value.term > term or stream.value.state is not StreamState.OPEN:
            by = "another client has opened the next one"
            if stream.value.term == term:
                by = f"according to its metadata {who_fenced(stream.value)} takes the stream over"
            return TermOverError(f"stream {ledger_id}: term {term}, which this writer has opened, is over: {by}")
        if stream.value.last_fragment == self._base:
            self._note(stream)
        return None

    def _note(self, stream: Versioned[StreamMetadata]) -> None:
        """Keep metadata in which the term is still the current one. A rest may be found settled in later ones."""
        self._stream = stream
        if stream.value.term == self._base.term:
            self._base = stream.value.last_fragment
            self._term = stream.value.current_term

    # --- changes ----------------------------------------------------------------------------------------------------

    async def change_ensemble(self, change: Commit, is_wanted: Callable[[], bool]) -> bool:
        """As :meth:`OwnMetadata.change_ensemble` (rule T9)."""
        base = self._base
        self._base_in_doubt = fragment = replace(
            base,
            first_entry_id=change.first_entry_id,
            first_position=position_in(base, change.first_entry_id),
            bookies=change.ensemble,
            length_before=change.length_before,
            opened_at_ms=self._clock_ms(),
        )
        while is_wanted():
            try:
                await self._make(ChangeFragment(base, fragment, change.debt))
            except MetadataUnavailableError:
                await asyncio.sleep(self._retry_seconds)
            else:
                self._base_in_doubt = None
                return True
        return False

    async def refresh(self) -> None:
        """Read the metadata, and page out old fragments if that is due. Afterwards a change of the last fragment takes
        one write, and it is known that the store answers. Raises :class:`TermOverError`, and what the store raises."""
        self._read(await self._store.read_stream(self._term.ledger_id))

    def _read(self, stream: Versioned[StreamMetadata]) -> None:
        lost = self._adopt_stream(stream)
        if lost is not None:
            raise lost

    async def renew(
        self, end: TermEnd, following: NextTerm, owner: str, is_wanted: Callable[[], bool]
    ) -> Versioned[StreamMetadata] | None:
        """End the term and open the next one (rule T11); the stream then. Asks again for as long as the store does not
        answer, because nothing may be sent until the outcome is known. None if ``is_wanted`` says meanwhile that the
        renewal is not wanted any more. Raises :class:`TermOverError`, and what the store raises."""
        base = self._base
        fragment = replace(
            base,
            bookies=following.bookies,
            write_quorum=following.quorums.write_quorum,
            ack_quorum=following.quorums.ack_quorum,
            opened_at_ms=self._clock_ms(),
            leader_term=base.first_term,
        )
        self._renewal = RenewTerm(base, end, owner, fragment)
        while is_wanted():
            try:
                renewed = await self._changed(self._renewal)
            except MetadataUnavailableError:
                await asyncio.sleep(self._retry_seconds)
            except OctavoError:
                self._renewal = None
                raise
            else:
                self._take_renewed(renewed)
                return renewed
        return None

    def _take_renewed(self, stream: Versioned[StreamMetadata]) -> None:
        self._renewal = None
        self._base = stream.value.last_fragment
        self._note(stream)

    async def close(self, last_add_confirmed: EntryId | None, length: int, debt: Debt) -> None:
        """As :meth:`OwnMetadata.close`: puts the stream at rest (rule T8)."""
        assert last_add_confirmed is not None, "a term without entries ends below its first place"
        if self._renewal is not None:
            await self._settle_renewal()
        # A term that has just been opened by renewal is empty.
        last = EntryId(max(last_add_confirmed, self._base.first_entry_id - 1))
        try:
            await self._rest(last, length, debt)
        except TermOverError:
            ended = await self._ended_at(last)
            if ended is None:
                raise
            self._note(ended)

    async def _rest(self, last: EntryId, length: int, debt: Debt) -> None:
        try:
            await self._make(_rest(self._base, last, length, debt))
        except (InternalError, MetadataConflictError):
            # The store may have made a change of this writer whose answer was lost (rule M1).
            if self._base_in_doubt is None:
                raise
            await self._make(_rest(self._base_in_doubt, last, length, debt))

    async def _ended_at(self, last: EntryId) -> Versioned[StreamMetadata] | None:
        """The metadata in which the term has ended at this place, although the root alone does not tell: what does lies
        in a page by now. None if the term ended elsewhere, or nothing says where."""
        pages, missed = StreamPages(self._store), 0
        while True:
            stream = await self._store.read_stream(self._term.ledger_id)
            try:
                return stream if await pages.end_of_term(stream.value, self._base.term) == last else None
            except PageMissingError as error:
                missed += 1
                await read_again(self._store, stream.value, error, missed)

    async def _settle_renewal(self) -> None:
        """Find out whether a renewal whose answer was lost has been made. The term that stands afterwards is put at
        rest, so that it cannot be made any more."""
        stored = await self._store.read_stream(self._term.ledger_id)
        if self._renewal is not None and stored.value.owner == self._renewal.owner:
            self._take_renewed(stored)

    async def _make(self, change: StreamChange) -> None:
        self._note(await self._changed(change))

    async def _changed(self, change: StreamChange) -> Versioned[StreamMetadata]:
        return await update_stream(
            self._store,
            self._term.ledger_id,
            change,
            writer_token=self.stored.owner,
            known=self._stream,
        )


def _rest(base: StreamFragment, last: EntryId, length: int, debt: Debt) -> Rest:
    owed = debt.within(base.first_entry_id, last)
    return Rest(base, TermEnd(last, length, ((base.first_entry_id, owed),)))
