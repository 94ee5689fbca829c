"""The lag of consumer groups: for how many records, and for how long."""

from hypothesis import given
from hypothesis import strategies as st
from octavo.gateway.groups.commits import GroupRecord
from octavo.gateway.groups.entries import Committed
from octavo.gateway.groups.lag import ENDS_MAX, GroupOffsets, Lags, WatchedOffset, watched
from octavo.gateway.groups.places import Place

ORDERS, SALES = Place("orders", 0), Place("sales", 3)


def group(name: str, *, members: bool = False, **offsets: int) -> GroupOffsets:
    places = {"orders": ORDERS, "sales": SALES}
    committed = {places[topic]: Committed(offset, -1, "", 0) for topic, offset in offsets.items()}
    return GroupOffsets(name, GroupRecord(offsets=committed), members)


def at(offset: int, name: str = "billing", place: Place = ORDERS) -> WatchedOffset:
    return WatchedOffset(name, place, offset)


class Looks:
    """One partition, looked at again and again."""

    def __init__(self) -> None:
        self.lags = Lags()

    def __call__(self, now_ms: int, end: int | None, *offsets: WatchedOffset) -> list[tuple[int, int]]:
        found = self.lags.look(offsets, {} if end is None else {ORDERS: end}, now_ms)
        self.lags.check_invariants()
        return [(one.records, one.behind_ms) for one in found]


def test_a_group_is_behind_since_an_end_above_its_offset_was_seen() -> None:
    look = Looks()
    assert look(0, 10, at(10)) == [(0, 0)]
    assert look(100, 15, at(10)) == [(5, 0)]
    assert look(200, 25, at(12)) == [(13, 100)]
    assert look(300, 25, at(15)) == [(10, 100)], "it has reached the end that was there at 100"
    assert look(400, 25, at(25)) == [(0, 0)]
    assert look(500, 26, at(25)) == [(1, 0)]


def test_a_group_that_follows_closely_is_never_behind_for_long() -> None:
    look = Looks()
    found = [look(1000 * turn, 5000 * turn, at(5000 * turn - 4000)) for turn in range(1, 200)]
    assert all(one == [(4000, 0)] for one in found)


def test_a_group_that_goes_back_is_behind_from_then_on_and_not_since_the_end_was_first_seen() -> None:
    look = Looks()
    look(0, 10, at(10))
    assert look(10_000, 10, at(10)) == [(0, 0)]
    assert look(20_000, 10, at(0)) == [(10, 10_000)]
    assert look(30_000, 10, at(0)) == [(10, 20_000)]


def test_a_group_that_is_first_looked_at_is_not_behind_yet() -> None:
    look = Looks()
    look(0, 10, at(10))
    assert look(60_000, 10, at(10), at(4, "audit")) == [(0, 0), (6, 0)]
    assert look(90_000, 10, at(10), at(4, "audit")) == [(0, 0), (6, 30_000)]


def test_an_end_that_cannot_be_read_stays_as_it_was_known() -> None:
    look = Looks()
    assert look(0, None, at(3)) == []
    look(100, 10, at(3))
    assert look(200, None, at(4)) == [(6, 100)]


def test_an_offset_above_the_known_end_is_no_lag() -> None:
    assert Looks()(0, 10, at(12)) == [(0, 0)]


def test_a_partition_that_no_group_has_an_offset_in_is_forgotten() -> None:
    look = Looks()
    look(0, 10, at(3))
    assert look(100, 10) == []
    assert look(200, None, at(3)) == []


def test_the_slowest_group_is_behind_for_as_long_as_before_however_many_ends_were_seen() -> None:
    look = Looks()
    for turn in range(5 * ENDS_MAX):
        found = look(turn, 100 + turn, at(0), at(100 + turn - 1, "quick"))
    assert found == [(99 + 5 * ENDS_MAX, 5 * ENDS_MAX - 1), (1, 0)]


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 12), st.integers(1, 40)), min_size=1, max_size=40
    )  # growth of the end, offset below it, milliseconds
)
def test_times_of_a_group_that_goes_on_are_those_of_a_second_computation(steps: list[tuple[int, int, int]]) -> None:
    look = Looks()
    end, offset, now_ms, level_ms, seen = 0, 0, 0, 0, []
    for growth, below, passed in steps:
        end, now_ms = end + growth, now_ms + passed
        seen.append((end, now_ms))
        offset = max(offset, end - below)
        if offset == end or len(seen) == 1:
            level_ms = now_ms
        since_ms = min((when for known, when in seen if known > offset), default=now_ms)
        assert look(now_ms, end, at(offset)) == [(end - offset, now_ms - max(since_ms, level_ms))]


def test_groups_with_members_are_watched_first_and_the_rest_is_counted() -> None:
    groups = [group("a", orders=1), group("z", members=True, orders=2, sales=3), group("b", orders=4, sales=-1)]
    found = watched(groups, 3)
    assert [(one.group_id, one.offset) for one in found.offsets] == [("z", 2), ("z", 3), ("a", 1)]
    assert found.left_out == 1
    assert watched(groups, 9).left_out == 0


def test_an_offset_that_stands_for_an_end_is_not_watched() -> None:
    assert watched([group("a", orders=-1, sales=-2)], 9) == ((), 0)
