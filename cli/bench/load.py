"""Load on a cluster, and what it took: the measuring part of ``octavo bench``.

Two shapes. *Closed loop*: as many tasks as may be in flight, each starting its next operation when the last is done;
this finds the throughput. *Open loop*: operation ``i`` is due at ``start + i / rate`` whatever happened to those
before it, and its latency counts from then; a store that stalls is charged for everything that became due meanwhile,
sent or not yet sent (no coordinated omission).

Measuring costs one clock reading and one append to an array per operation; percentiles are computed afterwards.
"""

import asyncio
import math
import os
import sys
import time
from array import array
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from octavo.cli.bench.histogram import Histogram
from octavo.cli.output import Progress
from octavo.protocol.errors import OctavoError

LATENCIES_HELD_MAX = 4_000_000
"""Latencies kept as they are (4 bytes each) before some are counted during the run: a shorter run is not disturbed."""

_COUNTED_AT_ONCE = 65_536
_PROGRESS_SECONDS = 0.25

PAUSE_SECONDS_MIN = 50e-6
"""Shortest pause of an open loop: what becomes due within it starts together, so that timers cost little."""


@dataclass(slots=True)
class Measurement:
    """What one run measured. ``latencies`` are in seconds, one per operation, which may carry several entries."""

    latencies: "array[float]" = field(default_factory=lambda: array("f"))
    histogram: Histogram = field(default_factory=Histogram)
    seconds: float = 0.0
    errors: int = 0
    first_error: OctavoError | None = None
    unsent: int = 0
    """Operations of an open loop that were due and could not be started: too many were in flight until the end."""

    @property
    def operations(self) -> int:
        """How many succeeded."""
        return self.histogram.count + len(self.latencies)

    def note_error(self, error: OctavoError) -> None:
        """Count a failed operation."""
        self.errors += 1
        if self.first_error is None:
            self.first_error = error

    async def count_latencies(self, held_max: int = 0) -> None:
        """Move latencies to the histogram until at most ``held_max`` are left, letting others run in between."""
        while len(self.latencies) > held_max:
            self.histogram.record_all(self.latencies[:_COUNTED_AT_ONCE])
            del self.latencies[:_COUNTED_AT_ONCE]
            await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class Extent:
    """How long a run goes on: until ``operations`` were started, or for ``seconds``; one of them is given."""

    operations: int | None
    seconds: float | None

    def fraction(self, operations: int, seconds: float) -> float:
        """How much of it is done, for a progress bar."""
        return operations / self.operations if self.operations else min(1.0, seconds / (self.seconds or 1.0))


type Operation = Callable[[], Awaitable[object]]
type Clock = Callable[[], float]
"""Seconds since some moment; never goes back."""


class Timer(Protocol):
    """Something to sleep by, in a ``with`` block."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
    async def sleep(self, seconds: float) -> None: ...


async def closed_loop(
    operations: Sequence[Operation],
    extent: Extent,
    in_flight: int,
    progress: Progress,
    *,
    clock: Clock = time.perf_counter,
) -> Measurement:
    """Keep ``in_flight`` operations going, the tasks taking ``operations`` in turn. A task ends at its first error."""
    measurement = Measurement()
    record = measurement.latencies.append
    begun = clock()
    stop_at = math.inf if extent.seconds is None else begun + extent.seconds

    async def work(operation: Operation, share: int) -> None:
        started = clock()
        try:
            for _ in range(share):
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
            group.create_task(work(operations[number % len(operations)], share))
    measurement.seconds = clock() - begun
    await measurement.count_latencies()
    return measurement


async def open_loop(
    operations: Sequence[Operation],
    extent: Extent,
    in_flight_max: int,
    rate: float,
    progress: Progress,
    *,
    clock: Clock = time.perf_counter,
    make_timer: "Callable[[], Timer] | None" = None,
) -> Measurement:
    """Start ``rate`` operations a second, earlier ones done or not, with at most ``in_flight_max`` under way."""
    measurement = Measurement()
    total = extent.operations if extent.operations is not None else max(1, round(rate * (extent.seconds or 0.0)))
    in_flight: set[asyncio.Task[None]] = set()
    room = asyncio.Event()

    async def perform(operation: Operation, due_at: float) -> None:
        try:
            await operation()
            measurement.latencies.append(clock() - due_at)
        except OctavoError as error:
            measurement.note_error(error)

    def done(task: asyncio.Task[None]) -> None:
        in_flight.discard(task)
        room.set()

    with (make_timer or PreciseTimer)() as timer:
        async with _ticking(measurement, extent, progress), asyncio.TaskGroup() as group:
            begun = clock()
            started = 0
            while started < total and not (measurement.errors and not in_flight):
                now = clock()
                due = min(total, int((now - begun) * rate) + 1)
                while started < due and len(in_flight) < in_flight_max:
                    task = group.create_task(perform(operations[started % len(operations)], begun + started / rate))
                    in_flight.add(task)
                    task.add_done_callback(done)
                    started += 1
                if extent.seconds is not None and now >= begun + extent.seconds:
                    break
                if started < due:
                    room.clear()
                    await room.wait()
                elif started < total:
                    await timer.sleep(max(PAUSE_SECONDS_MIN, begun + started / rate - clock()))
    measurement.seconds = clock() - begun
    measurement.unsent = total - started
    await measurement.count_latencies()
    return measurement


class HasPayload(Protocol):
    """An entry, as far as a scan looks at it."""

    @property
    def payload(self) -> bytes: ...


async def scan(
    sources: Sequence[Callable[[], AsyncIterable[HasPayload]]], extent: Extent, sizes: list[int], progress: Progress
) -> Measurement:
    """Read each of ``sources`` in order, all at once, and again from the start while the extent is not reached.

    An operation is one entry, its latency the time for which the reader waited for it. ``sizes[0]`` grows by the
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
                    return  # nothing there to read
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
    """Sleeps that end on time: a loop's own timers count in milliseconds, too coarse beside the latencies measured.

    A Linux timer descriptor where Python offers it (3.13); otherwise the loop's timers.
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
