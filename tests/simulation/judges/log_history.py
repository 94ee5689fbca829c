"""What is known of a log from outside, whatever its layout: every request and answer of its leaders and readers, and
its cursors. It checks the rules P1 to P13 of docs/rules.md, during the run and at its end.

Payloads are unique and tell which add of which leader they are, so what a log may hold at a position is known.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from octavo.client.log.documents.chain import Retention
from octavo.client.log.seam.entries import LogEntry
from octavo.protocol.errors import OctavoError
from simulation.judges.history import LedgerHistory, Violation
from simulation.judges.key_history import KeyHistory
from simulation.judges.retention_history import RetentionHistory


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
    made_at: float
    """When it was made, by the world's time."""
    fate: Fate = Fate.PENDING
    error: OctavoError | None = None
    """Of an add in doubt whose outcome has not been told yet."""


@dataclass(slots=True, eq=False)
class Leader:
    """One client's time as the leader of a log."""

    log: "LogHistory"
    number: int
    term: int
    host: str
    adds: list[SentAdd] = field(default_factory=list)
    confirmed: Callable[[], int] = int
    """Returns the position after the last one that its writer knows to be acknowledged."""
    has_lock: bool = False
    """Whether it waited for the lock, and did not take over without it."""
    many_in_doubt: list[tuple[Sequence[int], OctavoError]] = field(default_factory=list)
    """Every ``add_many`` in doubt whose outcome has not been told yet: its adds, and the error."""
    began_at: float = 0.0
    """When it became leader, by the world's time."""

    def add(self, filling: bytes) -> int:
        """Record an add that is about to be made. Returns its index; its payload is in :attr:`adds`."""
        index = len(self.adds)
        self.adds.append(SentAdd(b"%d:%d:" % (self.number, index) + filling, self.log.now()))
        return index

    def acknowledged(self, index: int, position: int) -> None:
        """Record and check that an add returned this position."""
        add = self.adds[index]
        if add.fate is Fate.NOT_ADDED:
            raise Violation("P6", f"{self} add {index}: acknowledged, and said not to have happened")
        add.fate = Fate.ACKNOWLEDGED
        self.log.holds(position, add.payload)
        stop = self.log.stop_of(self.term)
        if stop is not None and position >= stop:
            raise Violation(
                self.log.term_rule, f"{self} add {index}: acknowledged at {position}, its term ended at {stop}"
            )

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
            self.log.holds(position, add.payload)
            add.fate = Fate.ACKNOWLEDGED
        else:
            self.not_added(index)

    def not_added(self, index: int) -> None:
        """Record and check that an add did not happen and never will."""
        add = self.adds[index]
        if add.payload in self.log.where:
            raise Violation("P6", f"{self} add {index}: is in the log, and was said not to have happened")
        add.fate = Fate.NOT_ADDED

    def cancelled(self, indexes: Sequence[int]) -> None:
        """Record that the caller of these adds has given up."""
        for index in indexes:
            if self.adds[index].fate is Fate.PENDING:
                self.adds[index].fate = Fate.CANCELLED

    def many_failed(self, indexes: Sequence[int], error: OctavoError) -> Sequence[int]:
        """Record and check that an ``add_many`` failed. Returns those of its adds that did not happen and never will,
        as far as the error says."""
        doubt = error.doubt
        if error.may_have_happened and doubt is None:
            raise Violation("P6", f"{self} adds {indexes}: in doubt, and the error does not say where: {error!r}")
        sent = doubt.sent if error.may_have_happened and doubt is not None else 0
        if doubt is not None and doubt.sent + doubt.unsent != len(indexes):
            raise Violation("P6", f"{self} adds {indexes}: {doubt} does not tell of all of them")
        for index in indexes[:sent]:
            self.adds[index].fate = Fate.IN_DOUBT
        if sent:
            self.many_in_doubt.append((indexes, error))
        for index in indexes[sent:]:
            self.not_added(index)
        return indexes[sent:]

    def many_added(self, indexes: Sequence[int], error: OctavoError, added: int | None) -> bool:
        """Record and check what ``Log.added`` said of an ``add_many`` in doubt; whether it said anything."""
        doubt = error.doubt
        if added is None or doubt is None:
            return False
        self.many_in_doubt.remove((indexes, error))
        if added > doubt.sent:
            raise Violation("P6", f"{self} adds {indexes}: {doubt.sent} were sent, and {added} are said to be added")
        first = doubt.position + 1 - doubt.sent
        for position, index in enumerate(indexes[:added], first):
            self.log.holds(position, self.adds[index].payload)
            self.adds[index].fate = Fate.ACKNOWLEDGED
        for index in indexes[added:]:
            self.not_added(index)
        return True

    def check_order(self) -> None:
        """Check that the log holds a prefix of what the leader sent, each once (rules P2 and P5)."""
        places = ((index, self.log.where.get(add.payload)) for index, add in enumerate(self.adds))
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
        return f"log {self.log.name}, term {self.term} of {self.host}:"


