"""The lead of a log that is a stream: how it rolls, heals and comes to rest (rules T8, T10, U6, P5).

The leader writes a term of the stream. A roll begins a fragment of that term, and a renewal the next term, without the
log's writer having to wait for anything. To heal, the leader takes the stream over from itself: the recovery of its own
term tells which adds in doubt happened, and the first fragment of the next term names the leader's first one, so that
an add in doubt is known to be this leader's in whichever of its terms it ends up (rule P6).

Every term that this leader opens has an owner's token that begins with a random part of the leader's own. So it knows
its own terms also if the answer to a takeover or a renewal was lost, and a rival's.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from octavo.client.log.documents.names import list_document
from octavo.client.log.documents.reading import explain_missing, read_root, read_stream_log
from octavo.client.log.documents.states import LogState
from octavo.client.log.documents.stream import AnyLogDocument, StreamLogDocument, decode_any_log
from octavo.client.log.documents.terms import log_term
from octavo.client.log.seam.access import LedgerAccess
from octavo.client.log.seam.active_segment import ActiveSegment
from octavo.client.log.seam.lead import LeadHost
from octavo.client.log.seam.quorum_change import QuorumChange
from octavo.client.log.stream.changes import ForgetTruncation
from octavo.client.log.stream.housekeeping import StreamHousekeeper
from octavo.client.log.stream.update import update_stream_log
from octavo.client.log.writer.holding import CheckHeld, held_by, needs_no_lock
from octavo.client.log.writer.lock import LogLock
from octavo.client.log.writer.writer import LogWriter
from octavo.client.read.source import Watching
from octavo.client.terms.streams import NewTermSegment, checked_secrets
from octavo.client.terms.term import OpenedTerm
from octavo.client.write.core import DRAIN_SHARE
from octavo.metadata.store.values import Versioned
from octavo.metadata.stream.model import StreamMetadata, StreamState
from octavo.metadata.updates.paging import tidy_stream
from octavo.protocol.entries import LedgerSecrets
from octavo.protocol.errors import (
    LedgerClosedError,
    LogSealedError,
    NoSuchLedgerError,
    NoSuchLogError,
    NotLeaderError,
    OctavoError,
    TermOverError,
)

log = logging.getLogger("octavo.client")

_ATTEMPTS_MAX: Final = 8
"""Takeovers lost to rivals after which a candidate gives up."""

_LEADER_CHARACTERS: Final = 16
"""Of the token of a leader, at the beginning of the owner's tokens of its terms."""


class StreamSegment(ActiveSegment):
    """A term of the stream, or several that follow by renewal."""

    term: OpenedTerm
    """Set once it is opened."""


