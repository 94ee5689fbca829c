"""Everything that can happen to the members of a consumer group, for the explorer of tests/model/engine.

Consumers join, take their partitions, commit, leave, stand still until they are removed, and come back with what they
knew; the coordinator is replaced by one that knows the durable generation. What decides is production code. Who owns
which partition in which generation, and whose commits have landed, is counted here from the answers alone. No consumer
may wait for ever: where no other one does anything more, and only time passes, each request gets its answer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import NamedTuple

from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.groups.group import NO_GENERATION, Group, Joined, Synced
from octavo.gateway.groups.member import Joining, Protocol, Syncing, Token

SESSION_MS = 10_000
REBALANCE_MS = 5_000
PARTITIONS = (0, 1)

ROUNDS_MAX = 12
"""From any state on: times that pass and generations that become durable before no consumer waits any more."""


class Consumer(NamedTuple):
    """A consumer, as it knows itself."""

    member_id: str = ""
    generation: int = NO_GENERATION
    members: tuple[str, ...] = ()
    """Of the leader: all members."""
    waits: str = ""
    """``join`` or ``sync``: for what it has no answer yet."""
    owns: tuple[int, ...] = ()


class Machine:
    """The group, as a value: it is copied before it changes."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.key = (
            group.state,
            group.generation,
            group.leader_id,
            group.next_deadline_ms(),
            tuple(
                (one.member_id, one.expires_at_ms, one.assignment, one.join, one.sync) for one in group.members.values()
            ),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Machine) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


class State(NamedTuple):
    """One state of the world."""

    machine: Machine
    consumers: tuple[Consumer, ...]
    now_ms: int = 0
    durable: int = 0
    """The generation that the next coordinator begins with."""
    storing: int | None = None
    began: tuple[int, int] = (0, 0)
    """When the present coordinator began, and with which generation; with 0 the first one, or nothing durable."""
    owned: frozenset[tuple[int, int, str]] = frozenset()
    """Generation, partition, and the member that was given it."""
    committed: int = NO_GENERATION
    """The highest generation of which a commit has landed."""
    stale: int | None = None
    """The generation of a commit that has landed although one of a later generation had; or of no generation, while the
    group had members, or those of the last coordinator may not know yet that it was replaced."""
    checked: int | None = None
    """The generation of a commit that was checked and is not handed over yet."""
    steps: tuple[int, int, int] = (0, 0, 0)
    """How often time has passed, a consumer has left or begun again, and the coordinator was replaced."""


