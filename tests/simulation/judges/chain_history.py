"""The history of a log that is a chain of segments: every version of its list. It checks the rules L1 to L4, and P7
and P8 as far as the list goes, from outside.
"""

from collections.abc import Iterator

from octavo.client.log.documents.chain import LogDocument, Segment
from octavo.client.log.documents.states import LogState
from octavo.protocol.entries import Digest
from octavo.protocol.ids import LedgerId
from simulation.judges.history import LedgerHistory, Violation
from simulation.judges.log_history import LogHistory
from simulation.judges.log_store import LogStore
from simulation.judges.retention_history import Piece


class ChainHistory(LogHistory):
    """The history of one log that is a chain."""

    term_rule = "L1"

    def __init__(self, store: LogStore, document: LogDocument, numbers: Iterator[int]) -> None:
        super().__init__(document.name, document.retention, numbers)
        self.store = store
        self.now = store.now
        self.retention.judges_by_the_world = store.ages_by_the_world
        self.document = document
        """The latest version of its list."""
        self._targets: dict[LedgerId, LedgerHistory] = {}
        self._saw_pieces(document)

    @property
    def first_position(self) -> int:
        return self.document.first_position

    @property
    def marked_deleted(self) -> bool:
        return self.document.state is LogState.DELETED

    def stop_of(self, term: int) -> int | None:
        return next((first for later, first in self.document.terms if later > term), None)

    def left_over(self) -> str:
        making, dropped = self.document.making, self.document.dropped
        return f"{making} {dropped}" if making or dropped else ""

    # --- the list of segments ---------------------------------------------------------------------------------------

    def changed(self, after: LogDocument) -> None:
        """Record and check a new version of the list."""
        before, self.document = self.document, after
        if after.state is LogState.DELETED:
            self.deleted = True
            return
        where = f"log {self.name}"
        if after.term < before.term or after.first_position < before.first_position:
            raise Violation("L1", f"{where}: term {before.term} to {after.term}, first {before.first_position} to "
                            f"{after.first_position}")  # fmt: skip
        if after.first_position > max(self.asked_before, before.first_position):
            if not self._retains(after):
                raise Violation("P7", f"{where}: begins at {after.first_position}, asked for {self.asked_before}")
            kept = sum(page.bytes for page in after.pages)
            kept += sum(segment.end.bytes for segment in after.segments if segment.end is not None)
            self.retention.check(
                after.first_position,
                after.first_position,
                kept,
                youngest_made_at=self.youngest_made_at(before.first_position, after.first_position),
                now=self.now(),
            )
        known = {segment.ledger_id: segment for segment in before.segments}
        for segment in after.segments:
            self._check_segment(known.get(segment.ledger_id), segment)
        self._check_removed(before, after)
        self._saw_pieces(after)

    def _saw_pieces(self, document: LogDocument) -> None:
        now = self.store.now()
        for page in document.pages:
            self.retention.saw_piece(page.stop_position, Piece(page.bytes, now))
        for segment in document.segments:
            if segment.stop_position is not None and segment.end is not None:
                self.retention.saw_piece(segment.stop_position, Piece(segment.end.bytes, now))

    def _retains(self, after: LogDocument) -> bool:
        """Whether retention may have moved the beginning: to the start of a segment, and not into the last two."""
        starts = {segment.first_position for segment in after.segments} | {page.first_position for page in after.pages}
        last = after.segments[-2].first_position if len(after.segments) > 1 else None
        allowed = after.first_position in starts and (last is None or after.first_position <= last)
        return self.retention.is_limited and allowed

    def _check_segment(self, before: Segment | None, after: Segment) -> None:
        where = f"log {self.name}, ledger {after.ledger_id}"
        if before is None:
            if not self.store.exists(after.ledger_id):
                raise Violation("L3", f"{where}: listed, and does not exist")
        elif before.first_position not in (None, after.first_position) or before.end not in (None, after.end):
            raise Violation("P1", f"{where}: {before} became {after}")

    def _check_removed(self, before: LogDocument, after: LogDocument) -> None:
        left = {segment.ledger_id for segment in after.segments}
        folded = {
            segment.ledger_id
            for page in after.pages
            if page not in before.pages
            for segment in self.store.pages.get(page.document, ())
        }
        for at, segment in enumerate(before.segments):
            if segment.ledger_id in left or segment.ledger_id in folded:
                continue
            is_empty = segment.end is not None and segment.end.entries == 0
            empty_now = any(dropped.ledger_id == segment.ledger_id for dropped in after.dropped) and (
                self.store.entries_of(segment.ledger_id) == 0
            )
            stop = segment.stop_position
            if is_empty or empty_now:
                continue
            if at >= len(before.segments) - 2:
                raise Violation("L3", f"log {self.name}: {segment.ledger_id}, one of its last two, was removed")
            if stop is None or stop > after.first_position:
                raise Violation("L3", f"log {self.name}: segment {segment.ledger_id} up to {stop} was removed, the log "
                                f"begins at {after.first_position}")  # fmt: skip

    def listed(self) -> Iterator[LedgerId]:
        """The ledgers of the list and of its pages; none of a log that is deleted."""
        if not self.deleted:
            for page in self.document.pages:
                yield from (segment.ledger_id for segment in self.store.pages.get(page.document, ()))
            yield from (segment.ledger_id for segment in self.document.segments)

    # --- sieges -----------------------------------------------------------------------------------------------------

    def target(self) -> LedgerHistory | None:
        """The segment that is being written, for sieges; None if there is none whose leader is known."""
        newest = self.document.newest
        if newest is None or self.deleted:
            return None
        leader = next((leader for leader in self.leaders if leader.term == newest.term), None)
        versions = self.store.versions.get(newest.ledger_id)
        if leader is None or not versions:
            return None
        quorums = self.document.quorums
        target = self._targets.setdefault(
            newest.ledger_id,
            LedgerHistory(
                newest.ledger_id,
                (quorums.ensemble_size, quorums.write_quorum, quorums.ack_quorum),
                b"",
                Digest.CRC32C,
                lambda: None,
                writer=leader.host,
                adding=True,
            ),
        )
        target.versions = versions
        first = newest.first_position
        target.acknowledged = -1 if first is None else max(self.payloads, default=-1) - first
        return target

    def describe(self) -> str:
        """The list, for the trace."""
        document = self.document
        segments = " ".join(
            f"{segment.ledger_id}@{'?' if segment.first_position is None else segment.first_position}"
            f"+{'?' if segment.end is None else segment.end.entries}t{segment.term}"
            for segment in document.segments
        )
        making = [int(making.ledger_id) for making in document.making]
        dropped = [int(dropped.ledger_id) for dropped in document.dropped]
        return (
            f"log {self.name} from {document.first_position}: {segments}"
            + (f" pages {len(document.pages)}" if document.pages else "")
            + (f" making {making}" if making else "")
            + (f" dropped {dropped}" if dropped else "")
        )
