"""Debts of streams: what a fragment owes, and which changes record it (rules I9 and G6)."""

from dataclasses import replace

import pytest
from octavo.metadata.ledger.changes import PayDebt, ReplaceMember
from octavo.metadata.ledger.debts import NO_DEBT, Debt, FullCopies
from octavo.metadata.ledger.decisions import Refuse, Settled, Write
from octavo.metadata.stream.changes import (
    ChangeFragment,
    LayToRest,
    OpenTerm,
    PageOut,
    RenewTerm,
    Rest,
    StreamChange,
    TermEnd,
)
from octavo.metadata.stream.encoding import decode_stream, encode_stream
from octavo.metadata.stream.model import StreamFragment, StreamMetadata
from octavo.metadata.stream.pages import decode_page, make_page, repaired_page
from octavo.protocol.errors import MetadataConflictError, MetadataError
from octavo.protocol.ids import BookieId, EntryId
from octavo.protocol.places import place
from support.metadata.ledger_metadata import bookie_ids
from support.metadata.stream_metadata import open_stream, stream_fragment

FIRST = stream_fragment(1, 0, 0, "xyz")
BASE = stream_fragment(2, 0, 4, "abc", 40)
FOLLOWING = stream_fragment(2, 6, 10, "abd", 100)
START = BASE.first_entry_id


def owing(first: int, last: int, term: int = 2) -> Debt:
    return Debt(place(term, first), place(term, last))


def stream(*fragments: StreamFragment, kept: FullCopies | None = FullCopies.RECORDED) -> StreamMetadata:
    return replace(open_stream(*(fragments or (FIRST, BASE))), full_copies=kept)


def written(change: StreamChange, current: StreamMetadata) -> StreamMetadata:
    decision = change.decide(current)
    assert isinstance(decision, Write), decision
    return decision.metadata


def owed(metadata: StreamMetadata) -> dict[int, Debt]:
    return {one.first_position: metadata.debt_of(one) for one in metadata.fragments}


END = TermEnd(place(2, 5), 100, ((START, owing(3, 5)),))
CHANGE = ChangeFragment(BASE, FOLLOWING, owing(2, 5))
REST = Rest(BASE, END)
RENEW = RenewTerm(BASE, END, "second", BASE)
OPEN_NEXT = OpenTerm(BASE, (), END, "other", BASE)
LAY = LayToRest(BASE, (), END)
RECOVERIES = (OPEN_NEXT, LAY)


def before(change: StreamChange, current: StreamMetadata) -> StreamMetadata:
    return current.in_recovery() if change in RECOVERIES else current


def test_a_settled_fragment_that_records_nothing_owes_everything() -> None:
    """A version that knows no debts has ended it."""
    rested = stream().at_rest(place(2, 5), 100)
    assert owed(rested) == {0: owing(0, 3, term=1), 4: owing(0, 5)}
    assert [debt for _, debt in rested.debts] == [owing(0, 3, term=1), owing(0, 5)]


def test_a_fragment_that_is_not_settled_owes_nothing_yet() -> None:
    assert owed(stream())[4] == NO_DEBT
    assert owed(stream().in_recovery())[4] == NO_DEBT


def test_an_empty_last_fragment_at_rest_owes_nothing() -> None:
    assert owed(stream().at_rest(EntryId(START - 1), 40))[4] == NO_DEBT


def test_what_was_truncated_is_not_owed() -> None:
    rested = stream().at_rest(place(2, 5), 100)
    assert owed(rested.truncated(2)) == {0: owing(2, 3, term=1), 4: owing(0, 5)}
    assert owed(stream(FIRST, replace(BASE, debt=owing(1, 2)), FOLLOWING).truncated(8))[4] == NO_DEBT


@pytest.mark.parametrize("change", [CHANGE, REST, RENEW, OPEN_NEXT, LAY])
def test_a_stream_without_books_owes_and_records_nothing(change: StreamChange) -> None:
    without = stream(kept=None)
    changed = written(change, before(change, without))
    assert changed.debts == ()
    assert b"debt" not in encode_stream(changed)
    assert b"full_copies" not in encode_stream(changed)


@pytest.mark.parametrize("change", [REST, RENEW, OPEN_NEXT, LAY])
def test_the_change_that_ends_a_term_records_what_its_last_fragment_owes(change: StreamChange) -> None:
    changed = written(change, before(change, stream()))
    assert owed(changed)[4] == owing(3, 5)
    assert all(one.debt is None for one in changed.fragments if one.first_position == 10)


def test_the_change_that_ends_a_fragment_records_its_debt() -> None:
    assert owed(written(CHANGE, stream())) == {0: owing(0, 3, term=1), 4: owing(2, 5), 10: NO_DEBT}
    assert owed(written(replace(CHANGE, debt=NO_DEBT), stream()))[4] == NO_DEBT
    assert owed(written(replace(CHANGE, debt=None), stream()))[4] == owing(0, 5)


def test_a_fragment_that_replaces_another_one_takes_over_no_debt() -> None:
    change = ChangeFragment(BASE, replace(BASE, bookies=bookie_ids("a", "b", "d")), owing(0, 1))
    changed = written(change, stream())
    assert [one.debt for one in changed.fragments] == [None, None]


