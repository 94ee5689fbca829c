"""The writer of the model: the real pipeline and the real rules of ensemble changes, with what their shell does around
them (octavo.client.replication and octavo.client.writer).

No time passes: whatever the shell would wait for may happen at once, or never. A connection that breaks may be taken
for ready again at any moment; a bookie in trouble is due for replacement at once, and considered when the model likes.
"""

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from copy import copy
from itertools import permutations
from typing import Self

from model.client import Client, Event, Step
from model.exchange import (
    FENCED,
    STORE,
    Add,
    Change,
    Changed,
    Conflict,
    Done,
    Failed,
    Message,
    Place,
    Refused,
    WriteLac,
    metadata_text,
)
from model.renaming import Renaming, bookie_id, bookie_index
from model.sealing import length_up_to, sealed, sealed_lac
from octavo.client.ensemble_changes import EnsembleChanges, FindSpares, Phase
from octavo.client.pipeline import Acknowledge, Effect, Pipeline
from octavo.metadata.changes import ChangeEnsemble, CloseLedger
from octavo.metadata.model import LedgerMetadata
from octavo.protocol.quorums import Quorums

_NO_LIMIT = 1 << 20
_ADDS, _TELLS, _CLOSES, _CONSIDERS = map(
    Step, ("adds an entry", "tells its LAC", "closes", "considers an ensemble change")
)
_READY, _FINDS = "takes for ready the bookie at position", "finds spares, by position:"


