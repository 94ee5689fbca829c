"""The writer of a ledger with deferred sync in the model (rule W10): the real pipeline, and what its shell does.

A connection belongs to one process of a bookie. What is sent on it reaches that process or none: requests carry the
process that their connection was made to. A client that takes a bookie for ready makes a new connection first, and the
bookie's hello tells it which process is there.
"""

from collections.abc import Hashable, Sequence
from typing import Any, Self

from model.engine.exchange import Add, Done, Force, Hello, Message, Place, Welcome
from model.engine.renaming import bookie_index
from model.ledgers.client import Step
from model.ledgers.pipeline_writer import PipelineWriter
from model.ledgers.replication import Outcome, Replication
from octavo.client.write.deferred.pipeline import DeferredPipeline
from octavo.client.write.pipeline import Accept, Acknowledge, Effect, Full, Pipeline, Send, SendForce

_FORCES = Step("forces")
_NO_LIMIT = 1 << 20


class DeferredReplication(Replication):
    """See the module."""

    pipeline: DeferredPipeline
    make_deferred: type[DeferredPipeline] = DeferredPipeline

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.accepted = -1
        self._boots = [0] * self._quorums.ensemble_size
        """The process that each position's connection was made to."""
        self._greeting = 0
        """Mask of the positions whose bookie has not answered a hello."""
        for position in range(self._quorums.ensemble_size):
            self.pipeline.on_connected(position, "0")

    def _made_pipeline(self, first_entry_id: int, length: int) -> Pipeline:
        assert first_entry_id == length == 0
        return self.make_deferred(self._quorums, retained_bytes_max=_NO_LIMIT, unforced_bytes_max=_NO_LIMIT)

    def copy(self) -> Self:
        other = super().copy()
        other._boots = self._boots.copy()
        return other

    def key(self) -> Hashable:
        return super().key(), self.accepted, tuple(self._boots), self._greeting

    def steps(self) -> list[Step]:
        # A position is asked for its process once at a time.
        return [
            step
            for step in super().steps()
            if not isinstance(step.argument, int) or not self._greeting >> step.argument & 1
        ]

    def on_step(self, step: Step) -> Outcome:
        if not isinstance(step.argument, int):
            return super().on_step(step)
        position = step.argument
        self._greeting |= 1 << position
        server = bookie_index(self._changes.ensemble[position])
        place = Place(position, 0, self.pipeline.tenure(position))
        return Outcome((Message(self._client, server, place, Hello()),))

    def on_answer(self, message: Message) -> Outcome:
        place, request = message.tag, message.request
        assert isinstance(place, Place)
        if isinstance(request, Add) or self.stopped:
            return super().on_answer(message)
        position, number, tenure = place.position, place.number, place.tenure
        if isinstance(request, Hello):
            return self._greeted(position, tenure, message)
        if isinstance(message.answer, Done):
            self._end_trouble(position, tenure)
            return Outcome(self._perform(self.pipeline.on_forced(position, number, tenure)))
        self.pipeline.on_force_failed(position, number, tenure)
        return self._trouble(position, tenure, message.answer)

    def _greeted(self, position: int, tenure: int, message: Message) -> Outcome:
        if tenure != self.pipeline.tenure(position):
            return Outcome()
        self._greeting &= ~(1 << position)
        if not isinstance(message.answer, Welcome):
            return self._trouble(position, tenure, message.answer)
        self._boots[position] = message.answer.boot
        self._changes.on_connected(position)
        self.pipeline.on_connected(position, str(message.answer.boot))
        return Outcome(self._perform(self.pipeline.on_ready(position)))

    def on_committed(self) -> tuple[Message, ...]:
        fresh = self.pipeline.change.replaced if self.pipeline.change is not None else 0
        self._greeting &= ~fresh
        return super().on_committed()

    def _reached(self, position: int) -> None:
        # Its first process; if that has ended since, the first request on the connection fails.
        super()._reached(position)
        self._boots[position] = 0
        self.pipeline.on_connected(position, "0")

    def _perform(self, effects: Sequence[Effect]) -> tuple[Message, ...]:
        sent: list[Message] = []
        for effect in effects:
            if isinstance(effect, Accept):
                assert effect.first == self.accepted + 1, "in order"
                self.accepted = effect.last
            elif isinstance(effect, Acknowledge):
                assert effect.first == self.acknowledged + 1, "in order"
                self.acknowledged = effect.last
            else:
                assert not isinstance(effect, Full), "no books are kept here"
                sent.append(self._message(effect))
        return tuple(sent)

    def _message(self, effect: Send | SendForce) -> Message:
        position, boot = effect.position, self._boots[effect.position]
        number = effect.run.number if isinstance(effect, Send) else effect.number
        place = Place(position, number, effect.tenure)
        request: Add | Force = Force(boot)
        if isinstance(effect, Send):
            entries = tuple(self.pipeline.share(effect.run, position))
            request = Add(entries, recovery=False, deferred=True, boot=boot)
        return Message(self._client, bookie_index(self._changes.ensemble[position]), place, request)