def test_a_fragment_made_from_another_one_takes_over_no_debt() -> None:
    """Writers make the next fragment from the last one."""
    rested = stream().at_rest(place(2, 5), 100).with_debt(START, NO_DEBT)
    assert rested.with_next_term("second", rested.last_fragment).last_fragment.debt is None
    assert stream().with_fragment(replace(FOLLOWING, debt=NO_DEBT)).last_fragment.debt is None


def test_a_takeover_records_the_debts_of_all_fragments_that_it_ends() -> None:
    end = TermEnd(place(2, 8), 130, ((START, owing(5, 5)), (FOLLOWING.first_entry_id, NO_DEBT)))
    opened = written(OpenTerm(BASE, (FOLLOWING,), end, "other", BASE), stream().in_recovery())
    assert owed(opened) == {0: owing(0, 3, term=1), 4: owing(5, 5), 10: NO_DEBT, 13: NO_DEBT}


def test_an_end_that_stands_keeps_its_debts_whatever_a_takeover_found() -> None:
    rested = written(REST, stream())
    opened = written(replace(OPEN_NEXT, end=replace(END, debts=((START, NO_DEBT),))), rested)
    assert owed(opened)[4] == owing(3, 5)


@pytest.mark.parametrize("change", [CHANGE, REST, RENEW, OPEN_NEXT, LAY])
def test_bases_do_not_compare_debts(change: StreamChange) -> None:
    found = stream(FIRST, replace(BASE, debt=owing(0, 0)))
    assert isinstance(change.decide(before(change, found)), Write)


@pytest.mark.parametrize("change", [CHANGE, REST, RENEW, OPEN_NEXT, LAY])
def test_a_change_whose_answer_was_lost_is_settled_also_when_the_debt_was_paid(change: StreamChange) -> None:
    changed = written(change, before(change, stream()))
    assert change.decide(changed) == Settled()
    assert change.decide(written(replace(PAY, paid=owing(0, 5)), changed)) == Settled()


def test_debts_survive_other_changes_and_the_stored_form() -> None:
    changed = written(CHANGE, stream())
    repaired = written(ReplaceMember(START, place(2, 5), 1, BookieId("b"), BookieId("w")), changed)
    assert owed(repaired)[4] == owing(2, 5)
    again = decode_stream(repaired.ledger_id, encode_stream(repaired))
    assert again == repaired
    assert again.full_copies is FullCopies.RECORDED
    required = stream(kept=FullCopies.REQUIRED)
    assert decode_stream(required.ledger_id, encode_stream(required)) == required


def test_a_damaged_debt_is_damage_of_the_metadata() -> None:
    """The checksum covers it; this is what a defect writes."""
    broken = stream(FIRST, replace(BASE, debt=Debt(-3, 5)))
    with pytest.raises(MetadataError, match="is not a debt"):
        decode_stream(broken.ledger_id, encode_stream(broken))


PAY = PayDebt(START, BASE.bookies, owing(2, 5))
PAYMENTS = {
    "what is owed": (PAY, Write),
    "more than is owed": (replace(PAY, paid=owing(0, 5)), Write),
    "less than is owed": (replace(PAY, paid=owing(3, 5)), Refuse),
    "other members": (replace(PAY, bookies=bookie_ids("a", "b", "w")), Refuse),
    "no such fragment": (replace(PAY, first_entry_id=place(2, 1)), Refuse),
    "nothing is owed": (replace(PAY, first_entry_id=FOLLOWING.first_entry_id), Settled),
}


@pytest.mark.parametrize("name", PAYMENTS)
def test_a_debt_is_paid_by_its_members_and_in_full(name: str) -> None:
    change, expected = PAYMENTS[name]
    changed = written(CHANGE, stream())
    decision = change.decide(changed)
    assert isinstance(decision, expected)
    if isinstance(decision, Write):
        assert owed(decision.metadata) == {**owed(changed), 4: NO_DEBT}
    if isinstance(decision, Refuse):
        assert isinstance(decision.error, MetadataConflictError)


# --- pages ------------------------------------------------------------------------------------------------------------


def test_a_page_keeps_the_debts_of_its_fragments() -> None:
    changed = written(CHANGE, stream())
    page = make_page(changed, changed.fragments[:2], FOLLOWING)
    part = decode_page(changed, page.reference, page.value)
    assert owed(part) == {0: owing(0, 3, term=1), 4: owing(2, 5)}
    paid = part.with_debt(START, NO_DEBT)
    again = repaired_page(changed, page.reference, paid)
    assert owed(decode_page(changed, again.reference, again.value)) == {0: owing(0, 3, term=1), 4: NO_DEBT}


def test_a_debt_that_is_paid_while_it_is_paged_out_has_the_page_made_anew() -> None:
    """Else the page would say what is not owed any more, or, the other way round, would lose a debt."""
    changed = written(CHANGE, stream())
    moved = changed.fragments[:2]
    change = PageOut(moved, None, make_page(changed, moved, FOLLOWING).reference)
    assert isinstance(change.decide(written(PAY, changed)), Refuse)
    assert isinstance(change.decide(changed), Write)
    assert isinstance(PAY.decide(written(change, changed)), Refuse), "its fragment lies in a page now"
