"""The list of a log: what it says of positions, its invariants, its stored form."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.client.log.documents.chain import (
    TERMS_MAX,
    Retention,
    Segment,
    SegmentEnd,
    decode_log,
    decode_page,
    encode_page,
    page_reference,
)
from octavo.client.log.documents.names import list_document, name_of_document
from octavo.metadata.encoding import decode_object, encode_object
from octavo.protocol.errors import InvalidArgumentError, MetadataError
from octavo.protocol.ids import LedgerId
from support.metadata.log_documents import empty_log, ended, log_of, making


def test_positions_follow_from_the_ends_of_the_segments_before() -> None:
    document = log_of(3, 0, 5, None)
    assert [segment.first_position for segment in document.segments] == [0, 3, 3, 8]
    assert document.known_stop == 8
    assert [document.segment_at(p).ledger_id for p in (0, 2, 3, 7, 8, 100)] == [10, 10, 12, 12, 13, 13]  # type: ignore[union-attr]


def test_at_most_one_segment_besides_the_newest_is_open() -> None:
    """Rule L2: a candidate recovers two segments, so there must not be a third one to recover."""
    assert [s.ledger_id for s in log_of(3, None, None, newest_known=False).unclosed()] == [11, 12]
    document = log_of(3, None, None, newest_known=False)
    third = Segment(LedgerId(20), 4, "x", 0, None)
    with pytest.raises(InvalidArgumentError):
        replace(document, segments=(*document.segments, third))


def test_a_gap_between_segments_is_refused() -> None:
    document = log_of(3, 4, None)
    with pytest.raises(InvalidArgumentError):
        replace(document, segments=(document.segments[0], replace(document.segments[1], first_position=4)))


def test_ends_that_become_known_give_first_positions() -> None:
    document = log_of(3, None, None, newest_known=False)
    known = document.with_ends({LedgerId(11): ended(4)})
    assert known.newest is not None
    assert known.newest.first_position == 7
    again = known.with_ends({LedgerId(11): ended(9)})
    assert again == known, "an end that is known never changes"


def test_trailing_empty_segments_are_dropped_but_never_the_last_one() -> None:
    document = log_of(3, 0, 0).without_trailing_empty_segments()
    assert [segment.ledger_id for segment in document.segments] == [10]
    assert [dropped.ledger_id for dropped in document.dropped] == [12, 11]
    assert len(log_of(0).without_trailing_empty_segments().segments) == 1


def test_where_terms_ended() -> None:
    document = log_of(3, 4, None)
    assert [document.end_of_term(term) for term in (1, 2, 3)] == [3, 7, None]
    many = empty_log()
    for term in range(1, TERMS_MAX + 10):
        many = replace(many, segments=()).with_segment(Segment(LedgerId(term), term, "o", 0, term))
    assert many.end_of_term(1) is None, "too long ago to be told"
    assert many.end_of_term(TERMS_MAX) == TERMS_MAX + 1


@given(st.lists(st.integers(0, 40), max_size=6), st.booleans(), st.integers(0, 5))
def test_the_stored_form_is_read_back(counts: list[int], open_newest: bool, first: int) -> None:
    document = making(log_of(*counts, *([None] if open_newest else [])), 99)
    document = replace(
        document, first_position=first, retention=Retention(seconds=1.5, bytes=7, cursors=True), gaps=((1, 2),)
    )
    assert decode_log(document.encode(), "orders") == document


def test_fields_of_a_newer_version_are_kept() -> None:
    fields = decode_object(log_of(1, None).encode(), what="log", format_max=1) | {"colour": "blue"}
    decoded = decode_log(encode_object(fields, format_number=1), "orders")
    assert decode_object(decoded.encode(), what="log", format_max=1)["colour"] == "blue"


@pytest.mark.parametrize(
    "change",
    [
        {"segments": [[1, 2, 3]]},
        {"segments": [[10, 1, "o", 0, None, None]]},
        {"segments": "x"},
        {"quorums": [1, 2, 3]},
        {"state": "GONE"},
        {"retention": [0, None, False]},
        {"making": [[1]]},
        {"first_position": "0"},
    ],
)
def test_what_cannot_be_a_list_is_refused(change: dict[str, object]) -> None:
    fields = decode_object(log_of(1, None).encode(), what="log", format_max=1) | change
    with pytest.raises(MetadataError):
        decode_log(encode_object(fields, format_number=1), "orders")


def test_a_page_tells_what_is_in_it() -> None:
    document = log_of(3, 4, 5, None)
    page = page_reference("log-pages/x/1", document.segments[:3])
    assert (page.segments, page.first_position, page.stop_position, page.bytes) == (3, 0, 12, 1200)
    assert (page.created_at_ms, page.sealed_at_ms) == (1000, 3000)
    assert decode_page(encode_page(document.segments[:3]), "page") == document.segments[:3]
    with pytest.raises(MetadataError):
        decode_page(b"{}", "page")


@given(st.from_regex(r"\A[A-Za-z0-9._-]{1,8}(/[A-Za-z0-9._-]{1,8}){0,3}\Z"))
def test_names_of_documents_lead_back(name: str) -> None:
    document = list_document(name)
    assert name_of_document(document) == name
    assert document.count("/") == 1


def test_an_end_counts_entries() -> None:
    assert log_of(3, None).segments[0].stop_position == 3
    assert SegmentEnd(3, 300, 1000) == log_of(3).segments[0].end
