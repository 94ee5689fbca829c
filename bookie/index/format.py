"""Bytes of an index part: an immutable, sorted file of runs and ledger states. Pure.

A part is a header, blocks, a footer and a tail. All integers are big-endian but for checksums and the arrays inside a
run, which are little-endian.

=========  =====================================================================================================
part       bytes
=========  =====================================================================================================
header     magic ``OCTVINDX``, format u32 (1), part id u64, CRC32C u32 of what precedes: 24 bytes
block      body, then CRC32C u32 seeded by part id and file offset, so that a block read elsewhere never verifies
footer     count u32, then per block: kind u8 (1 runs, 2 states), offset u64, body length u32, first and last key,
           each ledger id u64 and entry id u64; CRC32C u32 of what precedes, seeded as a block's
tail       footer offset u64, footer length u32 without its checksum, part id u64, CRC32C u32, magic: 32 bytes
=========  =====================================================================================================

A block of *runs* holds them back to back in order of (ledger, first entry id), each: ledger id u64, first id u64,
log id u64, offset u64, count u32, kind of ids u8, kind of sizes u8, then the ids (0: stride u64; 1: bitmap, its
length u32, bit i of it saying that ``first + i`` is there; 2: every id as u64) and the sizes (0: one u32 for all; 1:
u16 each; 2: u32 each). A block of *states* holds, in order of ledger id: ledger id u64, length u16, state
(``ledger_state``).
"""

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import compress
from pathlib import PurePath
from typing import NamedTuple

import google_crc32c
from octavo.bookie.index.runs import Run
from octavo.protocol.errors import BookieStorageError

MAGIC = b"OCTVINDX"
FORMAT = 1
BLOCK_BODY_BYTES_TARGET = 16 * 1024
"""Body size at which a block is closed: some 300 runs, decoded in well under a millisecond."""
BLOCK_BODY_BYTES_MAX = 128 * 1024
"""Maximum size of a block's body (the target plus one run of RUN_ENTRIES_MAX ids): bounds what a damaged length makes
the bookie read."""

_HEADER = struct.Struct(">8sIQ")
_TAIL = struct.Struct(">QIQ")
_CHECKSUM = struct.Struct("<I")
_FOOTER_COUNT = struct.Struct(">I")
_FOOTER_BLOCK = struct.Struct(">BQIQQQQ")
_SEED = struct.Struct(">QQ")
_RUN = struct.Struct(">QQQQIBB")
_STATE = struct.Struct(">QH")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")

HEADER_BYTES = _HEADER.size + _CHECKSUM.size
TAIL_BYTES = _TAIL.size + _CHECKSUM.size + len(MAGIC)
CHECKSUM_BYTES = _CHECKSUM.size

KIND_RUNS = 1
KIND_STATES = 2

Key = tuple[int, int]
"""(ledger id, entry id): the order of everything in a part."""


class IndexDamagedError(BookieStorageError):
    """Bytes of the index are damaged. The entries they described are unknown, never absent (rule R2). Names file and
    offset.

    ``first`` and ``last`` bound the entry ids, of the ledger looked up, whose places are unknown. ``keys`` are the
    first and the last key of a damaged block of runs; None for damage of anything else.
    """

    def __init__(
        self,
        path: PurePath,
        offset: int,
        what: str,
        *,
        first: int = 0,
        last: int = 2**64 - 1,
        keys: tuple[Key, Key] | None = None,
    ) -> None:
        super().__init__(f"index file {path}, offset {offset}: {what}", may_have_happened=False)
        self.path = path
        self.offset = offset
        self.what = what
        self.first = first
        self.last = last
        self.keys = keys


class IndexUnreadableError(IndexDamagedError):
    """The disk failed to read bytes of the index; another attempt may succeed."""


class BlockEntry(NamedTuple):
    """The footer's entry for one block. The keys are those of its first and last item, both inclusive."""

    kind: int
    offset: int
    length: int
    first_key: Key
    last_key: Key


def checksum(part_id: int, offset: int, body: bytes) -> bytes:
    """The CRC32C that follows ``body`` at ``offset`` of that part."""
    return _CHECKSUM.pack(google_crc32c.extend(google_crc32c.value(_SEED.pack(part_id, offset)), body))


def encode_header(part_id: int) -> bytes:
    head = _HEADER.pack(MAGIC, FORMAT, part_id)
    return head + _CHECKSUM.pack(google_crc32c.value(head))


def encode_footer(part_id: int, offset: int, blocks: Sequence[BlockEntry]) -> bytes:
    """Footer and tail, to be written at ``offset``."""
    parts = [_FOOTER_COUNT.pack(len(blocks))]
    parts += [
        _FOOTER_BLOCK.pack(block.kind, block.offset, block.length, *block.first_key, *block.last_key)
        for block in blocks
    ]
    body = b"".join(parts)
    tail = _TAIL.pack(offset, len(body), part_id)
    return body + checksum(part_id, offset, body) + tail + _CHECKSUM.pack(google_crc32c.value(tail)) + MAGIC


