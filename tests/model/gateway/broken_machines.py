"""The machines of the gateway, each with one rule broken: canaries of the model check."""

from collections.abc import Iterable

from octavo.gateway.groups.commits import Commits, GroupRecord, Restating
from octavo.gateway.groups.entries import GroupEntry
from octavo.gateway.groups.epoch_group import EpochGroup, FindTopic, Heartbeat
from octavo.gateway.groups.epoch_member import NO_PLACES, EpochMember, Places
from octavo.gateway.groups.group import Group, GroupState
from octavo.gateway.groups.member import Member, Syncing, Token
from octavo.gateway.groups.places import Place
from octavo.gateway.records.appends import Appends
from octavo.gateway.records.batch import BatchHeader
from octavo.gateway.records.producers import WINDOW, Producers, Repeat

# --- producers (rules K4 and K5) --------------------------------------------------------------------------------------


class WithoutEpochs(Producers):
    """Takes each batch for one of the producer's latest epoch."""

    def judge(self, batch: BatchHeader) -> Repeat | None:
        known = dict(self).get(batch.producer_id)
        latest = batch.producer_epoch if known is None else max(known.last.epoch, batch.producer_epoch)
        return super().judge(batch._replace(producer_epoch=latest))


class WindowOfFour(Producers):
    """Remembers one batch too few."""

    window = WINDOW - 1


class BelievesEverySequence(Producers):
    """Takes the first batch of any producer for its first."""

    def __init__(self) -> None:
        super().__init__(forgotten_below=2**63)


class AnswersEarly(Appends):
    """Answers a repeat before the first is durable."""

    def judge(self, batch: BatchHeader) -> Repeat | None:
        repeat = super().judge(batch)
        return None if repeat is None else repeat._replace(is_acknowledged=True)


# --- commits (rule K10) -----------------------------------------------------------------------------------------------


class RestatesWhatIsSeen(Commits):
    """Adds the acknowledged offsets of a group once more, behind newer ones that are under way."""

    def projected(self, group_id: str) -> GroupRecord | None:
        return self.find(group_id)


class ForgetsWhatIsUnderWay(Commits):
    """Restates the groups that can be seen, and no group whose first commit is under way."""

    def begin_restating(self) -> Restating:
        begun = super().begin_restating()
        return begun._replace(group_ids=tuple(self.records))


class ShowsEarly(Commits):
    """Shows, and so answers, what was handed over."""

    def hand_over(self, entry: GroupEntry, size: int) -> int:
        position = super().hand_over(entry, size)
        self._apply(entry)
        return position


# --- groups (rule K11) ------------------------------------------------------------------------------------------------


class GenerationsNotCompared(Group):
    """Takes what a member sends for a request of the present generation."""

    def _checked(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        return super()._checked(member_id, instance_id, self.generation)


class SharesTwice(Group):
    """Takes a second SyncGroup of the leader for a better one."""

    def sync(self, asked: Syncing, token: Token, now_ms: int) -> None:
        if self.state is GroupState.STABLE and asked.assignments and asked.generation == self.generation:
            for member in self.members.values():
                member.assignment = asked.assignments.get(member.member_id, b"")
        super().sync(asked, token, now_ms)


class GivesOutEarly(Group):
    """Gives assignments out before the generation is durable."""

    def sync(self, asked: Syncing, token: Token, now_ms: int) -> None:
        super().sync(asked, token, now_ms)
        self.stored(self.generation, now_ms)


class TakesStrangers(Group):
    """Takes commits without a generation at once after it has begun."""

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> None:
        if generation >= 0 or self.members:
            super().check_commit(member_id, instance_id, generation, now_ms)


class WaitsForAll(Group):
    """Waits for members that do not join again for as long as they are heard of."""

    def pass_time(self, now_ms: int) -> None:
        if self.state is not GroupState.PREPARING or any(one.is_expired(now_ms) for one in self.members.values()):
            super().pass_time(now_ms)


class ForgetsWhoSyncs(Group):
    """Answers only the leader's SyncGroup once the generation is durable."""

    def stored(self, generation: int, now_ms: int) -> None:
        for member in self.members.values():
            if member.member_id != self.leader_id:
                member.sync = None
        super().stored(generation, now_ms)


# --- groups of the consumer protocol (rule K16) -----------------------------------------------------------------------


class EpochsNotCompared(EpochGroup):
    """Takes commits of members in any epoch."""

    def check_sender(self, member_id: str, instance_id: str | None, epoch: int, places: Iterable[Place] = ()) -> None:
        member = self.members.get(member_id)
        super().check_sender(member_id, instance_id, epoch if member is None else member.epoch, places)


class CommitsOfAll(EpochGroup):
    """Takes commits of any partition from each member."""

    def check_sender(self, member_id: str, instance_id: str | None, epoch: int, places: Iterable[Place] = ()) -> None:
        super().check_sender(member_id, instance_id, epoch)


class GivesToTwo(EpochGroup):
    """Gives partitions to the next member while the last one has them."""

    def _is_free(self, place: Place, member_id: str) -> bool:
        return True


class TakesBackUnasked(EpochGroup):
    """Takes partitions for given back as soon as a member is to give them back."""

    def _has_now(self, said: Heartbeat) -> Places | None:
        return NO_PLACES


class RemembersTooMuch(EpochGroup):
    """Goes by what a member said before it was told to give partitions back."""

    def _reconcile(self, member: EpochMember, said: Heartbeat, now_ms: int) -> EpochMember:
        after = super()._reconcile(member, said, now_ms)
        if said.owned is not None:
            self._has[member.member_id] = said.owned & after.owned
        return after


class BelievesOnAnyConnection(EpochGroup):
    """Goes by what a member says on another connection than that on which it was told."""

    def _has_heard(self, said: Heartbeat) -> bool:
        return True


class KeepsTheDead(EpochGroup):
    """Looks at the topics as time passes, and not at the members."""

    def pass_time(self, find_topic: FindTopic, now_ms: int) -> None:
        self.refresh(find_topic)
