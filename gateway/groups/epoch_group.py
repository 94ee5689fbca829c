"""A consumer group of the consumer protocol (KIP-848): the coordinator shares its partitions. Pure.

Members say with heartbeats which topics they want and which partitions they have, and are told which they may have. The
group has an *epoch*. Whenever its members, their topics, or the partitions of these topics change, the next epoch
begins, with a new *target*: the partitions that each member is to have. Members come into the epoch one by one, each
with its own heartbeat (:func:`~octavo.gateway.groups.epoch_member.reconciled`), and all others go on meanwhile.

================  ==========================================  ========================================================
a member          means                                       ends
================  ==========================================  ========================================================
is settled        it has its target, in the group's epoch     when the next epoch begins
is revoking       it is to give partitions back; it stays     when it says that it does not have them any more; after
                  in its epoch, and can commit                its rebalance time it is removed
waits             it is in the group's epoch, and some of     when they have given them back, and it is heard of
                  its target has other owners
is away           static; its process begins again            when it joins; after the session it is removed
================  ==========================================  ========================================================

Four things hold in every order of events (rule K16):

1. A partition has one owner at most: it is assigned to a member, or being revoked from it. Another member gets it only
   once the owner, after it was told, has said that it does not have it any more, or has left, or was removed.
2. A commit is taken only from a member of the group, in the epoch that this member is in.
3. What a member is told was handed over to the log before: the group's epoch, and all that is known of the member. So
   the next coordinator goes on with the same owners, and in a later epoch.
4. A member that was removed learns it from the answer to its next request, and begins again without partitions.

Time and topics come in as arguments. What must become durable is collected, in order, and taken with
:meth:`EpochGroup.take_changes`; an answer may leave once everything that was taken before is durable.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.groups.epoch_member import NO_PLACES, EpochMember, Places, reconciled
from octavo.gateway.groups.group import MEMBERS_MAX
from octavo.gateway.groups.places import Place
from octavo.gateway.groups.sharing import ASSIGNORS, UNIFORM, Target, TopicShape, Wants

JOINS: Final = 0
LEAVES: Final = -1
GOES_AWAY: Final = -2
"""Epochs by which a member says that it joins, leaves, or is static and begins again."""

SESSION_MS: Final = 45_000
"""A member that is not heard of for this time is removed, as with Kafka."""

HEARTBEAT_MS: Final = 2_000
"""Between two heartbeats of a member, in a small group. Others wait for a partition until its owner has been told to
give it back."""

MEMBER_HEARTBEAT_MS: Final = 5
"""For each member of the group, at least: a group of a thousand sends two hundred a second."""

WAITING_HEARTBEAT_MS: Final = 500
"""Between two heartbeats of a member that waits for partitions."""

TOPICS_MAX: Final = 1_000
"""Names to which a member can subscribe."""

PLACES_MAX: Final = 10_000
"""Partitions that a member can say it has: a cluster has no more."""

TEXT_MAX: Final = 255
"""Characters of each other text of a member."""


EPOCH_STATES: Final = ("Empty", "Assigning", "Reconciling", "Stable")
"""The names by which tools know the states of a group."""


class Heartbeat(NamedTuple):
    """The fields of a ConsumerGroupHeartbeat request. None: as it was."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack: str | None = None
    rebalance_ms: int | None = None
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Places | None = None
    """The partitions that the member has. None: as they were, or it does not say."""
    client: str = ""
    host: str = ""
    way: object = None
    """The connection on which it comes. What comes on one comes behind the answers that left on it before."""
    matching: Callable[[str], tuple[str, ...]] = lambda _pattern: ()
    """The names that a pattern matches now, as far as the member may see them.

    Raises:
        RefusedError: It is no pattern.
    """

    @property
    def is_full(self) -> bool:
        """Whether the member says everything: it has begun, or has lost an answer, or found another coordinator."""
        return (
            self.rebalance_ms is not None
            and not (self.topics is None and self.pattern is None)
            and self.owned is not None
        )


class Told(NamedTuple):
    """The answer to a heartbeat."""

    member_id: str
    epoch: int
    interval_ms: int = 0
    """Until the next heartbeat."""
    assigned: Places | None = None
    """The partitions that it may have now. None: as the last answer said."""


class EpochBegun(NamedTuple):
    """The group has begun an epoch."""

    number: int


class MemberChanged(NamedTuple):
    """This is known of a member."""

    member: EpochMember


class MemberRemoved(NamedTuple):
    """The member is gone, and so are its partitions."""

    member_id: str


