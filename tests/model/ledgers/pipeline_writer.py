"""The writer of the model: the real machines (:mod:`model.ledgers.replication`), in what octavo.client.write.writer
does around them."""

from collections.abc import Hashable
from copy import copy
from typing import Any, Self

from model.engine.exchange import STORE, Change, Changed, Conflict, Message, WriteLac, id_text, metadata_text
from model.engine.renaming import Renaming, bookie_index
from model.engine.sealing import length_up_to, sealed, sealed_lac
from model.ledgers.client import Client, Event, Step
from model.ledgers.replication import Outcome, Replication
from octavo.client.write.ensemble_changes import Commit
from octavo.metadata.ledger.changes import ChangeEnsemble, CloseLedger, MetadataChange
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.stream.changes import Rest, StreamChange
from octavo.protocol.quorums import Quorums

_ADDS, _SENDS_LAC, _CLOSES = Step("adds an entry"), Step("sends its LAC"), Step("closes")


class PipelineWriter(Client):
    """Writes ``entries`` entries, sends an explicit LAC if ``sends_lac``, and closes once all are acknowledged or it
    has failed. If ``impatient``, it may close at any time."""

    make_replication: type[Replication] = Replication
    first_entry_id = 0

    def __init__(
        self,
        metadata: Any,
        *,
        bookies: int,
        entries: int,
        sends_lac: bool = False,
        impatient: bool = False,
        index: int = 0,
    ) -> None:
        super().__init__(index, "writer")
        self._wanted = self.first_entry_id + entries
        """The id behind the last entry to be written."""
        self._impatient = impatient
        self._metadata = metadata
        self._lac_to_send = sends_lac
        self._failure: str | None = None
        self._closing = False
        self._end: LedgerMetadata | None = None
        self._replication = self._made_replication(bookies)

    def _made_replication(self, bookies: int) -> Replication:
        metadata = self._metadata
        quorums = Quorums(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        return self._replication_kind()(self.index, quorums, metadata.last_fragment.bookies, bookies=bookies)

    def _replication_kind(self) -> type[Replication]:
        return self.make_replication

    def copy(self) -> Self:
        other = copy(self)
        other._replication = self._replication.copy()
        return other

    def key(self) -> Hashable:
        outcome = self._lac_to_send, self._failure, self._closing, self._end
        return self._replication.key(), self._metadata, outcome

    # --- events -------------------------------------------------------------------------------------------------------

    def begin(self) -> list[Message]:
        return self._add()

    def on(self, event: Event) -> list[Message]:
        if isinstance(event, Step):
            sent = self._step(event)
        elif isinstance(event.request, Change):
            closing = isinstance(event.request.change, CloseLedger | Rest)
            sent = self._close_settled(event) if closing else self._change_settled(event)
        else:
            sent = self._handle_outcome(self._replication.on_answer(event))
        self._replication.check_invariants()
        return sent

    def steps(self) -> list[Step]:
        steps = self._replication.steps()
        if not self._replication.stopped:
            if self._replication.pipeline.next_entry_id < self._wanted:
                steps.append(_ADDS)
            elif self._lac_to_send and self._all_acknowledged:
                steps.append(_SENDS_LAC)
        if not self._closing and (self._all_acknowledged or self._failure is not None or self._impatient):
            steps.append(_CLOSES)
        return steps

    def rename(self, step: Step, renaming: Renaming) -> Step:
        return self._replication.rename(step, renaming)

    def _step(self, step: Step) -> list[Message]:
        if step == _ADDS:
            return self._add()
        if step == _SENDS_LAC:
            self._lac_to_send = False
            servers = map(bookie_index, self._metadata.last_fragment.bookies)
            return [Message(None, server, None, WriteLac(sealed_lac(self.acknowledged))) for server in servers]
        if step == _CLOSES:
            self._closing = True
            self._replication.stop()
            return self._close_if_settled()
        return self._handle_outcome(self._replication.on_step(step))

    def _add(self) -> list[Message]:
        """Seal once, with the current LAC, and push (rule W2)."""
        pipeline = self._replication.pipeline
        entry_id, lac = pipeline.next_entry_id, pipeline.last_add_confirmed
        entry = self._sealed(entry_id, -1 if lac is None else lac)
        return list(self._replication.push([entry], length_after=self._length_up_to(entry_id)))

    def _sealed(self, entry_id: int, last_add_confirmed: int) -> bytes:
        return sealed(entry_id, last_add_confirmed)

    def _length_up_to(self, entry_id: int) -> int:
        return length_up_to(entry_id)

    def _handle_outcome(self, outcome: Outcome) -> list[Message]:
        sent = list(outcome.sent)
        if outcome.failure is not None:
            self._fail(outcome.failure)
        if outcome.commit is not None:
            sent.append(self._change(outcome.commit))
        return sent

    def _change(self, commit: Commit) -> Message:
        return Message(self.index, STORE, None, Change(self._ensemble_change(commit)))

    def _ensemble_change(self, commit: Commit) -> MetadataChange | StreamChange:
        base = self._metadata.last_fragment
        return ChangeEnsemble(base, commit.first_entry_id, commit.ensemble, commit.length_before)

    def _change_settled(self, message: Message) -> list[Message]:
        assert isinstance(message.answer, Changed | Conflict)
        sent: list[Message] = []
        if isinstance(message.answer, Conflict):
            self._fail(f"ledger is {message.answer.metadata.state.name}")
            self._replication.on_commit_refused()
        else:
            self._metadata = message.answer.metadata
            sent += self._replication.on_committed()
        return sent + (self._close_if_settled() if self._closing else [])

    # --- the end ------------------------------------------------------------------------------------------------------

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._replication.stop()

    def _close_if_settled(self) -> list[Message]:
        """Close once no change of the metadata is under way."""
        if self._replication.committing:
            return []
        return [Message(self.index, STORE, None, Change(self._end_change()))]

    def _end_change(self) -> MetadataChange | StreamChange:
        pipeline = self._replication.pipeline
        return CloseLedger(self._metadata.last_fragment, pipeline.last_add_confirmed, pipeline.length)

    def _close_settled(self, message: Message) -> list[Message]:
        assert isinstance(message.answer, Changed | Conflict)
        self._end = message.answer.metadata
        if isinstance(message.answer, Conflict):
            self._failure = self._failure or f"ledger is {self._end.state.name}"
        return []

    # --- for the promises ---------------------------------------------------------------------------------------------

    @property
    def _all_acknowledged(self) -> bool:
        return self.acknowledged == self._wanted - 1

    @property
    def finished(self) -> bool:
        return self._end is not None

    @property
    def acknowledged(self) -> int:
        return self._replication.acknowledged

    @property
    def may_add(self) -> bool:
        return not self._replication.stopped

    @property
    def may_use_lacs(self) -> bool:
        return False

    @property
    def did_not_happen_from(self) -> int | None:
        if self._failure is not None:
            return self._replication.pipeline.highest_sent + 1
        return self.acknowledged + 1 if self._end is not None else None

    def unfinished_work(self, metadata: LedgerMetadata) -> str | None:
        return None if self.finished else f"the writer waits: {self.describe()}"

    def describe(self) -> str:
        nothing = self.acknowledged < self.first_entry_id
        parts = ["has acknowledged " + ("nothing" if nothing else f"up to entry {id_text(self.acknowledged)}")]
        change = self._replication.pipeline.change
        if change is not None:
            parts.append(f"changes its ensemble from entry {change.first_entry_id}")
        if self._failure is not None:
            parts.append(f"failed: {self._failure}")
        if self._end is not None:
            parts.append(f"found {metadata_text(self._end)}")
        return ", ".join(parts)
