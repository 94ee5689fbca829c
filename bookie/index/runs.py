"""Runs of entries, and the operations that build a map (entry id -> place) from them. Pure.

A *run* is a set of ascending entry ids of one ledger whose sealed bytes are adjacent in one place: a buffer in memory
(the write cache) or an entry log. Ids are a ``range`` if they have a constant stride, otherwise a packed array; sizes
are one number if all are equal, otherwise a packed array: no run holds a Python object per entry.

A *run map* is an ordered list of runs of one ledger whose id intervals do not overlap: runs of two puts that interleave
are cut into pieces. It behaves like a dict from id to place: a later put replaces the places of the ids it names, and
of no others. Layers (write cache, parts of the index) are run maps too; :func:`merge_runs` merges a newer layer over an
older one, in one pass and with bounded memory, for lookups and for merging files alike.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise, repeat
from operator import attrgetter, itemgetter
from typing import NamedTuple, cast

RUN_ENTRIES_MAX = 4096
"""Most entries in a coalesced run: bounds the bytes of an encoded run and the work to find one entry's offset."""

RUN_SPAN_MAX = 16 * RUN_ENTRIES_MAX
"""Widest id interval of a coalesced run whose ids are irregular: bounds its bitmap to 8 KiB."""


class Run(NamedTuple):
    """Adjacent entries of one ledger. Immutable, like everything it refers to."""

    first: int
    last: int
    ids: "range | array[int]"
    sizes: "int | array[int]"
    """Bytes of each sealed entry; one number when all are equal."""
    place: bytes | int
    """The buffer that holds the entries, or the id of the entry log that does."""
    offset: int
    """Offset of the first entry in its place, in bytes."""


class Span(NamedTuple):
    """Position of some adjacent entries of a run in its place."""

    offset: int
    size: int


def make_run(ids: Sequence[int], sizes: Sequence[int], place: bytes | int, offset: int) -> Run:
    """A run from ascending ids and a size for each, in the most compact form."""
    first, last, count = ids[0], ids[-1], len(ids)
    if not isinstance(ids, range):
        stride = ids[1] - first if count > 1 else 1
        pattern = range(first, last + 1, stride)
        ids = pattern if len(pattern) == count and all(map(int.__eq__, ids, pattern)) else array("Q", ids)
    size = sizes[0]
    packed: int | array[int] = size
    if any(map(size.__ne__, sizes)):
        packed = array("H" if max(sizes) < 1 << 16 else "I", sizes)
    return Run(first, last, ids, packed, place, offset)


def lone_runs(entry_ids: Iterable[int], sizes: Iterable[int], entries: Iterable[bytes]) -> list[Run]:
    """A run of each of these entries, which lie in buffers of their own. A column for each fact."""
    firsts = list(entry_ids)
    # By the constructor of tuple, as all fields are there: that of Run is Python's own, and costs twice as much.
    fields = zip(firsts, firsts, [range(first, first + 1) for first in firsts], sizes, entries, repeat(0))
    return list(map(cast("Callable[..., Run]", tuple.__new__), repeat(Run), fields))


def run_bytes(run: Run) -> int:
    """Bytes of all its entries."""
    return run.sizes * len(run.ids) if isinstance(run.sizes, int) else sum(run.sizes)


def span(run: Run, start: int, stop: int) -> Span:
    """Where the entries at positions ``start`` to ``stop`` (half-open) are stored."""
    if isinstance(run.sizes, int):
        return Span(run.offset + start * run.sizes, (stop - start) * run.sizes)
    return Span(run.offset + sum(run.sizes[:start]), sum(run.sizes[start:stop]))


def sizes_between(run: Run, start: int, stop: int) -> Sequence[int]:
    """Sizes of the entries at positions ``start`` to ``stop`` (half-open)."""
    return [run.sizes] * (stop - start) if isinstance(run.sizes, int) else run.sizes[start:stop]


def slice_entries(data: bytes, offset: int, sizes: Iterable[int]) -> list[bytes]:
    """Cut adjacent entries, the first at ``offset``, out of a buffer."""
    ends = list(accumulate(sizes, initial=offset))
    return [data[start:stop] for start, stop in pairwise(ends)]


def cut(run: Run, start: int, stop: int) -> Run:
    """The part of a run at positions ``start`` to ``stop`` (half-open, not empty)."""
    assert 0 <= start < stop <= len(run.ids), (start, stop, len(run.ids))
    if start == 0 and stop == len(run.ids):
        return run
    ids = run.ids[start:stop]
    sizes = run.sizes if isinstance(run.sizes, int) else run.sizes[start:stop]
    return Run(ids[0], ids[-1], ids, sizes, run.place, span(run, 0, start).size + run.offset)


