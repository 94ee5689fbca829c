"""The manifest: the one file that says which index parts and entry logs count, and up to where the journal is in
them. Pure.

It is replaced atomically, so a checkpoint happens at one instant: before it the journal from the old mark on is
replayed over the old parts, after it from the new mark over the new ones. The mark is in it for that reason, and
needs no file of its own.

Magic ``OCTVMFST``, format u32 (1), flags u8 (1: there is a mark, 2: the bookie is in doubt), mark segment u64, mark
offset u64, next part id u64, next log id u64, count of parts u32, count of logs u32; per part, oldest first: id u64;
per log, ascending: id u64, length u64 in bytes; if in doubt: the ledger id u64 at which doubt ends; CRC32C u32,
little-endian. All other integers big-endian.
"""

import struct
from typing import NamedTuple

import google_crc32c

MAGIC = b"OCTVMFST"
FORMAT = 1
_HEAD = struct.Struct(">8sIBQQQQII")
_PART = struct.Struct(">Q")
_LOG = struct.Struct(">QQ")
_DOUBT = struct.Struct(">Q")
_CHECKSUM = struct.Struct("<I")
_MARKED, _IN_DOUBT = 1, 2

EVERY_LEDGER = 2**64 - 1
"""``doubt_stop`` of a bookie that does not know yet which ledgers existed when its doubt began."""


class Manifest(NamedTuple):
    """What a checkpoint made durable."""

    mark: tuple[int, int] | None
    """Journal segment and offset: everything before is in the parts and logs. None: replay the whole journal."""
    next_part_id: int
    next_log_id: int
    part_ids: tuple[int, ...]
    """Oldest first: the newer of two wins."""
    logs: tuple[tuple[int, int], ...]
    """Log id and the bytes of it that count."""
    doubt_stop: int | None = None
    """Of ledgers with lower ids acknowledged data or fences may have been lost here (rule B4); None: of none."""


EMPTY = Manifest(None, 1, 1, (), ())


def encode_manifest(manifest: Manifest) -> bytes:
    segment, offset = manifest.mark or (0, 0)
    flags = (_MARKED if manifest.mark is not None else 0) | (_IN_DOUBT if manifest.doubt_stop is not None else 0)
    body = _HEAD.pack(
        MAGIC, FORMAT, flags, segment, offset, manifest.next_part_id, manifest.next_log_id,
        len(manifest.part_ids), len(manifest.logs),
    )  # fmt: skip
    body += b"".join(map(_PART.pack, manifest.part_ids)) + b"".join(_LOG.pack(*log) for log in manifest.logs)
    if manifest.doubt_stop is not None:
        body += _DOUBT.pack(manifest.doubt_stop)
    return body + _CHECKSUM.pack(google_crc32c.value(body))


def decode_manifest(data: bytes) -> Manifest:
    """Raises :class:`ValueError` with the reason for bytes that are not an intact manifest of a known format."""
    body = data[: -_CHECKSUM.size]
    if len(body) < _HEAD.size or data[len(body) :] != _CHECKSUM.pack(google_crc32c.value(body)):
        raise ValueError("its checksum does not match its bytes")
    magic, version, flags, segment, offset, next_part_id, next_log_id, parts, logs = _HEAD.unpack_from(body)
    if magic != MAGIC or version != FORMAT:
        raise ValueError(f"not a manifest of format {FORMAT} (format {version})")
    start = _HEAD.size
    middle = start + parts * _PART.size
    end = middle + logs * _LOG.size
    doubt_stop = _DOUBT.unpack_from(body, end)[0] if flags & _IN_DOUBT else None
    return Manifest(
        (segment, offset) if flags & _MARKED else None,
        next_part_id,
        next_log_id,
        tuple(part_id for (part_id,) in _PART.iter_unpack(body[start:middle])),
        tuple((log_id, size) for log_id, size in _LOG.iter_unpack(body[middle:end])),
        doubt_stop,
    )
