"""Load generators start what they should, when they should, and charge latencies to where they belong."""

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncIterator

import pytest
from octavo.cli.bench.histogram import RELATIVE_ERROR_MAX
from octavo.cli.bench.load import (
    Extent,
    Measurement,
    PreciseTimer,
    closed_loop,
    generator_seconds,
    open_loop,
    pause_seconds,
    scan,
)
from octavo.protocol.errors import QuorumLostError, WouldBlock
from support.waiting import WAIT_SECONDS


class ManualClock:
    """Time that passes only when a test advances it; its sleeps let exactly the requested time pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def no_progress(done: float, note: str = "") -> None:
    pass


class Server:
    """Answers after ``service_seconds`` of manual time; operation ``stall_at`` takes ``stall_seconds``."""

    def __init__(
        self, clock: ManualClock, *, service_seconds: float = 0.0, stall_at: int = -1, stall_seconds: float = 0.0
    ):
        self.clock = clock
        self.service_seconds = service_seconds
        self.stall_at = stall_at
        self.stall_seconds = stall_seconds
        self.served = 0

    async def __call__(self) -> None:
        number, self.served = self.served, self.served + 1
        self.clock.now += self.stall_seconds if number == self.stall_at else self.service_seconds


@pytest.mark.parametrize(("count", "in_flight"), [(10, 3), (3, 10), (1, 1), (1000, 7)])
async def test_closed_loop_performs_exactly_the_operations_asked_for(count: int, in_flight: int) -> None:
    clock = ManualClock()
    servers = [Server(clock), Server(clock)]
    measured = await closed_loop(servers, Extent(count, None), in_flight, no_progress, clock=clock)
    assert measured.operations == servers[0].served + servers[1].served == count
    assert measured.histogram.count == count
    assert measured.errors == 0


@pytest.mark.parametrize(
    ("servers", "in_flight", "served"),
    [(2, 6, [3, 3]), (3, 3, [1, 1, 1]), (5, 2, [2, 2, 1, 1, 1]), (4, 1, [2, 2, 1, 1])],
)
async def test_closed_loop_deals_tasks_out_over_operations_and_takes_turns_where_these_are_more(
    servers: int, in_flight: int, served: list[int]
) -> None:
    # The tasks of five servers and two in flight have servers 0, 2, 4 and 1, 3.
    clock = ManualClock()
    several = [Server(clock) for _ in range(servers)]
    count = sum(served)
    await closed_loop(several, Extent(count, None), in_flight, no_progress, clock=clock)
    assert [server.served for server in several] == served


async def test_closed_loop_keeps_as_many_under_way_as_asked_and_no_more() -> None:
    under_way, most = 0, 0

    async def operation() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    await closed_loop([operation], Extent(100, None), 8, no_progress)
    assert most == 8


async def test_closed_loop_ends_with_its_duration_and_measures_each_operation() -> None:
    clock = ManualClock()
    measured = await closed_loop([Server(clock, service_seconds=0.25)], Extent(None, 2.0), 1, no_progress, clock=clock)
    assert measured.operations == 8
    assert measured.seconds == pytest.approx(2.0)
    assert measured.histogram.max == pytest.approx(0.25)


async def test_closed_loop_task_ends_at_its_first_error_and_the_others_go_on() -> None:
    calls = 0

    async def failing() -> None:
        nonlocal calls
        calls += 1
        raise QuorumLostError("the first") if calls == 1 else QuorumLostError("a later one")

    clock = ManualClock()
    server = Server(clock)
    measured = await closed_loop([failing, server], Extent(40, None), 4, no_progress, clock=clock)
    assert measured.operations == server.served == 20
    assert measured.errors == calls == 2
    assert measured.first_error is not None
    assert measured.first_error.message == "the first"


async def test_open_loop_charges_a_stall_to_everything_that_became_due_meanwhile() -> None:
    clock = ManualClock()
    server = Server(clock, stall_at=100, stall_seconds=1.0)
    measured = await open_loop(
        [server], Extent(2000, None), 10_000, 1000.0, no_progress, clock=clock, sleep=clock.sleep
    )
    assert measured.operations == 2000
    histogram = measured.histogram
    # A thousand operations were due during the second's stall; they waited half of it on average.
    assert histogram.max == pytest.approx(1.0, rel=0.01)
    assert histogram.percentile(75) == pytest.approx(0.5, rel=0.02)
    assert histogram.percentile(45) == pytest.approx(0.0, abs=0.003)
    assert histogram.mean == pytest.approx(0.25, rel=0.02)


async def test_open_loop_keeps_its_rate_when_the_server_does() -> None:
    clock = ManualClock()
    measured = await open_loop(
        [Server(clock)], Extent(None, 2.0), 10, 500.0, no_progress, clock=clock, sleep=clock.sleep
    )
    assert measured.operations == 1000
    assert measured.unsent == 0
    assert measured.seconds == pytest.approx(2.0, rel=0.01)


async def test_open_loop_never_exceeds_what_may_be_in_flight_and_tells_what_it_could_not_begin() -> None:
    clock = ManualClock()
    under_way, most = 0, 0

    async def slow() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(3):
            await asyncio.sleep(0)
        clock.now += 0.1
        under_way -= 1

    measured = await open_loop([slow], Extent(None, 1.0), 2, 1000.0, no_progress, clock=clock, sleep=clock.sleep)
    assert most == 2
    assert measured.operations + measured.unsent == 1000
    assert measured.unsent > 900


async def test_open_loop_stops_when_everything_fails() -> None:
    clock = ManualClock()

    async def failing() -> None:
        raise QuorumLostError("dead")

    measured = await open_loop([failing], Extent(None, 1000.0), 2, 1000.0, no_progress, clock=clock, sleep=clock.sleep)
    assert measured.operations == 0
    assert 1 <= measured.errors <= 10


class Entry:
    payload = b"12345"


def source(number: int, *, fails_at: int | None = None):  # type: ignore[no-untyped-def]
    async def entries() -> AsyncIterator[Entry]:
        for position in range(number):
            if position == fails_at:
                raise QuorumLostError("lost")
            yield Entry()

    return entries


async def test_scan_reads_every_source_and_begins_again_until_its_extent_is_reached() -> None:
    sizes = [0]
    measured = await scan([source(10), source(3)], Extent(20, None), sizes, no_progress)
    assert measured.operations == 20
    assert sizes[0] == 100


async def test_scan_of_nothing_ends_and_a_failing_source_is_counted() -> None:
    assert (await scan([source(0)], Extent(None, 1e9), [0], no_progress)).operations == 0
    measured = await scan([source(10, fails_at=4)], Extent(10, None), [0], no_progress)
    assert (measured.operations, measured.errors) == (4, 1)


async def test_counting_latencies_during_a_run_loses_none() -> None:
    measured = Measurement(latencies=array("f", [0.001] * 200_000))
    await measured.count_latencies(100_000)
    assert 0 < len(measured.latencies) <= 100_000
    assert measured.operations == 200_000
    await measured.count_latencies()
    assert measured.histogram.count == 200_000
    assert measured.histogram.percentile(50) == pytest.approx(0.001, rel=RELATIVE_ERROR_MAX)


async def test_the_timer_wakes_its_sleeper_and_can_be_left_while_it_sleeps() -> None:
    with PreciseTimer() as timer:
        await asyncio.wait_for(timer.sleep(1e-6), WAIT_SECONDS)
        await asyncio.wait_for(timer.sleep(1e-6), WAIT_SECONDS)
        sleeper = asyncio.ensure_future(timer.sleep(1000.0))
        await asyncio.sleep(0)
        sleeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeper


async def test_open_loop_takes_futures_and_counts_those_that_fail_or_are_refused_at_once() -> None:
    clock = ManualClock()
    loop = asyncio.get_running_loop()
    calls = 0

    def operation() -> "asyncio.Future[int]":
        nonlocal calls
        calls += 1
        if calls == 20:
            raise QuorumLostError("refused at once")
        future: asyncio.Future[int] = loop.create_future()
        if calls == 19:
            loop.call_soon(future.set_exception, QuorumLostError("failed later"))
        else:
            loop.call_soon(future.set_result, calls)
        return future

    measured = await open_loop([operation], Extent(20, None), 10, 1000.0, no_progress, clock=clock, sleep=clock.sleep)
    assert (measured.operations, measured.errors, measured.unsent) == (18, 2, 0)
    assert measured.first_error is not None
    assert measured.first_error.message == "refused at once"


class Window:
    """A writer with room for ``size`` adds; the clock is ``seconds`` later whenever the oldest one is acknowledged."""

    def __init__(self, clock: ManualClock, size: int, seconds: float) -> None:
        self.clock, self.size, self.seconds = clock, size, seconds
        self.futures: deque[asyncio.Future[int]] = deque()
        self.taken = self.refused = 0

    def add(self) -> "asyncio.Future[int]":
        if len(self.futures) >= self.size:
            self.refused += 1
            raise WouldBlock("full")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.futures.append(future)
        self.taken += 1
        asyncio.get_running_loop().call_soon(self._acknowledge)
        return future

    def _acknowledge(self) -> None:
        self.clock.now += self.seconds
        self.futures.popleft().set_result(0)


async def test_an_add_for_which_there_is_no_room_is_tried_again_and_charged_with_its_wait() -> None:
    clock = ManualClock()
    writer = Window(clock, 1, 0.01)
    measured = await open_loop([writer.add], Extent(20, None), 100, 1000.0, no_progress, clock=clock, sleep=clock.sleep)
    assert (measured.operations, measured.errors, measured.unsent) == (20, 0, 0)
    assert (writer.taken, writer.refused > 0) == (20, True)
    # One every 10 ms, due every 1 ms: the last waits for 19 others, 9 ms for each.
    assert measured.histogram.max == pytest.approx(0.181, rel=0.05)


@pytest.mark.parametrize(
    ("rate", "pause"), [(10, 200e-6), (25_000, 200e-6), (50_000, 400e-6), (62_500, 500e-6), (1e6, 500e-6)]
)
def test_steps_of_an_open_loop(rate: float, pause: float) -> None:
    assert pause_seconds(rate) == pytest.approx(pause)


async def test_adds_go_to_the_writers_that_have_room() -> None:
    clock = ManualClock()
    full, empty = Window(clock, 0, 0.01), Window(clock, 5, 0.0)
    operations = [full.add, empty.add]
    measured = await open_loop(operations, Extent(50, None), 100, 1000.0, no_progress, clock=clock, sleep=clock.sleep)
    assert (measured.operations, measured.errors, measured.unsent) == (50, 0, 0)
    assert (full.taken, empty.taken) == (0, 50)


async def test_a_writer_without_room_and_without_adds_under_way_is_asked_again_until_the_time_is_over() -> None:
    clock = ManualClock()
    full = Window(clock, 0, 0.0)
    measured = await open_loop([full.add], Extent(None, 1.0), 100, 10.0, no_progress, clock=clock, sleep=clock.sleep)
    assert (measured.operations, measured.errors, measured.unsent) == (0, 0, 10)


async def test_a_defect_ends_an_open_loop_and_leaves_nothing_running() -> None:
    clock = ManualClock()
    hanging = asyncio.get_running_loop().create_future()

    async def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await open_loop(
            [lambda: hanging, broken], Extent(2, None), 10, 1000.0, no_progress, clock=clock, sleep=clock.sleep
        )
    assert hanging.cancelled()


async def test_the_generators_own_cost_is_measured() -> None:
    assert 0.0 < await generator_seconds(20_000.0, seconds=0.02) < 60