type Change = EpochBegun | MemberChanged | MemberRemoved

type FindTopic = Callable[[str], TopicShape | None]
"""The topic with a name, if it can be read."""


class EpochGroup:
    """See the module."""

    def __init__(
        self,
        group_id: str,
        new_member_id: Callable[[], str],
        *,
        epoch: int = 0,
        members: Iterable[EpochMember] = (),
        now_ms: int = 0,
        session_ms: int = SESSION_MS,
    ) -> None:
        """``epoch``: the latest that is durable. ``members``: as the last coordinator has left them."""
        self.group_id = group_id
        self.epoch = epoch
        self.assignor = UNIFORM
        """The way in which partitions are shared."""
        self.bytes_held = 0
        """Memory that the members take, about."""
        self._new_member_id = new_member_id
        self._session_ms = session_ms
        self._members: dict[str, EpochMember] = {}
        self._instances: dict[str, str] = {}
        """Instance id -> member id, of each static member."""
        self._owners: dict[Place, str] = {}
        self._expires_ms: dict[str, int] = {}
        """When each member is removed, unless it is heard of."""
        self._has: dict[str, Places] = {}
        """The partitions that each member has, as it has said last since it was told what it may have."""
        self._ways: dict[str, object] = {}
        """The connection on which each member was told last what it may have."""
        self._revoked_by_ms: dict[str, int] = {}
        """When each member that is revoking is removed, unless it has given back what it is to."""
        self._wanted: frozenset[str] = frozenset()
        """The names that some member wants."""
        self._topics: dict[str, TopicShape] = {}
        """Those of them that there are."""
        self._target: Target = {}
        self._stored_epoch = epoch
        self._changed: dict[str, None] = {}
        """The members that something new is known of."""
        self._removed: list[str] = []
        self._is_shared = True
        """Whether the target is of the members that there are."""
        for member in members:
            self._put(member)
            self._expires_ms[member.member_id] = now_ms + session_ms
            if member.revoking:
                self._revoked_by_ms[member.member_id] = now_ms + member.rebalance_ms
            self._is_shared = False
        self._changed.clear()

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def members(self) -> Mapping[str, EpochMember]:
        """The members by their ids. Not to be changed."""
        return self._members

    def target_of(self, member_id: str) -> Places:
        """The partitions that the member is to have."""
        return self._target.get(member_id, NO_PLACES)

    def is_settled(self, member: EpochMember) -> bool:
        """Whether the member has its target, in the group's epoch."""
        return (
            member.epoch == self.epoch and not member.revoking and member.assigned == self.target_of(member.member_id)
        )

    @property
    def state(self) -> str:
        """The name by which tools know it."""
        empty, assigning, reconciling, stable = EPOCH_STATES
        if not self._members:
            return empty
        if not self._is_shared:
            return assigning
        return stable if all(map(self.is_settled, self._members.values())) else reconciling

    def take_changes(self) -> tuple[Change, ...]:
        """The changes that must be durable before any later answer leaves, in this order."""
        taken: list[Change] = [] if self.epoch == self._stored_epoch else [EpochBegun(self.epoch)]
        taken += [MemberRemoved(one) for one in self._removed]
        taken += [MemberChanged(self._members[one]) for one in self._changed]
        self._stored_epoch = self.epoch
        self._removed.clear()
        self._changed.clear()
        return tuple(taken)

    # --- heartbeats ---------------------------------------------------------------------------------------------------

    def heartbeat(
        self, said: Heartbeat, find_topic: FindTopic, now_ms: int, check_bytes: Callable[[int], object] = lambda _: None
    ) -> Told:
        """A member joins, leaves, or is there. ``check_bytes`` raises :class:`RefusedError` if there is no memory for
        this number of bytes more.

        Raises:
            RefusedError: It is no member any more, or cannot be one.
        """
        _check_texts(said)
        if said.epoch in (LEAVES, GOES_AWAY):
            told = self._leave(said, now_ms)
            self.refresh(find_topic)
            return told
        if said.epoch < JOINS:
            raise RefusedError(Code.INVALID_REQUEST, f"there is no epoch {said.epoch}")
        before = self._joining(said) if said.epoch == JOINS else self._present(said)
        member = _with_words(before, said)
        self._check_room(member)
        more = member.bytes_held - (before.bytes_held if before.member_id in self._members else 0)
        if more > 0:
            check_bytes(more)
        has_place = member.member_id in self._members or self._has_taken_place(member)
        self._is_shared &= has_place and (before.names, before.assignor) == (member.names, member.assignor)
        self._put(member)
        self._expires_ms[member.member_id] = now_ms + self._session_ms
        self.refresh(find_topic)
        is_elsewhere = not self._has_heard(said)
        after = self._reconcile(member, said, now_ms)
        has_news = (
            said.is_full
            or is_elsewhere
            or said.epoch in (JOINS, before.previous_epoch)
            or after.assigned != before.assigned
        )
        return Told(after.member_id, after.epoch, self._interval_ms(after), after.assigned if has_news else None)

    def _joining(self, said: Heartbeat) -> EpochMember:
        """The member that joins, new or known, before it is known what it wants. It has no partitions.

        Raises:
            RefusedError: It cannot join.
        """
        if said.owned:
            raise RefusedError(Code.INVALID_REQUEST, "a member that joins has no partitions")
        if said.rebalance_ms is None or (said.topics is None and said.pattern is None):
            raise RefusedError(Code.INVALID_REQUEST, "a member that joins names its topics and its rebalance timeout")
        member_id = said.member_id or self._new_member_id()
        found = self._members.get(member_id)
        if found is not None and found.instance_id != said.instance_id:
            # Of another instance, or of none: it must not take a second member's place besides its own.
            raise RefusedError(
                Code.FENCED_INSTANCE_ID, f"{member_id} is the member {found.instance_id or 'of no instance'}"
            )
        current = self._instances.get(said.instance_id or "")
        if current is not None and current != member_id:
            known = self._members[current]
            if not known.is_away:
                raise RefusedError(Code.UNRELEASED_INSTANCE_ID, f"{said.instance_id} is a member")
            return known._replace(member_id=member_id, is_away=False, epoch=0, previous_epoch=0)
        if found is None:
            return EpochMember(member_id, said.instance_id)
        return found._replace(is_away=False, revoking=NO_PLACES)

    def _has_taken_place(self, member: EpochMember) -> bool:
        """Let a static member take the place of its older process, if there is one."""
        current = self._instances.get(member.instance_id or "")
        if current is None:
            return False
        self._target[member.member_id] = self.target_of(current)
        self._forget(current)
        return True

    def _present(self, said: Heartbeat) -> EpochMember:
        """The member that sends a heartbeat in this epoch.

        Raises:
            RefusedError: It is no member, or not in this epoch.
        """
        member = self._checked(said.member_id, said.instance_id)
        if member.is_away:
            raise RefusedError(Code.FENCED_MEMBER_EPOCH, f"{said.member_id} has left, to begin again")
        has_lost_answer = (
            said.epoch == member.previous_epoch and said.owned is not None and said.owned <= member.assigned
        )
        if said.epoch != member.epoch and not has_lost_answer:
            text = f"the epoch of {said.member_id} is {member.epoch}, not {said.epoch}: it is to join again"
            raise RefusedError(Code.FENCED_MEMBER_EPOCH, text)
        if not self._has_heard(said) and member.revoking and member.revoking.isdisjoint(said.owned or NO_PLACES):
            # It may have given them back, or be about to take them, and would say the same. So it begins again.
            text = f"{said.member_id} has another connection while it gives partitions back: it is to join again"
            raise RefusedError(Code.FENCED_MEMBER_EPOCH, text)
        return member

    def _checked(self, member_id: str, instance_id: str | None) -> EpochMember:
        if instance_id is not None and self._instances.get(instance_id, member_id) != member_id:
            raise RefusedError(Code.FENCED_INSTANCE_ID, f"{instance_id} has begun again")
        member = self._members.get(member_id)
        if member is None:
            raise RefusedError(Code.UNKNOWN_MEMBER_ID, f"the group has no member {member_id}")
        return member

    def _check_room(self, member: EpochMember) -> None:
        has_place = member.member_id in self._members or member.instance_id in self._instances
        if not has_place and len(self._members) >= MEMBERS_MAX:
            raise RefusedError(Code.GROUP_MAX_SIZE_REACHED, f"the group has {MEMBERS_MAX} members")

    def _leave(self, said: Heartbeat, now_ms: int) -> Told:
        member = self._checked(said.member_id, said.instance_id)
        if said.epoch == LEAVES:
            self._remove(member)
        elif member.instance_id is None:
            raise RefusedError(Code.INVALID_REQUEST, f"{said.member_id} is no static member")
        else:
            self._put(member._replace(is_away=True, revoking=NO_PLACES))
            self._revoked_by_ms.pop(member.member_id, None)
            self._expires_ms[member.member_id] = now_ms + self._session_ms
        return Told(said.member_id, said.epoch)

    def _reconcile(self, member: EpochMember, said: Heartbeat, now_ms: int) -> EpochMember:
        """Take the member one step towards its target."""
        member_id = member.member_id
        target = self.target_of(member_id)
        if said.epoch == JOINS:
            # It has nothing, and takes nothing of what it was told before.
            member = member._replace(assigned=member.assigned & target, revoking=NO_PLACES)
            self._put(member)
        self._hear(said)
        after = reconciled(member, target, self.epoch, self._has_now(said), lambda one: self._is_free(one, member_id))
        self._put(after)
        self._ways[member_id] = said.way
        if not after.revoking:
            self._revoked_by_ms.pop(member_id, None)
        elif after.revoking != member.revoking:
            # It is told now. What it has said before does not count: it may be about to take them.
            self._has.pop(member_id, None)
            self._revoked_by_ms[member_id] = now_ms + after.rebalance_ms
        return after

    def _has_heard(self, said: Heartbeat) -> bool:
        """Whether the member was told what it may have on the connection of its heartbeat. On another one it may have
        said what it says before it knew that."""
        return said.member_id in self._ways and self._ways[said.member_id] == said.way

    def _hear(self, said: Heartbeat) -> None:
        """Keep what the member says that it has."""
        if not self._has_heard(said):
            self._has.pop(said.member_id, None)
        elif said.owned is not None:
            self._has[said.member_id] = said.owned & self._members[said.member_id].owned

    def _has_now(self, said: Heartbeat) -> Places | None:
        """The partitions that the member has, as it has said last since it was told what it may have. None: it has not
        said."""
        return self._has.get(said.member_id) if self._has_heard(said) else None

    def _is_free(self, place: Place, member_id: str) -> bool:
        """Whether no other member is the owner of a partition."""
        return self._owners.get(place, member_id) == member_id

    def _interval_ms(self, member: EpochMember) -> int:
        interval_ms = max(HEARTBEAT_MS, MEMBER_HEARTBEAT_MS * len(self._members))
        waits = not member.revoking and not self.is_settled(member)
        return min(interval_ms, WAITING_HEARTBEAT_MS) if waits else interval_ms

    # --- commits ------------------------------------------------------------------------------------------------------

    def check_sender(self, member_id: str, instance_id: str | None, epoch: int, places: Iterable[Place] = ()) -> None:
        """Whether this member is in the group, in this epoch: it is told what is committed, and may commit these places
        now. The caller hands a commit over in the same step.

        Raises:
            RefusedError: It is not.
        """
        member = self._checked(member_id, instance_id)
        if member.is_away or epoch != member.epoch:
            raise RefusedError(Code.STALE_MEMBER_EPOCH, f"the epoch of {member_id} is {member.epoch}, not {epoch}")
        for place in places:
            if not self._is_free(place, member_id):
                text = f"partition {place.partition} of topic {place.topic_id} is another member's by now"
                raise RefusedError(Code.STALE_MEMBER_EPOCH, text)

    # --- time, and topics ---------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """When time decides something next, if nothing else happens."""
        return min((*self._expires_ms.values(), *self._revoked_by_ms.values()), default=None)

    def pass_time(self, find_topic: FindTopic, now_ms: int) -> None:
        """Remove members that were not heard of, or do not give partitions back, and look at the topics."""
        late = [
            member_id
            for ends in (self._expires_ms, self._revoked_by_ms)
            for member_id, until in ends.items()
            if until <= now_ms
        ]
        for member_id in dict.fromkeys(late):
            self._remove(self._members[member_id])
        self.refresh(find_topic)

    def refresh(self, find_topic: FindTopic) -> None:
        """Begin the next epoch, if the members, what they want, or the topics have changed."""
        if not self._is_shared:
            self._wanted = frozenset[str]().union(*(one.names for one in self._members.values()))
        topics = {name: shape for name in self._wanted if (shape := find_topic(name)) is not None}
        if self._is_shared and topics == self._topics:
            return
        self._topics = topics
        self._is_shared = True
        self.epoch += 1
        self.assignor = self._chosen_assignor()
        members = self._members.values()
        wants = [Wants(one.member_id, one.instance_id or one.member_id, one.names, self._keeps(one)) for one in members]
        self._target = ASSIGNORS[self.assignor](wants, topics)

    def _keeps(self, member: EpochMember) -> Places:
        """The partitions that a member best keeps: its target up to now, or, under a new coordinator, what it has."""
        return self._target.get(member.member_id, member.assigned)

    def _chosen_assignor(self) -> str:
        """The one for which most members ask."""
        asked = [one.assignor for one in self._members.values() if one.assignor]
        return max(sorted(set(asked), reverse=True), key=asked.count, default=UNIFORM)

    # --- members ------------------------------------------------------------------------------------------------------

    def _put(self, member: EpochMember) -> None:
        """This is known of a member from now on."""
        before = self._members.get(member.member_id)
        if before == member:
            return
        if before is not None:
            self._release(before)
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        self._owners.update(dict.fromkeys(member.owned, member.member_id))
        self.bytes_held += member.bytes_held
        self._changed[member.member_id] = None

    def _release(self, member: EpochMember) -> None:
        for place in member.owned:
            del self._owners[place]
        self.bytes_held -= member.bytes_held

    def _remove(self, member: EpochMember) -> None:
        self._forget(member.member_id)
        self._is_shared = False

    def _forget(self, member_id: str) -> None:
        member = self._members.pop(member_id)
        self._release(member)
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        self._expires_ms.pop(member_id)
        self._has.pop(member_id, None)
        self._ways.pop(member_id, None)
        self._revoked_by_ms.pop(member_id, None)
        self._target.pop(member_id, None)
        self._changed.pop(member_id, None)
        self._removed.append(member_id)

    def check_invariants(self) -> None:
        """Raise AssertionError where the parts of the group contradict each other."""
        owners = [(place, one.member_id) for one in self._members.values() for place in one.owned]
        assert len(owners) == len(dict(owners)), f"a partition has two owners: {owners}"
        assert dict(owners) == self._owners
        instances = {one.instance_id: member_id for member_id, one in self._members.items() if one.instance_id}
        assert instances == self._instances
        assert self._expires_ms.keys() == self._members.keys()
        assert self._revoked_by_ms.keys() == {one.member_id for one in self._members.values() if one.revoking}
        assert all(one.previous_epoch <= one.epoch <= self.epoch for one in self._members.values())
        assert not any(one.assigned & one.revoking for one in self._members.values())
        assert self.bytes_held == sum(one.bytes_held for one in self._members.values())
        targets = [place for places in self._target.values() for place in places]
        assert len(targets) == len(set(targets)), "the target gives a partition to two members"


