"""Bytes of an object: the sealed entries of consecutive settled ranges of one ledger, as they lie in entry logs. Pure.

========  =====  ================================================================================
offset    bytes  field of the head (integers big-endian, checksums little-endian)
========  =====  ================================================================================
0         8      magic ``OCTVARCH``
8         4      format, 1
12        4      zero
16        16     token: random, the same as in the object's name
32        8      ledger id
40        2      E
42        2      Qw
44        2      Qa
46        2      count of ranges, 1 to 128
48        8      key id: zero. Reserved for encryption; any other value is refused
56        16 n   of each range: first id, last id
end - 4   4      CRC32C of the head before it
========  =====  ================================================================================

The sealed entries follow (``protocol.entries``), every id of every range, ascending, back to back. Then the index:
magic ``OCTVAIDX``, count u32, for each point an entry id u64 and the offset u64 of its entry, CRC32C u32 of the index
before it. The first entry is a point, and so is each first entry that begins 256 KiB or more behind the point before
it: a reader fetches what it wants and at most 256 KiB and an entry more.

========  =====  ================================================================================
offset    bytes  field of the tail, the last 68 bytes
========  =====  ================================================================================
0         8      magic ``OCTVATAL``
8         4      format, 1
12        4      zero
16        16     token
32        8      count of entries
40        8      bytes of their payloads
48        8      offset of the index
56        4      count of its points
60        4      CRC32C of the tail before it
64        4      CRC-32, as in zlib, of the object before it
========  =====  ================================================================================

The checksum of the whole is not a CRC32C: entries, head and index end in their own, and a CRC32C over an intact one
depends on its length only, so that it would not tell one intact entry from another (as in the journal, decision 007).
"""

import re
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import google_crc32c
from octavo.bookie.archive.errors import Damage, ObjectDamagedError
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.ids import ID_MAX, LedgerId
from octavo.protocol.quorums import Quorums

MAGIC = b"OCTVARCH"
INDEX_MAGIC = b"OCTVAIDX"
TAIL_MAGIC = b"OCTVATAL"
FORMAT = 1
TOKEN_BYTES = 16
RANGES_MAX = 128
"""Small ranges that share an object: 128 of the smallest that are moved alone are 128 MiB."""
INDEX_BYTES = 256 * 1024
"""Distance of two points of the index: read in one request, it costs little more than its first byte."""
OBJECT_BYTES_MAX = 4 * 1024**3
"""An object is read whole before a copy is dropped and where it is checked; larger ranges become several objects."""
_HEAD = struct.Struct(">8sII16sQHHHHQ")
_RANGE = struct.Struct(">QQ")
_INDEX = struct.Struct(">8sI")
_POINT = struct.Struct(">QQ")
_TAIL = struct.Struct(">8sII16sQQQI")
_CHECKSUM = struct.Struct("<I")
TAIL_BYTES = _TAIL.size + 2 * _CHECKSUM.size
HEAD_BYTES_MAX = _HEAD.size + RANGES_MAX * _RANGE.size + _CHECKSUM.size
_NAME = re.compile(r"([0-9a-f]{16})/([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{32})")


class ObjectName(NamedTuple):
    """The place of an object below the cluster's prefix: names sort as ledgers and ids do."""

    ledger_id: int
    first: int
    last: int
    """Ids, inclusive."""
    token: bytes

    @property
    def key(self) -> str:
        """``LEDGER/FIRST-LAST-TOKEN``, in hexadecimal digits."""
        return f"{self.ledger_id:016x}/{self.first:016x}-{self.last:016x}-{self.token.hex()}"

    @classmethod
    def parse(cls, key: str) -> "ObjectName | None":
        """The name with this key; None if it is the key of something else."""
        found = _NAME.fullmatch(key)
        if found is None:
            return None
        ledger, first, last, token = found.groups()
        return cls(int(ledger, 16), int(first, 16), int(last, 16), bytes.fromhex(token))


class IdRange(NamedTuple):
    """Consecutive entry ids, inclusive."""

    first: int
    last: int

    @property
    def entry_count(self) -> int:
        return self.last - self.first + 1


