"""The stored form of a log that is a chain: its list of segments. Pure.

A *segment* is one ledger of the log. The position of an entry is the first position of its segment plus its entry id
(rule P1). A segment's first position is known once the segment before it is known to be closed; only the newest segment
may be without. The list is one document, changed by compare-and-set only (rule P4). When it grows long, its oldest
segments move into *pages*: documents that are made before the list names them, and never changed (rule P9).

Ledgers that belong to the log but not to its list are named too, so that none is forgotten when a client crashes:
``making`` has the ledgers that candidates are about to create, ``dropped`` those that are to be deleted.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final, NamedTuple, Self

from octavo.client.log.documents.formats import CHAIN_FORMAT
from octavo.client.log.documents.states import LogState
from octavo.metadata.encoding import FieldReader, decode_object, encode_bytes, encode_object
from octavo.protocol.entries import Digest
from octavo.protocol.errors import InvalidArgumentError, MetadataError
from octavo.protocol.ids import LedgerId
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.quorums import Quorums, quorums_of

TERMS_MAX: Final = 256
"""Terms of which the list tells where they began: more than a log has in the time for which an application asks."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The limits by which the leader of a log drops entries from its front, a whole segment at a time.

    None: this limit does not apply. ``seconds``: segments whose newest entry is older. ``bytes``: the oldest segments
    while the log holds more payload. ``cursors``: nothing at or above the lowest cursor is dropped, whatever the other
    limits say; with no other limit, everything below the lowest cursor is.

    Examples:
        >>> octavo.Retention(seconds=7 * 24 * 3600, cursors=True)
        Retention(seconds=604800, bytes=None, cursors=True)
    """

    seconds: float | None = None
    bytes: int | None = None
    cursors: bool = False

    def __post_init__(self) -> None:
        for name, value, types in (("seconds", self.seconds, (int, float)), ("bytes", self.bytes, (int,))):
            if value is not None and not (type(value) in types and 0 < value < math.inf):
                number = "a number" if float in types else "a whole number"
                raise InvalidArgumentError(
                    f"retention: {name} must be {number} above 0, or None for no limit; not {value!r}"
                )
        if not isinstance(self.cursors, bool):
            raise InvalidArgumentError(f"retention: cursors must be True or False, not {self.cursors!r}")


NO_RETENTION: Final = Retention()
"""Nothing is dropped."""


def check_retention(retention: object) -> None:
    """Raise :class:`InvalidArgumentError` unless it is a :class:`Retention`."""
    if not isinstance(retention, Retention):
        raise InvalidArgumentError(f"retention is an octavo.Retention, not {retention!r}")


class SegmentEnd(NamedTuple):
    """How a closed segment ended."""

    entries: int
    bytes: int
    """Payload bytes."""
    sealed_at_ms: int
    """The time of sealing of its last entry, in milliseconds since 1970; 0 where it is empty."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One ledger of a log."""

    ledger_id: LedgerId
    term: int
    """Of the leader that made it."""
    owner: str
    """The token of the writer that made it: tells one's own segments from a rival's."""
    created_at_ms: int
    first_position: int | None
    """None while the segment before is not known to be closed."""
    end: SegmentEnd | None = None
    """None while this segment is not known to be closed."""

    @property
    def stop_position(self) -> int | None:
        """The position after its last entry; None while that is not known."""
        if self.first_position is None or self.end is None:
            return None
        return self.first_position + self.end.entries

    def to_fields(self) -> list[Any]:
        """The stored form."""
        end = list(self.end) if self.end is not None else None
        return [int(self.ledger_id), self.term, self.owner, self.created_at_ms, self.first_position, end]

    @classmethod
    def from_fields(cls, fields: Any) -> Self:
        """From the stored form. Raises ValueError or TypeError."""
        ledger_id, term, owner, created_at_ms, first_position, end = fields
        if not all(type(n) is int and n >= 0 for n in (ledger_id, term, created_at_ms)) or type(owner) is not str:
            raise ValueError("a segment's fields are of wrong types")
        if first_position is not None and (type(first_position) is not int or first_position < 0):
            raise ValueError("a first position is a number from 0 on")
        if end is not None and not (len(end) == 3 and all(type(n) is int and n >= 0 for n in end)):
            raise ValueError("an end is three numbers from 0 on")
        return cls(
            LedgerId(ledger_id), term, owner, created_at_ms, first_position, None if end is None else SegmentEnd(*end)
        )


