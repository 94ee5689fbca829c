"""What a reader knows of its ledger: by script, and against a model for facts in any order."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.client.read.ledger_view import LedgerView
from octavo.protocol.entries import Entry
from octavo.protocol.ids import EntryId, LedgerId
from support.metadata.ledger_metadata import fragment, open_ledger

SIZE = 10
"""Payload bytes of every entry here, so that the length up to entry ``i`` is ``(i + 1) * SIZE``."""


def entry(entry_id: int, confirmed: int) -> Entry:
    lac = None if confirmed < 0 else EntryId(confirmed)
    return Entry(LedgerId(7), EntryId(entry_id), b"x" * SIZE, lac, (entry_id + 1) * SIZE, 0)


def facts_of(view: LedgerView) -> tuple[Any, ...]:
    view.check_invariants()
    return view.closed, view.last_add_confirmed, view.length, view.length_known_exactly


def test_new_open_ledger_has_nothing_to_read() -> None:
    assert facts_of(LedgerView(open_ledger().current_term, 1)) == (False, None, 0, True)


def test_last_fragment_vouches_for_what_lies_before_it() -> None:
    metadata = open_ledger(7, fragment(0, "abc"), fragment(5, "abd", 50))
    assert facts_of(LedgerView(metadata.current_term, 1)) == (False, 4, 50, True)


def test_entries_and_explicit_lacs_move_the_lac_and_the_length_follows() -> None:
    view = LedgerView(open_ledger().current_term, 1)
    assert not view.on_entries([])
    assert not view.on_entries([entry(0, -1), entry(1, -1)])
    assert view.on_entries([entry(2, 0)])
    assert facts_of(view) == (False, 0, 0, False)
    assert view.on_last_add_confirmed(EntryId(2), None)
    assert facts_of(view) == (False, 2, 30, True)
    assert view.on_last_add_confirmed(EntryId(6), 70)
    assert facts_of(view) == (False, 6, 70, True)
    assert not view.on_last_add_confirmed(EntryId(3), 40)
    assert not view.on_last_add_confirmed(None, None)
    assert facts_of(view) == (False, 6, 70, True)


def test_entry_at_the_lac_tells_its_length_also_from_the_middle_of_a_batch() -> None:
    view = LedgerView(open_ledger().current_term, 1)
    view.on_entries([entry(3, 2), entry(4, 2), entry(5, 4), entry(6, 4)])
    assert facts_of(view) == (False, 4, 50, True)


def test_metadata_of_a_closed_ledger_outrank_every_bookie() -> None:
    """Rule R4."""
    view = LedgerView(open_ledger().current_term, 1)
    view.on_last_add_confirmed(EntryId(3), 40)
    assert view.on_metadata(open_ledger().closed(EntryId(5), 60).current_term, 2)
    assert facts_of(view) == (True, 5, 60, True)
    assert not view.on_last_add_confirmed(EntryId(9), 100)
    assert not view.on_entries([entry(9, 8)])
    assert facts_of(view) == (True, 5, 60, True)


def test_older_metadata_change_nothing() -> None:
    view = LedgerView(open_ledger().closed(EntryId(5), 60).current_term, 4)
    assert not view.on_metadata(open_ledger().current_term, 3)
    assert not view.on_metadata(replace(open_ledger().current_term, private=True), 4)
    assert facts_of(view) == (True, 5, 60, True)


facts = st.lists(
    st.one_of(
        st.tuples(st.just("entry"), st.integers(0, 400), st.integers(1, 30)),
        st.tuples(st.just("explicit"), st.integers(0, 400), st.booleans()),
        st.tuples(st.just("fragment"), st.integers(1, 400), st.none()),
    ),
    max_size=60,
)


@settings(max_examples=100, deadline=None)
@given(facts)
def test_lac_is_the_highest_ever_vouched_for_and_the_length_never_exceeds_it(
    script: list[tuple[str, int, Any]],
) -> None:
    view = LedgerView(open_ledger().current_term, 1)
    highest, version = -1, 1
    for kind, number, detail in script:
        if kind == "entry":
            view.on_entries([entry(number, number - detail)])
            highest = max(highest, number - detail)
        elif kind == "explicit":
            view.on_last_add_confirmed(EntryId(number), (number + 1) * SIZE if detail else None)
            highest = max(highest, number)
        else:
            version += 1
            metadata = open_ledger(7, fragment(0, "abc"), fragment(number, "abd", number * SIZE))
            view.on_metadata(metadata.current_term, version)
            highest = max(highest, number - 1)
        view.check_invariants()
        assert view.readable_end == highest
        assert view.length <= (highest + 1) * SIZE
        assert view.length % SIZE == 0
        if view.length_known_exactly:
            assert view.length == (highest + 1) * SIZE
