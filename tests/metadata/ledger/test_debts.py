"""Debts: what a fragment owes, and which changes record it (rules I9 and G6)."""

from dataclasses import replace

import pytest
from octavo.metadata import ChangeEnsemble, CloseLedger, FinishRecovery, Fragment, LedgerMetadata, ReplaceMember
from octavo.metadata.ledger.changes import MetadataChange, PayDebt
from octavo.metadata.ledger.debts import NO_DEBT, Debt, FullCopies, debt_from, stored_debt
from octavo.metadata.ledger.decisions import Refuse, Settled, Write
from octavo.metadata.ledger.model import decode_ledger, encode_ledger
from octavo.protocol.errors import MetadataConflictError, MetadataError
from octavo.protocol.ids import BookieId, EntryId
from support.metadata.ledger_metadata import bookie_ids, fragment, open_ledger

BASE = fragment(10, "abc", 100)


def ledger(*fragments: Fragment, kept: FullCopies | None = FullCopies.RECORDED) -> LedgerMetadata:
    return replace(open_ledger(7, *(fragments or (fragment(0, "xyz"), BASE))), full_copies=kept)


def written(change: MetadataChange, current: LedgerMetadata) -> LedgerMetadata:
    decision = change.decide(current)
    assert isinstance(decision, Write), decision
    return decision.metadata


CHANGE = ChangeEnsemble(BASE, EntryId(20), bookie_ids("a", "b", "d"), 200, Debt(12, 19))
CLOSE = CloseLedger(BASE, EntryId(29), 300, Debt(25, 29))


def owed(metadata: LedgerMetadata) -> dict[int, Debt]:
    return {int(one.first_entry_id): metadata.debt_of(one) for one in metadata.fragments}


def test_a_settled_fragment_that_records_nothing_owes_everything() -> None:
    """A version that knows no debts has ended it."""
    closed = ledger().closed(EntryId(29), 300)
    assert owed(closed) == {0: Debt(0, 9), 10: Debt(10, 29)}
    assert [debt for _, debt in closed.debts] == [Debt(0, 9), Debt(10, 29)]


def test_a_fragment_that_is_not_settled_owes_nothing_yet() -> None:
    assert owed(ledger())[10] == NO_DEBT
    assert owed(ledger().in_recovery())[10] == NO_DEBT


def test_a_ledger_without_books_owes_and_records_nothing() -> None:
    without = ledger(kept=None)
    changed = written(CHANGE, without)
    closed = written(CloseLedger(changed.last_fragment, EntryId(29), 300, Debt(25, 29)), changed)
    assert closed.debts == ()
    assert [one.debt for one in closed.fragments] == [None, None, None]
    assert b"debt" not in encode_ledger(closed)
    assert b"full_copies" not in encode_ledger(closed)


def test_the_change_that_ends_a_fragment_records_its_debt() -> None:
    assert owed(written(CHANGE, ledger()))[10] == Debt(12, 19)
    closed = written(CLOSE, ledger())
    assert owed(closed)[10] == Debt(25, 29)
    assert owed(written(CloseLedger(BASE, EntryId(29), 300, NO_DEBT), ledger()))[10] == NO_DEBT


def test_a_fragment_that_replaces_another_one_takes_over_no_debt() -> None:
    change = ChangeEnsemble(BASE, EntryId(10), bookie_ids("a", "b", "d"), 100, Debt(5, 9))
    changed = written(change, ledger())
    assert [one.debt for one in changed.fragments] == [None, None]


def test_recovery_records_the_debts_of_all_fragments_that_it_ends() -> None:
    local = fragment(20, "abd", 200)
    debts = ((EntryId(10), Debt(15, 19)), (EntryId(20), NO_DEBT))
    closed = written(FinishRecovery(BASE, (local,), EntryId(29), 300, debts), ledger().in_recovery())
    assert owed(closed) == {0: Debt(0, 9), 10: Debt(15, 19), 20: NO_DEBT}


@pytest.mark.parametrize("change", [CHANGE, CLOSE, FinishRecovery(BASE, (), EntryId(29), 300)])
def test_bases_do_not_compare_debts(change: MetadataChange) -> None:
    found = ledger(fragment(0, "xyz"), replace(BASE, debt=Debt(11, 12)))
    assert isinstance(change.decide(found.in_recovery() if isinstance(change, FinishRecovery) else found), Write)


