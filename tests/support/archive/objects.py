"""Objects for tests of the archive: of one ledger, small, with an index of many points."""

from collections.abc import Sequence

from octavo.bookie.archive.format import Head, IdRange, decode_tail, make_head
from octavo.bookie.archive.opening import ByteRange, OpenObject, head_range, index_range, tail_range
from octavo.bookie.archive.writing import ObjectWriter, Written
from octavo.protocol.ids import LedgerId
from octavo.protocol.quorums import Quorums
from support.clusters.ledgers import LedgerScript

TOKEN = bytes(range(16))
INDEX_EVERY_BYTES = 300


def head_of(*ranges: tuple[int, int], ledger_id: int = 9, token: bytes = TOKEN) -> Head:
    return make_head(token, LedgerId(ledger_id), Quorums(3, 3, 2), [IdRange(*ids) for ids in ranges])


def ids_in(head: Head) -> list[int]:
    return [entry_id for first, last in head.ranges for entry_id in range(first, last + 1)]


def write_object(
    head: Head,
    *,
    entries: Sequence[bytes] | None = None,
    batch: int = 4,
    part_bytes: int = 1000,
    index_every_bytes: int = INDEX_EVERY_BYTES,
) -> tuple[list[bytes], Written]:
    """The parts of an object with this head."""
    if entries is None:
        entries = LedgerScript(head.ledger_id).entries(ids_in(head))
    writer = ObjectWriter(head, part_bytes=part_bytes, index_every_bytes=index_every_bytes)
    parts = []
    for start in range(0, len(entries), batch):
        parts += writer.add(entries[start : start + batch])
    last, written = writer.finish()
    return parts + last, written


def slice_of(data: bytes, where: ByteRange) -> bytes:
    return data[where.start : where.stop]


def open_object(data: bytes, head: Head) -> OpenObject:
    """Open an object as a reader does that fetches ranges of it."""
    tail = decode_tail(slice_of(data, tail_range(len(data))), len(data))
    return OpenObject.open(head.name, slice_of(data, head_range(tail)), slice_of(data, index_range(tail)), tail)
