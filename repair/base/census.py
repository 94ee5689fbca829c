"""The auditor's index from bookies to the ledgers that name them. Pure.

Theory of operation
-------------------

To answer "which ledgers does this lost bookie leave short" without reading all metadata, the auditor keeps, per bookie,
the ids of the ledgers that name it, in compact arrays: about 8 bytes per ledger and member. The index stays right
cheaply, because the metadata of a CLOSED ledger change by repair only: a round lists all ids and reads the ledgers
that are new, those that were not CLOSED when last read, and those that repair has changed. Deleted ledgers drop out
because the listing lacks them.

A round is collected in a :class:`Round` and applied at its end: a round that fails half-way changes nothing. The order
of candidates is part of planning (rule A5): ledgers with the fewest live copies first.

The auditor is a bookie that serves adds, and a census of a million ledgers takes seconds of processor time. Work that
grows with the number of ledgers is therefore done in *steps*: a generator yields after each, its caller lets other
tasks run, and the value that it returns is the result. Nothing else may change the census meanwhile. What has not
changed between two rounds is compared in blocks, at the speed of memory.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import field
from heapq import merge
from itertools import groupby, pairwise
from typing import Final, cast

from octavo.metadata.ledger.stored import StoredLedger
from octavo.protocol.ids import BookieId, LedgerId
from octavo.protocol.light_dataclass import dataclass

_ITEM_BYTES = 8

BLOCK: Final = 2048
"""Ids of one step: a few milliseconds of work."""

type Steps[T] = Generator[None, None, T]
"""Work in steps; see the module."""


def at_once[T](steps: Steps[T]) -> T:
    """Do all steps now; the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("T", end.value)


@dataclass(frozen=True, slots=True)
class Seen:
    """The part of one ledger's metadata that the census keeps."""

    bookies: frozenset[BookieId]
    """Every bookie that a fragment names."""
    closed: bool
    spare_copies: int
    """Copies of an entry that may be lost without losing it: Qa - 1."""
    is_stream: bool = False
    owes: bool = False
    """Whether entries of it may have fewer copies than the write quorum (rule I9)."""

    @classmethod
    def of(cls, metadata: StoredLedger) -> "Seen":
        """From the metadata of a ledger or a stream. Those of a stream may always change: it never counts as
        closed."""
        is_stream = metadata.next_term is not None
        closed = metadata.is_closed and not is_stream
        return cls(metadata.members, closed, metadata.spare_copies, is_stream, owes=bool(metadata.debts))