def test_a_change_whose_answer_was_lost_is_settled() -> None:
    changed = written(CHANGE, ledger())
    assert CHANGE.decide(changed) == Settled()
    closed = written(CLOSE, ledger())
    assert CLOSE.decide(closed) == Settled()


def test_debts_survive_other_changes() -> None:
    changed = written(CHANGE, ledger())
    repaired = written(ReplaceMember(EntryId(10), 19, 1, BookieId("b"), BookieId("w")), changed)
    assert owed(repaired)[10] == Debt(12, 19)
    stored = decode_ledger(repaired.ledger_id, encode_ledger(repaired))
    assert stored == repaired
    assert stored.full_copies is FullCopies.RECORDED


PAY = PayDebt(EntryId(10), BASE.bookies, Debt(12, 19))
PAYMENTS = {
    "what is owed": (PAY, Write),
    "more than is owed": (replace(PAY, paid=Debt(10, 19)), Write),
    "less than is owed": (replace(PAY, paid=Debt(13, 19)), Refuse),
    "other members": (replace(PAY, bookies=bookie_ids("a", "b", "w")), Refuse),
    "no such fragment": (replace(PAY, first_entry_id=EntryId(11)), Refuse),
    "nothing is owed": (replace(PAY, first_entry_id=EntryId(20)), Settled),
}


@pytest.mark.parametrize("name", PAYMENTS)
def test_a_debt_is_paid_by_its_members_and_in_full(name: str) -> None:
    change, expected = PAYMENTS[name]
    changed = written(CHANGE, ledger())
    decision = change.decide(changed)
    assert isinstance(decision, expected)
    if isinstance(decision, Write):
        assert owed(decision.metadata)[10] == NO_DEBT
        assert owed(decision.metadata)[0] == owed(changed)[0]
    if isinstance(decision, Refuse):
        assert isinstance(decision.error, MetadataConflictError)


def test_what_was_never_recorded_is_paid_likewise() -> None:
    closed = ledger().closed(EntryId(29), 300)
    paid = written(PayDebt(EntryId(10), BASE.bookies, Debt(10, 29)), closed)
    assert owed(paid)[10] == NO_DEBT
    assert PayDebt(EntryId(10), BASE.bookies, Debt(10, 29)).decide(paid) == Settled()


@pytest.mark.parametrize("debt", [NO_DEBT, Debt(0, 0), Debt(5, 9)])
def test_stored_form(debt: Debt) -> None:
    assert debt_from(stored_debt(debt)) == debt


@pytest.mark.parametrize("stored", [[1], [1, 2, 3], [2, 1], [-1, 3], [1, "2"], [True, 2], [1.0, 2]])
def test_damaged_debts_are_refused(stored: list[object]) -> None:
    with pytest.raises(ValueError, match="is not a debt"):
        debt_from(stored)


def test_a_damaged_debt_is_damage_of_the_metadata() -> None:
    """The checksum covers it; this is what a defect writes."""
    closed = replace(ledger().closed(EntryId(29), 300), unknown_fields={"full": 1})
    broken = replace(closed, fragments=(closed.fragments[0], replace(BASE, debt=Debt(-3, 5))))
    with pytest.raises(MetadataError, match="is not a debt"):
        decode_ledger(closed.ledger_id, encode_ledger(broken))


@pytest.mark.parametrize(
    ("one", "other", "joined"),
    [
        (NO_DEBT, NO_DEBT, NO_DEBT),
        (NO_DEBT, Debt(3, 4), Debt(3, 4)),
        (Debt(3, 4), NO_DEBT, Debt(3, 4)),
        (Debt(3, 4), Debt(8, 9), Debt(3, 9)),
        (Debt(3, 9), Debt(4, 5), Debt(3, 9)),
    ],
)
def test_joined(one: Debt, other: Debt, joined: Debt) -> None:
    assert one.joined(other) == joined


def test_within() -> None:
    assert Debt(3, 9).within(5, 7) == Debt(5, 7)
    assert Debt(3, 9).within(10, 12) == NO_DEBT
    assert NO_DEBT.within(0, 5) == NO_DEBT
