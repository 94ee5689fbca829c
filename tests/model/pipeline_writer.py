"""The writer of the model: the real pipeline, with what its shell does around it.

It pushes its entries one by one, and closes when it likes once all are acknowledged or it has failed. A bookie whose
requests fail is held until it takes requests again, which may be at any time.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from copy import copy
from typing import Self

from model.client import Client, Event, Step
from model.exchange import (
    STORE,
    Add,
    Change,
    Changed,
    Conflict,
    Done,
    Failed,
    Message,
    Refused,
    WriteLac,
    metadata_text,
)
from model.renaming import BOOKIE_NAMES, Renaming, bookie_index
from model.sealing import length_up_to, sealed, sealed_lac
from octavo.client.pipeline import Acknowledge, Effect, Pipeline
from octavo.metadata.changes import CloseLedger
from octavo.metadata.model import LedgerMetadata
from octavo.protocol.ids import BookieId
from octavo.protocol.quorums import Quorums

_NO_LIMIT = 1 << 20


class PipelineWriter(Client):
    """Writes ``entries`` entries, tells an explicit LAC if it is to, and closes if it is to."""

    def __init__(
        self, metadata: LedgerMetadata, *, entries: int, closes: bool = True, tells_lac: bool = False, index: int = 0
    ) -> None:
        super().__init__(index, "writer")
        self._quorums = Quorums(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        self._metadata = metadata
        self._entries = entries
        self._closes = closes
        self._tells_lac = tells_lac
        self._told_lac = -1
        self._told = -1
        self._failure: str | None = None
        self._closing = False
        self._end: LedgerMetadata | None = None
        self._pipeline = Pipeline(self._quorums, retained_bytes_max=_NO_LIMIT)
        for position in range(metadata.ensemble_size):
            self._pipeline.on_ready(position)

    def copy(self) -> Self:
        other = copy(self)
        pipeline = other._pipeline = copy(self._pipeline)
        pipeline._runs = deque(map(copy, pipeline._runs))
        pipeline._cursors = list(pipeline._cursors)
        return other

    def key(self) -> Hashable:
        sealed_runs = tuple(tuple(run.entries) for run in self._pipeline._runs)
        outcome = self._told_lac, self._told, self._failure, self._closing, self._end
        return self._pipeline.state(), sealed_runs, self._metadata, *outcome

    def begin(self) -> list[Message]:
        return self._add()

    # --- events -------------------------------------------------------------------------------------------------------

    def on(self, event: Event) -> list[Message]:
        if isinstance(event, Step):
            sent = self._step(event)
        elif isinstance(event.request, Change):
            sent = self._settled(event)
        else:
            sent = self._answered(event)
        self._pipeline.check_invariants()
        return sent

    def steps(self) -> list[Step]:
        steps: list[Step] = []
        if self._works:
            held = [at for at in range(self._quorums.ensemble_size) if not self._pipeline.is_ready(at)]
            steps += [Step("takes the bookie for ready at position", position) for position in held]
            if self._pipeline.next_entry_id < self._entries:
                steps.append(Step("adds an entry"))
            elif self._tells_lac and self._told_lac < self._told == self._entries - 1:
                steps.append(Step("tells its LAC"))
        idle = self._failure is not None or self._told == self._entries - 1
        if self._closes and idle and not self._closing and self._end is None:
            steps.append(Step("closes"))
        return steps

    def rename(self, step: Step, renaming: Renaming) -> Step:
        assert isinstance(step.argument, int)
        return Step(step.name, renaming.position(step.argument))

    @property
    def _works(self) -> bool:
        return self._failure is None and not self._closing and self._end is None

    def _step(self, step: Step) -> list[Message]:
        if isinstance(step.argument, int):
            return self._perform(self._pipeline.on_ready(step.argument))
        if step.name == "adds an entry":
            return self._add()
        if step.name == "tells its LAC":
            self._told_lac = self._told
            servers = map(bookie_index, self._metadata.last_fragment.bookies)
            return [Message(None, server, None, WriteLac(sealed_lac(self._told))) for server in servers]
        self._closing = True
        self._pipeline.stop()
        lac, length = self._pipeline.last_add_confirmed, self._pipeline.length
        return [Message(self.index, STORE, None, Change(CloseLedger(self._metadata.last_fragment, lac, length)))]

    def _add(self) -> list[Message]:
        entry_id, lac = self._pipeline.next_entry_id, self._pipeline.last_add_confirmed
        entry = sealed(entry_id, -1 if lac is None else lac)
        length = length_up_to(entry_id)
        return self._perform(self._pipeline.push([entry], sealed_bytes=len(entry), length_after=length, now=0.0))

    def _answered(self, message: Message) -> list[Message]:
        if not self._works:
            return []
        position = self._metadata.last_fragment.bookies.index(BookieId(BOOKIE_NAMES[message.server]))
        assert isinstance(message.tag, int)
        if isinstance(message.answer, Done):
            return self._perform(self._pipeline.on_confirmed(position, message.tag, 0))
        if isinstance(message.answer, Failed):
            self._pipeline.on_failed(position, message.tag, 0)
            return []
        assert isinstance(message.answer, Refused)
        self._failure = message.answer.reason
        self._pipeline.stop()
        return []

    def _settled(self, message: Message) -> list[Message]:
        self._closing = False
        assert isinstance(message.answer, Changed | Conflict)
        self._metadata = self._end = message.answer.metadata
        if isinstance(message.answer, Conflict):
            self._failure = self._failure or "another client has it"
        return []

    def _perform(self, effects: Sequence[Effect]) -> list[Message]:
        sent: list[Message] = []
        for effect in effects:
            if isinstance(effect, Acknowledge):
                assert effect.first == self._told + 1, "in order"
                self._told = effect.last
            else:
                server = bookie_index(self._metadata.last_fragment.bookies[effect.position])
                add = Add(tuple(self._pipeline.share(effect.run, effect.position)), recovery=False)
                sent.append(Message(self.index, server, effect.run.number, add))
        return sent

    # --- for the promises ---------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return not self._works and not self._closing

    @property
    def acknowledged(self) -> int:
        return self._told

    def undone(self, metadata: LedgerMetadata) -> str | None:
        if self._works and self._told < self._entries - 1:
            return f"the writer waits for entry {self._told + 1}"
        return "the writer waits for its end" if self._closing else None

    def describe(self) -> str:
        told = "nothing" if self._told < 0 else f"up to entry {self._told}"
        end = "" if self._end is None else f", found {metadata_text(self._end)}"
        return f"has acknowledged {told}" + (f", failed: {self._failure}" if self._failure else "") + end
