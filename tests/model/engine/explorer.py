"""Visits the states of a model: all of them, all up to a depth, or some on seeded walks. Knows nothing of the model.

A model says which states it starts from, what can happen in each, and whether a state breaks a promise. States that
differ only by an interchange of equals (of bookies, of clients) are visited once: the model names one representative
of each class. Breadth first, so that the first state that breaks a promise is also one that is soonest reached, and
the trace to it the shortest there is.

Traces are made afterwards, by walking the path again: only predecessors are remembered, not actions. A trace uses the
names of its first state, though the states in between were visited under interchanged names.
"""

import random
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol


class BrokenPromiseError(Exception):
    """Raised by :meth:`Model.successors` when what happens next breaks a promise within the step itself."""


class Model[S: Hashable, A](Protocol):
    """What can be explored. States and actions are values."""

    def initial_states(self) -> Iterable[S]:
        """Where everything begins; any members of their classes."""

    def successors(self, state: S) -> Sequence[tuple[A, S]]:
        """Everything that can happen in a state, and the state after it."""

    def representative(self, state: S) -> S:
        """The one state that stands for all those equal to ``state`` but for an interchange of equals, and for what is
        bound to happen and makes no difference."""

    def violation(self, state: S) -> str | None:
        """Which promise the state breaks, in words; None when all hold."""

    def stuck(self, state: S) -> str | None:
        """What is left unfinished_work in a state in which nothing can happen any more; None when all is done."""

    def describe_action(self, state: S, action: A) -> str:
        """One line for a trace: what happens next."""

    def describe_state(self, state: S) -> list[str]:
        """A few lines for a trace: what each bookie holds and each client knows."""


@dataclass(frozen=True)
class Violation:
    """A promise that does not hold, and how that comes about."""

    what: str
    trace: tuple[str, ...]
    """Lines to be printed: the first state, what happens step by step, the last state."""
    steps: int

    def __str__(self) -> str:
        return "\n".join((self.what, *self.trace))


@dataclass
class Exploration:
    """What an exploration has seen."""

    states: int = 0
    """Distinct states, classes of equal ones counted once."""
    transitions: int = 0
    depth: int = 0
    """Steps of the longest among the shortest ways to a state."""
    exhausted: bool = False
    """No state was left out."""
    violation: Violation | None = None
    walks: int = 0
    final_states: int = 0
    """States in which nothing can happen any more."""


def explore[S: Hashable, A](
    model: Model[S, A], *, depth_max: int | None = None, states_max: int | None = None
) -> Exploration:
    """Visit every state, breadth first, up to ``depth_max`` steps from an initial one and about ``states_max`` states.

    Ends at the first violation. A state in which nothing can happen and something is left unfinished_work is one too.
    """
    result = Exploration()
    predecessor: dict[S, S | None] = {}
    found = _enter(model, predecessor, ((None, state) for state in model.initial_states()), result)
    while found and result.violation is None:
        if (depth_max is not None and result.depth >= depth_max) or (
            states_max is not None and len(predecessor) >= states_max
        ):
            break
        frontier, found = found, []
        for state in frontier:
            try:
                following = model.successors(state)
            except BrokenPromiseError as broken:
                _judge(model, predecessor, state, str(broken), result)
                break
            if following:
                result.transitions += len(following)
                found += _enter(model, predecessor, ((state, successor) for _, successor in following), result)
            else:
                result.final_states += 1
                _judge(model, predecessor, state, model.stuck(state), result)
            if result.violation is not None:
                break
        result.depth += bool(found)
    result.states = len(predecessor)
    result.exhausted = not found and result.violation is None
    return result


def _enter[S: Hashable, A](
    model: Model[S, A],
    predecessor: dict[S, S | None],
    ways: Iterable[tuple[S | None, S]],
    result: Exploration,
) -> list[S]:
    """The representatives of those states that have not been met; each is judged."""
    fresh: list[S] = []
    for before, state in ways:
        representative = model.representative(state)
        if representative not in predecessor:
            predecessor[representative] = before
            fresh.append(representative)
            problem = model.violation(representative)
            if problem is not None:
                _judge(model, predecessor, representative, problem, result)
                break
    return fresh


def _judge[S: Hashable, A](
    model: Model[S, A], predecessor: dict[S, S | None], state: S, problem: str | None, result: Exploration
) -> None:
    if problem is not None:
        path = [state]
        while (before := predecessor[path[-1]]) is not None:
            path.append(before)
        path.reverse()
        result.violation = Violation(problem, tuple(_tell(model, path)), len(path) - 1)


def walk[S: Hashable, A](model: Model[S, A], *, seed: int, walks: int, steps_max: int) -> Exploration:
    """Follow ``walks`` random ways of at most ``steps_max`` steps. Ends at the first violation, which the same seed
    finds again.
    """
    result = Exploration()
    initials = list(model.initial_states())
    seen: set[S] = set()
    for number in range(walks):
        rng = random.Random(f"{seed}/{number}")
        state = model.representative(rng.choice(initials))
        path = [state]
        problem = model.violation(state)
        while problem is None and len(path) <= steps_max:
            try:
                choices = model.successors(state)
            except BrokenPromiseError as broken:
                problem = str(broken)
                break
            if not choices:
                result.final_states += 1
                problem = model.stuck(state)
                break
            state = model.representative(rng.choice(choices)[1])
            result.transitions += 1
            path.append(state)
            if state not in seen:
                seen.add(state)
                problem = model.violation(state)
        result.depth = max(result.depth, len(path) - 1)
        result.walks += 1
        if problem is not None:
            result.violation = Violation(problem, tuple(_tell(model, path)), len(path) - 1)
            break
    result.states = len(seen)
    return result


def _tell[S: Hashable, A](model: Model[S, A], path: list[S]) -> list[str]:
    """The path as lines, in the names of its first state."""
    state = path[0]
    lines = [f"    {line}" for line in model.describe_state(state)]
    number = 0
    for before, wanted in pairwise(path):
        for action, following in _way(model, state, before, wanted):
            number += 1
            lines.append(f"{number:3} {model.describe_action(state, action)}")
            state = following
    if len(path) > 1:
        lines += [f"    {line}" for line in model.describe_state(state)]
    return lines


def _way[S: Hashable, A](model: Model[S, A], state: S, before: S, wanted: S) -> list[tuple[A, S]]:
    """The shortest way from a state that ``before`` stands for to one that ``wanted`` stands for: of one step, unless
    the model takes things for done that have yet to happen in the state.
    """
    ways: dict[S, tuple[tuple[A, S], ...]] = {state: ()}
    for reached in (queue := [state]):
        for action, successor in model.successors(reached):
            representative = model.representative(successor)
            if representative == wanted:
                return [*ways[reached], (action, successor)]
            if representative == before and successor not in ways:
                ways[successor] = (*ways[reached], (action, successor))
                queue.append(successor)
    raise AssertionError("every state of a path follows from the one before it")
