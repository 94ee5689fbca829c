"""A consumer group of the classic protocol: which members it has, and which generation they are in. Pure.

The members of a group share partitions. They agree on that generation by generation: all of them join, one of them, the
*leader*, is told of all, gives each its partitions, and each takes its own with SyncGroup. The group itself does not
know what partitions are. A member that comes, leaves or is not heard of begins the next generation.

==========  =============================================  ===========================================================
state       means                                          then
==========  =============================================  ===========================================================
EMPTY       no members                                     PREPARING, when a member joins
PREPARING   members join again; those that do not within   COMPLETING, with the next generation; EMPTY if none is left
            the longest rebalance time are removed
COMPLETING  the leader is to share the partitions          STORING; PREPARING, if it does not, or a member changes
STORING     the generation is being made durable           STABLE; PREPARING, if a member changes
STABLE      each member has its partitions                 PREPARING, when a member changes
==========  =============================================  ===========================================================

Three things hold in every order of events (rule K11):

1. A request of an older generation, or of a member that the group does not know, changes nothing and is refused. So a
   member that stood still commits nothing and learns that it must join again.
2. All assignments of a generation are of one leader's one SyncGroup. No member gets another one in that generation.
3. Assignments are given out, and commits taken, only once the generation is durable: so generations rise also across
   coordinators.

A *static* member has an instance id, and keeps its place: its process may begin again, with a new member id, without a
new generation. Requests with its older member id are fenced.

Time comes in as an argument. :meth:`Group.next_deadline_ms` says when :meth:`Group.pass_time` is to be called next.
Answers and the generation that must be made durable are collected, and taken with :meth:`Group.take_output`.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.groups.member import Joining, Member, MemberFacts, Syncing, Token

SESSION_MS_MIN: Final = 1_000
"""A shorter session would end by a pause of the gateway."""

SESSION_MS_MAX: Final = 30 * 60 * 1000
"""A member that died holds its partitions for as long."""

MEMBERS_MAX: Final = 1_000
"""Of a group: the leader is told of all of them in one answer."""

NO_GENERATION: Final = -1
"""A commit of a consumer that is no member."""


class GroupState(Enum):
    """See the module."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STORING = "Storing"
    STABLE = "Stable"

    @property
    def shown(self) -> str:
        """The name by which clients know it: in Kafka there is no storing."""
        return str((GroupState.COMPLETING if self is GroupState.STORING else self).value)


class Joined(NamedTuple):
    """The answer to JoinGroup."""

    code: Code
    member_id: str
    generation: int = NO_GENERATION
    protocol: str = ""
    leader_id: str = ""
    members: tuple[MemberFacts, ...] = ()
    """For the leader: all members."""


class Synced(NamedTuple):
    """The answer to SyncGroup."""

    code: Code
    assignment: bytes = b""


class Answer(NamedTuple):
    """An answer to a request that waited."""

    token: Token
    content: Joined | Synced


class Generation(NamedTuple):
    """A generation that must be durable before its assignments are given out; then :meth:`Group.stored` is called."""

    number: int
    session_ms_max: int
    """The longest session of a member: for so long the next coordinator takes no commit without a generation."""


class Output(NamedTuple):
    """The work that is left to the shell."""

    answers: tuple[Answer, ...]
    generation: Generation | None