class LogHistory:
    """The history of one log: of one incarnation of its name. A subclass knows the layout."""

    term_rule: str
    """The rule that is broken when two leaders have a term, or one goes on in a term that is over."""

    def __init__(self, name: str, retention: Retention, numbers: Iterator[int]) -> None:
        """``numbers``: of the leaders of all logs."""
        self.name = name
        self.deleted = False
        """Whether its document is marked DELETED, or gone."""
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
        self.retention = RetentionHistory(name, retention)
        self.keyed = KeyHistory(name)
        """What programs were told about keys; nothing, if its entries have none."""
        self.now: Callable[[], float] = float
        """The world's time."""
        self._numbers = numbers

    # --- what the layout tells ----------------------------------------------------------------------------------------

    @property
    def first_position(self) -> int:
        """Where the metadata say that the log begins for readers."""
        raise NotImplementedError

    @property
    def marked_deleted(self) -> bool:
        """Whether the document is there, and says that the log is being deleted."""
        raise NotImplementedError

    @property
    def is_being_made(self) -> bool:
        """Whether its creator has not ended, and another client may take the name."""
        return False

    def stop_of(self, term: int) -> int | None:
        """The position after the last one of a leader; None while no other one follows it."""
        raise NotImplementedError

    def forgets(self, term: int) -> bool:
        """Whether the metadata do not tell any more where a leader's adds ended."""
        return False

    def check_readable(self, entry: LogEntry, leader: Leader) -> None:
        """Check that a reader may have this entry by now."""

    def left_over(self) -> str:
        """What the metadata of the log name besides its entries; empty when there is nothing."""
        raise NotImplementedError

    def target(self) -> LedgerHistory | None:
        """What is being written, as a ledger, for sieges; None if there is nothing whose leader is known."""
        raise NotImplementedError

    def describe(self) -> str:
        """Where its entries are, for the trace."""
        raise NotImplementedError

    # --- leaders ----------------------------------------------------------------------------------------------------

    def leads(self, host: str, term: int, confirmed: Callable[[], int] = int) -> Leader:
        """Record and check that a client has become leader. ``confirmed``: as in :class:`Leader`."""
        if any(leader.term == term for leader in self.leaders):
            raise Violation(self.term_rule, f"log {self.name}: term {term} was given to two leaders")
        leader = Leader(self, next(self._numbers), term, host, confirmed=confirmed)
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

    def youngest_made_at(self, first: int, stop: int) -> float | None:
        """When the youngest of the entries that are known to be at these positions was added, or a moment earlier;
        None where none is known."""
        made_at = None
        for leader in self.leaders:
            for add in leader.adds:
                if first <= self.where.get(add.payload, -1) < stop:
                    made_at = max(made_at or 0.0, add.made_at)
        return made_at

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
        self.check_readable(entry, leader)
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
        if position > max(self.asked_before, self.first_position):
            raise Violation("P7", f"log {self.name}: begins at {position}; nothing above {self.asked_before} was asked")

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
        self.keyed.check(self.entries, first)
