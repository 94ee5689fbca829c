"""Reading a journal back after a crash or after damage (rule B3).

:class:`JournalScan` is a state machine without I/O: a generator that yields effects (read, deliver, report damage) and
is sent the bytes it requested. It reads the log from a start position, place by place. :data:`DECISIONS` gives the
action at a place from two facts:

* the *sight*: what is found there;
* the *follower*: the strongest evidence after it. Each record contains the position up to which the journal was known
  to be synced when it was written. A later valid record with a position beyond this place proves that the place had
  been synced, so that acknowledgements may depend on it: if it is bad now, it is corrupt. Without proof it was never
  acknowledged: pages of one unsynced group reach the disk in any order, so that valid records may follow a bad one even
  in an ordinary torn tail.

A group is written into pages of its own, after all earlier groups have been synced, and no page is written twice. So a
bad place before a valid record of a *later* group is always proven corrupt, and a torn tail is always a part of the
last group written, which was never acknowledged. One case remains that no journal can decide alone: damage to the last
group of all, after it was synced and acknowledged, looks like a torn write of it.

Evidence counts within one incarnation only. The next incarnation may have started from content of the page cache that
never reached the disk; its records prove nothing about earlier ones.

The follower is determined only where it matters: a clean log is read once, a torn or damaged one at most twice. Memory
is bounded by one chunk or one record, whichever is larger. Corruption is a reported value; the scan never raises for
it, and continues with the next valid record.
"""

import enum
from collections.abc import Generator, Mapping
from pathlib import PurePath
from typing import Final

from octavo.bookie.journal.format import (
    DATA_START,
    KIND_SEGMENT_END,
    PAGE_BYTES,
    RECORD_ALIGNMENT,
    JournalCorruption,
    JournalPosition,
    MoreNeeded,
    NoRecord,
    Record,
    SegmentHeader,
    decode_header,
    examine,
    find_candidate,
    segment_name,
)
from octavo.protocol.light_dataclass import dataclass

CHUNK_BYTES = 1024 * 1024
"""Bytes read at a time: large enough for the disk's full speed, checked in well under a millisecond."""


class Sight(enum.Enum):
    """The finding of the scan at a point of the journal. The last three concern a whole segment."""

    RECORD = "a valid record"
    SEGMENT_END = "a valid record that ends the segment"
    BLANK = "no record of this segment, where a group may start"
    DAMAGED = "a record with a wrong length or checksum, or none inside a group"
    UNREADABLE = "the disk returns an error"
    CUT_OFF = "the file is shorter than its header says"
    HEADER_BAD = "both copies of the segment's header are bad"
    MISSING = "the segment is missing but a later one exists"


class Follower(enum.Enum):
    """The strongest evidence after a place, within its incarnation."""

    NOTHING = "no valid record"
    UNPROVING = "valid records, none of which proves that this place had been synced"
    PROVING = "a valid record that proves that this place had been synced"


class Decision(enum.Enum):
    """The action of the scan at a place."""

    DELIVER = "deliver the record and continue after it"
    NEXT_SEGMENT = "continue with the next segment"
    END = "the incarnation's log ends here, cleanly"
    TORN = "the incarnation's log ends here; nothing after it was acknowledged"
    CORRUPT = "report it and continue with the next valid record"


_N, _U, _P = Follower.NOTHING, Follower.UNPROVING, Follower.PROVING

DECISIONS: Final[Mapping[tuple[Sight, Follower], Decision]] = {
    (Sight.RECORD, _N): Decision.DELIVER,
    (Sight.RECORD, _U): Decision.DELIVER,
    (Sight.RECORD, _P): Decision.DELIVER,
    (Sight.SEGMENT_END, _N): Decision.NEXT_SEGMENT,
    (Sight.SEGMENT_END, _U): Decision.NEXT_SEGMENT,
    (Sight.SEGMENT_END, _P): Decision.NEXT_SEGMENT,
    # Nothing was ever written here: the ordinary end of a log.
    (Sight.BLANK, _N): Decision.END,
    # The first page of an unsynced group did not reach the disk and a later one did.
    (Sight.BLANK, _U): Decision.TORN,
    # A synced record is gone: the disk lost a write or misplaced it.
    (Sight.BLANK, _P): Decision.CORRUPT,
    (Sight.DAMAGED, _N): Decision.TORN,
    (Sight.DAMAGED, _U): Decision.TORN,
    (Sight.DAMAGED, _P): Decision.CORRUPT,
    # The content of an unreadable place is unknown, so it must be assumed to have been acknowledged.
    (Sight.UNREADABLE, _N): Decision.CORRUPT,
    (Sight.UNREADABLE, _U): Decision.CORRUPT,
    (Sight.UNREADABLE, _P): Decision.CORRUPT,
    # Size and header were durable before the file got its name, and the name before any record in it was acknowledged:
    # no crash causes these.
    (Sight.CUT_OFF, _N): Decision.CORRUPT,
    (Sight.CUT_OFF, _U): Decision.CORRUPT,
    (Sight.CUT_OFF, _P): Decision.CORRUPT,
    (Sight.HEADER_BAD, _N): Decision.CORRUPT,
    (Sight.HEADER_BAD, _U): Decision.CORRUPT,
    (Sight.HEADER_BAD, _P): Decision.CORRUPT,
    (Sight.MISSING, _N): Decision.CORRUPT,
    (Sight.MISSING, _U): Decision.CORRUPT,
    (Sight.MISSING, _P): Decision.CORRUPT,
}
"""The decision for every combination of sight and follower."""


