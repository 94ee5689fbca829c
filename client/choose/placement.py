"""Placement: which bookies form an ensemble, and which one replaces a bookie that failed. Pure; chance comes in as an
argument.

Theory of operation
===================

*Candidates.* Writable bookies that the caller does not want avoided. What is registered is a hint (rule M2):
a bookie that turns out dead is replaced.

*Racks and hosts.* A bookie's rack is a path such as ``/dc1/rack2``; its host is the machine that runs it, and perhaps
others. Every write set (Qw neighbours in the ring of slots) spans as many racks as the bookies allow, and then as many
hosts, at least those of ``least`` (or Qw, if that is less); where that cannot be had, nothing is placed and the error
says why. Among arrangements that span as many racks, bookies whose paths part earlier are preferred: two data centres
before two racks of one. No write set is on one host if that can be avoided (:mod:`octavo.client.choose.arrangement`).

*Free space.* Bookies come in a random order in which one with twice the free space is twice as likely to be first,
within :data:`WEIGHT_RATIO_MAX` of the median; without a known free space the weight is that of the median. Everything
else equal, the first one is taken. With equal racks and weights, and one bookie a host, every order of every subset is
equally likely: slot decides which bookie serves a stripe first, so a fixed order would load the first ones more.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import log
from types import MappingProxyType
from typing import Final, Literal, Protocol

from octavo.client.choose.arrangement import ANYWHERE, Spread, arrange
from octavo.client.choose.locations import UNKNOWN, Location, has_own_host, location_of
from octavo.metadata.cluster.registration import BookieRegistration, BookieState
from octavo.protocol.errors import NotEnoughBookiesError
from octavo.protocol.ids import BookieId
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.quorums import Quorums

WEIGHT_RATIO_MAX = 3.0
"""How many times as likely, or unlikely, as an ordinary one a bookie is chosen for its free space: an empty new bookie
among full ones must not take every ledger."""

_NAMES_MAX = 8
"""Bookies, racks or hosts named in an error before the rest are counted."""

NO_LOCATIONS: Final[Mapping[BookieId, Location]] = MappingProxyType({})


class Chance(Protocol):
    """As much of :class:`random.Random` as placement needs."""

    def random(self) -> float:
        """Uniform in [0, 1)."""


def place_ensemble(
    bookies: Iterable[BookieRegistration],
    quorums: Quorums,
    *,
    rng: Chance,
    least: Spread = ANYWHERE,
    avoid: Collection[BookieId] = (),
) -> tuple[BookieId, ...]:
    """E distinct writable bookies, none of ``avoid``; each write set spans ``least`` at least.

    The same ``rng`` state and the same bookies, in whatever order they come, give the same ensemble. Raises
    :class:`NotEnoughBookiesError` saying what is missing, and which bookies were left out for which reason.
    """
    return place_among(sort_out(bookies, avoid), quorums, rng=rng, least=least)


def place_among(
    sorted_out: "SortedOut", quorums: Quorums, *, rng: Chance, least: Spread = ANYWHERE
) -> tuple[BookieId, ...]:
    """As :func:`place_ensemble`, for callers that place many ledgers on the same bookies."""
    size = quorums.ensemble_size
    if sorted_out.one_rack and least.racks <= 1 and len(sorted_out.usable) >= size:
        first = _first_come(sorted_out, size, rng, hosts_min=least.hosts)
        if first is not None:
            return first
    candidates = _drawn(sorted_out, rng)
    if len(candidates.usable) < size:
        raise NotEnoughBookiesError(
            f"{size} writable bookies are needed, there are {len(candidates.usable)}{candidates.left_out()}; start "
            "more bookies or choose a smaller ensemble"
        )
    placed = _fill(candidates, quorums, [None] * size, least)
    if placed is None:
        what = _what_is_missing(candidates, quorums, [None] * size, least)
        raise NotEnoughBookiesError(
            f"{candidates.not_spread(what, quorums, least, 'writable bookies')} or ask for fewer {what}"
        )
    return tuple(placed[position] for position in range(size))


def place_replacements(
    bookies: Iterable[BookieRegistration],
    quorums: Quorums,
    ensemble: Sequence[BookieId],
    positions: Collection[int],
    *,
    rng: Chance,
    least: Spread = ANYWHERE,
    avoid: Collection[BookieId] = (),
    locations: Mapping[BookieId, Location] = NO_LOCATIONS,
) -> dict[int, BookieId]:
    """New bookies for ``positions`` of ``ensemble``, by slot: for all of them, or for as many as can be had.

    A new bookie is writable, none of ``avoid`` and none of the ensemble (a bookie being replaced does not come back in
    the same change), and every write set that it enters spans its racks and hosts. ``locations`` tells where members
    are that are not registered any more; a member of unknown location counts for none. Raises
    :class:`NotEnoughBookiesError`, saying why, if no slot at all can be given another bookie.
    """
    known = list(bookies)
    candidates = _drawn(sort_out(known, avoid, members=ensemble), rng)
    where = {**locations, **{bookie.bookie_id: location_of(bookie) for bookie in known}}
    fixed: list[Location | None] = [where.get(bookie_id, UNKNOWN) for bookie_id in ensemble]
    wanted = sorted(positions)
    slots = [None if at in wanted else fixed[at] for at in range(len(fixed))]
    whole = _fill(candidates, quorums, slots, least)
    if whole is not None:
        return whole
    # Some are better than none: the others stay as they are until a spare comes.
    placed: dict[int, BookieId] = {}
    for position in wanted:
        slots = [*fixed[:position], None, *fixed[position + 1 :]]
        one = _fill(candidates, quorums, slots, least)
        if one is not None:
            placed |= one
            fixed[position] = where[one[position]]
            candidates = candidates.without(one[position])
    if not placed:
        names = _named(ensemble[position] for position in wanted)
        what = _what_is_missing(candidates, quorums, slots, least)
        raise NotEnoughBookiesError(
            f"no bookie is available to replace {names}: {candidates.why_none(what, quorums, least)}"
        )
    return placed


def keep_spread(
    quorums: Quorums,
    ensemble: Sequence[BookieId],
    replacements: Mapping[int, BookieId],
    locations: Mapping[BookieId, Location],
    least: Spread,
) -> dict[int, BookieId]:
    """Those of ``replacements`` that can be made while the other members of ``ensemble`` stay.

    Replacements are placed together, and then not all of them are made: one cannot be reached, or a member is back. A
    write set that one of them enters must span ``least`` even so: the bookie that takes one slot may be on the host
    of the member that was to leave another slot.
    """

    def spans(made: Mapping[int, BookieId]) -> bool:
        members = [locations.get(made.get(at, name), UNKNOWN) for at, name in enumerate(ensemble)]
        for residue in range(quorums.ensemble_size):
            positions = quorums.write_set(residue)
            if made.keys().isdisjoint(positions):
                continue
            racks = {members[at].rack for at in positions} - {UNKNOWN.rack}
            hosts = {members[at].host for at in positions} - {UNKNOWN.host}
            enough = quorums.write_quorum
            if len(racks) < min(least.racks, enough) or len(hosts) < min(least.hosts, enough):
                return False
        return True

    if least == ANYWHERE or spans(replacements):
        return dict(replacements)
    made: dict[int, BookieId] = {}
    for position, name in sorted(replacements.items()):
        if spans({**made, position: name}):
            made[position] = name
    return made


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

    def by(self, what: "_What") -> str:
        """How many are in which rack, or on which host, in words."""
        counts = Counter(_words(one, what) for one in self.usable).most_common()
        listed = ", ".join(f"{count} {where}" for where, count in counts[:_NAMES_MAX])
        more = f" and others {_IN[what]} {len(counts) - _NAMES_MAX} {what}" if len(counts) > _NAMES_MAX else ""
        return listed + more

    def not_spread(self, what: "_What", quorums: Quorums, least: Spread, bookies: str) -> str:
        """That the copies would span too few racks, or hosts, and what to do."""
        number = min(least.racks if what == "racks" else least.hosts, quorums.write_quorum)
        beside = min(least.racks, quorums.write_quorum)
        also = f" in {beside} racks" if what == "hosts" and beside > 1 else ""
        return (
            f"the {quorums.write_quorum} copies of an entry must span {number} {what}{also}, "
            f"and the {bookies} are {self.by(what)}{self.left_out()}; start bookies {_IN[what]} other {what}"
        )

    def why_none(self, what: "_What", quorums: Quorums, least: Spread) -> str:
        """Why no replacement could be found."""
        if not self.usable:
            return f"no other writable bookie is there{self.left_out()}; start more bookies"
        return self.not_spread(what, quorums, least, "other writable bookies")


_What = Literal["racks", "hosts"]

_IN: dict[_What, str] = {"racks": "in", "hosts": "on"}


def _words(bookie: BookieRegistration, what: _What) -> str:
    location = location_of(bookie)
    if what == "racks":
        return f"in {location.rack}"
    return "on a host of its own" if has_own_host(location) else f"on {location.host}"


def _what_is_missing(
    candidates: _Candidates, quorums: Quorums, slots: Sequence[Location | None], least: Spread
) -> _What:
    """Whether racks keep the slots from being filled, or hosts, although the racks could be had."""
    racks_alone = _fill(candidates, quorums, slots, Spread(racks=least.racks))
    return "racks" if racks_alone is None or least.hosts <= 1 else "hosts"


@dataclass(frozen=True, slots=True)
class SortedOut:
    """The bookies that can be taken, before the draw, and how likely; and why the others cannot."""

    usable: tuple[BookieRegistration, ...]
    weights: tuple[float, ...]
    one_rack: bool
    """Whether all of them are in one rack."""
    one_host: bool
    """Whether all of them are on one host."""
    hosts: tuple[str, ...]
    """The host of each."""
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
    hosts = tuple([location_of(bookie).host for bookie in usable])
    return SortedOut(
        usable=tuple(usable),
        weights=tuple(_weights([bookie.free_bytes for bookie in usable])),
        one_rack=len({bookie.rack for bookie in usable}) == 1,
        one_host=len(set(hosts)) == 1,
        hosts=hosts,
        read_only=tuple(bookie.bookie_id for bookie in others if bookie.state is not BookieState.WRITABLE),
        avoided=tuple(bookie.bookie_id for bookie in writable if bookie.bookie_id in avoid),
    )


def _first_come(sorted_out: SortedOut, size: int, rng: Chance, *, hosts_min: int) -> tuple[BookieId, ...] | None:
    """The bookies drawn first, of each host one: inside of one rack there is nothing to search for then. All of them if
    there is one host only. None if there are too few hosts."""
    taken, hosts = list[BookieId](), set[str]()
    may_share = sorted_out.one_host and hosts_min <= 1
    for at in _order(sorted_out, rng):
        host = sorted_out.hosts[at]
        if may_share or host not in hosts:
            hosts.add(host)
            taken.append(sorted_out.usable[at].bookie_id)
            if len(taken) == size:
                return tuple(taken)
    return None


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


def _fill(
    candidates: _Candidates, quorums: Quorums, slots: Sequence[Location | None], least: Spread
) -> dict[int, BookieId] | None:
    """Bookies for the slots that are None (the others hold the location of the member that stays), so that their write
    sets span as much as can be, ``least`` at least; None if that cannot be."""
    where = [location_of(one) for one in candidates.usable]
    arranged = arrange(quorums, slots, where, least)
    if arranged is None:
        return None
    queues: dict[Location, list[BookieId]] = {}
    for one, location in zip(candidates.usable, where, strict=True):
        queues.setdefault(location, []).append(one.bookie_id)
    return {
        position: queues[location].pop(0)
        for position, (location, before) in enumerate(zip(arranged, slots, strict=True))
        if before is None
    }
