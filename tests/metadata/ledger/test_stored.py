"""StoredLedger: a ledger and a stream answer all of its questions, and what they answer."""

from dataclasses import replace

import pytest
from octavo.metadata.ledger.stored import StoredKind, StoredLedger
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.protocol.ids import BookieId, EntryId
from octavo.protocol.places import place
from support.metadata.ledger_metadata import fragment, open_ledger
from support.metadata.paged_streams import paged_stream, resting
from support.metadata.stream_metadata import KEY, open_stream, stream_fragment

LEDGER = open_ledger(7, fragment(0, "abc"), fragment(10, "abd", 100))
CLOSED = LEDGER.closed(EntryId(14), 150)
STREAM = open_stream(
    stream_fragment(1, 0, 0, "abc"), replace(stream_fragment(3, 0, 9, "abde", 200), ack_quorum=3), start=4
)
RESTING = STREAM.at_rest(place(3, 7), 900)
PAGED, _ = paged_stream(20, 4, 6)
ALL: dict[str, EitherMetadata] = {
    "open ledger": LEDGER,
    "closed ledger": CLOSED,
    "open stream": STREAM,
    "stream at rest": RESTING,
    "closed stream": RESTING.closed(),
    "stream with pages": PAGED,
}


@pytest.mark.parametrize("case", ALL)
def test_both_models_answer_every_question(case: str) -> None:
    found = ALL[case]
    questions = {name for name in vars(StoredLedger) if not name.startswith("_")}
    assert {"settled_ranges", "next_term", "with_member", "key_at"} <= questions
    assert not {name for name in questions if not hasattr(found, name)}


@pytest.mark.parametrize("case", ALL)
def test_what_is_asked_of_the_last_fragment_is_answered_by_the_last_fragment(case: str) -> None:
    found: StoredLedger = ALL[case]
    last = found.last_fragment
    assert found.fragments[-1] is last
    assert found.fragment_of(last.first_entry_id) is last
    assert (found.last_id_of(last) is None) is not found.has_end
    assert found.quorums_at(last.first_entry_id).ensemble_size == len(last.bookies)
    assert found.key_at(last.first_entry_id) == found.keys[-1]
    assert found.tail.last_fragment is last
    assert found.spare_copies == min(found.quorums_at(one.first_entry_id).ack_quorum for one in found.fragments) - 1


@pytest.mark.parametrize("case", ALL)
def test_settled_ranges_are_those_of_the_fragments_that_have_an_end(case: str) -> None:
    found: StoredLedger = ALL[case]
    ended = [one for one in found.fragments if found.last_id_of(one) is not None]
    assert [one.last for one in found.settled_ranges()] == [found.last_id_of(one) for one in ended]
    assert [one.bookies for one in found.settled_ranges()] == [one.bookies for one in ended]
    assert ended == list(found.fragments[: None if found.has_end else -1])


def test_a_ledger_has_one_writer_one_part_and_one_key() -> None:
    for ledger in (LEDGER, CLOSED):
        assert ledger.kind is StoredKind.LEDGER
        assert (ledger.next_term, ledger.start_place, ledger.pages) == (None, 0, ())
        assert ledger.tail is ledger.restored(9) is ledger
        assert ledger.keys == (ledger,)
        assert ledger.counts_lac(-1)
        assert ledger.counts_lac(place(5, 5))
    assert (LEDGER.has_end, CLOSED.has_end, CLOSED.is_closed) == (False, True, True)


def test_a_stream_at_rest_has_an_end_and_is_not_closed() -> None:
    closed = RESTING.closed()
    assert [(one.has_end, one.is_closed) for one in (STREAM, STREAM.in_recovery(), RESTING, closed)] == [
        (False, False), (False, False), (True, False), (True, True),
    ]  # fmt: skip
    assert {one.next_term for one in (STREAM, RESTING, closed)} == {4}
    assert STREAM.kind is StoredKind.STREAM


def test_of_a_stream_only_lacs_of_the_current_term_count() -> None:
    """Before the first acknowledgement of a term the LAC is one below its first place (rule O1)."""
    counted = [place(3, 0) - 1, place(3, 0), place(3, 9)]
    others = [-1, place(1, 4), place(2, 0), place(4, 0) - 1, place(4, 0)]
    assert all(map(STREAM.counts_lac, counted))
    assert not any(map(STREAM.counts_lac, others))


def test_repair_changes_what_was_written_of_a_ledger_and_not_of_a_stream() -> None:
    """A recovery of what seems abandoned begins only if no other client has changed it (rule O3)."""
    named = LEDGER.with_member(EntryId(0), 2, BookieId("e"))
    assert named.written_part != LEDGER.written_part
    repaired = STREAM.with_member(place(1, 0), 2, BookieId("e"))
    for same in (repaired, STREAM.truncated(6), STREAM.written_by("another")):
        assert same.written_part == STREAM.written_part
    changed = replace(STREAM.last_fragment, first_entry_id=place(3, 2), first_position=11, length_before=220)
    for other in (STREAM.in_recovery(), RESTING, STREAM.with_fragment(changed)):
        assert other.written_part != STREAM.written_part


def test_of_a_stream_with_pages_the_tail_is_asked() -> None:
    assert PAGED.settled_ranges() == PAGED.tail.settled_ranges()
    assert resting(PAGED).settled_ranges()[0].first == PAGED.tail.start_place
    assert PAGED.start_place < PAGED.tail.start_place


def test_the_keys_of_a_stream_are_those_of_its_fragments() -> None:
    other = replace(KEY, salt=b"other" * 4)
    first, last = STREAM.fragments
    stream = replace(STREAM, keys=(KEY, other), fragments=(first, replace(last, key=1)))
    assert [stream.key_at(place(1, 5)), stream.key_at(place(3, 2))] == [KEY, other]
