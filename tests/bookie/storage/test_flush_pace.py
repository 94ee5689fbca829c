"""How fast a flush goes on, and that it never makes the cache run out of room."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.bookie.storage.flush_pace import PAUSE_SECONDS_MAX, SPAN_SECONDS_MAX, FlushPace

MIB = 1 << 20


def test_a_flush_behind_the_filling_does_not_pause() -> None:
    pace = FlushPace(0.0, 64 * MIB, filled_seconds=4.0)
    assert pace.pause_seconds(16 * MIB, 0.21, now=0.0) == 0.0
    assert pace.pause_seconds(16 * MIB, 0.19, now=0.0) > 0.0
    assert pace.pause_seconds(0, 0.001, now=0.0) == 0.0


def test_a_flush_is_spread_over_most_of_the_filling_time() -> None:
    pace = FlushPace(100.0, 64 * MIB, filled_seconds=4.0)
    assert pace.pause_seconds(32 * MIB, 0.0, now=101.4) == pytest.approx(PAUSE_SECONDS_MAX)
    assert pace.pause_seconds(32 * MIB, 0.0, now=101.49) == pytest.approx(0.01)
    assert pace.pause_seconds(32 * MIB, 0.0, now=101.5) == 0.0
    assert pace.pause_seconds(32 * MIB, 0.0, now=200.0) == 0.0


def test_a_generation_that_took_long_to_fill_is_written_in_bounded_time() -> None:
    pace = FlushPace(0.0, MIB, filled_seconds=86_400.0)
    assert pace.pause_seconds(MIB // 2, 0.0, now=SPAN_SECONDS_MAX / 2) == 0.0
    assert pace.pause_seconds(MIB // 2, 0.0, now=SPAN_SECONDS_MAX / 2 - 0.02) == pytest.approx(0.02)


def test_nothing_to_write_needs_no_pause() -> None:
    assert FlushPace(0.0, 0, filled_seconds=1.0).pause_seconds(0, 0.5, now=0.0) == 0.0


@given(
    seed=st.integers(0, 1 << 30),
    rate=st.floats(0.05, 50.0),
    surge=st.floats(1.0, 20.0),
    slices=st.integers(2, 200),
    slice_seconds=st.floats(0.0, 0.002),
)
def test_the_other_generation_is_never_full_before_the_flush_is_over(
    seed: int, rate: float, surge: float, slices: int, slice_seconds: float
) -> None:
    """Whatever the load does: as long as the disk could write a generation in the time in which one fills."""
    rng = random.Random(seed)
    total = slices * MIB
    pace = FlushPace(0.0, total, filled_seconds=1.0 / rate)
    now = filled = 0.0
    fastest = rate * surge
    if slices * slice_seconds * fastest > 0.5 or PAUSE_SECONDS_MAX * fastest > 0.2:
        fastest = min(0.5 / max(1e-9, slices * slice_seconds), 0.2 / PAUSE_SECONDS_MAX)
    for written in range(1, slices + 1):
        now += slice_seconds
        filled += slice_seconds * fastest
        while pause := pace.pause_seconds(written * MIB, filled, now):
            assert pause <= PAUSE_SECONDS_MAX
            now += pause
            filled += pause * rng.uniform(0.0, fastest)
    assert filled < 1.0
