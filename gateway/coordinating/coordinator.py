"""The coordinator of some of the consumer groups: requests, sessions and commits, for one term of its log.

What is decided of members is decided by :class:`~octavo.gateway.groups.group.Group`, or, in groups of the consumer
protocol, behind :class:`~octavo.gateway.coordinating.epoch_groups.EpochGroups`; what is said of commits, by
:class:`~octavo.gateway.groups.commits.Commits`. This class brings them together. A group is of one protocol as long as
it has members, and then of that of the next member that joins. A request is checked, and what follows
from it is handed over to the log, in one step (rule K10). So a commit of a member whose generation is over is refused,
and one that was handed over stands in the log before the generation that follows.

Requests that wait, for other members or for the log, are answered with NOT_COORDINATOR when the term ends.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Final, NamedTuple

from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.coordinating.epoch_groups import EpochGroups
from octavo.gateway.coordinating.group_log import GroupLog
from octavo.gateway.groups.commits import OFFSETS_BYTES_MAX, RESTATE_BYTES, GroupRecord
from octavo.gateway.groups.entries import Committed, GenerationStored, GroupDeleted, OffsetsDeleted, commits_of
from octavo.gateway.groups.epoch_group import JOINS, SESSION_MS, EpochGroup, FindTopic, Heartbeat, Told
from octavo.gateway.groups.group import Group, Joined, Synced
from octavo.gateway.groups.member import Joining, Syncing, Token
from octavo.gateway.groups.places import Place

GROUP_ID_CHARACTERS_MAX: Final = 255

EXPIRY_MS: Final = 7 * 24 * 3600 * 1000
"""A group without members whose last commit is so old is forgotten with its offsets, as with Kafka."""

EXPIRY_CHECK_MS: Final = 600 * 1000
"""Between two looks for such groups."""


class GroupLimits(NamedTuple):
    """The bounds of each coordinator (rule K13)."""

    groups_max: int = 2000
    """They lie in memory."""
    members_bytes_max: int = 8 * 1024 * 1024
    """Of what the members of all groups have said and were given."""
    offsets_bytes_max: int = OFFSETS_BYTES_MAX
    """Of committed offsets in memory."""
    restate_bytes: int = RESTATE_BYTES
    """Of entries in the log, before what is right is added once more and the log truncated."""
    epoch_session_ms: int = SESSION_MS
    """A member of the consumer protocol that is not heard of for this time is removed."""
    opening_seconds_max: float = 5.0
    """A request waits no longer for a coordinator that reads its log; the gateway goes on with it. Clients try
    again."""


class Committing(NamedTuple):
    """The sender of a commit: a member, or a consumer that is none."""

    member_id: str
    instance_id: str | None
    generation: int
    """Below 0: it is no member."""


class Clocks(NamedTuple):
    """The clocks of a gateway."""

    now_ms: Callable[[], int]
    """The time of day: commits bear it, and groups expire by it."""
    steady_ms: Callable[[], int]
    """Goes on evenly, and has no meaning: members' sessions end by it."""


