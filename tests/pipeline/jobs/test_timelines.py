"""Bins of time: nothing lost, in order, wide enough to be seen."""

from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.pipeline.jobs.timelines import BINS_MAX, EMPTY_BINS_MAX, OTHERS, Step, timeline

NOON = datetime(2024, 2, 28, 12)  # noqa: DTZ001 - Spark's times of a session in UTC come without a zone


def test_short_gaps_are_shown_and_long_ones_left_out() -> None:
    minutes = [0, 3, 3 + EMPTY_BINS_MAX + 1, 100]
    counts = {("a", NOON + timedelta(minutes=at)): at + 1 for at in minutes}
    found = timeline(counts, Step.MINUTE, series_max=3)
    shown = [None if begin is None else (begin - NOON) // timedelta(minutes=1) for begin in found.bins]
    assert shown == [*range(0, 3 + EMPTY_BINS_MAX + 2), None, 100]
    assert [number for number in found.series["a"] if number] == [at + 1 for at in minutes]


def test_small_series_are_summed_up() -> None:
    counts = {(name, NOON): number for name, number in (("a", 5), ("b", 7), ("c", 1), ("d", 2))}
    assert timeline(counts, Step.HOUR, series_max=4).series == {"b": (7,), "a": (5,), "d": (2,), "c": (1,)}
    assert timeline(counts, Step.HOUR, series_max=3).series == {"b": (7,), "a": (5,), OTHERS: (3,)}
    assert timeline({}, Step.HOUR, series_max=3).bins == ()


@pytest.mark.parametrize(
    ("step", "at", "begin", "after"),
    [
        (Step.MINUTE, "2024-02-29 23:59:58", "2024-02-29 23:59:00", "2024-03-01 00:00:00"),
        (Step.HOUR, "2024-02-29 23:59:58", "2024-02-29 23:00:00", "2024-03-01 00:00:00"),
        (Step.DAY, "2024-02-29 23:59:58", "2024-02-29 00:00:00", "2024-03-01 00:00:00"),
        (Step.MONTH, "2024-02-29 23:59:58", "2024-02-01 00:00:00", "2024-03-01 00:00:00"),
        (Step.MONTH, "2024-01-31 23:59:58", "2024-01-01 00:00:00", "2024-02-01 00:00:00"),
        (Step.YEAR, "2023-12-31 23:59:58", "2023-01-01 00:00:00", "2024-01-01 00:00:00"),
        (Step.YEAR, "2024-12-31 23:59:58", "2024-01-01 00:00:00", "2025-01-01 00:00:00"),
    ],
)
def test_bins_follow_the_calendar(step: Step, at: str, begin: str, after: str) -> None:
    found = step.of(datetime.fromisoformat(at))
    assert (str(found), str(step.after(found))) == (begin, after)


@given(
    hours=st.dictionaries(
        st.tuples(st.sampled_from("abcd"), st.integers(0, 24 * 365 * 3)), st.integers(1, 9), max_size=400
    )
)
def test_every_count_is_in_its_bin_and_bins_ascend(hours: dict[tuple[str, int], int]) -> None:
    counts = {(name, NOON + timedelta(hours=at)): number for (name, at), number in hours.items()}
    found = timeline(counts, Step.HOUR, series_max=9)
    assert len(found.bins) <= BINS_MAX
    expected = Counter[tuple[str, datetime]]()
    for (name, time), number in counts.items():
        expected[name, found.step.of(time)] += number
    got = {
        (name, begin): number
        for name, numbers in found.series.items()
        for begin, number in zip(found.bins, numbers, strict=True)
        if begin is not None and number
    }
    assert got == expected
    begins = [begin for begin in found.bins if begin is not None]
    assert begins == sorted(set(begins))
    assert not any(one is None and other is None for one, other in pairwise(found.bins))
