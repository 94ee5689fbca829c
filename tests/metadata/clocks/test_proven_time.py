"""Time that is proven by several clocks (rule M5): never more than has passed, whichever one clock is wrong."""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.metadata.clocks.boot_time import boot_clock_of
from octavo.metadata.clocks.proven_time import BootTime, Disagreement, Moment, ProvenTime

NOON = 1_767_268_800_000
HOUR = 3_600_000
DAY = 24 * HOUR
YEAR = 365 * DAY
UNSET = 20_000
"""The time of day on a board without a battery, soon after its start."""


def moment(wall_ms: int, store_ms: int, boot_ms: int, host: str = "a") -> Moment:
    return Moment(wall_ms, store_ms, BootTime(host, boot_ms))


@pytest.mark.parametrize(
    ("before", "now", "proven_ms"),
    [
        # One host, one start.
        (moment(NOON, NOON, 0), moment(NOON + HOUR, NOON + HOUR, HOUR), HOUR),
        (moment(NOON + YEAR, NOON, 0), moment(NOON + YEAR + HOUR, NOON + HOUR, HOUR), HOUR),
        (moment(UNSET, NOON, 0), moment(UNSET + HOUR, NOON + HOUR, HOUR), HOUR),
        (moment(UNSET, NOON, 0), moment(NOON + HOUR, NOON + HOUR, HOUR), HOUR),
        (moment(UNSET, UNSET, 0), moment(NOON, NOON, HOUR), HOUR),
        (moment(NOON, NOON, 0), moment(NOON + DAY, NOON + DAY, HOUR), HOUR),
        (moment(NOON, NOON, 0), moment(NOON + HOUR, NOON + DAY, HOUR), HOUR),
        (moment(NOON, NOON, 0), moment(NOON - DAY, NOON + HOUR, HOUR), 0),
        (moment(NOON, NOON, 0), moment(NOON + HOUR, NOON - DAY, HOUR), 0),
        # Another host, or another start.
        (moment(NOON, NOON, 0), moment(NOON + HOUR, NOON + HOUR, 5, "b"), HOUR),
        (moment(UNSET, NOON, 0), moment(NOON + HOUR, NOON + HOUR, 5, "b"), HOUR),
        (moment(NOON, UNSET, 0), moment(NOON + HOUR, NOON + HOUR, 5, "b"), HOUR),
        (moment(UNSET, UNSET, 0), moment(NOON, NOON, 5, "b"), 0),
        (moment(NOON - DAY, NOON, 0), moment(NOON + HOUR, NOON + HOUR, 5, "b"), HOUR),
        (moment(NOON + YEAR, NOON, 0), moment(NOON + HOUR, NOON + HOUR, 5, "b"), 0),
        (moment(NOON, NOON, 0), moment(NOON + HOUR, NOON + YEAR, 5, "b"), HOUR),
        (moment(NOON, NOON, 0), moment(NOON + HOUR, NOON - YEAR, 5, "b"), 0),
    ],
)
def test_time_goes_on_by_the_least_of_what_the_clocks_say(before: Moment, now: Moment, proven_ms: int) -> None:
    assert ProvenTime(before, 7).advanced(now).ms == 7 + proven_ms


@pytest.mark.parametrize(
    ("now", "found"),
    [
        (moment(NOON + HOUR, NOON + HOUR, HOUR), None),
        (moment(NOON + HOUR + 50_000, NOON + HOUR, HOUR), None),
        (moment(NOON + HOUR + 70_000, NOON + HOUR, HOUR), Disagreement(HOUR, HOUR + 70_000, HOUR, HOUR)),
        (moment(NOON + HOUR, NOON + HOUR - 70_000, 0, "b"), Disagreement(HOUR - 70_000, HOUR, HOUR - 70_000, None)),
        (moment(NOON + 100 * DAY, NOON + 100 * DAY, 100 * DAY - HOUR), None),
        (moment(NOON + DAY, NOON + DAY, HOUR), Disagreement(HOUR, DAY, DAY, HOUR)),
    ],
)
def test_clocks_that_are_set_are_noticed(now: Moment, found: Disagreement | None) -> None:
    assert ProvenTime(moment(NOON, NOON, 0)).advanced(now).disagreement == found


