"""What of a stream is moved next (rule J5), as tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.bookie.archive.choosing import (
    Candidate,
    Choice,
    LocalWindow,
    ObjectLimits,
    Waiting,
    choose,
    sealed_bytes_max,
)
from octavo.bookie.archive.format import OBJECT_BYTES_MAX, IdRange
from octavo.protocol.entries import OVERHEAD_BYTES_MAX
from octavo.protocol.quorums import Quorums

NOW_MS = 1_000_000_000
HOUR_MS = 3_600_000
THREE, FIVE = Quorums(3, 3, 2), Quorums(5, 3, 2)
LIMITS = ObjectLimits(bytes_min=1000, bytes_max=10_000, ranges_max=4, parts_max=3)
ALWAYS = LocalWindow(seconds=0)


def candidate(
    at: int,
    size: int = 1000,
    *,
    hours: float = 10,
    quorums: Quorums = THREE,
    archived: bool = False,
    problem: str | None = None,
) -> Candidate:
    """A range of 10 entries that would take ``size`` bytes in an object; of none with size 0."""
    count = 10 if size else 0
    payload_bytes = size - count * OVERHEAD_BYTES_MAX
    ended_at_ms = NOW_MS - int(hours * HOUR_MS)
    return Candidate(IdRange(10 * at, 10 * at + count - 1), payload_bytes, quorums, ended_at_ms, archived, problem)


def rows(*sizes: int) -> list[Candidate]:
    return [candidate(at, size) for at, size in enumerate(sizes)]


def firsts(choice: Choice) -> list[list[int]]:
    """The numbers of the candidates in each object."""
    return [[ids.first // 10 for ids in ranges] for ranges in choice.objects]


@pytest.mark.parametrize(
    ("candidates", "objects", "waiting", "waiting_at"),
    [
        ([], [], Waiting.NOT_OLD, None),
        (rows(1000), [], Waiting.NOT_OLD, 0),
        (rows(1000, 1000), [[0]], Waiting.NOT_OLD, 10),
        (rows(1000, 5000, 1000, 1000), [[0], [1], [2]], Waiting.NOT_OLD, 30),
        # the last one that holds an entry stays, and what is behind it
        (rows(1000, 1000, 0), [[0]], Waiting.NOT_OLD, 10),
        (rows(1000, 1000, 0, 0), [[0]], Waiting.NOT_OLD, 10),
        (rows(0, 0), [], Waiting.NOT_OLD, None),
        # small ones share an object
        (rows(900, 900, 900, 1000), [[0, 1]], Waiting.SMALL, 20),
        (rows(900, 900, 900, 900, 1000), [[0, 1], [2, 3]], Waiting.NOT_OLD, 40),
        (rows(900, 5000, 1000), [[0, 1]], Waiting.NOT_OLD, 20),
        (rows(900, 0, 900, 1000), [[0, 2]], Waiting.NOT_OLD, 30),
        (rows(900, 1000), [], Waiting.SMALL, 0),
        # too small, but nothing can join: the next one is too large, or of other quorums
        (rows(900, 9500, 1000), [[0], [1]], Waiting.NOT_OLD, 20),
        ([candidate(0, 900), candidate(1, quorums=FIVE), candidate(2)], [[0], [1]], Waiting.NOT_OLD, 20),
        (
            [
                *(candidate(at, 100 + 10 * OVERHEAD_BYTES_MAX - 1000 + 151) for at in range(4)),
                candidate(4),
                candidate(5),
            ],
            [[0, 1, 2, 3], [4]],
            Waiting.NOT_OLD,
            50,
        ),
        # archived ones are passed by
        ([candidate(0, archived=True), candidate(1), candidate(2)], [[1]], Waiting.NOT_OLD, 20),
        ([candidate(0, archived=True), candidate(1)], [], Waiting.NOT_OLD, 10),
        # a problem stops the stream
        ([candidate(0), candidate(1, problem="short"), candidate(2), candidate(3)], [[0]], Waiting.PROBLEM, 10),
        ([candidate(0, 900), candidate(1, problem="short"), candidate(2)], [], Waiting.PROBLEM, 10),
        # what is not old stops it, too, also where what follows is
        ([candidate(0), candidate(1, hours=-1), candidate(2), candidate(3)], [[0]], Waiting.NOT_OLD, 10),
    ],
)
def test_what_is_moved(
    candidates: list[Candidate], objects: list[list[int]], waiting: Waiting, waiting_at: int | None
) -> None:
    choice = choose(candidates, ALWAYS, now_ms=NOW_MS, limits=LIMITS)
    assert (firsts(choice), choice.waiting, choice.waiting_at) == (objects, waiting, waiting_at)
    assert (choice.problem is not None) is (waiting is Waiting.PROBLEM)


def test_an_object_has_as_many_ranges_as_a_head_can_name() -> None:
    limits = ObjectLimits(bytes_min=10_000, bytes_max=20_000, ranges_max=4)
    choice = choose(rows(*[1000] * 9), ALWAYS, now_ms=NOW_MS, limits=limits)
    assert (firsts(choice), choice.waiting, choice.waiting_at) == ([[0, 1, 2, 3]], Waiting.SMALL, 40)


@pytest.mark.parametrize(
    ("window", "moved"),
    [
        (LocalWindow(), 0),
        (LocalWindow(seconds=0), 4),
        (LocalWindow(seconds=2.5 * 3600), 3),
        (LocalWindow(seconds=2 * 3600), 4),
        (LocalWindow(seconds=6 * 3600), 0),
        (LocalWindow(bytes=1), 4),
        (LocalWindow(bytes=160), 4),
        (LocalWindow(bytes=161), 3),
        (LocalWindow(bytes=640), 1),
        (LocalWindow(bytes=641), 0),
        (LocalWindow(seconds=6 * 3600, bytes=320), 3),
        (LocalWindow(seconds=2.5 * 3600, bytes=10**9), 3),
    ],
)
def test_the_local_window_keeps_what_is_young_or_little(window: LocalWindow, moved: int) -> None:
    candidates = [candidate(at, hours=5 - at) for at in range(5)]
    assert {one.payload_bytes for one in candidates} == {160}
    assert firsts(choose(candidates, window, now_ms=NOW_MS, limits=LIMITS)) == [[at] for at in range(moved)]


def test_a_range_that_is_larger_than_an_object_becomes_several() -> None:
    large = Candidate(IdRange(0, 99), 20_000, THREE, 0)
    choice = choose([large, candidate(10)], ALWAYS, now_ms=NOW_MS, limits=LIMITS)
    assert choice.objects == ((IdRange(0, 32),), (IdRange(33, 65),), (IdRange(66, 99),))


def test_a_range_that_is_too_large_for_its_words_stops_the_stream() -> None:
    huge = Candidate(IdRange(0, 99), 40_000, THREE, 0)
    choice = choose([huge, candidate(10)], ALWAYS, now_ms=NOW_MS, limits=LIMITS)
    assert (choice.objects, choice.waiting, choice.waiting_at) == ((), Waiting.PROBLEM, 0)
    assert "more than 3 objects hold" in (choice.problem or "")
    few = Candidate(IdRange(0, 1), 25_000, THREE, 0)
    assert choose([few, candidate(10)], ALWAYS, now_ms=NOW_MS, limits=LIMITS).waiting is Waiting.PROBLEM


def test_the_limits_are_those_of_objects() -> None:
    gib = Candidate(IdRange(0, 10**6), 1024**3, THREE, 0)
    five = Candidate(IdRange(10**7, 10**7 + 10**6), 5 * 1024**3, THREE, 0)
    choice = choose([gib, five, candidate(2 * 10**6)], ALWAYS, now_ms=NOW_MS)
    assert [len(ranges) for ranges in choice.objects] == [1, 1, 1]
    assert sum(ids.entry_count for ranges in choice.objects[1:] for ids in ranges) == 10**6 + 1
    assert sealed_bytes_max(five) / 2 < OBJECT_BYTES_MAX


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 900, 999, 1000, 4000, 9500, 25_000]), st.booleans(), st.booleans()), max_size=12
    )
)
def test_what_is_moved_is_the_front_without_holes(drawn: list[tuple[int, bool, bool]]) -> None:
    candidates = [
        candidate(at, size, quorums=FIVE if five else THREE, problem="short" if short else None)
        for at, (size, five, short) in enumerate(drawn)
    ]
    choice = choose(candidates, ALWAYS, now_ms=NOW_MS, limits=LIMITS)
    moved = [entry_id for ranges in choice.objects for ids in ranges for entry_id in range(ids.first, ids.last + 1)]
    held = [entry_id for one in candidates for entry_id in range(one.ids.first, one.ids.last + 1)]
    assert moved == held[: len(moved)]
    assert len(moved) < len(held) or not held
    by_first = {one.ids.first: one for one in candidates}
    for ranges in choice.objects:
        assert len(ranges) <= LIMITS.ranges_max
        whole = [by_first[ids.first] for ids in ranges if ids.first in by_first and by_first[ids.first].ids == ids]
        assert len({one.quorums for one in whole}) <= 1
        assert len(ranges) == 1 or sum(map(sealed_bytes_max, whole)) <= LIMITS.bytes_max
        assert not any(one.problem for one in whole)