class Head(NamedTuple):
    """The first bytes of an object. Constructed by :func:`make_head`, which checks it."""

    token: bytes
    ledger_id: LedgerId
    quorums: Quorums
    ranges: tuple[IdRange, ...]

    @property
    def name(self) -> ObjectName:
        return ObjectName(self.ledger_id, self.ranges[0].first, self.ranges[-1].last, self.token)

    @property
    def entry_count(self) -> int:
        """Entries that the object holds."""
        return sum(ids.entry_count for ids in self.ranges)

    @property
    def size(self) -> int:
        """Bytes of the head, and the offset of the first entry."""
        return _HEAD.size + len(self.ranges) * _RANGE.size + _CHECKSUM.size

    def following(self, entry_id: int) -> int | None:
        """The lowest id of the object above ``entry_id``; None if it has none."""
        for first, last in self.ranges:
            if entry_id < last:
                return max(entry_id + 1, first)
        return None

    def has(self, entry_id: int) -> bool:
        return any(first <= entry_id <= last for first, last in self.ranges)


class Point(NamedTuple):
    """An entry whose offset the index has."""

    entry_id: int
    offset: int


class Tail(NamedTuple):
    """The last bytes of an object."""

    token: bytes
    entry_count: int
    payload_bytes: int
    index_offset: int
    points: int
    crc32: int
    """Of the object up to these four bytes."""

    @property
    def index_bytes(self) -> int:
        return index_bytes(self.points)


def make_head(token: bytes, ledger_id: LedgerId, quorums: Quorums, ranges: Sequence[IdRange]) -> Head:
    """A head whose values are possible.

    Raises:
        InvalidArgumentError: a token of another size, an id out of range, ranges that are none or too many, empty or
            not ascending.
    """
    if len(token) != TOKEN_BYTES:
        raise InvalidArgumentError(f"a token has {TOKEN_BYTES} bytes, not {len(token)}")
    if not 1 <= len(ranges) <= RANGES_MAX:
        raise InvalidArgumentError(f"an object holds 1 to {RANGES_MAX} ranges, not {len(ranges)}")
    if any(not 0 <= first <= last <= ID_MAX for first, last in ranges) or not 0 <= ledger_id <= ID_MAX:
        raise InvalidArgumentError(f"ledger {ledger_id}: a range of an object is empty, or an id is over {ID_MAX}")
    if any(behind.first <= ahead.last for ahead, behind in pairwise(ranges)):
        raise InvalidArgumentError(f"ledger {ledger_id}: the ranges of an object must ascend")
    return Head(token, ledger_id, quorums, tuple(ranges))


def encode_head(head: Head) -> bytes:
    quorums = head.quorums
    parts = [
        _HEAD.pack(
            *(MAGIC, FORMAT, 0, head.token, head.ledger_id),
            *(quorums.ensemble_size, quorums.write_quorum, quorums.ack_quorum, len(head.ranges), 0),
        )
    ]
    parts += [_RANGE.pack(*ids) for ids in head.ranges]
    return _with_checksum(b"".join(parts))


def decode_head(data: bytes) -> Head:
    """The head at the beginning of ``data``, of which more may follow.

    Raises:
        ObjectDamagedError: it is damaged, or of another format.
    """
    if len(data) < _HEAD.size:
        raise ObjectDamagedError(Damage.LENGTH, f"an object's head is cut off after {len(data)} bytes")
    magic, version, zero, token, ledger_id, ensemble, write, ack, count, key_id = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise ObjectDamagedError(Damage.HEAD, "an object's head does not begin with its magic")
    if version != FORMAT:
        raise ObjectDamagedError(Damage.VERSION, f"an object has format {version}; this release reads format {FORMAT}")
    stop = _HEAD.size + count * _RANGE.size
    if count > RANGES_MAX or len(data) < stop + _CHECKSUM.size:
        raise ObjectDamagedError(Damage.HEAD, f"an object's head says that it has {count} ranges")
    if not _has_checksum(data[: stop + _CHECKSUM.size]):
        raise ObjectDamagedError(Damage.HEAD, "the checksum of an object's head does not match")
    if zero or key_id:
        raise ObjectDamagedError(
            Damage.VERSION, f"an object's entries are encrypted (key {key_id}), which this release does not read"
        )
    try:
        ranges = [IdRange(*ids) for ids in _RANGE.iter_unpack(data[_HEAD.size : stop])]
        return make_head(token, ledger_id, Quorums(ensemble, write, ack), ranges)
    except InvalidArgumentError as error:
        raise ObjectDamagedError(Damage.HEAD, f"an object's head is impossible: {error}") from error


