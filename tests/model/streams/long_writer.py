"""A writer of a stream that goes on in the next term, and begins fragments that no failure has asked for."""

from dataclasses import replace
from typing import Any

from model.engine.exchange import FENCED, STORE, Change, Changed, Conflict, Message, Place
from model.ledgers.client import Event, Step
from model.streams.writer import StreamWriter
from octavo.metadata.stream.changes import RenewTerm, TermEnd
from octavo.metadata.stream.model import StreamMetadata
from octavo.protocol.places import place

RENEWS, ROLLS = Step("renews its term"), Step("rolls")


class LongWriter(StreamWriter):
    """Renews its term ``renewals`` times, at any moment at which nothing is pending (rule T11), and rolls ``rolls``
    times onto the bookies that it has (rule U6)."""

    renewals = 0
    rolls = 0

    def __init__(self, stream: StreamMetadata, **given: Any) -> None:
        super().__init__(stream, **given)
        self._bookies = given["bookies"]
        self._renewed = self._rolled = 0
        self._renewing = False

    def key(self) -> object:
        return super().key(), self.term, self._wanted, self._renewed, self._rolled, self._renewing

    def steps(self) -> list[Step]:
        if self._renewing:
            return []
        steps, replication = super().steps(), self._replication
        if self._over or self._closing or replication.stopped or replication.committing:
            return steps
        if self._renewed < self.renewals and not replication.pipeline.pending:
            steps.append(RENEWS)
        holds = self.acknowledged >= self._metadata.last_fragment.first_entry_id
        if self._rolled < self.rolls and holds and replication.can_roll:
            steps.append(ROLLS)
        return steps

    def _step(self, step: Step) -> list[Message]:
        if step == RENEWS:
            return self._renew()
        if step == ROLLS:
            self._rolled += 1
            return self._handle_outcome(self._replication.roll(self._metadata.last_fragment.bookies))
        return super()._step(step)

    def _renew(self) -> list[Message]:
        """From choosing the end until this is settled, nothing is sent or acknowledged."""
        self._renewing = True
        self._replication.stop()
        return [Message(self.index, STORE, None, Change(self._renewal()))]

    def _renewal(self) -> RenewTerm:
        base, pipeline = self._metadata.last_fragment, self._replication.pipeline
        assert pipeline.last_add_confirmed is not None, "the ids of a term are above 0"
        end = TermEnd(pipeline.last_add_confirmed, pipeline.length)
        return RenewTerm(
            base, end, f"{self.owner}, renewed", replace(base, opened_at_ms=0, leader_term=base.first_term)
        )

    def on(self, event: Event) -> list[Message]:
        if isinstance(event, Message):
            if isinstance(event.tag, Place) and event.tag.attempt != self._renewed:
                return []  # an answer to an add of an earlier term, whose connection is another one
            if isinstance(event.request, Change) and isinstance(event.request.change, RenewTerm):
                return self._renewal_settled(event)
        return super().on(event)

    def _renewal_settled(self, message: Message) -> list[Message]:
        assert isinstance(message.answer, Changed | Conflict)
        self._renewing = False
        if isinstance(message.answer, Conflict):
            self._fail(FENCED)
        else:
            assert isinstance(message.answer.metadata, StreamMetadata)
            self._begin_term(message.answer.metadata)
        return []

    def _begin_term(self, stream: StreamMetadata) -> None:
        left = self._wanted - self._replication.pipeline.next_entry_id
        self._renewed += 1
        self.ended_terms += ((self.term, self.acknowledged),)
        self._metadata, self.term, self.owner = stream, stream.term, stream.owner
        self.first_entry_id = place(stream.term, 0)
        self._wanted = self.first_entry_id + left
        self._length_before = stream.last_fragment.length_before
        self.first_position = stream.last_fragment.first_position
        self._replication = self._made_replication(self._bookies)
        self._replication.begin_attempt(self._renewed)
        self.name = f"writer of term {self.term}"


class Renewing(LongWriter):
    """Renews its term once."""

    renewals = 1


class Rolling(LongWriter):
    """Rolls once."""

    rolls = 1


class RenewingAndRolling(LongWriter):
    """Renews its term and rolls, each once, in any order."""

    renewals = rolls = 1
