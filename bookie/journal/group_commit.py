"""Which journal records go to disk together, and where each one goes: group commit.

While one group is being written and synced, new records gather; when the disk is done, all that gathered goes
next, up to a maximum of bytes and records. No timer: an idle journal writes a lone record at once, a busy one
makes larger groups by itself.

A record's place is settled when it is appended, so that its position can be captured in that same step. A
record that does not fit in the rest of its segment goes to the next one, and a record that ends the segment is
queued before it; room for that one is always kept. A group never spans two segments: the first part is synced
before anything of the next segment is written, which is why a torn tail only ever touches one segment.

A record may be appended *along*: it goes with the next group of others and calls for none of its own.

The machine knows nothing of disks or futures: ``token`` is whatever the caller wants back when the record is durable.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.bookie.journal.format import (
    DATA_START,
    KIND_SEGMENT_END,
    RECORD_ALIGNMENT,
    SEGMENT_END_BYTES,
    JournalPosition,
    SegmentHeader,
    encode_record,
    record_bytes,
)

GROUP_BYTES_MAX = 8 * 1024 * 1024
"""Default bound of one group: a few tens of milliseconds of an ordinary disk, so that under overload a record
waits for one such group and not for seconds. A larger single record still goes, alone."""

GROUP_RECORDS_MAX = 4096
"""Default bound of records in one group: their heads and checksums are made on the event loop, about 2 us each."""


@dataclass(slots=True, eq=False)
class PendingRecord:
    """A record whose place is settled and that is not yet known to be durable."""

    segment: int
    offset: int
    kind: int
    buffers: Sequence[bytes]
    body_bytes: int
    token: object


@dataclass(slots=True, eq=False)
class Group:
    """Records to be written at ``offset`` of ``segment`` with one write and one sync. ``end`` is just after the
    last."""

    segment: int
    offset: int
    records: list[PendingRecord]
    size: int
    end: JournalPosition


class GroupCommit:
    """Order, places and groups of one journal's records.

    ``group_bytes_max`` and ``group_records_max`` bound a group; ``segment_bytes`` is the size of every segment.
    """

    def __init__(
        self,
        start: JournalPosition,
        *,
        segment_bytes: int,
        group_bytes_max: int = GROUP_BYTES_MAX,
        group_records_max: int = GROUP_RECORDS_MAX,
    ) -> None:
        self._segment_stop = segment_bytes - SEGMENT_END_BYTES
        self._group_bytes_max = group_bytes_max
        self._group_records_max = group_records_max
        self._segment = start.segment
        self._offset = start.offset
        self._pending: deque[PendingRecord] = deque()
        self._pending_bytes = 0
        self._due = 0  # pending records up to the last one that calls for a group
        self._writing: Group | None = None
        self._synced = start
        self._finished = False

    @property
    def position(self) -> JournalPosition:
        """Just after the last record appended, durable or not."""
        return JournalPosition(self._segment, self._offset)

    @property
    def synced_position(self) -> JournalPosition:
        """Everything before it is durable."""
        return self._synced

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not durable, the group being written included."""
        return self._pending_bytes

    @property
    def pending_records(self) -> int:
        return len(self._pending) + (len(self._writing.records) if self._writing else 0)

    @property
    def waiting(self) -> bool:
        """True when a record waits that calls for a group."""
        return self._due > 0

    def append(
        self, kind: int, buffers: Sequence[bytes], body_bytes: int, token: object, *, along: bool = False
    ) -> int:
        """Queue a record; its place is settled here. Returns the bytes it takes on disk. ``along``: with the next
        group, whenever that is.

        The caller has checked that the body fits in an empty segment.
        """
        size = record_bytes(body_bytes)
        if self._offset + size > self._segment_stop:
            self._queue_segment_end()
            self._segment += 1
            self._offset = DATA_START
        assert self._offset + size <= self._segment_stop, "a record larger than a segment"
        assert not self._finished, "the log has been finished"
        self._pending.append(PendingRecord(self._segment, self._offset, kind, buffers, body_bytes, token))
        self._offset += size
        self._pending_bytes += size
        if not along:
            self._due = len(self._pending)
        return size

    def finish(self) -> None:
        """Queue the record that ends the log. Nothing is appended afterwards; the position stays before that
        record, so that a replay from there sees it."""
        self._queue_segment_end()
        self._due = len(self._pending)
        self._finished = True

    def _queue_segment_end(self) -> None:
        self._pending.append(PendingRecord(self._segment, self._offset, KIND_SEGMENT_END, (), 0, None))
        self._pending_bytes += SEGMENT_END_BYTES

    def take(self) -> Group:
        """The next group. Call it only while :attr:`waiting` and when no group is being written."""
        assert self._pending, "no records wait"
        assert self._writing is None, "a group is being written"
        pending = self._pending
        first = pending.popleft()
        records = [first]
        segment, start = first.segment, first.offset
        stop = start + record_bytes(first.body_bytes)
        while pending and len(records) < self._group_records_max:
            record = pending[0]
            record_stop = record.offset + record_bytes(record.body_bytes)
            if record.segment != segment or record_stop - start > self._group_bytes_max:
                break
            records.append(pending.popleft())
            stop = record_stop
        self._due = max(0, self._due - len(records))
        self._writing = Group(segment, start, records, stop - start, JournalPosition(segment, stop))
        return self._writing

    def settle(self) -> Group:
        """The group being written is durable. Returns it, so that its tokens can be told."""
        group = self._writing
        assert group is not None, "no group is being written"
        assert group.end > self._synced, "a group must move the synced position on"
        self._writing = None
        self._synced = group.end
        self._pending_bytes -= group.size
        return group

    def fail(self) -> list[object]:
        """The journal has failed: nothing pending will ever be known to be durable. Returns all tokens, in order."""
        records = [*(self._writing.records if self._writing else ()), *self._pending]
        self._writing = None
        self._pending.clear()
        self._pending_bytes = self._due = 0
        return [record.token for record in records]

    def check_invariants(self) -> None:
        """Places follow one another without gap or overlap, inside their segments, from the synced position to
        the last."""
        at = self._synced
        total = 0
        for record in [*(self._writing.records if self._writing else ()), *self._pending]:
            if record.segment != at.segment:
                assert record.segment == at.segment + 1, "segments follow one another"
                at = JournalPosition(record.segment, DATA_START)
            assert record.offset == at.offset
            assert record.offset % RECORD_ALIGNMENT == 0
            size = record_bytes(record.body_bytes)
            total += size
            at = JournalPosition(record.segment, record.offset + size)
            ends = record.kind == KIND_SEGMENT_END
            assert at.offset <= self._segment_stop + (SEGMENT_END_BYTES if ends else 0)
        assert total == self._pending_bytes
        assert 0 <= self._due <= len(self._pending)
        if self._finished:
            at = JournalPosition(at.segment, at.offset - SEGMENT_END_BYTES)
        assert at == self.position


def encode_group(group: Group, header: SegmentHeader, synced: JournalPosition) -> list[bytes]:
    """The bytes of a group, as buffers to be written one after another; bodies are not copied."""
    pieces: list[bytes] = []
    padding = b""
    for record in group.records:
        head, next_padding = encode_record(
            header, record.offset, record.kind, record.buffers, body_bytes=record.body_bytes, synced=synced
        )
        pieces.append(padding + head)
        pieces.extend(record.buffers)
        padding = next_padding
    if padding:
        pieces.append(padding)
    return pieces
