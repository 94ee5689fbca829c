"""The client of the model that takes a stream over, and then writes: the real machines
(octavo.client.recover.takeover, with its recovery), with what their shell does around them."""

from dataclasses import dataclass
from typing import Self

from model.engine.exchange import (
    STORE,
    Add,
    Change,
    Changed,
    Conflict,
    Message,
    Place,
    Read,
    ReadLac,
    id_text,
    metadata_text,
)
from model.engine.renaming import Renaming
from model.ledgers.client import Event, Step
from model.ledgers.machine_recovery import MachineRecovery
from model.streams.writer import StreamWriter
from octavo.client.recover.takeover import Phase, Takeover
from octavo.client.write.ensemble_changes import Commit
from octavo.metadata.ledger.decisions import Settled
from octavo.metadata.stream.changes import StreamChange, StreamDecision
from octavo.metadata.stream.model import StreamFragment, StreamMetadata
from octavo.protocol.ids import BookieId
from octavo.protocol.places import place
from octavo.protocol.quorums import Quorums


@dataclass(frozen=True, slots=True)
class ReadRoot:
    """The stream is read, as if that were a change that is always settled."""

    def decide(self, current: StreamMetadata) -> StreamDecision:
        return Settled()


class Taker(MachineRecovery):
    """Takes over once, from the term that it reads first, and then writes ``entries`` entries and rests. If it
    ``only_ends`` the term, it puts the stream at rest without a term of its own."""

    make_writer: type[StreamWriter] = StreamWriter

    def __init__(
        self,
        quorums: Quorums,
        *,
        bookies: int,
        horizon: int,
        entries: int = 1,
        reads_ahead: int | None = None,
        reads_at_once: bool = False,
        stays: bool = False,
        only_ends: bool = False,
        index: int = 0,
        writes_as: int | None = None,
    ) -> None:
        super().__init__(
            quorums, bookies=bookies, horizon=horizon, reads_ahead=reads_ahead, reads_at_once=reads_at_once, index=index
        )
        self.name = f"taker {index}"
        self._entries = entries
        self._stays = stays
        self._only_ends = only_ends
        self._writes_as = writes_as
        self._takeover = Takeover(f"taker {index}", make_recovery=self.make_machine)
        self._writer: StreamWriter | None = None
        self._attempt = 0

    def copy(self) -> Self:
        other = super().copy()
        other._takeover = self._takeover.copy()
        other._machine = other._takeover.recovery
        other._writer = None if self._writer is None else self._writer.copy()
        return other

    def key(self) -> object:
        if self._writer is not None:
            return self._writer.key()
        if self.finished:
            return self._blocked, self._takeover.phase
        return super().key(), self._takeover.state(), self._attempt

    @property
    def writing(self) -> StreamWriter | None:
        """The writer that it has become, for the promises."""
        return self._writer

    @property
    def term(self) -> int:
        return self._takeover.base.term

    @property
    def attempt(self) -> int | None:
        return self._attempt

    @property
    def horizon(self) -> int:
        return place(self.term, self._horizon)

    # --- events -------------------------------------------------------------------------------------------------------

    def begin(self) -> list[Message]:
        return [self._to_store(ReadRoot())]

    def on(self, event: Event) -> list[Message]:
        if self._writer is not None:
            late = isinstance(event, Message) and (
                isinstance(event.request, Read | ReadLac) or (isinstance(event.request, Add) and event.request.recovery)
            )
            return [] if late else self._writer.on(event)
        if isinstance(event, Message) and not isinstance(event.request, Change):
            # What an earlier attempt has asked concerns this one no more: its connections' requests ended with it.
            made = event.tag.attempt if isinstance(event.tag, Place) else event.tag
            if made != self._attempt or self._machine is None:
                return []
        return super().on(event)

    def steps(self) -> list[Step]:
        return super().steps() if self._writer is None else self._writer.steps()

    def rename(self, step: Step, renaming: Renaming) -> Step:
        return super().rename(step, renaming) if self._writer is None else self._writer.rename(step, renaming)

    def _to_store(self, change: StreamChange) -> Message:
        return Message(self.index, STORE, None, Change(change))

    def _settled(self, message: Message) -> list[Message]:
        assert isinstance(message.answer, Changed | Conflict)
        assert isinstance(message.request, Change)
        stream, takeover = message.answer.metadata, self._takeover
        if isinstance(message.request.change, ReadRoot):
            return self._begin(stream)
        if isinstance(message.answer, Conflict):
            return self._refused(message.answer)
        if takeover.phase is Phase.OPENING:
            return self._opened(stream)
        takeover.on_begun(stream)
        return self._begun(stream)

    def _begin(self, stream: StreamMetadata) -> list[Message]:
        begin = self._takeover.begin(stream)
        return self._begun(stream) if begin is None else [self._to_store(begin)]

    def _begun(self, stream: StreamMetadata) -> list[Message]:
        self._base = stream
        self._machine = self._takeover.recovery
        return self._finish() if self._takeover.phase is Phase.ENDED else self._fence_all()

    def _refused(self, answer: Conflict) -> list[Message]:
        assert answer.error is not None, "a stream's change is refused with an error"
        takeover = self._takeover
        takeover.on_refused(answer.error("refused"))
        if takeover.phase is Phase.WITHDRAWN:
            return []
        self._machine, self._replication, self._base = None, None, None
        self._failed, self._busy, self._unwritten = frozenset(), 0, ()
        self._closing = False
        self._attempt += 1
        return self._begin(answer.metadata)

    def _opened(self, stream: StreamMetadata) -> list[Message]:
        if self._only_ends:
            self._takeover.on_laid_to_rest()
            return []
        self._takeover.on_opened(stream)
        self.acknowledges_nothing = False
        return self._become_writer(stream)

    def _become_writer(self, stream: StreamMetadata) -> list[Message]:
        self._writer = self.make_writer(
            stream,
            bookies=self._bookies,
            entries=self._entries,
            stays=self._stays,
            index=self.index,
            writes_as=self._writes_as,
        )
        return self._writer.begin() if self._entries else []

    # --- going on -----------------------------------------------------------------------------------------------------

    def _advance(self) -> list[Message]:
        self._takeover.poll()
        return [] if self._takeover.phase is Phase.WITHDRAWN else super()._advance()

    def _note_change(self, commit: Commit) -> StreamFragment:
        self._takeover.on_ensemble_changed(commit, 0)
        return self._takeover.ended_fragments[-1]

    def _finish(self) -> list[Message]:
        takeover = self._takeover
        takeover.poll()
        if takeover.phase is not Phase.ENDED or self._closing:
            return []
        self._closing = True
        if self._only_ends:
            return [self._to_store(takeover.lay_to_rest())]
        return [self._to_store(takeover.open_term(self.ensemble(), 0))]

    def ensemble(self) -> tuple[BookieId, ...]:
        """Which bookies the next term begins with: those that the last entries were written back to."""
        return self._takeover.ended_fragments[-1].bookies

    # --- for the promises ---------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        if self._writer is not None:
            return self._writer.finished
        return self._blocked is not None or self._takeover.phase in (Phase.WITHDRAWN, Phase.AT_REST)

    @property
    def astray(self) -> str | None:
        """How it goes on although another client has opened a later term (rule T3)."""
        machine, takeover = self._machine, self._takeover
        if machine is None or takeover.phase is not Phase.RECOVERING or machine.later_term is None:
            return None
        return f"{self.name} knows of term {machine.later_term} and recovers term {self.term}"

    @property
    def acknowledged(self) -> int:
        return -1 if self._writer is None else self._writer.acknowledged

    @property
    def may_add(self) -> bool:
        return not self.finished

    def describe(self) -> str:
        if self._writer is not None:
            return f"{self._writer.name}: {self._writer.describe()}"
        if self._blocked is not None:
            return f"is blocked: {self._blocked}"
        phase = self._takeover.phase
        if phase is Phase.RECOVERING and self._machine is not None:
            return f"recovers, from {id_text(self._machine.last_recovered + 1)}"
        base = "" if self._base is None else f" from {metadata_text(self._base)}"
        return f"is {phase.value}{base}"
