"""The layout of a log that is a chain of ledgers: what one handle does with it besides reading."""

import contextlib
from collections.abc import Callable

from octavo.client.log.chain.candidate import Candidate
from octavo.client.log.chain.changes import GiveUp, NoteEnds, SetRetention
from octavo.client.log.chain.housekeeping import Housekeeper, read_page
from octavo.client.log.chain.lead import ChainLead
from octavo.client.log.chain.leader_steps import LeaderSteps
from octavo.client.log.chain.update import update_log
from octavo.client.log.chain.view import ChainView
from octavo.client.log.cursors.reading import read_cursors
from octavo.client.log.documents.chain import LogDocument, Retention, Segment
from octavo.client.log.documents.cursors import CursorState
from octavo.client.log.layout import LayoutStatus, changed_in_a_loop, check_not_beyond
from octavo.client.log.seam.access import LedgerAccess
from octavo.client.log.seam.end_moved import EndMovedError
from octavo.client.log.seam.entries import Gap
from octavo.client.log.seam.status import segments_of
from octavo.client.log.seam.view import Reach
from octavo.client.log.writer.holding import held_by
from octavo.client.log.writer.lock import LogLock
from octavo.client.log.writer.writer import LogWriter
from octavo.metadata.updates.compare_and_set import ATTEMPTS_MAX
from octavo.protocol.errors import InvalidArgumentError, NoSuchLedgerError
from octavo.protocol.ids import LedgerId


