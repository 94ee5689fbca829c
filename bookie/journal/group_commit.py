"""Group commit: which journal records are written together, and the position of each.

While one group is being written and synced, new records queue; when the disk has finished, they form the next group, up
to a maximum of bytes and records. There is no timer: an idle journal writes a lone record at once, a busy one forms
larger groups by itself.

A record's position is assigned when it is appended, and with it its group: the last group in the queue, unless that one
is full. Taking a group closes it; the next one starts at the next page of the segment. So no page that holds an
acknowledged record is ever written again: an interrupted write, whatever it leaves in the pages that it touches, can
damage only records that nothing depends on yet.

A record that does not fit in the rest of its segment goes to the next one, and a record that ends the segment is queued
before it; a page for that one is always reserved. A group never spans two segments: the first part is synced before
anything is written to the next segment, so that a torn tail affects only one segment.

A *deferred* record is written with the next group and does not start one.

This module performs no I/O and has no futures: ``token`` is an object that the caller gets back when the record is
durable.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.bookie.journal.format import (
    DATA_START,
    KIND_SEGMENT_END,
    RECORD_ALIGNMENT,
    SEGMENT_END_BYTES,
    JournalPosition,
    SegmentHeader,
    encode_record,
    next_page,
    record_bytes,
)

GROUP_BYTES_MAX = 8 * 1024 * 1024
"""Default maximum of a group: a few tens of milliseconds of an ordinary disk, so that under overload a record waits for
one such group and not for seconds. A larger single record forms a group by itself."""

GROUP_RECORDS_MAX = 4096
"""Default maximum of records in a group: the event loop computes their heads and checksums, about 2 us each."""


@dataclass(slots=True, eq=False)
class PendingRecord:
    """A record with an assigned offset in its group's segment that is not yet known to be durable."""

    offset: int
    kind: int
    buffers: Sequence[bytes]
    body_bytes: int
    token: object


@dataclass(slots=True, eq=False)
class Group:
    """Records to be written at ``offset`` of ``segment``, a page boundary, with one write and one sync. ``size``: bytes
    of the records, without the zeros that fill the last page. No record joins it once it is *closed*."""

    segment: int
    offset: int
    records: list[PendingRecord]
    size: int
    queued_at: float = 0.0
    """When its first record was queued."""
    disk_bytes: int = 0
    """Bytes written to disk, whole pages. Known when it is closed."""

    @property
    def end(self) -> JournalPosition:
        """Where the next group may start. Known when it is closed."""
        return JournalPosition(self.segment, self.offset + self.disk_bytes)


