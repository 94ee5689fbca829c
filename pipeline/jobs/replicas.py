"""Compares the replicas of a run of entries, without a step per entry if all are sound. Pure."""

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import eq

from octavo.protocol.entries import HEADER
from octavo.protocol.errors import OctavoError
from octavo.protocol.quorums import Quorums

type Verify = Callable[[Sequence[bytes]], Sequence[int]]
"""Returns the ids of sealed entries of one ledger, ascending; raises an :class:`OctavoError` unless all verify."""


class Problem(enum.StrEnum):
    """A problem of one replica of one entry."""

    MISSING = "missing"
    """The bookie answers that it does not have the entry."""
    UNKNOWN = "unknown"
    """The bookie cannot tell: its copy is damaged, or the bookie is in doubt."""
    DIGEST_MISMATCH = "digest-mismatch"
    """The copy does not match its digest."""
    DIFFERS = "differs"
    """The copy verifies but differs from most replicas; without a majority every copy is reported."""
    UNREACHABLE = "unreachable"
    """The bookie did not answer or refused the request."""


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A problem of one replica."""

    entry_id: int
    position: int
    """Position of the bookie in the ensemble."""
    problem: Problem


@dataclass(frozen=True, slots=True)
class Replica:
    """The copies of a run of entries on one bookie. Its answers cover every id that it should hold."""

    sealed: Sequence[bytes]
    unknown: tuple[tuple[int, int], ...] = ()
    reachable: bool = True


def compare_replicas(
    quorums: Quorums, first: int, last: int, replicas: Mapping[int, Replica], verify: Verify
) -> list[Finding]:
    """All problems of entries ``first..last`` of one fragment, in order. ``replicas`` has every position of the
    ensemble."""
    if _all_well(quorums, first, last, replicas, verify):
        return []
    return sorted(_each(quorums, first, last, replicas, verify))


def _all_well(quorums: Quorums, first: int, last: int, replicas: Mapping[int, Replica], verify: Verify) -> bool:
    """Whether every replica is present and all are equal; decided without a Python step per entry."""
    reference: dict[int, bytes] = {}
    for position in range(quorums.ensemble_size):
        replica = replicas[position]
        wanted = list(ids_held(quorums, position, first, last))
        if len(replica.sealed) != len(wanted) or replica.unknown or not replica.reachable:
            return False
        if not quorums.striped and reference:
            # Every bookie holds the same ids in the same order, so comparing with verified bytes is sufficient.
            if not all(map(eq, reference.values(), replica.sealed)):
                return False
            continue
        try:
            if wanted and list(verify(replica.sealed)) != wanted:
                return False
        except OctavoError:
            return False
        held = dict(zip(wanted, replica.sealed, strict=True))
        if not all(map(eq, map(reference.get, held, held.values()), held.values())):
            return False
        reference.update(held)
    return True


def ids_held(quorums: Quorums, position: int, first: int, last: int) -> Iterable[int]:
    """The ids of ``first..last`` that the bookie at this position should hold."""
    if not quorums.striped:
        return range(first, last + 1)
    residues = frozenset(quorums.residues_at(position))
    size = quorums.ensemble_size
    return [entry_id for entry_id in range(first, last + 1) if entry_id % size in residues]


def _each(
    quorums: Quorums, first: int, last: int, replicas: Mapping[int, Replica], verify: Verify
) -> Iterator[Finding]:
    """The problems, entry by entry."""
    intact: dict[int, dict[int, bytes]] = {}
    mismatched: dict[int, set[int]] = {}
    for position, replica in replicas.items():
        intact[position], mismatched[position] = _sorted_out(replica, verify)
    for entry_id in range(first, last + 1):
        copies: dict[int, bytes] = {}
        for position in quorums.write_set(entry_id):
            if entry_id in intact[position]:
                copies[position] = intact[position][entry_id]
                continue
            yield Finding(entry_id, position, _problem(entry_id, replicas[position], mismatched[position]))
        counts = Counter(copies.values())
        if len(counts) > 1:
            (most, number), (_, second) = counts.most_common(2)
            for position, copy in copies.items():
                if copy != most or number == second:
                    yield Finding(entry_id, position, Problem.DIFFERS)


def _problem(entry_id: int, replica: Replica, mismatched: set[int]) -> Problem:
    if not replica.reachable:
        return Problem.UNREACHABLE
    if entry_id in mismatched:
        return Problem.DIGEST_MISMATCH
    if any(low <= entry_id <= high for low, high in replica.unknown):
        return Problem.UNKNOWN
    return Problem.MISSING


def _sorted_out(replica: Replica, verify: Verify) -> tuple[dict[int, bytes], set[int]]:
    """The copies that verify, and the ids in the headers of the others."""
    intact: dict[int, bytes] = {}
    mismatched: set[int] = set()
    for sealed in replica.sealed:
        try:
            intact[verify([sealed])[0]] = sealed
        except OctavoError:
            if len(sealed) >= HEADER.size:
                mismatched.add(HEADER.unpack_from(sealed)[5])
    return intact, mismatched