def _check_texts(said: Heartbeat) -> None:
    if not said.member_id and said.epoch != JOINS:
        raise RefusedError(Code.INVALID_REQUEST, "a member says its id")
    for text in (said.member_id, said.instance_id, said.rack, said.pattern, said.client):
        if text is not None and len(text) > TEXT_MAX:
            raise RefusedError(Code.INVALID_REQUEST, f"a text of {len(text)} characters; {TEXT_MAX} are the limit")
    if said.instance_id == "":
        raise RefusedError(Code.INVALID_REQUEST, "an instance id is not empty")
    if said.topics is not None and len(said.topics) > TOPICS_MAX:
        raise RefusedError(Code.INVALID_REQUEST, f"{len(said.topics)} topics; {TOPICS_MAX} are the limit")
    if any(len(name) > TEXT_MAX or not name.isascii() for name in said.topics or ()):
        raise RefusedError(Code.INVALID_TOPIC_EXCEPTION, f"a topic's name has at most {TEXT_MAX} characters of ASCII")
    if said.owned is not None and len(said.owned) > PLACES_MAX:
        raise RefusedError(Code.INVALID_REQUEST, f"{len(said.owned)} partitions; {PLACES_MAX} are the limit")
    if said.assignor and said.assignor not in ASSIGNORS:
        text = f"there is no way of sharing {said.assignor!r}; there are {', '.join(ASSIGNORS)}"
        raise RefusedError(Code.UNSUPPORTED_ASSIGNOR, text)


def _with_words(member: EpochMember, said: Heartbeat) -> EpochMember:
    """The member, with what it says of itself."""
    pattern = member.pattern if said.pattern is None else said.pattern
    return member._replace(
        rack=member.rack if said.rack is None else said.rack,
        rebalance_ms=member.rebalance_ms if said.rebalance_ms is None else max(0, said.rebalance_ms),
        topics=member.topics if said.topics is None else tuple(sorted(set(said.topics))),
        pattern=pattern,
        matched=said.matching(pattern) if pattern else (),
        assignor=member.assignor if said.assignor is None else said.assignor,
        client=said.client,
        host=said.host,
    )
