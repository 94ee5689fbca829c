"""Which copies move from full bookies to empty ones (rules A14 and A15). Pure, and without chance.

Theory of operation
-------------------

Every bookie that takes part has a *capacity*, and *holds* some bytes: those of the settled ranges that name it, by the
metadata. Both are the same for every auditor, and a move changes them at once, although the old copies stay on the
source's disk for a day (rule C8). The *mean* is what all of them hold by what all of them can hold; the *share* of a
bookie is the mean times its capacity. So a disk twice as large gets twice as much.

:meth:`Balance.next_move` gives one move at a time, or none:

=========  ============================================================================================================
source     holds more than its share; the fullest one, by share, first
target     holds less than its share; the emptiest one first
either     lies outside of the band: further from its share than the tolerance allows. Otherwise nothing moves
ledger     one that the source can give up (:class:`Movable`), that does not name the target in any fragment, whose
           write sets span as many racks and hosts afterwards as before; the largest that fits
fits       neither the source falls below its share by more than the tolerance, nor does the target rise above its own
           by more, and both together lie nearer to their shares afterwards
=========  ============================================================================================================

It converges: with each move the sum of squared distances from the shares falls (:meth:`Balance.gain`), and a bookie
that was a source does not become a target, because within the band it is neither. So no copy moves back, also when
figures differ a little from one look to the next.

What is moved is a whole ledger, all of its ranges that name the source: a bookie gives nothing of a ledger back before
the metadata do not name it anywhere in it, and the ledger is CLOSED (rule C8). For the same reason a stream moves only
once it is closed.
"""

import operator
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Final

from octavo.client.choose.locations import UNKNOWN, Location
from octavo.metadata.ledger.stored import SettledRange, StoredLedger
from octavo.protocol.entries import SEALED_BYTES_MIN
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.quorums import Quorums

TOLERANCE: Final = 0.05
"""By how much of its share a bookie may hold more or less than that: nearer is not worth the copies."""

CLASS_MAX: Final = 256
"""Ledgers that are kept of one source and one size class: a class is a factor of two. So the memory is bounded, and
some of every size are known."""


@dataclass(frozen=True, slots=True)
class Slots:
    """One ensemble of a ledger."""

    quorums: Quorums
    bookies: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class Movable:
    """A ledger that a bookie can give up."""

    ledger_id: LedgerId
    bytes: Mapping[BookieId, int]
    """What each member holds of it."""
    ensembles: tuple[Slots, ...]
    """All of them, each once."""


@dataclass(frozen=True, slots=True)
class Move:
    """A bookie takes another one's place in a ledger."""

    ledger_id: LedgerId
    source: BookieId
    target: BookieId
    bytes: int


def bytes_of_members(metadata: StoredLedger) -> dict[BookieId, int]:
    """The bytes that each bookie holds of the settled ranges of a ledger, or of a part of a stream, sealed, about: of a
    range that is striped, a member holds its part."""
    held: dict[BookieId, int] = {}
    for settled in metadata.settled_ranges():
        quorums = metadata.quorums_at(settled.first)
        length_before = metadata.fragment_of(EntryId(settled.first)).length_before
        size = max(settled.length_after - length_before, 0) + SEALED_BYTES_MIN * _entries(settled)
        for name in settled.bookies:
            held[name] = held.get(name, 0) + size * quorums.write_quorum // quorums.ensemble_size
    return held


def _entries(settled: SettledRange) -> int:
    return settled.last - settled.first + 1


def keeps_apart(slots: Slots, old: BookieId, new: BookieId, locations: Mapping[BookieId, Location]) -> bool:
    """Whether the write sets that ``new`` enters in place of ``old`` span as many hosts afterwards, and as many racks,
    data centres and other parts of their paths. False where the location of a member is not known."""
    if old not in slots.bookies:
        return True
    after = tuple(new if name == old else name for name in slots.bookies)
    where = {name: locations.get(name, UNKNOWN) for name in (*slots.bookies, new)}
    if UNKNOWN in where.values() or len(set(after)) < len(after):
        return False
    position = slots.bookies.index(old)
    for residue in range(slots.quorums.ensemble_size):
        write_set = slots.quorums.write_set(residue)
        if position in write_set:
            old_spans = _spans([where[slots.bookies[at]] for at in write_set])
            new_spans = _spans([where[after[at]] for at in write_set])
            if any(map(operator.lt, new_spans, old_spans)):
                return False
    return True


_RACK_PARTS_MAX: Final = 8


def _spans(locations: Sequence[Location]) -> tuple[int, ...]:
    """How many hosts there are, and how many different beginnings of rack paths, by their number of parts."""
    paths = [one.rack.split("/") for one in locations]
    beginnings = (len({tuple(path[: parts + 1]) for path in paths}) for parts in range(1, _RACK_PARTS_MAX + 1))
    return len({one.host for one in locations}), *beginnings


