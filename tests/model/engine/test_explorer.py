"""The explorer on models whose states can be counted by hand."""

from collections.abc import Sequence
from dataclasses import dataclass

from model.engine.explorer import explore, walk

type Jugs = tuple[int, int]


class Pouring:
    """Two jugs of 3 and 5 litres, a tap and a sink. "Never exactly 4 litres in a jug" does not hold for long."""

    forbidden = 4

    def initial_states(self) -> list[Jugs]:
        return [(0, 0)]

    def successors(self, state: Jugs) -> Sequence[tuple[str, Jugs]]:
        small, large = state
        over, back = min(small, 5 - large), min(large, 3 - small)
        return [
            ("fill the small jug", (3, large)),
            ("fill the large jug", (small, 5)),
            ("empty the small jug", (0, large)),
            ("empty the large jug", (small, 0)),
            ("pour the small jug into the large one", (small - over, large + over)),
            ("pour the large jug into the small one", (small + back, large - back)),
        ]

    def representative(self, state: Jugs) -> Jugs:
        return state

    def violation(self, state: Jugs) -> str | None:
        return f"{self.forbidden} litres" if self.forbidden in state else None

    def stuck(self, state: Jugs) -> str | None:
        return None

    def describe_action(self, state: Jugs, action: str) -> str:
        return action

    def describe_state(self, state: Jugs) -> list[str]:
        return [f"{state[0]} and {state[1]} litres"]


class Thirsty(Pouring):
    forbidden = 6


type Lamps = tuple[bool, ...]


@dataclass
class Switchboard:
    """Lamps that can only be switched on, one at a time. With ``alike`` no lamp differs from another."""

    lamps: int
    alike: bool
    wanted: int = 0
    """The number of lamps that must be on in the end."""
    broken: int = 0
    """The number of lamps, the last ones, that cannot be switched on."""
    too_many: int = 99

    def initial_states(self) -> list[Lamps]:
        return [(False,) * self.lamps]

    def successors(self, state: Lamps) -> Sequence[tuple[int, Lamps]]:
        usable = range(self.lamps - self.broken)
        return [(lamp, (*state[:lamp], True, *state[lamp + 1 :])) for lamp in usable if not state[lamp]]

    def representative(self, state: Lamps) -> Lamps:
        return tuple(sorted(state)) if self.alike else state

    def violation(self, state: Lamps) -> str | None:
        return "too many" if sum(state) >= self.too_many else None

    def stuck(self, state: Lamps) -> str | None:
        return None if sum(state) >= self.wanted else f"only {sum(state)} are on"

    def describe_action(self, state: Lamps, action: int) -> str:
        assert not state[action], "told of the state in which it happens"
        return f"lamp {action}"

    def describe_state(self, state: Lamps) -> list[str]:
        return ["".join("#" if lamp else "." for lamp in state)]


def test_every_state_is_visited_once() -> None:
    found = explore(Switchboard(8, alike=False))
    assert (found.states, found.transitions, found.depth, found.final_states) == (2**8, 8 * 2**7, 8, 1)
    assert found.exhausted
    assert found.violation is None


def test_states_that_are_alike_are_visited_once() -> None:
    found = explore(Switchboard(8, alike=True))
    assert (found.states, found.exhausted) == (9, True)


def test_the_trace_to_a_broken_promise_is_the_shortest() -> None:
    found = explore(Pouring()).violation
    assert found is not None
    assert found.steps == 6
    assert str(found).splitlines() == [
        "4 litres",
        "    0 and 0 litres",
        "  1 fill the large jug",
        "  2 pour the large jug into the small one",
        "  3 empty the small jug",
        "  4 pour the large jug into the small one",
        "  5 fill the large jug",
        "  6 pour the large jug into the small one",
        "    3 and 4 litres",
    ]


def test_a_promise_that_holds_everywhere_is_exhausted() -> None:
    found = explore(Thirsty())
    assert (found.states, found.exhausted, found.violation) == (16, True, None)


def test_traces_keep_the_names_of_their_first_state() -> None:
    violation = explore(Switchboard(3, alike=True, too_many=2)).violation
    assert violation is not None
    assert len(set(violation.trace[1:3])) == 2, "two different lamps, though one state stands for all with one lamp"


def test_an_initial_state_may_break_a_promise() -> None:
    violation = explore(Switchboard(3, alike=True, too_many=0)).violation
    assert violation is not None
    assert (violation.what, violation.steps, violation.trace) == ("too many", 0, ("    ...",))


def test_a_bounded_exploration_says_that_it_is_not_all() -> None:
    assert explore(Switchboard(8, alike=False), depth_max=2).states == 1 + 8 + 28
    assert not explore(Switchboard(8, alike=False), depth_max=2).exhausted
    assert not explore(Switchboard(8, alike=False), states_max=30).exhausted
    assert explore(Switchboard(8, alike=False), depth_max=9).exhausted


def test_ending_with_something_undone_is_a_violation() -> None:
    violation = explore(Switchboard(4, alike=False, wanted=4, broken=1)).violation
    assert violation is not None
    assert (violation.what, violation.steps) == ("only 3 are on", 3)
    assert explore(Switchboard(4, alike=False, wanted=3, broken=1)).violation is None


def test_walks_find_what_is_far_away_and_find_it_again() -> None:
    first, second = (walk(Pouring(), seed=1, walks=50, steps_max=100) for _ in range(2))
    assert first.violation is not None
    assert first == second
    assert first.violation.trace[-1].count("4") == 1
    assert walk(Pouring(), seed=1, walks=50, steps_max=5).violation is None


def test_walks_notice_when_they_are_stuck() -> None:
    board = Switchboard(4, alike=False, wanted=4, broken=1)
    violation = walk(board, seed=3, walks=1, steps_max=10).violation
    assert violation is not None
    assert violation.what == "only 3 are on"
    unhindered = walk(Switchboard(4, alike=False, wanted=4), seed=3, walks=5, steps_max=10)
    assert (unhindered.violation, unhindered.walks, unhindered.final_states) == (None, 5, 5)
