"""The event loop of tests: what a paused process misses does not count."""

import asyncio
import time

import pytest
from support.patient_loop import PatientLoop
from support.waiting import pause


class Pauses:
    """Real time, and pauses of the process on request."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return time.monotonic() + self.seconds


async def test_tests_run_on_it() -> None:
    assert isinstance(asyncio.get_running_loop(), PatientLoop)


def test_a_pause_during_a_turn_ends_no_timeout() -> None:
    pauses = Pauses()

    async def work() -> None:
        async with asyncio.timeout(5.0):
            for _ in range(10):
                pauses.seconds += 100.0
                await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=lambda: PatientLoop(pauses.now)) as runner:
        runner.run(work())


def test_a_pause_during_a_wait_ends_no_timeout() -> None:
    pauses = Pauses()

    async def work() -> None:
        loop, paused = asyncio.get_running_loop(), asyncio.Event()

        def stand_still() -> None:
            pauses.seconds += 100.0
            loop.call_soon_threadsafe(paused.set)

        async with asyncio.timeout(5.0):
            await asyncio.to_thread(stand_still)
            await paused.wait()

    with asyncio.Runner(loop_factory=lambda: PatientLoop(pauses.now)) as runner:
        runner.run(work())


async def test_without_pauses_its_time_is_real_time() -> None:
    loop, began_at = asyncio.get_running_loop(), time.monotonic()
    began = loop.time()
    await pause(0.2)
    assert loop.time() - began >= 0.2
    assert time.monotonic() - began_at >= 0.2


async def test_what_is_late_by_its_time_is_late() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await asyncio.Event().wait()
