"""Percentiles stay within their bound of the exact ones, whatever the values."""

import json
import math
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.cli.bench.histogram import RELATIVE_ERROR_MAX, VALUE_MAX, Histogram

# Values below 2**-126 are subnormal as 32-bit floats: their buckets are even, not log-linear. No latency is that small.
VALUES = st.one_of(st.just(0.0), st.floats(2.0**-30, 2.0**20, width=32))


def exact(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[max(1, math.ceil(len(ordered) * percent / 100.0)) - 1]


@settings(max_examples=200, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=300), st.sampled_from([0.0, 1.0, 50.0, 90.0, 99.0, 99.9, 100.0]))
def test_percentiles_are_within_half_a_percent_of_the_exact_ones(values: list[float], percent: float) -> None:
    histogram = Histogram()
    histogram.record_all(array("f", values))
    reported = histogram.percentile(percent)
    assert reported is not None
    assert abs(reported - exact(values, percent)) <= RELATIVE_ERROR_MAX * exact(values, percent)
    assert RELATIVE_ERROR_MAX <= 0.005


@settings(max_examples=50, deadline=None)
@given(st.lists(VALUES, max_size=50), st.lists(VALUES, max_size=50))
def test_one_by_one_all_at_once_and_merged_count_the_same(first: list[float], second: list[float]) -> None:
    one_by_one = Histogram()
    for value in first + second:
        one_by_one.record(value)
    merged, other = Histogram(), Histogram()
    merged.record_all(array("f", first))
    other.record_all(array("f", second))
    merged.merge([other])
    assert merged.count == one_by_one.count == len(first) + len(second)
    assert merged.max == one_by_one.max == (max(first + second) if first + second else None)
    for percent in (0.0, 50.0, 99.0, 100.0):
        assert merged.percentile(percent) == one_by_one.percentile(percent)


def test_a_value_counted_many_times_weighs_as_much() -> None:
    histogram = Histogram()
    histogram.record(1.0, 99)
    histogram.record(100.0)
    assert histogram.count == 100
    assert histogram.percentile(99) == pytest.approx(1.0, rel=RELATIVE_ERROR_MAX)
    assert histogram.percentile(99.5) == histogram.max == 100.0
    assert histogram.mean == pytest.approx(1.99)


def test_an_empty_histogram_knows_nothing() -> None:
    histogram = Histogram()
    histogram.record_all(array("f"))
    histogram.record(1.0, 0)
    assert histogram.count == 0
    assert histogram.max is histogram.mean is histogram.percentile(50) is None


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf, VALUE_MAX * 2])
def test_what_is_no_latency_is_refused_and_not_counted(value: float) -> None:
    histogram = Histogram()
    with pytest.raises(ValueError, match="histogram takes"):
        histogram.record(value)
    with pytest.raises(ValueError, match="histogram takes"):
        histogram.record_all(array("f", [1.0, value]))
    assert histogram.count == 0


def test_bad_arguments_are_refused() -> None:
    histogram = Histogram()
    with pytest.raises(ValueError, match="type code"):
        histogram.record_all(array("d", [1.0]))
    with pytest.raises(ValueError, match="percentile"):
        histogram.percentile(100.1)
    with pytest.raises(ValueError, match="count"):
        histogram.record(1.0, -1)


def test_what_another_process_counted_is_merged_as_if_counted_here() -> None:
    here, there = Histogram(), Histogram()
    here.record_all(array("f", [0.001, 0.002]))
    there.record_all(array("f", [0.5, 0.001]))
    whole = Histogram()
    whole.merge([here, Histogram.from_fields(json.loads(json.dumps(there.as_fields())))])
    assert (whole.count, whole.max) == (4, 0.5)
    assert whole.mean == pytest.approx(0.126)
    assert whole.percentile(50) == pytest.approx(0.001, rel=RELATIVE_ERROR_MAX)
    assert Histogram.from_fields(Histogram().as_fields()).max is None
