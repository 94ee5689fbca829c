"""A writer of the model with full copies: the real machines, with what their shell does around them
(octavo.client.write.copies.copying); and writers with one rule broken each (rules G1 and G3).

It closes once nothing waits for copies. No time passes, so where copies are only recorded it may stop waiting at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from model.engine.exchange import Add, Done, Message, Place
from model.engine.renaming import Renaming, bookie_index
from model.ledgers.client import Step
from model.ledgers.pipeline_writer import PipelineWriter
from model.ledgers.replication import Outcome, Replication
from octavo.client.write.copies.full_copies import FullCopiesPipeline, RequiredChanges
from octavo.client.write.ensemble_changes import Commit, EnsembleChanges, Phase
from octavo.client.write.pipeline import Effect, Full, Pipeline, Send
from octavo.metadata.ledger.changes import ChangeEnsemble, CloseLedger, MetadataChange
from octavo.metadata.ledger.debts import NO_DEBT, Debt, FullCopies
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.stream.changes import StreamChange
from octavo.protocol.ids import BookieId

_FEEDS = "sends to the joiner at position"
_CHANGES = Step("changes its ensemble, as the joiners have their copies")


class BookkeepingReplication(Replication):
    """Joiners have the places of the positions that they are to take, told by a tenure below 0: no member has one."""

    make_books: type[FullCopiesPipeline] = FullCopiesPipeline
    make_changes: type[RequiredChanges] = RequiredChanges
    required = True
    retained_bytes_max = 1 << 20
    pipeline: FullCopiesPipeline

    def _made_pipeline(self, first_entry_id: int, length: int) -> Pipeline:
        return self.make_books(
            self._quorums,
            required=self.required,
            retained_bytes_max=self.retained_bytes_max,
            first_entry_id=first_entry_id,
            length=length,
        )

    def _made_changes(self, *arguments: Any, **keywords: Any) -> EnsembleChanges:
        return (self.make_changes if self.required else EnsembleChanges)(*arguments, **keywords)

    @property
    def _copying(self) -> RequiredChanges | None:
        changes = self._changes
        return changes if isinstance(changes, RequiredChanges) and changes.phase is Phase.COPYING else None

    def steps(self) -> list[Step]:
        """What may happen of its own accord."""
        if self._copying is None or self.stopped:
            return super().steps()
        joiners = self.pipeline._joiners
        steps = [step for step in super().steps() if isinstance(step.argument, int)]
        steps += [Step(_FEEDS, position) for position, one in sorted(joiners.items()) if not one.ready]
        if self._may_change():
            steps.append(_CHANGES)
        return steps

    def _may_change(self) -> bool:
        other = self.copy()
        changes = other._copying
        assert changes is not None
        moved = changes.on_copied() is not None or changes.phase is not Phase.COPYING
        return moved or other.pipeline.state() != self.pipeline.state()

    def rename(self, step: Step, renaming: Renaming) -> Step:
        """The same step under other names."""
        return step if step.argument is None else super().rename(step, renaming)

    def on_step(self, step: Step) -> Outcome:
        """One of :meth:`steps`."""
        changes = self._copying
        if step.name == _FEEDS:
            assert isinstance(step.argument, int)
            return Outcome(self._perform(self.pipeline.on_joiner_ready(step.argument, self.pipeline.attempt)))
        if changes is not None and step == _CHANGES:
            commit = changes.on_copied()
            return Outcome(self._perform(self.pipeline.resume()) if commit is None else (), commit=commit)
        return super().on_step(step)

    def on_answer(self, message: Message) -> Outcome:
        """What became of an add."""
        place = message.tag
        assert isinstance(place, Place)
        if place.tenure >= 0:
            return super().on_answer(message)
        attempt = -place.tenure
        current = attempt == self.pipeline.attempt and place.position in self.pipeline.joining
        if self.stopped or not current or self._copying is None:
            return Outcome()
        if isinstance(message.answer, Done):
            self.pipeline.on_joiner_confirmed(place.position, place.number, attempt)
        else:
            self._copying.on_joiner_failed(0.0)
        return Outcome(self._perform(self.pipeline.resume()))

    def _perform(self, effects: Sequence[Effect]) -> tuple[Message, ...]:
        size = self._quorums.ensemble_size
        sent: list[Message] = []
        for effect in effects:
            if isinstance(effect, Full):
                continue
            if not isinstance(effect, Send) or effect.position < size:
                sent += super()._perform((effect,))
                continue
            position = effect.position - size
            assert isinstance(self._changes, RequiredChanges)
            server = bookie_index(self._changes.joiners[position])
            add = Add(tuple(self.pipeline.share(effect.run, position)), recovery=False, term=self._term)
            place = Place(position, effect.run.number, -effect.tenure, self._attempt)
            sent.append(Message(self._client, server, place, add))
        return tuple(sent)


class RecordingReplication(BookkeepingReplication):
    required = False


class FullCopiesWriter(PipelineWriter):
    """See the module."""

    books: type[BookkeepingReplication] = BookkeepingReplication

    def _replication_kind(self) -> type[Replication]:
        return self.books if self._metadata.full_copies is FullCopies.REQUIRED else self._recording()

    def _recording(self) -> type[BookkeepingReplication]:
        return RecordingReplication

    @property
    def _pipeline(self) -> FullCopiesPipeline:
        pipeline = self._replication.pipeline
        assert isinstance(pipeline, FullCopiesPipeline)
        return pipeline

    @property
    def _closes(self) -> bool:
        """Whether it may be closed: where copies are required, only with all of them (rule G4)."""
        return self._pipeline.is_full or self._metadata.full_copies is FullCopies.RECORDED

    def steps(self) -> list[Step]:
        steps = super().steps()
        return steps if self._closes else [step for step in steps if step.name != "closes"]

    @property
    def finished(self) -> bool:
        """A writer that has failed leaves a ledger without all copies open."""
        return super().finished or (self._failure is not None and not self._closes and not self._replication.committing)

    def _ensemble_change(self, commit: Commit) -> MetadataChange | StreamChange:
        base = self._metadata.last_fragment
        return ChangeEnsemble(base, commit.first_entry_id, commit.ensemble, commit.length_before, commit.debt)

    def _end_change(self) -> MetadataChange | StreamChange:
        pipeline = self._pipeline
        return CloseLedger(
            self._metadata.last_fragment, pipeline.last_add_confirmed, pipeline.length, pipeline.debt()
        )  # fmt: skip

    def unfinished_work(self, metadata: LedgerMetadata) -> str | None:
        return None if self.finished else super().unfinished_work(metadata)


# --- with one rule broken ---------------------------------------------------------------------------------------------


class PipelineCountingFromTheLac(FullCopiesPipeline):
    """Takes for full whatever is acknowledged (rule G1)."""

    def _release(self) -> None:
        for run in self._runs:
            if run.number < self._head:
                run.confirmed = run.holders
        super()._release()

    def check_invariants(self) -> None:
        """Checks nothing: the promises, not its own assertions, must find the defect."""


class ReplicationCountingFromTheLac(BookkeepingReplication):
    make_books = PipelineCountingFromTheLac


class CountsFromTheLac(FullCopiesWriter):
    books = ReplicationCountingFromTheLac


class PipelineTakingCopiesForMade(FullCopiesPipeline):
    """Believes that joiners have what they need (rule G3)."""

    is_copied = True

    def check_invariants(self) -> None:
        """Checks nothing: the promises, not its own assertions, must find the defect."""


class ReplicationChangingBeforeTheCopy(BookkeepingReplication):
    make_books = PipelineTakingCopiesForMade


class ChangesBeforeTheCopy(FullCopiesWriter):
    books = ReplicationChangingBeforeTheCopy


class ChangesOwingLess(EnsembleChanges):
    """Forgets what members that stay have not confirmed (rule G3)."""

    def on_spares(self, spares: Mapping[int, BookieId], now: float) -> Commit | None:
        commit = super().on_spares(spares, now)
        if commit is None:
            return None
        replaced = sum(1 << at for at in spares)
        owed = NO_DEBT
        for run in self._pipeline._runs:
            if run.last < commit.first_entry_id and run.holders & ~run.confirmed & replaced:
                owed = owed.joined(Debt(run.first, run.last))
        return replace(commit, debt=owed)


class ReplicationOwingLess(RecordingReplication):
    def _made_changes(self, *arguments: Any, **keywords: Any) -> EnsembleChanges:
        return ChangesOwingLess(*arguments, **keywords)


class OwesWhatTheReplacedLacks(FullCopiesWriter):
    def _recording(self) -> type[BookkeepingReplication]:
        return ReplicationOwingLess
