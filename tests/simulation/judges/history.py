"""The history of a universe, and the invariants I1 to I8 of docs/rules.md, checked from outside.

The history records what an application sees (results of adds, entries read, ends of ledgers) and every version of
every ledger's metadata. The i-th add that a ledger's writer accepts must become entry i, so the content that an entry
must have is known from the beginning.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.metadata.ledger.model import LedgerMetadata, LedgerState
from octavo.metadata.ledger.term import Term
from octavo.protocol.entries import Digest
from octavo.protocol.ids import LedgerId


class Violation(AssertionError):  # noqa: N818 - the established term
    """A broken invariant. ``rule`` is its name in docs/rules.md."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


@dataclass(slots=True, eq=False)
class LedgerHistory:
    """The history of one ledger."""

    ledger_id: LedgerId
    quorums: tuple[int, int, int]
    password: bytes
    digest: Digest
    confirmed: Callable[[], int | None]
    """Returns the LAC of its writer."""
    silent: Callable[[], bool] = bool
    """Returns whether its writer is paused or dead."""
    private: bool = False
    deferred: bool = False
    """Whether its sync is deferred: adds that return are accepted, and forces acknowledge (rule W10)."""
    begun: int = 0
    """Adds that the application has made."""
    writer: str = ""
    """Name of the process that writes it."""
    adding: bool = False
    """Whether its writer has not finished adding."""
    suspected: bool = False
    """Whether clients currently take its writer for failed, rightly or not."""
    payloads: list[bytes] = field(default_factory=list)
    """The payloads added, in order: entry i must have the i-th payload."""
    acknowledged: int = -1
    """Highest acknowledged entry id; -1: none."""
    not_happened: int | None = None
    """Lowest entry id whose add failed as certainly not done."""
    seen: int = -1
    """Highest entry id that an ordinary read returned; -1: none."""
    versions: list[LedgerMetadata] = field(default_factory=list)
    besieged: Term | None = None
    """The term of a stream for which this stands, in a siege; it has no versions of its own."""
    recovering: int = 0
    """Number of clients that are recovering it."""
    deleted: bool = False
    delete_asked: bool = False
    bytes_seen: dict[int, bytes] = field(default_factory=dict)
    """Entry id -> its sealed bytes, as the first replica returned them."""

    @property
    def orphaned(self) -> bool:
        """Whether it is open and its writer appears to have failed."""
        return self.end is None and (self.suspected or self.silent())

    @property
    def current(self) -> LedgerMetadata:
        """The latest version of its metadata."""
        return self.versions[-1]

    @property
    def term(self) -> Term:
        """What its writer writes, as the latest metadata tell."""
        return self.current.current_term if self.besieged is None else self.besieged

    @property
    def end(self) -> int | None:
        """Last entry id of the closed ledger, -1 if it is empty; None while it is not closed."""
        term = self.term
        if not term.has_end:
            return None
        return -1 if term.last_entry_id is None else term.last_entry_id


