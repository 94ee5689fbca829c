"""Placement: which bookies form an ensemble, and which one replaces a bookie that failed. Pure; chance comes in as an
argument.

Theory of operation
===================

*Candidates.* Writable bookies that the caller does not want avoided. What is registered is a hint (rule M2):
a bookie that turns out dead is replaced.

*Racks.* A bookie's rack is a path such as ``/dc1/rack2``. Every write set (Qw neighbours in the ring of slots)
spans as many racks as the bookies allow, and at least ``racks_min`` of them (or Qw, if that is less); where that cannot
be had, nothing is placed and the error says why. Among arrangements that span as many racks, bookies whose paths part
earlier are preferred: two data centres before two racks of one.

*Free space.* Bookies come in a random order in which one with twice the free space is twice as likely to be first,
within :data:`WEIGHT_RATIO_MAX` of the median; without a known free space the weight is that of the median. Everything
else equal, the first one is taken. With equal racks and weights every order of every subset is equally likely:
slot decides which bookie serves a stripe first, so a fixed order would load the first ones more.

*Search.* Slots are filled in order, each with a bookie of the rack that has least in common with those already in
the slot's write sets. A write set that can no longer span enough racks ends a branch. Two passes, each of at most
:data:`_STEPS_MAX` steps, the second using up large racks first; tests compare them with exhaustive search.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Protocol

from octavo.metadata.cluster.registration import BookieRegistration, BookieState
from octavo.protocol.errors import NotEnoughBookiesError
from octavo.protocol.ids import BookieId
from octavo.protocol.quorums import Quorums

WEIGHT_RATIO_MAX = 3.0
"""How many times as likely, or unlikely, as an ordinary one a bookie is chosen for its free space: an empty new bookie
among full ones must not take every ledger."""

_STEPS_MAX = 4000
"""Bound of one pass of the search; more than any ensemble of ten needs, and milliseconds."""

_NAMES_MAX = 8
"""Bookies named in an error before the rest are counted."""


class Chance(Protocol):
    """As much of :class:`random.Random` as placement needs."""

    def random(self) -> float:
        """Uniform in [0, 1)."""


def place_ensemble(
    bookies: Iterable[BookieRegistration],
    quorums: Quorums,
    *,
    rng: Chance,
    racks_min: int = 1,
    avoid: Collection[BookieId] = (),
) -> tuple[BookieId, ...]:
    """E distinct writable bookies, none of ``avoid``.

    The same ``rng`` state and the same bookies, in whatever order they come, give the same ensemble. Raises
    :class:`NotEnoughBookiesError` saying what is missing, and which bookies were left out for which reason.
    """
    return place_among(sort_out(bookies, avoid), quorums, rng=rng, racks_min=racks_min)


def place_among(sorted_out: "SortedOut", quorums: Quorums, *, rng: Chance, racks_min: int = 1) -> tuple[BookieId, ...]:
    """As :func:`place_ensemble`, for callers that place many ledgers on the same bookies."""
    size = quorums.ensemble_size
    if sorted_out.one_rack and racks_min <= 1 and len(sorted_out.usable) >= size:
        # Nothing to search for where all are in one rack: first come, first taken.
        usable = sorted_out.usable
        return tuple([usable[at].bookie_id for at in _order(sorted_out, rng)[:size]])
    candidates = _drawn(sorted_out, rng)
    if len(candidates.usable) < size:
        raise NotEnoughBookiesError(
            f"{size} writable bookies are needed, there are {len(candidates.usable)}{candidates.left_out()}; start "
            "more bookies or choose a smaller ensemble"
        )
    placed = _fill(candidates, quorums, [None] * size, racks_min)
    if placed is None:
        raise NotEnoughBookiesError(
            f"the {quorums.write_quorum} copies of an entry must span {min(racks_min, quorums.write_quorum)} racks, "
            f"and the writable bookies are {candidates.by_rack()}{candidates.left_out()}; start bookies in other racks "
            "or ask for fewer racks"
        )
    return tuple(placed[position] for position in range(size))


def place_replacements(
    bookies: Iterable[BookieRegistration],
    quorums: Quorums,
    ensemble: Sequence[BookieId],
    positions: Collection[int],
    *,
    rng: Chance,
    racks_min: int = 1,
    avoid: Collection[BookieId] = (),
    racks: Mapping[BookieId, str] | None = None,
) -> dict[int, BookieId]:
    """New bookies for ``positions`` of ``ensemble``, by slot: for all of them, or for as many as can be had.

    A new bookie is writable, none of ``avoid`` and none of the ensemble (a bookie being replaced does not come back in
    the same change), and every write set that it enters spans its racks. ``racks`` tells the racks of members that are
    not registered any more; a member of unknown rack counts for none. Raises :class:`NotEnoughBookiesError`, saying
    why, if no slot at all can be given another bookie.
    """
    known = list(bookies)
    candidates = _drawn(sort_out(known, avoid, members=ensemble), rng)
    rack_of = {**(racks or {}), **{bookie.bookie_id: bookie.rack for bookie in known}}
    fixed: list[str | None] = [rack_of.get(bookie_id, "") for bookie_id in ensemble]
    wanted = sorted(positions)
    whole = _fill(candidates, quorums, [None if at in wanted else fixed[at] for at in range(len(fixed))], racks_min)
    if whole is not None:
        return whole
    # Some are better than none: the others stay as they are until a spare comes.
    placed: dict[int, BookieId] = {}
    for position in wanted:
        one = _fill(candidates, quorums, [*fixed[:position], None, *fixed[position + 1 :]], racks_min)
        if one is not None:
            placed |= one
            fixed[position] = rack_of[one[position]]
            candidates = candidates.without(one[position])
    if not placed:
        names = _named(ensemble[position] for position in wanted)
        raise NotEnoughBookiesError(
            f"no bookie is available to replace {names}: {candidates.why_none(racks_min, quorums)}"
        )
    return placed


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The bookies that can be taken, in random order, and why the others cannot."""

    usable: tuple[BookieRegistration, ...]
    read_only: tuple[BookieId, ...]
    avoided: tuple[BookieId, ...]

    def without(self, bookie_id: BookieId) -> "_Candidates":
        """The same but for one that has been taken."""
        return replace(self, usable=tuple(bookie for bookie in self.usable if bookie.bookie_id != bookie_id))

    def left_out(self) -> str:
        """The registered bookies that cannot be taken, in brackets."""
        reasons = [
            f"{what}: {_named(names)}"
            for what, names in (("read-only", self.read_only), ("not to be used", self.avoided))
            if names
        ]
        return f" ({'; '.join(reasons)})" if reasons else ""

    def by_rack(self) -> str:
        """How many are in which rack, in words."""
        counts = Counter(one.rack for one in self.usable).most_common()
        listed = ", ".join(f"{count} in {rack}" for rack, count in counts[:_NAMES_MAX])
        more = f" and others in {len(counts) - _NAMES_MAX} racks" if len(counts) > _NAMES_MAX else ""
        return listed + more

    def why_none(self, racks_min: int, quorums: Quorums) -> str:
        """Why no replacement could be found."""
        if not self.usable:
            return f"no other writable bookie is there{self.left_out()}; start more bookies"
        return (
            f"the {quorums.write_quorum} copies of an entry must span {min(racks_min, quorums.write_quorum)} racks, "
            f"and the other writable bookies are {self.by_rack()}{self.left_out()}; start bookies in other racks"
        )


