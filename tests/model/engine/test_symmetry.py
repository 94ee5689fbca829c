"""Interchanges of equals, checked against what they save."""

import random
from dataclasses import replace
from typing import Any

import pytest
from model.engine.exchange import metadata_text
from model.engine.explorer import explore
from model.engine.renaming import Renaming, interchanges
from model.engine.sealing import metadata
from model.engine.setting import Setting
from model.engine.states import State
from model.engine.world import World
from model.ledgers.settings import JOBS, Job, live
from model.streams.term_books_settings import BOOKS_JOBS, with_books
from octavo.metadata.ledger.debts import FullCopies
from octavo.metadata.stream.model import StreamMetadata
from octavo.protocol.quorums import Quorums

SYMMETRIC = [job for job in (*JOBS, *BOOKS_JOBS) if job.quick and job.make().symmetric]


def some_states(world: World, *, walks: int, steps_max: int) -> list[State]:
    """States on random walks, the same ones every time."""
    rng = random.Random(7)
    initials = list(world.initial_states())
    states: list[State] = []
    for _ in range(walks):
        state = rng.choice(initials)
        for _ in range(rng.randrange(1, steps_max)):
            choices = world.successors(state)
            if not choices:
                break
            state = rng.choice(choices)[1]
        states.append(state)
    return states


@pytest.mark.parametrize("job", SYMMETRIC, ids=lambda job: job.name)
def test_clients_tell_bookies_apart_by_their_answers_alone(job: Job) -> None:
    world = World(job.make())
    for state in some_states(world, walks=100, steps_max=40):
        assert world.symmetry.holds(state), "\n".join(world.describe_state(state))


@pytest.mark.parametrize("job", SYMMETRIC, ids=lambda job: job.name)
def test_renamed_states_have_one_representative(job: Job) -> None:
    world = World(job.make())
    for state in some_states(world, walks=100, steps_max=40):
        representative = world.representative(state)
        assert {world.representative(renamed) for renamed in world.symmetry.class_of(state)} == {representative}
        assert representative in world.symmetry.class_of(world.settled(state))


def test_interchange_moves_positions_with_their_bookies() -> None:
    renaming = Renaming((1, 0, 2, 3), (0,), 3)
    before = metadata(Quorums(3, 3, 2), (0, "abc"), (1, "abd"), (2, "dbc"))
    after = metadata(Quorums(3, 3, 2), (0, "abc"), (1, "abd"), (2, "adc"))
    assert renaming.value(before) == after


def test_interchanges_of_members_spares_and_like_clients() -> None:
    assert len(interchanges(5, 3, ((0,),))) == 6 * 2
    assert len(interchanges(4, 3, ((0,), (1, 2)))) == 6 * 2
    assert {renaming.clients for renaming in interchanges(2, 1, ((0,), (1, 2)))} == {(0, 1, 2), (0, 2, 1)}
    assert {renaming.bookies for renaming in interchanges(4, 2, ((0,),))} == {
        (0, 1, 2, 3), (1, 0, 2, 3), (0, 1, 3, 2), (1, 0, 3, 2)
    }  # fmt: skip


def test_symmetry_saves_states_and_loses_none() -> None:
    setting = live("small", (2, 2, 2), spares=1, entries=1, recoveries=1, breaks=1)()
    few, all_states = explore(World(setting)), explore(World(replace(setting, symmetric=False)))
    assert few.states < all_states.states <= 2 * few.states
    assert few.depth == all_states.depth


def endings(setting: Setting) -> set[tuple[str, ...]]:
    """How everything may end: the metadata, with what a stream owes, and what every client knows."""
    found: set[tuple[str, ...]] = set()

    class Ending(World):
        def stuck(self, state: State) -> str | None:
            clients = [self.clients[number].describe() for number in state[2]]
            ended = self.metadata[state[0]]
            debts = [fragment.debt for fragment in ended.fragments] if isinstance(ended, StreamMetadata) else []
            found.add((metadata_text(ended), str(debts), *clients))
            return super().stuck(state)

    world = Ending(setting)
    result = explore(world)
    assert result.exhausted, str(result.violation)
    return found


@pytest.mark.parametrize(
    ("sizes", "setting"),
    [
        ((2, 2, 1), {"entries": 1, "recoveries": 1, "breaks": 1}),
        ((2, 2, 2), {"entries": 1, "recoveries": 0, "spares": 1, "breaks": 2}),
        ((1, 1, 1), {"entries": 2, "recoveries": 2}),
    ],
)
def test_dropping_invisible_messages_loses_no_ending(sizes: tuple[int, int, int], setting: dict[str, Any]) -> None:
    # Every state by its own name: which one stands for its equals is not the same with more of them.
    whole = replace(live("small", sizes, **setting)(), symmetric=False)
    assert endings(whole) == endings(replace(whole, reduced=False))


@pytest.mark.parametrize("kept", FullCopies)
def test_dropping_invisible_messages_loses_no_debt(kept: FullCopies) -> None:
    whole = replace(with_books(kept, "small", (2, 2, 1), takers=(0,))(), symmetric=False)
    assert endings(whole) == endings(replace(whole, reduced=False))
