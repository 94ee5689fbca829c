"""The decision table of the list's changes (rules L1, L3 and P4), row by row."""

from dataclasses import replace

import pytest
from octavo.client.log.chain.bounds import MAKING_MAX
from octavo.client.log.chain.changes import (
    AppendSegment,
    BeginSegment,
    Decision,
    DropPage,
    FoldPage,
    ForgetDropped,
    GiveUp,
    LogChange,
    MarkDeleted,
    MergePages,
    NoteEnds,
    SetRetention,
    Truncate,
    Withdraw,
)
from octavo.client.log.documents.chain import Dropped, LogDocument, Retention, decode_log, page_reference
from octavo.client.log.documents.effects import WriteDocument
from octavo.client.log.documents.states import LogState
from octavo.client.log.seam.end_moved import EndMovedError
from octavo.metadata.ledger.decisions import Refuse, Settled
from octavo.protocol.errors import InvalidArgumentError, NoSuchLogError, NotLeaderError
from octavo.protocol.ids import LedgerId
from support.metadata.log_documents import ended, log_of, making

NEW = LedgerId(50)


def append(base: int | None, **fields: object) -> AppendSegment:
    """A takeover's compare-and-set."""
    change = AppendSegment(NEW, "me", 9, 5000, None if base is None else LedgerId(base), {}, is_takeover=True)
    return replace(change, **fields)  # type: ignore[arg-type]


def written(decision: Decision) -> LogDocument:
    assert isinstance(decision, WriteDocument), decision
    return decision.document


def refusal(decision: Decision) -> Exception:
    assert isinstance(decision, Refuse), decision
    return decision.error


def test_a_candidate_notes_its_ledger_unless_a_rival_was_quicker() -> None:
    begin = BeginSegment(NEW, "me", LedgerId(11))
    after = written(begin.decide(log_of(3, 4)))
    assert [m.ledger_id for m in after.making] == [NEW]
    assert begin.decide(after) == Settled()
    assert isinstance(refusal(begin.decide(log_of(3, 4, None))), NotLeaderError)
    assert written(BeginSegment(NEW, "me", None).decide(log_of())).making


def test_a_segment_is_appended_to_the_list_that_was_read() -> None:
    before = making(log_of(3, None), 50)
    after = written(append(11, ends={LedgerId(11): ended(2)}).decide(before))
    assert after.newest is not None
    assert (after.newest.ledger_id, after.newest.term, after.newest.first_position) == (NEW, 9, 5)
    assert (after.term, after.making, after.end_of_term(2)) == (9, (), 5)


def test_an_append_whose_answer_was_lost_is_recognised() -> None:
    after = written(append(10).decide(making(log_of(3), 50)))
    assert append(10).decide(after) == Settled()


def test_a_rival_or_a_cleaner_refuses_the_append() -> None:
    assert isinstance(refusal(append(10).decide(making(log_of(3, 4), 50))), NotLeaderError)
    assert isinstance(refusal(append(10).decide(log_of(3))), NotLeaderError), "taken for abandoned"


def test_an_append_drops_the_ledgers_of_other_candidates_and_empty_segments() -> None:
    before = making(making(log_of(3, 0, 0), 50), 51, "rival")
    after = written(append(12).decide(before))
    assert [s.ledger_id for s in after.segments] == [10, NEW]
    assert {d.ledger_id for d in after.dropped} == {11, 12, 51}


def test_a_roll_keeps_the_segment_before_open() -> None:
    after = written(append(11, is_takeover=False, term=2, owner="owner-2").decide(making(log_of(3, None), 50)))
    assert [s.end is None for s in after.segments] == [False, True, True]
    assert after.newest is not None
    assert after.newest.first_position is None
    assert after.term == 2


def test_a_ledger_that_was_listed_after_all_is_not_withdrawn() -> None:
    listed = written(append(10).decide(making(log_of(3), 50)))
    assert Withdraw(NEW).decide(listed) == Settled()
    withdrawn = written(Withdraw(NEW).decide(making(log_of(3), 50)))
    assert (withdrawn.making, withdrawn.dropped) == ((), (Dropped(NEW),))
    assert Withdraw(NEW).decide(withdrawn) == Settled()


