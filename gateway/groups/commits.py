"""Offsets and generations of the groups of a coordinator, as its log has them (rule K10). Pure.

A coordinator holds one machine for each term. It reads the log, and gives each entry to :meth:`Commits.load`. Then, for
each entry that it adds:

1. In one step of the event loop it decides that the entry may be added, gives it to the log's writer, and calls
   :meth:`Commits.hand_over`.
2. :meth:`Commits.acknowledge`, in the order of positions. Only now the entry can be seen with :meth:`Commits.find`, and
   only now its request is answered.

What was handed over either becomes acknowledged, or the term ends: then the machine is dropped, and that of the next
coordinator begins with what the log holds. What can be seen is in the log, so it never goes back by itself.

The log is kept short by *restating*. From time to time the coordinator adds what is right of each group once more, and
then truncates the log below the position at which it had begun:

1. :meth:`Commits.begin_restating` gives that position, and all groups that have entries below it.
2. For each group, in one step: :meth:`Commits.restated` gives its entries, and they are handed over. They hold what
   follows from all entries handed over so far, also from those that are not acknowledged. So they change nothing where
   they stand, and whatever happens to the group later stands behind them.
3. The log is truncated once all of them are acknowledged.

A coordinator that ends on the way leaves entries that change nothing.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from octavo.gateway.codes import Code, RefusedError, WrongPositionError
from octavo.gateway.groups.entries import (
    Committed,
    EpochStored,
    GenerationStored,
    GroupDeleted,
    GroupEntry,
    MemberLeft,
    MemberStored,
    OffsetsCommitted,
    OffsetsDeleted,
    commits_of,
)
from octavo.gateway.groups.epoch_member import EpochMember
from octavo.gateway.groups.places import Place

RESTATE_BYTES: Final = 16 * 1024 * 1024
"""Of entries before the groups are restated: the next coordinator reads about this much, and what is right."""

OFFSETS_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of the offsets of a coordinator's groups in memory, by the estimate of :func:`bytes_of`."""

_OFFSET_BYTES: Final = 200
"""Of an offset in memory, without its text."""


def bytes_of(offsets: Mapping[Place, Committed]) -> int:
    """Memory that the offsets take, about."""
    return sum(_OFFSET_BYTES + len(one.metadata) for one in offsets.values())


type GroupChange = OffsetsCommitted | GenerationStored | EpochStored | MemberStored | MemberLeft | OffsetsDeleted
"""An entry that leaves something of its group."""


@dataclass(slots=True)
class GroupRecord:
    """The outcome of the entries of one group."""

    generation: int = 0
    """The latest that is durable: a generation of the classic protocol, or an epoch of the consumer protocol."""
    session_ms: int = 0
    """The longest session of its members, of the classic protocol; 0: it has none."""
    at_ms: int = 0
    """When it last changed."""
    offsets: dict[Place, Committed] = field(default_factory=dict)
    members: dict[str, EpochMember] = field(default_factory=dict)
    """Those of the consumer protocol, by their ids."""
    has_epochs: bool = False
    """Whether :attr:`generation` is an epoch."""

    def bytes_at(self, places: Iterable[Place]) -> int:
        """Memory that the offsets of these places take, about."""
        return bytes_of({place: self.offsets[place] for place in places if place in self.offsets})

    def copy(self) -> "GroupRecord":
        """Another record that says the same."""
        return replace(self, offsets=dict(self.offsets), members=dict(self.members))

    def apply(self, entry: GroupChange) -> None:
        """The next entry of the group."""
        match entry:
            case OffsetsCommitted(_, offsets):
                self.offsets |= offsets
                self.at_ms = max(self.at_ms, *(one.at_ms for one in offsets.values()), 0)
            case GenerationStored(_, generation, session_ms, at_ms):
                self.generation, self.session_ms, self.has_epochs = generation, session_ms, False
                self.at_ms = max(self.at_ms, at_ms)
            case EpochStored(_, epoch, at_ms):
                self.generation, self.session_ms, self.has_epochs = epoch, 0, True
                self.at_ms = max(self.at_ms, at_ms)
            case MemberStored(_, member):
                self.members[member.member_id] = member
            case MemberLeft(_, member_id):
                self.members.pop(member_id, None)
            case OffsetsDeleted(_, places):
                for place in places:
                    self.offsets.pop(place, None)


