"""The rate of background work beside adds, when it rests to learn what they take, and how copying keeps to it (rule
A9)."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise

import pytest
from octavo.protocol.adaptive_rate import AdaptiveRate
from octavo.protocol.background_pacing import CALM_SECONDS, LISTEN_EVERY_SECONDS, LISTEN_SECONDS, GivingWay
from octavo.repair.copy.pacing import ByteLimit, Pace
from simulation.engine.loop import SimulationLoop


@pytest.fixture
def loop() -> Iterator[SimulationLoop]:
    """Its time passes only while nothing else happens."""
    loop = SimulationLoop()
    yield loop
    loop.close()


# --- the rate -------------------------------------------------------------------------------------------------------


def test_the_rate_follows_what_adds_took_before_the_work_began() -> None:
    control = AdaptiveRate(per_second_min=100, per_second_max=1600)
    assert control.adjust(0.01, rested=True) == 200, "it begins slowly"
    assert [control.adjust(0.0149) for _ in range(3)] == [250, 312, 390], "half as long again is bearable"
    assert control.adjust(0.016) == 182, "slow adds: below the half at once"
    assert control.adjust(0.1) == 100
    assert control.adjust(0.0) == 1600, "no adds"
    assert control.adjust(0.08) == 150, "far too slow: below an eighth at once"


def test_adds_of_a_hundred_microseconds_may_take_many_times_as_long() -> None:
    control = AdaptiveRate(per_second_min=100, per_second_max=1600)
    control.adjust(0.0001, rested=True)
    assert control.adjust(0.002) == 250


def test_a_load_that_has_grown_meanwhile_does_not_hold_the_rate_down_for_ever() -> None:
    control = AdaptiveRate(per_second_min=100, per_second_max=1600)
    control.adjust(0.01, rested=True)
    rates = [control.adjust(0.03) for _ in range(25)]
    assert (rates[0], rates[-1]) == (100, 1600), "three times as long is ordinary now"


def test_what_undisturbed_adds_take_is_learned_at_the_lowest_rate() -> None:
    control = AdaptiveRate(per_second_min=100, per_second_max=1600)
    assert control.adjust(0.05) == 100, "adds have begun beside the work: nothing is known of them"
    assert [control.adjust(0.01), control.adjust(0.0149), control.adjust(0.05)] == [125, 156, 100]


def test_work_that_goes_on_beside_adds_keeps_its_rate_when_their_delay_is_learned_again() -> None:
    control = AdaptiveRate(per_second_min=100, per_second_max=1600)
    control.adjust(0.01, rested=True)
    rates = [control.adjust(0.01) for _ in range(5)]
    assert control.adjust(0.02, rested=True) == rates[-1] > 200
    assert control.adjust(0.029) > rates[-1], "half as long again as what was learned last"
    control.adjust(0.0)
    assert control.adjust(0.01, rested=True) == 200, "adds have come back"


# --- when the work rests and looks ----------------------------------------------------------------------------------


class NotedRate(AdaptiveRate):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__(per_second_min=100, per_second_max=1600)
        self.told: list[tuple[float, bool]] = []

    def adjust(self, add_delay_seconds: float, *, rested: bool = False) -> int:
        self.told.append((add_delay_seconds, rested))
        return super().adjust(add_delay_seconds, rested=rested)


class Adds:
    """Work that gives way to adds, which take ``delay_seconds``."""

    def __init__(self) -> None:
        self.delay_seconds = 0.0
        self._rate = NotedRate()
        self.told = self._rate.told
        self.way = GivingWay(self._rate, lambda: self.delay_seconds)

    def work(self, now: float, seconds: float) -> list[float]:
        """Work that asks ten times a second and rests when it must; returns when it worked, without repetition."""
        worked, until = list[float](), now + seconds
        while now < until:
            pause_seconds = self.way.look(now)
            if not pause_seconds:
                worked.append(round(now, 2))
            now += pause_seconds or 0.1
        return worked


def test_work_without_adds_never_rests() -> None:
    adds = Adds()
    assert len(adds.work(1000.0, 60.0)) == pytest.approx(600, abs=1)
    assert set(adds.told) == {(0.0, True), (0.0, False)}
    assert len(adds.told) == pytest.approx(60, abs=6), "one look a second"


def test_work_beside_adds_begins_with_listening_and_repeats_it() -> None:
    adds = Adds()
    adds.delay_seconds = 0.01
    listening = CALM_SECONDS + LISTEN_SECONDS
    assert adds.work(1000.0, 60.0)[0] == 1000.0 + listening
    rests = [number for number, (_, rested) in enumerate(adds.told) if rested]
    assert rests[0] == 0
    assert len(rests) == 2, "again after half a minute"
    assert rests[1] == pytest.approx(LISTEN_EVERY_SECONDS, abs=4)


def test_what_adds_took_before_the_work_is_calm_is_not_learned() -> None:
    adds = Adds()
    adds.delay_seconds = 9.0
    assert adds.way.look(1000.0) == CALM_SECONDS
    assert adds.way.look(1000.0 + CALM_SECONDS) == LISTEN_SECONDS
    adds.delay_seconds = 0.01
    half = CALM_SECONDS + LISTEN_SECONDS / 2
    assert adds.way.look(1000.0 + half) == LISTEN_SECONDS / 2, "another piece of work rests as long"
    assert adds.way.look(1000.0 + CALM_SECONDS + LISTEN_SECONDS) == 0.0
    assert adds.told == [(0.01, True)]


def test_adds_that_begin_beside_the_work_are_listened_to() -> None:
    adds = Adds()
    adds.work(1000.0, LISTEN_EVERY_SECONDS + 10)
    adds.delay_seconds, now = 0.01, 1000.0 + LISTEN_EVERY_SECONDS + 10
    worked = adds.work(now, 4.0)
    assert max(later - earlier for earlier, later in pairwise(worked)) > LISTEN_SECONDS
    assert adds.told[-1] == (0.01, False)
    assert [rested for delay, rested in adds.told if delay].count(True) == 1


def test_what_adds_took_during_a_pause_of_the_work_need_not_be_listened_for() -> None:
    adds = Adds()
    adds.delay_seconds = 0.01
    adds.work(1000.0, 5.0)
    adds.told.clear()
    assert adds.way.look(1010.0) == 0.0
    assert adds.told == [(0.01, True)]
    adds.told.clear()
    assert adds.way.look(1100.0) == CALM_SECONDS, "what they took in an hour says nothing about now"
    assert not adds.told


async def test_copies_come_in_smaller_pieces_at_a_lower_rate() -> None:
    control = AdaptiveRate(per_second_min=1 << 20, per_second_max=1 << 26)
    pace = Pace(control, lambda: 0.0)
    assert pace.piece_bytes == 1 << 20
    control.adjust(0.1, rested=True)
    assert pace.piece_bytes == 256 << 10


def test_copying_rests_while_it_listens_but_not_for_the_last_live_copy(loop: SimulationLoop) -> None:
    async def copied_after(*, urgent: bool) -> float:
        began_at = loop.time()
        pace = Pace(AdaptiveRate(per_second_min=1 << 20, per_second_max=1 << 26), lambda: 0.1)
        await pace.take(1, urgent=urgent)
        return loop.time() - began_at

    async def both() -> tuple[float, float]:
        return await copied_after(urgent=False), await copied_after(urgent=True)

    assert loop.run_until_complete(both()) == (CALM_SECONDS + LISTEN_SECONDS, 0.0)


async def test_work_on_too_many_bytes_waits_in_its_order_and_a_large_piece_passes_alone() -> None:
    limit, begun, release = ByteLimit(lambda: 10), list[int](), {size: asyncio.Event() for size in (6, 4, 5, 30, 1)}

    async def work(size: int) -> None:
        async with limit.hold(size):
            begun.append(size)
            await release[size].wait()

    async def turns() -> list[int]:
        for _ in range(10):
            await asyncio.sleep(0)
        return begun

    tasks = [asyncio.ensure_future(work(size)) for size in release]
    assert await turns() == [6, 4]
    release[6].set()
    assert await turns() == [6, 4, 5]
    release[5].set()
    assert await turns() == [6, 4, 5]
    tasks[3].cancel()  # the one that waits for all to end
    assert await turns() == [6, 4, 5, 1]
    tasks.append(asyncio.ensure_future(work(30)))
    for size in (4, 1, 30):
        release[size].set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert begun == [6, 4, 5, 1, 30]
