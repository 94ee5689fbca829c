"""The write cache holds what it is given, in two generations, within its bound."""

import pytest
from octavo.bookie.index.runs import make_run
from octavo.bookie.storage.cache import RUN_COST_BYTES, WriteCache


def test_runs_are_found_in_both_generations_newest_first_until_flushed() -> None:
    cache = WriteCache(10_000)
    old, new = make_run(range(5), [10] * 5, b"a" * 50, 0), make_run(range(5, 9), [10] * 4, b"b" * 40, 0)
    cache.put(1, old, 50)
    generation = cache.swap()
    cache.put(1, new, 40)
    assert [run_map.runs for run_map in cache.layers(1)] == [[new], [old]]
    assert cache.layers(2) == []
    assert generation.ledgers[1].runs == [old]
    with pytest.raises(AssertionError, match="one flush"):
        cache.swap()
    cache.check_invariants()
    cache.flushed()
    assert [run_map.runs for run_map in cache.layers(1)] == [[new]]


def test_room_ends_when_the_active_generation_is_full_and_the_other_not_flushed_yet() -> None:
    cache = WriteCache(1000)
    cache.put(1, make_run(range(1), [700], b"a" * 700, 0), 700)
    assert cache.is_full, "lone adds are charged for what a run costs"
    assert cache.cost_bytes == 700 + RUN_COST_BYTES
    assert cache.has_room, "it can be swapped at once"
    cache.swap()
    assert cache.has_room
    cache.put(1, make_run(range(1, 2), [700], b"a" * 700, 0), 700)
    assert not cache.has_room
    cache.flushed()
    assert cache.has_room
    assert cache.cost_bytes == 700 + RUN_COST_BYTES


def test_generations_are_due_at_sizes_drawn_for_each() -> None:
    """The bookies of one ledger fill equally fast; they must not flush in the same moment."""
    shares = iter([1.0, 0.5, 0.75, 1.0])
    cache = WriteCache(50_000, lambda: next(shares))
    due_at = []
    for _ in range(3):
        while not cache.is_full:
            assert cache.filled_share < 1.0
            cache.put(1, make_run(range(1), [100], b"a" * 100, 0), 500 - RUN_COST_BYTES)
        assert cache.filled_share >= 1.0
        assert cache.has_room
        due_at.append(cache.active.cost_bytes)
        cache.swap()
        cache.flushed()
    assert due_at == [50_000, 25_000, 37_500]
