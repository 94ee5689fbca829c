"""Where copies come from (rules C3 and C4): the verdict on each id, and windows under all kinds of members."""

from itertools import product
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.protocol.quorums import Quorums
from octavo.repair.copy.copying import VERDICTS, Ask, CopyWindow, Told, Verdict, ids_of_runs, preference
from octavo.repair.copy.puller import simplest_stripe

THREE = Quorums(3, 3, 2)


def window(
    needed: list[int], *, quorums: Quorums = THREE, position: int = 0, order: tuple[int, ...] = (1, 2)
) -> CopyWindow:
    return CopyWindow(quorums, position, needed, order)


def test_the_table_has_a_verdict_for_every_combination() -> None:
    assert VERDICTS.keys() == set(product((True, False), repeat=3))
    for (given_soundly, to_ask, failed), verdict in VERDICTS.items():
        assert (verdict is Verdict.COPY) == given_soundly
        if not given_soundly:
            assert verdict is (Verdict.ASK if to_ask else Verdict.WAIT if failed else Verdict.SHORT)


def test_the_first_member_gives_everything_and_no_other_is_asked() -> None:
    one = window([3, 4, 5])
    ask = one.next_ask()
    assert ask == Ask(1, 3, 5, (0, 1, 2))
    assert one.on_answer(ask, 5, [3, 4, 5], []) == [3, 4, 5]
    assert one.done
    assert one.unsound() is None


def test_what_one_member_denies_is_asked_of_the_next_one() -> None:
    one = window([3, 4, 5])
    ask = one.next_ask()
    assert ask is not None
    one.on_answer(ask, 5, [3, 5], [])
    assert one.verdict(4) is Verdict.ASK
    second = one.next_ask()
    assert second == Ask(2, 4, 4, (1,))
    assert one.on_answer(second, 4, [4], []) == [4]
    assert one.unsound() is None


def test_an_id_that_no_member_has_is_short_and_never_left_out() -> None:
    one = window([3, 4])
    while (ask := one.next_ask()) is not None:
        one.on_answer(ask, 4, [3], [])
    unsound = one.unsound()
    assert unsound is not None
    assert (unsound.first, unsound.last, unsound.count) == (4, 4, 1)
    assert unsound.told == ((1, Told.ABSENT), (2, Told.ABSENT))
    assert unsound.waits_for == ()
    assert one.verdict(4) is Verdict.SHORT


def test_a_member_without_an_answer_is_waited_for() -> None:
    one = window([4])
    ask = one.next_ask()
    assert ask is not None
    one.on_failed(ask)
    second = one.next_ask()
    assert second is not None
    one.on_answer(second, 4, [], [(0, 9)])
    assert one.verdict(4) is Verdict.WAIT
    unsound = one.unsound()
    assert unsound is not None
    assert unsound.waits_for == (1,)
    assert unsound.told == ((1, Told.FAILED), (2, Told.UNKNOWN))


def test_ids_above_what_an_answer_covers_are_asked_of_the_same_member_again() -> None:
    one = window([1, 2, 3])
    ask = one.next_ask()
    assert ask is not None
    one.on_answer(ask, 1, [1], [])
    assert one.next_ask() == Ask(1, 2, 3, (0, 2))


def test_bytes_that_arrive_damaged_are_no_denial() -> None:
    one = window([1])
    ask = one.next_ask()
    assert ask is not None
    one.on_answer(ask, 1, [], [], absent_is_certain=False)
    second = one.next_ask()
    assert second is not None
    one.on_answer(second, 1, [], [])
    unsound = one.unsound()
    assert unsound is not None
    assert unsound.told == ((1, Told.UNKNOWN), (2, Told.ABSENT))


def test_the_bookie_whose_place_is_taken_is_asked_too() -> None:
    one = window([3], position=0, order=(1, 2, 0))
    for expected in (1, 2, 0):
        ask = one.next_ask()
        assert ask is not None
        assert ask.position == expected
        one.on_answer(ask, 3, [3] if expected == 0 else [], [])
    assert one.unsound() is None


def test_entries_that_were_not_asked_for_are_not_stored() -> None:
    one = window([2])
    ask = one.next_ask()
    assert ask is not None
    assert one.on_answer(ask, 9, [1, 2, 3], []) == [2]


