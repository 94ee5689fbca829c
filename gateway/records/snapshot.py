"""Snapshots of what a partition knows of its producers: a head, and pages. Pure.

A leader that begins would have to read a day of the log to know its producers. A snapshot spares it that: it holds what
follows from the entries below its position, and the leader reads on from there (rule K5). It holds acknowledged batches
only, because what is under way may not be in the log.

The *head* names the log, the term and the position, the next offset there, and how many pages there are. The *pages*
hold the producers, at most :data:`PAGE_PRODUCERS` each, as a document of the metadata store has at most 512 KiB. Head
and pages name each other by log and position: a page of another snapshot is noticed, and the snapshot is then not used.

A snapshot counts only if the log is still the one that it was taken from: its position is not above the end, and the
entry below the position is of the term that the head names. A log that was shortened (an operator has accepted a loss,
or the metadata come from an older copy) and then went on has other entries there. The *next offset* of a snapshot
counts all the same: an offset that a consumer may have seen is not given to another record.
"""

from collections.abc import Sequence
from itertools import batched, pairwise
from typing import Any, Final, NamedTuple

from octavo.gateway.records.producers import SEQUENCES, WINDOW, Producers, Remembered
from octavo.metadata.encoding import FieldReader, decode_object, encode_object
from octavo.protocol.errors import MetadataError

_FORMAT: Final = 1

PAGE_PRODUCERS: Final = 1000
"""Producers in a page. One takes at most 300 bytes, so a page stays below a document's 512 KiB."""


class SnapshotHead(NamedTuple):
    """See the module."""

    log_id: str
    term: int
    """Of the entry below :attr:`position`."""
    position: int
    """The snapshot holds what follows from the entries below it."""
    next_offset: int
    """Of the first record at or above :attr:`position`."""
    forgotten_below: int
    """Producers with lower ids may be missing."""
    pages: int

    def counts(self, *, end: int, term_below: int | None) -> bool:
        """Whether the producers of the snapshot are those of the log.

        ``end`` is that of the log, and ``term_below`` the term of its entry below :attr:`position`; None where it has
        none: nothing then shows that the log is the same.
        """
        return self.position <= end and term_below == self.term


def encode_snapshot(head: SnapshotHead) -> bytes:
    """The stored form of a head."""
    fields = {
        "log_id": head.log_id,
        "term": head.term,
        "position": head.position,
        "next_offset": head.next_offset,
        "forgotten_below": head.forgotten_below,
        "pages": head.pages,
    }
    return encode_object(fields, format_number=_FORMAT)


def encode_pages(producers: Producers, *, log_id: str, position: int) -> list[bytes]:
    """The pages of a snapshot of what is acknowledged, all of it below ``position``."""
    rows = [
        [producer_id, producer.at_ms, [list(batch) for batch in producer.acknowledged]]
        for producer_id, producer in producers
        if producer.acknowledged
    ]
    return [
        encode_object(
            {"log_id": log_id, "position": position, "number": number, "producers": list(page)}, format_number=_FORMAT
        )
        for number, page in enumerate(batched(rows, PAGE_PRODUCERS))
    ]


def decode_snapshot(value: bytes, log_id: str) -> SnapshotHead:
    """The head of a snapshot of the log with this id.

    Raises:
        MetadataError: The value is damaged, or of another log.
    """
    what = f"producers of the log {log_id}"
    reader = FieldReader(decode_object(value, what=what, format_max=_FORMAT), what)
    if reader.get("log_id", str) != log_id:
        raise reader.damaged("they are of another log")
    head = SnapshotHead(
        log_id,
        term=reader.get("term", int),
        position=reader.get("position", int),
        next_offset=reader.get("next_offset", int),
        forgotten_below=reader.get("forgotten_below", int),
        pages=reader.get("pages", int),
    )
    if min(head[1:]) < 0:
        raise reader.damaged("a number is below 0")
    return head


def decode_producers(head: SnapshotHead, pages: Sequence[bytes]) -> Producers:
    """The producers of a snapshot, from all of its pages in order.

    Raises:
        MetadataError: A page is missing, damaged, or of another snapshot.
    """
    what = f"producers of the log {head.log_id}"
    if len(pages) != head.pages:
        raise MetadataError(f"{what}: {len(pages)} pages were read of {head.pages}")
    producers = Producers(forgotten_below=head.forgotten_below)
    for number, page in enumerate(pages):
        reader = FieldReader(decode_object(page, what=what, format_max=_FORMAT), what)
        place = reader.get("log_id", str), reader.get("position", int), reader.get("number", int)
        if place != (head.log_id, head.position, number):
            raise reader.damaged("a page is of another snapshot")
        for row in reader.get("producers", list):
            try:
                producer_id, at_ms, batches = row
                _check(producer_id, at_ms)
                producers.restore(producer_id, at_ms, _batches(batches))
            except (TypeError, ValueError) as error:
                raise reader.damaged(str(error)) from error
    return producers


def _batches(rows: list[list[Any]]) -> list[Remembered]:
    for row in rows:
        _check(*row)
    batches = [Remembered(*row) for row in rows]
    if not 0 < len(batches) <= WINDOW or any(one.record_count == 0 or one.sequence >= SEQUENCES for one in batches):
        raise ValueError("a producer has no batches, too many, or one that cannot be")
    for one, other in pairwise(batches):
        if one.base_offset + one.record_count > other.base_offset or one.epoch > other.epoch:
            raise ValueError("the batches of a producer are not in order")
    return batches


def _check(*numbers: Any) -> None:
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("a producer is numbers from 0 on")