@dataclass(slots=True)
class Round:
    """One round under way: which ids were listed, and what was read, as compactly as the census keeps it."""

    listed: "array[int]" = field(default_factory=lambda: array("Q"))
    read: "array[int]" = field(default_factory=lambda: array("Q"))
    """Ids of the ledgers that were read."""
    named: "dict[BookieId, array[int]]" = field(default_factory=dict)
    """By bookie: those of them that name it."""
    open: dict[LedgerId, Seen] = field(default_factory=dict)
    """Those of them that are not CLOSED."""
    owing: set[LedgerId] = field(default_factory=set)
    """Those of them that owe copies."""

    def list(self, ledger_id: LedgerId) -> None:
        """The store lists the ledger. Ids come in ascending order."""
        assert not self.listed or self.listed[-1] < ledger_id, "ledgers are listed in ascending order"
        self.listed.append(ledger_id)

    def note(self, ledger_id: LedgerId, seen: Seen) -> None:
        """The ledger was read. Ids come in ascending order."""
        assert not self.read or self.read[-1] < ledger_id, "ledgers are noted in ascending order"
        self.read.append(ledger_id)
        for name in seen.bookies:
            self.named.setdefault(name, array("Q")).append(ledger_id)
        if not seen.closed:
            self.open[ledger_id] = seen
        if seen.owes:
            self.owing.add(ledger_id)


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of a round."""

    newly_closed: "array[int]"
    """Ledgers that are CLOSED and were not, or were not known."""
    deleted: int


class Census:
    """See the module."""

    def __init__(self, block: int = BLOCK) -> None:
        """``block``: ids of one step."""
        self._block = block
        self._ids: array[int] = array("Q")
        self._named: dict[BookieId, array[int]] = {}
        self._open: dict[LedgerId, Seen] = {}
        self._marked: set[LedgerId] = set()
        self.owing: set[LedgerId] = set()
        """Ledgers that owe copies: their members are asked in every round. Changed only here."""
        self.complete = False
        """Whether a round has been applied: before that, nothing follows from what is not in the census."""

    @property
    def ledgers(self) -> int:
        """How many ledgers there are."""
        return len(self._ids)

    @property
    def memory_bytes(self) -> int:
        """Memory of the index, without what a round under way holds."""
        arrays = [self._ids, *self._named.values()]
        return sum(_ITEM_BYTES * len(ids) for ids in arrays) + 200 * len(self._open)

    def mark(self, ledger_ids: Iterable[LedgerId]) -> None:
        """Repair may have changed these ledgers: the next round reads them."""
        self._marked.update(ledger_ids)

    def must_read(self, ledger_id: LedgerId) -> bool:
        """Whether a round must read a ledger that it lists."""
        return ledger_id in self._marked or ledger_id in self._open or not _contains(self._ids, ledger_id)

    def names(self, bookie_id: BookieId) -> "array[int]":
        """The ledgers that name the bookie, ascending."""
        return self._named.get(bookie_id, array("Q"))

    def some_from(self, first: int, count: int) -> list[LedgerId]:
        """The next ``count`` ledgers that are CLOSED, and streams, from id ``first`` on; none after the last one."""
        at = bisect_left(self._ids, first)
        some = [LedgerId(one) for one in self._ids[at : at + count]]
        return [one for one in some if one not in self._open or self._open[one].is_stream] or some[-1:]

    def apply(self, found: Round) -> "Steps[Applied]":
        """Take over a round that went to its end, in steps."""
        newly_closed = array("Q")
        for start in range(0, len(found.read), self._block):
            newly_closed.extend(
                one
                for one in found.read[start : start + self._block]
                if one not in found.open and (one in self._open or not _contains(self._ids, one))
            )
            yield
        deleted = yield from _missing_from(found.listed, self._ids, self._block)
        changed = yield from _merged(found.read, deleted, self._block)
        named: dict[BookieId, array[int]] = {}
        for name in sorted({*self._named, *found.named}):
            kept = yield from _without(self._named.get(name, array("Q")), changed, self._block)
            ids = yield from _merged(kept, found.named.get(name, array("Q")), self._block)
            if ids:
                named[name] = ids
        kept_open = {one: seen for one, seen in self._open.items() if not _contains(changed, one)}
        self._open = kept_open | found.open
        self.owing = {one for one in self.owing if not _contains(changed, one)} | found.owing
        self._ids, self._named = found.listed, named
        self._marked = {one for one in self._marked if not _contains(found.read, one)}
        self.complete = True
        return Applied(newly_closed, len(deleted))

    def update(self, ledger_id: LedgerId, seen: Seen | None) -> None:
        """One ledger was read outside a round; None: it has been deleted."""
        for name in list(self._named):
            ids = self._named[name]
            at = bisect_left(ids, ledger_id)
            has = at < len(ids) and ids[at] == ledger_id
            should = seen is not None and name in seen.bookies
            if has and not should:
                del ids[at]
                if not ids:
                    del self._named[name]
            elif should and not has:
                ids.insert(at, ledger_id)
        if seen is None or not seen.owes:
            self.owing.discard(ledger_id)
        else:
            self.owing.add(ledger_id)
        if seen is None:
            self._open.pop(ledger_id, None)
            self._marked.discard(ledger_id)
            return
        for name in seen.bookies:
            if name not in self._named:
                self._named[name] = array("Q", (ledger_id,))
        if not _contains(self._ids, ledger_id):
            self._ids.insert(bisect_left(self._ids, ledger_id), ledger_id)
        if seen.closed:
            self._open.pop(ledger_id, None)
        else:
            self._open[ledger_id] = seen
        self._marked.discard(ledger_id)

    def candidates(self, ranks: Mapping[BookieId, int]) -> "Steps[array[int]]":
        """Ledgers that name one of these bookies, in the order in which they are to be repaired: those with the fewest
        live copies first, that is, those that name the most bookies of rank 0; then by the lowest rank among those that
        they name; then by id (rule A5). In steps."""
        buckets: dict[tuple[int, int], array[int]] = {}
        for number, (ledger_id, count, rank) in enumerate(_grouped(self._named, ranks)):
            buckets.setdefault((-count, rank), array("Q")).append(ledger_id)
            if number % self._block == 0:
                yield
        ordered = array("Q")
        for key in sorted(buckets):
            ordered.extend(buckets[key])
        return ordered

    def counts(self, unavailable: Collection[BookieId]) -> "Steps[dict[BookieId, tuple[int, int]]]":
        """For each bookie that is named: the number of ledgers that name it, and of those the number that also name
        another bookie which is unavailable. In steps."""
        # Ledgers that name an unavailable bookie, and those of them that name two.
        one, two = array("Q"), array("Q")
        short = _grouped(self._named, dict.fromkeys(sorted(unavailable), 0))
        for number, (ledger_id, count, _) in enumerate(short):
            one.append(ledger_id)
            if count > 1:
                two.append(ledger_id)
            if number % self._block == 0:
                yield
        figures: dict[BookieId, tuple[int, int]] = {}
        for name, ids in sorted(self._named.items()):
            thin = yield from _common(ids, two if name in unavailable else one, self._block)
            figures[name] = (len(ids), thin)
        return figures

    def check_invariants(self) -> None:
        """Raise AssertionError unless the state is one that can be."""
        for ids in (self._ids, *self._named.values()):
            assert all(one < two for one, two in pairwise(ids))
        for ids in self._named.values():
            assert ids
            assert all(_contains(self._ids, one) for one in ids)
        assert all(_contains(self._ids, one) for one in self._open)


def _grouped(named: Mapping[BookieId, "array[int]"], ranks: Mapping[BookieId, int]) -> Iterator[tuple[int, int, int]]:
    """Each ledger that names one of the bookies, how many of rank 0 it names, and the lowest rank of those."""
    streams = [_with_rank(named[name], rank) for name, rank in sorted(ranks.items()) if name in named]
    for ledger_id, group in groupby(merge(*streams), key=lambda pair: pair[0]):
        found = [rank for _, rank in group]
        yield ledger_id, found.count(0), min(found)


def _with_rank(ids: "array[int]", rank: int) -> Iterator[tuple[int, int]]:
    for ledger_id in ids:
        yield ledger_id, rank


def _contains(ids: "array[int]", ledger_id: int) -> bool:
    at = bisect_left(ids, ledger_id)
    return at < len(ids) and ids[at] == ledger_id


def _missing_from(listed: "array[int]", ids: "array[int]", size: int) -> "Steps[array[int]]":
    """Those of ``ids`` that ``listed`` lacks; both ascending."""
    missing, at = array("Q"), 0
    for start in range(0, len(ids), size):
        block = ids[start : start + size]
        if listed[at : at + len(block)] == block:
            at += len(block)
        else:
            stop = bisect_right(listed, block[-1])
            there = set(listed[at:stop])
            missing.extend(one for one in block if one not in there)
            at = stop
        yield
    return missing


def _without(ids: "array[int]", removed: "array[int]", size: int) -> "Steps[array[int]]":
    """``ids`` without ``removed``; both ascending."""
    if not removed:
        return ids
    kept = array("Q")
    for start in range(0, len(ids), size):
        block = ids[start : start + size]
        low, high = bisect_left(removed, block[0]), bisect_right(removed, block[-1])
        if low < high:
            gone = set(removed[low:high])
            kept.extend(one for one in block if one not in gone)
        else:
            kept.extend(block)
        yield
    return kept


def _merged(ids: "array[int]", added: "array[int]", size: int) -> "Steps[array[int]]":
    """Both together, ascending; they have no id in common."""
    if not added:
        return ids
    if not ids or ids[-1] < added[0]:
        return ids + added
    merged, at = array("Q"), 0
    for start in range(0, len(added), size):
        block = added[start : start + size]
        low = bisect_left(ids, block[0], at)
        merged.extend(ids[at:low])
        at = bisect_left(ids, block[-1], low)
        if at - low < 8 * size:
            merged.extend(merge(ids[low:at], block))
        else:  # few among many
            for one in block:
                before = bisect_left(ids, one, low)
                merged.extend(ids[low:before])
                merged.append(one)
                low = before
        yield
    merged.extend(ids[at:])
    return merged


def _common(ids: "array[int]", others: "array[int]", size: int) -> "Steps[int]":
    """How many ids both have; both ascending."""
    few, many = sorted((ids, others), key=len)
    count = 0
    for start in range(0, len(few), size):
        block = few[start : start + size]
        low, high = bisect_left(many, block[0]), bisect_right(many, block[-1])
        count += len(set(block).intersection(many[low:high]))
        yield
    return count
