"""The auditor's index of ledgers, against a plain dictionary (rule A5)."""

from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.places import place
from octavo.repair.audit.ledger_queue import LedgerQueue
from octavo.repair.base.census import BLOCK, Census, Round, Seen, at_once
from support.metadata.ledger_metadata import fragment, open_ledger
from support.metadata.stream_metadata import open_stream, stream_fragment


def take(census: Census, ledgers: dict[int, Seen]) -> tuple[list[int], list[int], int]:
    """One round over these ledgers: which were read, which are newly closed, how many are gone."""
    found, read = Round(), []
    for ledger_id in sorted(ledgers):
        found.list(LedgerId(ledger_id))
        if census.must_read(LedgerId(ledger_id)):
            read.append(ledger_id)
            found.note(LedgerId(ledger_id), ledgers[ledger_id])
    applied = at_once(census.apply(found))
    census.check_invariants()
    return read, list(applied.newly_closed), applied.deleted


def seen(names: str, *, closed: bool = True) -> Seen:
    return Seen(frozenset(map(BookieId, names)), closed, 1)


def ranks(**of: int) -> dict[BookieId, int]:
    return {BookieId(name): rank for name, rank in of.items()}


def test_a_round_reads_new_and_open_ledgers_only_and_those_that_repair_has_marked() -> None:
    census = Census()
    ledgers = {1: seen("abc"), 2: seen("abd", closed=False), 3: seen("bcd")}
    assert take(census, ledgers)[0] == [1, 2, 3]
    assert take(census, ledgers)[0] == [2]
    ledgers |= {2: seen("abd"), 4: seen("acd")}
    assert take(census, ledgers) == ([2, 4], [2, 4], 0)
    census.mark([LedgerId(3)])
    ledgers[3] = seen("acd")
    assert take(census, ledgers)[0] == [3]
    assert list(census.names(BookieId("b"))) == [1, 2]
    del ledgers[1]
    assert take(census, ledgers) == ([], [], 1)
    assert list(census.names(BookieId("a"))) == [2, 3, 4]


def test_ledgers_with_the_fewest_live_copies_come_first_then_lost_before_drained_then_by_id() -> None:
    census = Census()
    take(census, {1: seen("abx"), 2: seen("aby"), 3: seen("axy"), 4: seen("abz"), 5: seen("xyz"), 6: seen("abc")})
    assert list(at_once(census.candidates(ranks(x=0, y=0)))) == [3, 5, 1, 2]
    assert list(at_once(census.candidates(ranks(x=0, z=2)))) == [1, 3, 5, 4]
    assert list(at_once(census.candidates(ranks(q=0)))) == []


def test_figures_count_ledgers_that_also_name_another_unavailable_bookie() -> None:
    census = Census()
    take(census, {1: seen("abx"), 2: seen("abc"), 3: seen("bxy")})
    counts = at_once(census.counts({BookieId("x"), BookieId("y")}))
    assert counts[BookieId("a")] == (2, 1)
    assert counts[BookieId("b")] == (3, 2)
    assert counts[BookieId("x")] == (2, 1)
    assert at_once(census.counts(())) == {name: (count, 0) for name, (count, _) in counts.items()}


def test_what_is_kept_of_a_ledger_are_all_bookies_that_it_names() -> None:
    metadata = open_ledger(7, fragment(0, "abc"), fragment(10, "abd", 100))
    assert Seen.of(metadata) == Seen(frozenset(map(BookieId, "abcd")), closed=False, spare_copies=1)
    assert Seen.of(metadata.closed(EntryId(9), 100)).closed


def test_a_stream_never_counts_as_closed() -> None:
    """So every round reads it: its next term may name any bookie."""
    stream = open_stream(stream_fragment(1, 0, 0, "abc"), replace(stream_fragment(2, 0, 10, "cde", 9), ack_quorum=3))
    for metadata in (stream, stream.at_rest(place(2, 0), 10), stream.at_rest(place(2, 0), 10).closed()):
        assert Seen.of(metadata) == Seen(frozenset(map(BookieId, "abcde")), False, 1, is_stream=True)


def test_members_of_streams_are_asked_in_turn_and_of_open_ledgers_not() -> None:
    census = Census()
    take(
        census,
        {1: seen("a"), 2: seen("a", closed=False), 3: Seen(frozenset({BookieId("a")}), False, 1, is_stream=True)},
    )
    assert census.some_from(0, 9) == [1, 3]


