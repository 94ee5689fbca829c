"""How a client changes a ledger's metadata when another client may have changed them in the meantime. Pure.

A change is a value with one method, ``decide(current)``. Given the stored metadata, it answers *write* (compare-and-set
to this value), *settled* (the stored metadata already say what was wanted; this also recognises the client's own write
when its answer was lost, rule M1), or *refuse* (raise this error). :func:`octavo.metadata.updates.update.update_ledger`
runs the change in a compare-and-set loop. In the table, ``same`` means that the last fragment is the one from which the
change was computed: it begins at the same id with the same length before it, on the same bookies. Debts are not
compared. A change that ends a fragment records its debt with it, where the ledger keeps such books (rule I9).

================  ====================  ========================  =====================  =============================
change            OPEN                  OPEN, other last          IN_RECOVERY            CLOSED
================  ====================  ========================  =====================  =============================
ChangeEnsemble    same: write; wanted:  refuse, conflict          refuse, fenced         refuse, fenced
(W3, W5)          settled
CloseLedger (W9)  same: write           refuse, conflict          refuse, fenced         same end: settled; other:
                                                                                         refuse, fenced
BeginRecovery     write                 write                     settled (F1)           settled
(F1)
FinishRecovery    refuse, conflict      refuse, conflict          same: write; other:    settled: adopt that end
(F6)                                                              refuse, conflict
================  ====================  ========================  =====================  =============================

Older fragments may differ in every row, because repair changes them. The change keeps them as it finds them. The end of
a closed ledger never changes again, so "settled" is final there.

:class:`ReplaceMember` is repair's change, and the only one that a closed ledger accepts. It replaces one bookie in a
*settled* fragment: one whose entries no writer and no recovery decides about any more (rule C2). Its decision depends
on the fragment, not on the column:

==========================  ==============  ==============  ================
fragment                    ``old`` there   ``new`` there   another bookie
==========================  ==============  ==============  ================
earlier one, in any state   write           settled         refuse, conflict
last one, with its end      write           settled         refuse, conflict
last one, without an end    refuse          refuse          refuse, conflict
begins or ends elsewhere    refuse          refuse          refuse, conflict
==========================  ==============  ==============  ================

:class:`PayDebt` is repair's other change, for settled fragments, too. Both ask only what a ledger and a stream have in
common (:class:`octavo.metadata.ledger.stored.StoredLedger`), and serve both. Of a stream they change the tail.
"""

from datetime import datetime
from typing import Protocol

from octavo.metadata.ledger.debts import NO_DEBT, Debt
from octavo.metadata.ledger.decisions import Refuse, Settled, Write
from octavo.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.ledger.stored import StoredLedger
from octavo.metadata.ledger.term import StoredFragment
from octavo.protocol.errors import LedgerFencedError, MetadataConflictError
from octavo.protocol.ids import BookieId, EntryId
from octavo.protocol.light_dataclass import dataclass

type Decision = Write[LedgerMetadata] | Settled | Refuse


class MetadataChange(Protocol):
    """A change that a client wants to make to a ledger's metadata."""

    def decide(self, current: LedgerMetadata) -> Decision:
        """The decision, given the stored metadata. Has no effects and may be called any number of times."""


class RepairChange(Protocol):
    """A change that repair wants to make to a ledger or a stream."""

    def decide[M: StoredLedger](self, current: M) -> Write[M] | Settled | Refuse:
        """As :meth:`MetadataChange.decide`."""


@dataclass(frozen=True, slots=True)
class ChangeEnsemble:
    """The writer replaces bookies from ``first_entry_id`` on (rules W3 and W5)."""

    base: Fragment
    """The last fragment that the writer knows."""
    first_entry_id: EntryId
    ensemble: tuple[BookieId, ...]
    length_before: int
    debt: Debt | None = None
    """What is owed of :attr:`base`, which this change ends; None: not recorded."""

    def decide(self, current: LedgerMetadata) -> Decision:
        if current.state is not LedgerState.OPEN:
            return _fenced(current)
        if current.last_fragment.holds_as(Fragment(self.first_entry_id, self.ensemble, self.length_before)):
            return Settled()
        if not current.last_fragment.holds_as(self.base):
            return _other_writer(current)
        changed = current.with_ensemble_change(self.first_entry_id, self.ensemble, self.length_before)
        replaces_base = self.first_entry_id == self.base.first_entry_id
        return Write(changed if replaces_base else changed.with_debt(self.base.first_entry_id, self.debt))