class GroupCommit:
    """Order, positions and groups of one journal's records.

    ``group_bytes_max`` and ``group_records_max`` limit a group; ``segment_bytes`` is the size of every segment.
    ``clock`` gives the time at which a group is begun, for statistics only.
    """

    def __init__(
        self,
        start: JournalPosition,
        *,
        segment_bytes: int,
        group_bytes_max: int = GROUP_BYTES_MAX,
        group_records_max: int = GROUP_RECORDS_MAX,
        clock: Callable[[], float] = float,
    ) -> None:
        assert start.offset == next_page(start.offset), "a group starts at a page boundary"
        self._segment_stop = segment_bytes - SEGMENT_END_BYTES
        self._group_bytes_max = group_bytes_max
        self._group_records_max = group_records_max
        self._clock = clock
        self._segment = start.segment
        self._offset = start.offset
        self._queue: deque[Group] = deque()
        self._open: Group | None = None  # the last one in the queue, while records may join it
        self._queued_records = 0
        self._writing: Group | None = None
        self._finished = False
        self.waiting = 0
        """Groups in the queue up to the last one with a record that is not deferred."""
        self.synced_position = start
        """Everything before it is durable."""
        self.pending_bytes = 0
        """Bytes appended and not yet durable, including the group being written."""
        self.disk_bytes = 0
        """Bytes of disk given to records so far, with the zeros that fill pages."""

    @property
    def position(self) -> JournalPosition:
        """Just after the last record appended, durable or not; where the next group starts if none is open."""
        return JournalPosition(self._segment, self._offset)

    def mark(self) -> JournalPosition:
        """Close the open group: the position that separates all records appended so far from all later ones."""
        self._close_group()
        return self.position

    @property
    def pending_records(self) -> int:
        return self._queued_records + (len(self._writing.records) if self._writing else 0)

    def append(
        self, kind: int, buffers: Sequence[bytes], body_bytes: int, token: object, *, deferred: bool = False
    ) -> None:
        """Queue a record and assign its position. ``deferred``: it does not start a group.

        The caller has checked that the body fits in an empty segment.
        """
        assert not self._finished, "the log has been finished"
        size = record_bytes(body_bytes)
        if self._open is not None and not self._joins(self._open, size):
            self._close_group()
        if self._offset + size > self._segment_stop:
            self._add_segment_end()
            self._close_group()
            self._segment += 1
            self._offset = DATA_START
            assert self._offset + size <= self._segment_stop, "a record larger than a segment"
        self._add(PendingRecord(self._offset, kind, buffers, body_bytes, token), size)
        if not deferred:
            self.waiting = len(self._queue)

    def append_each(self, kind: int, bodies: Sequence[Sequence[bytes]], body_bytes: Sequence[int]) -> None:
        """As :meth:`append` for a record of each of these bodies, without tokens; ``body_bytes``: of each."""
        at = 0
        while at < len(bodies):
            self.append(kind, bodies[at], body_bytes[at], None)
            at = self._fill(kind, bodies, body_bytes, at + 1)

    def _fill(self, kind: int, bodies: Sequence[Sequence[bytes]], body_bytes: Sequence[int], start: int) -> int:
        """Queue the records from this index on that join the open group, all but the first that does not. Returns the
        index of that one."""
        group = self._open
        assert group is not None, "a record was appended just now"
        records, offset = group.records, self._offset
        stop = min(len(bodies), start + self._group_records_max - len(records))
        offset_max = min(offset + self._group_bytes_max - group.size, self._segment_stop)
        at = start
        while at < stop and offset + (size := record_bytes(body_bytes[at])) <= offset_max:
            records.append(PendingRecord(offset, kind, bodies[at], body_bytes[at], None))
            offset += size
            at += 1
        added = offset - self._offset
        self._offset = offset
        group.size += added
        self.pending_bytes += added
        self.disk_bytes += added
        self._queued_records += at - start
        return at

    def give_token(self, token: object) -> None:
        """Give the record appended last its token, which was appended without one and is still queued."""
        group = self._queue[-1]
        record = group.records[-1]
        assert record.token is None, "a record has one token"
        record.token = token

    def finish(self) -> None:
        """Queue the record that ends the log. Nothing may be appended afterwards; the position stays before that
        record, so that a replay from there finds it."""
        position = self.mark()
        self._add_segment_end()
        self._close_group()
        self._offset = position.offset
        self.waiting = len(self._queue)
        self._finished = True

    def _add_segment_end(self) -> None:
        size = record_bytes(0)
        if self._open is not None and not self._joins(self._open, size):
            self._close_group()
        self._add(PendingRecord(self._offset, KIND_SEGMENT_END, (), 0, None), size)

    def _joins(self, group: Group, size: int) -> bool:
        return group.size + size <= self._group_bytes_max and len(group.records) < self._group_records_max

    def _add(self, record: PendingRecord, size: int) -> None:
        group = self._open
        if group is None:
            group = self._open = Group(self._segment, self._offset, [], 0, self._clock())
            self._queue.append(group)
        group.records.append(record)
        group.size += size
        self._offset += size
        self.pending_bytes += size
        self._queued_records += 1
        self.disk_bytes += size

    def _close_group(self) -> None:
        group = self._open
        if group is not None:
            start = next_page(self._offset)
            group.disk_bytes = start - group.offset
            self.disk_bytes += start - self._offset
            self._offset = start
            self._open = None

    def take(self) -> Group:
        """The next group. Call it only while :attr:`waiting` is not 0 and no group is being written."""
        assert self._queue, "no records wait"
        assert self._writing is None, "a group is being written"
        group = self._queue.popleft()
        if group is self._open:
            self._close_group()
        if self.waiting:
            self.waiting -= 1
        self._queued_records -= len(group.records)
        self._writing = group
        return group

    def settle(self) -> Group:
        """The group being written is durable. Returns it, so that the caller can use its tokens."""
        group = self._writing
        assert group is not None, "no group is being written"
        end = group.end
        assert end > self.synced_position, "a group must move the synced position on"
        self._writing = None
        self.synced_position = end
        self.pending_bytes -= group.size
        return group

    def fail(self) -> list[object]:
        """The journal has failed: no pending record will become durable. Returns all tokens, in order."""
        records = [record for group in self._pending_groups() for record in group.records]
        self._writing = self._open = None
        self._queue.clear()
        self.pending_bytes = self._queued_records = self.waiting = 0
        return [record.token for record in records]

    def _pending_groups(self) -> list[Group]:
        return [*([self._writing] if self._writing else ()), *self._queue]

    def check_invariants(self) -> None:
        """Check that groups start at page boundaries, and that positions are consecutive, without overlap and inside
        their segments, from the synced position to the last."""
        at = self.synced_position
        total = 0
        for group in self._pending_groups():
            if group.segment != at.segment:
                assert group.segment == at.segment + 1, "segments follow one another"
                at = JournalPosition(group.segment, DATA_START)
            assert group.offset == at.offset == next_page(at.offset)
            assert group.records, "no group is empty"
            offset = group.offset
            for record in group.records:
                assert record.offset == offset
                assert record.offset % RECORD_ALIGNMENT == 0
                offset += record_bytes(record.body_bytes)
                ends = record.kind == KIND_SEGMENT_END
                assert offset <= self._segment_stop + (SEGMENT_END_BYTES if ends else 0)
            assert offset == group.offset + group.size
            total += group.size
            at = group.end if group is not self._open else JournalPosition(group.segment, offset)
        assert total == self.pending_bytes
        assert self._queued_records == sum(len(group.records) for group in self._queue)
        assert 0 <= self.waiting <= len(self._queue)
        assert self._open is None or self._open is self._queue[-1]
        if self._finished:
            assert at >= self.position
        else:
            assert at == self.position


def encode_group(group: Group, header: SegmentHeader, synced: JournalPosition) -> list[bytes]:
    """The bytes of a group, as consecutive buffers that fill whole pages; bodies are not copied."""
    pieces: list[bytes] = []
    padding = b""
    last = group.records[-1]
    for record in group.records:
        head, next_padding = encode_record(
            header,
            record.offset,
            record.kind,
            record.buffers,
            body_bytes=record.body_bytes,
            synced=synced,
            ends_group=record is last,
        )
        pieces.append(padding + head)
        pieces.extend(record.buffers)
        padding = next_padding
    if padding:
        pieces.append(padding)
    return pieces
