"""The history of a universe's logs: every request and answer, every version of every list of segments and of every set
of cursors. It checks the rules L1 to L4 and P1 to P13 of docs/rules.md from outside, during the run and at its end.

Payloads are unique and tell which add of which leader they are, so what a log may hold at a position is known.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from octavo.client.log.cursors import decode_cursors
from octavo.client.log.document import LogDocument, LogState, Segment, decode_log, decode_page
from octavo.client.log.entries import LogEntry
from octavo.client.log.ledgers import LOG_KEY
from octavo.client.log.names import name_of_document
from octavo.metadata.memory import MemoryServer
from octavo.metadata.model import LedgerMetadata, decode_ledger
from octavo.metadata.records import Kind, ledger_key
from octavo.protocol.entries import Digest
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import LedgerId
from simulation.history import LedgerHistory, Violation
from simulation.retention_history import RetentionHistory

LISTS, CURSORS, PAGES = "logs/n", "log-cursors/", "log-pages/"
"""What the names of a log's documents begin with."""


class Fate(Enum):
    """What became of an add, as far as its caller was told."""

    PENDING = "pending"
    ACKNOWLEDGED = "acknowledged"
    IN_DOUBT = "in doubt"
    CANCELLED = "cancelled"
    """Sent or withdrawn: the caller is not told."""
    NOT_ADDED = "not added"


@dataclass(slots=True)
class SentAdd:
    """One add of a leader."""

    payload: bytes
    fate: Fate = Fate.PENDING
    error: OctavoError | None = None
    """Of an add in doubt whose outcome has not been told yet."""


@dataclass(slots=True, eq=False)
class Leader:
    """One client's time as the leader of a log."""

    chain: "ChainHistory"
    number: int
    term: int
    host: str
    adds: list[SentAdd] = field(default_factory=list)

    def add(self, filling: bytes) -> int:
        """Record an add that is about to be made. Returns its index; its payload is in :attr:`adds`."""
        index = len(self.adds)
        self.adds.append(SentAdd(b"%d:%d:" % (self.number, index) + filling))
        return index

    def acknowledged(self, index: int, position: int) -> None:
        """Record and check that an add returned this position."""
        add = self.adds[index]
        if add.fate is Fate.NOT_ADDED:
            raise Violation("P6", f"{self} add {index}: acknowledged, and said not to have happened")
        add.fate = Fate.ACKNOWLEDGED
        self.chain.holds(position, add.payload)
        stop = next((first for later, first in self.chain.document.terms if later > self.term), None)
        if stop is not None and position >= stop:
            raise Violation("L1", f"{self} add {index}: acknowledged at {position}, its term ended at {stop}")

    def failed(self, index: int, error: OctavoError) -> None:
        """Record and check that an add failed."""
        if error.may_have_happened:
            self.adds[index].fate, self.adds[index].error = Fate.IN_DOUBT, error
            if error.doubt is None:
                raise Violation("P6", f"{self} add {index}: in doubt, and the error does not say where: {error!r}")
        else:
            self.not_added(index)

    def outcome(self, index: int, happened: bool | None) -> None:
        """Record and check what ``Log.outcome`` said of an add in doubt."""
        add = self.adds[index]
        if happened is None or add.error is None or add.error.doubt is None:
            return
        position, add.error = add.error.doubt.position, None
        if happened:
            self.chain.holds(position, add.payload)
            add.fate = Fate.ACKNOWLEDGED
        else:
            self.not_added(index)

    def not_added(self, index: int) -> None:
        """Record and check that an add did not happen and never will."""
        add = self.adds[index]
        if add.payload in self.chain.where:
            raise Violation("P6", f"{self} add {index}: is in the log, and was said not to have happened")
        add.fate = Fate.NOT_ADDED

    def check_order(self) -> None:
        """Check that the log holds a prefix of what the leader sent, each once (rules P2 and P5)."""
        places = ((index, self.chain.where.get(add.payload)) for index, add in enumerate(self.adds))
        known = [(index, at) for index, at in places if at is not None]
        for (index, at), (later, later_at) in pairwise(known):
            between = self.adds[index + 1 : later]
            not_sent = sum(add.fate is Fate.NOT_ADDED for add in between)
            maybe = sum(add.fate is Fate.CANCELLED for add in between)
            if not not_sent <= (later - index) - (later_at - at) <= not_sent + maybe:
                raise Violation(
                    "P2", f"{self}: add {index} is at {at} and add {later} at {later_at}; {not_sent} of those between "
                    f"were not sent, {maybe} were cancelled"
                )  # fmt: skip

    def __repr__(self) -> str:
        return f"log {self.chain.name}, term {self.term} of {self.host}:"


