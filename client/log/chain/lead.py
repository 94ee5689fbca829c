"""The lead of a log that is a chain of ledgers: how it rolls, heals and comes to rest (rules L2, P2, P5).

A roll creates and lists the next ledger while adds go on; then nothing is sent until everything sent is acknowledged,
the next ledger becomes the active one, and the one before is closed in the background. So what a log holds of a
leader's adds is a prefix of what the leader sent. To heal, the client takes over from itself as any candidate would.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from octavo.client.log.chain.candidate import Candidate
from octavo.client.log.chain.changes import AppendSegment, BeginSegment, NoteEnds
from octavo.client.log.chain.housekeeping import Housekeeper
from octavo.client.log.chain.leader_steps import LeaderSteps
from octavo.client.log.chain.update import update_log
from octavo.client.log.documents.chain import LogDocument, SegmentEnd, decode_log
from octavo.client.log.documents.names import list_document
from octavo.client.log.documents.reading import read_log
from octavo.client.log.documents.states import LogState
from octavo.client.log.seam.access import LedgerAccess
from octavo.client.log.seam.active_segment import ActiveSegment
from octavo.client.log.seam.lead import LeadHost
from octavo.client.log.seam.quorum_change import QuorumChange
from octavo.client.log.seam.view import Reach
from octavo.client.read.source import Watching
from octavo.metadata.store.values import Versioned
from octavo.protocol.errors import (
    InvalidArgumentError,
    LogDamagedError,
    MetadataUnavailableError,
    NoSuchLogError,
    NotLeaderError,
    OctavoError,
)
from octavo.protocol.ids import LedgerId

log = logging.getLogger("octavo.client")


class ChainLead:
    """See the module, and :class:`octavo.client.log.seam.lead.LogLead`."""

    def __init__(
        self, access: LedgerAccess, candidate: Candidate, document: LogDocument, active: ActiveSegment, *, owner: str
    ) -> None:
        """``document``: the list, in which ``active`` is the newest segment, of ``owner``."""
        self.name = document.name
        self.log_id = document.log_id
        self.term = document.term
        self.requires_copies = False
        self.active = active
        self.upkeep = Housekeeper(access, self.name, self.log_id)
        self._access = access
        self._candidate = candidate
        self._owner = owner
        self._previous: tuple[ActiveSegment, asyncio.Task[SegmentEnd | None]] | None = None
        """The segment before, while its end is not noted in the list."""
        self._found: LogDocument | None = None
        """The list, as the last healing left it."""
        self._prepare(active, document)

    def _prepare(self, active: ActiveSegment, document: LogDocument) -> None:
        """Make a segment ready that ``document`` names."""
        made_at_ms = next((s.created_at_ms for s in document.segments if s.ledger_id == active.ledger_id), 0)
        active.core.seal_not_before(made_at_ms)  # rule P10: readers take entries sealed before for another ledger's
        active.full_at = self._access.options.log_segment_bytes

    def lacking_copies(self) -> None:
        """As :meth:`LogLead.lacking_copies`: nothing."""

    def reach_of(self, ledger_id: LedgerId, acknowledged_stop: int) -> Reach | None:
        """How far this client has got in one of the last two ledgers, given the position after the last one
        acknowledged; None of any other ledger."""
        if self.active.ledger_id == ledger_id:
            return Reach(max(0, acknowledged_stop - self.active.first_position), is_final=False)
        if self._previous is not None and self._previous[0].ledger_id == ledger_id:
            # A roll waits until everything sent is acknowledged.
            return Reach(self.active.first_position - self._previous[0].first_position, is_final=True)
        return None

    # --- healing ------------------------------------------------------------------------------------------------------

    async def check_lead(self) -> None:
        """As :meth:`LogLead.check_lead`."""
        newest = (await read_log(self._access.store, self.name, log_id=self.log_id)).value.newest
        if newest is None or newest.owner != self._owner:
            raise self._taken_over()

    def _taken_over(self) -> NotLeaderError:
        return NotLeaderError(
            f"log {self.name}: this client no longer leads (another client has taken it over)", may_have_happened=False
        )

    async def heal(self) -> ActiveSegment:
        """As :meth:`LogLead.heal`."""
        steps = LeaderSteps(self._owner, self._access.clock_ms(), healing=True)
        active, self._found = await self._candidate.run(steps)
        self._prepare(active, self._found)
        return active

    def healed(self, segment: ActiveSegment) -> None:
        """As :meth:`LogLead.healed`."""
        self.active, self._previous = segment, None
        if self._found is not None:
            self.upkeep.tidy_soon(self._found)

    # --- rolling ------------------------------------------------------------------------------------------------------

    async def roll(self, host: LeadHost) -> None:
        """As :meth:`LogLead.roll`."""
        ends = await self._previous_end()
        store, base = self._access.store, self.active.ledger_id
        ledger_id = await store.allocate_ledger_id()
        known = await update_log(store, self.name, BeginSegment(ledger_id, self._owner, base), log_id=self.log_id)
        following = await self._candidate.create(known.value.with_ends(ends), ledger_id)
        try:
            append = AppendSegment(
                ledger_id, self._owner, self.term, self._access.clock_ms(), base, ends, is_takeover=False
            )
            known = await self._append(append, known)
            self._previous = None
            await host.drain_segment()
        except BaseException as error:
            # Listed or not, the ledger is found by the next leader, or by this one when it heals.
            await following.core.abandon()
            if isinstance(error, NoSuchLogError):
                # The client that deleted the log may have looked for the ledger before it was created.
                with contextlib.suppress(OctavoError):
                    await self._access.delete(ledger_id)
            raise
        before, self.active = self.active, following
        self._prepare(following, known.value)
        following.core.seal_not_before(before.core.sealed_at_ms)  # rule P10: the list does not tell it yet
        closing = asyncio.create_task(self._close_segment(before), name=f"octavo closing of ledger {base}")
        self._previous = (before, closing)
        host.begin_segment(following)
        self.upkeep.tidy_soon(known.value)

    async def _append(self, append: AppendSegment, known: Versioned[LogDocument]) -> Versioned[LogDocument]:
        """List the segment. While the store does not answer it may be listed: the writer cannot go on to anything else
        before that is known, and asks again. Adds go on in the present segment meanwhile."""
        while True:
            try:
                return await update_log(self._access.store, self.name, append, log_id=self.log_id, known=known)
            except MetadataUnavailableError:
                await asyncio.sleep(self._access.options.resend_delay_seconds)

    async def _close_segment(self, segment: ActiveSegment) -> SegmentEnd | None:
        """Close a segment that everything is acknowledged of; its end, or None where it is not known."""
        core = segment.core
        try:
            await core.close()
        except OctavoError as error:
            log.warning("log %s: ledger %d was not closed: %s", self.name, core.id, error.message)
            return None
        last = core.last_add_confirmed
        return SegmentEnd(0 if last is None else last + 1, core.length, core.sealed_at_ms)

    async def _previous_end(self) -> dict[LedgerId, SegmentEnd]:
        """The end of the segment before, which is closed first: at most one segment is not closed besides the active
        one (rule L2)."""
        if self._previous is None:
            return {}
        segment, closing = self._previous
        await asyncio.wait([closing])
        end = None if closing.cancelled() else closing.result()
        end = end or await self._access.end_of(segment.ledger_id, self._candidate.password)
        if end is None:
            raise LogDamagedError(
                f"log {self.name}: ledger {segment.ledger_id} does not exist any more; it was deleted by hand"
            )
        return {segment.ledger_id: end}

    async def change(self, change: QuorumChange) -> None:
        """As :meth:`LogLead.change`: refused."""
        raise InvalidArgumentError(
            f"log {self.name} is a chain of ledgers, whose quorums stay as they are; only logs with the layout stream "
            "can change theirs",
            may_have_happened=False,
        )

    async def look_after(self) -> None:
        """As :meth:`LogLead.look_after`: nothing."""

    # --- the end ------------------------------------------------------------------------------------------------------

    async def rest(self, seconds: float) -> None:
        """Close the segments and note their ends, so that the next leader has nothing to recover."""
        ends: dict[LedgerId, SegmentEnd] = {}
        with contextlib.suppress(OctavoError):
            ends |= await self._previous_end()
        end = await self._close_segment(self.active)
        if end is not None:
            ends[self.active.ledger_id] = end
        with contextlib.suppress(OctavoError):
            await update_log(self._access.store, self.name, NoteEnds(ends), log_id=self.log_id)

    def begin_watching(
        self, on_end: Callable[[OctavoError], None], on_failure: Callable[[OctavoError], None]
    ) -> Watching:
        """See changes of the list by other clients: what is to be tidied; and that this client does not lead any more,
        although it adds nothing and so meets no fence."""

        def saw(found: Versioned[bytes] | None) -> None:
            document = None if found is None else decode_log(found.value, self.name)
            if document is None or document.log_id != self.log_id or document.state is LogState.DELETED:
                on_end(NoSuchLogError(f"log {self.name} has been deleted", may_have_happened=False))
                return
            self.upkeep.list_changed(document)
            if document.newest is not None and document.newest.owner != self._owner:
                on_end(self._taken_over())

        return self._access.store.watch_document(list_document(self.name)).begin(saw, on_failure)

    async def abandon(self) -> None:
        """As :meth:`LogLead.abandon`."""
        if self._previous is not None:
            self._previous[1].cancel()
            await self._previous[0].core.abandon()
        await self.active.core.abandon()