@dataclass(frozen=True, slots=True)
class SortedOut:
    """The bookies that can be taken, before the draw, and how likely; and why the others cannot."""

    usable: tuple[BookieRegistration, ...]
    weights: tuple[float, ...]
    one_rack: bool
    """Whether all of them are in one rack."""
    read_only: tuple[BookieId, ...]
    avoided: tuple[BookieId, ...]


def sort_out(
    bookies: Iterable[BookieRegistration], avoid: Collection[BookieId], *, members: Collection[BookieId] = ()
) -> SortedOut:
    """The bookies that can be taken: writable, none of ``avoid``, none of ``members``."""
    known = sorted(bookies, key=lambda bookie: bookie.bookie_id)
    others = [bookie for bookie in known if bookie.bookie_id not in members]
    writable = [bookie for bookie in others if bookie.state is BookieState.WRITABLE]
    usable = [bookie for bookie in writable if bookie.bookie_id not in avoid]
    return SortedOut(
        usable=tuple(usable),
        weights=tuple(_weights([bookie.free_bytes for bookie in usable])),
        one_rack=len({bookie.rack for bookie in usable}) == 1,
        read_only=tuple(bookie.bookie_id for bookie in others if bookie.state is not BookieState.WRITABLE),
        avoided=tuple(bookie.bookie_id for bookie in writable if bookie.bookie_id in avoid),
    )


def _drawn(sorted_out: SortedOut, rng: Chance) -> _Candidates:
    usable = tuple([sorted_out.usable[at] for at in _order(sorted_out, rng)])
    return _Candidates(usable, sorted_out.read_only, sorted_out.avoided)


def _order(sorted_out: SortedOut, rng: Chance) -> list[int]:
    # Exponential clocks: the first to ring is drawn in proportion to the weights, then the second, and so on.
    clocks = [-log(1.0 - rng.random()) / weight for weight in sorted_out.weights]
    return sorted(range(len(clocks)), key=clocks.__getitem__)


def _weights(free_bytes: Sequence[int | None]) -> list[float]:
    known = sorted(free for free in free_bytes if free is not None)
    middle = known[len(known) // 2] if known else 0
    if not middle:
        return [1.0] * len(free_bytes)
    return [
        1.0 if free is None else min(max(free / middle, 1 / WEIGHT_RATIO_MAX), WEIGHT_RATIO_MAX) for free in free_bytes
    ]


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _NAMES_MAX} more" if len(listed) > _NAMES_MAX else ""
    return ", ".join(listed[:_NAMES_MAX]) + more