def test_truncation_drops_whole_segments_below_and_never_one_of_the_last_two() -> None:
    after = written(Truncate(7).decide(log_of(3, 4, 5, None)))
    assert (after.first_position, [s.ledger_id for s in after.segments]) == (7, [12, 13])
    assert [d.ledger_id for d in after.dropped] == [10, 11]
    everything = written(Truncate(12).decide(log_of(3, 4, 5, None)))
    assert [s.ledger_id for s in everything.segments] == [12, 13]
    inside = written(Truncate(6).decide(log_of(3, 4, 5, None)))
    assert (inside.first_position, [s.ledger_id for s in inside.segments]) == (6, [11, 12, 13])
    assert Truncate(5).decide(inside) == Settled(), "never back"


def test_a_truncation_that_was_decided_by_another_list_is_decided_anew() -> None:
    """Rule P7: whatever has changed since, the end may be another one."""
    looked = log_of(3, 4, 5, None)
    change = Truncate(7, looked=looked)
    assert written(change.decide(looked)).first_position == 7
    given_up = replace(looked, gaps=((8, 9),))
    refused = change.decide(given_up)
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, EndMovedError)
    assert isinstance(change.decide(written(change.decide(looked))), Settled), "it has been made already"


def test_a_segment_is_not_dropped_before_its_successors_first_position_is_known() -> None:
    document = log_of(3, None, None, newest_known=False)
    assert [s.ledger_id for s in written(Truncate(3).decide(document)).segments] == [11, 12]


def test_the_time_of_what_is_dropped_stays_known() -> None:
    """Rule P10: readers may have got the entries, and the segments that stay may hold none."""
    document = log_of(1, 2, 0, 0, None)
    assert document.sealed_at_ms == 2000
    truncated = written(Truncate(2).decide(document))
    assert [s.ledger_id for s in truncated.segments] == [11, 12, 13, 14]
    truncated = written(Truncate(3).decide(truncated))
    assert [s.ledger_id for s in truncated.segments] == [13, 14]
    assert (truncated.sealed_at_ms, truncated.dropped_sealed_at_ms) == (2000, 2000)
    assert decode_log(truncated.encode(), "orders") == truncated
    assert b"dropped_sealed_at_ms" not in document.encode(), "as older versions write it"

    page, rest = page_reference("p", document.segments[:3]), page_reference("q", document.segments[2:3])
    folded = written(FoldPage(page, document.segments[:3]).decide(document))
    whole = written(Truncate(3, whole_pages={"p": (LedgerId(10), LedgerId(11), LedgerId(12))}).decide(folded))
    parted = written(Truncate(3, split=(page, rest, (LedgerId(10), LedgerId(11)))).decide(folded))
    assert (whole.sealed_at_ms, parted.sealed_at_ms) == (2000, 2000)


def test_a_page_takes_the_place_of_the_oldest_segments() -> None:
    document = log_of(1, 2, 3, 4, None)
    page = page_reference("p", document.segments[:2])
    after = written(FoldPage(page, document.segments[:2]).decide(document))
    assert (after.pages, [s.ledger_id for s in after.segments]) == ((page,), [12, 13, 14])
    assert after.page_at(2) == page
    assert FoldPage(page, document.segments[:2]).decide(after) == Settled()
    whole = Truncate(4, whole_pages={"p": (LedgerId(10), LedgerId(11))})
    truncated = written(whole.decide(after))
    assert (truncated.pages, truncated.first_position) == ((), 4)
    assert [d.ledger_id for d in truncated.dropped] == [10, 11]


def test_a_page_that_truncation_falls_into_is_replaced() -> None:
    document = log_of(1, 2, 3, 4, None)
    page, rest = page_reference("p", document.segments[:3]), page_reference("q", document.segments[1:3])
    folded = written(FoldPage(page, document.segments[:3]).decide(document))
    after = written(Truncate(2, split=(page, rest, (LedgerId(10),))).decide(folded))
    assert (after.pages, after.first_position, after.dropped) == ((rest,), 2, (Dropped(LedgerId(10)),))


def test_dropped_ledgers_are_forgotten_once_they_are_deleted_or_never_appear() -> None:
    document = replace(log_of(3), dropped=(Dropped(LedgerId(1)), Dropped(LedgerId(2))))
    after = written(ForgetDropped([LedgerId(1)], [LedgerId(2)]).decide(document))
    assert after.dropped == (Dropped(LedgerId(2), 1),)
    for _ in range(10):
        after = written(ForgetDropped([], [LedgerId(2)]).decide(after))
    assert after.dropped == ()
    assert ForgetDropped([LedgerId(1)]).decide(after) == Settled()


