"""Writers and recoveries with one rule broken each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from model.engine.exchange import STORE, Add, Change, Found, Message, Read
from model.engine.renaming import Renaming
from model.engine.sealing import sealed
from model.ledgers.machine_recovery import MachineRecovery
from model.ledgers.pipeline_writer import PipelineWriter
from model.ledgers.replication import Replication
from octavo.client.recover.ledger_recovery import LedgerRecovery
from octavo.client.write.pipeline import Effect, Pipeline
from octavo.metadata.ledger.changes import Decision
from octavo.metadata.ledger.decisions import Refuse, Write
from octavo.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from octavo.protocol.entries import header_of
from octavo.protocol.errors import MetadataConflictError
from octavo.protocol.quorums import Quorums


class SealingReplication(Replication):
    """Seals an entry again whenever it is sent, with the current LAC."""

    def _perform(self, effects: Sequence[Effect]) -> tuple[Message, ...]:
        return tuple(
            replace(message, request=Add(tuple(map(self._sealed_again, message.request.entries)), recovery=False))
            for message in super()._perform(effects)
            if isinstance(message.request, Add)
        )

    def _sealed_again(self, entry: bytes) -> bytes:
        entry_id = header_of(entry).entry_id
        return sealed(entry_id, min(self.acknowledged, entry_id - 1))


class SealsAgain(PipelineWriter):
    """Re-sealing on resend."""

    make_replication = SealingReplication


class PipelineAcknowledgingDuringChanges(Pipeline):
    """Acknowledges while an ensemble change is under way (#1591)."""

    def _acknowledge(self) -> Sequence[Effect]:
        change, self._change = self._change, None
        effects = super()._acknowledge()
        self._change = change
        return effects

    def check_invariants(self) -> None:
        """Checks nothing: the promises, not its own assertions, must find the defect."""


class ReplicationAcknowledgingDuringChanges(Replication):
    make_pipeline = PipelineAcknowledgingDuringChanges


class AcknowledgesWhileChanging(PipelineWriter):
    """Acknowledging during an ensemble change."""

    make_replication = ReplicationAcknowledgingDuringChanges


class PipelineCountingReplacedBookies(Pipeline):
    """Keeps counting the confirmations of bookies that have been replaced."""

    def commit_change(self) -> Sequence[Effect]:
        confirmed = {run.number: run.confirmed for run in self._runs}
        effects = super().commit_change()
        for run in self._runs:
            run.confirmed |= confirmed[run.number] & run.holders
        return (*effects, *self._acknowledge())

    def check_invariants(self) -> None:
        """Checks nothing: the promises, not its own assertions, must find the defect."""


class ReplicationCountingReplacedBookies(Replication):
    make_pipeline = PipelineCountingReplacedBookies


class CountsReplacedBookies(PipelineWriter):
    """Confirmations of a replaced bookie still counted."""

    make_replication = ReplicationCountingReplacedBookies


class ReadsWithoutFence(MachineRecovery):
    """Recovery reads that do not fence (#2614)."""

    def reads_fence(self) -> bool:
        return False


class MachineStartingAtTheLac(LedgerRecovery):
    """Starts at the highest LAC among the answers, even below the last fragment."""

    def __init__(self, quorums: Quorums, *, first_entry_id: int, length_before: int) -> None:
        super().__init__(quorums, first_entry_id=first_entry_id, length_before=length_before)
        self._lac, self._lac_lengths = -1, {-1: 0}

    def check_invariants(self) -> None:
        """Checks nothing: the promises, not its own assertions, must find the defect."""


class StartsAtTheLac(MachineRecovery):
    """Recovery starting below the last fragment (#2615)."""

    make_machine = MachineStartingAtTheLac


class TakesTruncatedForAbsent(MachineRecovery):
    """Takes ids that an answer does not reach for absent."""

    def last_covered(self, request: Read, answer: Found) -> int:
        return request.last


class SealsLacsItself(MachineRecovery):
    """Writes entries back with a LAC of its own."""

    def verbatim(self, entry: bytes) -> bytes:
        entry_id = header_of(entry).entry_id
        return sealed(entry_id, entry_id - 1)


class QuorumsCoveringOneShort(Quorums):
    """Takes one answer less than coverage for coverage, where that is any."""

    __slots__ = ()

    def covers(self, cohort_mask: int, answered_mask: int) -> bool:
        answers = (answered_mask & cohort_mask).bit_count()
        return answers >= max(cohort_mask.bit_count() - self.ack_quorum, 1)


class CoversOneShort(MachineRecovery):
    """Coverage off by one for Qw > Qa."""

    def __init__(self, quorums: Quorums, *, bookies: int, horizon: int, index: int = 0) -> None:
        short = QuorumsCoveringOneShort(quorums.ensemble_size, quorums.write_quorum, quorums.ack_quorum)
        super().__init__(short, bookies=bookies, horizon=horizon, index=index)


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


class CommitsEarly(MachineRecovery):
    """Writes its ensemble changes to the metadata at once."""

    def replaced(self, fragment: Fragment) -> list[Message]:
        return [Message(self.index, STORE, None, Change(CommitFragment(fragment)))]
