"""The records of a stored batch, for people and tools. Pure.

The gateway serves batches as they are and never looks into compressed ones; this is for those that look at what is
stored. The fields of a record behind its length are its attributes (a byte, unused), its time and its offset as
differences from the batch's first, its key and value (a length and bytes; the length -1: there is none), and its
headers: their number, and of each the name and the value, in the same form. All but the first are numbers as
:mod:`octavo.gateway.records.batch` describes them.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.records.batch import (
    HEADER_BYTES,
    UNPACKED_BYTES_MAX,
    BatchHeader,
    BatchLimits,
    checked_batch,
    read_number,
)
from octavo.gateway.records.unpacking import unpacked

_ANY: Final = BatchLimits(bytes_max=UNPACKED_BYTES_MAX, ahead_ms_max=0)
_ALWAYS_MS: Final = 2**63
"""No time of a record lies behind it: the batch was accepted already."""


class Header(NamedTuple):
    """A header of a record."""

    name: bytes
    value: bytes | None


class Record(NamedTuple):
    """A record as its producer has sent it, with its offset."""

    offset: int
    time_ms: int
    """Of its producer, since 1970."""
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


def records_of(entry: bytes) -> Iterator[Record]:
    """The records of a stored entry in their order.

    Raises:
        RefusedError: The entry is no batch, or its records are damaged.
        MissingCodecError: The records are compressed, and what unpacks them is not installed.
    """
    batch = checked_batch(memoryview(entry), _ANY, _ALWAYS_MS)
    if batch.base_offset < 0:
        raise _damaged(f"the base offset is {batch.base_offset}")
    return _records(unpacked(batch.compression, entry[HEADER_BYTES:], UNPACKED_BYTES_MAX), batch)


def _records(data: bytes, batch: BatchHeader) -> Iterator[Record]:
    at = 0
    for index in range(batch.record_count):
        try:
            length, start = read_number(data, at)
            at = start + length
            if length < 1 or at > len(data):
                raise _damaged(f"record {index} has the length {length}")
            record = _record(data[start:at], batch, index)
        except IndexError as error:
            raise _damaged(f"record {index} goes on behind its end") from error
        yield record
    if at != len(data):
        raise _damaged(f"{len(data) - at} bytes follow the last record")


def _record(data: bytes, batch: BatchHeader, index: int) -> Record:
    time_delta_ms, at = read_number(data, 1)
    _, at = read_number(data, at)  # its offset: see the module of batches
    key, at = _field(data, at)
    value, at = _field(data, at)
    count, at = read_number(data, at)
    headers = []
    for _ in range(count):
        name, at = _field(data, at)
        content, at = _field(data, at)
        headers.append(Header(name or b"", content))
    if at != len(data) or count < 0:
        raise _damaged(f"record {index} does not end where it says")
    return Record(batch.base_offset + index, batch.base_timestamp_ms + time_delta_ms, key, value, tuple(headers))


def _field(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Bytes with their length before them, and the place behind them."""
    length, at = read_number(data, at)
    if length < 0:
        return None, at
    return data[at : at + length], at + length


def _damaged(text: str) -> RefusedError:
    return RefusedError(Code.INVALID_RECORD, text)
