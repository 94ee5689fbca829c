"""Lists of segments, to try decisions on."""

from dataclasses import replace

from octavo.client.log.documents.chain import LogDocument, Making, Retention, Segment, SegmentEnd
from octavo.protocol.entries import Digest
from octavo.protocol.ids import LedgerId
from octavo.protocol.quorums import quorums_of


def empty_log(**fields: object) -> LogDocument:
    """A log without a leader so far."""
    document = LogDocument(
        name="orders",
        log_id="id-1",
        quorums=quorums_of(3, 3, 2),
        digest=Digest.CRC32C,
        verifier=b"v" * 32,
        salt=b"s" * 16,
        created_at_ms=1000,
    )
    return replace(document, **fields)  # type: ignore[arg-type]


def ended(entries: int, size: int = 100, sealed_at_ms: int = 0) -> SegmentEnd:
    """The end of a segment of ``entries`` entries of ``size`` bytes."""
    return SegmentEnd(entries, entries * size, sealed_at_ms)


def log_of(*entries: int | None, retention: Retention | None = None, newest_known: bool = True) -> LogDocument:
    """A log with a segment for each number: ledger 10 + i, term i + 1, that many entries; None: not closed. Segment i
    was made and sealed at (i + 1) * 1000 ms."""
    segments: list[Segment] = []
    first: int | None = 0
    for at, count in enumerate(entries):
        at_ms = (at + 1) * 1000
        end = None if count is None else ended(count, sealed_at_ms=at_ms if count else 0)
        segments.append(Segment(LedgerId(10 + at), at + 1, f"owner-{at + 1}", at_ms, first, end))
        first = None if first is None or count is None else first + count
    if not newest_known:
        segments[-1] = replace(segments[-1], first_position=None)
    terms = tuple((s.term, s.first_position) for s in segments if s.first_position is not None)
    return empty_log(segments=tuple(segments), term=len(entries), terms=terms, retention=retention or Retention())


def making(document: LogDocument, ledger_id: int, owner: str = "me") -> LogDocument:
    """With a candidate's ledger noted."""
    return replace(document, making=(*document.making, Making(LedgerId(ledger_id), owner)))