@dataclass(frozen=True, slots=True)
class CloseLedger:
    """The writer closes with this end (rule W9)."""

    base: Fragment
    """The last fragment that the writer knows."""
    last_entry_id: EntryId | None
    length: int
    debt: Debt | None = None
    """What is owed of the last fragment; None: not recorded."""

    def decide(self, current: LedgerMetadata) -> Decision:
        if current.state is LedgerState.CLOSED and _end(current) == (self.last_entry_id, self.length):
            return Settled()
        if current.state is not LedgerState.OPEN:
            return _fenced(current)
        if not current.last_fragment.holds_as(self.base):
            return _other_writer(current)
        closed = current.closed(self.last_entry_id, self.length)
        return Write(closed.with_debt(self.base.first_entry_id, self.debt))


@dataclass(frozen=True, slots=True)
class BeginRecovery:
    """A client starts to recover the ledger (rule F1). Afterwards the ledger is IN_RECOVERY or CLOSED."""

    fenced_at: datetime | None = None
    """The client's clock, which the errors of the old writer name."""
    fenced_by: str = ""
    """The client's name, likewise."""

    def decide(self, current: LedgerMetadata) -> Decision:
        if current.state is not LedgerState.OPEN:
            return Settled()
        return Write(current.in_recovery(self.fenced_at, self.fenced_by))


@dataclass(frozen=True, slots=True)
class FinishRecovery:
    """The recovering client closes the ledger with the end it found and the fragments it made meanwhile (rule F6).

    Afterwards the ledger is CLOSED, possibly with the end that another recovering client wrote. The caller adopts the
    metadata that it is given.
    """

    base: Fragment
    """The last fragment when recovery began."""
    fragments: tuple[Fragment, ...]
    """Ensemble changes of this recovery, in order; they stay local until now (rule F5)."""
    last_entry_id: EntryId | None
    length: int
    debts: tuple[tuple[EntryId, Debt], ...] = ()
    """The first ids of these fragments and of the base, as far as they stay, and what is owed of them."""

    def decide(self, current: LedgerMetadata) -> Decision:
        if current.state is LedgerState.CLOSED:
            return Settled()
        if current.state is LedgerState.OPEN or not current.last_fragment.holds_as(self.base):
            return Refuse(
                MetadataConflictError(
                    f"ledger {current.ledger_id}: another client took it over during its recovery; recover it again",
                    may_have_happened=False,
                )
            )
        wanted = current
        for fragment in self.fragments:
            wanted = wanted.with_ensemble_change(fragment.first_entry_id, fragment.bookies, fragment.length_before)
        wanted = wanted.closed(self.last_entry_id, self.length)
        for first_entry_id, debt in self.debts:
            wanted = wanted.with_debt(first_entry_id, debt)
        return Write(wanted)