class Movables:
    """The ledgers that sources can give up, by source and size. Filled while all ledgers are looked at."""

    def __init__(self) -> None:
        self._classes: dict[tuple[BookieId, int], list[Movable]] = {}
        self._sorted: dict[BookieId, list[Movable]] | None = None
        self.left_out = 0
        """Ledgers for which there was no room: another look finds them, once these have moved."""

    def add(self, movable: Movable) -> None:
        """A ledger may be moved off any of its members."""
        self._sorted = None
        for source, size in movable.bytes.items():
            if size:
                known = self._classes.setdefault((source, size.bit_length()), [])
                if len(known) < CLASS_MAX:
                    known.append(movable)
                else:
                    self.left_out += 1

    def of(self, source: BookieId) -> list[Movable]:
        """Those of a source, by size, the smallest first."""
        if self._sorted is None:
            self._sorted = {}
            for (name, _), some in sorted(self._classes.items()):
                self._sorted.setdefault(name, []).extend(some)
            for name, all_of_it in self._sorted.items():
                all_of_it.sort(key=lambda one: (one.bytes[name], -one.ledger_id))
        return self._sorted.get(source, [])


@dataclass(slots=True)
class Balance:
    """The bookies that take part, and what they hold. ``held`` is changed by moves."""

    capacities: Mapping[BookieId, int]
    """Bytes that each of them has for entries, used or free; above 0."""
    held: dict[BookieId, int]
    tolerance: float = TOLERANCE
    moved: dict[LedgerId, Move] = field(default_factory=dict)
    """The moves that were begun: a ledger has one at a time, and not another one in the same balance."""

    @property
    def mean(self) -> float:
        """The bytes that all bookies hold, by the bytes that they can hold."""
        capacity = sum(self.capacities.values())
        return sum(self._held(name) for name in self.capacities) / capacity if capacity else 0.0

    def fill(self, name: BookieId) -> float:
        """The bytes that a bookie holds, by the bytes that it can hold."""
        return self._held(name) / self.capacities[name]

    def excess(self, name: BookieId) -> float:
        """Bytes that a bookie holds above its share; below 0 if it holds less."""
        return self._held(name) - self.mean * self.capacities[name]

    def slack(self, name: BookieId) -> float:
        """Bytes by which a bookie may be away from its share."""
        return self.tolerance * self.mean * self.capacities[name]

    @property
    def deviation(self) -> float:
        """How far the bookie furthest from its share is away, as a part of that share."""
        mean = self.mean
        return max((abs(self.fill(name) / mean - 1) for name in self.capacities), default=0.0) if mean else 0.0

    @property
    def is_even(self) -> bool:
        """Whether every bookie lies in the band."""
        return all(abs(self.excess(name)) <= self.slack(name) for name in self.capacities)

    def gain(self, source: BookieId, target: BookieId, size: int) -> float:
        """By how much the sum of squared distances from the shares falls, each by capacity; above 0 for a move that
        makes the cluster more even."""
        return size * (
            (2 * self.excess(source) - size) / self.capacities[source]
            + (-2 * self.excess(target) - size) / self.capacities[target]
        )

    def next_move(
        self,
        movables: Movables,
        locations: Mapping[BookieId, Location],
        *,
        no_sources: Collection[BookieId] = (),
        no_targets: Collection[BookieId] = (),
        leave: Collection[LedgerId] = (),
    ) -> Move | None:
        """The move to be begun next; None: there is none. Not off ``no_sources``, onto ``no_targets`` or of the ledgers
        ``leave``. The caller makes it by :meth:`begin`."""
        ordered = sorted(self.capacities, key=lambda name: (self.fill(name), name))
        for source in reversed(ordered):
            if self.excess(source) <= 0 or source in no_sources:
                continue
            for target in ordered:
                if self.excess(target) >= 0:
                    break
                outside = self.excess(source) > self.slack(source) or -self.excess(target) > self.slack(target)
                if target not in no_targets and outside:
                    move = self._largest(source, target, movables.of(source), locations, leave)
                    if move is not None:
                        return move
        return None

    def _largest(
        self,
        source: BookieId,
        target: BookieId,
        movables: Sequence[Movable],
        locations: Mapping[BookieId, Location],
        leave: Collection[LedgerId],
    ) -> Move | None:
        limit = min(self.excess(source) + self.slack(source), self.slack(target) - self.excess(target))
        stop = bisect_right(movables, limit, key=lambda one: one.bytes[source])
        for at in range(stop - 1, -1, -1):
            one = movables[at]
            if one.ledger_id in self.moved or one.ledger_id in leave or target in one.bytes:
                continue
            if self.gain(source, target, one.bytes[source]) > 0 and all(
                keeps_apart(slots, source, target, locations) for slots in one.ensembles
            ):
                return Move(one.ledger_id, source, target, one.bytes[source])
        return None

    def begin(self, move: Move) -> None:
        """The move is under way: it counts as made."""
        self.moved[move.ledger_id] = move
        self._carry(move, 1)

    def take_back(self, ledger_id: LedgerId) -> None:
        """The move of this ledger was not made, and is not tried again in this balance."""
        move = self.moved[ledger_id]
        self._carry(move, -1)
        self.moved[ledger_id] = Move(move.ledger_id, move.source, move.target, 0)

    def _carry(self, move: Move, sign: int) -> None:
        self.held[move.source] = self._held(move.source) - sign * move.bytes
        self.held[move.target] = self._held(move.target) + sign * move.bytes

    def _held(self, name: BookieId) -> int:
        return self.held.get(name, 0)


def ensembles_of(parts: Iterable[StoredLedger]) -> tuple[Slots, ...]:
    """All ensembles of settled ranges, each once."""
    found: dict[Slots, None] = {}
    for part in parts:
        for settled in part.settled_ranges():
            found[Slots(part.quorums_at(settled.first), settled.bookies)] = None
    return tuple(found)