# --- the search ---------------------------------------------------------------------------------------------------


def _fill(
    candidates: _Candidates, quorums: Quorums, racks: Sequence[str | None], racks_min: int
) -> dict[int, BookieId] | None:
    """Bookies for the slots that are None in ``racks`` (the others hold their rack, "" if it is unknown), so that
    their write sets span as many racks as can be, ``racks_min`` at least; None if that cannot be."""
    supply = Counter(one.rack for one in candidates.usable)
    holes = sum(rack is None for rack in racks)
    if sum(supply.values()) < holes:
        return None
    spread_max = min(quorums.write_quorum, len({*supply, *filter(None, racks)}))
    for spread in range(spread_max, min(racks_min, quorums.write_quorum) - 1, -1):
        if not _could_span(quorums, supply + Counter(filter(None, racks)), spread):
            continue
        arranged = _Search(quorums, racks, supply, spread, [one.rack for one in candidates.usable]).run()
        if arranged is not None:
            queues = {rack: [one.bookie_id for one in candidates.usable if one.rack == rack] for rack in supply}
            return {
                position: queues[rack].pop(0)
                for position, (rack, before) in enumerate(zip(arranged, racks, strict=True))
                if before is None
            }
    return None


def _could_span(quorums: Quorums, supply: Counter[str], spread: int) -> bool:
    """A necessary condition, cheap to check: whichever ``spread - 1`` racks one looks at, every write set needs a
    bookie outside of them, and one bookie is in Qw write sets of E."""
    outside = sum(supply.values()) - sum(count for _, count in supply.most_common(spread - 1))
    return outside * quorums.write_quorum >= quorums.ensemble_size


class _Search:
    """One search for racks, slot by slot. ``order``: racks of the candidates, first come first."""

    def __init__(
        self,
        quorums: Quorums,
        racks: Sequence[str | None],
        supply: Mapping[str, int],
        spread: int,
        order: Sequence[str],
    ) -> None:
        size = quorums.ensemble_size
        self._racks = list(racks)
        self._holes = [position for position, rack in enumerate(racks) if rack is None]
        self._supply = dict(supply)
        self._spread = spread
        self._rank = {rack: at for at, rack in reversed(list(enumerate(order)))}
        sets = {quorums.write_set(residue) for residue in range(size)}
        if not quorums.striped:
            sets = {tuple(range(size))}
        self._sets_of = [[members for members in sets if position in members] for position in range(size)]
        # How many write sets two slots share: what they have in common counts that often.
        self._shared = [Counter(other for members in of for other in members) for of in self._sets_of]
        self._steps = 0

    def run(self) -> list[str] | None:
        """A rack for every slot; None if none was found."""
        for by_supply in (False, True):
            self._steps = _STEPS_MAX
            if self._place(0, by_supply=by_supply):
                return [rack or "" for rack in self._racks]
        return None

    def _place(self, at: int, *, by_supply: bool) -> bool:
        if at == len(self._holes):
            return True
        position = self._holes[at]
        for rack in self._preferred(position, by_supply=by_supply):
            self._steps -= 1
            if self._steps < 0:
                return False
            self._racks[position] = rack
            self._supply[rack] -= 1
            if self._can_still_span(position) and self._place(at + 1, by_supply=by_supply):
                return True
            self._supply[rack] += 1
            self._racks[position] = None
        return False

    def _can_still_span(self, position: int) -> bool:
        for members in self._sets_of[position]:
            racks = [self._racks[member] for member in members]
            if len({rack for rack in racks if rack}) + racks.count(None) < self._spread:
                return False
        return True

    def _preferred(self, position: int, *, by_supply: bool) -> list[str]:
        """Racks that have a bookie left, the one that has least in common with the slot's neighbours first."""
        neighbours = [
            (rack.split("/"), times)
            for other, times in self._shared[position].items()
            if other != position and (rack := self._racks[other])
        ]

        def order(rack: str) -> tuple[tuple[int, ...], int, int]:
            supply_first = -self._supply[rack] if by_supply else 0
            return _in_common(rack.split("/"), neighbours), supply_first, self._rank[rack]

        return sorted((rack for rack, left in self._supply.items() if left), key=order)


def _in_common(path: Sequence[str], neighbours: Iterable[tuple[Sequence[str], int]]) -> tuple[int, ...]:
    """How much of this rack's path the neighbours share: how many are in the very rack, how many share all but its last
    step, and so on up to the first. Lower is farther apart."""
    counts = [0] * len(path)
    for other, times in neighbours:
        shared = 0
        for ours, theirs in zip(path, other, strict=False):
            if ours != theirs:
                break
            shared += 1
        if shared == len(path) < len(other):
            shared -= 1  # a rack inside of this one is another rack
        for steps in range(2, shared + 1):  # the empty text before the first slash is common to all
            counts[len(path) - steps] += times
    return tuple(counts)
