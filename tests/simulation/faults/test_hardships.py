"""Hardships of universes: what is drawn, how the loop runs long turns, and what is judged."""

import asyncio
import contextlib
import random
from collections.abc import Iterator
from datetime import timedelta

import pytest
from octavo.client.log.documents.chain import Retention
from octavo.metadata.cluster.repair_states import BookieCondition, Condition, RepairStates, encode_states
from octavo.protocol.errors import Doubt, OctavoTimeoutError
from octavo.protocol.ids import BookieId
from simulation.campaign import Order
from simulation.engine.loop import Process, SimulationLoop
from simulation.engine.old_peers import OLD_BOOKIES, OLD_CLIENTS, PACKS
from simulation.faults.absences import ABSENCES
from simulation.faults.endurance import HARDSHIPS
from simulation.faults.nemesis import Nemesis
from simulation.faults.returns import Returns
from simulation.judges.history import Violation
from simulation.judges.log_history import Fate, Leader, LogHistory
from simulation.judges.retention_history import Piece, RetentionHistory
from simulation.plan import Plan, draw_plan
from simulation.universe import START_SECONDS_MAX, Universe, run_universe
from simulation.world import EPOCH, World


@pytest.fixture
def loop() -> Iterator[SimulationLoop]:
    loop = SimulationLoop()
    yield loop
    loop.close()


# --- what is drawn ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HARDSHIPS)
def test_setting_decides_whether_a_universe_has_a_hardship(name: str) -> None:
    assert getattr(Order(1, settings={"logs": 1, name: 1}).plan().hardships, name)
    without = dict.fromkeys(HARDSHIPS, 0)
    assert not any(getattr(Order(seed, settings=without).plan().hardships, name) for seed in range(1, 100))


@pytest.mark.parametrize("name", HARDSHIPS)
def test_share_of_the_seeds_has_a_hardship_and_the_others_keep_their_plans(name: str) -> None:
    others = {other: 0 for other in HARDSHIPS if other != name}
    plans = {seed: Order(seed, settings=others).plan() for seed in range(1, 300)}
    have = [seed for seed, plan in plans.items() if getattr(plan.hardships, name)]
    assert len(have) <= 1.5 * 300 * HARDSHIPS[name].share  # a draw of so few varies
    assert have or HARDSHIPS[name].share < 0.05
    kept = [seed for seed in plans if seed not in have]
    assert all(plans[seed] == draw_plan(seed) for seed in kept)


# --- turns ------------------------------------------------------------------------------------------------------------


async def late(loop: SimulationLoop, process: Process, said: list[str]) -> None:
    """What has arrived and two timers fall due while the process is paused; a task waits for what has arrived."""
    arrived = loop.create_future()

    async def wait() -> None:
        await arrived
        said.append("task goes on")

    async def begin() -> None:
        loop.call_later(1.0, said.append, "timer 1")
        loop.call_later(2.0, said.append, "timer 2")

    def arrive(what: str) -> None:
        said.append(what)
        if not arrived.done():
            arrived.set_result(None)

    process.spawn(wait(), "waiting")
    process.spawn(begin(), "beginning")
    await asyncio.sleep(0.1)
    process.pause()
    loop.call_process(process, loop.now + 1.5, arrive, "arrival 1")
    loop.call_process(process, loop.now + 2.5, arrive, "arrival 2")
    await asyncio.sleep(5)
    assert said == []
    process.resume()
    await asyncio.sleep(1)


def test_process_that_goes_on_runs_in_the_order_in_which_things_fell_due_unless_turns_are_drawn(
    loop: SimulationLoop,
) -> None:
    said: list[str] = []
    loop.run_until_complete(late(loop, Process(loop, "sleeper"), said))
    assert said == ["timer 1", "arrival 1", "timer 2", "arrival 2", "task goes on"]


def test_turn_in_which_several_things_are_due_begins_with_arrivals_or_timers_and_tasks_come_after_both() -> None:
    seen = set()
    for seed in range(20):
        loop, said = SimulationLoop(), list[str]()
        loop.turns = random.Random(seed)
        loop.run_until_complete(late(loop, Process(loop, "sleeper"), said))
        loop.close()
        seen.add(tuple(said))
    arrivals, timers = ("arrival 1", "arrival 2"), ("timer 1", "timer 2")
    assert seen == {(*arrivals, *timers, "task goes on"), (*timers, *arrivals, "task goes on")}