def clip(run: Run, first: int, last: int) -> Run | None:
    """The part of a run with ids in ``first..last``; None when it has none there."""
    if first <= run.first and run.last <= last:
        return run
    start, stop = bisect_left(run.ids, first), bisect_right(run.ids, last)
    return cut(run, start, stop) if start < stop else None


def first_id_in(run: Run, first: int) -> int:
    """The lowest id of a run from ``first`` on, which is not above its last one."""
    return run.ids[bisect_left(run.ids, first)]


class MergeStep(NamedTuple):
    """The result of one merge step: finished runs, and what is left of either side."""

    settled: list[Run]
    older: Run | None
    newer: Run | None


def merge_step(older: Run, newer: Run) -> MergeStep:
    """Merge the lowest part of two runs; ``newer`` replaces ``older``. Makes progress on at least one of them."""
    if older.last < newer.first:
        return MergeStep([older], None, newer)
    if newer.last < older.first:
        return MergeStep([newer], older, None)
    settled = []
    low, high = max(older.first, newer.first), min(older.last, newer.last)
    for run in (older, newer):
        head = clip(run, run.first, low - 1)
        if head is not None:
            settled.append(head)
    older_inside, newer_inside = clip(older, low, high), clip(newer, low, high)
    if older_inside is None or newer_inside is None:
        settled += [run for run in (older_inside, newer_inside) if run is not None]
    else:
        settled += _interleave(older_inside, newer_inside)
    return MergeStep(
        settled,
        clip(older, high + 1, older.last) if older.last > high else None,
        clip(newer, high + 1, newer.last) if newer.last > high else None,
    )


def _interleave(older: Run, newer: Run) -> list[Run]:
    named = newer.ids if isinstance(newer.ids, range) else set(newer.ids)
    survivors = [(entry_id, 0, at) for at, entry_id in enumerate(older.ids) if entry_id not in named]
    if not survivors:
        return [newer]
    ordered = sorted(chain(survivors, ((entry_id, 1, at) for at, entry_id in enumerate(newer.ids))))
    pieces = []
    _, source, start = ordered[0]
    stop = start + 1
    for _, next_source, at in ordered[1:]:
        if next_source != source or at != stop:
            pieces.append(cut((older, newer)[source], start, stop))
            source, start = next_source, at
        stop = at + 1
    pieces.append(cut((older, newer)[source], start, stop))
    return pieces


def merge_runs(older: Iterable[Run], newer: Iterable[Run]) -> Iterator[Run]:
    """Merge one run map over another. Both are ordered and free of overlaps; so is the result."""
    older_runs, newer_runs = iter(older), iter(newer)
    below, above = next(older_runs, None), next(newer_runs, None)
    while below is not None and above is not None:
        settled, below, above = merge_step(below, above)
        yield from settled
        if below is None:
            below = next(older_runs, None)
        if above is None:
            above = next(newer_runs, None)
    if below is not None:
        yield below
        yield from older_runs
    if above is not None:
        yield above
        yield from newer_runs


def exclude(runs: Iterable[Run], first: int, last: int) -> Iterator[Run]:
    """The runs without their ids in ``first..last``."""
    for run in runs:
        below = clip(run, run.first, first - 1) if run.first < first else None
        above = clip(run, last + 1, run.last) if run.last > last else None
        if below is not None:
            yield below
        if above is not None and above is not below:
            yield above


def exclude_all(run: Run, intervals: Sequence[tuple[int, int]]) -> list[Run]:
    """The pieces of a run without its ids in these intervals, which are in order and apart. Looks only at those that
    overlap the run."""
    pieces = []
    rest: Run | None = run
    at = first_reaching(intervals, run.first)
    while rest is not None and at < len(intervals) and intervals[at][0] <= rest.last:
        low, high = intervals[at]
        below = clip(rest, rest.first, low - 1) if rest.first < low else None
        if below is not None:
            pieces.append(below)
        rest = clip(rest, high + 1, rest.last) if rest.last > high else None
        at += 1
    return pieces if rest is None else [*pieces, rest]


def first_reaching(intervals: Sequence[tuple[int, int]], entry_id: int) -> int:
    """The position of the first of these intervals, in order and apart, that does not end before the id."""
    return bisect_left(intervals, entry_id, key=itemgetter(1))


def is_inside(intervals: Sequence[tuple[int, int]], entry_id: int) -> bool:
    """Whether one of these intervals, in order and apart, contains the id."""
    at = first_reaching(intervals, entry_id)
    return at < len(intervals) and intervals[at][0] <= entry_id


