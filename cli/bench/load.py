"""Generates load on a cluster and measures it; used by ``octavo bench``.

There are two kinds of load. *Closed loop*: one task for each operation that may be in flight; each task starts its next
operation when the previous one is done. This finds the throughput. *Open loop*: operation ``i`` is due at ``start + i /
rate``, whatever happened to earlier operations, and its latency is measured from that time. A store that stalls is
charged for every operation that became due meanwhile, whether it was sent or not (no coordinated omission).

Measuring costs one clock reading and one append to an array per operation; percentiles are computed afterwards.
"""

import asyncio
import math
import os
import sys
import time
from array import array
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from dataclasses import field
from functools import partial
from itertools import cycle, islice
from typing import Protocol, Self

from octavo.cli.bench.histogram import Histogram
from octavo.cli.output import Progress
from octavo.protocol.errors import OctavoError, WouldBlock
from octavo.protocol.light_dataclass import dataclass

LATENCIES_HELD_MAX = 4_000_000
"""Number of latencies (4 bytes each) that are kept before some are counted during the run, so that counting does not
disturb shorter runs."""

_COUNTED_AT_ONCE = 65_536
_PROGRESS_SECONDS = 0.25

PAUSE_SECONDS_MIN = 200e-6
PAUSE_SECONDS_MAX = 500e-6
_PAUSE_SECONDS_PER_RATE = 8e-9


def pause_seconds(rate: float) -> float:
    """Shortest pause of an open loop of this rate: operations that become due within it start together, so that timers
    cost little, also at high rates. What they wait for it is part of their latencies."""
    return min(PAUSE_SECONDS_MAX, max(PAUSE_SECONDS_MIN, rate * _PAUSE_SECONDS_PER_RATE))


@dataclass(slots=True)
class Measurement:
    """The result of one run. ``latencies`` are in seconds, one per operation, which may carry several entries."""

    latencies: "array[float]" = field(default_factory=lambda: array("f"))
    histogram: Histogram = field(default_factory=Histogram)
    begun: float = 0.0
    """When the first operation of an open loop was due, on its clock."""
    seconds: float = 0.0
    processor_seconds: float = 0.0
    """Processor time of this process, generator and client together; of an open loop only."""
    errors: int = 0
    first_error: OctavoError | None = None
    unsent: int = 0
    """Operations of an open loop that were due but were not started, because too many were in flight until the end."""

    @property
    def operations(self) -> int:
        """Number of operations that succeeded."""
        return self.histogram.count + len(self.latencies)

    def note_error(self, error: OctavoError) -> None:
        """Count a failed operation."""
        self.errors += 1
        if self.first_error is None:
            self.first_error = error

    async def count_latencies(self, held_max: int = 0) -> None:
        """Move latencies to the histogram until at most ``held_max`` are left; yields to other tasks in between."""
        while len(self.latencies) > held_max:
            self.histogram.record_all(self.latencies[:_COUNTED_AT_ONCE])
            del self.latencies[:_COUNTED_AT_ONCE]
            await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a run: until ``operations`` have been started, or for ``seconds``; exactly one of them is given."""

    operations: int | None
    seconds: float | None

    def fraction(self, operations: int, seconds: float) -> float:
        """The part of the run that is done, for a progress bar."""
        return operations / self.operations if self.operations else min(1.0, seconds / (self.seconds or 1.0))


type Operation = Callable[[], Awaitable[object]]
type Clock = Callable[[], float]
"""Seconds since some moment; never goes back."""


type Sleep = Callable[[float], Awaitable[object]]
"""Sleeps for this number of seconds."""


async def closed_loop(
    operations: Sequence[Operation],
    extent: Extent,
    in_flight: int,
    progress: Progress,
    *,
    clock: Clock = time.perf_counter,
) -> Measurement:
    """Keep ``in_flight`` operations going, one in each task. The tasks are dealt out over ``operations``; where these
    are more, each task repeats some of its own in turn. A task ends at its first error."""
    measurement = Measurement()
    record = measurement.latencies.append
    begun = clock()
    stop_at = math.inf if extent.seconds is None else begun + extent.seconds

    async def work(own: Sequence[Operation], share: int) -> None:
        started = clock()
        try:
            for operation in islice(cycle(own), share):
                if started >= stop_at:
                    return
                await operation()
                now = clock()
                record(now - started)
                started = now
        except OctavoError as error:
            measurement.note_error(error)

    async with _ticking(measurement, extent, progress), asyncio.TaskGroup() as group:
        for number in range(in_flight):
            share = sys.maxsize
            if extent.operations is not None:
                share = extent.operations // in_flight + (number < extent.operations % in_flight)
            group.create_task(work(operations[number % len(operations) :: in_flight], share))
    measurement.seconds = clock() - begun
    await measurement.count_latencies()
    return measurement


class _InFlight:
    """The operations of an open loop that have been started and are not done."""

    def __init__(self, measurement: Measurement, clock: Clock) -> None:
        self._measurement = measurement
        self._clock = clock
        self._futures: set[asyncio.Future[object]] = set()
        self._one_done: asyncio.Future[None] | None = None
        """What :meth:`wait_for_one` waits for."""
        self.defect: BaseException | None = None
        """An error of an operation that is none of Octavo's."""

    def __len__(self) -> int:
        return len(self._futures)

    def start(self, operation: Operation, due_at: float) -> bool:
        """Start an operation; False if there is no room for it now."""
        try:
            future = operation()
        except WouldBlock:
            return False
        except OctavoError as error:
            self._measurement.note_error(error)
            return True
        if not isinstance(future, asyncio.Future):
            future = asyncio.ensure_future(future)
        self._futures.add(future)
        future.add_done_callback(partial(self._done, due_at))
        return True

    def _done(self, due_at: float, future: asyncio.Future[object]) -> None:
        self._futures.discard(future)
        if self._one_done is not None:
            self._one_done.set_result(None)
            self._one_done = None
        try:
            error = future.exception()
        except asyncio.CancelledError:
            return
        if error is None:
            self._measurement.latencies.append(self._clock() - due_at)
        elif isinstance(error, OctavoError):
            self._measurement.note_error(error)
        else:
            self.defect = error

    async def wait_for_one(self) -> None:
        """Return once an operation is done."""
        self._one_done = asyncio.get_running_loop().create_future()
        await self._one_done

    async def wait_for_all(self) -> None:
        """Return once every operation is done, or one has failed by a defect."""
        while self._futures and self.defect is None:
            await self.wait_for_one()

    def cancel(self) -> None:
        for future in self._futures:
            future.cancel()