def decode_tail(tail: bytes, part_id: int, file_bytes: int) -> tuple[int, int] | None:
    """Offset and length of the footer; None when the bytes are not this part's tail."""
    if len(tail) != TAIL_BYTES or not tail.endswith(MAGIC):
        return None
    offset, length, named = _TAIL.unpack_from(tail)
    (crc,) = _CHECKSUM.unpack_from(tail, _TAIL.size)
    if crc != google_crc32c.value(tail[: _TAIL.size]) or named != part_id:
        return None
    if offset + length + CHECKSUM_BYTES + TAIL_BYTES != file_bytes:
        return None
    return offset, length


def verified_body(part_id: int, offset: int, stored: bytes, length: int) -> bytes | None:
    """The body of a block read from ``offset`` (body and checksum); None when the checksum is wrong."""
    body = stored[:length]
    if len(stored) != length + CHECKSUM_BYTES or stored[length:] != checksum(part_id, offset, body):
        return None
    return body


def decode_footer(body: bytes) -> list[BlockEntry]:
    """The blocks in a verified footer, in order."""
    (count,) = _FOOTER_COUNT.unpack_from(body)
    blocks = []
    for at in range(_FOOTER_COUNT.size, _FOOTER_COUNT.size + count * _FOOTER_BLOCK.size, _FOOTER_BLOCK.size):
        kind, offset, length, *keys = _FOOTER_BLOCK.unpack_from(body, at)
        blocks.append(BlockEntry(kind, offset, length, (keys[0], keys[1]), (keys[2], keys[3])))
    return blocks


# --- runs -----------------------------------------------------------------------------------------------------------


def _little_endian(values: "array[int]") -> bytes:
    if sys.byteorder == "big":
        values = array(values.typecode, values)
        values.byteswap()
    return values.tobytes()


def _from_little_endian(typecode: str, data: bytes) -> "array[int]":
    values = array(typecode)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _encode_bitmap(first: int, last: int, ids: Sequence[int]) -> bytes:
    bits = bytearray((last - first) // 8 + 1)
    for entry_id in ids:
        at = entry_id - first
        bits[at >> 3] |= 1 << (at & 7)
    return bytes(bits)


def _decode_bitmap(first: int, bitmap: bytes) -> "array[int]":
    digits = bin(int.from_bytes(bitmap, "little"))[:1:-1]
    return array("Q", compress(range(first, first + len(digits)), map(int, digits)))


def encode_run(ledger_id: int, run: Run) -> bytes:
    """Encode a run whose place is an entry log."""
    assert isinstance(run.place, int), "only runs in entry logs are indexed"
    count = len(run.ids)
    if isinstance(run.ids, range):
        ids_kind, ids = 0, _U64.pack(run.ids.step)
    elif (run.last - run.first) // 8 < 8 * count:
        bitmap = _encode_bitmap(run.first, run.last, run.ids)
        ids_kind, ids = 1, _U32.pack(len(bitmap)) + bitmap
    else:
        ids_kind, ids = 2, _little_endian(run.ids)
    if isinstance(run.sizes, int):
        sizes_kind, sizes = 0, _U32.pack(run.sizes)
    elif run.sizes.typecode == "H":
        sizes_kind, sizes = 1, _little_endian(run.sizes)
    else:
        sizes_kind, sizes = 2, _little_endian(run.sizes)
    return _RUN.pack(ledger_id, run.first, run.place, run.offset, count, ids_kind, sizes_kind) + ids + sizes


def decode_runs(body: bytes) -> Iterator[tuple[int, Run]]:
    """(ledger id, run) of every run in a verified block."""
    at = 0
    while at < len(body):
        ledger_id, first, log_id, offset, count, ids_kind, sizes_kind = _RUN.unpack_from(body, at)
        at += _RUN.size
        ids: range | array[int]
        sizes: int | array[int]
        if ids_kind == 0:
            (stride,) = _U64.unpack_from(body, at)
            at += 8
            ids = range(first, first + (count - 1) * stride + 1, stride)
        elif ids_kind == 1:
            (length,) = _U32.unpack_from(body, at)
            ids = _decode_bitmap(first, body[at + 4 : at + 4 + length])
            at += 4 + length
        else:
            ids = _from_little_endian("Q", body[at : at + 8 * count])
            at += 8 * count
        if sizes_kind == 0:
            (sizes,) = _U32.unpack_from(body, at)
            at += 4
        else:
            width = 2 if sizes_kind == 1 else 4
            sizes = _from_little_endian("H" if sizes_kind == 1 else "I", body[at : at + width * count])
            at += width * count
        yield ledger_id, Run(first, ids[-1], ids, sizes, log_id, offset)


# --- states ---------------------------------------------------------------------------------------------------------


def encode_state(ledger_id: int, state: bytes) -> bytes:
    return _STATE.pack(ledger_id, len(state)) + state


def decode_states(body: bytes) -> Iterator[tuple[int, bytes]]:
    """(ledger id, encoded state) of every state in a verified block."""
    at = 0
    while at < len(body):
        ledger_id, length = _STATE.unpack_from(body, at)
        at += _STATE.size
        yield ledger_id, body[at : at + length]
        at += length
