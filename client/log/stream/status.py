"""The status of a log in the metadata of its stream, for people and their tools."""

from octavo.client.log.documents.terms import log_term
from octavo.client.log.seam.status import SegmentStatus
from octavo.metadata.stream.model import StreamFragment, StreamMetadata, position_in


def known_stop_of_stream(stream: StreamMetadata) -> int:
    """The position up to which the metadata by themselves tell where every entry is."""
    end = stream.end_position
    return stream.last_fragment.first_position if end is None else end + 1


def segments_of_stream(stream: StreamMetadata) -> tuple[SegmentStatus, ...]:
    """The fragments of the stream, without those in pages, as the segments of its log.

    A fragment that ended without entries is no segment: it holds nothing, and the next leader removes it. A leader that
    has added nothing leaves one behind, also the one that seals the log or takes it over.
    """
    segments = []
    for at, fragment in enumerate(stream.fragments):
        following = stream.fragments[at + 1] if at + 1 < len(stream.fragments) else None
        stop = following.first_position if following is not None else None
        length = following.length_before if following is not None else stream.length
        if following is None and stream.end_position is not None:
            stop = stream.end_position + 1
        if stop == fragment.first_position:
            continue
        segments.append(
            SegmentStatus(
                ledger_id=stream.ledger_id,
                first_position=fragment.first_position,
                entries=None if stop is None else stop - fragment.first_position,
                bytes=None if stop is None else length - fragment.length_before,
                term=log_term(fragment.first_term),
                created_at_ms=fragment.opened_at_ms,
                quorums=fragment.quorums,
                owed=_positions_owed(stream, fragment),
                bookies=fragment.bookies,
            )
        )
    return tuple(segments)


def _positions_owed(stream: StreamMetadata, fragment: StreamFragment) -> tuple[int, int] | None:
    debt = stream.debt_of(fragment)
    return None if debt.is_empty else (position_in(fragment, debt.first), position_in(fragment, debt.last))
