"""Run maps behave like dicts from entry id to place, whatever overlaps."""

import itertools
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.bookie.index.runs import (
    RUN_ENTRIES_MAX,
    Run,
    RunMap,
    clip,
    coalesce,
    exclude,
    exclude_all,
    is_inside,
    make_run,
    merge_runs,
    ranges_of,
    run_bytes,
    sizes_between,
    span,
)

Places = dict[int, tuple[bytes | int, int, int]]


@st.composite
def id_lists(draw: st.DrawFn) -> Sequence[int]:
    if draw(st.booleans()):
        first, count, stride = draw(st.integers(0, 40)), draw(st.integers(1, 12)), draw(st.integers(1, 4))
        return range(first, first + count * stride, stride)
    return sorted(draw(st.sets(st.integers(0, 60), min_size=1, max_size=12)))


@st.composite
def runs(draw: st.DrawFn) -> Run:
    ids = draw(id_lists())
    if draw(st.booleans()):
        sizes = [draw(st.integers(1, 70000))] * len(ids)
    else:
        sizes = [draw(st.integers(1, 70000)) for _ in ids]
    return make_run(ids, sizes, draw(st.integers(0, 3)), draw(st.integers(0, 10**6)))


def places(run: Run) -> Places:
    found: Places = {}
    offset = run.offset
    for entry_id, size in zip(run.ids, sizes_between(run, 0, len(run.ids)), strict=True):
        found[entry_id] = (run.place, offset, size)
        offset += size
    return found


def places_of_all(found: Sequence[Run]) -> Places:
    together: Places = {}
    for run in found:
        assert not together.keys() & places(run).keys()
        together.update(places(run))
    return together


@given(st.lists(runs(), max_size=8), st.integers(0, 70), st.integers(0, 70))
@settings(max_examples=150, deadline=None)
def test_run_map_is_a_dict_in_which_the_later_put_wins(puts: list[Run], low: int, high: int) -> None:
    run_map, model = RunMap(), Places()
    for run in puts:
        run_map.put(run)
        model.update(places(run))
        run_map.check_invariants()
    assert places_of_all(run_map.runs) == model
    low, high = min(low, high), max(low, high)
    inside = {entry_id: place for entry_id, place in model.items() if low <= entry_id <= high}
    assert places_of_all(run_map.between(low, high)) == inside
    outside = {entry_id: place for entry_id, place in model.items() if not low <= entry_id <= high}
    assert places_of_all(list(exclude(run_map.runs, low, high))) == outside
    listed = [entry_id for first, last in ranges_of(run_map.runs) for entry_id in range(first, last + 1)]
    assert listed == sorted(model)
    pairs = list(ranges_of(run_map.runs))
    assert all(last + 1 < first for (_, last), (first, _) in itertools.pairwise(pairs)), "maximal"


@given(st.lists(runs(), max_size=6), st.lists(runs(), max_size=6))
@settings(max_examples=150, deadline=None)
def test_merging_two_maps_lays_the_newer_over_the_older(below: list[Run], above: list[Run]) -> None:
    older, newer = RunMap(), RunMap()
    for run in below:
        older.put(run)
    for run in above:
        newer.put(run)
    merged = RunMap(merge_runs(older.runs, newer.runs))
    merged.check_invariants()
    assert places_of_all(merged.runs) == places_of_all(older.runs) | places_of_all(newer.runs)
    joined = RunMap(coalesce(merged.runs))
    joined.check_invariants()
    assert places_of_all(joined.runs) == places_of_all(merged.runs)


@given(runs(), st.integers(0, 70), st.integers(0, 70))
@settings(max_examples=100, deadline=None)
def test_clipping_keeps_exactly_the_ids_of_the_interval(run: Run, first: int, last: int) -> None:
    piece = clip(run, first, last)
    assert (places(piece) if piece else {}) == {
        entry_id: place for entry_id, place in places(run).items() if first <= entry_id <= last
    }
    assert span(run, 0, len(run.ids)) == (run.offset, run_bytes(run))


def test_neighbours_join_up_to_the_bound_and_keep_their_pattern() -> None:
    singles = [make_run(range(i, i + 1), [10], 1, 10 * i) for i in range(RUN_ENTRIES_MAX + 5)]
    joined = list(coalesce(singles))
    assert [run.ids for run in joined] == [range(RUN_ENTRIES_MAX), range(RUN_ENTRIES_MAX, RUN_ENTRIES_MAX + 5)]
    assert joined[0].sizes == 10
    striped = list(coalesce([make_run([3 * i, 3 * i + 1], [10, 10], 1, 20 * i) for i in range(100)]))
    assert len(striped) == 1
    assert list(striped[0].ids) == [i for i in range(300) if i % 3 < 2]
    apart = [make_run(range(1), [10], 1, 0), make_run(range(1, 2), [10], 1, 11), make_run(range(2, 3), [10], 2, 21)]
    assert list(coalesce(apart)) == apart, "not back to back, or another log"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(1, 3), st.sampled_from([10, 10, 10, 11]))))
@settings(max_examples=150, deadline=None)
def test_joined_neighbours_name_the_same_ids_and_places(shapes: list[tuple[int, int, int, int]]) -> None:
    neighbours, first, offset = [], 0, 0
    for gap, count, stride, size in shapes:
        ids = range(first + gap, first + gap + count * stride, stride)
        neighbours.append(make_run(ids, [size] * count, 1, offset))
        first, offset = ids[-1] + 1, offset + size * count
    joined = list(coalesce(neighbours))
    assert len(joined) <= 1
    assert places_of_all(joined) == places_of_all(neighbours)


@given(runs(), st.sets(st.integers(0, 180), max_size=30))
def test_many_intervals_are_excluded_at_once(run: Run, bounds: set[int]) -> None:
    ends = sorted(bounds)
    intervals = list(zip(ends[::2], ends[1::2], strict=False))
    gone = {one for low, high in intervals for one in range(low, high + 1)}
    assert [one for one in range(190) if is_inside(intervals, one)] == sorted(gone)
    pieces = exclude_all(run, intervals)
    assert places_of_all(pieces) == {one: place for one, place in places(run).items() if one not in gone}
    assert [piece.first for piece in pieces] == sorted(piece.first for piece in pieces)


def test_only_intervals_that_overlap_a_run_are_looked_at() -> None:
    class Counted(list[tuple[int, int]]):
        looks = 0

        def __getitem__(self, at: Any) -> Any:
            self.looks += 1
            return super().__getitem__(at)

    intervals = Counted((10 * at, 10 * at + 4) for at in range(100_000))
    pieces = exclude_all(make_run(range(500_000, 500_020), [1] * 20, 1, 0), intervals)
    assert [(piece.first, piece.last) for piece in pieces] == [(500_005, 500_009), (500_015, 500_019)]
    assert intervals.looks < 100
