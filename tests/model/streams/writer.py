"""The writer of one term of a stream: the real machines, with what the shell of a stream's writer does around them.

Every writer writes payloads of its own, so that two writers of one place show. A writer whose term is over stops; one
that has written everything puts the stream at rest.
"""

from functools import cache

from model.engine.exchange import FENCED, Message
from model.engine.sealing import sealer
from model.ledgers.client import Step
from model.ledgers.pipeline_writer import PipelineWriter
from model.ledgers.replication import Replication
from octavo.client.write.ensemble_changes import Commit
from octavo.metadata.stream.changes import ChangeFragment, Rest, StreamChange, TermEnd
from octavo.metadata.stream.model import StreamMetadata, position_in
from octavo.protocol.ids import EntryId
from octavo.protocol.places import offset_of, place


def payload_of(writer: int, offset: int) -> bytes:
    """What a writer writes at an offset of its term. Lengths differ, so that a wrong cumulative length shows."""
    return bytes([ord("A") + writer]) * (1 + writer + 4 * offset)


@cache
def sealed_at(entry_id: int, writer: int, last_add_confirmed: int, length_before: int) -> bytes:
    """The entry of a writer at a place."""
    return sealer.seal(
        EntryId(entry_id),
        [payload_of(writer, offset_of(entry_id))],
        last_add_confirmed=EntryId(last_add_confirmed),
        length=length_before,
        sealed_at_ms=0,
    )[0]


class StreamWriter(PipelineWriter):
    """Writes ``entries`` entries in the current term of ``stream``, and rests unless it ``stays``."""

    def __init__(
        self,
        stream: StreamMetadata,
        *,
        bookies: int,
        entries: int,
        stays: bool = False,
        index: int = 0,
        writes_as: int | None = None,
    ) -> None:
        """``writes_as``: the number of its payloads; by default its index."""
        self._writes_as = index if writes_as is None else writes_as
        self.term = stream.term
        self.owner = stream.owner
        self.first_entry_id = place(self.term, 0)
        self._length_before = stream.last_fragment.length_before
        self.first_position = stream.last_fragment.first_position
        self._stays = stays
        self._over = False
        self.ended_terms: tuple[tuple[int, int], ...] = ()
        """Terms that it has renewed, with the end of each."""
        super().__init__(stream, bookies=bookies, entries=entries, index=index)
        self.name = f"writer of term {self.term}"

    def _made_replication(self, bookies: int) -> Replication:
        fragment = self._metadata.last_fragment
        return self._replication_kind()(
            self.index,
            fragment.quorums,
            fragment.bookies,
            bookies=bookies,
            term=self.term,
            first_entry_id=self.first_entry_id,
            length=self._length_before,
        )

    def key(self) -> object:
        return super().key(), self._over

    @property
    def writing(self) -> "StreamWriter | None":
        """Itself, for the promises."""
        return self

    def steps(self) -> list[Step]:
        if self._over:
            return []
        return [step for step in super().steps() if not (self._stays and step.name == "closes")]

    def _sealed(self, entry_id: int, last_add_confirmed: int) -> bytes:
        before = self._length_up_to(entry_id - 1)
        return sealed_at(entry_id, self._writes_as, last_add_confirmed, before)

    def _length_up_to(self, entry_id: int) -> int:
        own = range(entry_id - self.first_entry_id + 1)
        return self._length_before + sum(len(payload_of(self._writes_as, offset)) for offset in own)

    def _ensemble_change(self, commit: Commit) -> StreamChange:
        base = self._metadata.last_fragment
        position = position_in(base, commit.first_entry_id)
        fragment = type(base)(
            first_entry_id=commit.first_entry_id,
            first_position=position,
            bookies=commit.ensemble,
            write_quorum=base.write_quorum,
            ack_quorum=base.ack_quorum,
            length_before=commit.length_before,
            opened_at_ms=0,
        )
        return ChangeFragment(base, fragment)

    def _end_change(self) -> StreamChange:
        pipeline = self._replication.pipeline
        assert pipeline.last_add_confirmed is not None, "the ids of a term are above 0"
        return Rest(self._metadata.last_fragment, TermEnd(pipeline.last_add_confirmed, pipeline.length))

    def _fail(self, reason: str) -> None:
        super()._fail(reason)
        # Only the takeover decides now where the term ends (rule T10).
        self._over = self._over or reason == FENCED or self._replication.committing

    def _close_settled(self, message: Message) -> list[Message]:
        sent = super()._close_settled(message)
        self._over = True
        return sent

    @property
    def finished(self) -> bool:
        return self._over or (self._stays and self._all_acknowledged)

    @property
    def found_fenced(self) -> bool:
        """Whether a bookie told it that its term is over."""
        return self._failure == FENCED

    @property
    def ended_at(self) -> int | None:
        """The end that it reported to its caller, once the stream is at rest."""
        return self.acknowledged if self._end is not None and self._failure is None else None

    @property
    def did_not_happen_from(self) -> int | None:
        if self._failure is None and self._end is None:
            return None
        return self._replication.pipeline.highest_sent + 1 if self._failure is not None else self.acknowledged + 1
