"""The language of selections, and sets of ids kept as runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.pipeline.base.ranges import IdRanges
from octavo.pipeline.base.selection import parse_selection
from octavo.pipeline.source.filters import IdBounds, take_over
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.ids import ID_MAX
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

RUNS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6)


def ids(ranges: IdRanges) -> set[int]:
    return set(ranges)


@given(RUNS, RUNS, st.sets(st.integers(0, 30)), st.integers(0, 31))
def test_ranges_are_sets(runs: list[tuple[int, int]], others: list[tuple[int, int]], some: set[int], at: int) -> None:
    ranges, other = IdRanges.of(runs), IdRanges.of(others)
    plain = {i for first, last in runs for i in range(first, last + 1)}
    other_plain = {i for first, last in others for i in range(first, last + 1)}
    assert ids(ranges) == plain
    assert [i in ranges for i in range(-1, 33)] == [i in plain for i in range(-1, 33)]
    assert (ranges.count(), bool(ranges)) == (len(plain), bool(plain))
    assert ids(ranges.union(other)) == plain | other_plain
    assert ids(ranges.intersection(other)) == plain & other_plain
    assert ids(ranges.without(some)) == plain - some
    assert ids(ranges.below(at)) == {i for i in plain if i < at}
    assert IdRanges.parse(str(ranges)) == ranges
    for result in (ranges, ranges.union(other), ranges.intersection(other), ranges.without(some)):
        assert all(earlier[1] + 1 < later[0] for earlier, later in zip(result.runs, result.runs[1:], strict=False))


@pytest.mark.parametrize(
    ("text", "custom_metadata", "selected"),
    [
        ("3, 7-9", {}, {3, 7, 8, 9}),
        ("all", {}, set(range(12))),
        ("app=orders", {"app": b"orders"}, set(range(12))),
        ("app=orders", {"app": b"order"}, set()),
        ("app=ord*", {"app": b"orders"}, set(range(12))),
        ("app=*", {"app": b""}, set(range(12))),
        ("app=*", {"apps": b""}, set()),
        ("app=a&region=b", {"app": b"a", "region": b"b"}, set(range(12))),
        ("app=a&region=b", {"app": b"a", "region": b"c"}, set()),
        ("app=x,5", {"app": b"y"}, {5}),
        ("a%2Cb%3D%26=%2A%25", {"a,b=&": b"*%"}, set(range(12))),
    ],
)
def test_what_a_selection_selects(text: str, custom_metadata: dict[str, bytes], selected: set[int]) -> None:
    selection = parse_selection(text)
    assert {i for i in range(12) if selection.matches(i, custom_metadata)} == selected
    assert all(i in selection.scope for i in selected)


@pytest.mark.parametrize(
    "text", ["", "x", "3,", "5-3", "-1", "=x", "a=b=c", "a=*b", "*=b", "a=b&", f"{ID_MAX + 1}", "1-"]
)
def test_what_selects_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="ledgers"):
        parse_selection(text)


E = ("entry_id",)


@pytest.mark.parametrize(
    ("filter_", "passing"),
    [
        (EqualTo(E, 3), {3}),
        (EqualNullSafe(E, None), set()),
        (In(E, (1, 3, 99, None, -2)), {1, 3}),
        (GreaterThan(E, 3), set(range(4, 10))),
        (GreaterThan(E, -5), set(range(10))),
        (GreaterThanOrEqual(E, 3), set(range(3, 10))),
        (LessThan(E, 3), {0, 1, 2}),
        (LessThan(E, -3), set()),
        (LessThanOrEqual(E, 3), {0, 1, 2, 3}),
        (IsNotNull(E), set(range(10))),
    ],
)
def test_filters_on_ids_are_taken_over(filter_: Filter, passing: set[int]) -> None:
    bounds, left = take_over(IdBounds(), [filter_])
    assert (left, {i for i in range(10) if i in bounds.entries}) == ([], passing)
    assert bounds.ledgers == IdRanges.everything()


@pytest.mark.parametrize(
    "filter_", [Not(EqualTo(E, 3)), IsNull(E), EqualTo(("length",), 3), EqualTo(("a", "entry_id"), 3)]
)
def test_other_filters_are_left_to_spark(filter_: Filter) -> None:
    assert take_over(IdBounds(), [filter_]) == (IdBounds(), [filter_])
