"""Quorum arithmetic against a second computation that knows sets of bookies only: no masks, no counting formulas."""

from collections.abc import Iterator
from itertools import combinations

import pytest
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.limits import E_MAX
from octavo.protocol.quorums import Quorums

LARGEST = 7
ENSEMBLES = range(1, LARGEST + 1)
EVERY = [(e, w, a) for e in ENSEMBLES for w in range(1, e + 1) for a in range(1, w + 1)]


def subsets(members: frozenset[int]) -> Iterator[frozenset[int]]:
    for size in range(len(members) + 1):
        for chosen in combinations(sorted(members), size):
            yield frozenset(chosen)


def mask_of(members: frozenset[int]) -> int:
    mask = 0
    for member in members:
        mask |= 1 << member
    return mask


def write_set_by_walking(e: int, w: int, entry_id: int) -> list[int]:
    """Start at bookie 0, step once per entry, then take the next ``w`` around the ring."""
    ring = list(range(e))
    for _ in range(entry_id):
        ring = [*ring[1:], ring[0]]
    return ring[:w]


def has_ack_quorum(holders: frozenset[int], write_set: frozenset[int], a: int) -> bool:
    """Whether some ack quorum, that is some ``a`` members of the write set, lies within the holders."""
    return any(frozenset(quorum) <= holders for quorum in combinations(sorted(write_set), a))


def meets_every_ack_quorum(answered: frozenset[int], cohort: frozenset[int], a: int) -> bool:
    """Whether every possible ack quorum inside the cohort contains one that answered."""
    return all(answered & frozenset(quorum) for quorum in combinations(sorted(cohort), a))


@pytest.mark.parametrize("e", ENSEMBLES)
def test_write_sets_masks_and_residues_agree_with_walking_the_ring(e: int) -> None:
    for w in range(1, e + 1):
        quorums = Quorums(e, w, 1)
        sets = [write_set_by_walking(e, w, entry_id) for entry_id in range(3 * e)]
        for entry_id, expected in enumerate(sets):
            assert list(quorums.write_set(entry_id)) == expected
            assert quorums.write_mask(entry_id) == mask_of(frozenset(expected))
        for position in range(e):
            held = {entry_id % e for entry_id, members in enumerate(sets) if position in members}
            assert quorums.residues_at(position) == tuple(sorted(held))
        assert quorums.full_mask == mask_of(frozenset(range(e)))
        assert quorums.striped == any(len(quorums.residues_at(position)) < e for position in range(e))


def test_write_set_of_the_largest_entry_id_wraps_like_any_other() -> None:
    quorums = Quorums(5, 3, 2)
    last = 2**63 - 1
    assert quorums.write_set(last) == tuple((last + offset) % 5 for offset in range(3))
    assert quorums.write_mask(last) == sum(1 << position for position in quorums.write_set(last))


@pytest.mark.parametrize(("e", "w", "a"), EVERY)
def test_acknowledgement_and_coverage_agree_with_enumerating_every_ack_quorum(e: int, w: int, a: int) -> None:
    quorums = Quorums(e, w, a)
    write_sets = [frozenset(write_set_by_walking(e, w, entry_id)) for entry_id in range(e)]
    # Only the part of a set inside the write set matters: enumerate those once, for every superset.
    acknowledged_by = [
        {part: has_ack_quorum(part, write_set, a) for part in subsets(write_set)} for write_set in write_sets
    ]
    covered_by = [
        {part: meets_every_ack_quorum(part, write_set, a) for part in subsets(write_set)} for write_set in write_sets
    ]
    for bookies in subsets(frozenset(range(e))):
        mask = mask_of(bookies)
        acknowledged = []
        covered = []
        for entry_id, write_set in enumerate(write_sets):
            part = bookies & write_set
            acknowledged.append(acknowledged_by[entry_id][part])
            covered.append(covered_by[entry_id][part])
            assert quorums.can_be_acknowledged(entry_id, mask) is acknowledged[-1]
            assert quorums.covers(quorums.write_mask(entry_id), mask) is covered[-1]
        assert quorums.covers_every_write_set(mask) is all(covered)
        for first in range(e):
            for last in (first - 1, first, first + e - 1, first + 2 * e):
                expected = next((i for i in range(first, last + 1) if not acknowledged[i % e]), last + 1)
                assert quorums.first_unacknowledged(first, last, mask) == expected


@pytest.mark.parametrize("size", ENSEMBLES)
def test_covers_agrees_with_enumeration_for_cohorts_of_any_size_even_below_the_ack_quorum(size: int) -> None:
    everyone = frozenset(range(size))
    for a in range(1, size + 1):
        quorums = Quorums(size, size, a)
        for cohort in subsets(everyone):
            for answered in subsets(cohort):
                expected = meets_every_ack_quorum(answered, cohort, a)
                assert quorums.covers(mask_of(cohort), mask_of(answered)) is expected


def test_answers_from_outside_the_cohort_cover_nothing() -> None:
    quorums = Quorums(5, 3, 2)
    assert not quorums.covers(quorums.write_mask(0), 0b11000)
    assert not quorums.covers(quorums.write_mask(0), 0b11001)
    assert quorums.covers(quorums.write_mask(0), 0b00011)
    assert quorums.first_unacknowledged(0, 0, 0b11001) == 0


def test_coverage_needs_more_answers_the_smaller_the_ack_quorum() -> None:
    # E = Qw = 3: entries acknowledged by one bookie alone are only ruled out once all three have answered.
    assert [min(m for m in range(8) if Quorums(3, 3, a).covers_every_write_set(m)).bit_count() for a in (1, 2, 3)] == [
        3,
        2,
        1,
    ]


@pytest.mark.parametrize(
    "numbers",
    [(0, 0, 0), (3, 3, 0), (3, 2, 3), (2, 3, 2), (3, 3, -1), (E_MAX + 1, 3, 2), (3, 3, True), (3.0, 3, 2), ("3", 3, 2)],
)
def test_impossible_quorums_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="must"):
        Quorums(*numbers)


def test_largest_ensemble_is_accepted() -> None:
    quorums = Quorums(E_MAX, E_MAX, E_MAX)
    assert quorums.first_unacknowledged(0, 0, quorums.full_mask) == 1
    assert quorums.first_unacknowledged(0, 0, quorums.full_mask >> 1) == 0


def test_quorums_compare_and_hash_by_their_three_numbers() -> None:
    assert Quorums(3, 3, 2) == Quorums(3, 3, 2) != Quorums(3, 2, 2)
    assert len({Quorums(3, 3, 2), Quorums(3, 3, 2), Quorums(3, 2, 2)}) == 2
    assert repr(Quorums(3, 3, 2)) == "Quorums(ensemble_size=3, write_quorum=3, ack_quorum=2)"
