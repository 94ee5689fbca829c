"""The model of a stream: what can be one, how it changes, which place a position has, and how it is stored."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.metadata.encoding import decode_object, encode_object
from octavo.metadata.ledger.debts import NO_DEBT, Debt, FullCopies
from octavo.metadata.ledger.formats import ARCHIVED_STREAM_FORMAT, STREAM_FORMAT
from octavo.metadata.ledger.model import decode_ledger, encode_ledger
from octavo.metadata.stream.encoding import decode_stream, encode_stream
from octavo.metadata.stream.model import StreamFragment, StreamMetadata, StreamState
from octavo.protocol.entries import Digest
from octavo.protocol.errors import InvalidArgumentError, LedgerClosedError, MetadataError
from octavo.protocol.ids import ID_MAX, TERM_MAX, BookieId, EntryId, LedgerId
from octavo.protocol.places import place
from support.metadata.ledger_metadata import CREATED_AT, bookie_ids, open_ledger
from support.metadata.stream_metadata import KEY, open_stream, stream_fragment

GOLDEN = Path(__file__).parents[2] / "golden" / "metadata" / "stream.json"
SEVEN = LedgerId(7)

FIRST = stream_fragment(1, 0, 0, "xyz")
SECOND = stream_fragment(1, 4, 4, "abc", 40)
THIRD = stream_fragment(3, 0, 10, "abd", 100)
STREAM = replace(open_stream(FIRST, SECOND, THIRD), fenced_at=CREATED_AT, fenced_by="host-2", private=True)
FULL = replace(
    STREAM.in_recovery(CREATED_AT, "host-2").at_rest(place(3, 4), 150),
    start=2,
    unknown_fields={"aardvark": None, "zebra": [1]},
    unknown_stream_fields={"pages": [{"first": 1}]},
    keys=(replace(KEY, unknown_fields={"epoch": 4}), KEY),
    fragments=(replace(FIRST, debt=NO_DEBT), SECOND, replace(THIRD, key=1, opened_at_ms=17)),
    writer_token="me",
)


def turned(fragment: StreamFragment, **changes: Any) -> tuple[StreamFragment, ...]:
    return (FIRST, SECOND, replace(fragment, **changes))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"ledger_id": -1}, "between 0 and"),
        ({"ledger_id": ID_MAX + 1}, "between 0 and"),
        ({"term": 0}, "term of a stream"),
        ({"term": TERM_MAX + 1}, "term of a stream"),
        ({"term": 2}, "last fragment is of term 3"),
        ({"term": 4}, "last fragment is of term 3"),
        ({"keys": ()}, "needs a key"),
        ({"owner": ""}, "owner"),
        ({"owner": "o" * 65}, "owner"),
        ({"writer_token": "t" * 65}, "writer's token"),
        ({"created_at": datetime(2024, 1, 1)}, "time zone"),  # noqa: DTZ001 - the point
        ({"fenced_at": datetime(2024, 1, 1)}, "time zone"),  # noqa: DTZ001 - the point
        ({"fenced_at": None}, "needs fenced_at"),
        ({"fenced_by": "h" * 129}, "name of a client"),
        ({"custom_metadata": {"k": bytes(2**16)}}, "custom metadata"),
        ({"fragments": ()}, "needs a fragment"),
        ({"fragments": (SECOND, THIRD)}, "not in the first fragment"),
        ({"start": -1}, "not in the first fragment"),
        ({"start": 4}, "not in the first fragment"),
        ({"fragments": (THIRD,), "start": 11}, "not in the first fragment"),
        ({"fragments": (FIRST, FIRST, THIRD)}, "must come after"),
        ({"fragments": (FIRST, replace(SECOND, first_entry_id=place(1, 5)), THIRD)}, "place that follows"),
        ({"fragments": (replace(FIRST, length_before=1), SECOND, THIRD)}, "position 0"),
        ({"fragments": (replace(FIRST, first_entry_id=place(3, 1)),)}, "position 0"),
        ({"fragments": turned(THIRD, first_entry_id=place(3, 1))}, "begin a later one"),
        ({"fragments": (THIRD, replace(THIRD, first_entry_id=place(2, 0), first_position=12))}, "begin a later one"),
        ({"fragments": turned(THIRD, first_position=2**35 + 4)}, "more positions"),
        ({"fragments": turned(THIRD, length_before=39)}, "less before it"),
        ({"fragments": turned(THIRD, first_entry_id=place(0, 0))}, "no place"),
        ({"fragments": (replace(FIRST, first_entry_id=EntryId(place(2, 0) - 1), first_position=2),)}, "no place"),
        ({"fragments": turned(THIRD, first_position=ID_MAX + 1)}, "out of range"),
        ({"fragments": turned(THIRD, length_before=-1)}, "out of range"),
        ({"fragments": turned(THIRD, opened_at_ms=-1)}, "out of range"),
        ({"fragments": turned(THIRD, write_quorum=1)}, "smaller than the ack quorum"),
        ({"fragments": turned(THIRD, bookies=bookie_ids(*"aab"))}, "distinct"),
        ({"fragments": turned(THIRD, bookies=bookie_ids("a", "b", "c/d"))}, "not a bookie id"),
        ({"fragments": turned(THIRD, key=1)}, "has no key"),
        ({"fragments": turned(THIRD, key=-1)}, "has no key"),
        ({"fragments": (replace(FIRST, key=1), replace(SECOND, key=1), THIRD), "keys": (KEY, KEY)}, "older key"),
        ({"fragments": (FIRST, replace(SECOND, ack_quorum=3), THIRD)}, "other quorums"),
        ({"fragments": (FIRST, replace(SECOND, write_quorum=2), THIRD)}, "other quorums"),
        ({"fragments": (FIRST, replace(SECOND, bookies=bookie_ids(*"abcd")), THIRD)}, "other quorums"),
        ({"fragments": (FIRST, replace(SECOND, key=1), replace(THIRD, key=1)), "keys": (KEY, KEY)}, "another key"),
        ({"fragments": (FIRST, replace(SECOND, opened_at_ms=2), replace(THIRD, opened_at_ms=1))}, "begun before"),
        ({"fragments": turned(THIRD, leader_term=3)}, "no earlier one"),
        ({"fragments": turned(THIRD, leader_term=-1)}, "no earlier one"),
        (
            {"fragments": (replace(THIRD, first_position=0, length_before=0), stream_fragment(5, 0, 1, leader_term=2))},
            "another client",
        ),
        ({"terms_skipped": -1}, "leave out -1 terms"),
        ({"terms_skipped": TERM_MAX - 2}, "leave out"),
        ({"last_entry_id": place(3, 0)}, "only at rest"),
        ({"length": 1}, "only at rest"),
        ({"state": StreamState.AT_REST}, "not an end"),
        ({"state": StreamState.AT_REST, "last_entry_id": EntryId(place(3, 0) - 2), "length": 100}, "not an end"),
        ({"state": StreamState.CLOSED, "last_entry_id": place(4, 0) - 1, "length": 100}, "not an end"),
        ({"state": StreamState.AT_REST, "last_entry_id": place(3, 0), "length": 99}, "contradicts"),
        ({"state": StreamState.AT_REST, "last_entry_id": place(3, 0) - 1, "length": 101}, "contradicts"),
    ],
)
def test_what_can_be_no_stream_is_refused(change: dict[str, Any], complaint: str) -> None:
    """Rule T1: among others, a term that is not that of its last fragment, or that comes twice."""
    with pytest.raises(InvalidArgumentError, match=complaint):
        replace(STREAM, **change)


def test_a_position_has_its_place_and_only_where_it_is_known() -> None:
    known = [STREAM.place_at(position) for position in range(10)]
    assert known[:9] == [place(1, position) for position in range(9)]
    assert known[9] == place(1, 9)
    assert STREAM.place_at(10) is None, "the term has no end"
    assert FULL.place_at(14) == place(3, 4)
    assert FULL.place_at(15) is None
    with pytest.raises(InvalidArgumentError, match="position 1 has been truncated"):
        FULL.place_at(1)


def test_a_fragment_ends_where_the_next_position_begins() -> None:
    """Between terms lie places that no position has."""
    assert [STREAM.last_id_of(one) for one in STREAM.fragments] == [place(1, 3), place(1, 9), None]
    assert FULL.last_id_of(FULL.last_fragment) == place(3, 4)
    assert FULL.end_position == 14
    assert STREAM.end_position is None


def test_the_end_of_a_term() -> None:
    """Rules T5 and T8: a term without a fragment was empty, unless truncation may have removed it."""
    assert [FULL.end_of_term(term) for term in range(1, 5)] == [place(1, 9), place(2, 0) - 1, place(3, 4), None]
    assert STREAM.end_of_term(3) is None
    cut = FULL.truncated(10)
    assert [cut.end_of_term(term) for term in (1, 2, 3)] == [None, None, place(3, 4)]
    assert open_stream(stream_fragment(3, 0, 0)).end_of_term(2) == place(2, 0) - 1


def test_where_the_adds_of_a_leader_end() -> None:
    """Rule T11: a leader may have several terms, one after another. Terms 2, 4 and 6 have left no fragment: the leaders
    that opened them added nothing, or went on in the next term."""
    terms = open_stream(
        stream_fragment(1, 0, 0),
        stream_fragment(3, 0, 5, leader_term=1),
        stream_fragment(3, 2, 7, leader_term=1),
        stream_fragment(5, 0, 9, leader_term=4),
        stream_fragment(7, 0, 12),
    )
    assert [terms.stop_of_leader(term) for term in (1, 2, 4, 6, 7, 8)] == [9, 9, 12, 12, None, None]
    cut = terms.truncated(8)
    assert [cut.stop_of_leader(term) for term in (1, 4, 7)] == [9, 12, None]
    cut = terms.truncated(10)
    assert [cut.stop_of_leader(term) for term in (1, 4, 7)] == [None, 12, None]
    assert open_stream(stream_fragment(3, 0, 0)).stop_of_leader(1) == 0, "it has added nothing"


def test_truncation_removes_what_lies_below_and_never_the_last_fragment() -> None:
    assert STREAM.truncated(3).fragments == STREAM.fragments
    assert STREAM.truncated(4).fragments == (SECOND, THIRD)
    assert (STREAM.truncated(9).fragments, STREAM.truncated(9).start) == ((SECOND, THIRD), 9)
    assert (STREAM.truncated(99).fragments, STREAM.truncated(99).start) == ((THIRD,), 10)
    assert FULL.truncated(2) is FULL


def test_states_allow_only_what_the_table_says() -> None:
    """Rules T1, T2, T5 and T8."""
    resting, closed = STREAM.at_rest(place(3, 0), 110), STREAM.at_rest(place(3, 0), 110).closed()
    assert STREAM.in_recovery(CREATED_AT, "a").in_recovery(CREATED_AT, "b").fenced_by == "a"
    assert (closed.state, closed.last_entry_id, closed.length) == (StreamState.CLOSED, place(3, 0), 110)
    refusals: tuple[Callable[[], StreamMetadata], ...] = (
        resting.in_recovery,
        lambda: resting.at_rest(place(3, 1), 120),
        lambda: resting.with_fragment(stream_fragment(3, 2, 12, "abe", 120)),
        lambda: STREAM.with_next_term("me", FIRST),
        lambda: STREAM.in_recovery().with_next_term("me", FIRST),
        STREAM.closed,
        lambda: STREAM.in_recovery().closed(),
        lambda: STREAM.with_fragment(stream_fragment(3, 2, 13, "abe", 120)),
    )
    for refused in refusals:
        with pytest.raises(InvalidArgumentError):
            refused()
    too_late: tuple[Callable[[], StreamMetadata], ...] = (
        closed.in_recovery,
        lambda: closed.at_rest(place(3, 0), 110),
        lambda: closed.with_next_term("me", FIRST),
        closed.closed,
    )
    for over in too_late:
        with pytest.raises(LedgerClosedError, match="stream 7 is closed"):
            over()


def test_custom_metadata_are_a_private_read_only_copy() -> None:
    given_by_caller = {"app": b"orders"}
    stream = replace(STREAM, custom_metadata=given_by_caller)
    given_by_caller["app"] = b"changed"
    assert stream.custom_metadata == {"app": b"orders"}


# --- the stored form -------------------------------------------------------------------------------------------------


def test_golden_bytes() -> None:
    """Stored streams stay readable: these bytes never change."""
    assert encode_stream(FULL) == GOLDEN.read_bytes().rstrip(b"\n")
    assert decode_stream(SEVEN, GOLDEN.read_bytes()) == FULL


OWING = replace(
    STREAM,
    full_copies=FullCopies.RECORDED,
    private=True,
    fragments=tuple(
        replace(one, debt=Debt(one.first_entry_id, one.first_entry_id), unknown_fields={"zone": [1], "aa": "\u00e4"})
        for one in STREAM.fragments
    ),
)


@pytest.mark.parametrize(
    "stream", [open_stream(), STREAM, STREAM.in_recovery(), FULL, FULL.closed(), STREAM.restored(9), OWING]
)
def test_stored_form_gives_the_same_stream(stream: StreamMetadata) -> None:
    stored = encode_stream(stream)
    again = decode_stream(SEVEN, stored)
    assert again == stream
    assert encode_stream(again) == stored
    fields = json.loads(stored)
    spaced = json.dumps(fields).encode()
    assert decode_stream(SEVEN, spaced) == stream, "written in another form: the checksum is that of the canonical one"
    del fields["crc32c"]
    assert encode_object(fields, format_number=fields.pop("format")) == stored, "the canonical form, with its checksum"


def test_changes_keep_the_fields_of_a_newer_version() -> None:
    newer = replace(FULL, fragments=(replace(FULL.fragments[0], unknown_fields={"zone": [1]}), *FULL.fragments[1:]))
    opened = newer.truncated(3).with_next_term("you", replace(THIRD, key=1)).in_recovery().written_by("x")
    again = decode_stream(SEVEN, encode_stream(opened))
    assert (again.unknown_fields, again.unknown_stream_fields) == (FULL.unknown_fields, FULL.unknown_stream_fields)
    assert [dict(one.unknown_fields) for one in again.fragments] == [{"zone": [1]}, {}, {}, {}]
    assert again.keys[0].unknown_fields == {"epoch": 4}


def test_a_stream_is_no_ledger_with_one_writer_and_the_other_way_round() -> None:
    with pytest.raises(MetadataError, match="ledger 7: metadata format 2"):
        decode_ledger(SEVEN, encode_stream(STREAM))
    with pytest.raises(MetadataError, match="format 1 is that of something else"):
        decode_stream(SEVEN, encode_ledger(open_ledger(7)))
    with pytest.raises(MetadataError, match="those of ledger 7"):
        decode_stream(LedgerId(8), encode_stream(STREAM))
    newer = encode_object(stored_fields(STREAM), format_number=ARCHIVED_STREAM_FORMAT + 1)
    with pytest.raises(MetadataError, match="format 4"):
        decode_stream(SEVEN, newer)
    older = encode_object(stored_fields(STREAM), format_number=1)
    with pytest.raises(MetadataError, match="format 1"):
        decode_stream(SEVEN, older)


def stored_fields(stream: StreamMetadata) -> dict[str, Any]:
    return decode_object(encode_stream(stream), what="stream", format_max=STREAM_FORMAT)


def test_every_flipped_bit_is_noticed() -> None:
    value = bytearray(encode_stream(FULL))
    for at in range(len(value)):
        value[at] ^= 1 << at % 7
        with pytest.raises(MetadataError):
            decode_stream(SEVEN, bytes(value))
        value[at] ^= 1 << at % 7


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value in a JSON value stands."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [here, *(path for name, one in inner for path in paths(one, (*here, name)))]


PATHS = paths(stored_fields(FULL))[1:]
OTHER_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**64),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        ["", "open", "closed", "at-rest", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "YQ=="]
    ),
    st.text(st.characters(exclude_characters="="), max_size=5),  # no base64 that a second text stands for, too
    st.lists(st.integers(0, 3), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)


@settings(max_examples=1500, deadline=None)
@given(st.sampled_from(PATHS), st.one_of(st.just(...), OTHER_VALUES))
def test_a_stored_form_is_taken_as_a_whole_or_refused_as_a_whole(path: tuple[Any, ...], other: Any) -> None:
    """With a checksum that fits, whatever is in it: never another error, and nothing that is read is lost."""
    fields = json.loads(json.dumps(stored_fields(FULL)))
    holder = fields
    for name in path[:-1]:
        holder = holder[name]
    if other is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = other
    try:
        taken = decode_stream(SEVEN, encode_object(fields, format_number=STREAM_FORMAT))
    except MetadataError:
        return
    kept = stored_fields(taken)
    assert decode_stream(SEVEN, encode_stream(taken)) == taken
    unwritten = ("private", False)
    assert kept == {name: value for name, value in {"fenced_by": "", **fields}.items() if (name, value) != unwritten}


def test_other_digests_and_keys_are_told_apart() -> None:
    sha = replace(KEY, digest=next(digest for digest in Digest if digest is not KEY.digest), salt=b"t" * 16)
    stream = replace(STREAM, keys=(KEY, sha), fragments=(FIRST, SECOND, replace(THIRD, key=1)))
    assert decode_stream(SEVEN, encode_stream(stream)).keys == (KEY, sha)
    assert stream.last_fragment.key == 1
    assert BookieId("d") in stream.last_fragment.bookies
    assert stream.last_fragment.first_entry_id == EntryId(3 << 35)
