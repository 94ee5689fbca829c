"""Record batches, version 2: the check before one is stored, and the two fields that the leader fills in. Pure.

A batch is stored as one entry, as the producer has sent it (rule K1). The leader fills in the base offset and the
leader epoch, which lie before everything that the checksum covers; nothing else is changed, decoded or compressed
again. All numbers are big-endian.

=====  =====  ====================  ==================================================================================
at     bytes  field                 meaning
=====  =====  ====================  ==================================================================================
0      8      base offset           of the first record; filled in by the leader
8      4      length                of everything behind this field
12     4      leader epoch          the term of the leader; filled in by the leader
16     1      magic                 2
17     4      checksum              CRC-32C of everything behind this field
21     2      attributes            bits 0 to 2: the compression; 3: times are those of appending; 4: transactional;
                                    5: a control batch; 6: has a delete horizon
23     4      last offset delta     the number of records - 1
27     8      base timestamp        ms since 1970
35     8      max timestamp         the latest of the records, ms since 1970
43     8      producer id           -1: the producer is not idempotent
51     2      producer epoch
53     4      base sequence         the sequence number of the first record
57     4      count                 the number of records
61            records               compressed, or one after another
=====  =====  ====================  ==================================================================================

An uncompressed record begins with its length, a byte of attributes, its time and its offset, as differences from the
batch's first. Length, time and offset are numbers of one to ten bytes: seven bits in each, the lowest first; the sign
is the lowest bit.

The check looks at the header, and at the offsets of records that are not compressed. Offsets inside a compressed batch
are believed by no part of Octavo: record i of a batch has the base offset + i.
"""

from struct import Struct
from typing import Final, NamedTuple

import google_crc32c
from octavo.gateway.codes import Code, RefusedError

_HEADER: Final = Struct(">qiibIhiqqqhii")
_PREFIX: Final = Struct(">qii")

HEADER_BYTES: Final = _HEADER.size
"""Of a batch, before its records."""

_LENGTH_FROM: Final = 12
"""The length counts what lies from here on."""

_MAGIC_AT: Final = 16
_MAGIC: Final = 2
_COVERED_FROM: Final = 21
"""The checksum covers what lies from here on."""

_COMPRESSION_MASK: Final = 0x07
_COMPRESSION_MAX: Final = 4
_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20

RECORD_BYTES_MIN: Final = 7
"""The smallest record, its length included: one without key, value and headers."""

UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes that the records of a batch may have when they are not compressed: what a reader has to hold."""

UNPACKED_TIMES_MAX: Final = 1000
"""How often the records may be larger than what they are compressed to: more is an attack on readers."""


class BatchHeader(NamedTuple):
    """The fields of a batch before its records, in their order. See the module."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    checksum: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def compression(self) -> int:
        """How the records are compressed: 0 not, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & _COMPRESSION_MASK

    @property
    def is_compressed(self) -> bool:
        """Whether the records are compressed."""
        return self.compression != 0

    @property
    def is_idempotent(self) -> bool:
        """Whether the batch has a place among those of its producer."""
        return self.producer_id >= 0

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.base_offset + self.last_offset_delta + 1


class TimedOffset(NamedTuple):
    """A record, found by its time."""

    offset: int
    time_ms: int


class BatchLimits(NamedTuple):
    """The bounds of the batches that a topic accepts."""

    bytes_max: int
    """Of a batch with its header."""
    ahead_ms_max: int
    """How far the latest time in a batch may lie ahead of the leader's clock."""


def read_header(batch: bytes | memoryview) -> BatchHeader | None:
    """The header of a stored entry; None where the entry is no batch.

    An entry of another program is none. Nothing but its form is looked at: bookies keep what was stored (rule I3).
    """
    if len(batch) < HEADER_BYTES or batch[_MAGIC_AT] != _MAGIC:
        return None
    header = BatchHeader._make(_HEADER.unpack_from(batch))
    if header.length != len(batch) - _LENGTH_FROM or header.base_offset < 0:
        return None
    return header if header.record_count == header.last_offset_delta + 1 > 0 else None


