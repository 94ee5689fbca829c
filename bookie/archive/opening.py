"""Reads an object: which bytes to fetch, and whether they are what was written (rule J2). Pure.

A reader that knows an object's name and size fetches its :func:`tail_range`, then the ranges of index and head that the
tail names, and opens the object with them. :meth:`OpenObject.range_of` then says which bytes hold some entries, and
:meth:`OpenObject.entries_in` verifies what came. :class:`WholeCheck` verifies a whole object as its bytes arrive, in
pieces of any size.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from octavo.bookie.archive.checksum import crc32
from octavo.bookie.archive.errors import Damage, ObjectDamagedError
from octavo.bookie.archive.format import (
    HEAD_BYTES_MAX,
    INDEX_BYTES,
    TAIL_BYTES,
    Head,
    ObjectName,
    Point,
    Tail,
    check_tail,
    decode_head,
    decode_index,
    decode_tail,
)
from octavo.bookie.archive.writing import Written
from octavo.protocol.entries import (
    SEALED_BYTES_MAX,
    SEALED_BYTES_MIN,
    header_of,
    is_intact,
    sealed_bytes,
)
from octavo.protocol.errors import ProtocolError

OBJECT_RESIDUE = 0x2144DF1C
"""CRC-32 of any bytes followed by their own little-endian CRC-32."""


class ByteRange(NamedTuple):
    """Bytes of an object, half-open."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


def tail_range(object_bytes: int) -> ByteRange:
    """Where the tail is in an object of this size."""
    return ByteRange(max(object_bytes - TAIL_BYTES, 0), object_bytes)


def index_range(tail: Tail) -> ByteRange:
    """Where the index is."""
    return ByteRange(tail.index_offset, tail.index_offset + tail.index_bytes)


def head_range(tail: Tail) -> ByteRange:
    """Bytes in which the head ends."""
    return ByteRange(0, min(HEAD_BYTES_MAX, tail.index_offset))


class OpenObject(NamedTuple):
    """An object whose head, index and tail have been read and verified."""

    head: Head
    tail: Tail
    points: tuple[Point, ...]

    @classmethod
    def open(cls, name: ObjectName, head: bytes, index: bytes, tail: Tail) -> "OpenObject":
        """The object of this name, from the bytes of its head and index, and its tail.

        Raises:
            ObjectDamagedError: one of them is damaged, or they are of an object of another name.
        """
        found = decode_head(head)
        if found.name != name:
            raise ObjectDamagedError(Damage.NAME, f"object {name.key}: the store gave object {found.name.key}")
        check_tail(found, tail)
        return cls(found, tail, decode_index(index, found, tail))

    def range_of(self, first: int, last: int) -> ByteRange:
        """The bytes in which the entries from ``first`` to ``last`` lie. The object must hold both."""
        assert self.head.has(first), f"entry {first} is not in object {self.head.name.key}"
        assert self.head.has(last), f"entry {last} is not in object {self.head.name.key}"
        assert first <= last, f"{first} to {last} is no range"
        behind = bisect_right(self.points, last, key=_id_of)
        stop = self.points[behind].offset if behind < len(self.points) else self.tail.index_offset
        return ByteRange(self.points[bisect_right(self.points, first, key=_id_of) - 1].offset, stop)

    def entries_in(self, first: int, last: int, data: bytes) -> list[bytes]:
        """The sealed entries from ``first`` to ``last``, from the bytes of :meth:`range_of`.

        Raises:
            ObjectDamagedError: the answer has another length, or an entry in it is not intact and the next one.
        """
        where = self.range_of(first, last)
        if len(data) != where.size:
            raise ObjectDamagedError(
                Damage.LENGTH,
                f"object {self.head.name.key}: {where.size} bytes were asked for, {len(data)} came",
            )
        walk = _EntryWalk(self.head, self.points[bisect_right(self.points, first, key=_id_of) - 1].entry_id)
        found = [sealed for entry_id, sealed in walk.feed(data) if first <= entry_id <= last]
        behind = bisect_right(self.points, last, key=_id_of)
        next_id = self.points[behind].entry_id if behind < len(self.points) else None
        if walk.next_id != next_id or walk.rest:
            raise ObjectDamagedError(
                Damage.ENTRY, f"object {self.head.name.key}: an entry before entry {walk.next_id} is damaged"
            )
        return found


def _id_of(point: Point) -> int:
    return point.entry_id


