"""Arrangement: in which rack and on which host the bookie of each slot is. Pure.

Theory of operation
===================

*Spread.* A write set spans the racks, and the hosts, of its members. An arrangement has a :class:`Spread` if each of
its write sets spans this number of racks and this number of hosts. A bookie of unknown location counts for none.

*Which spread.* As many racks as can be had, and with that number of racks as many hosts. One thing comes first: no
write set is on a single host if that can be avoided (rule M6). Inside of one rack, and wherever a host is in one rack
only, that follows; but a rack is what an operator has set, and a host with bookies in three racks is one host.

*Search.* Slots are filled in order, each with a location that has least in common with those of the slot's write sets:
few bookies of the same host, then of the same rack, then of racks whose paths part late. A write set that can no longer
reach the spread ends a branch. Hosts of one rack that no slot has yet, and that have as many bookies, are
interchangeable: only the first is tried. Two passes, each of at most :data:`_STEPS_MAX` steps, the second using up
large racks and hosts first; tests compare them with exhaustive search.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from octavo.client.choose.locations import Location
from octavo.protocol.quorums import Quorums

_STEPS_MAX = 4000
"""Bound of one pass of the search; more than any ensemble of ten needs, and milliseconds."""


class Spread(NamedTuple):
    """Racks and hosts that each write set spans at least; or Qw, if that is less."""

    racks: int = 1
    hosts: int = 1


ANYWHERE: Final = Spread()


def arrange(
    quorums: Quorums, slots: Sequence[Location | None], order: Sequence[Location], least: Spread
) -> list[Location] | None:
    """A location for every slot, with ``least`` and beyond that as much spread as can be; None if that cannot be had.

    ``slots``: None where a bookie is wanted, else where the bookie is that stays. Only write sets with a slot that is
    None count. ``order``: the locations of the bookies that can be taken, first come first; a location may be there
    several times.
    """
    holes = sum(location is None for location in slots)
    if len(order) < holes:
        return None
    fixed = [location for location in slots if location is not None]
    racks = Counter(location.rack for location in [*order, *fixed] if location.rack)
    hosts = Counter(location.host for location in [*order, *fixed] if location.host)
    most = Spread(min(quorums.write_quorum, len(racks)), min(quorums.write_quorum, len(hosts)))
    least = Spread(min(least.racks, quorums.write_quorum), min(least.hosts, quorums.write_quorum))
    # Where no host has two bookies, and each is known, as many hosts are spanned as there are members.
    hosts_differ = max(hosts.values(), default=0) == 1 and all(location.host for location in fixed)

    def search(spread: Spread) -> list[Location] | None:
        if holes == len(slots) and not (
            _could_span(quorums, racks, spread.racks) and _could_span(quorums, hosts, spread.hosts)
        ):
            return None
        return _Search(quorums, slots, order, spread).run()

    hosts_first = most.hosts if hosts_differ else min(2, most.hosts)
    floors = [max(least.hosts, hosts_first)]
    if least.hosts < floors[0] and not hosts_differ:
        floors.append(least.hosts)
    for floor in floors:
        for number in range(most.racks, least.racks - 1, -1):
            if (arranged := _most_hosts(search, number, floor, most.hosts)) is not None:
                return arranged
    return None


def _most_hosts(
    search: Callable[[Spread], list[Location] | None], racks: int, hosts_min: int, hosts_max: int
) -> list[Location] | None:
    """The arrangement with this number of racks and as many hosts as can be. The fewest are tried second: where they
    cannot be had, more cannot either."""
    if hosts_max < hosts_min:
        return None
    if (best := search(Spread(racks, hosts_max))) is not None or hosts_max == hosts_min:
        return best
    if (fewest := search(Spread(racks, hosts_min))) is None:
        return None
    between = (search(Spread(racks, hosts)) for hosts in range(hosts_max - 1, hosts_min, -1))
    return next((arranged for arranged in between if arranged is not None), fewest)


def _could_span(quorums: Quorums, supply: Counter[str], spread: int) -> bool:
    """A necessary condition, cheap to check: whichever ``spread - 1`` racks (or hosts) one looks at, every write set
    needs a bookie outside of them, and one bookie is in Qw write sets of E."""
    outside = sum(supply.values()) - sum(count for _, count in supply.most_common(spread - 1))
    return outside * quorums.write_quorum >= quorums.ensemble_size


class _Search:
    """One search, slot by slot."""

    def __init__(
        self, quorums: Quorums, slots: Sequence[Location | None], order: Sequence[Location], spread: Spread
    ) -> None:
        size = quorums.ensemble_size
        self._slots = list(slots)
        self._holes = [position for position, location in enumerate(slots) if location is None]
        self._supply = Counter(order)
        self._rack_supply = Counter(location.rack for location in order)
        self._host_supply = Counter(location.host for location in order)
        self._used = Counter(location.host for location in slots if location is not None)
        """How many slots are on each host."""
        self._spread = spread
        self._rank = {location: at for at, location in reversed(list(enumerate(order)))}
        self._paths = {location.rack: location.rack.split("/") for location in [*order, *filter(None, slots)]}
        sets = {quorums.write_set(residue) for residue in range(size)}
        if not quorums.striped:
            sets = {tuple(range(size))}
        self._sets_of = [[members for members in sets if position in members] for position in range(size)]
        # How many write sets two slots share: what they have in common counts that often.
        self._shared = [Counter(other for members in of for other in members) for of in self._sets_of]
        self._steps = 0

    def run(self) -> list[Location] | None:
        """A location for every slot; None if none was found."""
        for by_supply in (False, True):
            self._steps = _STEPS_MAX
            if self._place(0, by_supply=by_supply):
                return [location for location in self._slots if location is not None]
        return None

    def _place(self, at: int, *, by_supply: bool) -> bool:
        if at == len(self._holes):
            return True
        position = self._holes[at]
        for location in self._preferred(position, by_supply=by_supply):
            self._steps -= 1
            if self._steps < 0:
                return False
            self._take(position, location, 1)
            if self._can_still_span(position) and self._place(at + 1, by_supply=by_supply):
                return True
            self._take(position, location, -1)
            self._slots[position] = None
        return False

    def _take(self, position: int, location: Location, number: int) -> None:
        self._slots[position] = location
        self._supply[location] -= number
        self._rack_supply[location.rack] -= number
        self._host_supply[location.host] -= number
        self._used[location.host] += number

    def _can_still_span(self, position: int) -> bool:
        for members in self._sets_of[position]:
            there = [location for member in members if (location := self._slots[member]) is not None]
            open_slots = len(members) - len(there)
            if len({location.rack for location in there if location.rack}) + open_slots < self._spread.racks:
                return False
            if len({location.host for location in there if location.host}) + open_slots < self._spread.hosts:
                return False
        return True

    def _preferred(self, position: int, *, by_supply: bool) -> list[Location]:
        """Locations that have a bookie left, the one that has least in common with the slot's neighbours first."""
        neighbours = [
            (location, times)
            for other, times in self._shared[position].items()
            if other != position and (location := self._slots[other]) is not None
        ]
        on_host: Counter[str] = Counter()
        for location, times in neighbours:
            on_host[location.host] += times
        paths = [(self._paths[location.rack], times) for location, times in neighbours if location.rack]
        in_rack = {rack: _in_common(self._paths[rack], paths) for rack, left in self._rack_supply.items() if left}

        def order(location: Location) -> tuple[int, tuple[int, ...], int, int, int]:
            rack_supply, host_supply = 0, 0
            if by_supply:
                rack_supply, host_supply = -self._rack_supply[location.rack], -self._host_supply[location.host]
            common = in_rack[location.rack]
            return on_host[location.host], common, rack_supply, host_supply, self._rank[location]

        found = sorted((location for location, left in self._supply.items() if left), key=order)
        return list(self._different(found))

    def _different(self, locations: Iterable[Location]) -> Iterator[Location]:
        """Without those that are interchangeable with one before. See the module."""
        seen: set[tuple[str, int]] = set()
        for location in locations:
            left = self._supply[location]
            # A host that is also in another rack is no plain one: what is done with it there matters here.
            if not self._used[location.host] and self._host_supply[location.host] == left:
                if (location.rack, left) in seen:
                    continue
                seen.add((location.rack, left))
            yield location


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
