"""Where batches are, and the latest of them in memory."""

from hypothesis import given
from hypothesis import strategies as st
from octavo.gateway.leading.index import POINT_BYTES, OffsetIndex, Point
from octavo.gateway.leading.recent import BYTES_MAX, Recent


@given(
    st.lists(st.tuples(st.integers(1, 100), st.integers(1, 3), st.sampled_from([10, POINT_BYTES])), max_size=60),
    st.data(),
)
def test_a_batch_lies_between_the_positions_that_the_index_names(
    batches: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """``batches``: records, how many positions further, and bytes of each."""
    index, offset, position = OffsetIndex(Point(5, 7)), 5, 7
    points = []
    for count, step, size in batches:
        points.append(Point(offset, position))
        index.note(points[-1], size)
        if data.draw(st.booleans()):
            index.learn(data.draw(st.sampled_from(points)))
        offset, position = offset + count, position + step
    for wanted in range(5, offset):
        holding = max(point for point in points if point.offset <= wanted)
        low, high = index.around(wanted, position)
        assert low <= holding.position < high


def test_the_index_is_bounded() -> None:
    index = OffsetIndex(Point(0, 0))
    for number in range(1, 50_001):
        index.note(Point(number, number), POINT_BYTES)
    low, high = index.around(25_000, 50_001)
    assert low <= 25_000 < high <= low + 8


def test_recent_batches_are_read_whole_from_the_one_that_holds_the_offset() -> None:
    recent = Recent(10)
    assert recent.read(10, 100) is None
    recent.add(10, 13, b"a" * 5)
    recent.add(13, 14, b"b" * 5)
    recent.add(14, 20, b"c" * 5)
    assert recent.read(9, 100) is None
    assert recent.read(10, 100) == recent.read(12, 100) == [b"a" * 5, b"b" * 5, b"c" * 5]
    assert recent.read(13, 100) == [b"b" * 5, b"c" * 5]
    assert recent.read(19, 0) == [b"c" * 5], "at least one"
    assert recent.read(10, 14) == [b"a" * 5, b"b" * 5]
    assert recent.read(20, 100) is None


def test_recent_batches_have_a_bound() -> None:
    recent = Recent(0)
    for number in range(10):
        recent.add(number, number + 1, b"x" * (BYTES_MAX // 4))
    assert recent.read(5, BYTES_MAX) is None
    assert recent.read(6, 10 * BYTES_MAX) == [b"x" * (BYTES_MAX // 4)] * 4
    recent.add(10, 11, b"x" * (BYTES_MAX + 1))
    assert recent.read(10, 1) is None


def test_an_index_that_was_cut_does_not_look_below_and_never_falls_back() -> None:
    index = OffsetIndex(Point(0, 0))
    for number in range(1, 20):
        index.note(Point(10 * number, number), POINT_BYTES)
    index.cut(Point(105, 11))
    assert index.around(50, 20)[0] == index.around(105, 20)[0] == 11
    index.cut(Point(40, 4))
    assert index.around(50, 20)[0] == 11
    assert index.around(125, 20) == (12, 13)