class Coordinator:
    """See the module."""

    def __init__(
        self,
        log: GroupLog,
        clocks: Clocks,
        new_member_id: Callable[[], str],
        limits: GroupLimits,
        find_topic: FindTopic,
    ) -> None:
        """``find_topic``: the topics that there are now."""
        self.log = log
        self._epochs = EpochGroups(
            log,
            find_topic,
            new_member_id,
            now_ms=clocks.now_ms,
            steady_ms=clocks.steady_ms,
            session_ms=limits.epoch_session_ms,
        )
        self._limits = limits
        self._clocks = clocks
        self._new_member_id = new_member_id
        self._loop = asyncio.get_running_loop()
        self._groups = {group_id: self._new_group(group_id) for group_id in log.commits.records}
        self._in_use: set[str] = set()
        """The groups that have members, or are about to."""
        self._waiting: dict[Token, asyncio.Future[Joined | Synced]] = {}
        self._tokens = count(1)
        self._members_bytes = 0
        self._members_bytes_of: dict[str, int] = {}
        self._expiry_checked_ms = clocks.steady_ms()

    # --- groups -------------------------------------------------------------------------------------------------------

    @property
    def groups(self) -> Mapping[str, Group]:
        """The groups by their ids. Not to be changed."""
        return self._groups

    @property
    def epoch_groups(self) -> Mapping[str, EpochGroup]:
        """Those groups whose members are of the consumer protocol, by their ids. Not to be changed."""
        return self._epochs.groups

    def is_of_epochs(self, group_id: str) -> bool:
        """Whether the members of the group, or the last that it had, are of the consumer protocol."""
        return self._epochs.is_of_epochs(group_id)

    def has_members(self, group_id: str) -> bool:
        """Whether the group has members."""
        group = self._groups.get(group_id)
        return group_id in self._epochs.groups or (group is not None and bool(group.members))

    def record(self, group_id: str) -> GroupRecord | None:
        """The commits of a group. Not to be changed.

        Raises:
            RefusedError: Another gateway may coordinate the group.
        """
        self.log.check_leads()
        return self.log.commits.find(group_id)

    def _new_group(self, group_id: str) -> Group:
        record = self.log.commits.find(group_id)
        if record is None:
            return Group(group_id, self._new_member_id)
        strangers_from_ms = self._clocks.steady_ms() + record.session_ms if record.session_ms else 0
        return Group(group_id, self._new_member_id, generation=record.generation, strangers_from_ms=strangers_from_ms)

    def _group(self, group_id: str) -> Group:
        """The group, new if there is none. :meth:`_keep` keeps it."""
        group = self._groups.get(group_id)
        if group is None:
            if len(self._groups) >= self._limits.groups_max:
                text = f"this coordinator has {self._limits.groups_max} groups"
                raise RefusedError(Code.GROUP_MAX_SIZE_REACHED, text)
            group = self._new_group(group_id)
        return group

    def _known(self, group_id: str) -> Group:
        self.log.check_leads()
        group = self._groups.get(group_id)
        if group is None:
            raise RefusedError(Code.UNKNOWN_MEMBER_ID, f"there is no group {group_id!r}")
        return group

    # --- members ------------------------------------------------------------------------------------------------------

    async def join(self, group_id: str, asked: Joining) -> Joined:
        """A member joins; it waits until all have.

        Raises:
            RefusedError: The groups are too large, or another gateway may coordinate them.
        """
        self.log.check_leads()
        group = self._group(group_id)
        if group_id in self._epochs.groups:
            text = f"the members of {group_id!r} use the consumer protocol"
            raise RefusedError(Code.INCONSISTENT_GROUP_PROTOCOL, text)
        group.go_on_from(self._generation(group_id))
        said_before = group.members.get(asked.member_id)
        self._check_members_bytes(asked.bytes_held - (0 if said_before is None else said_before.bytes_held))
        joined = await self._ask(group, lambda token, now_ms: group.join(asked, token, now_ms))
        assert isinstance(joined, Joined)
        return joined

    async def sync(self, group_id: str, asked: Syncing) -> Synced:
        """A member asks for its partitions; it waits until the generation is durable.

        Raises:
            RefusedError: There is no such group, it is too large, or another gateway may coordinate it.
        """
        group = self._known(group_id)
        self._check_members_bytes(sum(map(len, asked.assignments.values())))
        synced = await self._ask(group, lambda token, now_ms: group.sync(asked, token, now_ms))
        assert isinstance(synced, Synced)
        return synced

    def heartbeat(self, group_id: str, sender: Committing) -> None:
        """A member is there.

        Raises:
            RefusedError: It is no member, of another generation, or is to join again.
        """
        group = self._known(group_id)
        group.heartbeat(sender.member_id, sender.instance_id, sender.generation, self._clocks.steady_ms())

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> None:
        """A member leaves.

        Raises:
            RefusedError: There is no such member.
        """
        group = self._known(group_id)
        group.leave(member_id, instance_id, self._clocks.steady_ms())
        self._settle(group)

    async def epoch_heartbeat(self, group_id: str, said: Heartbeat) -> Told:
        """A member of the consumer protocol joins, leaves, or is there.

        Raises:
            RefusedError: It is no member any more, or cannot be one, or another gateway may coordinate the group.
        """
        self.log.check_leads()
        group = self._group(group_id)
        present = self._epochs.groups.get(group_id)
        if present is None:
            if said.epoch != JOINS:
                raise RefusedError(Code.UNKNOWN_MEMBER_ID, f"the group has no member {said.member_id}")
            if not group.is_unused or group.may_have_members(self._clocks.steady_ms()):
                text = f"the members of {group_id!r} use the classic protocol"
                raise RefusedError(Code.GROUP_ID_NOT_FOUND, text)
        generation = max(group.generation, self._generation(group_id))
        told, stored = self._epochs.heartbeat(group_id, said, generation, self._check_members_bytes)
        self._groups[group_id] = group
        if stored is not None:
            await self._added([stored])
        self.log.check_leads()
        return told

    def _generation(self, group_id: str) -> int:
        """The latest of the group that was handed over, a generation or an epoch."""
        record = self.log.commits.projected(group_id)
        return 0 if record is None else record.generation

    def check_reader(self, group_id: str, member_id: str, epoch: int) -> None:
        """Whether a member that says its epoch is told what is committed.

        Raises:
            RefusedError: It is not in the group, or in another epoch.
        """
        group = self._epochs.groups.get(group_id)
        if group is None:
            if epoch >= 0 and member_id and self.is_of_epochs(group_id):
                raise RefusedError(Code.UNKNOWN_MEMBER_ID, f"the group has no member {member_id}")
        elif member_id or epoch >= 0:
            group.check_sender(member_id, None, epoch)

    def _check_members_bytes(self, more: int) -> None:
        if self._members_bytes + self._epochs.bytes_held + more > self._limits.members_bytes_max:
            raise RefusedError(Code.GROUP_MAX_SIZE_REACHED, "the members of this coordinator's groups say too much")

    async def _ask(self, group: Group, act: Callable[[Token, int], None]) -> Joined | Synced:
        token = Token(next(self._tokens))
        answer: asyncio.Future[Joined | Synced] = self._loop.create_future()
        self._waiting[token] = answer
        try:
            act(token, self._clocks.steady_ms())
            self._settle(group)
            content = await answer
        finally:
            del self._waiting[token]
        self.log.check_leads()
        return content

    def _settle(self, group: Group) -> None:
        """Do what the group has decided."""
        self._keep(group)
        output = group.take_output()
        for answer in output.answers:
            waiting = self._waiting.get(answer.token)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer.content)
        if output.generation is not None:
            number, session_ms = output.generation
            self._store_generation(group, number, session_ms)
        elif not group.may_have_members(self._clocks.steady_ms()) and self._has_members_in_log(group.group_id):
            self._store_generation(group, group.generation, 0)

    def _keep(self, group: Group) -> None:
        """Count the group among those in use, or forget it, if nothing is known of it."""
        group_id = group.group_id
        held = group.bytes_held
        self._members_bytes += held - self._members_bytes_of.get(group_id, 0)
        if not group.is_unused:
            self._members_bytes_of[group_id] = held
            self._groups[group_id] = group
            self._in_use.add(group_id)
            return
        self._members_bytes_of.pop(group_id, None)
        self._in_use.discard(group_id)
        if not self.log.commits.knows(group_id):
            self._groups.pop(group_id, None)

    def _has_members_in_log(self, group_id: str) -> bool:
        record = self.log.commits.projected(group_id)
        return record is not None and record.session_ms > 0

    def _store_generation(self, group: Group, generation: int, session_ms: int) -> None:
        """Make a generation durable. If that fails, the term is over, and all requests that wait are answered so."""
        try:
            stored = self.log.add(GenerationStored(group.group_id, generation, session_ms, self._clocks.now_ms()))
        except RefusedError:
            return
        stored.add_done_callback(lambda done: self._stored(group, generation, done))

    def _stored(self, group: Group, generation: int, done: "asyncio.Future[None]") -> None:
        is_stored = not done.cancelled() and done.exception() is None
        if is_stored and self._groups.get(group.group_id) is group:
            group.stored(generation, self._clocks.steady_ms())
            self._settle(group)

    # --- commits ------------------------------------------------------------------------------------------------------

    async def commit(self, group_id: str, sender: Committing, offsets: Mapping[Place, Committed]) -> None:
        """Commit offsets; they are durable when it returns.

        Raises:
            RefusedError: The sender may not commit now, there is no room, or another gateway may coordinate the group.
        """
        self.log.check_leads()
        group = self._group(group_id)
        epochs = self._epochs.groups.get(group_id)
        if epochs is None:
            group.check_commit(sender.member_id, sender.instance_id, sender.generation, self._clocks.steady_ms())
        else:
            epochs.check_sender(sender.member_id, sender.instance_id, sender.generation, offsets)
        self.log.commits.check_room(group_id, offsets)
        if offsets:
            self._groups[group_id] = group
            await self._added([self.log.add(entry) for entry in commits_of(group_id, offsets)])

    async def delete_offsets(self, group_id: str, places: Iterable[Place]) -> None:
        """Delete committed offsets of a group that has no members.

        Raises:
            RefusedError: The group has members, or is not known, or another gateway may coordinate it.
        """
        self._check_deletable(group_id)
        await self._added([self.log.add(OffsetsDeleted(group_id, tuple(places)))])

    async def delete(self, group_id: str) -> None:
        """Delete a group that has no members, with its offsets.

        Raises:
            RefusedError: The group has members, or is not known, or another gateway may coordinate it.
        """
        self._check_deletable(group_id)
        added = self.log.add(GroupDeleted(group_id))
        del self._groups[group_id]
        await self._added([added])

    def _check_deletable(self, group_id: str) -> None:
        self.log.check_leads()
        group = self._groups.get(group_id)
        if group is None or not self.log.commits.knows(group_id):
            raise RefusedError(Code.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
        is_used = not group.is_unused or group_id in self._epochs.groups
        if is_used or group.may_have_members(self._clocks.steady_ms()):
            raise RefusedError(Code.NON_EMPTY_GROUP, f"group {group_id!r} has members")

    @staticmethod
    async def _added(entries: list["asyncio.Future[None]"]) -> None:
        if entries:
            await asyncio.wait(entries)
        for one in entries:
            one.result()

    # --- time ---------------------------------------------------------------------------------------------------------

    def pass_time(self) -> None:
        """End the sessions and the waits that have lasted long enough, and forget groups that are not used."""
        now_ms = self._clocks.steady_ms()
        try:
            self.log.check_leads()
        except RefusedError:
            return
        for group_id in list(self._in_use):
            group = self._groups[group_id]
            group.pass_time(now_ms)
            self._settle(group)
        self._epochs.pass_time()
        if now_ms >= self._expiry_checked_ms + EXPIRY_CHECK_MS:
            self._expiry_checked_ms = now_ms
            self._expire(now_ms)

    def _expire(self, now_ms: int) -> None:
        """A group that had members counts from when they were known to be gone."""
        for group_id, record in list(self.log.commits.records.items()):
            group = self._groups.get(group_id)
            if group_id in self._epochs.groups:
                continue
            if group is None or not group.is_unused or group.may_have_members(now_ms) or self.log.lost is not None:
                continue
            if record.session_ms:
                self._settle(group)
            elif self._clocks.now_ms() - record.at_ms > EXPIRY_MS and not self.log.commits.is_under_way(group_id):
                del self._groups[group_id]
                with contextlib.suppress(RefusedError):
                    self.log.add(GroupDeleted(group_id))

    def end(self, reason: RefusedError) -> None:
        """The term is over: answer the requests that wait."""
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(RefusedError(reason.code, reason.text))
                answer.exception()  # the request may be gone
