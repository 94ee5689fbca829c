"""Free space and what a bookie takes: three limits, and no turning to and fro."""

from pathlib import PurePath

import pytest
from octavo.bookie.upkeep.disk_watch import DiskLimits, DiskRoles, DiskState, Shortage, judge, shortage_of
from octavo.bookie.upkeep.hours import Hours
from octavo.protocol.errors import InvalidArgumentError

DATA, JOURNAL, MORE = PurePath("/data"), PurePath("/journal"), PurePath("/more")
ROLES = DiskRoles((DATA, JOURNAL), (DATA, MORE))
ONE_DISK = DiskRoles((DATA,), (DATA,))
LIMITS = DiskLimits(warn_bytes=400, writable_bytes=200, read_only_bytes=100)


def test_a_disk_that_fills_and_empties_again_turns_once_each_way() -> None:
    state, seen = DiskState(), []
    for free in (500, 399, 200, 100, 99, 60, 49, 60, 100, 150, 199, 200, 399, 400):
        state = judge(state, {DATA: free}, ONE_DISK, LIMITS)
        seen.append((free, bool(state.warned), state.read_only, state.out_of_space))
    assert [free for free, warned, _, _ in seen if not warned] == [500, 400]
    assert [read_only for _, _, read_only, _ in seen] == [False] * 4 + [True] * 7 + [False] * 3
    assert [free for free, _, _, out_of_space in seen if out_of_space] == [49]


@pytest.mark.parametrize(
    ("data", "journal", "more", "read_only", "short"),
    [
        (500, 500, 500, False, frozenset()),
        (500, 500, 50, False, frozenset({MORE})),
        (500, 90, 500, True, frozenset({JOURNAL})),
        (90, 500, 500, True, frozenset({DATA})),  # the index is there
        (90, 500, 90, True, frozenset({DATA, MORE})),
    ],
)
def test_one_disk_for_entries_is_enough_but_journal_and_index_have_only_theirs(
    data: int, journal: int, more: int, read_only: bool, short: frozenset[PurePath]
) -> None:
    state = judge(DiskState(), {DATA: data, JOURNAL: journal, MORE: more}, ROLES, LIMITS)
    assert (state.read_only, state.short) == (read_only, short)


def test_a_write_that_found_no_room_counts_more_than_free_space() -> None:
    state = judge(DiskState(), {DATA: 10**9}, ONE_DISK, LIMITS, met_full=[DATA])
    assert (state.read_only, state.out_of_space) == (True, True)
    assert judge(state, {DATA: 10**9}, ONE_DISK, LIMITS) == DiskState()


@pytest.mark.parametrize(
    ("free", "shortage"),
    [
        ({DATA: 99, JOURNAL: 500, MORE: 500}, Shortage(0, 0)),  # entries go to the other disk
        ({DATA: 500, JOURNAL: 98, MORE: 97}, Shortage(97, 200)),
        ({DATA: 500, JOURNAL: 150, MORE: 97}, Shortage(0, 0)),
    ],
)
def test_what_a_read_only_bookie_lacks_is_told_of_the_tightest_disk(
    free: dict[PurePath, int], shortage: Shortage
) -> None:
    roles = DiskRoles((JOURNAL,), (DATA, MORE))
    assert shortage_of(judge(DiskState(), free, roles, LIMITS), free, LIMITS) == shortage


def test_clients_and_operators_learn_of_the_first_low_disk_and_of_each_turn() -> None:
    state, announced = DiskState(), []
    looks = [(500, 500), (399, 500), (399, 399), (99, 399), (98, 399), (49, 399), (200, 399), (500, 399), (500, 500)]
    for data, journal in looks:
        before, state = state, judge(state, {DATA: data, JOURNAL: journal}, ROLES, LIMITS)
        if state.announced != before.announced:
            announced.append((data, journal))
    assert announced == [(399, 500), (99, 399), (49, 399), (200, 399), (500, 500)]


def test_limits_out_of_order_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="must ascend"):
        DiskLimits(warn_bytes=1, writable_bytes=2, read_only_bytes=1)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("", ["00:00", "23:59"], []),
        ("22:00-06:00", ["22:00", "23:59", "00:00", "05:59"], ["06:00", "21:59", "12:00"]),
        ("1:30-2:00, 12:00-24:00", ["01:30", "01:59", "12:00", "23:59"], ["02:00", "11:59", "00:00"]),
    ],
)
def test_hours_of_the_day(text: str, inside: list[str], outside: list[str]) -> None:
    hours = Hours.parse(text)

    def seconds(clock: str) -> float:
        hour, minute = map(int, clock.split(":"))
        return 86_400 * 20_000 + hour * 3600 + minute * 60 + 59.9

    assert all(hours.include(seconds(clock)) for clock in inside)
    assert not any(hours.include(seconds(clock)) for clock in outside)


@pytest.mark.parametrize("text", ["22-6", "25:00-1:00", "1:60-2:00", "noon", "1:00-2:00-3:00"])
def test_hours_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="hours of the day"):
        Hours.parse(text)
