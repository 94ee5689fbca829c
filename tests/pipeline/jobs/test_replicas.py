"""Comparing replicas: everything that is wrong is found, and nothing else."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.pipeline.jobs.replicas import Finding, Problem, Replica, compare_replicas, ids_held
from octavo.protocol.entries import verify_batch
from octavo.protocol.ids import LedgerId
from octavo.protocol.quorums import Quorums
from support.raw_client import seal

SIZES = [(1, 1, 1), (3, 3, 2), (4, 2, 2), (5, 3, 2)]
FIRST, LAST = 7, 30
GOOD = {entry_id: seal(1, entry_id, [b"%d" % entry_id])[0] for entry_id in range(FIRST, LAST + 1)}
OTHER = {entry_id: seal(1, entry_id, [b"other %d" % entry_id])[0] for entry_id in range(FIRST, LAST + 1)}


def verify(batch: Sequence[bytes]) -> Sequence[int]:
    return verify_batch(LedgerId(1), batch).entry_ids


def flipped(sealed: bytes, bit: int) -> bytes:
    """One bit of it turned over, not in the entry's id: by that it is known what is damaged."""
    data = bytearray(sealed)
    place = bit % (8 * len(data))
    if 16 <= place // 8 < 24:
        place += 64
    data[place // 8] ^= 1 << place % 8
    return bytes(data)


def replicas(quorums: Quorums, harm: dict[tuple[int, int], tuple[Problem, int]]) -> dict[int, Replica]:
    """Sound replicas with this harm done to (entry, position)."""
    made = {}
    for position in range(quorums.ensemble_size):
        sealed, unknown = [], []
        for entry_id in ids_held(quorums, position, FIRST, LAST):
            problem, bit = harm.get((entry_id, position), (None, 0))
            if problem is Problem.UNKNOWN:
                unknown.append((entry_id, entry_id))
            elif problem is Problem.DIGEST_MISMATCH:
                sealed.append(flipped(GOOD[entry_id], bit))
            elif problem is Problem.DIFFERS:
                sealed.append(OTHER[entry_id])
            elif problem is None:
                sealed.append(GOOD[entry_id])
        made[position] = Replica(sealed, tuple(unknown))
    return made


@pytest.mark.parametrize("sizes", SIZES)
def test_sound_replicas_have_no_findings(sizes: tuple[int, int, int]) -> None:
    quorums = Quorums(*sizes)
    assert compare_replicas(quorums, FIRST, LAST, replicas(quorums, {}), verify) == []


@given(
    st.sampled_from(SIZES),
    st.lists(
        st.tuples(
            st.integers(FIRST, LAST),
            st.integers(0, 9),
            st.sampled_from([Problem.MISSING, Problem.UNKNOWN, Problem.DIGEST_MISMATCH]),
            st.integers(0, 10_000),
        ),
        max_size=12,
    ),
)
def test_every_missing_unknown_and_damaged_replica_is_found_and_no_other(
    sizes: tuple[int, int, int], harms: list[tuple[int, int, Problem, int]]
) -> None:
    quorums = Quorums(*sizes)
    harm = {
        (entry_id, quorums.write_set(entry_id)[index % quorums.write_quorum]): (problem, bit)
        for entry_id, index, problem, bit in harms
    }
    found = compare_replicas(quorums, FIRST, LAST, replicas(quorums, harm), verify)
    assert found == sorted(Finding(i, position, problem) for (i, position), (problem, _) in harm.items())


@given(st.integers(FIRST, LAST), st.integers(0, 10_000))
def test_every_single_bit_flipped_in_any_replica_is_found(entry_id: int, bit: int) -> None:
    quorums = Quorums(3, 3, 2)
    for position in range(3):
        harm = {(entry_id, position): (Problem.DIGEST_MISMATCH, bit)}
        found = compare_replicas(quorums, FIRST, LAST, replicas(quorums, harm), verify)
        assert found == [Finding(entry_id, position, Problem.DIGEST_MISMATCH)]


@pytest.mark.parametrize("position", [0, 1, 2])
def test_the_replica_that_differs_from_the_majority_is_named(position: int) -> None:
    quorums = Quorums(3, 3, 2)
    harm = {(9, position): (Problem.DIFFERS, 0)}
    found = compare_replicas(quorums, FIRST, LAST, replicas(quorums, harm), verify)
    assert found == [Finding(9, position, Problem.DIFFERS)]


def test_without_a_majority_all_that_differ_are_named_and_unreachable_bookies_are_no_negatives() -> None:
    quorums = Quorums(4, 2, 2)
    harm = {(9, 1): (Problem.DIFFERS, 0)}
    found = compare_replicas(quorums, FIRST, LAST, replicas(quorums, harm), verify)
    assert found == [Finding(9, 1, Problem.DIFFERS), Finding(9, 2, Problem.DIFFERS)]
    down = {**replicas(quorums, {}), 3: Replica((), reachable=False)}
    found = compare_replicas(quorums, FIRST, LAST, down, verify)
    expected = [Finding(i, 3, Problem.UNREACHABLE) for i in ids_held(quorums, 3, FIRST, LAST)]
    assert found == expected
