"""Bytes of entry logs: large append-only files of sealed entries, back to back, and of their totals. Pure.

A log is a header of 32 bytes (magic ``OCTVELOG``, format u32 (2), log id u64, 8 bytes of zero, CRC32C u32 of what
precedes; big-endian, the checksum little-endian) followed by sealed entries in the layout of ``protocol.entries``. An
entry is a record of its own: it contains its length, its ledger and its checksum, so that a log can be read and
scrubbed without an index or a password. Bytes after the length that the manifest gives for a log are left over from
a crash and are ignored.

Where a manifest may count a log that is written on afterwards, a *filler* ends its last page: magic (4 bytes), the
filler's length u32, zeros, CRC32C u32 (little-endian) of what precedes. The next entry begins in a page of its own, so
no later write touches a page with entries that the journal no longer holds (rule B3). Format 1 had no fillers; such
logs are read in the same way.

A finished log has a side file ``<log>.totals``: magic ``OCTVTOTL``, format u32, log id u64, count u32, then ledger id
u64 and bytes u64 of each ledger with entries in the log, ascending, and a CRC32C. Compaction uses it; a scan of the log
finds the same. In format 2 the highest entry id of the ledger in this log, u64, follows the bytes: it tells whether a
trim has left anything of them (rule U5). It is written where an id is as high as that of a place, and format 1 where
none is. A version that does not know format 2 scans the log.
"""

import struct
from collections.abc import Mapping
from typing import NamedTuple

import google_crc32c
from octavo.protocol.places import place

MAGIC = b"OCTVELOG"
TOTALS_MAGIC = b"OCTVTOTL"
FILLER_MAGIC = b"\0FIL"
"""The first byte of a sealed entry is its format, which is not 0."""
FORMAT = 2
TOTALS_FORMAT = 1
TOTALS_FORMAT_HIGHEST = 2
_FORMATS = (1, 2)
PAGE_BYTES = 4096
"""What the kernel writes as a whole."""
_HEADER = struct.Struct(">8sIQ8x")
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CHECKSUM.size
_FILLER = struct.Struct(">4sI")
FILLER_BYTES_MIN = _FILLER.size + _CHECKSUM.size
FILLER_BYTES_MAX = PAGE_BYTES + FILLER_BYTES_MIN - 1
_TOTALS = struct.Struct(">8sIQI")
_TOTAL = struct.Struct(">QQ")
_TOTAL_HIGHEST = struct.Struct(">QQQ")
_FIRST_PLACE = place(1, 0)


class Total(NamedTuple):
    """The amount that a log has of one ledger."""

    bytes: int
    highest: int | None
    """The highest entry id; None: not known."""

    def is_live(self, first_kept: int) -> bool:
        """Whether a trim has left some of it, or may have."""
        return self.highest is None or self.highest >= first_kept


type Totals = dict[int, Total]
"""By ledger."""


def add_to_totals(totals: Totals, ledger_id: int, size: int, highest: int | None) -> None:
    """Count ``size`` bytes more of a ledger, with entry ids up to ``highest``."""
    known = totals.get(ledger_id)
    if known is not None:
        size += known.bytes
        highest = max((one for one in (highest, known.highest) if one is not None), default=None)
    totals[ledger_id] = Total(size, highest)


def log_name(log_id: int) -> str:
    """File name of a log."""
    return f"{log_id:016x}.log"


def encode_header(log_id: int, version: int = FORMAT) -> bytes:
    head = _HEADER.pack(MAGIC, version, log_id)
    return head + _CHECKSUM.pack(google_crc32c.value(head))


def is_header(log_id: int, data: bytes) -> bool:
    """Whether these bytes are the header of that log, in a format that this version reads."""
    return any(data == encode_header(log_id, version) for version in _FORMATS)


def encode_filler(offset: int) -> bytes:
    """The bytes that fill a log from an offset to the end of a page: nothing at the start of a page, otherwise up to
    the next page, or the one after it if a filler does not fit."""
    size = -offset % PAGE_BYTES
    if not size:
        return b""
    if size < FILLER_BYTES_MIN:
        size += PAGE_BYTES
    body = _FILLER.pack(FILLER_MAGIC, size).ljust(size - _CHECKSUM.size, b"\0")
    return body + _CHECKSUM.pack(google_crc32c.value(body))


def is_filler(offset: int, data: bytes) -> bool:
    """Whether ``data`` begins with the filler of that offset."""
    if not data.startswith(FILLER_MAGIC):
        return False
    filler = encode_filler(offset)
    return bool(filler) and data.startswith(filler)


def encode_totals(log_id: int, totals: Mapping[int, Total]) -> bytes:
    """The side file of a finished log."""
    with_highest = any(total.highest is not None and total.highest >= _FIRST_PLACE for total in totals.values())
    version = TOTALS_FORMAT_HIGHEST if with_highest else TOTALS_FORMAT
    parts = [_TOTALS.pack(TOTALS_MAGIC, version, log_id, len(totals))]
    for ledger_id in sorted(totals):
        size, highest = totals[ledger_id]
        parts.append(
            _TOTAL_HIGHEST.pack(ledger_id, size, highest or 0) if with_highest else _TOTAL.pack(ledger_id, size)
        )
    body = b"".join(parts)
    return body + _CHECKSUM.pack(google_crc32c.value(body))


def decode_totals(log_id: int, data: bytes) -> Totals | None:
    """The argument of :func:`encode_totals`, without highest ids that are not stored; None when the checksum is wrong:
    then scan the log instead."""
    body = data[: -_CHECKSUM.size]
    if len(body) < _TOTALS.size or data[len(body) :] != _CHECKSUM.pack(google_crc32c.value(body)):
        return None
    magic, version, named, count = _TOTALS.unpack_from(body)
    if (magic, named) != (TOTALS_MAGIC, log_id):
        return None
    start = _TOTALS.size
    if version == TOTALS_FORMAT:
        return {
            ledger_id: Total(size, None)
            for ledger_id, size in _TOTAL.iter_unpack(body[start : start + count * _TOTAL.size])
        }
    if version != TOTALS_FORMAT_HIGHEST:
        return None
    found = _TOTAL_HIGHEST.iter_unpack(body[start : start + count * _TOTAL_HIGHEST.size])
    return {ledger_id: Total(size, highest) for ledger_id, size, highest in found}
