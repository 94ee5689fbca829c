"""Writers and recoveries with one rule broken each."""

from dataclasses import dataclass
from typing import Self

from model.exchange import STORE, Change, Found, Message, Read
from model.reference_recovery import ReferenceRecovery
from model.reference_writer import ReferenceWriter
from model.renaming import Renaming
from model.sealing import sealed
from octavo.metadata.changes import Decision, Refuse, Write
from octavo.metadata.model import Fragment, LedgerMetadata, LedgerState
from octavo.protocol.entries import header_of
from octavo.protocol.errors import MetadataConflictError


class SealsAgain(ReferenceWriter):
    """Seals an entry anew whenever it is sent, with the LAC of that moment."""

    def bytes_of(self, entry_id: int) -> bytes:
        return sealed(entry_id, min(self._told, entry_id - 1))


class AcknowledgesWhileChanging(ReferenceWriter):
    """Acknowledges entries of a fragment whose change is under way, whoever confirms them (#1591)."""

    def may_acknowledge(self, entry_id: int) -> bool:
        return self.is_confirmed(entry_id)


class CountsReplacedBookies(ReferenceWriter):
    """Counts confirmations of bookies that have been replaced since."""

    def still_counts(self, entry_id: int, server: int) -> bool:
        return True

    def is_confirmed(self, entry_id: int) -> bool:
        return sum(confirmed_id == entry_id for confirmed_id, _ in self._confirmed) >= self._quorums.ack_quorum


class ReadsWithoutFence(ReferenceRecovery):
    """Recovery reads that do not fence (#2614)."""

    def reads_fence(self) -> bool:
        return False


class StartsAtTheLac(ReferenceRecovery):
    """Starts below the last fragment if no bookie of it knows a higher LAC (#2615)."""

    def first_to_read(self) -> int:
        return self._highest_lac + 1

    def _length_at(self, entry_id: int) -> int | None:
        return super()._length_at(entry_id) or 0


class TakesCutForAbsent(ReferenceRecovery):
    """Takes ids that an answer does not reach for absent."""

    def answered_stop(self, read: Read, answer: Found) -> int:
        return read.last + 1


class SealsLacsItself(ReferenceRecovery):
    """Writes entries back with a LAC of its own."""

    def verbatim(self, entry: bytes) -> bytes:
        entry_id = header_of(entry).entry_id
        return sealed(entry_id, entry_id - 1)


class CoversOneShort(ReferenceRecovery):
    """Is content with one answer less than coverage, where that is any."""

    def coverage_of(self, cohort: int) -> int:
        return max(super().coverage_of(cohort) - 1, 1)


@dataclass(frozen=True, slots=True)
class CommitFragment:
    """An ensemble change of a recovery, written to the metadata before the end is known."""

    fragment: Fragment

    def decide(self, current: LedgerMetadata) -> Decision:
        if current.state is not LedgerState.IN_RECOVERY:
            return Refuse(MetadataConflictError("closed meanwhile"))
        part = self.fragment
        return Write(current.with_ensemble_change(part.first_entry_id, part.bookies, part.length_before))

    def renamed(self, renaming: Renaming) -> Self:
        """The same under other names."""
        return type(self)(renaming.value(self.fragment))


class CommitsEarly(ReferenceRecovery):
    """Writes its ensemble changes to the metadata at once."""

    def replaced(self, fragment: Fragment) -> list[Message]:
        return [Message(self.index, STORE, None, Change(CommitFragment(fragment)))]