class Group:
    """See the module."""

    def __init__(
        self, group_id: str, new_member_id: Callable[[], str], *, generation: int = 0, strangers_from_ms: int = 0
    ) -> None:
        """``generation``: the last that was durable. ``strangers_from_ms``: before this time members of an earlier
        coordinator may still think that they are in the group, and no commit without a generation is taken."""
        self.group_id = group_id
        self.generation = generation
        self.state = GroupState.EMPTY
        self.protocol_type: str | None = None
        self.protocol = ""
        self.leader_id = ""
        self._strangers_from_ms = strangers_from_ms
        self._new_member_id = new_member_id
        self._members: dict[str, Member] = {}
        self._instances: dict[str, str] = {}
        """Instance id -> member id, of each static member."""
        self._expected: dict[str, int] = {}
        """Ids that were given to members that have not joined with them, and until when they may."""
        self._deadline_ms: int | None = None
        """Until then members may join (PREPARING), or the leader may share the partitions (COMPLETING)."""
        self._durable = generation
        """The latest generation whose assignments may be given out, and which takes commits."""
        self._answers: list[Answer] = []
        self._to_store: Generation | None = None

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def members(self) -> Mapping[str, Member]:
        """The members by their ids."""
        return self._members

    @property
    def is_unused(self) -> bool:
        """Whether the group has no members, and no client has an id to join with."""
        return not self._members and not self._expected

    @property
    def bytes_held(self) -> int:
        """Memory that the members take, about."""
        return sum(member.bytes_held for member in self._members.values())

    def may_have_members(self, now_ms: int) -> bool:
        """Whether the group has members, or those of an earlier coordinator may still think that they are in it."""
        return bool(self._members) or now_ms < self._strangers_from_ms

    def go_on_from(self, generation: int) -> None:
        """The group had epochs up to this number meanwhile, of the consumer protocol; it has no members."""
        if generation > self.generation:
            assert not self._members, "a group is of one protocol while it has members"
            self.generation = self._durable = generation

    def take_output(self) -> Output:
        """The answers and the generation that were decided since the last call."""
        output = Output(tuple(self._answers), self._to_store)
        self._answers, self._to_store = [], None
        return output

    def next_deadline_ms(self) -> int | None:
        """When time decides something next, if nothing else happens."""
        times = [member.expires_at_ms for member in self._members.values() if member.join is None is member.sync]
        times += self._expected.values()
        if self._deadline_ms is not None:
            times.append(self._deadline_ms)
        return min(times, default=None)

    # --- joining ------------------------------------------------------------------------------------------------------

    def join(self, asked: Joining, token: Token, now_ms: int) -> None:
        """A member wants to be in the next generation, or to go on in the present one."""
        try:
            member = self._joining_member(asked, now_ms)
        except RefusedError as error:
            self._answers.append(Answer(token, Joined(error.code, asked.member_id)))
            return
        if member is None:
            member_id = self._new_member_id()
            self._expected[member_id] = now_ms + asked.session_ms
            self._answers.append(Answer(token, Joined(Code.MEMBER_ID_REQUIRED, member_id)))
            return
        is_new = member.member_id not in self._members
        is_unchanged = not is_new and member.protocols == asked.protocols
        member.session_ms, member.rebalance_ms, member.protocols = asked.session_ms, asked.rebalance_ms, asked.protocols
        member.client, member.host = asked.client, asked.host
        self._refuse_waiting(member, Code.UNKNOWN_MEMBER_ID)
        member.hear(now_ms)
        if is_new:
            self._add(member)
            self.protocol_type = asked.protocol_type
        if is_unchanged and self._goes_on(member, has_begun_again=member.member_id != asked.member_id):
            self._answers.append(Answer(token, self._joined(member)))
            return
        member.join = token
        self._prepare(now_ms)

    def _goes_on(self, member: Member, *, has_begun_again: bool) -> bool:
        """Whether a member that joins again, with nothing changed, keeps the present generation.

        In a generation that is not shared yet it has lost the answer; but one that has begun again has another id than
        the leader was told. In one that is shared, a leader that joins again wants to share anew; any other may have
        begun again.
        """
        if self.state is GroupState.COMPLETING:
            return not has_begun_again
        return self.state in (GroupState.STORING, GroupState.STABLE) and member.member_id != self.leader_id

    def _joining_member(self, asked: Joining, now_ms: int) -> Member | None:
        """The member that joins, new or known; None: it needs an id first.

        Raises:
            RefusedError: It cannot join.
        """
        if not SESSION_MS_MIN <= asked.session_ms <= SESSION_MS_MAX:
            raise RefusedError(Code.INVALID_SESSION_TIMEOUT, f"a session of {asked.session_ms} ms")
        self._check_protocols(asked)
        known = self._known(asked)
        if known is not None:
            return known
        if asked.member_id and self._expected.pop(asked.member_id, None) is None:
            raise RefusedError(Code.UNKNOWN_MEMBER_ID, f"the group has no member {asked.member_id}")
        if len(self._members) + len(self._expected) >= MEMBERS_MAX:
            raise RefusedError(Code.GROUP_MAX_SIZE_REACHED, f"the group has {MEMBERS_MAX} members")
        if not asked.member_id and asked.instance_id is None and asked.needs_id_first:
            return None
        member_id = asked.member_id or self._new_member_id()
        return Member(member_id, asked.instance_id, asked.session_ms, asked.rebalance_ms, asked.protocols, now_ms)

    def _known(self, asked: Joining) -> Member | None:
        """The member of the group that joins again."""
        if asked.instance_id is None or asked.instance_id not in self._instances:
            member = self._members.get(asked.member_id)
            if member is not None and member.instance_id != asked.instance_id:
                raise RefusedError(Code.UNKNOWN_MEMBER_ID, f"{asked.member_id} is a static member")
            return member
        current = self._instances[asked.instance_id]
        if asked.member_id and asked.member_id != current:
            raise RefusedError(Code.FENCED_INSTANCE_ID, f"{asked.instance_id} has begun again")
        return self._members[current] if asked.member_id else self._replaced(self._members[current])

    def _replaced(self, member: Member) -> Member:
        """The static member whose process has begun again: the same, under a new id. Its older one is fenced."""
        self._refuse_waiting(member, Code.FENCED_INSTANCE_ID)
        was_leader = member.member_id == self.leader_id
        del self._members[member.member_id]
        member.member_id = self._new_member_id()
        self._add(member)
        if was_leader:
            self.leader_id = member.member_id
        return member

    def _check_protocols(self, asked: Joining) -> None:
        names = {one.name for one in asked.protocols}
        others = [one for one in self._members.values() if not self._is_same(one, asked)]
        common = set.intersection(names, *({one.name for one in other.protocols} for other in others))
        if not common or (others and asked.protocol_type != self.protocol_type):
            raise RefusedError(Code.INCONSISTENT_GROUP_PROTOCOL, "the members have no protocol in common")

    @staticmethod
    def _is_same(member: Member, asked: Joining) -> bool:
        if asked.instance_id is not None and member.instance_id == asked.instance_id:
            return True
        return member.member_id == asked.member_id

    def _add(self, member: Member) -> None:
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id

    def _joined(self, member: Member) -> Joined:
        facts: tuple[MemberFacts, ...] = ()
        if member.member_id == self.leader_id:
            facts = tuple(
                MemberFacts(one.member_id, one.instance_id, one.metadata_for(self.protocol))
                for one in self._members.values()
            )
        return Joined(Code.NONE, member.member_id, self.generation, self.protocol, self.leader_id, facts)

    # --- generations --------------------------------------------------------------------------------------------------

    def _prepare(self, now_ms: int) -> None:
        """Begin to wait for all members, unless that has begun; the generation begins when all have joined."""
        if self.state is not GroupState.PREPARING:
            for member in self._members.values():
                self._refuse_sync(member, Code.REBALANCE_IN_PROGRESS)
            self.state = GroupState.PREPARING
            longest = max((member.rebalance_ms for member in self._members.values()), default=0)
            self._deadline_ms = now_ms + longest
        if all(member.join is not None for member in self._members.values()):
            self._begin_generation(now_ms)

    def _begin_generation(self, now_ms: int) -> None:
        """All members that are left are in it. Static members that have not joined again keep their place."""
        for member in [one for one in self._members.values() if one.join is None and one.instance_id is None]:
            self._remove(member)
        joined = [member for member in self._members.values() if member.join is not None]
        self.generation += 1
        if not joined:
            self._end()
            return
        self.state = GroupState.COMPLETING
        self.protocol = self._chosen_protocol()
        if all(member.member_id != self.leader_id for member in joined):
            self.leader_id = joined[0].member_id
        self._deadline_ms = now_ms + max(member.rebalance_ms for member in joined)
        for member in self._members.values():
            member.assignment = b""
        for member in joined:
            token, member.join = member.join, None
            assert token is not None, "it has joined"
            member.hear(now_ms)
            self._answers.append(Answer(token, self._joined(member)))

    def _end(self) -> None:
        """The group has no member that is there."""
        for member in list(self._members.values()):
            self._remove(member)
        self.state, self.leader_id, self.protocol, self.protocol_type = GroupState.EMPTY, "", "", None
        self._deadline_ms = None

    def _chosen_protocol(self) -> str:
        """The protocol that all know and most like best."""
        members = list(self._members.values())
        common = set.intersection(*({one.name for one in member.protocols} for member in members))
        votes = [next(one.name for one in member.protocols if one.name in common) for member in members]
        return max(votes, key=lambda name: (votes.count(name), name))

    def sync(self, asked: Syncing, token: Token, now_ms: int) -> None:
        """A member asks for its partitions; the leader gives those of all."""
        try:
            member = self._checked(asked.member_id, asked.instance_id, asked.generation)
        except RefusedError as error:
            self._answers.append(Answer(token, Synced(error.code)))
            return
        member.hear(now_ms)
        if self.state is GroupState.PREPARING:
            self._answers.append(Answer(token, Synced(Code.REBALANCE_IN_PROGRESS)))
            return
        if self.state is GroupState.STABLE:
            self._answers.append(Answer(token, Synced(Code.NONE, member.assignment)))
            return
        self._refuse_sync(member, Code.UNKNOWN_MEMBER_ID)
        member.sync = token
        if self.state is GroupState.COMPLETING and member.member_id == self.leader_id:
            self._share(asked.assignments)

    def _share(self, assignments: Mapping[str, bytes]) -> None:
        """The leader has shared the partitions. The generation is now to be made durable."""
        for member in self._members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self.state, self._deadline_ms = GroupState.STORING, None
        longest = max(member.session_ms for member in self._members.values())
        self._to_store = Generation(self.generation, longest)

    def stored(self, generation: int, now_ms: int) -> None:
        """The generation is durable. One that is over by now is left aside."""
        if self.state is not GroupState.STORING or generation != self.generation:
            return
        self.state, self._durable = GroupState.STABLE, generation
        for member in self._members.values():
            token, member.sync = member.sync, None
            if token is not None:
                member.hear(now_ms)
                self._answers.append(Answer(token, Synced(Code.NONE, member.assignment)))

    # --- requests of members ------------------------------------------------------------------------------------------

    def _checked(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        """The member that sends a request of this generation.

        Raises:
            RefusedError: It is no member, or of another generation.
        """
        if instance_id is not None and self._instances.get(instance_id, member_id) != member_id:
            raise RefusedError(Code.FENCED_INSTANCE_ID, f"{instance_id} has begun again")
        member = self._members.get(member_id)
        if member is None:
            raise RefusedError(Code.UNKNOWN_MEMBER_ID, f"the group has no member {member_id}")
        if generation != self.generation:
            raise RefusedError(Code.ILLEGAL_GENERATION, f"the generation is {self.generation}, not {generation}")
        return member

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> None:
        """A member is there.

        Raises:
            RefusedError: It is no member, of another generation, or is to join again.
        """
        member = self._checked(member_id, instance_id, generation)
        member.hear(now_ms)
        if self.state is GroupState.PREPARING:
            raise RefusedError(Code.REBALANCE_IN_PROGRESS, "a new generation begins")

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> None:
        """Whether offsets may be committed now; the caller hands the commit over in the same step.

        A consumer that is no member commits without a generation, while the group has no members.

        Raises:
            RefusedError: They may not.
        """
        if generation < 0:
            if self.may_have_members(now_ms):
                raise RefusedError(Code.UNKNOWN_MEMBER_ID, "the group has members")
            return
        self._checked(member_id, instance_id, generation).hear(now_ms)
        if self.generation != self._durable:
            raise RefusedError(Code.REBALANCE_IN_PROGRESS, "the partitions are being shared anew")

    def leave(self, member_id: str, instance_id: str | None, now_ms: int) -> None:
        """A member leaves. A static one may be named by its instance id alone.

        Raises:
            RefusedError: There is no such member.
        """
        if instance_id is not None and instance_id in self._instances:
            current = self._instances[instance_id]
            if member_id and member_id != current:
                raise RefusedError(Code.FENCED_INSTANCE_ID, f"{instance_id} has begun again")
            member_id = current
        if self._expected.pop(member_id, None) is not None:
            return
        member = self._members.get(member_id)
        if member is None:
            raise RefusedError(Code.UNKNOWN_MEMBER_ID, f"the group has no member {member_id}")
        self._refuse_waiting(member, Code.UNKNOWN_MEMBER_ID)
        self._remove(member)
        self._prepare(now_ms)

    # --- time ---------------------------------------------------------------------------------------------------------

    def pass_time(self, now_ms: int) -> None:
        """Remove members that were not heard of, and end waits that have lasted long enough."""
        self._expected = {one: until for one, until in self._expected.items() if until > now_ms}
        expired = [member for member in self._members.values() if member.is_expired(now_ms)]
        for member in expired:
            self._remove(member)
        if expired:
            self._prepare(now_ms)
        if self._deadline_ms is None or now_ms < self._deadline_ms:
            return
        if self.state is GroupState.PREPARING:
            self._begin_generation(now_ms)
        elif self.state is GroupState.COMPLETING:
            self._remove_those_that_do_not_sync()
            self._prepare(now_ms)

    def _remove_those_that_do_not_sync(self) -> None:
        for member in [one for one in self._members.values() if one.sync is None]:
            self._remove(member)

    def _remove(self, member: Member) -> None:
        del self._members[member.member_id]
        if member.instance_id is not None:
            del self._instances[member.instance_id]

    def _refuse_waiting(self, member: Member, code: Code) -> None:
        """Another request of the member, or its process begun again, takes the place of what waits."""
        if member.join is not None:
            self._answers.append(Answer(member.join, Joined(code, member.member_id)))
            member.join = None
        self._refuse_sync(member, code)

    def _refuse_sync(self, member: Member, code: Code) -> None:
        if member.sync is not None:
            self._answers.append(Answer(member.sync, Synced(code)))
            member.sync = None

    def check_invariants(self) -> None:
        """Raise AssertionError where the parts of the group contradict each other."""
        for member_id, member in self._members.items():
            assert member.member_id == member_id
            assert member.instance_id is None or self._instances[member.instance_id] == member_id
            assert member.join is None or self.state is GroupState.PREPARING, f"{member_id} waits in {self.state}"
            assert member.sync is None or self.state in (GroupState.COMPLETING, GroupState.STORING)
            assert not (set(self._expected) & {member_id})
        assert len(self._instances) == sum(one.instance_id is not None for one in self._members.values())
        assert (self.state is GroupState.EMPTY) == (not self._members), f"{self.state}: {list(self._members)}"
        waits = self.state in (GroupState.PREPARING, GroupState.COMPLETING)
        assert (self._deadline_ms is not None) == waits
        if self.state in (GroupState.COMPLETING, GroupState.STORING):
            assert self.leader_id in self._members or self.state is GroupState.STORING
