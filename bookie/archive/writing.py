"""Writes an object: entries in, parts of one size out. Pure; memory for one part and the index.

The writer is given the ranges first. It takes exactly their entries, in order, and verifies the checksum of each while
it passes (rule J1). After an error nothing more is taken, so that no object comes of it.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from octavo.bookie.archive.checksum import crc32
from octavo.bookie.archive.errors import ObjectTooLargeError, WrongEntryError
from octavo.bookie.archive.format import (
    INDEX_BYTES,
    OBJECT_BYTES_MAX,
    TAIL_BYTES,
    Head,
    ObjectName,
    Point,
    Tail,
    encode_head,
    encode_index,
    encode_tail_start,
    index_bytes,
)
from octavo.protocol.entries import CHECKSUM, SealedBatch, header_of, verify_batch
from octavo.protocol.errors import DigestMismatchError, EntryTooLargeError, ProtocolError

PART_BYTES = 16 * 1024 * 1024
"""An object of 4 GiB has 256 of them. S3 takes parts of 5 MiB or more; other stores, all of one size but the last."""


class Written(NamedTuple):
    """The facts about an object that has been written, as its word in the metadata holds them."""

    name: ObjectName
    object_bytes: int
    entry_count: int
    payload_bytes: int
    sha256: bytes
    """Of the whole object."""
    crc32: int
    """As in zlib, of the object without its last four bytes, which hold it."""


class ObjectWriter:
    """One object while it is written."""

    def __init__(
        self,
        head: Head,
        *,
        part_bytes: int = PART_BYTES,
        index_every_bytes: int = INDEX_BYTES,
        bytes_max: int = OBJECT_BYTES_MAX,
    ) -> None:
        self._head = head
        self._part_bytes = part_bytes
        self._index_every_bytes = index_every_bytes
        self._bytes_max = bytes_max
        self._next_id: int | None = head.ranges[0].first
        self._failed = False
        self._sha256 = hashlib.sha256()
        self._crc32 = 0
        self._payload_bytes = 0
        self._written = 0
        self._points: list[Point] = []
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._append(encode_head(head))

    def add(self, entries: Sequence[bytes]) -> list[bytes]:
        """Take the next sealed entries, one or more; returns the parts that are full.

        Raises:
            WrongEntryError: an entry is damaged, of another ledger, or not the next one.
            ObjectTooLargeError: the object would be larger than it may be.
        """
        assert not self._failed, "an object that failed is not continued"
        self._failed = True
        batch = self._verified(entries)
        for entry_id, sealed in zip(batch.entry_ids, entries, strict=True):
            if entry_id != self._next_id:
                wanted = "no more" if self._next_id is None else f"entry {self._next_id}"
                raise WrongEntryError(f"ledger {self._head.ledger_id}: entry {entry_id} came, {wanted} was due")
            self._next_id = self._head.following(entry_id)
            if not self._points or self._written - self._points[-1].offset >= self._index_every_bytes:
                self._points.append(Point(entry_id, self._written))
            self._payload_bytes += header_of(sealed).payload_bytes
            self._written += len(sealed)
        if self._written + index_bytes(len(self._points)) + TAIL_BYTES > self._bytes_max:
            raise ObjectTooLargeError(f"ledger {self._head.ledger_id}: an object holds at most {self._bytes_max} bytes")
        self._written -= len(batch.data)
        self._append(batch.data)
        self._failed = False
        return self._full_parts()

    def finish(self) -> tuple[list[bytes], Written]:
        """The last parts, at least one, and the facts about the object. Nothing may be added afterwards.

        Raises:
            WrongEntryError: entries are missing.
        """
        assert not self._failed, "an object that failed is not continued"
        if self._next_id is not None:
            raise WrongEntryError(f"ledger {self._head.ledger_id}: entry {self._next_id} is missing from the object")
        self._failed = True
        index_offset = self._written
        self._append(encode_index(self._points))
        count, points = self._head.entry_count, len(self._points)
        self._append(encode_tail_start(Tail(self._head.token, count, self._payload_bytes, index_offset, points, 0)))
        checksum = self._crc32
        self._append(CHECKSUM.pack(checksum))
        parts = self._full_parts()
        if self._pending_bytes:
            parts.append(b"".join(self._pending))
        digest = self._sha256.digest()
        return parts, Written(self._head.name, self._written, count, self._payload_bytes, digest, checksum)

    def _verified(self, entries: Sequence[bytes]) -> SealedBatch:
        try:
            return verify_batch(self._head.ledger_id, entries)
        except (ProtocolError, DigestMismatchError, EntryTooLargeError) as error:
            raise WrongEntryError(f"an entry cannot go into an object: {error}") from error

    def _append(self, data: bytes) -> None:
        self._sha256.update(data)
        self._crc32 = crc32(data, self._crc32)
        self._written += len(data)
        self._pending.append(data)
        self._pending_bytes += len(data)

    def _full_parts(self) -> list[bytes]:
        if self._pending_bytes < self._part_bytes:
            return []
        data = b"".join(self._pending)
        stop = len(data) - len(data) % self._part_bytes
        self._pending, self._pending_bytes = [data[stop:]], len(data) - stop
        return [data[start : start + self._part_bytes] for start in range(0, stop, self._part_bytes)]
