"""Durations fall into the bucket that holds them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.metrics.histogram import BOUNDS_SECONDS, Histogram, counts_as_text, counts_from_text


@given(st.floats(min_value=0, max_value=1e9))
def test_a_duration_counts_in_the_lowest_bucket_whose_bound_is_above_it(seconds: float) -> None:
    histogram = Histogram()
    histogram.observe(seconds)
    (bucket,) = [at for at, count in enumerate(histogram.counts) if count]
    lower = BOUNDS_SECONDS[bucket - 1] if bucket else 0.0
    upper = BOUNDS_SECONDS[bucket] if bucket < len(BOUNDS_SECONDS) else float("inf")
    # A duration within rounding of a bound may count on either side of it.
    assert lower * (1 - 1e-9) <= seconds <= upper * (1 + 1e-9)
    assert (histogram.count, histogram.sum_seconds) == (1, seconds)


def test_the_bounds_double_from_50_microseconds_to_13_seconds() -> None:
    assert (BOUNDS_SECONDS[0], round(BOUNDS_SECONDS[-1], 1)) == (50e-6, 13.1)
    assert all(high == pytest.approx(2 * low) for low, high in itertools.pairwise(BOUNDS_SECONDS))


def test_a_duration_of_a_clock_that_was_set_back_counts_as_none() -> None:
    histogram = Histogram()
    histogram.observe(-3600.0)
    assert (histogram.counts[0], histogram.sum_seconds) == (1, 0.0)


def test_a_quantile_is_the_bound_of_the_bucket_that_reaches_it() -> None:
    histogram = Histogram()
    assert histogram.quantile(0.5) is None
    for seconds in [0.00001] * 98 + [0.00015, 100.0]:
        histogram.observe(seconds)
    assert histogram.quantile(0.98) == 50e-6
    assert histogram.quantile(0.99) == 200e-6
    assert histogram.quantile(1) == float("inf")
    with pytest.raises(ValueError, match="between 0 and 1"):
        histogram.quantile(99)


@given(counts=st.lists(st.integers(0, 2**40), min_size=len(BOUNDS_SECONDS) + 1, max_size=len(BOUNDS_SECONDS) + 1))
def test_counts_in_a_message_come_back_as_they_were(counts: list[int]) -> None:
    assert counts_from_text(counts_as_text(counts)) == counts


@pytest.mark.parametrize("text", ["x", "1  2", " 1", "1.5", "-1", " ".join(["1"] * (len(BOUNDS_SECONDS) + 2))])
def test_other_texts_are_no_counts(text: str) -> None:
    with pytest.raises(ValueError, match=r"counts|invalid literal"):
        counts_from_text(text)
