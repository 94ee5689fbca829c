"""An error of one part of repair ends neither that part for good nor another one (rule A12)."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import pytest
import structlog
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.metadata.store.values import Version
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.ids import BookieId, LedgerId
from octavo.repair.base.documents import WorkPlan, decode_report, done_name, encode_plan, work_name
from octavo.repair.base.keep_running import RESTART_SECONDS_MAX, keep_running
from octavo.repair.base.planning import Job, Why
from octavo.repair.base.settings import RepairSettings
from octavo.repair.copy.jobs import Outcome
from octavo.repair.copy.puller import Copied
from octavo.repair.copy.target import Target
from simulation.engine.loop import SimulationLoop
from support.metadata.interposed_store import InterposedStore

ME = BookieId("a")


@pytest.fixture
def loop() -> Iterator[SimulationLoop]:
    """Its time passes only while nothing else happens."""
    loop = SimulationLoop()
    yield loop
    loop.close()


def test_what_fails_is_logged_and_begins_again_after_pauses_that_grow_to_a_minute(loop: SimulationLoop) -> None:
    begun_at: list[float] = []

    async def fail() -> None:
        begun_at.append(loop.time())
        raise OSError("no")

    async def run() -> None:
        with structlog.testing.capture_logs() as events:
            task = asyncio.ensure_future(keep_running("reports", fail))
            await asyncio.sleep(300)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert {event["part"] for event in events} == {"reports"}

    loop.run_until_complete(run())
    pauses = [later - earlier for earlier, later in pairwise(begun_at)]
    assert pauses == [1, 2, 4, 8, 16, 32, *[RESTART_SECONDS_MAX] * (len(pauses) - 6)]
    assert len(pauses) > 8


def test_what_ran_for_long_begins_again_soon(loop: SimulationLoop) -> None:
    begun_at: list[float] = []

    async def fail_late() -> None:
        begun_at.append(loop.time())
        await asyncio.sleep(100)
        raise OSError("no")

    async def run() -> None:
        with structlog.testing.capture_logs():
            task = asyncio.ensure_future(keep_running("reports", fail_late))
            await asyncio.sleep(310)
            task.cancel()
            await asyncio.wait([task])

    loop.run_until_complete(run())
    assert begun_at == [0, 101, 202, 303]


def test_a_report_that_cannot_be_stored_is_stored_later_and_the_target_works_on(loop: SimulationLoop) -> None:
    """Before, its reporter ended unseen, and its work was planned again for ever."""
    done: list[Job] = []
    refused: list[str] = []

    class Jobs:
        async def run(self, job: Job) -> Outcome:
            done.append(job)
            return Outcome()

    async def run() -> None:
        async with open_memory_store(MemoryServer()) as store:

            async def refuse_once(name: str, value: bytes, expected: Version | None) -> Version:
                if name == done_name(ME) and not refused:
                    refused.append(name)
                    raise InvalidArgumentError("too large")
                return await store.put_document(name, value, expected)

            interposed = InterposedStore(store)
            interposed.interpose("put_document", refuse_once)
            target = Target(ME, interposed.face, cast(Any, Jobs()), Copied(), RepairSettings())
            await store.put_document(work_name(ME), encode_plan(WorkPlan(1, (Job(LedgerId(7), None, Why.HOLE),))), None)
            task = asyncio.ensure_future(target.run())
            await asyncio.sleep(10)
            found = await store.read_document(done_name(ME))
            assert found is not None
            assert decode_report(found.value, "x").done == {0}
            task.cancel()
            await asyncio.wait([task])

    with structlog.testing.capture_logs() as events:
        loop.run_until_complete(run())
    assert (len(done), refused) == (1, [done_name(ME)])
    assert [event["part"] for event in events if "part" in event] == ["reports of copies"]
