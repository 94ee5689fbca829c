"""Sets of ids that are stored as ranges, for offsets and selections. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from octavo.protocol.ids import ID_MAX


@dataclass(frozen=True, slots=True)
class IdRanges:
    """Disjoint runs ``first..last`` (both included), ascending, none touching the next. Written ``3,7-12``."""

    runs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, runs: Iterable[tuple[int, int]]) -> Self:
        """The set of the ids in ``runs``, which may overlap and come in any order."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(runs):
            if first > last:
                continue
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    @classmethod
    def everything(cls) -> Self:
        """The set of all ids."""
        return cls(((0, ID_MAX),))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse what :func:`str` wrote. Raises :class:`ValueError`."""
        runs = []
        for part in text.split(",") if text else []:
            first, _, last = part.partition("-")
            runs.append((int(first), int(last or first)))
        return cls.of(runs)

    def __str__(self) -> str:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.runs)

    def __contains__(self, entry_id: int) -> bool:
        index = bisect_right(self.runs, entry_id, key=_first) - 1
        return index >= 0 and entry_id <= self.runs[index][1]

    def __bool__(self) -> bool:
        return bool(self.runs)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.runs:
            yield from range(first, last + 1)

    def count(self) -> int:
        """Number of ids."""
        return sum(last - first + 1 for first, last in self.runs)

    def below(self, stop: int) -> "IdRanges":
        """The ids less than ``stop``."""
        return IdRanges(tuple((first, min(last, stop - 1)) for first, last in self.runs if first < stop))

    def union(self, other: "IdRanges") -> "IdRanges":
        """The ids in either set."""
        return IdRanges.of((*self.runs, *other.runs))

    def intersection(self, other: "IdRanges") -> "IdRanges":
        """The ids in both sets."""
        found: list[tuple[int, int]] = []
        mine, theirs = 0, 0
        while mine < len(self.runs) and theirs < len(other.runs):
            (first, last), (other_first, other_last) = self.runs[mine], other.runs[theirs]
            if max(first, other_first) <= min(last, other_last):
                found.append((max(first, other_first), min(last, other_last)))
            if last < other_last:
                mine += 1
            else:
                theirs += 1
        return IdRanges(tuple(found))

    def without(self, ids: Iterable[int]) -> "IdRanges":
        """The ids except those given."""
        runs: list[tuple[int, int]] = []
        removed = iter(sorted(ids))
        gone = next(removed, None)
        for first, last in self.runs:
            start = first
            while gone is not None and gone <= last:
                if gone >= start:
                    if gone > start:
                        runs.append((start, gone - 1))
                    start = gone + 1
                gone = next(removed, None)
            if start <= last:
                runs.append((start, last))
        return IdRanges(tuple(runs))


def _first(run: tuple[int, int]) -> int:
    return run[0]
