"""Where a streaming query stands: its offsets, and how they advance. Pure.

Theory of operation
===================

An offset says which entries have been read: for each ledger the *next* entry id. As ledgers come and go for ever, those
read to their end must leave it again, and yet never be read a second time. An offset therefore is::

    {"below": 12, "ledgers": {"7": 100, "11": 0}, "finished": {"9": 250}, "undecided": "3,10"}

* Ledgers from ``below`` on have not been looked at: they begin at entry 0.
* Ledgers below it are done with, unless they stand in ``ledgers`` (being read, with the next entry to read) or in
  ``undecided`` (ids that may still turn out to be selected: given to nobody that was seen, or of an open ledger that
  does not match, whose custom metadata may change). Of those, the first entry to read is 0.
* ``finished`` are ledgers whose end, which no one can change (rule I2), was reached by the very batch that ends at
  this offset, with their next entry: what that batch reads must follow from two offsets alone. The next offset drops
  them.

So its size is that of the ledgers being read and of the runs of undecided ids. What a batch reads is
:func:`batch_ranges` of its two offsets, whatever happened since.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from octavo.pipeline.planning import EntryRange
from octavo.pipeline.ranges import IdRanges
from octavo.protocol.errors import InvalidArgumentError

LOST = -1
"""In ``ledgers``: it was deleted before it had been read to its end, and the query goes on without it."""


@dataclass(frozen=True, slots=True)
class Tail:
    """How far a selected ledger can be read now."""

    next_entry: int
    """One above its readable end."""
    closed: bool
    entry_bytes: float
    """Mean payload of its entries."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """See the module."""

    below: int = 0
    ledgers: Mapping[int, int] = field(default_factory=dict)
    finished: Mapping[int, int] = field(default_factory=dict)
    undecided: IdRanges = field(default_factory=IdRanges)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The offsets that :meth:`to_json` gave. Raises :class:`InvalidArgumentError` for anything else."""
        try:
            return cls(
                int(value["below"]),
                {int(key): int(at) for key, at in value["ledgers"].items()},
                {int(key): int(at) for key, at in value["finished"].items()},
                IdRanges.parse(value["undecided"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidArgumentError(
                f"the checkpoint holds offsets of another source or version: {error!r}; start with a new checkpoint"
            ) from None

    def to_json(self) -> dict[str, Any]:
        """A value of text, integers and dictionaries, the same for the same offsets."""
        return {
            "below": self.below,
            "ledgers": {str(key): self.ledgers[key] for key in sorted(self.ledgers)},
            "finished": {str(key): self.finished[key] for key in sorted(self.finished)},
            "undecided": str(self.undecided),
        }

    def next_entry(self, ledger_id: int) -> int | None:
        """The first entry of the ledger that has not been read; None when the ledger is done with."""
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
    """What a look at the cluster found, of ledgers that :meth:`Offsets.next_entry` is not done with."""

    below: int
    """One above the highest ledger there is."""
    tails: Mapping[int, Tail]
    """Selected ledgers."""
    rejected: Sequence[int]
    """Ledgers that are not selected and never will be."""
    lost: Sequence[int]
    """Ledgers that were being read and are gone."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one batch may take; None: no limit."""

    entries: int | None = None
    payload_bytes: int | None = None


def advance(start: Offsets, seen: Sighting, scope: IdRanges, limits: Limits) -> Offsets:
    """The end of the batch that begins at ``start``; ``start`` itself when there is nothing to do.

    Ledgers that wait share the limits evenly, so that a busy one does not starve the others; at least one entry is
    taken if there is one.
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
    """How many entries to take of each ledger: ``waiting`` has, by ledger, their number and mean bytes."""
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
    """Fill up all evenly; what one does not need goes to the others. Who gets nothing is left out."""
    taken: dict[int, int] = {}
    left = sorted(wanted, key=lambda ledger_id: (wanted[ledger_id] * costs[ledger_id], ledger_id))
    for index, ledger_id in enumerate(left):
        # The last to be served may have what is left over, so that a budget of less than one each is not lost.
        part = budget / (len(left) - index)
        count = min(wanted[ledger_id], int(part // costs[ledger_id]))
        if count:
            taken[ledger_id] = count
            budget -= count * costs[ledger_id]
    return taken


def batch_ranges(start: Offsets, end: Offsets) -> list[EntryRange]:
    """What the batch between two offsets reads, in order of ledgers. A lost ledger stands for the one entry at which it
    was lost."""
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
    """Where a query begins that does not begin with every ledger's first entry: ``starting`` has the next entry of each
    ledger there is (in ``tails``)."""
    ledgers = {
        ledger_id: starting[ledger_id]
        for ledger_id, tail in tails.items()
        if not (tail.closed and starting[ledger_id] >= tail.next_entry)
    }
    undecided = scope.intersection(IdRanges.of([(0, below - 1)])).without(tails)
    return Offsets(below, ledgers, {}, undecided)
