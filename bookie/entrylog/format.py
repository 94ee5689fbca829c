"""Bytes of entry logs: large append-only files of sealed entries, back to back, and of their totals. Pure.

A log is a header of 32 bytes (magic ``OCTVELOG``, format u32 (1), log id u64, 8 bytes of zero, CRC32C u32 of what
precedes; big-endian, the checksum little-endian) followed by sealed entries in the layout of ``protocol.entries``. An
entry is a record of its own: it contains its length, its ledger and its checksum, so that a log can be read and
scrubbed without an index or a password. Bytes after the length that the manifest gives for a log are left over from
a crash and are ignored.

A finished log has a side file ``<log>.totals``: magic ``OCTVTOTL``, format u32, log id u64, count u32, then ledger id
u64 and bytes u64 of each ledger with entries in the log, ascending, and a CRC32C. Compaction uses it; a scan of the log
recreates it.
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
    """The side file of a finished log: bytes per ledger."""
    body = _TOTALS.pack(TOTALS_MAGIC, FORMAT, log_id, len(totals)) + b"".join(
        _TOTAL.pack(ledger_id, totals[ledger_id]) for ledger_id in sorted(totals)
    )
    return body + _CHECKSUM.pack(google_crc32c.value(body))


def decode_totals(log_id: int, data: bytes) -> dict[int, int] | None:
    """The argument of :func:`encode_totals`; None when the checksum is wrong: then scan the log instead."""
    body = data[: -_CHECKSUM.size]
    if len(body) < _TOTALS.size or data[len(body) :] != _CHECKSUM.pack(google_crc32c.value(body)):
        return None
    magic, version, named, count = _TOTALS.unpack_from(body)
    if (magic, version, named) != (TOTALS_MAGIC, FORMAT, log_id):
        return None
    return dict(_TOTAL.unpack_from(body, _TOTALS.size + at * _TOTAL.size) for at in range(count))
