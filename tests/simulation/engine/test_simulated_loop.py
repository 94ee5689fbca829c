"""The simulated loop: processes die between steps, pause, and have their own clocks; runs are reproducible."""

import asyncio
from collections.abc import Iterator

import pytest
from simulation.engine.loop import EscapedError, Process, SimulationLoop, StuckError


@pytest.fixture
def loop() -> Iterator[SimulationLoop]:
    loop = SimulationLoop()
    yield loop
    loop.close()


async def tick(said: list[float], process: Process, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        said.append(round(process.time(), 6))


def test_time_passes_only_while_nothing_is_ready(loop: SimulationLoop) -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        return loop.now

    assert loop.run_until_complete(main()) == 3600


def test_killed_process_runs_no_further_and_cleans_nothing_up(loop: SimulationLoop) -> None:
    said: list[str] = []
    process = Process(loop, "victim")

    async def work() -> None:
        try:
            said.append("begins")
            await asyncio.sleep(1)
            said.append("goes on")
        finally:
            said.append("cleans up")

    async def main() -> None:
        process.spawn(work(), "work")
        await asyncio.sleep(0.5)
        process.kill()
        await asyncio.sleep(5)

    loop.run_until_complete(main())
    assert said == ["begins"]
    assert not process.tasks()


def test_process_dies_at_the_step_it_was_told_to(loop: SimulationLoop) -> None:
    said: list[float] = []
    process = Process(loop, "victim")
    process.on_step_death = process.kill
    process.die_at_step = 6

    async def main() -> None:
        process.spawn(tick(said, process, 1.0), "tick")
        await asyncio.sleep(100)

    loop.run_until_complete(main())
    assert not process.alive
    assert 0 < len(said) < 6


def test_paused_process_goes_on_late_with_everything_that_fell_due(loop: SimulationLoop) -> None:
    said: list[float] = []
    process = Process(loop, "sleeper")

    async def main() -> None:
        process.spawn(tick(said, process, 1.0), "tick")
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(10)
        assert said == [1.0]
        process.resume()
        await asyncio.sleep(0.1)
        process.kill()

    loop.run_until_complete(main())
    assert said == [1.0, 11.5]


def test_each_process_has_its_own_clock_and_its_timers_never_fire_early(loop: SimulationLoop) -> None:
    said: list[float] = []
    process = Process(loop, "slow clock", clock_offset=500.0, clock_rate=0.8)

    async def deadlines() -> None:
        own = asyncio.get_running_loop()
        for step in range(1, 200):
            when = 500.0 + step / 7
            fired = own.create_future()
            own.call_at(when, fired.set_result, None)
            await fired
            assert own.time() >= when
        said.append(loop.now)

    async def main() -> None:
        process.spawn(deadlines(), "deadlines")
        await asyncio.sleep(100)

    loop.run_until_complete(main())
    assert said == [pytest.approx(199 / 7 / 0.8)]


def test_sets_of_tasks_iterate_in_order_of_creation(loop: SimulationLoop) -> None:
    async def main() -> list[bool]:
        made = [asyncio.ensure_future(asyncio.sleep(1)) for _ in range(7)]
        in_order = list(set(made)) == made
        futures = [loop.create_future() for _ in range(7)]
        await asyncio.wait(made)
        return [in_order, list(set(futures)) == futures]

    assert loop.run_until_complete(main()) == [True, True]


def test_nothing_left_to_happen_is_reported_and_not_waited_for(loop: SimulationLoop) -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(StuckError, match="nothing is left"):
        loop.run_until_complete(main())


def test_threads_and_real_connections_are_refused(loop: SimulationLoop) -> None:
    async def main() -> None:
        with pytest.raises(EscapedError):
            await asyncio.to_thread(print)
        with pytest.raises(EscapedError):
            await asyncio.open_connection("localhost", 1)
        with pytest.raises(EscapedError):
            loop.call_soon_threadsafe(print)

    loop.run_until_complete(main())


def test_exception_that_is_never_retrieved_is_a_complaint_unless_its_process_is_dead(loop: SimulationLoop) -> None:
    process = Process(loop, "careless")

    async def fail() -> None:
        raise RuntimeError("oops")

    async def main() -> None:
        process.spawn(fail(), "failing")
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert [(who.name, str(what["exception"])) for who, what in loop.complaints] == [("careless", "oops")]