def test_people_are_told_how_clocks_disagree() -> None:
    fine = ProvenTime(moment(NOON, NOON, 0))
    assert fine.trouble == ""
    ahead = ProvenTime(moment(NOON + DAY, NOON, 0))
    assert ahead.trouble == "the clock of the client is 86,400 s ahead of the clock of the metadata store"
    behind = ProvenTime(moment(NOON, NOON + HOUR, 0))
    assert behind.trouble == "the clock of the client is 3,600 s behind the clock of the metadata store"
    # Both were set; they agree again, and tell of different times than the host does.
    stepped = fine.advanced(moment(NOON + DAY, NOON + DAY, HOUR))
    assert stepped.trouble == (
        "a clock was set: 86,400 s passed by the clock of the client, 86,400 s by that of the metadata store and "
        "3,600 s by its host's run time"
    )
    assert stepped.advanced(moment(NOON + 2 * DAY - 60_000, NOON + 2 * DAY - 60_000, HOUR + DAY - 60_000)).trouble
    assert not stepped.advanced(moment(NOON + 3 * DAY, NOON + 3 * DAY, HOUR + 2 * DAY)).trouble


def test_the_stored_form_keeps_everything() -> None:
    time = ProvenTime(moment(NOON, NOON + 5, 17, "start"), 99, Disagreement(80, -5, 3, None))
    assert ProvenTime.from_fields(time.to_fields()) == time
    assert ProvenTime.from_fields(ProvenTime(time.at).to_fields()) == ProvenTime(time.at)


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        [1, [1, 2, "a"], None],
        [1, [1, 2, 3, 4], None],
        ["1", [1, 2, "a", 4], None],
        [1, [1, 2, "a", 4.5], None],
        [1, [1, 2, "a", 4], [1, 2]],
        [1, [1, 2, "a", 4], [1, None, 3, 4]],
        [1, [1, 2, "a", 4], 5],
    ],
)
def test_a_damaged_stored_form_is_refused(fields: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        ProvenTime.from_fields(fields)


class Look(NamedTuple):
    """A look at the clocks, ``passed_ms`` after the one before it."""

    passed_ms: int
    host: str
    wall_off_ms: int
    store_off_ms: int


def looks(*, store_is_right: bool) -> st.SearchStrategy[list[Look]]:
    off = st.sampled_from([0, HOUR, -HOUR, YEAR, -YEAR, UNSET - NOON])
    right = st.just(0)
    host = st.sampled_from("ab")
    one = st.builds(Look, st.integers(0, DAY), host, off, right if store_is_right else off)
    return st.lists(one, min_size=1, max_size=12)


def moments(walked: Sequence[Look]) -> tuple[list[Moment], int]:
    """The moments, and how much time really passes from the first one to the last one."""
    passed, found = 0, []
    for at, look in enumerate(walked):
        passed += look.passed_ms if at else 0
        found.append(moment(NOON + passed + look.wall_off_ms, NOON + passed + look.store_off_ms, passed, look.host))
    return found, passed


@settings(max_examples=500, deadline=None)
@given(looks(store_is_right=True))
def test_whatever_the_observers_clocks_do_no_more_is_proven_than_has_passed(walked: list[Look]) -> None:
    found, passed = moments(walked)
    time = ProvenTime(found[0])
    for later in found[1:]:
        before, time = time, time.advanced(later)
        assert time.ms >= before.ms
    assert time.ms <= passed


@settings(max_examples=500, deadline=None)
@given(looks(store_is_right=False))
def test_whatever_all_clocks_do_on_one_host_no_more_is_proven_than_has_passed(walked: list[Look]) -> None:
    found, passed = moments([look._replace(host="a") for look in walked])
    time = ProvenTime(found[0])
    for later in found[1:]:
        time = time.advanced(later)
    assert time.ms <= passed


async def test_this_host_tells_one_start_and_time_that_goes_on() -> None:
    loop = asyncio.get_running_loop()
    first, second = boot_clock_of(loop, random.Random(1))(), boot_clock_of(loop, random.Random(2))()
    assert first.boot_id == second.boot_id != ""
    assert 0 < first.ms <= second.ms


def test_loops_with_a_time_of_their_own_are_hosts_of_their_own() -> None:
    class Simulated(asyncio.SelectorEventLoop):
        def time(self) -> float:
            return 7.5

    one, other = random.Random(1), random.Random(2)
    with contextlib.closing(Simulated()) as loop:
        clocks = [boot_clock_of(loop, rng) for rng in (one, other)]
    assert [clock().ms for clock in clocks] == [7500, 7500]
    assert len({clock().boot_id for clock in clocks}) == 2
    assert one.random() == random.Random(1).random(), "nothing is drawn"
