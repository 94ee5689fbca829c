"""Record batches for tests, made without the code that checks them."""

import struct
from typing import Any

import google_crc32c


def number(value: int) -> bytes:
    """A number as records hold it: zigzag, seven bits a byte, the lowest first."""
    value = value * 2 if value >= 0 else -value * 2 - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def record(offset: int, value: bytes, *, key: bytes | None = None, time: int = 0) -> bytes:
    """One record without headers, with its length."""
    body = b"\0" + number(time) + number(offset)
    body += number(-1) if key is None else number(len(key)) + key
    body += number(len(value)) + value + number(0)
    return number(len(body)) + body


def batch_of(*values: bytes, records: bytes | None = None, **fields: Any) -> bytes:
    """A batch of records with these values. ``fields`` replaces any field of the header; ``crc`` also a wrong one."""
    count = fields.pop("count", len(values))
    body = b"".join(record(offset, value) for offset, value in enumerate(values)) if records is None else records
    covered = struct.pack(
        ">hiqqqhii",
        fields.pop("attributes", 0),
        fields.pop("last_offset_delta", count - 1),
        fields.pop("base_timestamp", 1_000),
        fields.pop("max_timestamp", 1_000),
        fields.pop("producer_id", -1),
        fields.pop("producer_epoch", -1),
        fields.pop("base_sequence", -1),
        count,
    )
    covered += body
    crc = fields.pop("crc", google_crc32c.value(covered))
    head = struct.pack(
        ">qiibI",
        fields.pop("base_offset", 0),
        fields.pop("length", 9 + len(covered)),
        fields.pop("leader_epoch", -1),
        fields.pop("magic", 2),
        crc,
    )
    assert not fields, fields
    return head + covered
