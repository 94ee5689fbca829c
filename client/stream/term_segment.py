"""A stream that is written as a log: the log's writer brings adds in runs, and keeps their futures itself.

What arrives during a renewal waits here, and goes out in the next term, at the positions that follow.
"""

from collections.abc import Sequence
from typing import Any

from octavo.client.stream.term_writer import TermWriter
from octavo.client.write.full_copies_writer import RecordedCopiesWriter
from octavo.client.write.segment_writer import SegmentWriter
from octavo.metadata.debts import FullCopies
from octavo.metadata.stream_model import StreamMetadata
from octavo.protocol.errors import LedgerKindError


class TermSegment(SegmentWriter, TermWriter):
    """See the module."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
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


class RecordedTermSegment(RecordedCopiesWriter, TermSegment):
    """Of a stream that keeps books of its copies: laying it to rest waits for them (rule G4). A roll and a renewal wait
    for nothing, because adds would; they record what is short."""


def segment_kind(stream: StreamMetadata) -> type[TermSegment]:
    """The class of the writer that a stream needs. Raises :class:`LedgerKindError` if this version has none."""
    if stream.full_copies is FullCopies.REQUIRED:
        raise LedgerKindError(
            f"stream {stream.ledger_id} requires all copies of its entries, and this version cannot write such streams"
        )
    return TermSegment if stream.full_copies is None else RecordedTermSegment
