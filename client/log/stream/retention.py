"""Which positions a stream drops from its front. Pure (rules U7 and P8).

As :mod:`octavo.client.log.chain.retention`, for logs whose entries are in one stream. Age and bytes drop whole
fragments: a fragment is too old when all that lies before the next one is; :mod:`octavo.client.log.ages.ages` counts
that. What was consumed is dropped exactly. The last fragment is never dropped.

The metadata tell of a page what its first fragment is like. If the cut lies within a page, that page must be read once,
and the decision made again with it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from octavo.client.log.documents.chain import Retention
from octavo.metadata.stream.model import StreamFragment, StreamMetadata
from octavo.metadata.stream.page_reference import PageReference


class StreamCut(NamedTuple):
    """Where a stream may be truncated."""

    position: int
    """Everything below it may go; the start of the stream where nothing may."""
    page: PageReference | None = None
    """The page within which the exact cut lies; None if the position is exact."""


def stream_retention_cut(
    stream: StreamMetadata,
    retention: Retention,
    *,
    old_stop: int | None,
    length: int,
    cursors: Mapping[str, int] | None,
    part: StreamMetadata | None = None,
) -> StreamCut:
    """The position below which retention lets entries go.

    ``old_stop``: everything at a place below it is for certain older than the limit (rule P19); None: nothing is.
    ``length``: the payload bytes of all positions ever, as far as is known. ``cursors``: as for :func:`retention_cut`.
    ``part``: the page that an earlier decision on the same metadata has asked for.
    """
    if retention.cursors and cursors is None:
        return StreamCut(stream.start)  # no consumer has begun
    lowest = min(cursors.values()) if retention.cursors and cursors else None
    if retention.seconds is None and retention.bytes is None:
        # Only what was consumed goes, which idle cursors do not say.
        return StreamCut(stream.start if lowest is None else _bounded(stream, lowest))
    pieces = _pieces(stream, part)
    cuts = [StreamCut(stream.start)]
    if retention.seconds is not None and old_stop is not None:
        # All that lies before the beginning of each of these is too old.
        old = sum(1 for piece in pieces if piece.first_entry_id <= old_stop)
        if old:
            cuts.append(StreamCut(pieces[old - 1].first_position, _page(pieces[old - 1])))
    if retention.bytes is not None:
        # At the beginning of each of these the stream still holds too much.
        dropped = sum(1 for piece in pieces if length - piece.length_before > retention.bytes)
        if dropped:
            page = _page(pieces[dropped - 1])
            after = dropped - 1 if page is not None else min(dropped, len(pieces) - 1)
            cuts.append(StreamCut(pieces[after].first_position, page))
    # Of two cuts that begin a page the one that lies within it is the later one.
    cut = max(cuts, key=lambda cut: (max(cut.position, stream.start), cut.page is not None))
    if lowest is not None and lowest <= cut.position:
        return StreamCut(_bounded(stream, lowest))
    return StreamCut(_bounded(stream, cut.position), cut.page if part is None else None)


def _page(piece: PageReference | StreamFragment) -> PageReference | None:
    return piece if isinstance(piece, PageReference) else None


def _pieces(stream: StreamMetadata, part: StreamMetadata | None) -> Sequence[PageReference | StreamFragment]:
    """The pages and the fragments of the tail, in order; of a page that was read its fragments."""
    pieces: list[PageReference | StreamFragment] = []
    for page in stream.pages:
        is_read = part is not None and part.last_entry_id == page.last_entry_id
        pieces += part.fragments if is_read and part is not None else (page,)
    return [*pieces, *stream.fragments]


def _bounded(stream: StreamMetadata, position: int) -> int:
    return max(stream.start, min(position, stream.last_fragment.first_position))
