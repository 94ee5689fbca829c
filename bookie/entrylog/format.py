"""Bytes of entry logs: large append-only files of sealed entries, back to back, and of their totals. Pure.

A log is a header of 32 bytes (magic ``OCTVELOG``, format u32 (1), log id u64, 8 bytes of zero, CRC32C u32 of what
precedes; big-endian, the checksum little-endian) and then sealed entries as ``protocol.entries`` lays them out. An
entry is its own record: it says how long it is, whose it is, and carries its own checksum, so a log can be walked
and scrubbed without an index or a password. Bytes after the length that the manifest gives a log are left over from
a crash and mean nothing.

Beside a finished log stands ``<log>.totals``: magic ``OCTVTOTL``, format u32, log id u64, count u32, then ledger id
u64 and bytes u64 of each ledger with entries in it, ascending, and a CRC32C. It serves compaction and can be made
again by a scan.
"""

import struct
from collections.abc import Mapping

import google_crc32c

MAGIC = b"OCTVELOG"
TOTALS_MAGIC = b"OCTVTOTL"
FORMAT = 1
_HEADER = struct.Struct(">8sIQ8x")
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CHECKSUM.size
_TOTALS = struct.Struct(">8sIQI")
_TOTAL = struct.Struct(">QQ")


def log_name(log_id: int) -> str:
    """File name of a log."""
    return f"{log_id:016x}.log"


def encode_header(log_id: int) -> bytes:
    head = _HEADER.pack(MAGIC, FORMAT, log_id)
    return head + _CHECKSUM.pack(google_crc32c.value(head))


def encode_totals(log_id: int, totals: Mapping[int, int]) -> bytes:
    """The side file of a finished log: bytes of each ledger in it."""
    body = _TOTALS.pack(TOTALS_MAGIC, FORMAT, log_id, len(totals)) + b"".join(
        _TOTAL.pack(ledger_id, totals[ledger_id]) for ledger_id in sorted(totals)
    )
    return body + _CHECKSUM.pack(google_crc32c.value(body))


def decode_totals(log_id: int, data: bytes) -> dict[int, int] | None:
    """What :func:`encode_totals` was given; None when the bytes do not verify: scan the log instead."""
    body = data[: -_CHECKSUM.size]
    if len(body) < _TOTALS.size or data[len(body) :] != _CHECKSUM.pack(google_crc32c.value(body)):
        return None
    magic, version, named, count = _TOTALS.unpack_from(body)
    if (magic, version, named) != (TOTALS_MAGIC, FORMAT, log_id):
        return None
    return dict(_TOTAL.unpack_from(body, _TOTALS.size + at * _TOTAL.size) for at in range(count))
