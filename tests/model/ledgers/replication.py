"""What sends entries in the model: the real pipeline and the real rules of ensemble changes, with what their shell does
around them (octavo.client.write.replication). A writer's entries and recovered ones go the same way.

No time passes: whatever the shell would wait for may happen at once, or never. A connection that breaks may be taken
for ready again at any moment; a bookie in trouble is due for replacement at once, and considered when the model likes.
"""

from collections.abc import Hashable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Self

from model.engine.exchange import FENCED, Add, Answer, Done, Failed, Message, Place, Refused
from model.engine.renaming import Renaming, bookie_id, bookie_index
from model.ledgers.client import Step
from octavo.client.write.ensemble_changes import Commit, EnsembleChanges, FindSpares, Phase
from octavo.client.write.pipeline import Acknowledge, Effect, Pipeline, Send
from octavo.protocol.ids import BookieId
from octavo.protocol.quorums import Quorums

_NO_LIMIT = 1 << 20
_CONSIDERS = Step("considers an ensemble change")
_READY, _FINDS = "takes for ready the bookie at position", "finds spares, by position:"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an event: requests to send, a change of the ensemble to commit, a refusal that ends it."""

    sent: tuple[Message, ...] = ()
    commit: Commit | None = None
    failure: str | None = None


class Replication:
    """See the module. ``make_pipeline`` makes the machine: a canary may make another one."""

    make_pipeline: type[Pipeline] = Pipeline

    def __init__(
        self,
        client: int,
        quorums: Quorums,
        ensemble: Sequence[BookieId],
        *,
        bookies: int,
        recovery: bool = False,
        term: int = 0,
        attempt: int = 0,
        first_entry_id: int = 0,
        length: int = 0,
    ) -> None:
        self._client = client
        self._quorums = quorums
        self._bookies = range(bookies)
        self._recovery = recovery
        self._term = term
        self._attempt = attempt
        self.acknowledged = first_entry_id - 1
        self.stopped = False
        self.pipeline = self._made_pipeline(first_entry_id, length)
        never = 0.0
        self._changes = self._made_changes(
            self.pipeline, quorums, ensemble, now=0.0, loss_seconds=never, delay_seconds=never, retry_seconds=never
        )
        self._wanted_spares: tuple[int, ...] = ()
        for position in range(quorums.ensemble_size):
            self._changes.on_connected(position)
            self.pipeline.on_ready(position)

    def _made_pipeline(self, first_entry_id: int, length: int) -> Pipeline:
        return self.make_pipeline(
            self._quorums, retained_bytes_max=_NO_LIMIT, first_entry_id=first_entry_id, length=length
        )

    def _made_changes(self, *arguments: Any, **keywords: Any) -> EnsembleChanges:
        return EnsembleChanges(*arguments, **keywords)

    def copy(self) -> Self:
        """An independent one in the same state."""
        other = copy(self)
        other.pipeline = self.pipeline.copy()
        other._changes = self._changes.copy(other.pipeline)
        return other

    def key(self) -> Hashable:
        """Everything that decides what it does next."""
        own = self.acknowledged, self.stopped, self._wanted_spares
        return self.pipeline.state(), self.pipeline.sealed_entries, self._changes.state(), own

    def check_invariants(self) -> None:
        """Raise AssertionError unless the machines' states can be."""
        self.pipeline.check_invariants()
        self._changes.check_invariants()

    @property
    def committing(self) -> bool:
        """Whether a change of the ensemble is being committed."""
        return self._changes.phase is Phase.COMMITTING

    @property
    def can_roll(self) -> bool:
        """Whether no other change of the ensemble is under way."""
        return self._changes.phase is Phase.IDLE

    def roll(self, ensemble: Sequence[BookieId]) -> Outcome:
        """Begin a new fragment on these bookies (rule U6)."""
        begun = self._changes.begin_roll()
        assert begun, "no other change is under way"
        return Outcome(commit=self._changes.on_placement(ensemble))

    def begin_attempt(self, attempt: int) -> None:
        """What it sends is told apart from what another one has sent before."""
        self._attempt = attempt

    # --- steps --------------------------------------------------------------------------------------------------------

    def steps(self) -> list[Step]:
        """What may happen of its own accord."""
        if self.stopped:
            return []
        leaving = self.pipeline.change.replaced if self.pipeline.change is not None else 0
        held = [at for at in range(self._quorums.ensemble_size) if not self.pipeline.is_ready(at)]
        steps = [Step(_READY, position) for position in held if not leaving >> position & 1]
        if self._changes.phase is Phase.SEEKING:
            steps += [Step(_FINDS, found) for found in self._findings()]
        elif self._spares and self._would_change():
            steps.append(_CONSIDERS)
        return steps

    def rename(self, step: Step, renaming: Renaming) -> Step:
        """The same step under other names."""
        if isinstance(step.argument, int):
            return Step(step.name, renaming.position(step.argument))
        assert isinstance(step.argument, tuple)
        moved = [(renaming.position(position), renaming.bookies[spare]) for position, spare in step.argument]
        return Step(step.name, tuple(sorted(moved)))

    def on_step(self, step: Step) -> Outcome:
        """One of :meth:`steps`."""
        if step == _CONSIDERS:
            wanted = self._changes.poll(0.0)
            assert wanted is not None, "a bookie is due for replacement"
            self._wanted_spares = wanted.positions
            return Outcome()
        if step.name == _READY:
            assert isinstance(step.argument, int)
            self._changes.on_connected(step.argument)
            return Outcome(self._perform(self.pipeline.on_ready(step.argument)))
        assert isinstance(step.argument, tuple)
        self._wanted_spares = ()
        spares = {position: bookie_id(spare) for position, spare in step.argument}
        return Outcome(commit=self._changes.on_spares(spares, 0.0))

    @property
    def _spares(self) -> list[int]:
        return [server for server in self._bookies if bookie_id(server) not in self._changes.ensemble]

    def _would_change(self) -> bool:
        """Whether a bookie is due for replacement; asked of a copy, because asking begins the change."""
        return isinstance(self.copy()._changes.poll(0.0), FindSpares)

    def _findings(self) -> Iterator[tuple[tuple[int, int], ...]]:
        """Every way in which spares may be found for some of the bookies to be replaced."""
        for mask in range(1, 1 << len(self._wanted_spares)):
            positions = [position for at, position in enumerate(self._wanted_spares) if mask >> at & 1]
            for spares in permutations(self._spares, len(positions)):
                yield tuple(zip(positions, spares, strict=True))

    # --- events -------------------------------------------------------------------------------------------------------

    def push(self, entries: Sequence[bytes], *, length_after: int) -> tuple[Message, ...]:
        """Sealed entries, as one run."""
        size = sum(map(len, entries))
        return self._perform(self.pipeline.push(entries, sealed_bytes=size, length_after=length_after, now=0.0))

    def on_answer(self, message: Message) -> Outcome:
        """What became of an add."""
        place, answer = message.tag, message.answer
        assert isinstance(place, Place)
        position, number, tenure = place.position, place.number, place.tenure
        if self.stopped:
            return Outcome()
        if isinstance(answer, Done):
            self._end_trouble(position, tenure)
            return Outcome(self._perform(self.pipeline.on_confirmed(position, number, tenure)))
        self.pipeline.on_failed(position, number, tenure)
        return self._trouble(position, tenure, answer)

    def _end_trouble(self, position: int, tenure: int) -> None:
        if tenure == self.pipeline.tenure(position) and self._changes.troubled_since:
            self._changes.on_confirmed(position)

    def _trouble(self, position: int, tenure: int, answer: Answer | None) -> Outcome:
        """What a bookie was sent is not done."""
        if tenure != self.pipeline.tenure(position):
            return Outcome()
        if answer == Refused(FENCED):
            return Outcome(failure=FENCED)
        if isinstance(answer, Failed):
            self._changes.on_lost(position, 0.0)
        else:
            self._changes.on_refused(position, 0.0)
        return Outcome()

    def on_committed(self) -> tuple[Message, ...]:
        """The change of the ensemble stands; the new bookies, which were reached before, take requests."""
        fresh = self.pipeline.change.replaced if self.pipeline.change is not None else 0
        sent = self._perform(self._changes.on_committed(0.0))
        for position in range(self._quorums.ensemble_size):
            if fresh >> position & 1 and not self.stopped:
                self._reached(position)
                sent += self._perform(self.pipeline.on_ready(position))
        return sent

    def _reached(self, position: int) -> None:
        """There is a connection to the new bookie at the position."""
        self._changes.on_connected(position)

    def on_commit_refused(self) -> None:
        """The change of the ensemble will never stand; it is over with this writer."""
        self.stop()
        self.pipeline._change = None
        self._changes.phase, self._changes._next_ensemble = Phase.IDLE, self._changes.ensemble

    def stop(self) -> None:
        """Acknowledge and send nothing from now on."""
        self.stopped = True
        self.pipeline.stop()

    def _perform(self, effects: Sequence[Effect]) -> tuple[Message, ...]:
        sent: list[Message] = []
        for effect in effects:
            if isinstance(effect, Acknowledge):
                assert effect.first == self.acknowledged + 1, "in order"
                self.acknowledged = effect.last
            else:
                assert isinstance(effect, Send), "nothing is deferred here"
                server = bookie_index(self._changes.ensemble[effect.position])
                add = Add(
                    tuple(self.pipeline.share(effect.run, effect.position)), recovery=self._recovery, term=self._term
                )
                place = Place(effect.position, effect.run.number, effect.tenure, self._attempt)
                sent.append(Message(self._client, server, place, add))
        return tuple(sent)
