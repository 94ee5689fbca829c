"""Of which ledgers a bookie in doubt may deny entries, and of which it takes adds (rules D1, D2 and T12)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.protocol.held_entries import TERM_FLOORS_MAX, UNSURE_EXCEPTIONS_MAX, Doubt
from octavo.protocol.places import place

SOME = Doubt(100, 50, {3: 0, 20: 7})


@pytest.mark.parametrize(
    ("ledger_id", "unsure_from"), [(0, None), (3, 0), (20, 7), (49, None), (50, 0), (99, 0), (100, None), (10**9, None)]
)
def test_sure_of_what_is_below_but_for_the_exceptions(ledger_id: int, unsure_from: int | None) -> None:
    assert SOME.unsure_from(ledger_id) == unsure_from


def test_new_doubt_is_unsure_of_every_ledger_below_the_floor() -> None:
    assert Doubt(2).unsure_from(0) == Doubt(2).unsure_from(1) == 0
    assert Doubt(2).unsure_from(2) is None
    assert (Doubt(2).is_over, Doubt(2).unsure_ledgers) == (False, 2)


def test_doubt_is_over_when_no_ledger_is_left_and_keeps_its_floor() -> None:
    assert not Doubt(100, 100, {99: 5}).is_over
    over = Doubt(100, 100, {99: 5}).narrowed(100, {})
    assert (over.is_over, over.stop, over.unsure_ledgers) == (True, 100, 0)
    assert SOME.unsure_ledgers == 52


@pytest.mark.parametrize(
    ("sure_below", "exceptions"),
    [
        (49, {3: 0, 20: 7}),  # ledger 49 would be unsure again
        (101, {}),  # beyond the floor
        (50, {3: 0, 20: 6}),  # entry 6 of ledger 20
        (50, {4: 0}),
        (60, {60: 0}),  # an exception from what is not sure
        (60, {-1: 0}),
        (60, {55: -1}),
    ],
)
def test_nothing_becomes_unsure_again(sure_below: int, exceptions: dict[int, int]) -> None:
    with pytest.raises(ValueError, match=r"unsure|between"):
        SOME.narrowed(sure_below, exceptions)


def test_exceptions_are_bounded() -> None:
    most = dict.fromkeys(range(UNSURE_EXCEPTIONS_MAX), 0)
    narrowed = Doubt(10**6).narrowed(UNSURE_EXCEPTIONS_MAX + 1, most)
    assert narrowed.unsure_ledgers == 10**6 - 1
    with pytest.raises(ValueError, match="4097 exceptions"):
        Doubt(10**6).narrowed(10**6, most | {UNSURE_EXCEPTIONS_MAX: 0})


@given(st.lists(st.tuples(st.integers(0, 12), st.dictionaries(st.integers(-1, 12), st.integers(-1, 3))), max_size=6))
def test_any_course_of_narrowing_only_ever_makes_sure(steps: list[tuple[int, dict[int, int]]]) -> None:
    doubt = Doubt(10)
    for sure_below, exceptions in steps:
        try:
            narrowed = doubt.narrowed(sure_below, exceptions)
        except ValueError:
            continue
        for ledger_id in range(13):
            before, after = doubt.unsure_from(ledger_id), narrowed.unsure_from(ledger_id)
            assert after is None or (before is not None and after >= before)
        assert narrowed.is_over == all(narrowed.unsure_from(ledger_id) is None for ledger_id in range(13))
        doubt = narrowed


def test_a_term_floor_ends_both_halves_of_the_doubt_about_a_stream() -> None:
    """Rule T12; a term of 0 is that of a ledger with one writer."""
    doubt = SOME.with_term_floors({60: 5})
    assert [term for term in range(9) if doubt.takes_adds(60, term)] == [6, 7, 8]
    assert [term for term in range(9) if doubt.takes_adds(61, term)] == []
    assert [term for term in range(9) if doubt.takes_adds(20, term)] == [], "sure of its entries, not of its fences"
    assert [term for term in range(3) if doubt.takes_adds(100, term)] == [0, 1, 2]
    assert (doubt.unsure_from(60), doubt.last_unsure(60)) == (0, place(6, 0) - 1)
    assert (doubt.unsure_from(61), doubt.last_unsure(61)) == (0, None)


def test_a_term_floor_neither_rises_nor_falls_nor_goes() -> None:
    doubt = SOME.with_term_floors({60: 5}).with_term_floors({60: 4, 61: 1}).with_term_floors({60: 9})
    assert doubt.term_floors == {60: 5, 61: 1}
    assert doubt.narrowed(100, {}).term_floors == {60: 5, 61: 1}
    assert doubt.narrowed(100, {}).is_over
    assert doubt.narrowed(100, {}).takes_adds(60, 6)
    assert not doubt.narrowed(100, {}).takes_adds(60, 5)


@pytest.mark.parametrize("floors", [{100: 1}, {-1: 1}, {60: 0}, {60: -1}])
def test_what_can_be_no_term_floor_is_refused(floors: dict[int, int]) -> None:
    with pytest.raises(ValueError, match="a term floor"):
        SOME.with_term_floors(floors)


def test_term_floors_are_bounded() -> None:
    most = Doubt(10**6).with_term_floors(dict.fromkeys(range(TERM_FLOORS_MAX), 1))
    assert most.with_term_floors({0: 2}) == most
    with pytest.raises(ValueError, match="4097 term floors"):
        most.with_term_floors({TERM_FLOORS_MAX: 1})
