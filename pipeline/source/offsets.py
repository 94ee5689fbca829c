"""The offsets of a streaming query, and how they advance. Pure.

Theory of operation
===================

An offset says which entries have been read: for each ledger the *next* entry id. As new ledgers keep coming, a ledger
that has been read to its end must be removed from the offset, and yet never be read again. An offset therefore is::

    {"below": 12, "ledgers": {"7": 100, "11": 0}, "finished": {"9": 250}, "undecided": "3,10"}

* Ledgers from ``below`` on have not been examined; their first entry to read is 0.
* Ledgers below it are done, unless they are in ``ledgers`` (being read, with the next entry to read) or in
  ``undecided`` (ids that may be selected later: an id without a ledger, or an open ledger that does not match, whose
  custom metadata may change). For undecided ids the first entry to read is 0.
* ``finished`` are ledgers whose end, which never changes (rule I2), was reached by the batch that ends at this offset,
  with their next entry. They are needed because a batch must follow from its two offsets alone. The next offset drops
  them.

The size of an offset is that of the ledgers being read and of the runs of undecided ids. A batch reads
:func:`batch_ranges` of its two offsets, whatever has happened since.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from octavo.pipeline.base.planning import EntryRange
from octavo.pipeline.base.ranges import IdRanges
from octavo.protocol.errors import InvalidArgumentError

LOST = -1
"""In ``ledgers``: the ledger was deleted before it was read to its end; the query continues without it."""


@dataclass(frozen=True, slots=True)
class Tail:
    """How far a selected ledger can be read now."""

    next_entry: int
    """The last readable entry id plus one."""
    closed: bool
    entry_bytes: float
    """Mean payload size of its entries."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """The offset of a query."""

    below: int = 0
    ledgers: Mapping[int, int] = field(default_factory=dict)
    finished: Mapping[int, int] = field(default_factory=dict)
    undecided: IdRanges = field(default_factory=IdRanges)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The offsets that :meth:`to_json` wrote. Raises :class:`InvalidArgumentError` for anything else."""
        try:
            return cls(
                int(value["below"]),
                {int(key): int(at) for key, at in value["ledgers"].items()},
                {int(key): int(at) for key, at in value["finished"].items()},
                IdRanges.parse(value["undecided"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidArgumentError(
                f"the checkpoint holds offsets of another source or version ({error!r}); use a new checkpoint location"
            ) from None

    def to_json(self) -> dict[str, Any]:
        """The offsets as plain values, the same for equal offsets."""
        return {
            "below": self.below,
            "ledgers": {str(key): self.ledgers[key] for key in sorted(self.ledgers)},
            "finished": {str(key): self.finished[key] for key in sorted(self.finished)},
            "undecided": str(self.undecided),
        }

    def next_entry(self, ledger_id: int) -> int | None:
        """The first unread entry of the ledger; None if the ledger is done."""
        if ledger_id in self.ledgers:
            at = self.ledgers[ledger_id]
            return None if at == LOST else at
        if ledger_id >= self.below or ledger_id in self.undecided:
            return 0
        return None

    def check_invariants(self) -> None:
        """Assert what always holds."""
        assert all(0 <= ledger_id < self.below for ledger_id in (*self.ledgers, *self.finished))
        assert not any(i in self.undecided for i in (*self.ledgers, *self.finished))
        assert not set(self.ledgers) & set(self.finished)
        assert not self.undecided or self.undecided.runs[-1][1] < self.below
        assert all(at >= LOST for at in self.ledgers.values())


@dataclass(frozen=True, slots=True)
class Sighting:
    """The state of the cluster as inspected, limited to ledgers that are not done."""

    below: int
    """The highest existing ledger id plus one."""
    tails: Mapping[int, Tail]
    """Selected ledgers."""
    rejected: Sequence[int]
    """Ledgers that are not selected and never will be."""
    lost: Sequence[int]
    """Ledgers that were being read and have been deleted."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one batch; None: no limit."""

    entries: int | None = None
    payload_bytes: int | None = None


def advance(start: Offsets, seen: Sighting, scope: IdRanges, limits: Limits) -> Offsets:
    """The end of the batch that begins at ``start``; ``start`` itself if there is nothing to read.

    Ledgers with unread entries share the limits evenly, so that a busy ledger does not starve the others. At least one
    entry is taken if there is one.
    """
    waiting = {
        ledger_id: (tail.next_entry - (start.next_entry(ledger_id) or 0), tail.entry_bytes)
        for ledger_id, tail in seen.tails.items()
        if tail.next_entry > (start.next_entry(ledger_id) or 0)
    }
    taken = share(waiting, limits)
    ledgers: dict[int, int] = {}
    finished: dict[int, int] = {}
    ended = False
    for ledger_id, tail in seen.tails.items():
        at = (start.next_entry(ledger_id) or 0) + taken.get(ledger_id, 0)
        if not (tail.closed and at >= tail.next_entry):
            ledgers[ledger_id] = at
        else:
            ended = ended or ledger_id in start.ledgers
            if taken.get(ledger_id):
                finished[ledger_id] = at
    ledgers.update(dict.fromkeys(seen.lost, LOST))
    if not taken and not seen.lost and not ended:
        return start
    below = max(start.below, seen.below)
    fresh = scope.intersection(IdRanges.of([(start.below, below - 1)]))
    undecided = start.undecided.union(fresh).without((*seen.tails, *seen.rejected))
    result = Offsets(below, ledgers, finished, undecided)
    result.check_invariants()
    return result


def share(waiting: Mapping[int, tuple[int, float]], limits: Limits) -> dict[int, int]:
    """Number of entries to take of each ledger. ``waiting``: ledger -> number of unread entries, mean bytes of one."""
    wanted = {ledger_id: count for ledger_id, (count, _) in waiting.items()}
    if limits.entries is not None:
        wanted = _even(wanted, dict.fromkeys(wanted, 1.0), limits.entries)
    if limits.payload_bytes is not None:
        costs = {ledger_id: max(1.0, waiting[ledger_id][1]) for ledger_id in wanted}
        wanted = _even(wanted, costs, limits.payload_bytes)
    if waiting and not wanted:
        wanted = {min(waiting): 1}
    return wanted


def _even(wanted: Mapping[int, int], costs: Mapping[int, float], budget: float) -> dict[int, int]:
    """Share the budget evenly; what one ledger does not need goes to the others. Ledgers without a share are left
    out."""
    taken: dict[int, int] = {}
    left = sorted(wanted, key=lambda ledger_id: (wanted[ledger_id] * costs[ledger_id], ledger_id))
    for index, ledger_id in enumerate(left):
        # The last ledger gets the remainder, so that a budget below one entry for each ledger is used.
        part = budget / (len(left) - index)
        count = min(wanted[ledger_id], int(part // costs[ledger_id]))
        if count:
            taken[ledger_id] = count
            budget -= count * costs[ledger_id]
    return taken


def batch_ranges(start: Offsets, end: Offsets) -> list[EntryRange]:
    """The entries that the batch between two offsets reads, in order of ledgers. A lost ledger contributes the one
    entry at which it was lost."""
    ranges = []
    for ledger_id, at in sorted((*end.ledgers.items(), *end.finished.items())):
        first = start.next_entry(ledger_id)
        if first is None:
            continue
        if at == LOST:
            ranges.append(EntryRange(ledger_id, first, first))
        elif at > first:
            ranges.append(EntryRange(ledger_id, first, at - 1))
    return ranges


def initial_offsets(tails: Mapping[int, Tail], starting: "Mapping[int, int]", below: int, scope: IdRanges) -> Offsets:
    """The first offset of a query that does not start at every ledger's first entry. ``starting``: existing ledger (a
    key of ``tails``) -> first entry to read."""
    ledgers = {
        ledger_id: starting[ledger_id]
        for ledger_id, tail in tails.items()
        if not (tail.closed and starting[ledger_id] >= tail.next_entry)
    }
    undecided = scope.intersection(IdRanges.of([(0, below - 1)])).without(tails)
    return Offsets(below, ledgers, {}, undecided)