class ChainLayout:
    """See the module; :class:`~octavo.client.log.layout.LogLayout` of a chain."""

    def __init__(self, access: LedgerAccess, document: LogDocument, password: bytes) -> None:
        self._access = access
        self._store = access.store
        self._name = document.name
        self._log_id = document.log_id
        self._password = password
        self._leading: tuple[ChainLead, LogWriter] | None = None
        """The latest lead of this handle and its writer, until that is closed."""
        self._housekeeper = Housekeeper(access, document.name, document.log_id)
        self.view = ChainView(access, document, password, reach_of=self._reach_of)

    # --- leading ------------------------------------------------------------------------------------------------------

    def get_ready(self) -> None:
        """Nothing to load: this module has loaded it."""

    async def take_over(self, lease: LogLock | None, on_close: Callable[[LogWriter], object]) -> LogWriter:
        """Take the log over at once."""
        owner = self._access.random_token()
        candidate = Candidate(self._access, self._name, self._log_id, self._password)
        active, document = await candidate.run(LeaderSteps(owner, self._access.clock_ms()), held_by(lease, self._name))
        self.view.take(document)

        def closed(writer: LogWriter) -> None:
            if self._leading is not None and self._leading[1] is writer:
                self._leading = None
            on_close(writer)

        lead = ChainLead(self._access, candidate, document, active, owner=owner)
        writer = LogWriter(self._access, lead, lease=lease, on_close=closed)
        self._leading = lead, writer
        return writer

    def _reach_of(self, ledger_id: LedgerId) -> Reach | None:
        if self._leading is None:
            return None
        lead, writer = self._leading
        return lead.reach_of(ledger_id, writer.end)

    # --- what is kept -------------------------------------------------------------------------------------------------

    async def truncate(self, before: int) -> None:
        """Remove the entries below ``before`` for readers; whole segments are deleted."""
        for _ in range(ATTEMPTS_MAX):
            end, looked = await self.view.find_end(before)
            check_not_beyond(self._name, before, end)
            if before <= self.view.first_position:
                return
            # What the list itself records stays: no loss can be accepted there any more.
            told = before <= looked.value.known_stop
            with contextlib.suppress(EndMovedError):
                known = await self._housekeeper.truncate(before, None if told else looked)
                break
        else:
            raise changed_in_a_loop(self._name)
        self.view.take(known.value)
        self.view.take((await self._housekeeper.delete_dropped(known)).value)

    async def retain(self) -> None:
        """Apply the retention now."""
        self.view.take((await self._housekeeper.tidy()).value)

    async def set_retention(self, retention: Retention) -> None:
        """Change what retention drops."""
        known = await update_log(self._store, self._name, SetRetention(retention), log_id=self._log_id)
        self.view.take(known.value)

    async def would_drop(self, retention: Retention) -> int:
        """The position below which this retention would let entries go now."""
        return await self._housekeeper.would_drop(retention)

    async def seal(self) -> None:
        """Raises :class:`InvalidArgumentError`."""
        raise InvalidArgumentError(f"log {self._name} is a chain, which cannot be sealed; a stream can")

    async def status(self, cursors: dict[str, CursorState]) -> LayoutStatus:
        """The facts in the list."""
        document = self.view.document
        segments = segments_of(document)
        clocks = await self._housekeeper.ages.clocks()
        return LayoutStatus(
            clocks=clocks,
            layout="chain",
            retention=document.retention,
            drops_below=await self._housekeeper.retention_cut(document),
            segments=segments,
            paged_segments=sum(page.segments for page in document.pages),
            bytes=sum(page.bytes for page in document.pages) + sum(segment.bytes or 0 for segment in segments),
            idle_cursors=await self._housekeeper.idle_cursors(document, cursors),
            gaps=document.gaps,
            quorums=document.quorums,
        )

    # --- lost segments ------------------------------------------------------------------------------------------------

    async def give_up(self, ledger_id: int, last: int | None) -> Gap:
        """Skip a segment whose ledger was deleted by hand."""
        await self.view.read_metadata()
        segment = await self._segment_of(ledger_id)
        if segment is None:
            raise InvalidArgumentError(f"log {self._name}: ledger {ledger_id} is none of its segments")
        with contextlib.suppress(NoSuchLedgerError):
            await self._store.read_ledger(segment.ledger_id)
            raise InvalidArgumentError(f"log {self._name}: ledger {ledger_id} exists; nothing of it is lost")
        if segment.first_position is None:
            await self._close_other_segments(segment)
            segment = await self._segment_of(ledger_id) or segment
        first, stop = segment.first_position, segment.stop_position
        if first is None:
            raise InvalidArgumentError(f"log {self._name}: give up the segment before ledger {ledger_id} first")
        if stop is None:
            cursors = await read_cursors(self._store, self._log_id)
            highest = max((state.position for state in cursors.values()), default=0)
            if last is None or last < max(first, highest) - 1:
                raise InvalidArgumentError(
                    f"log {self._name}: where ledger {ledger_id} ended is not known; it began at position {first}, and "
                    f"cursors stand at up to {highest}. Name the last position that is lost, not below any that a "
                    "reader has seen"
                )
        elif last not in (None, stop - 1):
            raise InvalidArgumentError(f"log {self._name}: ledger {ledger_id} holds positions {first} to {stop - 1}")
        lost = Gap(first, stop - 1 if stop is not None else last if last is not None else first - 1)
        change = GiveUp(segment.ledger_id, lost.first, lost.last)
        self.view.take((await update_log(self._store, self._name, change, log_id=self._log_id)).value)
        return lost

    async def _segment_of(self, ledger_id: int) -> Segment | None:
        document = self.view.document
        for segment in document.segments:
            if segment.ledger_id == ledger_id:
                return segment
        for page in document.pages:
            for segment in await read_page(self._store, self._name, page) or ():
                if segment.ledger_id == ledger_id:
                    return segment
        return None

    async def _close_other_segments(self, lost: Segment) -> None:
        """Close the segment before a lost one, so that it is known where the lost one began."""
        ends = {}
        for segment in self.view.document.unclosed():
            if segment.ledger_id != lost.ledger_id:
                end = await self._access.end_of(segment.ledger_id, self._password)
                if end is not None:
                    ends[segment.ledger_id] = end
        self.view.take((await update_log(self._store, self._name, NoteEnds(ends), log_id=self._log_id)).value)
