"""Ways in which a coordinator shares partitions among the members of a group. Pure, and the same for the same input.

`uniform` gives each member as many partitions as any other, as far as their topics allow, and leaves as many as it can
where they are. `range` gives each member consecutive partitions of each topic, so that members have the same numbers of
topics that have the same number of partitions.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from octavo.gateway.groups.epoch_member import Places
from octavo.gateway.groups.places import Place


class TopicShape(NamedTuple):
    """A topic, as far as sharing goes."""

    topic_id: str
    partitions: int

    @property
    def places(self) -> list[Place]:
        """Its partitions, in order."""
        return [Place(self.topic_id, number) for number in range(self.partitions)]


class Wants(NamedTuple):
    """A member, as far as sharing goes."""

    member_id: str
    order: str
    """Members come in this order: a static one that begins again keeps its place."""
    names: frozenset[str]
    """The topics that it wants."""
    has: Places
    """The partitions that it is to have up to now."""


type Target = dict[str, Places]
"""The partitions that each member is to have."""

type Assignor = Callable[[Collection[Wants], Mapping[str, TopicShape]], Target]


def share_uniformly(members: Collection[Wants], topics: Mapping[str, TopicShape]) -> Target:
    """See the module. Topics that the same members want are shared together, those that few members want first."""
    found: dict[str, set[Place]] = {one.member_id: set() for one in members}
    for names, wanting in _wanted_together(members, topics):
        places = [place for name in names for place in topics[name].places]
        _fill(places, wanting, found)
    return {member_id: frozenset(places) for member_id, places in found.items()}


def _wanted_together(
    members: Collection[Wants], topics: Mapping[str, TopicShape]
) -> list[tuple[list[str], list[Wants]]]:
    """Names of topics, and the members that want them, who are the same for all of them."""
    ordered = sorted(members, key=lambda one: one.order)
    wanting: dict[str, list[Wants]] = {}
    for one in ordered:
        for name in one.names & topics.keys():
            wanting.setdefault(name, []).append(one)
    together: dict[tuple[str, ...], tuple[list[str], list[Wants]]] = {}
    for name in sorted(wanting):
        by = tuple(one.member_id for one in wanting[name])
        together.setdefault(by, ([], wanting[name]))[0].append(name)
    return sorted(together.values(), key=lambda one: (len(one[1]), one[0]))


def _fill(places: list[Place], wanting: list[Wants], found: Mapping[str, set[Place]]) -> None:
    """Give these partitions to the members that have the fewest; each keeps what it has, up to its share."""
    order = {place: number for number, place in enumerate(places)}
    had = {one.member_id: sorted(one.has & order.keys(), key=order.__getitem__) for one in wanting}
    room = _room(len(places), {one.member_id: (len(found[one.member_id]), len(had[one.member_id])) for one in wanting})
    given: set[Place] = set()
    for member_id, kept in had.items():
        keeps = [place for place in kept if place not in given][: room[member_id]]
        found[member_id].update(keeps)
        given.update(keeps)
        room[member_id] -= len(keeps)
    left = iter([place for place in places if place not in given])
    for member_id, more in room.items():
        found[member_id].update(next(left) for _ in range(more))


def _room(count: int, loads: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """How many of ``count`` partitions each member gets, so that no member has two more than another that got one.

    ``loads``: how many partitions of other topics the member has already, and how many of these it had.
    """
    level = 0
    ordered = sorted(load for load, _ in loads.values())
    left = count
    for number, load in enumerate(ordered, start=1):
        above = ordered[number] if number < len(ordered) else None
        level = load
        if above is None or (above - load) * number > left:
            level += left // number
            left %= number
            break
        left -= (above - load) * number
    room = {member_id: max(0, level - load) for member_id, (load, _) in loads.items()}
    # What is left over goes to those at the level, one each: first to members that can keep one more by it.
    at_level = [one for one, (load, _) in loads.items() if load <= level]
    at_level.sort(key=lambda one: loads[one][1] <= room[one])
    for member_id in at_level[:left]:
        room[member_id] += 1
    return room


def share_ranges(members: Collection[Wants], topics: Mapping[str, TopicShape]) -> Target:
    """See the module."""
    ordered = sorted(members, key=lambda one: one.order)
    found: dict[str, list[Place]] = {one.member_id: [] for one in ordered}
    for name in sorted(topics):
        wanting = [one.member_id for one in ordered if name in one.names]
        places = topics[name].places
        if not wanting:
            continue
        each, more = divmod(len(places), len(wanting))
        for at, member_id in enumerate(wanting):
            begin = each * at + min(at, more)
            found[member_id] += places[begin : begin + each + (at < more)]
    return {member_id: frozenset(places) for member_id, places in found.items()}


UNIFORM: Final = "uniform"

ASSIGNORS: Final[Mapping[str, Assignor]] = {UNIFORM: share_uniformly, "range": share_ranges}
"""By the names that members give."""
