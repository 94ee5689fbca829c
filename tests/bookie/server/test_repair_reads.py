"""Reads of repairs wait for ordinary reads and for their rate, over all connections of a bookie."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from octavo.bookie.server.repair_reads import BYTES_PER_SECOND_MIN, PATIENCE_SECONDS, RepairReads
from octavo.bookie.server.request_counts import MeanOfLatest
from octavo.metrics.histogram import Histogram
from simulation.engine.loop import SimulationLoop

RATE = 1000


@pytest.fixture
def loop() -> Iterator[SimulationLoop]:
    """Its time passes only while nothing else happens."""
    loop = SimulationLoop()
    yield loop
    loop.close()


def timed(loop: SimulationLoop, scene: Callable[[RepairReads], Awaitable[None]]) -> float:
    """How long a scene takes, in the loop's seconds."""

    async def play() -> float:
        began_at = loop.time()
        await scene(RepairReads(RATE))
        return loop.time() - began_at

    return float(loop.run_until_complete(play()))


def test_reads_on_an_idle_bookie_begin_at_once(loop: SimulationLoop) -> None:
    async def scene(reads: RepairReads) -> None:
        for _ in range(10):
            await reads.wait_turn()

    assert timed(loop, scene) == 0


def test_bytes_that_were_read_delay_the_next_read(loop: SimulationLoop) -> None:
    async def scene(reads: RepairReads) -> None:
        for size in (500, 250, 0, 2000):
            await reads.wait_turn()
            reads.count(size)
        await reads.wait_turn()
        assert (reads.reads, reads.bytes_read) == (4, 2750)

    assert timed(loop, scene) == pytest.approx(2750 / RATE)


def test_a_pause_is_not_saved_up(loop: SimulationLoop) -> None:
    async def scene(reads: RepairReads) -> None:
        await asyncio.sleep(100)
        for _ in range(3):
            await reads.wait_turn()
            reads.count(1000)

    assert timed(loop, scene) == pytest.approx(102)


def test_read_waits_until_ordinary_reads_are_over(loop: SimulationLoop) -> None:
    async def scene(reads: RepairReads) -> None:
        reads.ordinary_begins()
        reads.ordinary_begins()
        waiting = asyncio.ensure_future(reads.wait_turn())
        await asyncio.sleep(PATIENCE_SECONDS / 4)
        reads.ordinary_ends()
        await asyncio.sleep(PATIENCE_SECONDS / 4)
        assert not waiting.done()
        reads.ordinary_ends()
        await waiting

    assert timed(loop, scene) == pytest.approx(PATIENCE_SECONDS / 2)


def test_bookie_that_is_never_idle_still_answers_repairs(loop: SimulationLoop) -> None:
    async def scene(reads: RepairReads) -> None:
        reads.ordinary_begins()
        for _ in range(20):
            await reads.wait_turn()

    assert timed(loop, scene) == pytest.approx(20 * PATIENCE_SECONDS)


def test_reads_begin_in_order_and_one_that_is_cancelled_keeps_none_back(loop: SimulationLoop) -> None:
    begun: list[int] = []

    async def scene(reads: RepairReads) -> None:
        async def read(number: int) -> None:
            await reads.wait_turn()
            begun.append(number)
            reads.count(100)

        reads.ordinary_begins()
        waiting = [asyncio.ensure_future(read(number)) for number in range(5)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[3].cancel()
        reads.ordinary_ends()
        await asyncio.gather(*waiting, return_exceptions=True)

    timed(loop, scene)
    assert begun == [1, 2, 4]


def test_rate_falls_while_adds_are_slow_and_rises_again(loop: SimulationLoop) -> None:
    """Rule A9: adds wait for the same disks."""
    delays = {"now": 0.01}
    rate = 8 * BYTES_PER_SECOND_MIN

    async def scene(_reads: RepairReads) -> None:
        reads = RepairReads(rate, lambda: delays["now"])

        async def bytes_in(seconds: float) -> int:
            before, until = reads.bytes_read, loop.time() + seconds
            while loop.time() < until:
                await reads.wait_turn()
                reads.count(1 << 20)
            return reads.bytes_read - before

        await asyncio.sleep(10.0)
        await bytes_in(1.0)  # what adds took before is known now
        delays["now"] = 0.1
        await bytes_in(1.0)
        slow = await bytes_in(2.0)
        delays["now"] = 0.0
        await bytes_in(1.0)
        fast = await bytes_in(4.0)
        assert slow == pytest.approx(2 * BYTES_PER_SECOND_MIN, rel=0.2)
        assert fast == pytest.approx(4 * rate, rel=0.1)

    timed(loop, scene)


def test_delay_of_adds_counts_only_while_there_are_adds() -> None:
    adds = Histogram()
    adds.observe(3.0)
    delay = MeanOfLatest(adds)
    assert delay() == 0.0
    adds.observe(0.25)
    adds.observe(0.75)
    assert (delay(), delay()) == (0.5, 0.0)
    adds.observe(0.5)
    assert delay() == 0.5
