"""The lag of consumer groups: for how many records, and for how long, they are behind the ends of partitions. Pure.

From time to time the gateway looks at offsets that groups have committed, and at the ends of their partitions.
:func:`watched` says which offsets, so that there are never more than a bound. :class:`Lags` keeps, for each partition,
the ends that it was told and when: a group has been behind since the first time at which an end above its offset was
seen, or since the last look at which it was not behind, whichever is later. A group that keeps up, a second after the
producers, is never behind for long, however many records that are.

The ends of a partition go once no group is behind them. Where a group stays far behind, the two oldest become one, with
the earlier time and the higher end: the slowest group is then behind for exactly as long as before, and one between the
two for longer than is true.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from octavo.gateway.groups.commits import GroupRecord
from octavo.gateway.groups.places import Place

ENDS_MAX: Final = 60
"""Of a partition: half an hour of a partition that grows, at a look each thirty seconds."""


class GroupOffsets(NamedTuple):
    """A group whose lag may be watched."""

    group_id: str
    record: GroupRecord
    has_members: bool


class WatchedOffset(NamedTuple):
    """An offset that a group has committed."""

    group_id: str
    place: Place
    offset: int


class Watched(NamedTuple):
    """A choice of offsets."""

    offsets: tuple[WatchedOffset, ...]
    left_out: int
    """Offsets above the bound."""


def watched(groups: Iterable[GroupOffsets], offsets_max: int) -> Watched:
    """The offsets to be looked at: of groups with members first, then by name.

    An offset below 0 stands for an end of its partition, and is no lag.
    """
    ordered = sorted(groups, key=lambda one: (not one.has_members, one.group_id))
    found = [
        WatchedOffset(group.group_id, place, committed.offset)
        for group in ordered
        for place, committed in sorted(group.record.offsets.items())
        if committed.offset >= 0
    ]
    return Watched(tuple(found[:offsets_max]), max(0, len(found) - offsets_max))


class Lag(NamedTuple):
    """The lag of a group in a partition."""

    group_id: str
    place: Place
    records: int
    """From the committed offset to the end."""
    behind_ms: int
    """For how long the partition has been known to have records that the group has not handled; 0: it has none."""


class _SeenEnd(NamedTuple):
    """An end of a partition, and when it was first seen."""

    end: int
    at_ms: int


class Lags:
    """See the module."""

    def __init__(self) -> None:
        self._seen: dict[Place, deque[_SeenEnd]] = {}
        self._level_ms: dict[tuple[str, Place], int] = {}
        """When a group was last not behind in a partition, or was first looked at."""

    def look(self, offsets: Iterable[WatchedOffset], ends: Mapping[Place, int], now_ms: int) -> list[Lag]:
        """The lags now. ``ends``: of the partitions, as far as they could be found out; others have the last that is
        known, and those that no offset names are forgotten. ``now_ms``: of a clock that never goes back."""
        lowest: dict[Place, int] = {}
        offsets = list(offsets)
        for one in offsets:
            lowest[one.place] = min(one.offset, lowest.get(one.place, one.offset))
        self._seen = {place: self._noted(place, ends.get(place), now_ms) for place in lowest}
        known = [one for one in offsets if self._seen[one.place]]
        self._level_ms = {(one.group_id, one.place): self._level(one, now_ms) for one in known}
        found = [self._lag(one, now_ms) for one in known]
        for place, seen in self._seen.items():
            # The last stays: it is the end, if the next look does not find one.
            while len(seen) > 1 and seen[0].end <= lowest[place]:
                seen.popleft()
        return found

    def _level(self, one: WatchedOffset, now_ms: int) -> int:
        is_behind = one.offset < self._seen[one.place][-1].end
        return self._level_ms.get((one.group_id, one.place), now_ms) if is_behind else now_ms

    def _lag(self, one: WatchedOffset, now_ms: int) -> Lag:
        seen = self._seen[one.place]
        since_ms = next((known.at_ms for known in seen if known.end > one.offset), now_ms)
        behind_ms = now_ms - max(since_ms, self._level_ms[one.group_id, one.place])
        return Lag(one.group_id, one.place, max(0, seen[-1].end - one.offset), behind_ms)

    def _noted(self, place: Place, end: int | None, now_ms: int) -> deque[_SeenEnd]:
        seen = self._seen.get(place, deque())
        if end is not None and (not seen or end > seen[-1].end):
            seen.append(_SeenEnd(end, now_ms))
        if len(seen) > ENDS_MAX:
            oldest = seen.popleft()
            seen[0] = _SeenEnd(seen[0].end, oldest.at_ms)
        return seen

    def check_invariants(self) -> None:
        """Raise AssertionError where the parts contradict each other."""
        for seen in self._seen.values():
            assert len(seen) <= ENDS_MAX
            assert all(one.end < later.end and one.at_ms <= later.at_ms for one, later in pairwise(seen))