class PipelineWriter(Client):
    """Writes ``entries`` entries, tells an explicit LAC if it is to, and closes: once all are acknowledged or it has
    failed; if it is impatient, whenever it likes."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        bookies: int,
        entries: int,
        tells_lac: bool = False,
        impatient: bool = False,
        index: int = 0,
    ) -> None:
        super().__init__(index, "writer")
        self._bookies = range(bookies)
        self._wanted = entries
        self._impatient = impatient
        self._metadata = metadata
        self._lac_to_tell = tells_lac
        self._told = -1
        self._failure: str | None = None
        self._stopped = False
        self._closing = False
        self._end: LedgerMetadata | None = None
        self._quorums = Quorums(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        self._pipeline = self.make_pipeline()
        ensemble, never = metadata.last_fragment.bookies, 0.0
        self._changes = EnsembleChanges(
            self._pipeline,
            self._quorums,
            ensemble,
            now=0.0,
            loss_seconds=never,
            delay_seconds=never,
            retry_seconds=never,
        )
        self._wanted_spares: tuple[int, ...] = ()
        for position in range(metadata.ensemble_size):
            self._changes.on_connected(position)
            self._pipeline.on_ready(position)

    def make_pipeline(self) -> Pipeline:
        """The machine; a canary may make another one."""
        return Pipeline(self._quorums, retained_bytes_max=_NO_LIMIT)

    def copy(self) -> Self:
        other = copy(self)
        other._pipeline = pipeline = copy(self._pipeline)
        pipeline._runs = deque(map(copy, pipeline._runs))
        pipeline._cursors = list(pipeline._cursors)
        pipeline._tenures = list(pipeline._tenures)
        pipeline._starts = list(pipeline._starts)
        other._changes = changes = copy(self._changes)
        changes._pipeline = pipeline
        changes._troubled_since = dict(changes._troubled_since)
        return other

    def key(self) -> Hashable:
        bytes_of_runs = tuple(tuple(run.entries) for run in self._pipeline._runs)
        machines = self._pipeline.state(), bytes_of_runs, self._changes.state(), self._wanted_spares
        outcome = self._lac_to_tell, self._told, self._failure, self._stopped, self._closing, self._end
        return machines, self._metadata, outcome

    # --- events -------------------------------------------------------------------------------------------------------

    def begin(self) -> list[Message]:
        return self._add()

    def on(self, event: Event) -> list[Message]:
        if isinstance(event, Step):
            sent = self._step(event)
        elif isinstance(event.request, Change):
            closing = isinstance(event.request.change, CloseLedger)
            sent = self._close_settled(event) if closing else self._change_settled(event)
        else:
            sent = self._answered(event)
        self._pipeline.check_invariants()
        self._changes.check_invariants()
        return sent

    def steps(self) -> list[Step]:
        steps: list[Step] = []
        pipeline, changes = self._pipeline, self._changes
        if not self._stopped:
            leaving = pipeline.change.replaced if pipeline.change is not None else 0
            held = [at for at in range(self._quorums.ensemble_size) if not pipeline.is_ready(at)]
            steps += [Step(_READY, position) for position in held if not leaving >> position & 1]
            if changes.phase is Phase.SEEKING:
                steps += [Step(_FINDS, found) for found in self._findings()]
            elif self._spares and self._would_change():
                steps.append(_CONSIDERS)
            if pipeline.next_entry_id < self._wanted:
                steps.append(_ADDS)
            elif self._lac_to_tell and self._all_acknowledged:
                steps.append(_TELLS)
        if not self._closing and (self._all_acknowledged or self._failure is not None or self._impatient):
            steps.append(_CLOSES)
        return steps

    def rename(self, step: Step, renaming: Renaming) -> Step:
        if isinstance(step.argument, int):
            return Step(step.name, renaming.position(step.argument))
        assert isinstance(step.argument, tuple)
        moved = [(renaming.position(position), renaming.bookies[spare]) for position, spare in step.argument]
        return Step(step.name, tuple(sorted(moved)))

    def _step(self, step: Step) -> list[Message]:
        if step == _ADDS:
            return self._add()
        if step == _TELLS:
            self._lac_to_tell = False
            servers = map(bookie_index, self._metadata.last_fragment.bookies)
            return [Message(None, server, None, WriteLac(sealed_lac(self._told))) for server in servers]
        if step == _CLOSES:
            self._closing = True
            self._stop()
            return self._close_if_settled()
        if step == _CONSIDERS:
            wanted = self._changes.poll(0.0)
            assert wanted is not None, "somebody is due"
            self._wanted_spares = wanted.positions
            return []
        if isinstance(step.argument, int):
            self._changes.on_connected(step.argument)
            return self._perform(self._pipeline.on_ready(step.argument))
        assert isinstance(step.argument, tuple)
        return self._change(dict(step.argument))

    # --- adding -------------------------------------------------------------------------------------------------------

    def _add(self) -> list[Message]:
        entry_id, lac = self._pipeline.next_entry_id, self._pipeline.last_add_confirmed
        entry = sealed(entry_id, -1 if lac is None else lac)
        length = length_up_to(entry_id)
        return self._perform(self._pipeline.push([entry], sealed_bytes=len(entry), length_after=length, now=0.0))

    def _answered(self, message: Message) -> list[Message]:
        place, answer = message.tag, message.answer
        assert isinstance(place, Place)
        position, number, tenure = place.position, place.number, place.tenure
        if self._stopped:
            return []
        if isinstance(answer, Done):
            if tenure == self._pipeline.tenure(position) and self._changes.troubled:
                self._changes.on_confirmed(position)
            return self._perform(self._pipeline.on_confirmed(position, number, tenure))
        self._pipeline.on_failed(position, number, tenure)
        if tenure != self._pipeline.tenure(position):
            return []
        if answer == Refused(FENCED):
            self._fail(FENCED)
        elif isinstance(answer, Failed):
            self._changes.on_lost(position, 0.0)
        else:
            self._changes.on_refused(position, 0.0)
        return []

    def _perform(self, effects: Sequence[Effect]) -> list[Message]:
        sent: list[Message] = []
        for effect in effects:
            if isinstance(effect, Acknowledge):
                assert effect.first == self._told + 1, "in order"
                self._told = effect.last
            else:
                server = bookie_index(self._changes.ensemble[effect.position])
                add = Add(tuple(self._pipeline.share(effect.run, effect.position)), recovery=False)
                place = Place(effect.position, effect.run.number, effect.tenure)
                sent.append(Message(self.index, server, place, add))
        return sent

    @property
    def _all_acknowledged(self) -> bool:
        return self._told == self._wanted - 1

    # --- ensemble changes ---------------------------------------------------------------------------------------------

    @property
    def _spares(self) -> list[int]:
        return [server for server in self._bookies if bookie_id(server) not in self._changes.ensemble]

    def _would_change(self) -> bool:
        """Whether somebody is due for replacement; asked of a copy, as asking begins the change."""
        return isinstance(self.copy()._changes.poll(0.0), FindSpares)

    def _findings(self) -> Iterator[tuple[tuple[int, int], ...]]:
        """Every way in which spares may be found for some of those who are to be replaced."""
        for mask in range(1, 1 << len(self._wanted_spares)):
            positions = [position for at, position in enumerate(self._wanted_spares) if mask >> at & 1]
            for spares in permutations(self._spares, len(positions)):
                yield tuple(zip(positions, spares, strict=True))

    def _change(self, spares: dict[int, int]) -> list[Message]:
        self._wanted_spares = ()
        commit = self._changes.on_spares({position: bookie_id(spare) for position, spare in spares.items()}, 0.0)
        if commit is None:
            return []
        base = self._metadata.last_fragment
        change = ChangeEnsemble(base, commit.first_entry_id, commit.ensemble, commit.length_before)
        return [Message(self.index, STORE, None, Change(change))]

    def _change_settled(self, message: Message) -> list[Message]:
        assert isinstance(message.answer, Changed | Conflict)
        sent: list[Message] = []
        if isinstance(message.answer, Conflict):
            self._fail(f"ledger is {message.answer.metadata.state.name}")
            self._pipeline._change = None
            self._changes.phase, self._changes._next_ensemble = Phase.IDLE, self._changes.ensemble
        else:
            self._metadata = message.answer.metadata
            fresh = self._pipeline.change.replaced if self._pipeline.change is not None else 0
            sent += self._perform(self._changes.on_committed(0.0))
            for position in range(self._quorums.ensemble_size):
                if fresh >> position & 1 and not self._stopped:
                    self._changes.on_connected(position)
                    sent += self._perform(self._pipeline.on_ready(position))
        return sent + (self._close_if_settled() if self._closing else [])

    # --- the end ------------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        self._stopped = True
        self._pipeline.stop()

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._stop()

    def _close_if_settled(self) -> list[Message]:
        """Close once no change of the metadata is under way."""
        if self._changes.phase is Phase.COMMITTING:
            return []
        lac, length = self._pipeline.last_add_confirmed, self._pipeline.length
        return [Message(self.index, STORE, None, Change(CloseLedger(self._metadata.last_fragment, lac, length)))]

    def _close_settled(self, message: Message) -> list[Message]:
        assert isinstance(message.answer, Changed | Conflict)
        self._end = message.answer.metadata
        if isinstance(message.answer, Conflict):
            self._failure = self._failure or f"ledger is {self._end.state.name}"
        return []

    # --- for the promises ---------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self._end is not None

    @property
    def acknowledged(self) -> int:
        return self._told

    @property
    def did_not_happen_from(self) -> int | None:
        if self._failure is not None:
            return self._pipeline.highest_sent + 1
        return self._told + 1 if self._end is not None else None

    def undone(self, metadata: LedgerMetadata) -> str | None:
        return None if self.finished else f"the writer waits: {self.describe()}"

    def describe(self) -> str:
        parts = ["has acknowledged " + (f"up to entry {self._told}" if self._told >= 0 else "nothing")]
        if self._pipeline.change is not None:
            parts.append(f"changes its ensemble from entry {self._pipeline.change.first_entry_id}")
        if self._failure is not None:
            parts.append(f"failed: {self._failure}")
        if self._end is not None:
            parts.append(f"found {metadata_text(self._end)}")
        return ", ".join(parts)