class _EntryWalk:
    """The entries of an object from one of them on, verified as their bytes arrive."""

    def __init__(self, head: Head, begin: int) -> None:
        self.head = head
        self.next_id: int | None = begin
        """The id of the next entry; None behind the last one."""
        self._pieces: list[bytes] = []
        self._size = 0
        self._wanted = SEALED_BYTES_MIN
        """Bytes without which no entry is complete."""

    @property
    def rest(self) -> bytes:
        """Bytes that have come and belong to no complete entry."""
        return b"".join(self._pieces)

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take the next bytes; yields the ids and the bytes of the entries that are complete.

        Raises:
            ObjectDamagedError: an entry is not intact, not of this ledger, or not the next one.
        """
        self._pieces.append(data)
        self._size += len(data)
        if self.next_id is None or self._size < self._wanted:
            return
        data, start = b"".join(self._pieces), 0
        while self.next_id is not None and len(data) - start >= SEALED_BYTES_MIN:
            self._wanted = self._size_at(data, start)
            if len(data) - start < self._wanted:
                break
            sealed = data[start : start + self._wanted]
            header = header_of(sealed)
            if (
                not is_intact(sealed)
                or header.flags
                or (header.ledger_id, header.entry_id) != (self.head.ledger_id, self.next_id)
            ):
                raise self._damage()
            start += self._wanted
            self._wanted = SEALED_BYTES_MIN
            self.next_id = self.head.following(header.entry_id)
            yield header.entry_id, sealed
        self._pieces, self._size = [data[start:]], len(data) - start

    def _size_at(self, data: bytes, start: int) -> int:
        try:
            size = sealed_bytes(header_of(data[start : start + SEALED_BYTES_MIN]))
        except ProtocolError as error:
            raise self._damage() from error
        if not SEALED_BYTES_MIN <= size <= SEALED_BYTES_MAX:
            raise self._damage()
        return size

    def _damage(self) -> ObjectDamagedError:
        return ObjectDamagedError(
            Damage.ENTRY,
            f"object {self.head.name.key}: entry {self.next_id} is damaged, or another one is in its place",
        )


class WholeCheck:
    """Verifies a whole object while its bytes arrive from the beginning, in pieces of any size.

    ``sha256``: of the object as it was written, without which an object that another one has replaced is not noticed.
    ``index_every_bytes`` is that of the writer. Memory for one piece, one entry and the index.
    """

    def __init__(
        self, name: ObjectName, object_bytes: int, *, sha256: bytes | None, index_every_bytes: int = INDEX_BYTES
    ) -> None:
        self._name = name
        self._object_bytes = object_bytes
        self._index_every_bytes = index_every_bytes
        self._expected_sha256 = sha256
        self._sha256 = hashlib.sha256()
        self._crc32 = 0
        self._received = 0
        self._payload_bytes = 0
        self._beginning = b""
        self._walk: _EntryWalk | None = None
        self._offset = 0
        """Of the next entry."""
        self._points: list[Point] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes; returns the sealed entries that are complete, all of them intact and in order.

        Raises:
            ObjectDamagedError: more bytes than the object has, a damaged head or a damaged entry.
        """
        self._received += len(data)
        if self._received > self._object_bytes:
            raise ObjectDamagedError(Damage.LENGTH, f"object {self._name.key} has more than {self._object_bytes} bytes")
        self._sha256.update(data)
        self._crc32 = crc32(data, self._crc32)
        if self._walk is None:
            self._beginning += data
            if len(self._beginning) < min(HEAD_BYTES_MAX, self._object_bytes):
                return []
            head = decode_head(self._beginning)
            if head.name != self._name:
                raise ObjectDamagedError(Damage.NAME, f"object {self._name.key}: the store gave object {head.name.key}")
            self._walk = _EntryWalk(head, head.ranges[0].first)
            self._offset = head.size
            data, self._beginning = self._beginning[head.size :], b""
        found = []
        for entry_id, sealed in self._walk.feed(data):
            if not self._points or self._offset - self._points[-1].offset >= self._index_every_bytes:
                self._points.append(Point(entry_id, self._offset))
            self._offset += len(sealed)
            self._payload_bytes += header_of(sealed).payload_bytes
            found.append(sealed)
        return found

    def finish(self) -> Written:
        """All bytes have come: the facts about the object.

        Raises:
            ObjectDamagedError: bytes are missing, or what came is not one object.
        """
        if self._received != self._object_bytes or self._walk is None:
            raise ObjectDamagedError(
                Damage.LENGTH, f"object {self._name.key}: {self._received} of {self._object_bytes} bytes came"
            )
        head, rest = self._walk.head, self._walk.rest
        if self._walk.next_id is not None:
            raise ObjectDamagedError(Damage.ENTRY, f"object {self._name.key}: entry {self._walk.next_id} is missing")
        tail = decode_tail(rest, self._object_bytes)
        check_tail(head, tail)
        if (tail.index_offset, tail.payload_bytes) != (self._offset, self._payload_bytes):
            raise ObjectDamagedError(Damage.TAIL, f"object {self._name.key}: its tail does not fit its entries")
        if decode_index(rest[:-TAIL_BYTES], head, tail) != tuple(self._points):
            raise ObjectDamagedError(Damage.INDEX, f"object {self._name.key}: its index does not fit its entries")
        if self._crc32 != OBJECT_RESIDUE:
            raise ObjectDamagedError(Damage.CHECKSUM, f"object {self._name.key}: its CRC-32 does not match")
        digest = self._sha256.digest()
        if self._expected_sha256 not in {None, digest}:
            raise ObjectDamagedError(Damage.CHECKSUM, f"object {self._name.key}: its SHA-256 does not match")
        return Written(self._name, self._object_bytes, tail.entry_count, tail.payload_bytes, digest, tail.crc32)