def runs_from(runs: Sequence[Run], first: int) -> Sequence[Run]:
    """The ordered runs without their ids below ``first``."""
    if not first or not runs or runs[0].first >= first:
        return runs
    start = bisect_left(runs, first, key=_last_of)
    return [piece for run in runs[start : start + 1] if (piece := clip(run, first, run.last))] + list(runs[start + 1 :])


def coalesce(runs: Iterable[Run]) -> Iterator[Run]:
    """Join runs that are adjacent both in ids and in place, within the limits of a run."""
    group: list[Run] = []
    count = stop = 0
    for run in runs:
        size = len(run.ids)
        if group and not (
            run.place == group[-1].place
            and run.offset == stop
            and count + size <= RUN_ENTRIES_MAX
            and run.last - group[0].first < RUN_SPAN_MAX
        ):
            yield _join(group)
            group, count = [], 0
        group.append(run)
        count += size
        stop = run.offset + run_bytes(run)
    if group:
        yield _join(group)


def _join(group: list[Run]) -> Run:
    if len(group) == 1:
        return group[0]
    head, tail = group[0], group[-1]
    count = sum(len(run.ids) for run in group)
    if all(isinstance(run.ids, range) and run.sizes == head.sizes for run in group) and isinstance(head.sizes, int):
        stride = group[1].first - head.last
        pattern = range(head.first, tail.last + 1, stride)
        if len(pattern) == count and all(_continues(run, pattern) for run in group):
            return Run(head.first, tail.last, pattern, head.sizes, head.place, head.offset)
    ids = [entry_id for run in group for entry_id in run.ids]
    sizes = [size for run in group for size in sizes_between(run, 0, len(run.ids))]
    return make_run(ids, sizes, group[0].place, group[0].offset)


def _continues(run: Run, pattern: range) -> bool:
    return isinstance(run.ids, range) and run.first in pattern and (len(run.ids) == 1 or run.ids.step == pattern.step)


_first_of = attrgetter("first")
_last_of = attrgetter("last")


class RunMap:
    """Id -> place for one ledger in one layer. Appending above the highest id costs O(1)."""

    __slots__ = ("runs",)

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self.runs: list[Run] = list(runs)

    def put(self, run: Run) -> None:
        """Set the places of the ids in ``run``; other ids keep theirs."""
        runs = self.runs
        if not runs or run.first > runs[-1].last:
            runs.append(run)
            return
        start = bisect_left(runs, run.first, key=_last_of)
        stop = bisect_right(runs, run.last, key=_first_of)
        runs[start:stop] = merge_runs(runs[start:stop], (run,))

    def first_id(self, first: int) -> int | None:
        """The lowest id from ``first`` on; None: there is none."""
        at = bisect_left(self.runs, first, key=_last_of)
        return first_id_in(self.runs[at], first) if at < len(self.runs) else None

    def between(self, first: int, last: int) -> list[Run]:
        """The runs cut down to ids in ``first..last``, in order."""
        start = bisect_left(self.runs, first, key=_last_of)
        stop = bisect_right(self.runs, last, key=_first_of)
        found = self.runs[start:stop]
        if not found:
            return found
        if found[0].first >= first and found[-1].last <= last:
            return found
        return [piece for run in found if (piece := clip(run, first, last)) is not None]

    def check_invariants(self) -> None:
        """Check that runs are in order, do not overlap, and are consistent in themselves."""
        previous = -1
        for run in self.runs:
            assert previous < run.first <= run.last, (previous, run)
            assert run.ids[0] == run.first
            assert run.ids[-1] == run.last
            assert all(map(int.__lt__, run.ids, run.ids[1:])), run
            assert isinstance(run.sizes, int) or len(run.sizes) == len(run.ids), run
            previous = run.last


def ranges_of(runs: Iterable[Run]) -> Iterator[tuple[int, int]]:
    """The ids of ordered runs as maximal intervals (first, last), both inclusive."""
    start = stop = -1
    for run in runs:
        pieces: Iterable[tuple[int, int]]
        if isinstance(run.ids, range) and (run.ids.step == 1 or len(run.ids) == 1):
            pieces = ((run.first, run.last),)
        else:
            pieces = zip(run.ids, run.ids, strict=True)
        for first, last in pieces:
            if start >= 0 and first == stop + 1:
                stop = last
                continue
            if start >= 0:
                yield start, stop
            start, stop = first, last
    if start >= 0:
        yield start, stop
