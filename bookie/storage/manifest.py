"""The manifest: the one file that says which index parts and entry logs count, and up to where the journal is in
them. Pure.

It is replaced atomically, so a checkpoint happens at one instant: before it the journal from the old mark on is
replayed over the old parts, after it from the new mark over the new ones. The mark is in it for that reason, and
needs no file of its own.

Magic ``OCTVMFST``, format u32 (1), flags u8 (1: there is a mark, 2: the bookie is in doubt), mark segment u64, mark
offset u64, next part id u64, next log id u64, count of parts u32, count of logs u32; per part, oldest first: id u64;
per log, ascending: id u64, length u64 in bytes; if in doubt: the ledger id u64 at which doubt ends; if sure of some of
those ledgers (flag 4): the ledger id u64 below which the bookie is sure, count u32 of exceptions, per exception,
ascending: ledger id u64, first unsure entry id u64; if it knows term floors (flag 8): their count u32, per floor,
ascending: ledger id u64, term u32; CRC32C u32, little-endian. All other integers big-endian.

A version that does not know flag 4 reads such a manifest as one of a bookie that is unsure of every ledger in doubt. A
version that does not know flag 8 refuses ordinary adds of every term to the ledgers in doubt.
"""

import struct
from typing import NamedTuple

import google_crc32c
from octavo.protocol.held_entries import Doubt

MAGIC = b"OCTVMFST"
FORMAT = 1
_HEAD = struct.Struct(">8sIBQQQQII")
_PART = struct.Struct(">Q")
_LOG = struct.Struct(">QQ")
_DOUBT = struct.Struct(">Q")
_SURE = struct.Struct(">QI")
_EXCEPTION = struct.Struct(">QQ")
_FLOORS = struct.Struct(">I")
_FLOOR = struct.Struct(">QI")
_CHECKSUM = struct.Struct("<I")
_MARKED, _IN_DOUBT, _SURE_OF_SOME, _TERM_FLOORS = 1, 2, 4, 8

EVERY_LEDGER = 2**64 - 1
"""``stop`` of the doubt of a bookie that does not know yet which ledgers existed when its doubt began."""

DOUBT_OF_EVERY_LEDGER = Doubt(EVERY_LEDGER)
"""The doubt that begins. An earlier one, of whose ledgers the bookie had become sure, is part of it."""


class Manifest(NamedTuple):
    """The state that a checkpoint made durable."""

    mark: tuple[int, int] | None
    """Journal segment and offset: everything before is in the parts and logs. None: replay the whole journal."""
    next_part_id: int
    next_log_id: int
    part_ids: tuple[int, ...]
    """Oldest first: the newer of two wins."""
    logs: tuple[tuple[int, int], ...]
    """Log id and the bytes of it that count."""
    doubt: Doubt | None = None
    """Of which ledgers acknowledged data or fences may have been lost here (rule B4); None: of none, ever."""


EMPTY = Manifest(None, 1, 1, (), ())


def encode_manifest(manifest: Manifest) -> bytes:
    segment, offset = manifest.mark or (0, 0)
    doubt = manifest.doubt
    flags = (
        (_MARKED if manifest.mark is not None else 0)
        | (_IN_DOUBT if doubt is not None else 0)
        | (_SURE_OF_SOME if doubt is not None and doubt.sure_below else 0)
        | (_TERM_FLOORS if doubt is not None and doubt.term_floors else 0)
    )
    body = _HEAD.pack(
        MAGIC, FORMAT, flags, segment, offset, manifest.next_part_id, manifest.next_log_id,
        len(manifest.part_ids), len(manifest.logs),
    )  # fmt: skip
    body += b"".join(map(_PART.pack, manifest.part_ids)) + b"".join(_LOG.pack(*log) for log in manifest.logs)
    if doubt is not None:
        body += _DOUBT.pack(doubt.stop)
        if doubt.sure_below:
            body += _SURE.pack(doubt.sure_below, len(doubt.exceptions))
            body += b"".join(_EXCEPTION.pack(*exception) for exception in sorted(doubt.exceptions.items()))
        if doubt.term_floors:
            body += _FLOORS.pack(len(doubt.term_floors))
            body += b"".join(_FLOOR.pack(*floor) for floor in sorted(doubt.term_floors.items()))
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
    doubt: Doubt | None = None
    if flags & _IN_DOUBT:
        doubt = Doubt(*_DOUBT.unpack_from(body, end))
        at = end + _DOUBT.size
        if flags & _SURE_OF_SOME:
            sure_below, count = _SURE.unpack_from(body, at)
            at += _SURE.size
            exceptions = body[at : at + count * _EXCEPTION.size]
            doubt = doubt.narrowed(sure_below, dict(_EXCEPTION.iter_unpack(exceptions)))
            at += len(exceptions)
        if flags & _TERM_FLOORS:
            (count,) = _FLOORS.unpack_from(body, at)
            at += _FLOORS.size
            floors = body[at : at + count * _FLOOR.size]
            doubt = doubt.with_term_floors(dict(_FLOOR.iter_unpack(floors)))
    return Manifest(
        (segment, offset) if flags & _MARKED else None,
        next_part_id,
        next_log_id,
        tuple(part_id for (part_id,) in _PART.iter_unpack(body[start:middle])),
        tuple((log_id, size) for log_id, size in _LOG.iter_unpack(body[middle:end])),
        doubt,
    )