@dataclass(frozen=True, slots=True)
class PageReference:
    """A page of older segments, all of them closed, and what must be known of them without reading it."""

    document: str
    segments: int
    first_position: int
    stop_position: int
    bytes: int
    """Payload bytes of all of them."""
    created_at_ms: int
    """When the first of them was made."""
    sealed_at_ms: int
    """The latest time of sealing in it."""

    def to_fields(self) -> list[Any]:
        """The stored form."""
        return [
            *(self.document, self.segments, self.first_position, self.stop_position),
            *(self.bytes, self.created_at_ms, self.sealed_at_ms),
        ]

    @classmethod
    def from_fields(cls, fields: Any) -> Self:
        """From the stored form. Raises ValueError or TypeError."""
        document, *numbers = fields
        if type(document) is not str or len(numbers) != 6 or not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError("a page's fields are of wrong types")
        return cls(document, *numbers)


class Making(NamedTuple):
    """A ledger that a candidate is about to create, or has created, for the log."""

    ledger_id: LedgerId
    owner: str


class Dropped(NamedTuple):
    """A ledger that is to be deleted."""

    ledger_id: LedgerId
    misses: int = 0
    """How often it was looked for and did not exist: its maker may still be about to create it."""


@dataclass(frozen=True, slots=True)
class LogDocument:
    """The list of a log's segments, and what else is agreed on about the log."""

    name: str
    log_id: str
    """Unique for ever: a log created again under the name has another."""
    quorums: Quorums
    digest: Digest
    verifier: bytes
    salt: bytes
    created_at_ms: int
    private: bool = False
    """Its segments are private ledgers (rule S3)."""
    retention: Retention = NO_RETENTION
    state: LogState = LogState.ACTIVE
    first_position: int = 0
    """Readers get nothing below it (rule P7)."""
    term: int = 0
    """The highest term given to a leader; 0 before the first."""
    segments: tuple[Segment, ...] = ()
    pages: tuple[PageReference, ...] = ()
    making: tuple[Making, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    terms: tuple[tuple[int, int], ...] = ()
    """The latest terms with the position at which each began: what tells the fate of an add in doubt (rule P6)."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Positions ``(first, last)`` whose segment was lost and which an operator gave up."""
    dropped_sealed_at_ms: int = 0
    """The latest time of sealing in the segments that were dropped; 0 while none was (rule P10)."""
    counts_ages: bool = False
    """The log was created by a version that counts the ages of entries (rule P19)."""
    unknown: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Fields of a newer version, kept as they are."""

    def __post_init__(self) -> None:
        known_until: int | None = self.pages[-1].stop_position if self.pages else None
        for at, segment in enumerate(self.segments):
            last = at == len(self.segments) - 1
            if segment.first_position is None and (not last or at == 0):
                raise InvalidArgumentError(
                    f"log {self.name}: segment {at} of {len(self.segments)} has no first position"
                )
            first = segment.first_position
            if first is not None and known_until is not None and not self._follows(first, known_until):
                raise InvalidArgumentError(
                    f"log {self.name}: segment {at} begins at {segment.first_position}, the one before ends at "
                    f"{known_until}"
                )
            known_until = segment.stop_position
            if not last and known_until is None and at < len(self.segments) - 2:
                raise InvalidArgumentError(f"log {self.name}: two segments before the newest are not closed")

    def _follows(self, first: int, stop: int) -> bool:
        """Whether a segment may begin at ``first`` after one that ends at ``stop``. Positions between them were lost,
        and truncated (rule P7)."""
        return first == stop or stop < first <= self.first_position

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def newest(self) -> Segment | None:
        """The segment that is written, or was last; None before the first leader."""
        return self.segments[-1] if self.segments else None

    @property
    def known_stop(self) -> int:
        """The position up to which the list by itself tells where every entry is."""
        for segment in reversed(self.segments):
            if segment.stop_position is not None:
                return segment.stop_position
            if segment.first_position is not None:
                return segment.first_position
        return self.pages[-1].stop_position if self.pages else 0

    @property
    def sealed_at_ms(self) -> int:
        """The latest time of sealing in the log, as far as the list says, in milliseconds since 1970: the next
        segment has none before it (rule P10)."""
        times = [self.dropped_sealed_at_ms]
        times += [page.sealed_at_ms for page in self.pages[-1:]]
        times += [segment.end.sealed_at_ms for segment in self.segments if segment.end is not None]
        return max(times)

    def unclosed(self) -> tuple[Segment, ...]:
        """The segments that are not known to be closed: at most the last two, oldest first."""
        return tuple(segment for segment in self.segments if segment.end is None)

    def segment_at(self, position: int) -> Segment | None:
        """The segment of this list (not of its pages) that holds ``position`` or would be the one to hold it; None
        below the first."""
        starts = [s.first_position for s in self.segments if s.first_position is not None]
        at = bisect_right(starts, position) - 1
        # Empty segments share their first position: the last of them is where a position would be.
        return self.segments[at] if at >= 0 else None

    def page_at(self, position: int) -> PageReference | None:
        """The page that holds ``position``."""
        at = bisect_right(self.pages, position, key=lambda page: page.first_position) - 1
        return self.pages[at] if at >= 0 and position < self.pages[at].stop_position else None

    def is_listed(self, ledger_id: LedgerId) -> bool:
        """Whether the list itself (not a page) has the ledger."""
        return any(segment.ledger_id == ledger_id for segment in self.segments)

    # --- changed copies -----------------------------------------------------------------------------------------------

    def with_segment(self, segment: Segment) -> "LogDocument":
        """With one more segment at the end; a new term is noted with the position at which it begins."""
        terms = self.terms
        if segment.term > self.term and segment.first_position is not None:
            terms = (*terms, (segment.term, segment.first_position))[-TERMS_MAX:]
        return replace(self, term=max(self.term, segment.term), terms=terms, segments=(*self.segments, segment))

    def end_of_term(self, term: int) -> int | None:
        """The position after the last entry of ``term``; None while the term is not over, or not known any more."""
        if self.terms and self.terms[0][0] > term + 1:
            return None
        return next((first for later, first in self.terms if later > term), None)

    def with_ends(self, ends: Mapping[LedgerId, SegmentEnd]) -> "LogDocument":
        """With the ends of closed segments noted, and the first positions that follow from them. An end that stands
        here already is not changed."""
        segments: list[Segment] = []
        stop: int | None = self.pages[-1].stop_position if self.pages else None
        for segment in self.segments:
            if segment.first_position is None and stop is not None:
                segment = replace(segment, first_position=stop)  # noqa: PLW2901 - the same segment, better known
            end = ends.get(segment.ledger_id)
            if segment.end is None and end is not None:
                segment = replace(segment, end=end)  # noqa: PLW2901
            segments.append(segment)
            stop = segment.stop_position
        return replace(self, segments=tuple(segments))

    def without_trailing_empty_segments(self) -> "LogDocument":
        """Closed segments at the end that hold nothing are dropped, so that leaders that die before their first add do
        not fill the list."""
        kept, dropped = list(self.segments), list(self.dropped)
        while kept and kept[-1].end is not None and kept[-1].end.entries == 0 and len(kept) > 1:
            dropped.append(Dropped(kept.pop().ledger_id))
        return replace(self, segments=tuple(kept), dropped=tuple(dropped))

    # --- the stored form ----------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The stored form (:mod:`octavo.metadata.encoding`)."""
        fields: dict[str, Any] = {
            **self.unknown,
            "name": self.name,
            "log_id": self.log_id,
            "quorums": [self.quorums.ensemble_size, self.quorums.write_quorum, self.quorums.ack_quorum],
            "digest": self.digest.value,
            "verifier": encode_bytes(self.verifier),
            "salt": encode_bytes(self.salt),
            "created_at_ms": self.created_at_ms,
            "retention": [self.retention.seconds, self.retention.bytes, self.retention.cursors],
            "state": self.state.value,
            "first_position": self.first_position,
            "term": self.term,
            "segments": [segment.to_fields() for segment in self.segments],
            "pages": [page.to_fields() for page in self.pages],
            "making": [[int(making.ledger_id), making.owner] for making in self.making],
            "dropped": [[int(dropped.ledger_id), dropped.misses] for dropped in self.dropped],
            "terms": [list(term) for term in self.terms],
            "gaps": [list(gap) for gap in self.gaps],
        }
        if self.private:
            fields["private"] = True
        if self.dropped_sealed_at_ms:
            fields["dropped_sealed_at_ms"] = self.dropped_sealed_at_ms
        if self.counts_ages:
            fields["counts_ages"] = True
        return encode_object(fields, format_number=CHAIN_FORMAT)


_KNOWN_FIELDS: Final = frozenset(
    {
        *("name", "log_id", "quorums", "digest", "verifier", "salt", "created_at_ms", "retention", "state"),
        *("first_position", "term", "segments", "pages", "making", "dropped", "terms", "gaps", "private"),
        *("dropped_sealed_at_ms", "counts_ages"),
    }
)


def decode_log(value: bytes, name: str) -> LogDocument:
    """The log called ``name`` from its stored form. Raises :class:`MetadataError` when it cannot be understood."""
    return log_from(decode_object(value, what=f"log {name}", format_max=CHAIN_FORMAT), name)


def log_from(fields: Mapping[str, Any], name: str) -> LogDocument:
    """The log in decoded fields of :data:`CHAIN_FORMAT`. Raises as :func:`decode_log`."""
    what = f"log {name}"
    reader = FieldReader(fields, what)
    try:
        seconds, byte_limit, cursors = reader.get("retention", list)
        return LogDocument(
            name=reader.get("name", str),
            log_id=reader.get("log_id", str),
            quorums=quorums_of(*reader.get("quorums", list)),
            digest=Digest(reader.get("digest", str)),
            verifier=reader.bytes_of("verifier"),
            salt=reader.bytes_of("salt"),
            created_at_ms=reader.get("created_at_ms", int),
            private=reader.added_later("private", bool, False),
            retention=Retention(seconds, byte_limit, bool(cursors)),
            state=LogState(reader.get("state", str)),
            first_position=reader.get("first_position", int),
            term=reader.get("term", int),
            segments=tuple(map(Segment.from_fields, reader.get("segments", list))),
            pages=tuple(map(PageReference.from_fields, reader.get("pages", list))),
            making=tuple(Making(LedgerId(ledger_id), owner) for ledger_id, owner in reader.get("making", list)),
            dropped=tuple(Dropped(LedgerId(ledger_id), misses) for ledger_id, misses in reader.get("dropped", list)),
            terms=tuple((term, first) for term, first in reader.get("terms", list)),
            gaps=tuple((first, last) for first, last in reader.get("gaps", list)),
            dropped_sealed_at_ms=reader.added_later("dropped_sealed_at_ms", int, 0),
            counts_ages=reader.added_later("counts_ages", bool, False),
            unknown={name: value for name, value in fields.items() if name not in _KNOWN_FIELDS},
        )
    except MetadataError:
        raise
    except (ValueError, TypeError) as error:
        raise reader.damaged(str(error)) from error


def encode_page(segments: Sequence[Segment]) -> bytes:
    """The stored form of a page."""
    return encode_object({"segments": [segment.to_fields() for segment in segments]}, format_number=CHAIN_FORMAT)


def decode_page(value: bytes, what: str) -> tuple[Segment, ...]:
    """The segments of a page. Raises :class:`MetadataError`."""
    reader = FieldReader(decode_object(value, what=what, format_max=CHAIN_FORMAT), what)
    try:
        return tuple(map(Segment.from_fields, reader.get("segments", list)))
    except (ValueError, TypeError) as error:
        raise reader.damaged(str(error)) from error


def page_reference(document: str, segments: Sequence[Segment]) -> PageReference:
    """The reference in the list to a page of these segments, all of them closed."""
    first, last = segments[0], segments[-1]
    assert first.first_position is not None, "pages hold closed segments"
    assert last.stop_position is not None, "pages hold closed segments"
    ends = [segment.end for segment in segments if segment.end is not None]
    return PageReference(
        document,
        len(segments),
        first.first_position,
        last.stop_position,
        sum(end.bytes for end in ends),
        first.created_at_ms,
        max(end.sealed_at_ms for end in ends),
    )