class ChainHistory:
    """The history of one log: of one incarnation of its name."""

    def __init__(self, history: "ChainsHistory", document: LogDocument) -> None:
        self.history = history
        self.name = document.name
        self.document = document
        """The latest version of its list."""
        self.deleted = False
        """Whether its list is marked DELETED, or gone."""
        self.leaders: list[Leader] = []
        self.payloads: dict[int, bytes] = {}
        """Position -> what an acknowledgement or a reader said to be there."""
        self.where: dict[bytes, int] = {}
        """The inverse of :attr:`payloads`."""
        self.entries: dict[int, LogEntry] = {}
        """What readers got."""
        self.asked_before = 0
        """Highest position that a truncation was asked for."""
        self.truncated = 0
        """Highest position that a truncation was acknowledged for."""
        self.cursors: dict[str, int] = {}
        """The cursors as they are stored."""
        self.retention = RetentionHistory(document)
        self._targets: dict[LedgerId, LedgerHistory] = {}

    # --- leaders ----------------------------------------------------------------------------------------------------

    def leads(self, host: str, term: int) -> Leader:
        """Record and check that a client has become leader."""
        if any(leader.term == term for leader in self.leaders):
            raise Violation("L1", f"log {self.name}: term {term} was given to two leaders")
        self.history.leaders += 1
        leader = Leader(self, self.history.leaders, term, host)
        self.leaders.append(leader)
        return leader

    def holds(self, position: int, payload: bytes) -> None:
        """Record and check what is at a position (rule P1)."""
        known = self.payloads.setdefault(position, payload)
        if known != payload:
            raise Violation("P1", f"log {self.name}: position {position} has {payload[:30]!r} and {known[:30]!r}")
        at = self.where.setdefault(payload, position)
        if at != position:
            raise Violation("P5", f"log {self.name}: {payload[:30]!r} is at {at} and at {position}")

    # --- readers ----------------------------------------------------------------------------------------------------

    def read(self, entry: LogEntry) -> None:
        """Record and check an entry that a reader or follower got."""
        number, index, _ = entry.payload.split(b":", 2)
        leader = next((leader for leader in self.leaders if leader.number == int(number)), None)
        if leader is None or leader.adds[int(index)].payload != entry.payload:
            raise Violation("P1", f"log {self.name}: position {entry.position} reads {entry.payload[:40]!r}")
        if leader.adds[int(index)].fate is Fate.NOT_ADDED:
            raise Violation("P6", f"{leader} add {int(index)} was said not to have happened, and was read")
        if entry.term != leader.term:
            raise Violation("P13", f"{leader} its entry at {entry.position} is of term {entry.term}")
        self.holds(entry.position, entry.payload)
        self.entries[entry.position] = entry
        before, after = self.entries.get(entry.position - 1, entry), self.entries.get(entry.position + 1, entry)
        if not before.term <= entry.term <= after.term:
            raise Violation("L1", f"log {self.name}: terms fall around position {entry.position}")
        if not before.sealed_at_ms <= entry.sealed_at_ms <= after.sealed_at_ms:
            raise Violation("P10", f"log {self.name}: the time of sealing falls around position {entry.position}")

    def opened(self, first_position: int, truncated_before: int) -> None:
        """Check where a handle says the log begins; ``truncated_before``: what :attr:`truncated` was before it was
        opened, or the handle itself has truncated."""
        if first_position < truncated_before:
            raise Violation("P7", f"log {self.name}: begins at {first_position}, truncated before {truncated_before}")
        self.truncated_until(first_position)

    def truncated_until(self, position: int) -> None:
        """Check a position that a reader was told to be the log's first."""
        if position > max(self.asked_before, self.document.first_position):
            raise Violation("P7", f"log {self.name}: begins at {position}; nothing above {self.asked_before} was asked")

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
            self.retention.check(after, self.history.store_ms())
        known = {segment.ledger_id: segment for segment in before.segments}
        for segment in after.segments:
            self._check_segment(known.get(segment.ledger_id), segment)
        self._check_removed(before, after)
        self.retention.saw_list(after)

    def _retains(self, after: LogDocument) -> bool:
        """Whether retention may have moved the beginning: to the start of a segment, and not into the last two."""
        starts = {segment.first_position for segment in after.segments} | {page.first_position for page in after.pages}
        limited = after.retention.bytes is not None or after.retention.seconds is not None or after.retention.cursors
        last = after.segments[-2].first_position if len(after.segments) > 1 else None
        return limited and after.first_position in starts and (last is None or after.first_position <= last)

    def _check_segment(self, before: Segment | None, after: Segment) -> None:
        where = f"log {self.name}, ledger {after.ledger_id}"
        if before is None:
            if not self.history.exists(after.ledger_id):
                raise Violation("L3", f"{where}: listed, and does not exist")
        elif before.first_position not in (None, after.first_position) or before.end not in (None, after.end):
            raise Violation("P1", f"{where}: {before} became {after}")

    def _check_removed(self, before: LogDocument, after: LogDocument) -> None:
        left = {segment.ledger_id for segment in after.segments}
        folded = {
            segment.ledger_id
            for page in after.pages
            if page not in before.pages
            for segment in self.history.pages.get(page.document, ())
        }
        for at, segment in enumerate(before.segments):
            if segment.ledger_id in left or segment.ledger_id in folded:
                continue
            is_empty = segment.end is not None and segment.end.entries == 0
            empty_now = any(dropped.ledger_id == segment.ledger_id for dropped in after.dropped) and (
                self.history.entries_of(segment.ledger_id) == 0
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
                yield from (segment.ledger_id for segment in self.history.pages.get(page.document, ()))
            yield from (segment.ledger_id for segment in self.document.segments)

    # --- cursors ----------------------------------------------------------------------------------------------------

    def cursors_changed(self, cursors: dict[str, int]) -> None:
        """Record and check a new version of the cursors (rule P11)."""
        for name, position in self.cursors.items():
            if cursors.get(name, -1) < position:
                raise Violation("P11", f"log {self.name}: cursor {name} went from {position} to {cursors.get(name)}")
        self.cursors = cursors
        self.retention.saw_cursors(cursors)

    # --- the end ----------------------------------------------------------------------------------------------------

    def check_all(self, first: int, end: int) -> None:
        """Check the whole log once more: a reader has read everything from ``first`` to ``end``, exclusive."""
        for position, payload in self.payloads.items():
            if position >= first and (position >= end or position not in self.entries):
                raise Violation("P1", f"log {self.name} ends at {end}: {payload[:30]!r} was at position {position}")
        for leader in self.leaders:
            leader.check_order()

    def target(self) -> LedgerHistory | None:
        """The segment that is being written, for sieges; None if there is none whose leader is known."""
        newest = self.document.newest
        if newest is None or self.deleted:
            return None
        leader = next((leader for leader in self.leaders if leader.term == newest.term), None)
        versions = self.history.versions.get(newest.ledger_id)
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


class ChainsHistory:
    """The histories of all logs of a universe."""

    def __init__(
        self, server: MemoryServer, store_ms: Callable[[], int], versions: dict[LedgerId, list[LedgerMetadata]]
    ) -> None:
        """``store_ms``: the time by the clock of the metadata store. ``versions``: every version of the metadata of
        every segment, which another part records."""
        self._server = server
        self.store_ms = store_ms
        self.versions = versions
        self.chains: dict[str, ChainHistory] = {}
        """Log id -> history."""
        self.leaders = 0
        self.pages: dict[str, tuple[Segment, ...]] = {}
        """Pages of lists, also those that have been deleted."""
        self._current: dict[str, str] = {}
        """Document -> the log id in it."""

    def of(self, log_id: str) -> ChainHistory:
        """The history of a log that exists or existed."""
        return self.chains[log_id]

    def targets(self) -> list[LedgerHistory]:
        """The segments that are being written."""
        found = (chain.target() for chain in self.chains.values())
        return [target for target in found if target is not None]

    def exists(self, ledger_id: LedgerId) -> bool:
        """Whether there is such a ledger now."""
        return ledger_key(ledger_id) in self._server.records[Kind.LEDGER]

    def entries_of(self, ledger_id: LedgerId) -> int | None:
        """Entries of a closed ledger; None if it is not closed."""
        versions = self.versions.get(ledger_id)
        if not versions or not versions[-1].is_closed:
            return None
        last = versions[-1].last_entry_id
        return 0 if last is None else last + 1

    def document_changed(self, key: str, value: bytes | None) -> None:
        """Record and check a new version of a document; None: it was deleted."""
        if key.startswith(PAGES) and value is not None:
            self.pages[key] = decode_page(value, key)
        elif key.startswith(CURSORS):
            chain = self.chains.get(key.removeprefix(CURSORS))
            if chain is not None and not chain.deleted:
                stored = {} if value is None else decode_cursors(value, key)
                chain.cursors_changed({name: cursor.position for name, cursor in stored.items()})
        elif key.startswith(LISTS):
            self._list_changed(key, value)

    def _list_changed(self, key: str, value: bytes | None) -> None:
        if value is None:
            chain = self.chains[self._current[key]]
            if not chain.deleted:
                raise Violation("P13", f"log {chain.name}: its list was deleted before it was marked")
            return
        document = decode_log(value, name_of_document(key))
        self._current[key] = document.log_id
        chain = self.chains.setdefault(document.log_id, ChainHistory(self, document))
        chain.changed(document)

    def describe(self, key: str) -> str:
        """A list of segments, for the trace."""
        chain = self.chains[self._current[key]]
        document = chain.document
        if chain.deleted:
            return f"log {chain.name} is deleted; left: {[int(dropped.ledger_id) for dropped in document.dropped]}"
        segments = " ".join(
            f"{segment.ledger_id}@{'?' if segment.first_position is None else segment.first_position}"
            f"+{'?' if segment.end is None else segment.end.entries}t{segment.term}"
            for segment in document.segments
        )
        making = [int(making.ledger_id) for making in document.making]
        dropped = [int(dropped.ledger_id) for dropped in document.dropped]
        return (
            f"log {chain.name} from {document.first_position}: {segments}"
            + (f" pages {len(document.pages)}" if document.pages else "")
            + (f" making {making}" if making else "")
            + (f" dropped {dropped}" if dropped else "")
        )

    def ledger_deleted(self, ledger_id: LedgerId) -> None:
        """Check that a deleted ledger is in no list (rule L3)."""
        for chain in self.chains.values():
            if ledger_id in chain.listed():
                raise Violation("L3", f"log {chain.name}: ledger {ledger_id} was deleted, and the list has it")

    def left_over(self) -> list[LedgerId]:
        """Ledgers that were made for a log and that no list names."""
        listed = {ledger_id for chain in self.chains.values() for ledger_id in chain.listed()}
        found = []
        for key, stored in self._server.records[Kind.LEDGER].items():
            ledger_id = LedgerId(int(key))
            if LOG_KEY in decode_ledger(ledger_id, stored.value).custom_metadata and ledger_id not in listed:
                found.append(ledger_id)
        return found