def index_bytes(points: int) -> int:
    """Size of an index with this number of points."""
    return _INDEX.size + points * _POINT.size + _CHECKSUM.size


def encode_index(points: Sequence[Point]) -> bytes:
    return _with_checksum(_INDEX.pack(INDEX_MAGIC, len(points)) + b"".join(_POINT.pack(*point) for point in points))


def decode_index(data: bytes, head: Head, tail: Tail) -> tuple[Point, ...]:
    """The points of the index of an object with this head and tail.

    Raises:
        ObjectDamagedError: the index is damaged, or does not belong to this head and tail.
    """
    if len(data) != tail.index_bytes or not _has_checksum(data):
        raise ObjectDamagedError(Damage.INDEX, f"{_about(head)}: the checksum of its index does not match")
    magic, count = _INDEX.unpack_from(data)
    points = tuple(Point(*point) for point in _POINT.iter_unpack(data[_INDEX.size : -_CHECKSUM.size]))
    if (
        (magic, count) != (INDEX_MAGIC, tail.points)
        or points[:1] != (Point(head.ranges[0].first, head.size),)
        or points[-1].offset >= tail.index_offset
        or not all(map(head.has, (point.entry_id for point in points)))
        or any(one.entry_id >= other.entry_id or one.offset >= other.offset for one, other in pairwise(points))
    ):
        raise ObjectDamagedError(Damage.INDEX, f"{_about(head)}: its index does not fit its head and tail")
    return points


def encode_tail(tail: Tail) -> bytes:
    """The tail, with the checksum of the object that ``tail`` gives."""
    return encode_tail_start(tail) + _CHECKSUM.pack(tail.crc32)


def encode_tail_start(tail: Tail) -> bytes:
    """The tail up to the checksum of the object, which covers these bytes, too."""
    token, count, payload_bytes, index_offset, points, _ = tail
    return _with_checksum(_TAIL.pack(TAIL_MAGIC, FORMAT, 0, token, count, payload_bytes, index_offset, points))


def decode_tail(data: bytes, object_bytes: int) -> Tail:
    """The tail at the end of ``data``, of an object with this number of bytes.

    Raises:
        ObjectDamagedError: it is damaged, of another format, or of an object of another size.
    """
    if len(data) < TAIL_BYTES:
        raise ObjectDamagedError(Damage.LENGTH, f"an object of {object_bytes} bytes is too short for a tail")
    tail = data[-TAIL_BYTES:]
    magic, version, zero, token, count, payload_bytes, index_offset, points = _TAIL.unpack_from(tail)
    if magic != TAIL_MAGIC or not _has_checksum(tail[: -_CHECKSUM.size]):
        raise ObjectDamagedError(Damage.TAIL, "an object does not end with a tail: damaged, or cut off")
    if version != FORMAT or zero:
        raise ObjectDamagedError(Damage.VERSION, f"an object has format {version}; this release reads format {FORMAT}")
    if index_offset + index_bytes(points) + TAIL_BYTES != object_bytes:
        raise ObjectDamagedError(
            Damage.LENGTH, f"an object of {object_bytes} bytes has the tail of one of another size"
        )
    return Tail(token, count, payload_bytes, index_offset, points, *_CHECKSUM.unpack(tail[-_CHECKSUM.size :]))


def check_tail(head: Head, tail: Tail) -> None:
    """Raise ObjectDamagedError unless head and tail are of one object."""
    if tail.token != head.token or tail.entry_count != head.entry_count or not 0 < tail.points <= tail.entry_count:
        raise ObjectDamagedError(Damage.TAIL, f"{_about(head)}: its tail is that of another object")


def _about(head: Head) -> str:
    return f"object {head.name.key}"


def _with_checksum(data: bytes) -> bytes:
    return data + _CHECKSUM.pack(google_crc32c.value(data))


def _has_checksum(data: bytes) -> bool:
    return data[-_CHECKSUM.size :] == _CHECKSUM.pack(google_crc32c.value(data[: -_CHECKSUM.size]))
