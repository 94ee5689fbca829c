"""Pieces of a stream: which fragments readers take together, and what becomes of a piece as the metadata change."""

from dataclasses import replace
from typing import Any

import pytest
from octavo.client.read.terms import PieceMovedError
from octavo.client.terms.piece_source import GrowingSource, SettledSource
from octavo.client.terms.pieces import Piece, grown_piece, piece_at, same_piece
from octavo.metadata import open_metadata_store
from octavo.metadata.ledger.term import TermState
from octavo.metadata.store.values import Version, Versioned
from octavo.metadata.stream.model import StreamFragment, StreamMetadata, StreamState
from octavo.protocol.ids import BookieId, EntryId
from octavo.protocol.places import place
from support.metadata.stream_metadata import open_stream

ABC = tuple(map(BookieId, "abc"))
ABD = tuple(map(BookieId, "abd"))


def fragment(term: int, offset: int, position: int, bookies: tuple[BookieId, ...] = ABC, qa: int = 2) -> StreamFragment:
    return StreamFragment(
        first_entry_id=place(term, offset),
        first_position=position,
        bookies=bookies,
        write_quorum=3,
        ack_quorum=qa,
        length_before=10 * position,
        opened_at_ms=position,
    )


def stream(*fragments: StreamFragment, **changes: object) -> StreamMetadata:
    """Open in the term of the last fragment, with nothing truncated."""
    wanted: dict[str, Any] = {"fragments": fragments, "term": fragments[-1].term, **changes}
    return replace(open_stream(), **wanted)


def shape(piece: Piece | None) -> tuple[int, int | None, int] | None:
    """First position, the position after the last, fragments."""
    return None if piece is None else (piece.first_position, piece.stop_position, len(piece.fragments))


THREE_TERMS = stream(
    fragment(1, 0, 0), fragment(1, 5, 5, ABD), fragment(2, 0, 8), fragment(4, 0, 9, qa=3), fragment(4, 3, 12, qa=3)
)


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (0, (0, 8, 2)),
        (4, (0, 8, 2)),
        (5, (5, 8, 1)),
        (7, (5, 8, 1)),
        (8, (8, 9, 1)),
        (9, (9, 12, 1)),
        (12, (12, None, 1)),
        (99, (12, None, 1)),
    ],
)
def test_a_piece_is_alike_from_the_fragment_of_its_position_on(
    position: int, expected: tuple[int, int | None, int]
) -> None:
    assert shape(piece_at(THREE_TERMS, position)) == expected


def test_the_open_fragment_is_a_piece_of_its_own() -> None:
    writing = stream(fragment(1, 0, 0), fragment(1, 5, 5))
    assert shape(piece_at(writing, 0)) == (0, 5, 1)
    assert shape(piece_at(writing, 5)) == (5, None, 1)


@pytest.mark.parametrize("state", [StreamState.AT_REST, StreamState.CLOSED])
def test_at_its_end_a_stream_is_settled(state: StreamState) -> None:
    rests = stream(fragment(1, 0, 0), fragment(1, 5, 5), state=state, last_entry_id=place(1, 6), length=70)
    piece = piece_at(rests, 0)
    assert shape(piece) == (0, 7, 2)
    assert piece is not None
    assert (piece.last_entry_id, piece.length) == (place(1, 6), 70)
    assert piece_at(rests, 7) is None


def test_an_empty_stream_at_rest_has_no_piece() -> None:
    assert piece_at(stream(fragment(1, 0, 0), state=StreamState.AT_REST, last_entry_id=place(1, 0) - 1), 0) is None


def test_to_bookies_a_piece_is_a_term_that_ends_where_the_piece_does() -> None:
    piece = piece_at(THREE_TERMS, 6)
    assert piece is not None
    term = piece.term_in(THREE_TERMS)
    assert [(one.first_entry_id, one.bookies, one.length_before) for one in term.fragments] == [
        (place(1, 5), ABD, 50),
    ]
    assert (term.state, term.number, term.last_entry_id, term.length) == (TermState.ENDED, 1, place(1, 7), 80)
    assert term.fragment_of(place(1, 5) - 1) is None
    assert place(1, 6) + piece.base == 6


@pytest.mark.parametrize(
    ("state", "expected"),
    [(StreamState.OPEN, TermState.OPEN), (StreamState.IN_RECOVERY, TermState.IN_RECOVERY)],
)
def test_the_last_piece_grows_in_the_state_of_its_term(state: StreamState, expected: TermState) -> None:
    writing = replace(THREE_TERMS, state=state)
    piece = piece_at(writing, 12)
    assert piece is not None
    assert piece.term_in(writing).state is expected


# --- growing ----------------------------------------------------------------------------------------------------------


def growing(of: StreamMetadata) -> Piece:
    piece = piece_at(of, of.last_fragment.first_position)
    assert piece is not None
    assert piece.stop_position is None
    return piece


