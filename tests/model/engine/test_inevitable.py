"""The partial-order reduction loses nothing: a state leads to the same states with and without it."""

import random
from collections.abc import Callable

import pytest
from model.engine import leftovers
from model.engine.setting import Setting
from model.engine.states import State
from model.engine.world import World
from model.ledgers.settings import left_behind, live

SETTINGS: dict[str, Callable[[], Setting]] = {
    "a writer and a recovery": live("", (3, 3, 2), spares=1, entries=1, recoveries=1, breaks=1),
    "a writer and two recoveries": live("", (2, 2, 1), entries=1, recoveries=2, sends_lac=True, breaks=1),
    "a writer of two, answers cut short": live("", (2, 2, 1), entries=2, recoveries=1, cuts=1),
    "striped": live("", (4, 3, 2), entries=2, recoveries=1, breaks=1),
    "fences and LACs": left_behind("", entries=2, recoveries=2, fences=True, explicit_lacs=True),
    "late adds": left_behind("", entries=2, recoveries=2, late_adds=True),
    "a break": left_behind("", entries=2, recoveries=1, histories=leftovers.HISTORIES[1:], late_adds=True, breaks=1),
}


class EveryOrder(World):
    """A world in which every client acts in every order."""

    def independent_client(self, state: State) -> int | None:
        return None


def ways_on(world: World, state: State) -> set[State]:
    """Every state that a state leads to, without those reached by inevitable steps alone."""
    own = world.representative(state)
    seen, queue, found = {state}, [state], set[State]()
    for reached in queue:
        for _, successor in world.successors(reached):
            representative = world.representative(successor)
            if representative != own:
                found.add(representative)
            elif successor not in seen:
                seen.add(successor)
                queue.append(successor)
    return found


@pytest.mark.parametrize("name", SETTINGS)
def test_a_state_and_the_state_after_its_inevitable_steps_lead_to_the_same_states(name: str) -> None:
    world, chance = EveryOrder(SETTINGS[name]()), random.Random(11)
    initials = list(world.initial_states())
    settled_states = 0
    for _ in range(60):
        state = chance.choice(initials)
        while choices := world.successors(state):
            settled = world.settled(state)
            if settled != state and chance.random() < 0.1:
                settled_states += 1
                told = "\n".join(world.describe_state(state))
                assert ways_on(world, settled) == ways_on(world, state), told
                assert world.settled(settled) == settled, told
                assert world.violation(settled) == world.violation(state) is None
            state = chance.choice(choices)[1]
    assert settled_states > 20
