"""Everything that can happen to a group of the consumer protocol, for the explorer of tests/model/engine.

Consumers join, say what they have, give partitions back, take others, commit, leave, stand still until they are
removed, and begin again. What the coordinator hands over becomes durable entry by entry, and answers wait for that. The
coordinator is replaced by one that knows what was durable, and any number of the entries that were under way: the
answers that waited are lost. What decides is production code. Who has which partition is counted here from the answers
alone, and whose commit may land is computed from the entries of the log.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.groups.epoch_group import (
    GOES_AWAY,
    JOINS,
    LEAVES,
    SESSION_MS,
    Change,
    EpochBegun,
    EpochGroup,
    Heartbeat,
    MemberChanged,
    MemberRemoved,
    Told,
)
from octavo.gateway.groups.epoch_member import NO_PLACES, EpochMember, Places
from octavo.gateway.groups.places import Place
from octavo.gateway.groups.sharing import TopicShape

REBALANCE_MS = 5_000

ROUNDS_MAX = 8
"""Of heartbeats of all consumers, until each has its share: the sessions of dead members end meanwhile."""


class Consumer(NamedTuple):
    """A consumer, as it knows itself."""

    member_id: str
    epoch: int = JOINS
    has: Places = NO_PLACES
    """The partitions that it reads."""
    may_have: Places = NO_PLACES
    """Those that the last answer named."""
    is_waiting: bool = False
    """Whether a heartbeat of it has no answer yet."""
    way: int = 0
    """Its connection: a new one each time that an answer is lost."""
    taking: Places | None = None
    """What it is about to have: its program begins slowly, and is told something else meanwhile."""
    has_said: bool = False
    """Whether it has said what it has, on this connection, and has done since what it was told last."""


class Machine:
    """The group, as a value: it is copied before it changes."""

    def __init__(self, group: EpochGroup) -> None:
        self.group = group
        self.key = tuple(
            frozenset(value.items()) if isinstance(value, dict) else tuple(value) if isinstance(value, list) else value
            for value in vars(group).values()
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Machine) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def copied(self) -> EpochGroup:
        """A group that can be changed."""
        made = copy(self.group)
        for name, value in vars(made).items():
            if isinstance(value, dict | list):
                setattr(made, name, value.copy())
        return made


class Stored(NamedTuple):
    """What the entries of a log say."""

    epoch: int = 0
    members: tuple[EpochMember, ...] = ()

    def then(self, change: Change) -> "Stored":
        match change:
            case EpochBegun(number):
                return self._replace(epoch=number)
            case MemberChanged(member):
                others = tuple(one for one in self.members if one.member_id != member.member_id)
                return self._replace(members=tuple(sorted((*others, member))))
            case MemberRemoved(member_id):
                return self._replace(members=tuple(one for one in self.members if one.member_id != member_id))


class Waiting(NamedTuple):
    """An answer that waits for entries."""

    consumer: int
    behind: int
    """The number of entries under way that are to be durable before."""
    told: Told


class State(NamedTuple):
    """One state of the world."""

    machine: Machine
    consumers: tuple[Consumer, ...]
    now_ms: int = 0
    durable: Stored = Stored()
    under_way: tuple[Change, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    partitions: int = 2
    lost: frozenset[str] = frozenset()
    """Members that have left, or were removed because they were not heard of or gave nothing back."""
    told_epoch: int = 0
    """The highest that any answer has named."""
    floor: int = 0
    """That one, when the present coordinator began."""
    wrong: str | None = None
    begun_slowly: int = 0
    """How often a consumer has begun to take partitions, and was not ready at once."""
    steps: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
    """How often time has passed, a consumer has left or begun again, the coordinator was replaced, the topic grew, and
    an answer was lost."""


@dataclass(frozen=True)
class EpochWorld:
    """The model. ``consumers``: instance ids of static members, or None."""

    name: str
    consumers: tuple[str | None, ...]
    times: int = 0
    changes: int = 0
    coordinators: int = 0
    grows: int = 0
    losses: int = 0
    slowly: int = 1
    """How often a consumer begins to take partitions and is told something else meanwhile. Twice, and it may read for a
    moment what is another one's: the protocol does not tell what is under way (rule K16)."""
    assignor: str = "uniform"
    make: Callable[..., EpochGroup] = EpochGroup
    answers_early: bool = False
    """A defect: answers do not wait for entries."""
    forgets_members: bool = False
    """A defect: a new coordinator knows the epoch alone."""

    def broken(
        self,
        make: Callable[..., EpochGroup] = EpochGroup,
        *,
        answers_early: bool = False,
        forgets_members: bool = False,
    ) -> "EpochWorld":
        """The same with a group, or a coordinator, that has a defect."""
        return replace(self, make=make, answers_early=answers_early, forgets_members=forgets_members)

    # --- the model ----------------------------------------------------------------------------------------------------

    def initial_states(self) -> Iterable[State]:
        consumers = tuple(Consumer(f"{at}") for at in range(len(self.consumers)))
        return [State(Machine(self._group(Stored(), 0)), consumers)]

    def _group(self, stored: Stored, now_ms: int) -> EpochGroup:
        members = () if self.forgets_members else stored.members
        return self.make("group", str, epoch=stored.epoch, members=members, now_ms=now_ms)

    def successors(self, state: State) -> Sequence[tuple[str, State]]:
        found = list(self._of_consumers(state))
        times, changes, coordinators, grown, lost = state.steps
        if state.under_way:
            found.append(("an entry is durable", self._acknowledged(state)))
        deadline = state.machine.group.next_deadline_ms()
        if times < self.times and deadline is not None:
            later = state._replace(steps=(times + 1, changes, coordinators, grown, lost))
            found.append(("time passes", self._later(later, deadline)))
        if grown < self.grows:
            steps = times, changes, coordinators, grown + 1, lost
            grows = state._replace(partitions=state.partitions + 1, steps=steps)
            found.append(("the topic grows", self._later(grows, state.now_ms)))
        if coordinators < self.coordinators:
            following = state._replace(steps=(times, changes, coordinators + 1, grown, lost))
            found += [
                (f"the coordinator is replaced; {count} entries are in the log", self._replaced(following, count))
                for count in range(len(state.under_way) + 1)
            ]
        return [(action, after) for action, after in found if after != state]

    def representative(self, state: State) -> State:
        return state

    def violation(self, state: State) -> str | None:
        if state.wrong is not None:
            return state.wrong
        for at, one in enumerate(state.consumers):
            for other in state.consumers[:at]:
                both = one.has & other.has
                if both and not {one.member_id, other.member_id} & state.lost:
                    return f"two owners: {one.member_id} and {other.member_id} have {sorted(both)}"
        try:
            state.machine.group.check_invariants()
        except AssertionError as error:
            return f"invariant: {error}"
        return self._is_never_shared(state)

    def _is_never_shared(self, state: State) -> str | None:
        """Heartbeats of all consumers do not give each partition to one of them."""
        for _ in range(ROUNDS_MAX):
            for at in (one for one in range(len(state.consumers)) for _ in range(2)):
                state = self._all_durable(self._heartbeat(self._all_durable(state), at))
                for _ in range(3):
                    one = state.consumers[at]
                    if one.has != one.may_have or one.taking is not None:
                        state = self._moved(state, at)
            had = sorted(place for one in state.consumers for place in one.has)
            if state.wrong is not None or had == [Place("t", one) for one in range(state.partitions)]:
                return state.wrong
            state = self._later(state, state.now_ms + SESSION_MS // 3)
        return f"never shared: {[(one.member_id, sorted(one.has)) for one in state.consumers]}"

    def _all_durable(self, state: State) -> State:
        while state.under_way:
            state = self._acknowledged(state)
        return state

    def stuck(self, state: State) -> str | None:
        return None

    def describe_action(self, state: State, action: str) -> str:
        return action

    def describe_state(self, state: State) -> list[str]:
        return [
            f"group {vars(state.machine.group)}", *(f"consumer {one}" for one in state.consumers),
            f"durable {state.durable}", f"under way {state.under_way}", f"waiting {state.waiting}",
        ]  # fmt: skip

    # --- what happens -------------------------------------------------------------------------------------------------

    def _of_consumers(self, state: State) -> Iterator[tuple[str, State]]:
        for at, consumer in enumerate(state.consumers):
            if consumer.epoch != JOINS:
                yield f"{at} commits", self._commit(state, consumer, at)
            if consumer.has != consumer.may_have or consumer.taking is not None:
                yield f"{at} gives back or takes", self._moved(state, at)
                if consumer.taking is None and consumer.has <= consumer.may_have and state.begun_slowly < self.slowly:
                    yield f"{at} begins to take", self._begins(state, at)
            if consumer.is_waiting:
                if state.steps[4] < self.losses:
                    yield f"{at} does not get the answer", self._lost_answer(state, at)
                continue
            yield f"{at} is heard of", self._heartbeat(state, at)
            if state.steps[1] < self.changes and consumer.epoch != JOINS:
                times, changes, coordinators, grown, lost = state.steps
                changed = state._replace(steps=(times, changes + 1, coordinators, grown, lost))
                again = Consumer(f"{consumer.member_id}'", way=consumer.way + 1)
                yield f"{at} leaves", _with_consumer(self._left(changed, at, LEAVES), at, again)
                dead = changed._replace(lost=changed.lost | {consumer.member_id})
                yield f"{at} begins again, and has not left", _with_consumer(dead, at, again)
                if self.consumers[at] is not None:
                    yield f"{at} goes away", _with_consumer(self._left(changed, at, GOES_AWAY), at, again)

    def _lost_answer(self, state: State, at: int) -> State:
        times, changes, coordinators, grown, lost = state.steps
        waiting = tuple(one for one in state.waiting if one.consumer != at)
        state = state._replace(steps=(times, changes, coordinators, grown, lost + 1), waiting=waiting)
        consumer = state.consumers[at]
        return _with_consumer(state, at, consumer._replace(is_waiting=False, way=consumer.way + 1, has_said=False))

    def _find_topic(self, state: State) -> Callable[[str], TopicShape | None]:
        return lambda name: TopicShape("t", state.partitions) if name == "topic" else None

    def _with(self, state: State, group: EpochGroup) -> State:
        """What the group has decided is handed over."""
        changes = group.take_changes()
        for change in changes:
            if isinstance(change, EpochBegun) and change.number <= state.floor:
                state = state._replace(wrong=f"epoch gone back: {change.number} begins, and {state.floor} was told")
        return state._replace(machine=Machine(group), under_way=state.under_way + changes)

    def _heartbeat(self, state: State, at: int) -> State:
        consumer = state.consumers[at]
        joins = consumer.epoch == JOINS
        said = Heartbeat(
            consumer.member_id, consumer.epoch, self.consumers[at], rebalance_ms=REBALANCE_MS, topics=("topic",),
            assignor=self.assignor, owned=NO_PLACES if joins else None if consumer.has_said else consumer.has,
            way=consumer.way,
        )  # fmt: skip
        group = state.machine.copied()
        try:
            told = group.heartbeat(said, self._find_topic(state), state.now_ms)
        except RefusedError as error:
            if error.code is Code.UNRELEASED_INSTANCE_ID:
                return state
            # It gives up what it has, and joins again.
            is_member = error.code is Code.FENCED_MEMBER_EPOCH
            again = consumer.member_id if is_member else f"{consumer.member_id}'"
            return _with_consumer(state, at, Consumer(again, way=consumer.way))
        state = _with_consumer(self._with(state, group), at, consumer._replace(has_said=True))
        consumer = state.consumers[at]
        if self.answers_early or not state.under_way:
            return self._answered(state, at, told)
        waiting = Waiting(at, len(state.under_way), told)
        return _with_consumer(state._replace(waiting=(*state.waiting, waiting)), at, consumer._replace(is_waiting=True))

    def _answered(self, state: State, at: int, told: Told) -> State:
        consumer = state.consumers[at]
        if consumer.member_id != told.member_id:
            return state  # it has begun again
        may_have = consumer.may_have if told.assigned is None else told.assigned
        # It says again what it has once it has done what it was told, if that is something new: not while it is about
        # to take what it was told before.
        is_done = may_have != consumer.may_have and may_have == consumer.has and consumer.taking is None
        has_said = consumer.has_said and not is_done
        consumer = consumer._replace(epoch=told.epoch, may_have=may_have, is_waiting=False, has_said=has_said)
        return _with_consumer(state._replace(told_epoch=max(state.told_epoch, told.epoch)), at, consumer)

    def _moved(self, state: State, at: int) -> State:
        """A consumer goes on with what it was told: it gives back what it may not have any more, takes what it may
        have, or has taken what it began to take, though it was told something else meanwhile."""
        consumer = state.consumers[at]
        kept = consumer.has & consumer.may_have
        wanted = consumer.may_have if kept == consumer.has else kept
        has = wanted if consumer.taking is None else consumer.taking
        return _with_consumer(state, at, consumer._replace(has=has, taking=None, has_said=False))

    def _begins(self, state: State, at: int) -> State:
        """A consumer begins to take what it may have."""
        consumer = state.consumers[at]
        state = state._replace(begun_slowly=state.begun_slowly + 1)
        return _with_consumer(state, at, consumer._replace(taking=consumer.may_have))

    def _left(self, state: State, at: int, epoch: int) -> State:
        consumer = state.consumers[at]
        state = state._replace(lost=state.lost | {consumer.member_id})
        group = state.machine.copied()
        try:
            said = Heartbeat(consumer.member_id, epoch, self.consumers[at])
            group.heartbeat(said, self._find_topic(state), state.now_ms)
        except RefusedError:
            return state
        return self._with(state, group)

    def _acknowledged(self, state: State) -> State:
        durable, *under_way = state.under_way
        state = state._replace(durable=state.durable.then(durable), under_way=tuple(under_way))
        waiting = [one._replace(behind=one.behind - 1) for one in state.waiting]
        state = state._replace(waiting=tuple(one for one in waiting if one.behind))
        for one in waiting:
            if not one.behind:
                state = self._answered(state, one.consumer, one.told)
        return state

    def _later(self, state: State, deadline_ms: int) -> State:
        state = state._replace(now_ms=max(state.now_ms, deadline_ms))
        group = state.machine.copied()
        before = set(group.members)
        group.pass_time(self._find_topic(state), state.now_ms)
        return self._with(state._replace(lost=state.lost | (before - set(group.members))), group)

    def _replaced(self, state: State, count: int) -> State:
        stored = state.durable
        for change in state.under_way[:count]:
            stored = stored.then(change)
        return state._replace(
            machine=Machine(self._group(stored, state.now_ms)),
            consumers=tuple(one._replace(is_waiting=False, way=one.way + 1, has_said=False) for one in state.consumers),
            durable=stored,
            under_way=(),
            waiting=(),
            floor=state.told_epoch,
        )

    def _commit(self, state: State, consumer: Consumer, at: int) -> State:
        """A commit that lands must be of a member that the log knows, in the epoch in which the log has it."""
        try:
            state.machine.group.check_sender(consumer.member_id, self.consumers[at], consumer.epoch, consumer.has)
        except RefusedError:
            return state
        stored = state.durable
        for change in state.under_way:
            stored = stored.then(change)
        if not any((one.member_id, one.epoch) == (consumer.member_id, consumer.epoch) for one in stored.members):
            return state._replace(wrong=f"stale commit: of {consumer.member_id} in epoch {consumer.epoch}")
        others = (one.owned for one in stored.members if one.member_id != consumer.member_id)
        if any(consumer.has & owned for owned in others):
            return state._replace(wrong=f"stale commit: of {consumer.member_id}, of what is another's")
        return state


def _with_consumer(state: State, at: int, consumer: Consumer) -> State:
    return state._replace(consumers=(*state.consumers[:at], consumer, *state.consumers[at + 1 :]))