def checked_batch(batch: memoryview, limits: BatchLimits, now_ms: int) -> BatchHeader:
    """The header of a batch that a producer has sent, once everything about it has been found sound (rule K1).

    ``now_ms``: the leader's clock.

    Raises:
        RefusedError: The batch is not accepted.
    """
    size = len(batch)
    if size > limits.bytes_max:
        raise RefusedError(Code.MESSAGE_TOO_LARGE, f"the batch has {size} bytes; the topic takes {limits.bytes_max}")
    if size > _MAGIC_AT and batch[_MAGIC_AT] != _MAGIC:
        text = f"the batch has the format {batch[_MAGIC_AT]}; only format {_MAGIC} is accepted"
        raise RefusedError(Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, text)
    if size < HEADER_BYTES:
        raise _corrupt(f"{size} bytes are less than the header of a batch")
    header = BatchHeader._make(_HEADER.unpack_from(batch))
    _check_size(header, size)
    covered = bytes(batch[_COVERED_FROM:])
    if google_crc32c.value(covered) != header.checksum:
        raise _corrupt("the checksum of the batch does not match")
    _check_attributes(header.attributes)
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise _invalid(f"the batch has {header.record_count} records and the last offset {header.last_offset_delta}")
    if header.producer_id < -1 or (header.is_idempotent and min(header.producer_epoch, header.base_sequence) < 0):
        raise _invalid("the producer's id, epoch or sequence is below 0")
    if header.max_timestamp_ms > now_ms + limits.ahead_ms_max:
        text = f"a record has the time {header.max_timestamp_ms}, and it is {now_ms}"
        raise RefusedError(Code.INVALID_TIMESTAMP, text)
    if header.is_compressed:
        _check_compressed_count(header.record_count, size - HEADER_BYTES)
    else:
        _check_records(covered, HEADER_BYTES - _COVERED_FROM, header.record_count)
    return header


def stamped(batch: memoryview, base_offset: int, leader_epoch: int) -> bytes:
    """The batch with its place in the log: the entry that is stored."""
    return b"".join((_PREFIX.pack(base_offset, len(batch) - _LENGTH_FROM, leader_epoch), batch[_PREFIX.size :]))


def first_record_at(entry: bytes, batch: BatchHeader, time_ms: int) -> TimedOffset:
    """The first record of a stored batch with a time at or after the asked one; the batch's latest time is such a one.

    Of a compressed batch, which is not looked into, the first record, with the batch's latest time: a consumer that
    begins there gets a few earlier records, and misses none.
    """
    if not batch.is_compressed:
        at = HEADER_BYTES
        for index in range(batch.record_count):
            length, start = read_number(entry, at)
            record_time_ms = batch.base_timestamp_ms + read_number(entry, start + 1)[0]
            if record_time_ms >= time_ms:
                return TimedOffset(batch.base_offset + index, record_time_ms)
            at = start + length
    return TimedOffset(batch.base_offset, batch.max_timestamp_ms)


def _check_size(header: BatchHeader, size: int) -> None:
    if header.length == size - _LENGTH_FROM:
        return
    if HEADER_BYTES - _LENGTH_FROM <= header.length < size - _LENGTH_FROM:
        raise _invalid("more than one batch for a partition")
    raise _corrupt(f"the batch has {size} bytes and says {header.length + _LENGTH_FROM}")


def _check_attributes(attributes: int) -> None:
    compression = attributes & _COMPRESSION_MASK
    if compression > _COMPRESSION_MAX:
        raise RefusedError(Code.UNSUPPORTED_COMPRESSION_TYPE, f"the compression {compression} is not known")
    if attributes & _APPEND_TIME:
        raise _invalid("the times of records are those of their producer; the batch says that they are the leader's")
    if attributes & (_TRANSACTIONAL | _CONTROL):
        raise _invalid("transactions are not supported")
    if attributes & ~_COMPRESSION_MASK:
        raise _invalid(f"the attributes {attributes:#06x} are not known")


def _check_compressed_count(count: int, size: int) -> None:
    unpacked_bytes_max = min(UNPACKED_BYTES_MAX, size * UNPACKED_TIMES_MAX)
    if count * RECORD_BYTES_MIN > unpacked_bytes_max:
        raise _invalid(f"{size} bytes cannot hold {count} records")


def _check_records(covered: bytes, at: int, count: int) -> None:
    """Walk over uncompressed records: they fill the batch, and their offsets are 0, 1, 2, ..."""
    size = len(covered)
    if count * RECORD_BYTES_MIN > size - at:
        raise _invalid(f"{size - at} bytes cannot hold {count} records")
    try:
        for expected in range(count):
            length, at = read_number(covered, at)
            stop = at + length
            if length < RECORD_BYTES_MIN - 1 or stop > size:
                raise _invalid(f"record {expected} has the length {length}")
            _, at = read_number(covered, at + 1)  # its time
            offset, at = read_number(covered, at)
            if offset != expected or at > stop:
                raise _invalid(f"record {expected} has the offset {offset}")
            at = stop
    except IndexError as error:
        raise _invalid("a record goes on behind the end of the batch") from error
    if at != size:
        raise _invalid(f"{size - at} bytes follow the last record")


_NUMBER_BYTES_MAX: Final = 10


def read_number(data: bytes, at: int) -> tuple[int, int]:
    """A number of one to ten bytes, and the place behind it.

    Raises:
        IndexError: The data end within the number.
        RefusedError: The number is too long.
    """
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    value, shift = byte & 0x7F, 7
    for place in range(at + 1, at + _NUMBER_BYTES_MAX):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), place + 1
        shift += 7
    raise _invalid("a number in a record is too long")


def _corrupt(text: str) -> RefusedError:
    return RefusedError(Code.CORRUPT_MESSAGE, text)


def _invalid(text: str) -> RefusedError:
    return RefusedError(Code.INVALID_RECORD, text)