@dataclass(frozen=True, slots=True)
class ReplaceMember:
    """A repaired bookie names itself in a settled fragment, in place of another one (rules C2 and C5).

    Nothing but that name changes: not the ids, not the other bookies, not the end. Of a stream, truncation may have
    removed what was copied: then there is nothing left to name, and the change refuses.
    """

    first_entry_id: EntryId
    """The first id of the fragment."""
    range_last: int
    """The last id of the fragment that holds an entry; its first id - 1 when it is empty (an empty last fragment)."""
    position: int
    """The index in the ensemble."""
    old: BookieId
    new: BookieId

    def decide[M: StoredLedger](self, current: M) -> Write[M] | Settled | Refuse:
        fragment = _fragment_from(current, self.first_entry_id)
        if fragment is None or current.last_id_of(fragment) != self.range_last:
            return self._refuse(current, f"no settled fragment holds its entries up to {self.range_last}")
        if not 0 <= self.position < len(fragment.bookies):
            return self._refuse(current, f"its ensemble has no slot {self.position}")
        present = fragment.bookies[self.position]
        if present == self.new:
            return Settled()
        if present != self.old:
            return self._refuse(current, f"bookie {present} is in slot {self.position}, no longer {self.old}")
        if self.new in fragment.bookies:
            return self._refuse(current, f"bookie {self.new} is a member already, in another slot")
        return Write(current.with_member(self.first_entry_id, self.position, self.new))

    def _refuse(self, current: StoredLedger, reason: str) -> Refuse:
        return Refuse(
            MetadataConflictError(
                f"{_fragment_name(current, self.first_entry_id)}: {reason}; bookie {self.new} "
                f"does not take the place of {self.old}",
                may_have_happened=False,
            )
        )


@dataclass(frozen=True, slots=True)
class PayDebt:
    """Every member of a settled fragment has said that it lacks nothing of what was owed (rule G6)."""

    first_entry_id: EntryId
    """The first id of the fragment."""
    bookies: tuple[BookieId, ...]
    """The members that were asked."""
    paid: Debt
    """The entries that they were asked about."""

    def decide[M: StoredLedger](self, current: M) -> Write[M] | Settled | Refuse:
        fragment = _fragment_from(current, self.first_entry_id)
        if fragment is None:
            return self._refuse(current, "it is not there any more")
        debt = current.debt_of(fragment)
        if debt.is_empty:
            return Settled()
        if fragment.bookies != self.bookies:
            return self._refuse(current, "another bookie is a member now")
        if debt.within(*self.paid) != debt:
            return self._refuse(current, f"entries {debt.first} to {debt.last} are owed")
        return Write(current.with_debt(self.first_entry_id, NO_DEBT))

    def _refuse(self, current: StoredLedger, reason: str) -> Refuse:
        return Refuse(
            MetadataConflictError(
                f"{_fragment_name(current, self.first_entry_id)}: {reason}; its debt stays", may_have_happened=False
            )
        )


def _fragment_from(metadata: StoredLedger, first_entry_id: EntryId) -> StoredFragment | None:
    return next((found for found in metadata.fragments if found.first_entry_id == first_entry_id), None)


def _fragment_name(metadata: StoredLedger, first_entry_id: EntryId) -> str:
    return f"{metadata.kind.value} {metadata.ledger_id}, fragment from entry {first_entry_id}"


def _end(metadata: LedgerMetadata) -> tuple[EntryId | None, int]:
    return metadata.last_entry_id, metadata.length


def who_fenced(metadata: StoredLedger) -> str:
    """By which client it was fenced, and when, for an error; "another client" if the metadata do not say."""
    if metadata.fenced_at is None:
        return "another client"
    name = f" ({metadata.fenced_by})" if metadata.fenced_by else ""
    return f"another client{name}, which fenced it at {metadata.fenced_at.isoformat(sep=' ', timespec='seconds')},"


def _fenced(current: LedgerMetadata) -> Refuse:
    if current.state is LedgerState.CLOSED:
        end = "empty" if current.last_entry_id is None else f"with last entry {current.last_entry_id}"
        what = f"has been recovered by {who_fenced(current)} and closed {end}"
    else:
        what = f"is being recovered by {who_fenced(current).removesuffix(',')}"
    # The metadata change did not happen; whether adds did is for the writer to say (rule W6).
    return Refuse(LedgerFencedError(f"ledger {current.ledger_id} {what}", may_have_happened=False))


def _other_writer(current: LedgerMetadata) -> Refuse:
    return Refuse(
        MetadataConflictError(
            f"ledger {current.ledger_id}: its last fragment, from entry {current.last_fragment.first_entry_id}, was "
            "not made by this writer: a second writer is active",
            may_have_happened=False,
        )
    )