async def open_loop(
    operations: Sequence[Operation],
    extent: Extent,
    in_flight_max: int,
    rate: float,
    progress: Progress,
    *,
    clock: Clock = time.perf_counter,
    sleep: Sleep | None = None,
) -> Measurement:
    """Start ``rate`` operations a second, whether earlier ones are done or not, with at most ``in_flight_max`` in
    flight. An operation that returns a future costs no task. One that raises :class:`WouldBlock` is tried again when
    another one is done; meanwhile the operations that become due cost nothing but their latency. Sleeps by a
    :class:`PreciseTimer` unless ``sleep`` is given."""
    measurement = Measurement()
    total = extent.operations if extent.operations is not None else max(1, round(rate * (extent.seconds or 0.0)))
    in_flight = _InFlight(measurement, clock)
    started, shortest_pause = 0, pause_seconds(rate)
    with PreciseTimer() as timer:
        pause = sleep or timer.sleep
        async with _ticking(measurement, extent, progress):
            begun, processor_begun = clock(), time.process_time()
            measurement.begun = begun
            try:
                while started < total and in_flight.defect is None and not (measurement.errors and not in_flight):
                    now = clock()
                    due = min(total, int((now - begun) * rate) + 1)
                    while started < due and len(in_flight) < in_flight_max:
                        turn, due_at = started % len(operations), begun + started / rate
                        if not in_flight.start(operations[turn], due_at) and not any(
                            in_flight.start(other, due_at) for other in (*operations[turn + 1 :], *operations[:turn])
                        ):
                            break
                        started += 1
                    if extent.seconds is not None and now >= begun + extent.seconds:
                        break
                    if started < due and in_flight:
                        await in_flight.wait_for_one()
                    elif started < total:
                        await pause(max(shortest_pause, begun + started / rate - clock()))
                await in_flight.wait_for_all()
            finally:
                in_flight.cancel()
    if in_flight.defect is not None:
        raise in_flight.defect
    measurement.seconds = clock() - begun
    measurement.processor_seconds = time.process_time() - processor_begun
    measurement.unsent = total - started
    await measurement.count_latencies()
    return measurement


