"""The groups of the consumer protocol that a coordinator has, for one term of its log.

What is decided is decided by :class:`~octavo.gateway.groups.epoch_group.EpochGroup`. What follows from a heartbeat is
handed over to the log in the same step, and the heartbeat is answered once everything that was handed over of its group
is acknowledged (rule K16). If the term ends before, it is answered with NOT_COORDINATOR.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from octavo.gateway.codes import RefusedError
from octavo.gateway.coordinating.group_log import GroupLog
from octavo.gateway.groups.entries import EpochStored, GroupEntry, MemberLeft, MemberStored
from octavo.gateway.groups.epoch_group import Change, EpochBegun, EpochGroup, FindTopic, Heartbeat, MemberChanged, Told


class EpochGroups:
    """See the module."""

    def __init__(
        self,
        log: GroupLog,
        find_topic: FindTopic,
        new_member_id: Callable[[], str],
        *,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        session_ms: int,
    ) -> None:
        """``find_topic``: the topics that there are now. ``now_ms``: the time of day."""
        self._log = log
        self._find_topic = find_topic
        self._new_member_id = new_member_id
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._session_ms = session_ms
        self._groups: dict[str, EpochGroup] = {}
        """Those that have members."""
        self._last: dict[str, asyncio.Future[None]] = {}
        """The latest entry of a group that was handed over, while it is not acknowledged."""
        self._bytes_of: dict[str, int] = {}
        self.bytes_held = 0
        """Memory that the members take, about."""
        for group_id, record in log.commits.records.items():
            if record.members:
                self._keep(self._made(group_id))

    @property
    def groups(self) -> Mapping[str, EpochGroup]:
        """Those that have members, by their ids. Not to be changed."""
        return self._groups

    def is_of_epochs(self, group_id: str) -> bool:
        """Whether the members of the group, or the last that it had, are of this protocol."""
        record = self._log.commits.find(group_id)
        return group_id in self._groups or (record is not None and record.has_epochs)

    def _made(self, group_id: str, epoch: int = 0) -> EpochGroup:
        record = self._log.commits.projected(group_id)
        return EpochGroup(
            group_id,
            self._new_member_id,
            epoch=max(epoch, 0 if record is None else record.generation),
            members=() if record is None else record.members.values(),
            now_ms=self._steady_ms(),
            session_ms=self._session_ms,
        )

    def heartbeat(
        self, group_id: str, said: Heartbeat, generation: int, check_bytes: Callable[[int], object]
    ) -> "tuple[Told, asyncio.Future[None] | None]":
        """A member joins, leaves, or is there: the answer, and what must be done before it leaves.

        ``generation``: the latest of the group while it was of the classic protocol. ``check_bytes`` raises
        :class:`RefusedError` if there is no memory for this number of bytes more.

        Raises:
            RefusedError: It is no member any more, or cannot be one, or another gateway may coordinate the group.
        """
        group = self._groups.get(group_id) or self._made(group_id, generation)
        told = group.heartbeat(said, self._find_topic, self._steady_ms(), check_bytes)
        self._settle(group)
        return told, self._last.get(group_id)

    def _settle(self, group: EpochGroup) -> None:
        """Hand over what the group has decided."""
        group_id = group.group_id
        entries = [self._entry(group_id, change) for change in group.take_changes()]
        if entries or group_id in self._groups:
            self._keep(group)
        for entry in entries:
            last = self._log.add(entry)
            self._last[group_id] = last
            last.add_done_callback(lambda done: self._stored(group_id, done))

    def _stored(self, group_id: str, done: "asyncio.Future[None]") -> None:
        if not done.cancelled():
            done.exception()  # a heartbeat that waits for it is refused; there may be none
        if self._last.get(group_id) is done:
            del self._last[group_id]

    def _entry(self, group_id: str, change: Change) -> GroupEntry:
        match change:
            case EpochBegun(number):
                return EpochStored(group_id, number, self._now_ms())
            case MemberChanged(member):
                return MemberStored(group_id, member)
            case _:
                return MemberLeft(group_id, change.member_id)

    def _keep(self, group: EpochGroup) -> None:
        """Count the group, or forget it, if it has no members."""
        before = self._bytes_of.pop(group.group_id, 0)
        self._groups.pop(group.group_id, None)
        if group.members:
            self._groups[group.group_id] = group
            self._bytes_of[group.group_id] = group.bytes_held
        self.bytes_held += self._bytes_of.get(group.group_id, 0) - before

    def pass_time(self) -> None:
        """End the sessions that have lasted long enough, and look at the topics."""
        now_ms = self._steady_ms()
        for group in list(self._groups.values()):
            group.pass_time(self._find_topic, now_ms)
            with suppress(RefusedError):  # the term is over
                self._settle(group)
