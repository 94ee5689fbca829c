"""Splits the entries of ledgers into partitions. Pure.

A piece lies within one fragment, so that a task reads from one ensemble at a time. Pieces are split until each has
about ``target_bytes``. Small neighbours share a partition, so that ten thousand small ledgers do not need ten thousand
tasks. The same extents give the same partitions.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING

from octavo.protocol.ids import EntryId

if TYPE_CHECKING:
    from octavo.metadata.ledger.term import Term

ENTRY_OVERHEAD_BYTES = 64
"""Cost of an entry in addition to its payload, so that empty entries count as work, too."""


@dataclass(frozen=True, slots=True, order=True)
class EntryRange:
    """Entries ``first..last`` of one ledger or stream, both included."""

    ledger_id: int
    first: int
    last: int
    base: int = 0
    """What is added to an entry id to get the position in the log; 0 for entries of no log."""

    @property
    def count(self) -> int:
        """Number of entries."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Piece:
    """A range within one fragment, and the mean payload size of its entries in bytes."""

    range: EntryRange
    entry_bytes: float

    @property
    def cost(self) -> float:
        """Cost in bytes."""
        return self.range.count * (self.entry_bytes + ENTRY_OVERHEAD_BYTES)

    def cut(self, parts: int) -> list["Piece"]:
        """Split into parts of nearly equal size, at most one for each entry."""
        parts = min(parts, self.range.count)
        starts = [self.range.first + self.range.count * part // parts for part in range(parts + 1)]
        return [
            Piece(replace(self.range, first=first, last=stop - 1), self.entry_bytes) for first, stop in pairwise(starts)
        ]


def pieces_of(term: "Term", first: int, last: int, length: int, *, base: int = 0) -> list[Piece]:
    """Entries ``first..last`` of a term by fragment; none if last < first. ``length``: payload bytes of the readable
    part, which the metadata of an open ledger does not contain. ``base``: see :class:`EntryRange`."""
    pieces = []
    for fragment, following in zip(term.fragments, (*term.fragments[1:], None), strict=True):
        if following is not None:
            end, length_after = following.first_entry_id - 1, following.length_before
        else:
            end, length_after = last, max(length, fragment.length_before)
            if term.has_end and term.last_entry_id is not None:
                end = term.last_entry_id
        low, high = max(first, fragment.first_entry_id), min(last, end)
        if low <= high:
            entries = end - fragment.first_entry_id + 1
            mean = (length_after - fragment.length_before) / entries
            pieces.append(Piece(EntryRange(term.ledger_id, EntryId(low), EntryId(high), base), mean))
    return pieces


def plan_partitions(
    pieces: Iterable[Piece], *, target_bytes: int, partitions_min: int = 1
) -> list[tuple[EntryRange, ...]]:
    """Partitions that hold every entry of ``pieces`` once, in their order, each of about ``target_bytes``.

    There are at least ``partitions_min`` partitions if there are that many entries.
    """
    pieces = list(pieces)
    target = min(float(target_bytes), max(1.0, sum(piece.cost for piece in pieces) / partitions_min))
    cut = [part for piece in pieces for part in piece.cut(math.ceil(piece.cost / target))]
    partitions: list[list[Piece]] = []
    held = math.inf
    for piece in cut:
        if held + piece.cost > target * 1.001:
            partitions.append([])
            held = 0.0
        partitions[-1].append(piece)
        held += piece.cost
    return [tuple(piece.range for piece in partition) for partition in _at_least(partitions, partitions_min)]


def _at_least(partitions: Sequence[list[Piece]], number: int) -> list[list[Piece]]:
    """Halve the largest partition until there are ``number`` partitions or each has one entry."""
    result: dict[tuple[int, int], list[Piece]] = {
        (partition[0].range.ledger_id, partition[0].range.first): partition for partition in partitions
    }
    heap = [(-_cost(partition), key) for key, partition in result.items()]
    heapify(heap)
    while heap and len(result) < number:
        _, key = heappop(heap)
        partition = result[key]
        if len(partition) > 1:
            halves = [partition[: len(partition) // 2], partition[len(partition) // 2 :]]
        else:
            halves = [[part] for part in partition[0].cut(2)]
        if len(halves) < 2:
            continue
        for half in halves:
            half_key = (half[0].range.ledger_id, half[0].range.first)
            result[half_key] = half
            heappush(heap, (-_cost(half), half_key))
    return [result[key] for key in sorted(result)] if len(result) > len(partitions) else list(partitions)


def _cost(partition: Sequence[Piece]) -> float:
    return sum(piece.cost for piece in partition)
