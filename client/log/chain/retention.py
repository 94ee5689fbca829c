"""Which positions a log drops from its front. Pure (rule P8).

What is old is not decided here: :mod:`octavo.client.log.ages.ages` counts it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from octavo.client.log.documents.chain import LogDocument


class Piece(NamedTuple):
    """A page or a segment that may be dropped: everything below ``stop`` goes with it."""

    stop: int
    bytes: int
    newest_ms: int
    """When its newest entry was sealed, by the leader's clock. No decision depends on it."""


def retention_cut(document: LogDocument, *, old_stop: int | None, cursors: Mapping[str, int] | None) -> int:
    """The position below which the log's retention lets entries go; its first position where nothing goes.

    ``old_stop``: everything below it is for certain older than the limit (rule P19); None: nothing is.
    ``cursors`` are the positions of the cursors that hold entries back: none if all are idle, and None if the log has
    no cursor. Then no consumer has begun, and everything is held back. Whole segments (or pages of segments) go, from
    the front; the segments that a candidate fences never do.
    """
    retention = document.retention
    if retention.seconds is None and retention.bytes is None and not retention.cursors:
        return document.first_position
    pieces = pieces_of(document)
    cut = document.first_position
    kept_bytes = sum(piece.bytes for piece in pieces) + _bytes_of_last(document)
    for piece in pieces:
        too_old = retention.seconds is not None and old_stop is not None and piece.stop <= old_stop
        too_many = retention.bytes is not None and kept_bytes > retention.bytes
        consumed = retention.seconds is None and retention.bytes is None
        if not (too_old or too_many or consumed):
            break
        if retention.cursors and _held_back(piece.stop, cursors, consumed=consumed):
            break
        cut = max(cut, piece.stop)
        kept_bytes -= piece.bytes
    return cut


def _held_back(stop: int, cursors: Mapping[str, int] | None, *, consumed: bool) -> bool:
    """Whether entries below ``stop`` are kept for consumers. ``consumed``: they may go only because they were consumed,
    which idle cursors do not say."""
    if not cursors:
        return cursors is None or consumed
    return min(cursors.values()) < stop


def pieces_of(document: LogDocument) -> Sequence[Piece]:
    """The pages and segments of the list that may be dropped, in order."""
    pieces = [Piece(page.stop_position, page.bytes, page.sealed_at_ms) for page in document.pages]
    for segment in document.segments[:-2]:
        stop, end = segment.stop_position, segment.end
        if stop is None or end is None:
            break
        # An empty segment is as old as its making.
        pieces.append(Piece(stop, end.bytes, end.sealed_at_ms or segment.created_at_ms))
    return pieces


def _bytes_of_last(document: LogDocument) -> int:
    return sum(segment.end.bytes for segment in document.segments[-2:] if segment.end is not None)
