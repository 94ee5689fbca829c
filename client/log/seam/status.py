"""The status of a log, for people and their tools."""

from typing import NamedTuple

from octavo.client.log.documents.chain import LogDocument, Retention
from octavo.client.log.documents.cursors import CursorState
from octavo.protocol.ids import BookieId, LedgerId
from octavo.protocol.quorums import Quorums


class SegmentStatus(NamedTuple):
    """One segment, for people.

    Examples:
        >>> (segment,) = (await log.status()).segments
        >>> segment.first_position, segment.entries, segment.term
        (0, 3, 1)
    """

    ledger_id: LedgerId
    first_position: int | None
    entries: int | None
    bytes: int | None
    term: int
    created_at_ms: int
    quorums: Quorums | None
    """With which it is stored; None of a chain's, whose ledgers tell."""
    owed: tuple[int, int] | None = None
    """The positions, first and last, of which copies may be missing as its metadata say (rule I9); None: of none, or no
    books are kept."""
    bookies: tuple[BookieId, ...] = ()
    """That store it; empty of a chain's, whose ledgers tell."""


class LogStatus(NamedTuple):
    """The status of a log, for people and their tools.

    Examples:
        >>> status = await log.status()
        >>> status.layout, status.end, status.leader, status.sealed
        ('stream', 3, None, False)
    """

    name: str
    log_id: str
    layout: str
    first_position: int
    end: int
    term: int
    leader: str | None
    """The name under which the lock is held; None while it is free."""
    retention: Retention
    drops_below: int
    """Retention drops everything below this position next; the first position if nothing is due."""
    segments: tuple[SegmentStatus, ...]
    """Without those in pages."""
    paged_segments: int
    bytes: int
    """Payload of the closed segments."""
    cursors: dict[str, CursorState]
    idle_cursors: frozenset[str]
    """Names of cursors behind the end that no consumer has moved for ``log_cursor_idle_seconds``: retention ignores
    them."""
    gaps: tuple[tuple[int, int], ...]
    quorums: Quorums
    """E, Qw and Qa, with which a leader stores what it adds (``LogWriter.change``)."""
    full_copies: str | None = None
    """``"recorded"`` or ``"required"``; None: no books are kept of its copies."""
    sealed: bool = False
    """Whether the log takes no adds any more (``log.seal``)."""
    clocks: str = ""
    """How the clocks disagree by which the ages of entries are counted, as the client found that counted them last: one
    sentence; empty where they do not. Retention drops nothing that is young by any of them."""


def segments_of(document: LogDocument) -> tuple[SegmentStatus, ...]:
    """The segments of the list, without those in pages, and without those that ended without entries: a leader that
    adds nothing leaves one behind, and truncation or a later leader removes it."""
    return tuple(
        SegmentStatus(
            segment.ledger_id,
            segment.first_position,
            None if segment.end is None else segment.end.entries,
            None if segment.end is None else segment.end.bytes,
            segment.term,
            segment.created_at_ms,
            quorums=None,
        )
        for segment in document.segments
        if segment.end is None or segment.end.entries
    )