def test_turn_that_takes_long_delays_what_falls_due_meanwhile(loop: SimulationLoop) -> None:
    said: list[float] = []
    process = Process(loop, "busy")

    async def main() -> None:
        for seconds in (1.0, 1.2, 1.4, 2.0):
            loop.call_process(process, seconds, lambda: said.append(loop.now))
        await asyncio.sleep(0.9)
        process.stall(0.6)
        assert process.paused
        await asyncio.sleep(3)

    loop.run_until_complete(main())
    assert said == [1.5, 1.5, 1.5, 2.0]


def test_pause_goes_on_when_a_long_turn_within_it_would_have_ended(loop: SimulationLoop) -> None:
    said: list[float] = []
    process = Process(loop, "stopped")

    async def main() -> None:
        loop.call_process(process, 1.0, lambda: said.append(loop.now))
        process.stall(2.0)
        process.pause()
        process.stall(1.5)
        await asyncio.sleep(5)
        assert said == []
        process.resume()
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert said == [5.0]


# --- absences ---------------------------------------------------------------------------------------------------------


def absent_world() -> World:
    plan = Order(2, settings={"logs": 1, "absences": 1}).plan()
    plan.hardships.candidate_absent_chance, plan.options["lease_seconds"] = 1.0, 0.5
    return World(2, plan)


def test_candidate_is_away_for_longer_than_its_lease_when_it_is_given_a_lock() -> None:
    world = absent_world()
    process = world.host("candidate").process

    async def main() -> None:
        world.absences.locked(process, "logs/a")
        assert process.paused
        await asyncio.sleep(0.7)
        assert process.paused
        await asyncio.sleep(2)
        assert not process.paused

    world.loop.run_until_complete(main())
    world.loop.close()


@pytest.mark.parametrize(
    ("rival_began_at", "has_lock", "locked_again", "is_broken"),
    [(1.0, True, False, True), (1.0, False, False, False), (-1.0, True, False, False), (1.0, True, True, False)],
)
def test_leader_whose_lock_was_over_before_it_heard_of_it_must_not_have_deposed_another(
    rival_began_at: float, has_lock: bool, locked_again: bool, is_broken: bool
) -> None:
    world = absent_world()
    process, log = world.host("candidate").process, LogHistory("log", Retention(), iter(range(9)))

    async def main() -> None:
        world.absences.locked(process, "logs/a")
        await asyncio.sleep(3)
        if locked_again:
            world.absences.ended = True
            world.absences.locked(process, "logs/a")
        rival, late_one = log.leads("rival", 1), log.leads("candidate", 2)
        rival.began_at, rival.has_lock = rival_began_at, has_lock
        with pytest.raises(Violation, match="its lock was over") if is_broken else contextlib.nullcontext():
            world.absences.leads(process, "logs/a", late_one, log.leaders)

    world.loop.run_until_complete(main())
    world.loop.close()


def test_absences_strike_a_leader_and_a_bookie() -> None:
    plan = Order(2, settings={"logs": 1, "absences": 1}).plan()
    assert set(ABSENCES) <= plan.disturbances.keys()
    assert plan.safety_seconds >= 4 * max(plan.options["lease_seconds"], plan.bookie["lease_seconds"])


# --- clocks -----------------------------------------------------------------------------------------------------------


def world_with_clocks(*, of_processes: bool) -> World:
    plan = Order(2, settings={"logs": 1, "clocks": 1}).plan()
    plan.hardships.clocks_of_processes = of_processes
    return World(2, plan)


