"""The history of a log that is a stream: every version of its document and of its stream. What the metadata of a stream
must hold to is in :mod:`simulation.judges.stream_roots`; here it meets what leaders and readers were told: N3 and N4 of
docs/simulator.md, rules P7 and P8.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

from octavo.client.log.documents.states import LogState
from octavo.client.log.documents.stream import StreamLogDocument
from octavo.client.log.documents.terms import stream_term
from octavo.client.log.seam.entries import LogEntry
from octavo.metadata.ledger.term import TermState
from octavo.metadata.stream.model import StreamMetadata
from octavo.protocol.entries import Digest
from octavo.protocol.ids import EntryId, LedgerId
from simulation.judges.history import LedgerHistory, Violation
from simulation.judges.log_history import Leader, LogHistory
from simulation.judges.log_store import LogStore
from simulation.judges.retention_history import Piece
from simulation.judges.stream_roots import NamedMember, StreamRoots

_ORDER = (LogState.MAKING, LogState.ACTIVE, LogState.DELETED)


class StreamLogHistory(LogHistory):
    """The history of one log that is a stream."""

    term_rule = "N2"

    def __init__(self, store: LogStore, document: StreamLogDocument, numbers: Iterator[int]) -> None:
        super().__init__(document.name, document.retention, numbers)
        self.store = store
        self.now = store.now
        self.retention.judges_by_the_world = store.ages_by_the_world
        self.document = document
        """The latest version of its document."""
        self.roots = StreamRoots(store, document.ledger_id)
        self._targets: dict[int, LedgerHistory] = {}

    @property
    def first_position(self) -> int:
        return self.document.first_position

    @property
    def marked_deleted(self) -> bool:
        return self.document.state is LogState.DELETED

    @property
    def is_being_made(self) -> bool:
        return self.document.state is LogState.MAKING and not self.deleted

    @property
    def held_stop(self) -> int:
        """The position after the last one that is known to hold an entry."""
        return max(self.payloads, default=-1) + 1

    def stop_of(self, term: int) -> int | None:
        return self.roots.stop_of_leader(stream_term(term))

    def forgets(self, term: int) -> bool:
        stop = self.stop_of(term)
        return stop is not None and stop <= self.roots.current.start  # the first fragment left may be of any leader

    def check_readable(self, entry: LogEntry, leader: Leader) -> None:
        # Told by the end of a term, or by a LAC, which is the writer's.
        limit = max(self.roots.known_stop, leader.confirmed())
        if entry.position >= limit and not self.deleted:
            raise Violation("N4", f"log {self.name}: position {entry.position} was read, everything below {limit} is "
                            "settled or acknowledged")  # fmt: skip

    def left_over(self) -> str:
        abandoned = self.document.abandoned
        pages = [
            key
            for key, page in self.store.stream_pages_there().items()
            # A page of the present revision may still be named by a client that is about to page out the same again.
            if page.ledger_id == self.document.ledger_id and page.revision < self.roots.current.revision
        ]
        pages = [key for key in pages if not self.roots.names(key)]
        return f"{abandoned} {pages}" if abandoned or pages else ""

    # --- the document -----------------------------------------------------------------------------------------------

    def changed(self, after: StreamLogDocument) -> None:
        """Record and check a new version of the document."""
        before, self.document = self.document, after
        where = f"log {self.name}"
        if after.ledger_id != before.ledger_id or _ORDER.index(after.state) < _ORDER.index(before.state):
            raise Violation("P13", f"{where}: {before} became {after}")
        if after.state is LogState.DELETED:
            self.deleted = True
            return
        if after.state is LogState.ACTIVE and not self.store.exists(after.ledger_id):
            raise Violation("P13", f"{where}: can be opened, and its stream {after.ledger_id} does not exist")
        if after.first_position < before.first_position:
            raise Violation("N5", f"{where}: began at {before.first_position}, begins at {after.first_position}")
        if after.first_position > max(self.asked_before, before.first_position):
            self._check_retention(before.first_position, after.first_position)

    def _check_retention(self, first: int, cut: int) -> None:
        """Age and size drop whole fragments, but not the last one; of what they let go cursors may keep a part."""
        fragments = [one.fragment for one in self.roots.extents]
        above = next((fragment for fragment in fragments if fragment.first_position >= cut), None)
        retention = self.document.retention
        if above is None or not self.retention.is_limited or (above.first_position > cut and not retention.cursors):
            raise Violation("P7", f"log {self.name}: begins at {cut}, asked for {self.asked_before}")
        kept = self.roots.length - above.length_before
        self.retention.check(
            cut,
            above.first_position,
            kept,
            youngest_made_at=self.youngest_made_at(first, cut),
            now=self.now(),
        )

    # --- the stream -------------------------------------------------------------------------------------------------

    def stream_changed(self, after: StreamMetadata, count: Callable[[str], None]) -> list[NamedMember]:
        """Record and check a new version of the stream, and count what happened. Returns the bookies that have taken a
        place."""
        named = self.roots.changed(after, self.held_stop, count)
        if after.start > self.document.first_position:
            raise Violation("P7", f"log {self.name}: its stream begins at {after.start}, readers were told "
                            f"{self.document.first_position}")  # fmt: skip
        self._follow_targets(after)
        extents = self.roots.extents
        for one, following in pairwise(extents):
            size = following.fragment.length_before - one.fragment.length_before
            piece = Piece(size, self.store.now())
            self.retention.saw_piece(following.fragment.first_position, piece)
        return named

    def stream_deleted(self) -> None:
        """Record and check that the stream is gone."""
        self.roots.deleted = True
        for target in self._targets.values():
            target.deleted = True
        if not self.deleted and self.document.state is LogState.ACTIVE:
            raise Violation("P13", f"log {self.name}: its stream was deleted, and it was not")

    # --- sieges -----------------------------------------------------------------------------------------------------

    def target(self) -> LedgerHistory | None:
        """The current term, for sieges; None if its leader is not known."""
        if self.deleted or self.roots.deleted or not self.roots.extents:
            return None
        root = self.roots.current
        last = root.last_fragment
        leader = next((one for one in self.leaders if stream_term(one.term) == last.first_term), None)
        if leader is None:
            return None
        target = self._targets.setdefault(
            root.term,
            LedgerHistory(
                LedgerId(root.ledger_id),
                (len(last.bookies), last.write_quorum, last.ack_quorum),
                b"",
                Digest.CRC32C,
                lambda: None,
                writer=leader.host,
                adding=True,
            ),
        )
        target.besieged = root.current_term
        target.acknowledged = self.held_stop - 1 - self.roots.begin_of(root.term)
        return target

    def _follow_targets(self, root: StreamMetadata) -> None:
        """Let sieges that have begun see what becomes of their term."""
        for term, target in self._targets.items():
            if term == root.term:
                target.besieged = root.current_term
            elif not target.term.has_end:
                known, fragment = target.term, target.term.last_fragment
                # An empty last fragment goes with the term. Nothing depends on the length.
                last = max(self.roots.last_place_of(term), EntryId(fragment.first_entry_id - 1))
                target.besieged = replace(
                    known, state=TermState.ENDED, last_entry_id=last, length=fragment.length_before
                )

    def describe(self) -> str:
        """The stream, for the trace."""
        if not self.roots.extents:
            return f"log {self.name}: stream {self.document.ledger_id} is being made"
        root = self.roots.current
        fragments = " ".join(
            f"{one.fragment.first_position}t{one.fragment.term}"
            + (f"/{one.fragment.leader_term}" if one.fragment.leader_term else "")
            + f":{','.join(one.fragment.bookies)}"
            for one in self.roots.extents
        )
        state = f"stream {root.ledger_id} {root.state.value} term {root.term} from {root.start}"
        return (
            f"log {self.name}: {state}: {fragments}"
            + (f" end {root.end_position}" if root.end_position is not None else "")
            + (f" pages {[page.name[:6] for page in root.pages]}" if root.pages else "")
        )
