"""Snapshots of producers: written, read, and when they count (rule K5)."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.gateway.records.batch import BatchHeader, read_header
from octavo.gateway.records.producers import PRODUCERS_MAX, SEQUENCES, WINDOW, Producers
from octavo.gateway.records.snapshot import (
    PAGE_PRODUCERS,
    SnapshotHead,
    decode_producers,
    decode_snapshot,
    encode_pages,
    encode_snapshot,
)
from octavo.metadata.encoding import encode_object
from octavo.metadata.store.documents import DOCUMENT_BYTES_MAX
from octavo.protocol.errors import MetadataError
from support.kafka.batches import batch_of

HEAD = SnapshotHead("log-1", term=3, position=10, next_offset=50, forgotten_below=2, pages=1)


def batch(sequence: int, *, producer_id: int = 7, base_offset: int = 0) -> BatchHeader:
    header = read_header(
        batch_of(b"x", producer_id=producer_id, producer_epoch=1, base_sequence=sequence, base_offset=base_offset)
    )
    assert header is not None
    return header


def contents(producers: Producers) -> Iterator[tuple[object, ...]]:
    for producer_id, producer in producers:
        yield producer_id, producer.at_ms, list(producer.acknowledged)


def encoded(producers: Producers) -> tuple[SnapshotHead, list[bytes]]:
    pages = encode_pages(producers, log_id="log-1", position=10)
    head = HEAD._replace(forgotten_below=producers.forgotten_below, pages=len(pages))
    return decode_snapshot(encode_snapshot(head), "log-1"), pages


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 10**6)), max_size=40), st.integers(0, 10))
def test_a_snapshot_is_read_as_it_was_written(batches: list[tuple[int, int]], forgotten_below: int) -> None:
    producers = Producers(forgotten_below=forgotten_below)
    for offset, (producer_id, at_ms) in enumerate(batches):
        producers.note_stored(batch(offset, producer_id=producer_id, base_offset=offset), at_ms)
    head, pages = encoded(producers)
    assert head == SnapshotHead("log-1", 3, 10, 50, forgotten_below, len(pages))
    read = decode_producers(head, pages)
    read.check_invariants()
    assert list(contents(read)) == list(contents(producers))
    assert read.forgotten_below == forgotten_below


def test_a_snapshot_holds_what_is_acknowledged_and_no_more() -> None:
    producers = Producers()
    producers.note_stored(batch(0), 5)
    producers.note_under_way(batch(1), 1, 6)
    producers.note_under_way(batch(0, producer_id=8), 2, 6)
    read = decode_producers(*encoded(producers))
    assert [producer_id for producer_id, _ in read] == [7]
    assert read.judge(batch(1)) is None


def test_the_pages_of_the_largest_snapshot_are_documents() -> None:
    producers = Producers()
    for producer_id in range(2**62, 2**62 + PRODUCERS_MAX):
        for offset in range(WINDOW):
            sequence, base_offset = SEQUENCES - 1 - WINDOW + offset, 2**62 + offset
            producers.note_stored(batch(sequence, producer_id=producer_id, base_offset=base_offset), 10**13)
    head, pages = encoded(producers)
    assert len(pages) == PRODUCERS_MAX // PAGE_PRODUCERS
    assert max(map(len, pages)) < DOCUMENT_BYTES_MAX
    assert len(decode_producers(head, pages)) == PRODUCERS_MAX


def test_a_snapshot_counts_only_in_the_log_that_it_was_taken_from() -> None:
    assert HEAD.counts(end=10, term_below=3)
    assert HEAD.counts(end=11, term_below=3)
    assert not HEAD.counts(end=9, term_below=3), "the log was shortened"
    assert not HEAD.counts(end=11, term_below=4), "the log was shortened, and went on"
    assert not HEAD.counts(end=11, term_below=None), "nothing shows that it is the same log"


def test_a_page_of_another_snapshot_or_none_is_noticed() -> None:
    producers = Producers()
    producers.note_stored(batch(0), 5)
    head, pages = encoded(producers)
    with pytest.raises(MetadataError, match="0 pages were read of 1"):
        decode_producers(head, [])
    for other in (head._replace(position=9), head._replace(log_id="log-2")):
        with pytest.raises(MetadataError, match="of another snapshot"):
            decode_producers(other, pages)
    with pytest.raises(MetadataError, match="of another snapshot"):
        decode_producers(head._replace(pages=2), pages * 2)
    with pytest.raises(MetadataError, match="damaged"):
        decode_producers(head, [pages[0][:-2] + b"9}"])
    with pytest.raises(MetadataError, match="of another log"):
        decode_snapshot(encode_snapshot(HEAD._replace(log_id="log-2")), "log-1")


@pytest.mark.parametrize(
    "row",
    [
        7,
        [7, 5],
        [7, 5, []],
        [7, 5, [[1, 0, 1]]],
        [7, 5, [[1, 0, 0, 0]]],
        [7, 5, [[1, SEQUENCES, 1, 0]]],
        [7, 5, [[1, 0, 1, -1]]],
        [7, 5, [[1, 0, 1, 1.5]]],
        [7, -5, [[1, 0, 1, 0]]],
        [7, 5, [[1, 0, 2, 0], [1, 2, 1, 1]]],
        [7, 5, [[2, 0, 1, 0], [1, 0, 1, 1]]],
        [7, 5, [[1, at, 1, at] for at in range(WINDOW + 1)]],
    ],
)
def test_a_producer_that_cannot_be_is_refused(row: object) -> None:
    fields = {"log_id": "log-1", "position": 10, "number": 0, "producers": [row]}
    with pytest.raises(MetadataError, match="damaged"):
        decode_producers(HEAD, [encode_object(fields, format_number=1)])


def test_a_head_with_a_number_below_0_is_refused() -> None:
    with pytest.raises(MetadataError, match="below 0"):
        decode_snapshot(encode_snapshot(HEAD._replace(position=-1)), "log-1")