async def generator_seconds(rate: float, *, seconds: float = 0.25) -> float:
    """Processor time that an open loop of this rate takes for one operation, besides the operation itself: measured on
    operations that do nothing."""
    loop = asyncio.get_running_loop()

    def nothing() -> "asyncio.Future[None]":
        future: asyncio.Future[None] = loop.create_future()
        future.set_result(None)
        return future

    measured = await open_loop([nothing], Extent(None, seconds), sys.maxsize, rate, _show_nothing)
    return measured.processor_seconds / max(1, measured.operations)


def _show_nothing(done: float, note: str = "") -> None:
    """Progress that is not shown."""


def latency_ms(histogram: Histogram) -> dict[str, float | None]:
    """The latencies of a result, in milliseconds; None where nothing was measured."""
    seconds = {f"p{percent:g}".replace(".", "_"): histogram.percentile(percent) for percent in (50, 90, 99, 99.9)}
    all_seconds = {**seconds, "max": histogram.max, "mean": histogram.mean}
    return {name: None if value is None else round(value * 1000.0, 4) for name, value in all_seconds.items()}


class HasPayload(Protocol):
    """The part of an entry that a scan uses."""

    @property
    def payload(self) -> bytes: ...


async def scan(
    sources: Sequence[Callable[[], AsyncIterable[HasPayload]]], extent: Extent, sizes: list[int], progress: Progress
) -> Measurement:
    """Read each of ``sources`` in order, all at the same time, and again from the start until the extent is reached.

    An operation is one entry; its latency is the time for which the reader waited for it. ``sizes[0]`` grows by the
    payload bytes.
    """
    measurement = Measurement()
    clock = time.perf_counter
    begun = clock()
    stop_at = math.inf if extent.seconds is None else begun + extent.seconds

    async def read(source: Callable[[], AsyncIterable[HasPayload]], share: int) -> None:
        record = measurement.latencies.append
        left, payload_bytes = share, 0
        previous = clock()
        try:
            while left > 0 and previous < stop_at:
                left_before = left
                async for entry in source():
                    now = clock()
                    record(now - previous)
                    previous = now
                    payload_bytes += len(entry.payload)
                    left -= 1
                    if left <= 0 or now >= stop_at:
                        break
                if left == left_before:
                    return  # the source is empty
        except OctavoError as error:
            measurement.note_error(error)
        finally:
            sizes[0] += payload_bytes

    async with _ticking(measurement, extent, progress), asyncio.TaskGroup() as group:
        for number, source in enumerate(sources):
            share = sys.maxsize
            if extent.operations is not None:
                share = extent.operations // len(sources) + (number < extent.operations % len(sources))
            group.create_task(read(source, share))
    measurement.seconds = clock() - begun
    await measurement.count_latencies()
    return measurement


class _ticking:  # noqa: N801 - a context manager that reads as what goes on inside
    """Shows progress and bounds memory while the load runs."""

    def __init__(self, measurement: Measurement, extent: Extent, progress: Progress) -> None:
        self._measurement = measurement
        self._extent = extent
        self._progress = progress

    async def __aenter__(self) -> None:
        self._task = asyncio.ensure_future(self._tick())

    async def __aexit__(self, *exception: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _tick(self) -> None:
        begun = time.perf_counter()
        last_count, last_time = 0, begun
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            now = time.perf_counter()
            count = self._measurement.operations
            speed = (count - last_count) / (now - last_time)
            last_count, last_time = count, now
            self._progress(self._extent.fraction(count, now - begun), f"{speed:,.0f}/s")
            await self._measurement.count_latencies(LATENCIES_HELD_MAX)


class PreciseTimer:
    """Sleeps precisely: the event loop's timers count in milliseconds, which is too coarse for the measured latencies.

    Uses a Linux timer descriptor where Python offers it (3.13), otherwise the loop's timers.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        if sys.version_info >= (3, 13) and sys.platform == "linux":
            self._descriptor = os.timerfd_create(time.CLOCK_MONOTONIC, flags=os.TFD_NONBLOCK | os.TFD_CLOEXEC)
            asyncio.get_running_loop().add_reader(self._descriptor, self._expired)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)

    async def sleep(self, seconds: float) -> None:
        """Sleep for ``seconds`` (above 0)."""
        if sys.version_info >= (3, 13) and self._descriptor is not None:
            self._waiter = asyncio.get_running_loop().create_future()
            os.timerfd_settime(self._descriptor, initial=max(seconds, 1e-9))
            await self._waiter
        else:
            await asyncio.sleep(seconds)

    def _expired(self) -> None:
        assert self._descriptor is not None
        os.read(self._descriptor, 8)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