def test_a_deleted_log_names_all_its_ledgers() -> None:
    document = log_of(1, 2, 3, 4, None)
    page = page_reference("p", document.segments[:2])
    folded = making(written(FoldPage(page, document.segments[:2]).decide(document)), 50)
    after = written(MarkDeleted().decide(folded))
    assert {d.ledger_id for d in after.dropped} == {12, 13, 14, 50}
    assert (after.state, after.pages) == (LogState.DELETED, (page,))
    assert MarkDeleted().decide(after) == Settled()
    last = written(DropPage(page, [LedgerId(10), LedgerId(11)]).decide(after))
    assert {d.ledger_id for d in last.dropped} == {10, 11, 12, 13, 14, 50}
    assert last.pages == ()
    assert DropPage(page, []).decide(last) == Settled()


def test_pages_are_merged_once_and_only_where_all_of_them_stand() -> None:
    document = log_of(1, 2, 3, 4, 5, 6, None)
    pages = tuple(page_reference(f"p{at}", document.segments[at : at + 1]) for at in range(3))
    for at, page in enumerate(pages):
        document = written(FoldPage(page, (document.segments[0],)).decide(document))
        assert document.pages[at] == page
    merged = page_reference("m", log_of(1, 2, 3, 4, 5, 6, None).segments[1:3])
    after = written(MergePages(pages[1:], merged).decide(document))
    assert after.pages == (pages[0], merged)
    assert MergePages(pages[1:], merged).decide(after) == Settled()
    truncated = written(Truncate(1, whole_pages={"p0": (LedgerId(10),)}).decide(after))
    assert truncated.pages == (merged,)
    assert MergePages(pages[:2], merged).decide(truncated) == Settled()


def test_candidates_that_die_do_not_fill_the_list() -> None:
    document = log_of(1, 2)
    for number in range(MAKING_MAX + 3):
        document = written(BeginSegment(LedgerId(100 + number), "me", LedgerId(11)).decide(document))
    assert len(document.making) == MAKING_MAX
    assert document.dropped == tuple(Dropped(LedgerId(100 + number)) for number in range(3))
    late = replace(append(11), ledger_id=LedgerId(101))
    assert isinstance(refusal(late.decide(document)), NotLeaderError), "its ledger is being deleted"


@pytest.mark.parametrize(
    "change",
    [
        BeginSegment(NEW, "me", None),
        append(None),
        NoteEnds({}),
        Truncate(1),
        SetRetention(Retention(seconds=1)),
    ],
)
def test_a_deleted_log_takes_no_change(change: LogChange) -> None:
    assert isinstance(refusal(change.decide(_deleted())), NoSuchLogError)


def _deleted() -> LogDocument:
    return written(MarkDeleted().decide(log_of(3)))


def test_retention_is_set_once() -> None:
    retention = Retention(seconds=60, bytes=None, cursors=True)
    after = written(SetRetention(retention).decide(log_of(3)))
    assert after.retention == retention
    assert SetRetention(retention).decide(after) == Settled()


def test_giving_up_a_closed_segment_notes_the_gap_and_keeps_the_list() -> None:
    before = log_of(3, 4, None)
    after = written(GiveUp(LedgerId(11), 3, 6).decide(before))
    assert (after.gaps, after.segments) == (((3, 6),), before.segments)
    assert GiveUp(LedgerId(11), 3, 6).decide(after) == Settled()
    assert written(GiveUp(LedgerId(10), 0, 2).decide(after)).gaps == ((0, 2), (3, 6))
    assert written(Truncate(7).decide(after)).gaps == ()
    assert written(Truncate(5).decide(after)).gaps == ((3, 6),)


def test_giving_up_an_open_segment_ends_it_and_its_leader() -> None:
    before = log_of(3, None)
    change = GiveUp(LedgerId(11), 3, 8)
    after = written(change.decide(before))
    assert after.newest is not None
    assert (after.newest.stop_position, after.newest.owner, after.gaps) == (9, "", ((3, 8),))
    roll = AppendSegment(NEW, "owner-2", 2, 5000, LedgerId(11), {}, is_takeover=False)
    assert isinstance(refusal(roll.decide(making(after, 50))), NotLeaderError)
    assert written(roll.decide(making(before, 50))).newest is not None, "an ordinary roll of that leader"
    assert written(append(11).decide(making(after, 50))).known_stop == 9
    assert isinstance(refusal(GiveUp(LedgerId(11), 4, 8).decide(before)), InvalidArgumentError)
    assert isinstance(refusal(change.decide(replace(before, state=LogState.DELETED))), NoSuchLogError)
    empty = written(GiveUp(LedgerId(11), 3, 2).decide(before))
    assert (empty.gaps, empty.known_stop) == ((), 3)
