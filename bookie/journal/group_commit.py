"""Group commit: which journal records are written together, and the position of each.

While one group is being written and synced, new records queue; when the disk has finished, they form the next group, up
to a maximum of bytes and records. There is no timer: an idle journal writes a lone record at once, a busy one forms
larger groups by itself.

A record's position is assigned when it is appended, so that it can be captured in the same step. A record that does not
fit in the rest of its segment goes to the next one, and a record that ends the segment is queued before it; space for
that one is always reserved. A group never spans two segments: the first part is synced before anything is written to
the next segment, so that a torn tail affects only one segment.

A *deferred* record is written with the next group and does not start one.

This module performs no I/O and has no futures: ``token`` is an object that the caller gets back when the record is
durable.
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
"""Default maximum of a group: a few tens of milliseconds of an ordinary disk, so that under overload a record waits for
one such group and not for seconds. A larger single record forms a group by itself."""

GROUP_RECORDS_MAX = 4096
"""Default maximum of records in a group: the event loop computes their heads and checksums, about 2 us each."""


@dataclass(slots=True, eq=False)
class PendingRecord:
    """A record with an assigned position that is not yet known to be durable."""

    segment: int
    offset: int
    kind: int
    buffers: Sequence[bytes]
    body_bytes: int
    token: object


@dataclass(slots=True, eq=False)
class Group:
    """Records to be written at ``offset`` of ``segment`` with one write and one sync. ``end`` is just after the last
    one."""

    segment: int
    offset: int
    records: list[PendingRecord]
    size: int
    end: JournalPosition


class GroupCommit:
    """Order, positions and groups of one journal's records.

    ``group_bytes_max`` and ``group_records_max`` limit a group; ``segment_bytes`` is the size of every segment.
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
        self._due = 0  # pending records up to the last one that is not deferred
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
        """Bytes appended and not yet durable, including the group being written."""
        return self._pending_bytes

    @property
    def pending_records(self) -> int:
        return len(self._pending) + (len(self._writing.records) if self._writing else 0)

    @property
    def waiting(self) -> bool:
        """Whether a record waits that is not deferred."""
        return self._due > 0

    def append(
        self, kind: int, buffers: Sequence[bytes], body_bytes: int, token: object, *, deferred: bool = False
    ) -> int:
        """Queue a record and assign its position. Returns its size on disk. ``deferred``: it does not start a group.

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
        if not deferred:
            self._due = len(self._pending)
        return size

    def finish(self) -> None:
        """Queue the record that ends the log. Nothing may be appended afterwards; the position stays before that
        record, so that a replay from there finds it."""
        self._queue_segment_end()
        self._due = len(self._pending)
        self._finished = True

    def _queue_segment_end(self) -> None:
        self._pending.append(PendingRecord(self._segment, self._offset, KIND_SEGMENT_END, (), 0, None))
        self._pending_bytes += SEGMENT_END_BYTES

    def take(self) -> Group:
        """The next group. Call it only while :attr:`waiting` is true and no group is being written."""
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
        """The group being written is durable. Returns it, so that the caller can use its tokens."""
        group = self._writing
        assert group is not None, "no group is being written"
        assert group.end > self._synced, "a group must move the synced position on"
        self._writing = None
        self._synced = group.end
        self._pending_bytes -= group.size
        return group

    def fail(self) -> list[object]:
        """The journal has failed: no pending record will become durable. Returns all tokens, in order."""
        records = [*(self._writing.records if self._writing else ()), *self._pending]
        self._writing = None
        self._pending.clear()
        self._pending_bytes = self._due = 0
        return [record.token for record in records]

    def check_invariants(self) -> None:
        """Check that positions are consecutive, without gap or overlap and inside their segments, from the synced
        position to the last."""
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
    """The bytes of a group, as consecutive buffers; bodies are not copied."""
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