def test_clock_of_a_process_steps_by_hours_or_years_and_its_timers_do_not_notice() -> None:
    world = world_with_clocks(of_processes=True)
    host = world.host("client-0")
    seen: set[int] = set()

    async def main() -> None:
        strike = world.clocks.strikes(Nemesis(world))["clock steps"]
        for _ in range(60):
            strike()
            world.loop.current = host.process
            ahead = world.wall_clock() - EPOCH - timedelta(seconds=world.loop.time())
            world.loop.current = world.loop.world
            seen.add(round(ahead.total_seconds() / 3600))
            assert world.wall_clock() == EPOCH + timedelta(seconds=world.loop.now), "the world itself is right"
        assert world.metadata.clock_ahead_seconds == 0

    world.loop.run_until_complete(main())
    world.loop.close()
    assert 0 in seen
    assert any(0 < abs(hours) < 30 for hours in seen), seen
    assert any(abs(hours) > 300 * 24 for hours in seen), seen


def test_clock_of_the_metadata_store_steps_and_those_of_processes_stay_right() -> None:
    world = world_with_clocks(of_processes=False)
    world.host("client-0")
    times = set()

    async def main() -> None:
        strike = world.clocks.strikes(Nemesis(world))["clock steps"]
        for _ in range(20):
            strike()
            times.add(world.metadata.time_ms())
            assert world.clocks.ahead("client-0") == timedelta()

    world.loop.run_until_complete(main())
    world.loop.close()
    assert len(times) > 3


@pytest.mark.parametrize(("seconds", "is_broken"), [(0.9, True), (1.1, False)])
def test_retention_that_drops_a_young_entry_is_found_whatever_clocks_show(seconds: float, is_broken: bool) -> None:
    judged = RetentionHistory("log", Retention(seconds=1.0))
    judged.judges_by_the_world = True
    judged.saw_piece(4, Piece(10, 0))
    with pytest.raises(Violation, match="P8") if is_broken else contextlib.nullcontext():
        judged.check(4, 4, 0, youngest_made_at=5.0, now=5.0 + seconds)


def test_youngest_entry_of_a_range_is_known_by_the_time_at_which_it_was_added(leader: Leader) -> None:
    times = iter((1.0, 2.0, 3.0))
    leader.log.now = times.__next__
    for position in range(3):
        leader.log.holds(position, leader.adds[leader.add(b"")].payload)
    assert leader.log.youngest_made_at(0, 2) == 2.0
    assert leader.log.youngest_made_at(7, 9) is None


def hold(*, seconds: float, since_ms: int = 0) -> bytes:
    held = BookieCondition(Condition.HELD, since_ms, since_ms + int(seconds * 1000), "test")
    return encode_states(RepairStates().with_bookie(BookieId("bookie-1"), held))


@pytest.mark.parametrize(
    ("after", "released", "is_broken"), [(1.0, False, True), (1.0, True, False), (2.0, False, False)]
)
def test_hold_that_ends_before_its_time_is_found_unless_it_was_released(
    after: float, released: bool, is_broken: bool
) -> None:
    world = world_with_clocks(of_processes=True)

    async def main() -> None:
        world.clocks.document_changed("repair/bookies", hold(seconds=2.0))
        await asyncio.sleep(after)
        if released:
            world.clocks.releases(BookieId("bookie-1"))
        with pytest.raises(Violation, match="to be held") if is_broken else contextlib.nullcontext():
            world.clocks.document_changed("repair/bookies", encode_states(RepairStates()))

    world.loop.run_until_complete(main())
    world.loop.close()


# --- old incarnations -------------------------------------------------------------------------------------------------


class OldComesBack(Universe):
    """Moves one identity, and ends the old incarnation as soon as it has come back."""

    async def run(self) -> None:
        world = self.world
        for machine in world.machines:
            machine.start()
        await self._wait_for_bookies(START_SECONDS_MAX)
        (old,) = world.unlucky
        returns = Returns(world, world.rng_for("returns"))
        returns.strikes(Nemesis(world))["identity moves"]()
        assert returns.old == [old]
        assert old not in world.machines
        (new,) = world.unlucky
        while not world.trace.counters["process: old incarnation came back"]:
            assert not old.serving
            await asyncio.sleep(0.05)
        assert new.starts
        assert list(new.ids) == list(old.ids)[-1:]
        old.kill()
        old.retired = True
        await returns.check()
        await self._wait_for_bookies(START_SECONDS_MAX)
        await self._stop()


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_old_incarnation_comes_back_after_the_new_one_has_served(seed: int) -> None:
    outcome = run_universe(seed, Order(seed, settings={"returns": 1}).plan(), course=OldComesBack)
    assert outcome.ok, outcome.explanation


