"""The published set: all or nothing, once, and never too large for a document."""

import pytest
from octavo.metadata.store.documents import DOCUMENT_BYTES_MAX
from octavo.pipeline.base.manifest import (
    RECENT_MAX,
    SEGMENT_LEDGERS_MAX,
    Head,
    Publication,
    PublishedLedger,
    decode_head,
    decode_segment,
    encode_segment,
)
from octavo.protocol.errors import MetadataError
from octavo.protocol.ids import ID_MAX


def ledgers(*ids: int) -> list[PublishedLedger]:
    return [PublishedLedger(ledger_id, 10, 100) for ledger_id in ids]


def test_a_job_and_a_batch_are_published_once() -> None:
    head = Head().published(Publication(ledgers(1, 2), "job"))
    assert head.published(Publication(ledgers(3), "job")) is head
    head = head.published(Publication(ledgers(4), "query", 0))
    assert head.published(Publication(ledgers(5), "query", 0)) is head
    later = head.published(Publication(ledgers(6), "query", 7)).published(Publication(ledgers(7), "other", 0))
    assert [ledger.ledger_id for ledger in later.recent] == [1, 2, 4, 6, 7]
    assert later.published(Publication(ledgers(8), "query", 3)) is later
    assert (later.floor("query"), later.floor("other"), later.floor("unknown")) == (6, 7, -1)
    assert later.published(Publication([], "query", 8)).floor("query") == 6
    assert decode_head(later.encode(), "name") == later


def test_replacing_leaves_only_what_is_new_and_forgets_no_query() -> None:
    head = Head().published(Publication(ledgers(1), "query", 4)).moved(["segment"])
    head = head.published(Publication(ledgers(2), "earlier job"))
    replaced = head.published(Publication(ledgers(9), "job", replaces=True))
    assert (replaced.epoch, replaced.segments, replaced.recent) == (1, (), tuple(ledgers(9)))
    assert replaced.has("query", 4)


def test_what_is_too_much_for_the_head_goes_to_segments_that_fit() -> None:
    many = [PublishedLedger(ID_MAX - number, ID_MAX, ID_MAX) for number in range(2 * SEGMENT_LEDGERS_MAX + 5)]
    head = Head().published(Publication(many, "job"))
    parts = head.overflow()
    assert [ledger for part in parts for ledger in part] == many
    for part in parts:
        document = encode_segment(part, written_at=1e9)
        assert len(document) <= DOCUMENT_BYTES_MAX
        assert decode_segment(document, "name") == (part, 1e9)
    moved = head.moved(["a", "b", "c"])
    assert (moved.segments, moved.recent, moved.overflow()) == (("a", "b", "c"), (), [])
    full = Head().published(Publication(many[:RECENT_MAX], "job")).moved(["x" * 32] * 5000)
    assert len(full.encode()) <= DOCUMENT_BYTES_MAX


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"format":1}', b'{"format":1,"epoch":"x"}'])
def test_a_damaged_list_names_the_dataset(value: bytes) -> None:
    with pytest.raises(MetadataError, match="dataset orders: its list of ledgers is damaged"):
        decode_head(value, "orders")


def test_a_newer_format_says_so() -> None:
    with pytest.raises(MetadataError, match="dataset orders has format 2; this version reads format 1: upgrade Octavo"):
        decode_head(b'{"format":2}', "orders")