@dataclass(frozen=True, slots=True)
class ReadBytes:
    """Request for bytes of a segment's file: send fewer than ``size`` only at its end, None on an I/O error."""

    segment: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class DeliverRecord:
    """A record to deliver to the caller of the replay. Records come in log order, each once."""

    record: Record


@dataclass(frozen=True, slots=True)
class ReportCorruption:
    """Damage to record: acknowledged data may be lost (rule B3)."""

    corruption: JournalCorruption


Effect = ReadBytes | DeliverRecord | ReportCorruption


@dataclass(frozen=True, slots=True)
class ScanEnd:
    """Where the log ends (None: there is no log), and whether a torn tail follows."""

    position: JournalPosition | None
    torn: bool


@dataclass(slots=True)
class _Window:
    """The part of one segment that is in memory."""

    segment: int = -1
    offset: int = 0
    data: bytes = b""


@dataclass(slots=True)
class _Evidence:
    """Evidence from the valid records of an incarnation after its first bad place."""

    proven_synced: JournalPosition | None = None
    last_record: JournalPosition | None = None

    def follower(self, place: JournalPosition) -> Follower:
        if self.proven_synced is not None and place < self.proven_synced:
            return Follower.PROVING
        if self.last_record is not None and place < self.last_record:
            return Follower.UNPROVING
        return Follower.NOTHING