# --- impatience -------------------------------------------------------------------------------------------------------


@pytest.fixture
def leader() -> Leader:
    return LogHistory("log", Retention(), iter(range(9))).leads("client", 7)


def timed_out(doubt: Doubt | None) -> OctavoTimeoutError:
    error = OctavoTimeoutError("too late", may_have_happened=doubt is not None)
    error.doubt = doubt
    return error


def test_part_of_an_add_many_that_was_not_sent_must_never_appear(leader: Leader) -> None:
    indexes = [leader.add(b"") for _ in range(3)]
    assert leader.many_failed(indexes, timed_out(Doubt("log", 7, 4, 2, 1))) == [2]
    assert [add.fate for add in leader.adds] == [Fate.IN_DOUBT, Fate.IN_DOUBT, Fate.NOT_ADDED]
    leader.log.holds(5, leader.adds[2].payload)
    with pytest.raises(Violation, match="P6"):
        leader.not_added(2)


def test_add_many_that_did_not_happen_is_told_for_all_of_it(leader: Leader) -> None:
    indexes = [leader.add(b"") for _ in range(3)]
    assert leader.many_failed(indexes, timed_out(None)) == indexes
    assert not leader.many_in_doubt


def test_add_many_in_doubt_says_where_and_tells_of_all_of_it(leader: Leader) -> None:
    indexes = [leader.add(b"") for _ in range(3)]
    with pytest.raises(Violation, match="P6"):
        leader.many_failed(indexes, timed_out(Doubt("log", 7, 4, 1, 1)))
    error = timed_out(Doubt("log", 7, 4, 1, 2))
    error.doubt = None
    with pytest.raises(Violation, match="P6"):
        leader.many_failed(indexes, error)


def test_what_is_said_to_be_added_of_an_add_many_is_compared_with_what_is_there(leader: Leader) -> None:
    indexes = [leader.add(b"") for _ in range(3)]
    error = timed_out(Doubt("log", 7, 4, 3, 0))
    leader.many_failed(indexes, error)
    assert not leader.many_added(indexes, error, None)
    assert leader.many_in_doubt
    assert leader.many_added(indexes, error, 2)
    assert leader.log.payloads == {2: leader.adds[0].payload, 3: leader.adds[1].payload}
    assert leader.adds[2].fate is Fate.NOT_ADDED


def test_fewer_are_said_to_be_added_than_were_read(leader: Leader) -> None:
    indexes = [leader.add(b"") for _ in range(2)]
    error = timed_out(Doubt("log", 7, 4, 2, 0))
    leader.many_failed(indexes, error)
    leader.log.holds(4, leader.adds[1].payload)
    with pytest.raises(Violation, match="P6"):
        leader.many_added(indexes, error, 1)


# --- many ledgers -----------------------------------------------------------------------------------------------------


def plan_with_many(*, old_bookies: float, old_clients: float) -> Plan:
    plan = Order(3, size="quick", settings={"packs": 1, "logs": 0}).plan()
    plan.disturbances, plan.ledgers = {}, 30
    plan.hardships.old_bookie_chance, plan.hardships.old_client_chance = old_bookies, old_clients
    return plan


@pytest.mark.parametrize(("old_bookies", "old_clients"), [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)])
def test_packs_travel_between_peers_that_both_know_them(old_bookies: float, old_clients: float) -> None:
    outcome = run_universe(3, plan_with_many(old_bookies=old_bookies, old_clients=old_clients))
    assert outcome.ok, outcome.explanation
    assert bool(outcome.counters[PACKS]) is not bool(old_bookies or old_clients)
    assert bool(outcome.counters[OLD_BOOKIES]) is bool(old_bookies)
    assert bool(outcome.counters[OLD_CLIENTS]) is bool(old_clients)
    assert outcome.counters["adds acknowledged"] > 30