NAMES = st.sets(st.sampled_from("abcde"), min_size=1, max_size=4).map(lambda names: "".join(sorted(names)))
LEDGERS = st.dictionaries(st.integers(0, 30), st.tuples(NAMES, st.booleans()), max_size=20)


type Rounds = list[tuple[dict[int, tuple[str, bool]], dict[int, str | None]]]


@pytest.mark.parametrize("block", [8, BLOCK])
@given(st.lists(st.tuples(LEDGERS, st.dictionaries(st.integers(0, 30), st.none() | NAMES, max_size=5)), max_size=5))
def test_the_census_is_what_the_ledgers_say(block: int, rounds: Rounds) -> None:
    census = Census(block)  # of small blocks, too: they begin and end everywhere then
    for ledgers, updates in rounds:
        now = {ledger_id: seen(names, closed=closed) for ledger_id, (names, closed) in ledgers.items()}
        census.mark(map(LedgerId, range(31)))  # anything may have changed
        take(census, now)
        for ledger_id, names in updates.items():
            census.update(LedgerId(ledger_id), None if names is None or ledger_id not in now else seen(names))
            if ledger_id in now:
                now[ledger_id] = seen("" if names is None else names)
            census.check_invariants()
        for name in "abcde":
            expected = [ledger_id for ledger_id in sorted(now) if name in now[ledger_id].bookies]
            assert list(census.names(BookieId(name))) == expected
            figures = at_once(census.counts({BookieId("a"), BookieId("b")}))
            thin = [one for one in expected if {"a", "b"} & now[one].bookies - {name}]
            assert figures.get(BookieId(name), (0, 0)) == (len(expected), len(thin))
        order = list(at_once(census.candidates(ranks(a=0, b=0, c=2))))
        of_all = [one for one in sorted(now) if now[one].bookies & {"a", "b", "c"}]
        assert sorted(order) == of_all
        lost = [len(now[one].bookies & {"a", "b"}) for one in order]
        assert lost == sorted(lost, reverse=True)


def test_the_census_of_many_ledgers_takes_eight_bytes_for_each_member() -> None:
    census, found = Census(), Round()
    for ledger_id in range(20_000):
        found.list(LedgerId(ledger_id))
        found.note(LedgerId(ledger_id), seen("abc"))
    at_once(census.apply(found))
    assert census.memory_bytes == 8 * 20_000 * 4
    assert len(at_once(census.candidates(ranks(a=0)))) == 20_000
    assert census.some_from(19_990, 100) == list(array("Q", range(19_990, 20_000)))


def test_work_on_many_ledgers_is_done_in_steps() -> None:
    """The auditor is a bookie that serves adds meanwhile."""
    census, number = Census(64), 20 * 64
    for first in (0, 5, 5):  # all are new; a few have come and gone; nothing has changed
        found = Round()
        for ledger_id in range(first, first + number):
            found.list(LedgerId(ledger_id))
            if census.must_read(LedgerId(ledger_id)):
                found.note(LedgerId(ledger_id), seen("abc"))
        assert sum(1 for _ in census.apply(found)) >= 20
    census.check_invariants()
    assert list(census.names(BookieId("a"))) == list(range(5, 5 + number))
    assert sum(1 for _ in census.candidates(ranks(a=0))) >= 20
    assert sum(1 for _ in census.counts({BookieId("a")})) >= 20


def test_ledgers_wait_in_order_and_those_added_one_by_one_come_first() -> None:
    queue = LedgerQueue()
    queue.replace(array("Q", range(10, 20)))
    for ledger_id in (5, 7, 5, 15):
        queue.add(LedgerId(ledger_id))
    assert (len(queue), LedgerId(5) in queue, LedgerId(10) in queue) == (13, True, False)
    assert queue.take(4) == [5, 7, 15, 10]
    queue.put_back([LedgerId(15), LedgerId(10)])
    assert queue.take(3) == [15, 10, 11]
    assert queue.take(100) == list(range(12, 20))
    assert (len(queue), queue.take(5)) == (0, [])
    queue.add(LedgerId(1))
    queue.replace(array("Q", [3]))
    assert queue.take(5) == [3]