BEGUN = stream(fragment(1, 0, 0), fragment(1, 5, 5))


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        (BEGUN, (5, None, 1)),
        (stream(fragment(1, 0, 0), fragment(1, 5, 5, ABD)), (5, None, 1)),
        (stream(fragment(1, 0, 0), fragment(1, 5, 5), fragment(1, 9, 9)), (5, None, 2)),
        (stream(fragment(1, 9, 9), fragment(1, 11, 11), start=9), (9, None, 2)),
        (stream(fragment(1, 0, 0), fragment(1, 5, 5), fragment(2, 0, 9)), (5, 9, 1)),
        (stream(fragment(1, 5, 5), fragment(2, 0, 7, qa=3), start=5), (5, 7, 1)),
        (replace(BEGUN, state=StreamState.AT_REST, last_entry_id=place(1, 6), length=70), (5, 7, 1)),
        (replace(BEGUN, state=StreamState.AT_REST, last_entry_id=place(1, 4), length=50), (5, 5, 1)),
    ],
    ids=["same", "bookie", "roll", "paged", "taken over", "other quorums", "rest", "empty rest"],
)
def test_a_growing_piece_gets_fragments_and_an_end(
    later: StreamMetadata, expected: tuple[int, int | None, int]
) -> None:
    assert shape(grown_piece(later, growing(BEGUN))) == expected


@pytest.mark.parametrize(
    "later",
    [
        stream(fragment(1, 0, 0), fragment(2, 0, 5)),
        stream(fragment(3, 0, 20), start=20),
    ],
    ids=["empty, so taken over without it", "truncated"],
)
def test_a_growing_piece_of_which_nothing_is_left_has_moved(later: StreamMetadata) -> None:
    with pytest.raises(PieceMovedError):
        grown_piece(later, growing(BEGUN))


# --- settled ----------------------------------------------------------------------------------------------------------


def settled(position: int) -> Piece:
    piece = piece_at(THREE_TERMS, position)
    assert piece is not None
    return piece


def test_a_settled_piece_gets_the_bookies_that_repair_has_named() -> None:
    repaired = THREE_TERMS.with_member(place(1, 5), 1, BookieId("x"))
    piece = same_piece(repaired, settled(0))
    assert [one.bookies for one in piece.fragments] == [ABC, (BookieId("a"), BookieId("x"), BookieId("d"))]
    assert (piece.last_entry_id, piece.length) == (place(1, 7), 80)


def test_a_settled_piece_does_not_grow() -> None:
    known = settled(0).up_to(EntryId(place(1, 4)), 50)
    piece = same_piece(THREE_TERMS, Piece(known.fragments[:1], known.last_entry_id, known.length))
    assert shape(piece) == (0, 5, 1)


@pytest.mark.parametrize("first", [5, 8])
def test_a_settled_piece_that_was_truncated_or_paged_in_part_has_moved(first: int) -> None:
    kept = tuple(one for one in THREE_TERMS.fragments if one.first_position >= first)
    with pytest.raises(PieceMovedError):
        same_piece(replace(THREE_TERMS, fragments=kept, start=first), settled(0))


# --- where readers have them from ----------------------------------------------------------------------------------


async def test_metadata_older_than_a_piece_say_nothing_of_it() -> None:
    """A watch may begin with metadata in which the fragment is not there yet."""
    seen: list[Versioned[StreamMetadata]] = []
    async with await open_metadata_store("memory://") as store:
        made_from = Versioned(BEGUN, Version(5))
        source = GrowingSource(store, growing(BEGUN), made_from, seen.append)
        older = Versioned(stream(fragment(1, 0, 0)), Version(4))
        assert source.adopt(older) == source.term
        assert seen == []
        newer = Versioned(stream(fragment(1, 0, 0), fragment(1, 5, 5), fragment(2, 0, 9)), Version(6))
        assert source.adopt(newer).value.last_entry_id == place(1, 8)
        assert seen == [newer]


async def test_a_settled_piece_is_read_again_from_its_part() -> None:
    async with await open_metadata_store("memory://") as store:
        ledger_id = await store.allocate_ledger_id()
        known = replace(THREE_TERMS, ledger_id=ledger_id)
        made_from = Versioned(known, await store.create_stream(known))

        async def whole(root: StreamMetadata, position: int) -> StreamMetadata:
            assert position == 0
            return root

        seen: list[Versioned[StreamMetadata]] = []
        source = SettledSource(store, settled(0), made_from, whole, seen.append)
        assert await source.read_term() == source.term
        repaired = known.with_member(place(1, 5), 1, BookieId("x"))
        version = await store.compare_and_set_stream(repaired, made_from.version)
        found = await source.read_term()
        assert found.version == version
        assert found.value.fragments[-1].bookies[1] == "x"
        assert [one.version for one in seen] == [version]
        with pytest.raises(AssertionError):
            source.watch_term(lambda _term: None, lambda _error: None)
