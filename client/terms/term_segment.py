"""A stream that is written as a log: the log's writer brings adds in runs, and keeps their futures itself.

What arrives during a renewal waits here, and goes out in the next term, at the positions that follow.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from octavo.client.terms.term_writer import TermWriter
from octavo.client.write.copies.writer import RecordedCopiesWriter, RequiredCopiesWriter
from octavo.client.write.segment_writer import SegmentWriter
from octavo.client.write.writer_life import WriterState
from octavo.metadata.ledger.debts import FullCopies
from octavo.metadata.stream.model import StreamMetadata
from octavo.protocol.errors import OctavoError, UnderReplicatedError


def _ignore(_entries: int, _payload_bytes: int) -> None:
    """Nothing waits for copies."""


class TermSegment(SegmentWriter, TermWriter):
    """See the module. ``on_full(entries, payload_bytes)`` is told of entries that have all of their copies, where these
    are required (rule G2)."""

    requires_copies = False

    def __init__(self, *arguments: Any, on_full: Callable[[int, int], None] = _ignore, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._report_full = on_full
        self._waiting: list[Sequence[bytes]] = []

    def position_of(self, entry_id: int) -> int:
        """The position of a place of the present term."""
        return entry_id + self._position_shift

    def begin_watching(self) -> None:
        """Notice from now on, also while nothing is added, that the term is over."""
        if self._write_path is None:
            self._set_up_write_path()

    def push(self, payloads: Sequence[bytes]) -> None:
        if not self._holds and self._pipeline.next_entry_id < self._renewal_place:
            super().push(payloads)
        else:
            self._waiting.append(payloads)
            self._begin_renewal()

    def _send_waiting(self) -> None:
        self.begin_watching()
        waiting, self._waiting = self._waiting, []
        for payloads in waiting:
            self.push(payloads)

    async def wait_copies(self, seconds: float) -> None:
        """Wait for so long, at most, until every acknowledged entry has the copies that it requires."""

    def lacking_copies(self) -> UnderReplicatedError | None:
        """Why the stream cannot be put at rest for lack of copies that are required; None if it can, or if the writer
        has failed."""
        return None


class RecordedTermSegment(RecordedCopiesWriter, TermSegment):
    """Of a stream that records missing copies: putting it at rest waits for them (rule G4). A roll and a renewal wait
    for nothing, because adds would; they record what is short."""


class RequiredTermSegment(RequiredCopiesWriter, TermSegment):
    """Of a stream that requires all copies (rules G2 to G4). A roll begins at LAFR + 1. A renewal waits until
    everything that was sent has all of its copies; one that is to get a bookie back gives up after
    ``full_copies_patience_seconds``, and adds go on in the present term."""

    requires_copies = True

    def _on_acknowledged(self, first: int, last: int, payload_bytes: int) -> None:
        SegmentWriter._on_acknowledged(self, first, last, payload_bytes)

    def _on_full(self, entries: int, payload_bytes: int) -> None:
        self._report_full(entries, payload_bytes)

    @property
    def _not_closed(self) -> str:
        return f"stream {self.id} was not closed"

    async def wait_copies(self, seconds: float) -> None:
        books = self._books
        if books is not None:
            await books.wait_full(seconds)

    def lacking_copies(self) -> UnderReplicatedError | None:
        books = self._books
        if books is None or books.pipeline.is_full or self._life.failure is not None:
            return None
        return self._under_replicated(books)

    async def roll(self) -> bool:
        """As the base class. Raises :class:`UnderReplicatedError` where nothing that the present fragment holds has all
        of its copies, or the bookies of the next one did not get those that they need."""
        if await super().roll():
            return True
        books = self._books
        if books is not None and self._holds_acknowledged and self._life.state is WriterState.OPEN:
            raise UnderReplicatedError(
                f"stream {self.id}: no fragment has begun, because the bookies that were to have it could not be given "
                f"the copies that it requires; the writer goes on in the present one. {books.describe_short()}"
            )
        return False

    def _check_roll(self) -> None:
        books = self._books
        assert books is not None, "the present fragment holds something"
        if books.pipeline.first_not_full <= self.stream.last_fragment.first_entry_id:
            raise UnderReplicatedError(
                f"stream {self.id}: no fragment begins behind entries that do not have all copies that it requires: "
                f"{books.describe_short()}"
            )

    async def _wait_for_copies(self) -> OctavoError | None:
        patience = max(self._options.full_copies_patience_seconds, self._options.resend_delay_seconds)
        while (books := self._books) is not None:
            await books.wait_change_settled()
            if self._life.failure is not None:
                raise self._life.failure
            if books.pipeline.is_full:
                break
            await books.copy_to_doubtful()
            full = await books.wait_full(patience)
            if not full and self._pipeline.next_entry_id < self._renewal_place:
                return self._under_replicated(books)  # there is no need to go on in another term
        return None


_KINDS: Final[Mapping[FullCopies | None, type[TermSegment]]] = {
    None: TermSegment,
    FullCopies.RECORDED: RecordedTermSegment,
    FullCopies.REQUIRED: RequiredTermSegment,
}


def segment_kind(stream: StreamMetadata) -> type[TermSegment]:
    """The class of the writer that a log's stream needs."""
    return _KINDS[stream.full_copies]
