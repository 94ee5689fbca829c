"""The writer of one term of a stream that records copies; and writers with one rule broken each (rules G3 and G4).

It does what :mod:`model.ledgers.full_copies_writer` does, in a term (octavo.client.terms.term).
"""

from dataclasses import replace

from model.ledgers.client import Step
from model.ledgers.full_copies_writer import (
    FullCopiesWriter,
    RecordingReplication,
    ReplicationChangingBeforeTheCopy,
    ReplicationCountingFromTheLac,
    ReplicationOwingLess,
)
from model.streams.long_writer import RENEWS, ROLLS, LongWriter
from model.streams.writer import StreamWriter
from octavo.client.write.ensemble_changes import Commit
from octavo.metadata.ledger.debts import NO_DEBT, Debt, FullCopies
from octavo.metadata.stream.changes import ChangeFragment, RenewTerm, Rest, StreamChange, TermEnd


class ForgetfulReplication(RecordingReplication):
    retained_bytes_max = 0


class TermBooks(FullCopiesWriter, StreamWriter):
    """See the module. Where copies are required it rests once it has all of them; else at any time."""

    def _ensemble_change(self, commit: Commit) -> StreamChange:
        change = StreamWriter._ensemble_change(self, commit)
        assert isinstance(change, ChangeFragment)
        return replace(change, debt=commit.debt)

    def _end_change(self) -> StreamChange:
        change = StreamWriter._end_change(self)
        assert isinstance(change, Rest)
        return replace(change, end=self._with_debts(change.end))

    def _with_debts(self, end: TermEnd) -> TermEnd:
        return replace(end, debts=((self._metadata.last_fragment.first_entry_id, self._owed()),))

    def _owed(self) -> Debt:
        return self._pipeline.debt()


class LongTermBooks(TermBooks, LongWriter):
    """Renews its term, or rolls. Where copies are required, it renews the term once it has all of them, and rolls
    where the fragment has an entry with all of them (rule G4)."""

    def _renewal(self) -> RenewTerm:
        renewal = super()._renewal()
        return replace(renewal, end=self._with_debts(renewal.end))

    def steps(self) -> list[Step]:
        barred = {step for step, may in ((RENEWS, self._may_renew), (ROLLS, self._may_roll)) if not may}
        return [step for step in super().steps() if step not in barred]

    @property
    def _may_renew(self) -> bool:
        return self._closes and (self._metadata.full_copies is FullCopies.RECORDED or self._replication.can_roll)

    @property
    def _may_roll(self) -> bool:
        holds_full = self._pipeline.first_not_full > self._metadata.last_fragment.first_entry_id
        return holds_full or self._metadata.full_copies is FullCopies.RECORDED


class ForgetfulBooks(LongTermBooks):
    """Rolls once, and keeps nothing that is acknowledged: what lacks copies then is given up, and owed."""

    rolls = 1

    def _recording(self) -> type[RecordingReplication]:
        return ForgetfulReplication


class RenewingBooks(LongTermBooks):
    """Renews its term once."""

    renewals = 1


class RollingBooks(LongTermBooks):
    """Rolls once."""

    rolls = 1


class RenewingAndRollingBooks(LongTermBooks):
    """Renews its term and rolls, each once, in any order."""

    renewals = rolls = 1


# --- with one rule broken ---------------------------------------------------------------------------------------------


class CountsTermsFromTheLac(TermBooks):
    """Takes for full whatever is acknowledged (rule G1)."""

    books = ReplicationCountingFromTheLac


class ChangesTermsBeforeTheCopy(TermBooks):
    """Believes that joiners have what they need (rule G3)."""

    books = ReplicationChangingBeforeTheCopy


class OwesWhatTheReplacedLacksOfATerm(TermBooks):
    """Forgets what members that stay have not confirmed (rule G3)."""

    def _recording(self) -> type[RecordingReplication]:
        return ReplicationOwingLess


class RestsWithoutOwing(TermBooks):
    """Writes the end of its term as if every entry had all copies (rule G4)."""

    def _owed(self) -> Debt:
        return NO_DEBT


class RenewsWithoutOwing(RenewingBooks):
    """Renews its term as if every entry of the old one had all copies (rule G4)."""

    def _renewal(self) -> RenewTerm:
        renewal = super()._renewal()
        (first_entry_id, _), *_ = renewal.end.debts
        return replace(renewal, end=replace(renewal.end, debts=((first_entry_id, NO_DEBT),)))


class RollsWithoutOwing(RollingBooks):
    """Begins a fragment as if every entry of the one before had all copies (rule G3)."""

    def _ensemble_change(self, commit: Commit) -> StreamChange:
        return super()._ensemble_change(replace(commit, debt=NO_DEBT))


class RenewsBeforeTheCopies(RenewingBooks):
    """Does not wait for the copies that are required (rule G4)."""

    @property
    def _may_renew(self) -> bool:
        return True
