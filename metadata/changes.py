"""What a client that wants to change a ledger's metadata does when it finds them changed by somebody else. Pure.

A change is a value with one method, ``decide(current)``: given what stands in the store, either *write* this, or it is
*settled* (what was wanted stands there already, whoever wrote it; so one's own write whose answer was lost is
recognised, rule M1), or *refuse* with an error. :func:`octavo.metadata.update.update_ledger` runs it in the
compare-and-set loop. ``same`` means: the last fragment is the one the change was computed from.

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

Older fragments may differ in every row: a re-replicator changes them, and they are taken as found (the merge).
A closed ledger never changes again, so "settled" is final there.
"""

from dataclasses import dataclass
from typing import Protocol

from octavo.metadata.model import Fragment, LedgerMetadata, LedgerState
from octavo.protocol.errors import LedgerFencedError, MetadataConflictError, OctavoError
from octavo.protocol.ids import BookieId, EntryId


@dataclass(frozen=True, slots=True)
class Write:
    """Compare-and-set to this, expecting the version decided upon."""

    metadata: LedgerMetadata


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing to write: what was wanted, or what replaces it for good, stands there."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The change cannot be made any more; raise this."""

    error: OctavoError


type Decision = Write | Settled | Refuse


class MetadataChange(Protocol):
    """Something a client wants of a ledger's metadata."""

    def decide(self, current: LedgerMetadata) -> Decision:
        """What to do, given what stands in the store. Has no effects and may be called any number of times."""


@dataclass(frozen=True, slots=True)
class ChangeEnsemble:
    """The writer replaces bookies from ``first_entry_id`` on (rules W3 and W5)."""

    base: Fragment
    """The last fragment that the writer knows."""
    first_entry_id: EntryId
    ensemble: tuple[BookieId, ...]
    length_before: int

    def decide(self, current: LedgerMetadata) -> Decision:
        if current.state is not LedgerState.OPEN:
            return _fenced(current)
        if current.last_fragment == Fragment(self.first_entry_id, self.ensemble, self.length_before):
            return Settled()
        if current.last_fragment != self.base:
            return _other_writer(current)
        return Write(current.with_ensemble_change(self.first_entry_id, self.ensemble, self.length_before))


@dataclass(frozen=True, slots=True)
class CloseLedger:
    """The writer closes with this end (rule W9)."""

    base: Fragment
    """The last fragment that the writer knows."""
    last_entry_id: EntryId | None
    length: int

    def decide(self, current: LedgerMetadata) -> Decision:
        if current.state is LedgerState.CLOSED and _end(current) == (self.last_entry_id, self.length):
            return Settled()
        if current.state is not LedgerState.OPEN:
            return _fenced(current)
        if current.last_fragment != self.base:
            return _other_writer(current)
        return Write(current.closed(self.last_entry_id, self.length))


@dataclass(frozen=True, slots=True)
class BeginRecovery:
    """Somebody sets out to find the end (rule F1). Afterwards the ledger is IN_RECOVERY or CLOSED."""

    def decide(self, current: LedgerMetadata) -> Decision:
        if current.state is not LedgerState.OPEN:
            return Settled()
        return Write(current.in_recovery())


@dataclass(frozen=True, slots=True)
class FinishRecovery:
    """The recoverer closes with the end it found and the fragments it made meanwhile (rule F6).

    Afterwards the ledger is CLOSED, maybe with another recoverer's end: the caller adopts what it is given.
    """

    base: Fragment
    """The last fragment when recovery began."""
    fragments: tuple[Fragment, ...]
    """Ensemble changes of this recovery, in order; they stay local until now (rule F5)."""
    last_entry_id: EntryId | None
    length: int

    def decide(self, current: LedgerMetadata) -> Decision:
        if current.state is LedgerState.CLOSED:
            return Settled()
        if current.state is LedgerState.OPEN or current.last_fragment != self.base:
            return Refuse(
                MetadataConflictError(
                    f"ledger {current.ledger_id}: somebody took it over while it was being recovered; recover again",
                    may_have_happened=False,
                )
            )
        wanted = current
        for fragment in self.fragments:
            wanted = wanted.with_ensemble_change(fragment.first_entry_id, fragment.bookies, fragment.length_before)
        return Write(wanted.closed(self.last_entry_id, self.length))


def _end(metadata: LedgerMetadata) -> tuple[EntryId | None, int]:
    return metadata.last_entry_id, metadata.length


def _fenced(current: LedgerMetadata) -> Refuse:
    if current.state is LedgerState.CLOSED:
        end = "empty" if current.last_entry_id is None else f"with last entry {current.last_entry_id}"
        what = f"has been recovered by another client and closed {end}"
    else:
        what = "is being recovered by another client"
    # The metadata change did not happen; whether adds did is for the writer to say (rule W6).
    return Refuse(LedgerFencedError(f"ledger {current.ledger_id} {what}", may_have_happened=False))


def _other_writer(current: LedgerMetadata) -> Refuse:
    return Refuse(
        MetadataConflictError(
            f"ledger {current.ledger_id}: its last fragment, from entry {current.last_fragment.first_entry_id}, is not "
            "the one this writer made; two writers at work",
            may_have_happened=False,
        )
    )