def test_of_a_striped_ledger_only_members_of_the_write_set_are_asked() -> None:
    quorums = Quorums(4, 2, 2)  # position 1 holds the ids with residues 0 and 1
    one = window([4, 5, 8], quorums=quorums, position=1, order=(0, 2, 3))
    assert one.next_ask() == Ask(0, 4, 8, (0,))
    with pytest.raises(AssertionError):
        window([6], quorums=quorums, position=1, order=(0, 1, 2, 3))


MEMBER_SAYS: tuple[Literal["found", "absent", "unknown", "damaged", "failed"], ...] = (
    "found", "absent", "unknown", "damaged", "failed",
)  # fmt: skip


@given(
    st.sampled_from([(3, 3, 2), (4, 2, 2), (5, 3, 2), (2, 2, 1)]).flatmap(
        lambda sizes: st.tuples(
            st.just(Quorums(*sizes)),
            st.integers(0, sizes[0] - 1),
            st.lists(st.sampled_from(MEMBER_SAYS), min_size=40 * sizes[0], max_size=40 * sizes[0]),
            st.permutations(range(sizes[0])),
            st.integers(1, 7),
        )
    )
)
def test_a_window_copies_exactly_what_some_member_of_the_write_set_gives(
    case: tuple[Quorums, int, list[str], list[int], int],
) -> None:
    quorums, position, says, order, covered = case
    size = quorums.ensemble_size
    needed = [one for one in range(40) if one % size in quorums.residues_at(position)]
    told = {(member, one): says[member * 40 + one] for member in range(size) for one in range(40)}
    one = CopyWindow(quorums, position, needed, [member for member in order if member != position])
    copied: set[int] = set()
    asks = 0
    while (ask := one.next_ask()) is not None:
        asks += 1
        assert asks < 1000
        assert ask.position != position
        if told[ask.position, ask.first] == "failed":
            one.on_failed(ask)
        else:
            last_covered = min(ask.first + covered, ask.last)
            asked = [i for i in range(ask.first, last_covered + 1) if i % size in ask.residues]
            mine = [i for i in asked if quorums.write_mask(i) >> ask.position & 1]
            given_ids = [i for i in mine if told[ask.position, i] == "found"]
            unknown = [(i, i) for i in mine if told[ask.position, i] == "unknown"]
            damaged = any(told[ask.position, i] == "damaged" for i in mine)
            copied.update(one.on_answer(ask, last_covered, given_ids, unknown, absent_is_certain=not damaged))
        one.check_invariants()
    members = {i: [m for m in quorums.write_set(i) if m != position] for i in needed}
    certain = {i for i in needed if any(told[m, i] == "found" for m in members[i])}
    # A member that fails once in a window is not asked again there, so some ids may be waited for instead of copied.
    assert copied <= certain
    for i in needed:
        if i not in copied:
            assert one.verdict(i) in {Verdict.WAIT, Verdict.SHORT}
            if one.verdict(i) is Verdict.SHORT:
                assert i not in certain
    assert (one.unsound() is None) == (copied == set(needed))


def test_ids_of_runs_are_ascending_and_come_once() -> None:
    assert list(ids_of_runs([(0, 3), (2, 6), (9, 9)], 1, (0,))) == [0, 1, 2, 3, 4, 5, 6, 9]
    assert list(ids_of_runs([(0, 9)], 4, (1, 2))) == [1, 2, 5, 6, 9]


def test_reliable_members_are_asked_first_beginning_at_a_different_one_for_each_ledger() -> None:
    names = ("a", "b", "c", "d")
    asked = preference(names, reliable=("a", "c", "d"), reachable=("a", "b", "c"), turn=0)
    assert asked == (0, 2, 1, 3)  # b has a condition, d is not registered
    assert preference(names, reliable=names, reachable=names, turn=2) == (2, 3, 0, 1)


@pytest.mark.parametrize(
    ("modulus", "residues", "expected"),
    [(3, (0, 1, 2), (1, (0,))), (1, (0,), (1, (0,))), (3, (0, 2), (3, (0, 2))), (2, (1,), (2, (1,)))],
)
def test_all_ids_are_asked_for_without_a_stripe(
    modulus: int, residues: tuple[int, ...], expected: tuple[int, tuple[int, ...]]
) -> None:
    assert simplest_stripe(modulus, residues) == expected
    size, chosen = expected
    assert [one for one in range(12) if one % size in chosen] == [one for one in range(12) if one % modulus in residues]