class StreamLead:
    """See the module, and :class:`octavo.client.log.seam.lead.LogLead`."""

    def __init__(
        self,
        access: LedgerAccess,
        document: StreamLogDocument,
        secrets: LedgerSecrets,
        *,
        upkeep: StreamHousekeeper,
        on_root: Callable[[Versioned[StreamMetadata]], object],
    ) -> None:
        """``on_root`` is told the metadata of the stream whenever this leader has opened a term."""
        self.name = document.name
        self.log_id = document.log_id
        self.term = 0
        self.requires_copies = False
        self.upkeep = upkeep
        self.active: StreamSegment
        self._document = document
        self._ledger_id = document.ledger_id
        self._access = access
        self._secrets = secrets
        self._on_root = on_root
        self._leader = access.random_token()[:_LEADER_CHARACTERS]

    def _token(self) -> str:
        return self._leader + self._access.random_token()

    # --- taking over --------------------------------------------------------------------------------------------------

    async def take_over(self, stream: Versioned[StreamMetadata], check_held: CheckHeld) -> None:
        """Take the log over from whatever client leads. ``stream``: as this client knows it, which may be old. Raises
        as ``Log.lead``, and what ``check_held`` raises."""
        async with self._access.pacing.turn(fences=stream.value.state is not StreamState.AT_REST):
            for attempt in range(_ATTEMPTS_MAX):
                if attempt:
                    stream = await self._read()
                try:
                    self.active = await self._open(
                        stream,
                        sealed_at_ms_min=0,
                        first_position_min=self._read_first_position,
                        check_held=check_held,
                    )
                except TermOverError:
                    continue  # a rival's success; the next attempt pauses first (rule T10)
                self.term = log_term(self.active.term.stream.last_fragment.first_term)
                self.requires_copies = self.active.term.requires_copies
                return
        raise self._not_leader("other clients have taken it over again and again")

    async def _open(
        self,
        stream: Versioned[StreamMetadata],
        *,
        sealed_at_ms_min: int,
        first_position_min: Callable[[], Awaitable[int]] | None = None,
        from_itself: bool = False,
        check_held: CheckHeld = needs_no_lock,
    ) -> StreamSegment:
        """Take the stream over. Raises :class:`TermOverError` if a rival has got ahead."""
        segment = StreamSegment(self._ledger_id)
        wanted = NewTermSegment(
            self._token,
            sealed_at_ms_min,
            first_position_min,
            front=segment.front,
            on_term=self._on_root,
            check=check_held,
        )
        try:
            term = await self._access.streams.take_over_segment(stream, self._secrets, wanted, from_itself=from_itself)
        except LedgerClosedError as error:
            raise LogSealedError(
                f"log {self.name} is sealed and takes no adds any more; it can be read, up to its end"
            ) from error
        except NoSuchLedgerError as error:
            raise await explain_missing(self._access.store, self._document) from error
        segment.term, segment.core = term, term.core
        segment.first_position = term.last_position + 1
        self._set_limit(segment)
        term.core.begin_watching()
        self._on_root(term.root)
        return segment

    def _set_limit(self, segment: StreamSegment) -> None:
        length_before = segment.term.stream.last_fragment.length_before
        segment.full_at = length_before + self._access.options.log_segment_bytes

    async def _read(self) -> Versioned[StreamMetadata]:
        return await read_root(self._access.store, self._document)

    async def _read_first_position(self) -> int:
        """Where readers get the log from now: another client may have truncated it since this handle saw it. One that
        is about to within the last fragment has to look at the end again: it may be another one now (rule P7)."""
        store = self._access.store
        known = await read_stream_log(store, self.name, log_id=self.log_id)
        if known.value.truncating is not None:
            known = await update_stream_log(store, self.name, ForgetTruncation(), log_id=self.log_id, known=known)
        return known.value.first_position

    def _is_named(self, document: AnyLogDocument) -> bool:
        return document.log_id == self.log_id and document.state is not LogState.DELETED

    def _not_leader(self, why: str) -> NotLeaderError:
        return NotLeaderError(f"log {self.name}: this client no longer leads ({why})", may_have_happened=False)

    # --- healing ------------------------------------------------------------------------------------------------------

    async def check_lead(self) -> None:
        """As :meth:`LogLead.check_lead`."""
        await self._read_own()

    async def _read_own(self) -> Versioned[StreamMetadata]:
        """The stream, whose term is this leader's. Raises :class:`NotLeaderError` if it is not."""
        stream = await self._read()
        if not stream.value.owner.startswith(self._leader):
            raise self._not_leader("another client has taken it over")
        return stream

    async def heal(self) -> ActiveSegment:
        """As :meth:`LogLead.heal`."""
        sealed_at_ms = self.active.core.sealed_at_ms
        async with self._access.pacing.turn():
            for _ in range(_ATTEMPTS_MAX):
                stream = await self._read_own()
                try:
                    return await self._open(stream, sealed_at_ms_min=sealed_at_ms, from_itself=True)
                except TermOverError:
                    # A rival's success; or a renewal or a takeover of this leader itself, given up without an answer,
                    # has reached the store only now. Nothing was sent in that term (rule T6).
                    continue
        raise self._not_leader("its stream is taken over again and again")

    def healed(self, segment: ActiveSegment) -> None:
        """As :meth:`LogLead.healed`."""
        assert isinstance(segment, StreamSegment), "it was made here"
        self.active = segment

    # --- rolling ------------------------------------------------------------------------------------------------------

    async def roll(self, host: LeadHost) -> None:
        """As :meth:`LogLead.roll`. Nothing has to be drained: the writer itself orders what it sends (rule U6)."""
        del host
        term = self.active.term
        await term.roll()
        await self._tidy_tail(term)

    async def change(self, change: QuorumChange) -> None:
        """As :meth:`LogLead.change` (rule T13)."""
        term = self.active.term
        await term.change_quorums(change.of(term.quorums))
        with contextlib.suppress(OctavoError):  # the change has been made
            await self._tidy_tail(term)

    async def _tidy_tail(self, term: OpenedTerm) -> None:
        """A fragment has been begun."""
        self.upkeep.rolled()
        self._set_limit(self.active)
        # In the background: a roll that finds no room in the tail would have to wait for it (rule U3).
        await tidy_stream(self._access.store, self._ledger_id, writer_token=self._token(), known=term.root)

    async def look_after(self) -> None:
        """As :meth:`LogLead.look_after`: a bookie that refuses the term, because it has lost a disk and there is no
        other one in its place, may take the next term (rules T11 and T12)."""
        if self.active.term.is_refused_for_doubt:
            await self.active.term.renew()

    # --- the end ------------------------------------------------------------------------------------------------------

    async def rest(self, seconds: float) -> None:
        """As :meth:`LogLead.rest`."""
        await self.active.term.wait_copies(seconds * DRAIN_SHARE)
        lacking = self.lacking_copies()
        if lacking is not None:
            raise lacking
        try:
            try:
                await self.active.core.close()
            except TermOverError:
                await self._rest_from_takeover()
        except OctavoError as error:
            log.warning("log %s: its stream was not put at rest: %s", self.name, error.message)

    async def _rest_from_takeover(self) -> None:
        """Another client has begun to take over. It may have died: then readers would wait for what was
        acknowledged last until the next leader finds the end. If it goes on, it opens its term from rest."""
        stream = await self._read_own()
        if stream.value.state is StreamState.IN_RECOVERY:
            await self._access.streams.lay_to_rest(stream, self._secrets)

    def lacking_copies(self) -> OctavoError | None:
        """As :meth:`LogLead.lacking_copies`."""
        return self.active.core.under_replicated()

    def begin_watching(
        self, on_end: Callable[[OctavoError], None], on_failure: Callable[[OctavoError], None]
    ) -> Watching:
        """See that the log is deleted. The segment itself sees that its term is over."""

        def saw(found: Versioned[bytes] | None) -> None:
            document = None if found is None else decode_any_log(found.value, self.name)
            if isinstance(document, StreamLogDocument) and self._is_named(document):
                self.upkeep.document_changed(document)
            else:
                on_end(NoSuchLogError(f"log {self.name} has been deleted", may_have_happened=False))

        return self._access.store.watch_document(list_document(self.name)).begin(saw, on_failure)

    async def abandon(self) -> None:
        """As :meth:`LogLead.abandon`."""
        await self.active.core.abandon()

    # --- how far it has got -------------------------------------------------------------------------------------------

    def reach(self, acknowledged_stop: int) -> tuple[int, int]:
        """The present term, and the position after the last one acknowledged in it, given that of the log."""
        return self.active.term.term, max(acknowledged_stop, self.active.first_position)


async def take_over_stream(
    access: LedgerAccess,
    document: StreamLogDocument,
    stream: Versioned[StreamMetadata],
    password: bytes,
    *,
    upkeep: StreamHousekeeper,
    lease: LogLock | None,
    on_close: Callable[[LogWriter], object],
    on_root: Callable[[Versioned[StreamMetadata]], object],
) -> tuple[StreamLead, LogWriter]:
    """Take over a log that is a stream, and give its lead and its writer. ``document`` and ``stream`` are what the
    client knows, which may be old. To read the stream first would take a tenth of a takeover, and seldom tell anything
    new. Raises as ``Log.lead``, :class:`LeaseLostError` once ``lease`` is lost, and :class:`UnauthorizedError` before
    anything is fenced."""
    lead = StreamLead(access, document, checked_secrets(stream.value, password), upkeep=upkeep, on_root=on_root)
    await lead.take_over(stream, held_by(lease, document.name))
    return lead, LogWriter(access, lead, lease=lease, on_close=on_close)
