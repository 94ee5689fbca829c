"""The auditor's index from bookies to the ledgers that name them. Pure.

Theory of operation
-------------------

To answer "which ledgers does this lost bookie leave short" without reading all metadata, the auditor keeps, per bookie,
the ids of the ledgers that name it, in compact arrays: about 8 bytes per ledger and member. The index stays right
cheaply, because the metadata of a CLOSED ledger change by repair only: a round lists all ids and reads the ledgers
that are new, those that were not CLOSED when last read, and those that repair has changed. Deleted ledgers drop out
because the listing lacks them.

A round is collected in a :class:`Round` and applied in one step at its end: a round that fails half-way changes
nothing. The order of candidates is part of planning (rule A5): ledgers with the fewest live copies first.
"""

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from itertools import groupby, pairwise

from octavo.metadata.model import LedgerMetadata
from octavo.protocol.ids import BookieId, LedgerId

_ITEM_BYTES = 8


@dataclass(frozen=True, slots=True)
class Seen:
    """What the census keeps of one ledger's metadata."""

    bookies: frozenset[BookieId]
    """Every bookie that a fragment names."""
    closed: bool
    spare_copies: int
    """Copies of an entry that may be lost without losing it: Qa - 1."""

    @classmethod
    def of(cls, metadata: LedgerMetadata) -> "Seen":
        """From a ledger's metadata."""
        return cls(metadata.members, metadata.is_closed, metadata.ack_quorum - 1)


@dataclass(slots=True)
class Round:
    """One round under way: which ids were listed, and what was read."""

    listed: "array[int]" = field(default_factory=lambda: array("Q"))
    read: dict[LedgerId, Seen] = field(default_factory=dict)

    def list(self, ledger_id: LedgerId) -> None:
        """The store lists the ledger. Ids come in ascending order."""
        assert not self.listed or self.listed[-1] < ledger_id, "ledgers are listed in ascending order"
        self.listed.append(ledger_id)


@dataclass(frozen=True, slots=True)
class Applied:
    """What a round has brought."""

    newly_closed: tuple[LedgerId, ...]
    """Ledgers that are CLOSED and were not, or were not known."""
    deleted: int


class Census:
    """See the module."""

    def __init__(self) -> None:
        self._ids: array[int] = array("Q")
        self._named: dict[BookieId, array[int]] = {}
        self._open: dict[LedgerId, Seen] = {}
        self._marked: set[LedgerId] = set()
        self.complete = False
        """Whether a round has been applied: before that, nothing follows from what is not in the census."""

    @property
    def ledgers(self) -> int:
        """How many ledgers there are."""
        return len(self._ids)

    @property
    def open_ledgers(self) -> Collection[LedgerId]:
        """Ledgers that were not CLOSED when last read."""
        return self._open.keys()

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
        """The next ``count`` ledgers that are CLOSED, from id ``first`` on; none after the last one."""
        at = bisect_left(self._ids, first)
        some = [LedgerId(one) for one in self._ids[at : at + count]]
        return [one for one in some if one not in self._open] or some[-1:]

    def apply(self, found: Round) -> Applied:
        """Take over a round that went to its end."""
        newly_closed = [
            ledger_id
            for ledger_id, seen in found.read.items()
            if seen.closed and (ledger_id in self._open or not _contains(self._ids, ledger_id))
        ]
        deleted = len(self._ids) - sum(1 for ledger_id in self._ids if _contains(found.listed, ledger_id))
        named: dict[BookieId, list[int]] = {}
        for ledger_id, seen in found.read.items():
            for name in seen.bookies:
                named.setdefault(name, []).append(ledger_id)
        for name in {*self._named, *named}:
            kept = self._named.get(name, array("Q"))
            if found.read or deleted:
                kept = array(
                    "Q",
                    [one for one in kept if one not in found.read and (not deleted or _contains(found.listed, one))],
                )
            kept = array("Q", merge(kept, sorted(named.get(name, ()))))
            if kept:
                self._named[name] = kept
            else:
                self._named.pop(name, None)
        self._ids = found.listed
        self._open = {
            ledger_id: seen
            for ledger_id, seen in {**self._open, **found.read}.items()
            if not seen.closed and _contains(self._ids, ledger_id)
        }
        self._marked -= found.read.keys()
        self.complete = True
        return Applied(tuple(sorted(newly_closed)), deleted)

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

    def candidates(self, ranks: Mapping[BookieId, int]) -> "array[int]":
        """Ledgers that name one of these bookies, in the order in which they are to be repaired: those with the fewest
        live copies first, that is, those that name the most bookies of rank 0; then by the lowest rank among those that
        they name; then by id (rule A5)."""
        buckets: dict[tuple[int, int], array[int]] = {}
        for ledger_id, count, rank in _grouped(self._named, ranks):
            buckets.setdefault((-count, rank), array("Q")).append(ledger_id)
        ordered = array("Q")
        for key in sorted(buckets):
            ordered.extend(buckets[key])
        return ordered

    def counts(self, unavailable: Collection[BookieId]) -> dict[BookieId, tuple[int, int]]:
        """For each bookie that is named: the number of ledgers that name it, and of those the number that also name
        another bookie which is unavailable."""
        thin: dict[BookieId, int] = {}
        if unavailable:
            names = sorted(unavailable)
            short = array("Q", (one for one, _, _ in _grouped(self._named, dict.fromkeys(names, 0))))
            for name, ids in self._named.items():
                others = (
                    short
                    if name not in unavailable
                    else array(
                        "Q",
                        (one for one, _, _ in _grouped(self._named, {other: 0 for other in names if other != name})),
                    )
                )
                thin[name] = sum(1 for one in ids if _contains(others, one)) if others else 0
        return {name: (len(ids), thin.get(name, 0)) for name, ids in self._named.items()}

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