class History:
    """The history of all ledgers. Methods raise :class:`Violation`."""

    def __init__(self) -> None:
        self.ledgers: dict[LedgerId, LedgerHistory] = {}
        self.early: dict[LedgerId, list[LedgerMetadata]] = {}
        self.ensemble_changes = 0
        self.recoveries = 0
        self.recoveries_changing_often = 0
        """Recoveries that closed a ledger with at least two new fragments."""

    def opened(self, ledger: LedgerHistory) -> None:
        """Record a ledger whose writer has been created."""
        ledger.versions.extend(self.early.pop(ledger.ledger_id, []))
        self.ledgers[ledger.ledger_id] = ledger

    # --- metadata ---------------------------------------------------------------------------------------------------

    def metadata_changed(self, ledger_id: LedgerId, metadata: LedgerMetadata | None) -> None:
        """Record and check a new version of a ledger's metadata; None: the ledger was deleted."""
        ledger = self.ledgers.get(ledger_id)
        if metadata is None:
            if ledger is not None:
                ledger.deleted = True
            return
        self._check_fragments(metadata)
        versions = ledger.versions if ledger is not None else self.early.setdefault(ledger_id, [])
        if versions:
            self._check_step(versions[-1], metadata)
        versions.append(metadata)
        if ledger is not None and ledger.end is not None:
            self._check_end(ledger)

    def _check_fragments(self, metadata: LedgerMetadata) -> None:
        fragments = metadata.fragments
        firsts = [fragment.first_entry_id for fragment in fragments]
        if firsts != sorted(set(firsts)) or firsts[0] != 0:
            raise Violation("I6", f"ledger {metadata.ledger_id}: fragments begin at {firsts}")
        for fragment in fragments:
            if len(set(fragment.bookies)) != metadata.ensemble_size or len(fragment.bookies) != metadata.ensemble_size:
                raise Violation("I6", f"ledger {metadata.ledger_id}: ensemble {fragment.bookies}")

    def _check_step(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        order = (LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED)
        if order.index(after.state) < order.index(before.state):
            raise Violation("I2", f"ledger {after.ledger_id}: {before.state} became {after.state}")
        if before.state is LedgerState.CLOSED and (
            (before.last_entry_id, before.length) != (after.last_entry_id, after.length)
        ):
            raise Violation(
                "I2", f"ledger {after.ledger_id}: its end {before.last_entry_id} became {after.last_entry_id}"
            )
        if before.state is LedgerState.OPEN and after.state is LedgerState.IN_RECOVERY:
            self.recoveries += 1
        if before.state is LedgerState.IN_RECOVERY and len(after.fragments) > len(before.fragments) + 1:
            self.recoveries_changing_often += 1
        if len(after.fragments) > len(before.fragments) or after.last_fragment.bookies != before.last_fragment.bookies:
            self.ensemble_changes += 1

    def _check_end(self, ledger: LedgerHistory) -> None:
        end = ledger.end
        assert end is not None
        where = f"ledger {ledger.ledger_id}, closed at {end}"
        if ledger.acknowledged > end:
            raise Violation("I2", f"{where}: entry {ledger.acknowledged} had been acknowledged")
        if ledger.seen > end:
            raise Violation("I1", f"{where}: entry {ledger.seen} had been read")
        if ledger.not_happened is not None and ledger.not_happened <= end:
            raise Violation("W6", f"{where}: the add of {ledger.not_happened} was said not to have happened")
        if end >= len(ledger.payloads):
            raise Violation("I2", f"{where}: only {len(ledger.payloads)} were ever added")
        length = sum(map(len, ledger.payloads[: end + 1]))
        if ledger.current.length != length:
            raise Violation("I2", f"{where}: its length is {ledger.current.length}, not {length}")

    # --- adds -------------------------------------------------------------------------------------------------------

    def acknowledged(self, ledger: LedgerHistory, index: int, entry_id: int) -> None:
        """Record and check that the add of payload ``index`` returned ``entry_id``."""
        if entry_id != index:
            raise Violation("I4", f"ledger {ledger.ledger_id}: add {index} became entry {entry_id}")
        if not ledger.deferred:
            self.confirmed(ledger, entry_id)

    def confirmed(self, ledger: LedgerHistory, entry_id: int) -> None:
        """Record and check that the writer's caller was told that everything up to ``entry_id`` is durable."""
        ledger.acknowledged = max(ledger.acknowledged, entry_id)
        end = ledger.end
        if end is not None and entry_id > end:
            raise Violation("I7", f"ledger {ledger.ledger_id}: entry {entry_id} acknowledged, it was closed at {end}")

    def add_failed(self, ledger: LedgerHistory, index: int, *, may_have_happened: bool) -> None:
        """Record and check that the add of payload ``index`` failed."""
        if may_have_happened:
            return
        if ledger.not_happened is None or index < ledger.not_happened:
            ledger.not_happened = index
        end = ledger.end
        if index <= ledger.acknowledged or (end is not None and index <= end):
            raise Violation("W6", f"ledger {ledger.ledger_id}: add {index} is there and was said not to have happened")

    # --- reads ------------------------------------------------------------------------------------------------------

    def read(self, ledger: LedgerHistory, entry_id: int, payload: bytes, *, ordinary: bool = True) -> None:
        """Record and check an entry that a reader received."""
        if entry_id >= len(ledger.payloads) or payload != ledger.payloads[entry_id]:
            raise Violation("I3", f"ledger {ledger.ledger_id}: entry {entry_id} reads {payload[:40]!r}")
        if not ordinary:
            return
        confirmed, end = ledger.confirmed(), ledger.end
        limit = max(-1 if confirmed is None else confirmed, -1 if end is None else end, ledger.acknowledged)
        if entry_id > limit and not ledger.deleted:
            raise Violation("I3", f"ledger {ledger.ledger_id}: entry {entry_id} was read, {limit} was confirmed")
        if end is not None and entry_id > end:
            raise Violation("I2", f"ledger {ledger.ledger_id}: entry {entry_id} was read, it was closed at {end}")
        ledger.seen = max(ledger.seen, entry_id)

    def replica(self, ledger: LedgerHistory, entry_id: int, sealed: bytes, bookie: str) -> None:
        """Check a bookie's copy of an entry against the copies of other bookies."""
        known = ledger.bytes_seen.setdefault(entry_id, sealed)
        if known != sealed:
            raise Violation("I3", f"ledger {ledger.ledger_id}: bookie {bookie} has other bytes of entry {entry_id}")

    def check_all(self) -> None:
        """Check every closed ledger once more."""
        for ledger in self.ledgers.values():
            if ledger.end is not None:
                self._check_end(ledger)
