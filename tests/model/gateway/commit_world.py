"""Everything that can happen to the log of a coordinator, for the explorer of tests/model/engine.

Consumers of two groups commit, one group is deleted, entries are acknowledged, groups are restated, the log is
truncated, and the coordinator is replaced by one that finds what was acknowledged, and any beginning of what was handed
over. What is added, and what can be seen, is decided by production code. What each group may show is counted here.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import NamedTuple

from octavo.gateway.groups.commits import Commits
from octavo.gateway.groups.entries import Committed, GroupDeleted, GroupEntry, OffsetsCommitted
from octavo.gateway.groups.places import Place

GROUPS = ("a", "b")
PLACE = Place("aa", 0)
SIZE = 1


class Machine:
    """The machine, as a value: it is copied before it changes."""

    def __init__(self, commits: Commits) -> None:
        self.commits = commits
        self.key = (
            commits.next_position,
            tuple(seen(commits, group_id) for group_id in GROUPS),
            tuple(commits.is_under_way(group_id) for group_id in GROUPS),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Machine) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


class Entry(NamedTuple):
    """An entry of the log, as a value."""

    position: int
    group_id: str
    value: int
    """The offset; 0: the group is deleted."""
    is_restated: bool


class State(NamedTuple):
    """One state of the world."""

    machine: Machine
    log: tuple[Entry, ...] = ()
    """What was handed over and not truncated. Bookies have it all, until the coordinator is replaced."""
    under_way: tuple[Entry, ...] = ()
    """What was handed over and not acknowledged."""
    answered: tuple[int, ...] = (0, 0)
    """What the last answer for each group was about; 0: its deletion, or there was none."""
    to_restate: tuple[str, ...] | None = None
    """The groups that are left; None: nothing is being restated."""
    truncate_at: tuple[int, int] = (0, 0)
    """Where the log is to be truncated, and the position below which all must be acknowledged before."""
    steps: tuple[int, int, int] = (0, 0, 0)
    """How often a group has committed, the groups were restated, and the coordinator was replaced."""


@dataclass(frozen=True)
class CommitWorld:
    """The model."""

    name: str
    commits: int
    """And deletions, of all groups."""
    restatings: int
    coordinators: int
    """That take over."""
    make: Callable[[], Commits] = Commits
    truncates_early: bool = False
    """A defect: the log is truncated before what was restated is acknowledged."""

    def broken(self, make: Callable[[], Commits] = Commits, *, truncates_early: bool = False) -> "CommitWorld":
        """The same with a defect."""
        return replace(self, make=make, truncates_early=truncates_early)

    def initial_states(self) -> Iterable[State]:
        return [State(Machine(self.make()))]

    def successors(self, state: State) -> Sequence[tuple[str, State]]:
        return list(self._successors(state))

    def representative(self, state: State) -> State:
        return state

    def violation(self, state: State) -> str | None:
        try:
            state.machine.commits.check_invariants()
        except AssertionError as error:
            return f"invariant: {error}"
        for group_id, answered in zip(GROUPS, state.answered, strict=True):
            value = seen(state.machine.commits, group_id)
            if value != answered:
                return f"gone back: group {group_id} shows {value}, and {answered} was answered last"
        return None

    def stuck(self, state: State) -> str | None:
        return None

    def describe_action(self, state: State, action: str) -> str:
        return action

    def describe_state(self, state: State) -> list[str]:
        return [f"machine {state.machine.key}", f"log {state.log}", f"answered {state.answered}"]

    # --- what happens -------------------------------------------------------------------------------------------------

    def _successors(self, state: State) -> Iterator[tuple[str, State]]:
        commits, restatings, coordinators = state.steps
        number = commits + 1
        if number <= self.commits:
            again = state._replace(steps=(number, restatings, coordinators))
            for group_id in GROUPS:
                entry = OffsetsCommitted(group_id, {PLACE: Committed(number, -1, "", 0)})
                yield f"{group_id} commits {number}", _handed_over(again, [entry])
            if state.machine.commits.knows("b"):
                yield "b is deleted", _handed_over(again, [GroupDeleted("b")])
        if state.under_way:
            yield "an entry is acknowledged", _acknowledged(state)
        yield from self._restating(state)
        if coordinators < self.coordinators:
            replaced = state._replace(steps=(commits, restatings, coordinators + 1))
            for count in range(len(state.under_way) + 1):
                action = f"the coordinator is replaced; the log has {count} of what was under way"
                yield action, self._replaced(replaced, count)

    def _restating(self, state: State) -> Iterator[tuple[str, State]]:
        if state.to_restate is None:
            commits, restatings, coordinators = state.steps
            machine = deepcopy(state.machine.commits)
            restating = machine.begin_restating()
            if restating.group_ids and restatings < self.restatings:
                yield (
                    "restating begins",
                    state._replace(
                        machine=Machine(machine),
                        to_restate=restating.group_ids,
                        truncate_at=(restating.before, restating.before),
                        steps=(commits, restatings + 1, coordinators),
                    ),
                )
        elif state.to_restate:
            group_id, *left = state.to_restate
            entries = state.machine.commits.restated(group_id, lambda _topic_id: True)
            after = _handed_over(state, entries, is_restated=True)
            stop = after.machine.commits.next_position
            truncate_at = state.truncate_at[0], stop
            yield f"{group_id} is restated", after._replace(to_restate=tuple(left), truncate_at=truncate_at)
        elif self.truncates_early or all(entry.position >= state.truncate_at[1] for entry in state.under_way):
            kept = tuple(entry for entry in state.log if entry.position >= state.truncate_at[0])
            yield "the log is truncated", state._replace(log=kept, to_restate=None)

    def _replaced(self, state: State, count: int) -> State:
        """The next coordinator finds what was acknowledged, and a beginning of what was handed over."""
        stop = state.machine.commits.next_position - len(state.under_way) + count
        log = tuple(entry for entry in state.log if entry.position < stop)
        commits = self.make()
        for entry in log:
            commits.load(entry.position, _entry_of(entry), SIZE)
        commits.loaded(stop, lambda _topic_id: True)
        answered = state.answered
        for entry in state.under_way[:count]:
            answered = _answered(answered, entry)
        return State(Machine(commits), log, answered=answered, steps=state.steps)


def seen(commits: Commits, group_id: str) -> int:
    """The offset that a group shows; 0: it has none."""
    record = commits.find(group_id)
    return 0 if record is None else record.offsets[PLACE].offset


def _handed_over(state: State, entries: Iterable[GroupEntry], *, is_restated: bool = False) -> State:
    commits, log, under_way = deepcopy(state.machine.commits), state.log, state.under_way
    for one in entries:
        position = commits.hand_over(one, SIZE)
        value = one.offsets[PLACE].offset if isinstance(one, OffsetsCommitted) else 0
        entry = Entry(position, one.group_id, value, is_restated)
        log, under_way = (*log, entry), (*under_way, entry)
    return state._replace(machine=Machine(commits), log=log, under_way=under_way)


def _acknowledged(state: State) -> State:
    commits = deepcopy(state.machine.commits)
    oldest, *others = state.under_way
    commits.acknowledge(oldest.position)
    answered = _answered(state.answered, oldest)
    return state._replace(machine=Machine(commits), under_way=tuple(others), answered=answered)


def _answered(answered: tuple[int, ...], entry: Entry) -> tuple[int, ...]:
    """What was answered last, once this entry is acknowledged. What is restated answers nothing."""
    if entry.is_restated:
        return answered
    at = GROUPS.index(entry.group_id)
    return (*answered[:at], entry.value, *answered[at + 1 :])


def _entry_of(entry: Entry) -> GroupEntry:
    if not entry.value:
        return GroupDeleted(entry.group_id)
    return OffsetsCommitted(entry.group_id, {PLACE: Committed(entry.value, -1, "", 0)})
