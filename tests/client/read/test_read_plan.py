"""The read plan: by table, and driven at random against worlds whose outcome is known."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.client.read.plan import Ask, ReadPlan, VerdictKind, preference_order
from octavo.protocol.entries import Entry
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.quorums import Quorums

LEDGER = LedgerId(7)
PLENTY = 1 << 40


def entry(entry_id: int, size: int = 10) -> Entry:
    return Entry(LEDGER, EntryId(entry_id), b"x" * size, None, 0, 0)


def entries(*ids: int) -> list[Entry]:
    return [entry(i) for i in ids]


def ids_of(found: Sequence[Entry]) -> list[int]:
    return [one.entry_id for one in found]


def plan_of(
    sizes: tuple[int, int, int], first: int, last: int, preference: Sequence[int] | None = None, budget: int = PLENTY
) -> ReadPlan:
    bookies = [BookieId(f"b{position}") for position in range(sizes[0])]
    order = preference if preference is not None else range(sizes[0])
    return ReadPlan(Quorums(*sizes), bookies, order, first, last, budget_bytes=budget)


def test_unstriped_range_is_asked_of_the_preferred_replica_in_one_request() -> None:
    plan = plan_of((3, 3, 2), 5, 9, preference=[1, 0, 2])
    (ask,) = plan.start()
    assert (ask.bookie_id, ask.first, ask.last, ask.modulus, ask.residues) == ("b1", 5, 9, 1, (0,))
    assert plan.on_answer(ask, last_covered=9, entries=entries(5, 6, 7, 8, 9)) == []
    assert plan.done
    assert not plan.missing
    assert ids_of(plan.found_prefix()) == [5, 6, 7, 8, 9]


def test_striped_range_is_asked_by_residues_of_few_bookies() -> None:
    plan = plan_of((5, 3, 2), 0, 99, preference=[2, 4, 0, 1, 3])
    asks = plan.start()
    # Position 2 holds residues 0, 1, 2; position 4 then holds the others.
    assert [(ask.position, ask.modulus, ask.residues) for ask in asks] == [(2, 5, (0, 1, 2)), (4, 5, (3, 4))]
    assert (asks[1].first, asks[1].last) == (3, 99)


def test_striped_single_entry_is_one_request() -> None:
    (ask,) = plan_of((5, 2, 2), 13, 13).start()
    assert (ask.first, ask.last, ask.residues) == (13, 13, (3,))
    assert ask.position == 3


def test_partial_coverage_goes_on_with_the_same_bookie() -> None:
    plan = plan_of((3, 3, 2), 0, 9)
    (ask,) = plan.start()
    (rest,) = plan.on_answer(ask, last_covered=3, entries=entries(0, 1, 2, 3))
    assert (rest.position, rest.first, rest.last) == (ask.position, 4, 9)
    plan.on_answer(rest, last_covered=9, entries=entries(4, 5, 6, 7, 8, 9))
    assert ids_of(plan.found_prefix()) == list(range(10))


def test_answer_that_covers_nothing_is_a_failure_and_not_asked_again() -> None:
    plan = plan_of((2, 2, 1), 4, 9)
    (ask,) = plan.start()
    (other,) = plan.on_answer(ask, last_covered=3, entries=[])
    assert other.position == 1


def test_holes_go_to_the_next_replica_in_one_request_over_their_hull() -> None:
    plan = plan_of((3, 3, 2), 0, 9)
    (ask,) = plan.start()
    (second,) = plan.on_answer(ask, last_covered=9, entries=entries(0, 2, 4, 6, 8, 9))
    assert (second.position, second.first, second.last) == (1, 1, 7)
    plan.on_answer(second, last_covered=7, entries=entries(1, 2, 3, 4, 5, 6, 7))
    assert plan.done
    assert ids_of(plan.found_prefix()) == list(range(10))


def test_entries_of_one_answer_are_in_order_whatever_was_said_of_them_before() -> None:
    plan = plan_of((2, 2, 1), 0, 2)
    (ask,) = plan.start()
    (second,) = plan.on_answer(ask, last_covered=2, entries=[], unknown=[(0, 0), (2, 2)])
    plan.on_answer(second, last_covered=2, entries=entries(0, 1, 2))
    assert ids_of(plan.found_prefix()) == [0, 1, 2]


def test_missing_entry_names_every_replica_and_the_prefix_before_it_is_given() -> None:
    plan = plan_of((3, 3, 2), 0, 4)
    (ask,) = plan.start()
    (second,) = plan.on_answer(ask, last_covered=4, entries=entries(0, 1, 3, 4), unknown=[(2, 2)])
    (third,) = plan.on_failure(second, "disk on fire")
    assert plan.on_answer(third, last_covered=2, entries=[]) == []
    assert plan.done
    (missing,) = plan.missing
    assert (missing.first, missing.last) == (2, 2)
    assert [(position, verdict.kind) for position, verdict in missing.verdicts] == [
        (0, VerdictKind.UNKNOWN),
        (1, VerdictKind.FAILED),
        (2, VerdictKind.ABSENT),
    ]
    assert ids_of(plan.found_prefix()) == [0, 1]


def test_answer_with_damaged_entries_says_nothing_certain_about_those_missing() -> None:
    plan = plan_of((2, 2, 1), 0, 2)
    (ask,) = plan.start()
    (second,) = plan.on_answer(ask, last_covered=2, entries=entries(0, 2), damaged=True)
    plan.on_answer(second, last_covered=1, entries=[])
    (missing,) = plan.missing
    assert [verdict.kind for _, verdict in missing.verdicts] == [VerdictKind.UNKNOWN, VerdictKind.ABSENT]


def test_slow_replica_is_raced_and_the_first_answer_wins() -> None:
    plan = plan_of((3, 3, 2), 0, 1)
    (slow,) = plan.start()
    (other,) = plan.on_slow()
    assert other.position == 1
    assert not plan.done
    plan.on_answer(other, last_covered=1, entries=entries(0, 1))
    assert plan.done
    assert plan.on_answer(slow, last_covered=1, entries=entries(0, 1)) == []
    assert ids_of(plan.found_prefix()) == [0, 1]


def test_slow_replica_is_still_awaited_when_all_others_have_failed() -> None:
    plan = plan_of((2, 2, 1), 0, 1)
    (slow,) = plan.start()
    (other,) = plan.on_slow()
    assert plan.on_failure(other, "gone") == []
    assert not plan.done
    plan.on_answer(slow, last_covered=1, entries=entries(0, 1))
    assert plan.done
    assert not plan.missing


def test_budget_gives_up_what_lies_above_the_lowest_open_id() -> None:
    plan = plan_of((2, 1, 1), 0, 9, budget=30)
    even, odd = plan.start()
    assert plan.on_answer(odd, last_covered=5, entries=[entry(1, 15), entry(3, 15), entry(5, 15)]) != []
    plan.on_answer(even, last_covered=2, entries=[entry(0), entry(2)])
    assert plan.done
    assert plan.last == 3
    assert ids_of(plan.found_prefix()) == [0, 1, 2, 3]


def test_entries_outside_of_what_was_asked_are_not_taken() -> None:
    plan = plan_of((1, 1, 1), 5, 6)
    (ask,) = plan.start()
    plan.on_answer(ask, last_covered=6, entries=entries(4, 5, 7))
    assert ids_of(plan.found_prefix()) == [5]
    assert plan.missing[0].first == 6


def test_blamed_bookies_are_asked_last() -> None:
    bookies = [BookieId(name) for name in ("a", "b", "c")]
    assert preference_order(bookies, [0.1, 0.2, 0.3], []) == [0, 1, 2]
    assert preference_order(bookies, [0.1, 0.2, 0.3], [BookieId("a")]) == [1, 2, 0]
    assert preference_order(bookies, [0.1, 0.2, 0.3], bookies) == [0, 1, 2]


@pytest.mark.parametrize(("first", "last"), [(3, 2), (-1, 4)])
def test_ranges_without_ids_are_refused(first: int, last: int) -> None:
    with pytest.raises(ValueError, match="no ids"):
        plan_of((1, 1, 1), first, last)


# --- worlds ------------------------------------------------------------------------------------------------------


@dataclass
class World:
    """What each replica would say of each id, and how the answers come: drawn from a seed."""

    sizes: tuple[int, int, int]
    first: int
    last: int
    seed: int
    faults: float
    rng: random.Random = field(init=False)
    state: dict[tuple[int, int], str] = field(init=False)
    dead: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        kinds = ["absent", "unknown", "damaged"]
        self.state = {
            (position, i): self.rng.choice(kinds) if self.rng.random() < self.faults else "found"
            for position in range(self.sizes[0])
            for i in range(self.first, self.last + 1)
        }
        self.dead = {position for position in range(self.sizes[0]) if self.rng.random() < self.faults / 2}

    def obtainable(self, entry_id: int) -> bool:
        return any(
            position not in self.dead and self.state[position, entry_id] == "found"
            for position in Quorums(*self.sizes).write_set(entry_id)
        )

    def answer(self, plan: ReadPlan, ask: Ask) -> list[Ask]:
        if ask.position in self.dead:
            return plan.on_failure(ask, "dead")
        ids = [i for i in range(ask.first, ask.last + 1) if i % ask.modulus in ask.residues]
        stop = self.rng.choice([ask.last, ask.last, self.rng.randint(ask.first, ask.last)])
        said = [(i, self.state[ask.position, i]) for i in ids if i <= stop]
        return plan.on_answer(
            ask,
            last_covered=stop,
            entries=[entry(i) for i, kind in said if kind == "found"],
            unknown=[(i, i) for i, kind in said if kind == "unknown"],
            damaged=any(kind == "damaged" for _, kind in said),
        )


sizes_up_to_5 = st.integers(1, 5).flatmap(
    lambda e: st.integers(1, e).flatmap(lambda w: st.integers(1, w).map(lambda a: (e, w, a)))
)


@settings(max_examples=250, deadline=None)
@given(
    sizes=sizes_up_to_5,
    first=st.integers(0, 12),
    count=st.integers(1, 24),
    seed=st.integers(0, 2**32),
    faults=st.sampled_from([0.0, 0.05, 0.3, 0.8]),
    budget=st.sampled_from([PLENTY, PLENTY, 40, 100]),
)
def test_plan_finds_exactly_what_some_replica_has(  # noqa: PLR0917 - hypothesis passes by keyword
    sizes: tuple[int, int, int], first: int, count: int, seed: int, faults: float, budget: int
) -> None:
    world = World(sizes, first, first + count - 1, seed, faults)
    preference = list(range(sizes[0]))
    world.rng.shuffle(preference)
    plan = plan_of(sizes, world.first, world.last, preference, budget)
    under_way = plan.start()
    plan.check_invariants()
    asked = len(under_way)
    while not plan.done:
        assert under_way, "a plan that is not done waits for something"
        if world.rng.random() < 0.2:
            more = plan.on_slow()
        else:
            more = world.answer(plan, under_way.pop(world.rng.randrange(len(under_way))))
        plan.check_invariants()
        under_way += more
        asked += len(more)
        assert asked <= 3 * sizes[0] * (count + 1), "replicas are asked over and over"

    lost = [i for i in range(first, plan.last + 1) if not world.obtainable(i)]
    expected = list(range(first, lost[0] if lost else plan.last + 1))
    assert ids_of(plan.found_prefix()) == expected
    missing = [
        i
        for segment in plan.missing
        for i in range(segment.first, segment.last + 1)
        if sizes[0] == sizes[1] or i % sizes[0] in segment.residues
    ]
    assert sorted(missing) == lost
    if budget == PLENTY:
        assert plan.last == world.last
    elif plan.last < world.last:
        assert expected, "giving up on bytes leaves something to give"
    for segment in plan.missing:
        write_set = set(Quorums(*sizes).write_set(segment.residues[0]))
        assert {position for position, _ in segment.verdicts} == (
            write_set if sizes[0] != sizes[1] else set(range(sizes[0]))
        )
        for position, verdict in segment.verdicts:
            _check_verdict(world, position, segment.first, verdict.kind)


def _check_verdict(world: World, position: int, entry_id: int, kind: VerdictKind) -> None:
    """Absent is said only of entries that the replica, alive, does not hold (rule R2)."""
    if position in world.dead:
        assert kind is VerdictKind.FAILED
    else:
        assert kind is not VerdictKind.FAILED
        if kind is VerdictKind.ABSENT:
            assert world.state[position, entry_id] == "absent"