@dataclass(frozen=True)
class GroupWorld:
    """The model. ``consumers``: instance ids of static members, or None."""

    name: str
    consumers: tuple[str | None, ...]
    times: int = 0
    changes: int = 0
    coordinators: int = 0
    make: Callable[..., Group] = Group
    hands_over_later: bool = False
    """A defect: something may happen between the check of a commit and its place in the log."""

    def broken(self, make: Callable[..., Group] = Group, *, hands_over_later: bool = False) -> "GroupWorld":
        """The same with a group, or a coordinator, that has a defect."""
        return replace(self, make=make, hands_over_later=hands_over_later)

    # --- the model ----------------------------------------------------------------------------------------------------

    def initial_states(self) -> Iterable[State]:
        return [State(Machine(self._group(0)), tuple(Consumer() for _ in self.consumers))]

    def _group(self, generation: int, now_ms: int = 0) -> Group:
        count = iter(range(100))
        # Ids of one coordinator are never those of another: they are random.
        return self.make(
            "group",
            _Ids(f"{generation}/{now_ms}/", count),
            generation=generation,
            strangers_from_ms=now_ms + SESSION_MS if generation else 0,
        )

    def successors(self, state: State) -> Sequence[tuple[str, State]]:
        found = list(self._of_consumers(state))
        if state.storing is not None:
            found.append(("the generation is durable", self._stored(state)))
        if state.checked is not None:
            found.append(("the checked commit is handed over", self._landed(state, state.checked)))
        times, changes, coordinators = state.steps
        deadline = state.machine.group.next_deadline_ms()
        if times < self.times and deadline is not None:
            later = state._replace(steps=(times + 1, changes, coordinators))
            found.append(("time passes", self._later(later, deadline)))
        if coordinators < self.coordinators:
            now_ms = state.now_ms + 1
            replaced = state._replace(
                machine=Machine(self._group(state.durable, now_ms)),
                consumers=tuple(one._replace(waits="") for one in state.consumers),
                now_ms=now_ms,
                began=(now_ms, state.durable),
                storing=None,
                checked=None,
                steps=(times, changes, coordinators + 1),
            )
            found.append(("the coordinator is replaced", replaced))
        return [(action, after) for action, after in found if after != state]

    def representative(self, state: State) -> State:
        return state

    def violation(self, state: State) -> str | None:
        owners: dict[tuple[int, int], str] = {}
        for generation, partition, member in state.owned:
            if owners.setdefault((generation, partition), member) != member:
                return f"two owners: of partition {partition} in generation {generation}: {sorted(state.owned)}"
        if state.stale is not None:
            return f"stale commit: generation {state.stale} has landed behind {state.committed}"
        try:
            state.machine.group.check_invariants()
        except AssertionError as error:
            return f"invariant: {error}"
        return self._waits_for_ever(state)

    def _waits_for_ever(self, state: State) -> str | None:
        """A consumer that gets no answer although time passes, and what is handed over becomes durable."""
        for _ in range(ROUNDS_MAX):
            if not any(one.waits for one in state.consumers):
                return None
            deadline = state.machine.group.next_deadline_ms()
            if state.storing is not None:
                state = self._stored(state)
            elif deadline is not None:
                state = self._later(state, deadline)
            else:
                break
        waiting = [f"{at} ({one.waits})" for at, one in enumerate(state.consumers) if one.waits]
        return f"waits for ever: consumer {', '.join(waiting)}" if waiting else None

    def stuck(self, state: State) -> str | None:
        return None

    def describe_action(self, state: State, action: str) -> str:
        return action

    def describe_state(self, state: State) -> list[str]:
        return [f"group {state.machine.key}", *(f"consumer {one}" for one in state.consumers)]

    # --- what happens -------------------------------------------------------------------------------------------------

    def _of_consumers(self, state: State) -> Iterator[tuple[str, State]]:
        for at, consumer in enumerate(state.consumers):
            yield f"{at} commits", self._commit(state, consumer, at)
            if consumer.waits:
                continue
            yield f"{at} joins", self._join(state, at)
            if consumer.generation != NO_GENERATION and (consumer.members or not consumer.owns):
                yield f"{at} syncs", self._sync(state, at, reverse=False)
                if consumer.members:
                    yield f"{at} syncs, shares otherwise", self._sync(state, at, reverse=True)
            if state.steps[1] < self.changes and consumer.member_id:
                times, changes, coordinators = state.steps
                changed = state._replace(steps=(times, changes + 1, coordinators))
                yield f"{at} begins again", _with_consumer(changed, at, Consumer())
                yield f"{at} leaves", self._leave(changed, at)

    def _with(self, state: State, act: Callable[[Group], None]) -> State:
        """What the group decides, and the answers to consumers."""
        group = deepcopy(state.machine.group)
        act(group)
        output = group.take_output()
        state = state._replace(machine=Machine(group))
        if output.generation is not None:
            state = state._replace(storing=output.generation.number)
        for answer in output.answers:
            state = self._answered(state, answer.token, answer.content)
        return state

    def _answered(self, state: State, token: Token, content: Joined | Synced) -> State:
        consumer = state.consumers[token]._replace(waits="")
        if isinstance(content, Joined):
            if content.code is Code.NONE:
                members = tuple(one.member_id for one in content.members)
                consumer = Consumer(content.member_id, content.generation, members)
            else:
                consumer = Consumer()
        elif content.code is Code.NONE:
            owns = tuple(content.assignment)
            name = self.consumers[token] or consumer.member_id
            given = {(consumer.generation, partition, name) for partition in owns}
            state, consumer = state._replace(owned=state.owned | given), consumer._replace(owns=owns)
        elif content.code is not Code.REBALANCE_IN_PROGRESS:
            consumer = Consumer()
        return _with_consumer(state, token, consumer)

    def _join(self, state: State, at: int) -> State:
        consumer = state.consumers[at]
        asked = Joining(
            consumer.member_id, self.consumers[at], SESSION_MS, REBALANCE_MS, "consumer", (Protocol("range", b""),)
        )
        waiting = _with_consumer(state, at, consumer._replace(waits="join", owns=()))
        return self._with(waiting, lambda group: group.join(asked, Token(at), state.now_ms))

    def _sync(self, state: State, at: int, *, reverse: bool) -> State:
        consumer = state.consumers[at]
        assignments = _shared(consumer.members, reverse=reverse)
        asked = Syncing(consumer.member_id, self.consumers[at], consumer.generation, assignments)
        waiting = _with_consumer(state, at, consumer._replace(waits="sync"))
        return self._with(waiting, lambda group: group.sync(asked, Token(at), state.now_ms))

    def _later(self, state: State, deadline_ms: int) -> State:
        now_ms = max(state.now_ms, deadline_ms)
        return self._with(state._replace(now_ms=now_ms), lambda group: group.pass_time(now_ms))

    def _stored(self, state: State) -> State:
        number = state.storing
        assert number is not None, "a generation is being stored"
        stored = state._replace(durable=max(state.durable, number), storing=None)
        return self._with(stored, lambda group: group.stored(number, state.now_ms))

    def _leave(self, state: State, at: int) -> State:
        consumer = state.consumers[at]

        def leave(group: Group) -> None:
            try:
                group.leave(consumer.member_id, self.consumers[at], state.now_ms)
            except RefusedError:
                return

        return self._with(_with_consumer(state, at, Consumer()), leave)

    def _commit(self, state: State, consumer: Consumer, at: int) -> State:
        group = deepcopy(state.machine.group)
        try:
            group.check_commit(consumer.member_id, self.consumers[at], consumer.generation, state.now_ms)
        except RefusedError:
            return state
        after = state._replace(machine=Machine(group), checked=consumer.generation)
        return after if self.hands_over_later else self._landed(after, consumer.generation)

    def _landed(self, state: State, generation: int) -> State:
        """A commit of this generation is in the log."""
        if generation == NO_GENERATION:
            is_wrong = bool(state.machine.group.members) or self._has_strangers(state)
        else:
            is_wrong = generation < state.committed
        after = state._replace(committed=max(state.committed, generation), checked=None)
        return after._replace(stale=generation) if is_wrong else after

    def _has_strangers(self, state: State) -> bool:
        """Whether a member of the last coordinator's durable generation may not know that it was replaced."""
        began_ms, generation = state.began
        if not generation or state.now_ms >= began_ms + SESSION_MS:
            return False
        present = f"{generation}/{began_ms}/"
        return any(
            one.owns and one.generation == generation and not one.member_id.startswith(present)
            for one in state.consumers
        )


class _Ids:
    """Ids of members: a callable that can be copied with its group."""

    def __init__(self, prefix: str, numbers: Iterator[int]) -> None:
        self._prefix = prefix
        self._next = next(numbers)

    def __call__(self) -> str:
        self._next += 1
        return f"{self._prefix}{self._next}"


def _with_consumer(state: State, at: int, consumer: Consumer) -> State:
    return state._replace(consumers=(*state.consumers[:at], consumer, *state.consumers[at + 1 :]))


def _shared(members: tuple[str, ...], *, reverse: bool) -> Mapping[str, bytes]:
    """Each partition for one member, in turn."""
    order = sorted(members, reverse=reverse)
    return {member: bytes(one for one in PARTITIONS if order[one % len(order)] == member) for member in order}