class DeferredWriter(PipelineWriter):
    """Writes its entries, forces at any time, and closes once all are forced or it has failed."""

    make_replication = DeferredReplication
    _replication: DeferredReplication

    def steps(self) -> list[Step]:
        steps = super().steps()
        pipeline = self._replication.pipeline
        if not self._replication.stopped and not pipeline.is_force_requested:
            steps.append(_FORCES)
        return steps

    def _step(self, step: Step) -> list[Message]:
        if step == _FORCES:
            return list(self._replication._perform(self._replication.pipeline.request_force(0.0)))
        return super()._step(step)

    def describe(self) -> str:
        accepted = self._replication.accepted
        return ("accepted " + (f"up to entry {accepted}" if accepted >= 0 else "nothing")) + ", " + super().describe()


class ForcesAcrossRestarts(DeferredPipeline):
    """Counts a force of another process than the one that accepted the entries."""

    def on_connected(self, position: int, boot_id: str | None) -> None:
        """Looks at no boot id."""

    def check_invariants(self) -> None:
        """Checks nothing: the promises, not its own assertions, must find the defect."""


class AcknowledgesWhatIsAccepted(DeferredPipeline):
    """Moves the LAC for what is only accepted."""

    def on_confirmed(self, position: int, number: int, tenure: int) -> Sequence[Effect]:
        accepted = super().on_confirmed(position, number, tenure)
        return (*accepted, *Pipeline.on_confirmed(self, position, number, tenure))

    def check_invariants(self) -> None:
        """Checks nothing: the promises, not its own assertions, must find the defect."""


class TakesOverWhatAReplacedBookieHad(DeferredPipeline):
    """Takes what a replaced bookie had accepted for accepted by the new one, which is not sent it."""

    def commit_change(self) -> Sequence[Effect]:
        change, held, firsts = self._change, [list(one) for one in self._held], self._held_first.copy()
        effects = super().commit_change()
        for position in range(self._quorums.ensemble_size):
            if change is not None and change.replaced >> position & 1:
                self._held[position], self._held_first[position] = held[position], firsts[position]
                for number in held[position]:
                    self._runs[number - self._oldest].accepted |= 1 << position
        return effects

    def on_ready(self, position: int) -> Sequence[Effect]:
        return [
            effect
            for effect in super().on_ready(position)
            if not isinstance(effect, Send) or not effect.run.accepted >> position & 1
        ]

    def check_invariants(self) -> None:
        """Checks nothing: the promises, not its own assertions, must find the defect."""


def writer_with(pipeline: type[DeferredPipeline]) -> type[DeferredWriter]:
    """A writer whose pipeline is this one."""
    replication = type("BrokenReplication", (DeferredReplication,), {"make_deferred": pipeline})
    return type(pipeline.__name__, (DeferredWriter,), {"make_replication": replication})