class JournalScan:
    """One scan of a journal. ``files`` maps segment numbers to file sizes in bytes, None for a file that cannot be
    opened.

    ``start``: records that end at or before it are not delivered (None: start with the oldest existing segment).
    """

    def __init__(self, directory: PurePath, files: Mapping[int, int | None], start: JournalPosition | None) -> None:
        self._directory = directory
        self._start = start
        wanted = [number for number in files if start is None or number >= start.segment]
        first = start.segment if start is not None else min(wanted, default=0)
        self._numbers = range(first, max(wanted, default=first) + 1) if wanted or start else range(0)
        self._files = {number: files[number] for number in wanted}
        self._headers: dict[int, SegmentHeader] = {}
        self._window = _Window()
        self._evidence: dict[int, _Evidence] = {}
        self._unreadable: set[tuple[int, int]] = set()
        self._ended: set[int] = set()
        self._end = start
        self._torn = False

    def run(self) -> Generator[Effect, bytes | None, ScanEnd]:
        """Perform the scan. Raises UnsupportedJournalError for the journal of a newer version."""
        for number in self._numbers:
            yield from self._read_header(number)
        for number in self._numbers:
            header = self._headers.get(number)
            if header is not None and header.incarnation not in self._ended:
                yield from self._scan_segment(header)
        return ScanEnd(self._end, self._torn)

    # --- segments -----------------------------------------------------------------------------------------------

    def _read_header(self, number: int) -> Generator[Effect, bytes | None]:
        if number not in self._files:
            yield self._corrupt(Sight.MISSING, number, 0, None)
            return
        if self._files[number] is None:
            yield self._corrupt(Sight.UNREADABLE, number, 0, None)
            return
        header = decode_header((yield from self._read_pages(number, 0, DATA_START)), number)
        if header is None:
            yield self._corrupt(Sight.HEADER_BAD, number, 0, None)
            return
        self._headers[number] = header
        size = self._files[number]
        assert size is not None
        if size < header.segment_bytes:
            yield self._corrupt(Sight.CUT_OFF, number, size, header.segment_bytes - size)

    def _stop(self, header: SegmentHeader) -> int:
        """Where the segment's data end: at the end of the file, or where a later incarnation cut the log."""
        size = self._files[header.segment]
        assert size is not None
        stop = min(size, header.segment_bytes)
        for later in self._headers.values():
            if later.incarnation <= header.incarnation:
                continue
            if later.cut is None or later.cut.segment < header.segment:
                return DATA_START
            if later.cut.segment == header.segment:
                stop = min(stop, later.cut.offset)
        return stop

    def _scan_segment(self, header: SegmentHeader) -> Generator[Effect, bytes | None]:
        stop = self._stop(header)
        offset = DATA_START
        if self._start is not None and self._start.segment == header.segment:
            offset = max(offset, self._start.offset)
        self._torn = False
        inside_group = False
        while offset < stop:
            place = JournalPosition(header.segment, offset)
            found = yield from self._inspect(header, offset, stop)
            if isinstance(found, Record):
                sight = Sight.SEGMENT_END if found.kind == KIND_SEGMENT_END else Sight.RECORD
                follower = Follower.NOTHING
                inside_group = header.marks_groups and not found.ends_group
            else:
                # The record before this place says that its group goes on here.
                sight = Sight.DAMAGED if found is Sight.BLANK and inside_group else found
                follower = (yield from self._gather_evidence(header, offset)).follower(place)
            decision = DECISIONS[sight, follower]
            if isinstance(found, Record):
                if decision is Decision.DELIVER:
                    yield DeliverRecord(found)
                self._end = found.end
                if decision is Decision.NEXT_SEGMENT:
                    return
                offset = found.end.offset
            elif decision is Decision.CORRUPT:
                following = yield from self._next_record(header, offset + RECORD_ALIGNMENT, stop)
                offset_next = following.offset if following else stop
                if sight is not Sight.UNREADABLE:  # the failed read has reported the page already
                    yield self._corrupt(sight, header.segment, offset, offset_next - offset if following else None)
                self._end = JournalPosition(header.segment, offset_next)
                offset = offset_next
            else:
                self._end, self._torn = place, decision is Decision.TORN
                self._ended.add(header.incarnation)
                return

    # --- places -------------------------------------------------------------------------------------------------

    def _inspect(
        self, header: SegmentHeader, offset: int, stop: int
    ) -> Generator[Effect, bytes | None, Record | Sight]:
        wanted = 0
        while True:
            yield from self._load(header.segment, offset, wanted, stop)
            window = self._window
            found = examine(window.data, window.offset, offset, header, stop)
            if isinstance(found, Record):
                return found
            if isinstance(found, MoreNeeded):
                wanted = found.size
                continue
            if (header.segment, offset // PAGE_BYTES) in self._unreadable:
                return Sight.UNREADABLE
            return Sight.BLANK if found is NoRecord.BLANK else Sight.DAMAGED

    def _next_record(
        self, header: SegmentHeader, offset: int, stop: int
    ) -> Generator[Effect, bytes | None, Record | None]:
        """The first valid record that starts at or after ``offset``, found by searching."""
        while offset < stop:
            yield from self._load(header.segment, offset, 0, stop)
            window = self._window
            candidate = find_candidate(window.data, window.offset, offset, header)
            if candidate is None:
                # No record's seed straddles two windows: records and windows are aligned.
                offset = window.offset + len(window.data)
                continue
            found = yield from self._inspect(header, candidate, stop)
            if isinstance(found, Record):
                return found
            offset = candidate + RECORD_ALIGNMENT
        return None

    def _gather_evidence(self, header: SegmentHeader, offset: int) -> Generator[Effect, bytes | None, _Evidence]:
        """Evidence from the incarnation's records after its first bad place. It holds for later places too, because a
        record never claims more than what precedes it."""
        evidence = self._evidence.get(header.incarnation)
        if evidence is not None:
            return evidence
        evidence = self._evidence[header.incarnation] = _Evidence()
        for number in range(header.segment, self._numbers.stop):
            later = self._headers.get(number)
            if later is None or later.incarnation != header.incarnation:
                continue
            stop = self._stop(later)
            at = offset if number == header.segment else DATA_START
            while record := (yield from self._next_record(later, at, stop)):
                if evidence.proven_synced is None or record.synced > evidence.proven_synced:
                    evidence.proven_synced = record.synced
                evidence.last_record = JournalPosition(number, record.offset)
                at = record.end.offset
        return evidence

    # --- bytes --------------------------------------------------------------------------------------------------

    def _load(self, number: int, offset: int, size: int, stop: int) -> Generator[Effect, bytes | None]:
        """Load at least ``size`` bytes from ``offset`` on (up to ``stop``) into the window, or some bytes when it is
        0."""
        window = self._window
        window_stop = window.offset + len(window.data)
        needed_stop = min(offset + max(size, RECORD_ALIGNMENT), stop)
        if window.segment == number and window.offset <= offset and needed_stop <= window_stop:
            return
        wanted = min(max(size, CHUNK_BYTES), stop - offset)
        data = yield from self._read_pages(number, offset, wanted)
        # A file that has shrunk since reads as blank.
        self._window = _Window(number, offset, data.ljust(wanted, b"\0"))

    def _read_pages(self, number: int, offset: int, size: int) -> Generator[Effect, bytes | None, bytes]:
        """Bytes of a segment, with zeros for unreadable pages, which are added to ``_unreadable`` and reported once
        each."""
        data = yield ReadBytes(number, offset, size)
        if data is not None:
            return data
        parts = []
        stop = offset + size
        while offset < stop:
            page = offset // PAGE_BYTES
            part_stop = min(stop, (page + 1) * PAGE_BYTES)
            part = yield ReadBytes(number, offset, part_stop - offset)
            if part is None:
                part = bytes(part_stop - offset)
                if (number, page) not in self._unreadable:
                    self._unreadable.add((number, page))
                    yield self._corrupt(Sight.UNREADABLE, number, page * PAGE_BYTES, PAGE_BYTES)
            parts.append(part)
            offset = part_stop
        return b"".join(parts)

    def _corrupt(self, sight: Sight, number: int, offset: int, size: int | None) -> ReportCorruption:
        path, unreadable = self._directory / segment_name(number), sight is Sight.UNREADABLE
        return ReportCorruption(JournalCorruption(path, offset, size, sight.value, unreadable))
