"""Bytes of the journal: segment headers and records. This module is their only writer and reader; docs/disk-format.md
has the tables.

A journal is a sequence of numbered segment files of one fixed size. Each starts with its header, written twice in two
pages and durable before the file gets its name. A segment with two bad headers is therefore damaged; no crash causes
it.

A record starts at a multiple of 8 bytes, with its segment's *seed*: 32 random bits drawn whenever a file becomes a
segment. Bytes left behind in a recycled file, and journal bytes that a client stores as a payload, therefore never look
like a record of this segment; and after damage, the next record is found by searching for four bytes. The checksum
covers seed, segment, offset, every field of the head, and the body. It is CRC-32, not CRC32C: sealed entries end in
their own CRC32C, and over intact entries of given lengths a CRC of the same polynomial has the same value for all
contents. A torn write over a recycled segment can produce such a mixture.

A *group* is the records that one write and one sync make durable together. It starts at a page boundary; the flag of
its last record says that it ends there, and zeros fill its last page. No page of a group is ever written again, so that
an interrupted write can only damage records that have not been acknowledged. Format 1 had no such boundary: groups were
adjacent, and writing one wrote the last page of the one before it again. Its segments are still read.

An *incarnation* is the sequence of segments written by one opening of the journal. Its name is the number of its first
segment. Every header contains it, together with the *cut*: the position at which replay found the end of the log when
the incarnation started. Everything that older incarnations left at or after the cut is void and is never parsed
again."""

import enum
import re
import struct
from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

import google_crc32c
from octavo.protocol.errors import OctavoError
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.limits import FRAME_BYTES_MAX

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # not built for this machine: zlib computes the same checksums, more slowly
    from zlib import crc32

JOURNAL_FORMAT = 2
"""Format number in every new segment header. A reader refuses higher ones instead of guessing."""

FORMAT_ADJACENT_GROUPS = 1
"""The format whose groups are adjacent and not marked. Read, no longer written."""

PAGE_BYTES = 4096
"""The largest unit that a disk writes atomically: groups start at multiples of it. Also the unit in which unreadable
places are reported."""

DATA_START = 2 * PAGE_BYTES
"""Offset of a segment's first record, after two pages with one copy of the header each."""

RECORD_ALIGNMENT = 8
"""Records start at multiples of this, which limits the offsets that the search after damage must examine."""

RECORD_BODY_BYTES_MAX = FRAME_BYTES_MAX + 64 * 1024
"""Largest body of a record: one whole frame of entries and the fields that the bookie puts before them."""

KIND_SEGMENT_END = 0
"""Kind of the record that ends a segment: the log continues in the next one. Has no body."""

_MAGIC = b"OCTVJRNL"
_HEADER = struct.Struct(">8sHHIQQQQQ")
_CHECKSUM = struct.Struct(">I")
_HEAD = struct.Struct(">IIIIQQ")
_CHECKED = struct.Struct(">IQQIIQQ")

HEADER_BYTES = _HEADER.size + _CHECKSUM.size
"""Bytes of one copy of a segment's header."""

RECORD_HEAD_BYTES = _HEAD.size
"""Bytes of a record before its body."""

_ENDS_GROUP = 1 << 31
"""Flag in the kind field: the record is the last one of its group."""

_SEGMENT_NAME = re.compile(r"journal-(\d{16})\.segment")


class UnsupportedJournalError(OctavoError):
    """A newer version of this software wrote the journal. Nothing is lost: start that version again."""


class RecordKind(enum.IntEnum):
    """The content of a record's body. The numbers never change."""

    ADD = 1
    LEDGER_KEY = 2
    FENCE = 3
    EXPLICIT_LAC = 4
    TOMBSTONE = 5
    REVIVAL = 6
    DROP = 7
    PRIVATE = 8
    TERM_FENCE = 9
    """A fence of a term above 0. A kind of its own: a version that does not know terms refuses to start, where it would
    remember a FENCE without its term."""
    TRIM = 10
    """What a stream's truncation has left below an id is no longer kept (rule U5)."""
    RELIEF = 11
    """What is not held below an id may have been given up, and is not denied (rule C11)."""


