"""Places order terms before offsets, fill the ids exactly, and tell their term; so does a LAC."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from octavo.protocol.errors import ProtocolError
from octavo.protocol.ids import ID_MAX, TERM_MAX
from octavo.protocol.places import (
    OFFSET_BITS,
    OFFSET_MAX,
    check_places,
    last_place,
    offset_of,
    place,
    term_of,
    term_of_lac,
)

terms = st.integers(0, TERM_MAX)
offsets = st.integers(0, OFFSET_MAX)
places = st.tuples(terms, offsets)


@given(places)
@example((0, 0))
@example((TERM_MAX, OFFSET_MAX))
def test_a_place_tells_its_term_and_its_offset(where: tuple[int, int]) -> None:
    found = place(*where)
    assert 0 <= found <= ID_MAX
    assert (term_of(found), offset_of(found)) == where


@given(places, places)
def test_places_are_in_order_of_terms_and_then_of_offsets(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert (place(*one) < place(*other)) == (one < other)


def test_the_numbers_are_those_of_the_format() -> None:
    assert (OFFSET_BITS, OFFSET_MAX, TERM_MAX) == (35, 2**35 - 2, 2**28 - 1)
    assert place(0, 7) == 7, "term 0 has plain ids"
    assert place(3, 5) == 3 * 2**35 + 5
    assert last_place(TERM_MAX) == ID_MAX - 1


@given(st.integers(1, TERM_MAX), offsets)
@example(1, 0)
def test_a_lac_is_about_its_own_term_also_before_the_first_acknowledgement(term: int, offset: int) -> None:
    nothing_yet = place(term, 0) - 1
    assert term_of_lac(nothing_yet + 1) == term
    assert term_of(nothing_yet) == term - 1, "as a place it would be of the term before"
    assert nothing_yet > last_place(term - 1), "and is none that can be written"
    assert term_of_lac(place(term, offset) + 1) == term


@given(st.integers(1, TERM_MAX), offsets, offsets)
def test_ids_of_the_term_pass(term: int, one: int, other: int) -> None:
    check_places(term, place(term, min(one, other)), place(term, max(one, other)))


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (place(3, 0) - 1, place(3, 0)),
        (place(2, 0), place(3, 0)),
        (place(3, 0), place(3, OFFSET_MAX) + 1),
        (place(3, 0), place(4, 0)),
        (place(4, 0), place(4, 1)),
        (0, 1),
    ],
)
def test_ids_that_are_not_all_places_of_the_term_are_refused(first: int, last: int) -> None:
    with pytest.raises(ProtocolError, match="are not places of term 3"):
        check_places(3, first, last)