class UnderWay(NamedTuple):
    """An entry that was handed over and is not acknowledged."""

    position: int
    entry: GroupEntry


class Restating(NamedTuple):
    """A restatement of all groups."""

    before: int
    """The log is truncated there afterwards."""
    group_ids: tuple[str, ...]


class Commits:
    """See the module."""

    def __init__(self, *, restate_bytes: int = RESTATE_BYTES, bytes_max: int = OFFSETS_BYTES_MAX) -> None:
        """``bytes_max``: of offsets in memory."""
        self._restate_bytes = restate_bytes
        self._bytes_max = bytes_max
        self._records: dict[str, GroupRecord] = {}
        self._under_way: deque[UnderWay] = deque()
        self._groups_under_way: Counter[str] = Counter()
        self.next_position = 0
        """Of the next entry."""
        self._bytes = 0
        self._bytes_under_way = 0
        self.log_bytes = 0
        """Of entries since the groups were restated, or were begun to be."""
        self._restated_bytes = 0
        """Of the entries that restated them."""

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def records(self) -> Mapping[str, GroupRecord]:
        """The acknowledged records of all groups. Not to be changed."""
        return self._records

    def find(self, group_id: str) -> GroupRecord | None:
        """The acknowledged record of a group; None: there is none. Not to be changed."""
        return self._records.get(group_id)

    def knows(self, group_id: str) -> bool:
        """Whether anything was added of the group, acknowledged or not."""
        return group_id in self._records or group_id in self._groups_under_way

    def is_under_way(self, group_id: str) -> bool:
        """Whether an entry of the group is not acknowledged."""
        return group_id in self._groups_under_way

    @property
    def bytes_held(self) -> int:
        """Memory that the offsets take, about, with those under way."""
        return self._bytes + self._bytes_under_way

    def check_room(self, group_id: str, offsets: Mapping[Place, Committed]) -> None:
        """Raise :class:`RefusedError` if there is no room for a commit (rule K13)."""
        record = self._records.get(group_id)
        replaced = 0 if record is None else record.bytes_at(offsets)
        if self.bytes_held + bytes_of(offsets) - replaced > self._bytes_max:
            raise RefusedError(Code.INVALID_COMMIT_OFFSET_SIZE, "the groups of this coordinator have too many offsets")

    # --- entries ------------------------------------------------------------------------------------------------------

    def load(self, position: int, entry: GroupEntry | None, size: int) -> None:
        """The next entry of the log, in order of positions, and how long it is; None: it is of another program."""
        assert not self._under_way, "the log is read before anything is added"
        assert position >= self.next_position, f"position {position} comes after {self.next_position - 1}"
        self.next_position = position + 1
        self.log_bytes += size
        if entry is not None:
            self._apply(entry)

    def loaded(self, end: int, is_live: Callable[[str], bool]) -> None:
        """All entries below ``end`` were given. ``is_live``: whether a topic with this id is there."""
        assert end >= self.next_position, f"the log ends at {end}, below {self.next_position}"
        self.next_position = end
        for group_id, record in self._records.items():
            gone = tuple(place for place in record.offsets if not is_live(place.topic_id))
            if gone:
                self._apply(OffsetsDeleted(group_id, gone))

    def hand_over(self, entry: GroupEntry, size: int) -> int:
        """The log's writer has taken the entry, which is so long; its position."""
        position = self.next_position
        self.next_position += 1
        self._under_way.append(UnderWay(position, entry))
        self._groups_under_way[entry.group_id] += 1
        self._bytes_under_way += _bytes_of_entry(entry)
        self.log_bytes += size
        return position

    def acknowledge(self, position: int) -> GroupEntry:
        """The entry at this position is acknowledged, and all below it are.

        Raises:
            WrongPositionError: The oldest entry under way was to get another position.
        """
        if not self._under_way or self._under_way[0].position != position:
            expected = self._under_way[0].position if self._under_way else None
            raise WrongPositionError(f"position {position} was acknowledged; expected {expected}")
        entry = self._under_way.popleft().entry
        self._groups_under_way[entry.group_id] -= 1
        if not self._groups_under_way[entry.group_id]:
            del self._groups_under_way[entry.group_id]
        self._bytes_under_way -= _bytes_of_entry(entry)
        self._apply(entry)
        return entry

    def _apply(self, entry: GroupEntry) -> None:
        record = self._records.get(entry.group_id)
        if record is not None:
            self._bytes -= record.bytes_at(_places_of(entry, record))
        record = _after(record, entry)
        if record is None:
            self._records.pop(entry.group_id, None)
        else:
            self._records[entry.group_id] = record
            self._bytes += _bytes_of_entry(entry)

    # --- restating ----------------------------------------------------------------------------------------------------

    @property
    def is_restating_due(self) -> bool:
        """Whether the log has grown enough, also beside what is restated."""
        return self.log_bytes >= max(self._restate_bytes, 2 * self._restated_bytes)

    def begin_restating(self) -> Restating:
        """Begin: the groups to be restated, from now on."""
        self.log_bytes = self._restated_bytes = 0
        return Restating(self.next_position, tuple({**self._records, **self._groups_under_way}))

    def restated(self, group_id: str, is_live: Callable[[str], bool]) -> list[GroupEntry]:
        """The entries that restate a group, to be handed over in the same step. ``is_live``: see :meth:`loaded`."""
        record = self.projected(group_id)
        if record is None:
            return []
        offsets = {place: one for place, one in record.offsets.items() if is_live(place.topic_id)}
        entries: list[GroupEntry] = [*commits_of(group_id, offsets)]
        if record.has_epochs:
            entries.append(EpochStored(group_id, record.generation, record.at_ms))
        elif record.generation or not offsets:
            entries.append(GenerationStored(group_id, record.generation, record.session_ms, record.at_ms))
        entries += [MemberStored(group_id, member) for member in record.members.values()]
        return entries

    def projected(self, group_id: str) -> GroupRecord | None:
        """The record of a group once everything under way is acknowledged."""
        record = self._records.get(group_id)
        record = None if record is None else record.copy()
        if group_id in self._groups_under_way:
            for one in self._under_way:
                if one.entry.group_id == group_id:
                    record = _after(record, one.entry)
        return record

    def note_restated(self, size: int) -> None:
        """An entry that restates a group has this length."""
        self._restated_bytes += size

    def check_invariants(self) -> None:
        """Raise AssertionError where the parts contradict each other."""
        assert self._bytes == sum(bytes_of(record.offsets) for record in self._records.values())
        assert self._bytes_under_way == sum(_bytes_of_entry(one.entry) for one in self._under_way)
        assert self._groups_under_way == Counter(one.entry.group_id for one in self._under_way)
        positions = [one.position for one in self._under_way]
        assert positions == list(range(self.next_position - len(positions), self.next_position))


def _after(record: GroupRecord | None, entry: GroupEntry) -> GroupRecord | None:
    """The record of a group behind this entry; it is changed in place."""
    if isinstance(entry, GroupDeleted):
        return None
    if record is None:
        record = GroupRecord()
    record.apply(entry)
    return record


def _places_of(entry: GroupEntry, record: GroupRecord) -> Iterable[Place]:
    """The places whose offsets the entry changes."""
    match entry:
        case OffsetsCommitted(_, offsets):
            return offsets
        case OffsetsDeleted(_, places):
            return set(places)
        case GroupDeleted():
            return record.offsets
        case _:
            return ()


def _bytes_of_entry(entry: GroupEntry) -> int:
    return bytes_of(entry.offsets) if isinstance(entry, OffsetsCommitted) else 0