class JournalPosition(NamedTuple):
    """A position in the log: just after a record, or the start of a segment's first record. Ordered as the log is."""

    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class JournalCorruption:
    """A part of the journal that had been synced and can no longer be read (rule B3).

    ``size`` is the number of affected bytes from ``offset`` on; None when it cannot be determined.
    """

    path: PurePath
    offset: int
    size: int | None
    what: str
    unreadable: bool = False
    """The disk failed to read it: another attempt may succeed, so nothing is known to be lost."""


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The header of a segment. ``cut`` is None when the journal was empty as the incarnation started."""

    segment: int
    seed: int
    segment_bytes: int
    incarnation: int
    cut: JournalPosition | None
    journal_format: int = JOURNAL_FORMAT

    @property
    def marks_groups(self) -> bool:
        """Whether the last record of each group is flagged, and the next group starts at the next page."""
        return self.journal_format > FORMAT_ADJACENT_GROUPS


@dataclass(frozen=True, slots=True)
class Record:
    """A valid record. ``synced`` is the position up to which the journal was known to be synced when the record was
    written. ``ends_group``: it is the last one of its group."""

    segment: int
    offset: int
    kind: int
    body: bytes
    synced: JournalPosition
    ends_group: bool = False

    @property
    def end(self) -> JournalPosition:
        """Where the next record starts."""
        stop = self.offset + record_bytes(len(self.body))
        return JournalPosition(self.segment, next_page(stop) if self.ends_group else stop)


@dataclass(frozen=True, slots=True)
class MoreNeeded:
    """The record extends past the window; ``size`` bytes from its offset on are needed to check it."""

    size: int


class NoRecord(enum.Enum):
    """Why there is no valid record at an offset."""

    BLANK = "no record of this segment starts here"
    DAMAGED = "a record starts here but its length or checksum is wrong"


def segment_name(number: int) -> str:
    """File name of a segment."""
    return f"journal-{number:016d}.segment"


def segment_number(name: str) -> int | None:
    """The segment number in a file name; None for other files."""
    match = _SEGMENT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def record_bytes(body_bytes: int) -> int:
    """Size of a record with such a body, padding included."""
    return (RECORD_HEAD_BYTES + body_bytes + RECORD_ALIGNMENT - 1) & -RECORD_ALIGNMENT


def next_page(offset: int) -> int:
    """The first page boundary at or after ``offset``."""
    return (offset + PAGE_BYTES - 1) & -PAGE_BYTES


SEGMENT_END_BYTES = PAGE_BYTES
"""Space reserved at the end of a segment for the record that ends it, which may need a page of its own."""


def body_bytes_max(segment_bytes: int) -> int:
    """Largest body that fits in a segment of this size, at most :data:`RECORD_BODY_BYTES_MAX`."""
    room = segment_bytes - DATA_START - SEGMENT_END_BYTES - RECORD_HEAD_BYTES
    return min(RECORD_BODY_BYTES_MAX, room & -RECORD_ALIGNMENT)


def encode_header(header: SegmentHeader) -> bytes:
    """The first :data:`DATA_START` bytes of a segment: two pages, one copy each."""
    if not 0 < header.seed < 2**32:
        raise ValueError(f"seed {header.seed} is not in 1..2**32-1 (with 0, blank pages would look like records)")
    cut = header.cut or JournalPosition(0, 0)
    fields = _HEADER.pack(
        _MAGIC,
        header.journal_format,
        0,
        header.seed,
        header.segment,
        header.segment_bytes,
        header.incarnation,
        cut.segment,
        cut.offset,
    )
    page = (fields + _CHECKSUM.pack(google_crc32c.value(fields))).ljust(PAGE_BYTES, b"\0")
    return page + page


def decode_header(pages: bytes, number: int) -> SegmentHeader | None:
    """The header of segment ``number`` from the first :data:`DATA_START` bytes of its file.

    Either copy is sufficient, because they are equal. None when neither is valid or the file has another number. Raises
    UnsupportedJournalError for a later format."""
    for start in (0, PAGE_BYTES):
        copy = pages[start : start + HEADER_BYTES]
        if len(copy) < HEADER_BYTES:
            continue
        fields = copy[: _HEADER.size]
        if copy[_HEADER.size :] != _CHECKSUM.pack(google_crc32c.value(fields)):
            continue
        magic, form, _, seed, segment, segment_bytes, incarnation, cut_segment, cut_offset = _HEADER.unpack(fields)
        if magic != _MAGIC or segment != number:
            continue
        if form > JOURNAL_FORMAT:
            raise UnsupportedJournalError(
                f"{segment_name(number)} has journal format {form}, this version reads up to {JOURNAL_FORMAT}: "
                "start the version that wrote it"
            )
        cut = JournalPosition(cut_segment, cut_offset) if cut_segment else None
        return SegmentHeader(segment, seed, segment_bytes, incarnation, cut, form)
    return None


def encode_record(
    header: SegmentHeader,
    offset: int,
    kind: int,
    buffers: Sequence[bytes],
    *,
    body_bytes: int,
    synced: JournalPosition,
    ends_group: bool = False,
) -> tuple[bytes, bytes]:
    """Head and padding of a record at ``offset``: the bytes before and after ``buffers``, which are not copied. The
    padding of the last record of a group fills its page."""
    if ends_group:
        kind |= _ENDS_GROUP
        padding = -(offset + RECORD_HEAD_BYTES + body_bytes) % PAGE_BYTES
    else:
        padding = -(RECORD_HEAD_BYTES + body_bytes) % RECORD_ALIGNMENT
    checksum = crc32(
        _CHECKED.pack(header.seed, header.segment, offset, body_bytes, kind, synced.segment, synced.offset)
    )
    for buffer in buffers:
        checksum = crc32(buffer, checksum)
    head = _HEAD.pack(header.seed, checksum, body_bytes, kind, synced.segment, synced.offset)
    return head, bytes(padding)


def examine(
    window: bytes, window_offset: int, offset: int, header: SegmentHeader, readable_bytes: int
) -> Record | NoRecord | MoreNeeded:
    """Check for a record at ``offset`` of a segment, given a window of its bytes that starts at ``window_offset``.

    ``readable_bytes`` is the end of the segment for this reader: no record extends past it. A wrong byte in the padding
    is ignored, because nothing reads it."""
    if readable_bytes - offset < RECORD_HEAD_BYTES:
        return NoRecord.BLANK
    at = offset - window_offset
    if len(window) - at < RECORD_HEAD_BYTES:
        return MoreNeeded(RECORD_HEAD_BYTES)
    seed, checksum, body_bytes, kind, synced_segment, synced_offset = _HEAD.unpack_from(window, at)
    if seed != header.seed:
        return NoRecord.BLANK
    size = RECORD_HEAD_BYTES + body_bytes
    if body_bytes > RECORD_BODY_BYTES_MAX or offset + size > readable_bytes:
        return NoRecord.DAMAGED
    if len(window) - at < size:
        return MoreNeeded(size)
    body = window[at + RECORD_HEAD_BYTES : at + size]
    expected = crc32(
        body, crc32(_CHECKED.pack(seed, header.segment, offset, body_bytes, kind, synced_segment, synced_offset))
    )
    ends_group = header.marks_groups and kind >= _ENDS_GROUP
    kind -= _ENDS_GROUP if ends_group else 0
    record = Record(header.segment, offset, kind, body, JournalPosition(synced_segment, synced_offset), ends_group)
    return record if checksum == expected else NoRecord.DAMAGED


def find_candidate(window: bytes, window_offset: int, offset: int, header: SegmentHeader) -> int | None:
    """The first offset from ``offset`` on, inside the window, at which a record of this segment may start."""
    seed = _CHECKSUM.pack(header.seed)
    at = window.find(seed, max(0, offset - window_offset))
    while at >= 0:
        if (window_offset + at) % RECORD_ALIGNMENT == 0:
            return window_offset + at
        at = window.find(seed, at + 1)
    return None
