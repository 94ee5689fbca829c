"""How much longer adds take while a log is rolled from segment to segment."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from octavo.cli.bench.load import Extent, Measurement, open_loop

if TYPE_CHECKING:
    from octavo.client.log.log import Log
    from octavo.client.log.writer.writer import LogWriter

PAUSE_SECONDS = 0.1
"""Between two rolls: every roll takes some tens of milliseconds, so that far more than one add in a hundred falls into
one, and the 99th percentile shows what rolls cost."""

_IN_FLIGHT_MAX = 100_000


async def measure_rolls(log: "Log", rate: float, rolls: int, payload: bytes) -> dict[str, float | int]:
    """Latencies in milliseconds of ``rate`` adds a second, without rolls and for as long with ``rolls`` of them, and
    the longest roll. An add is timed from the moment in which it is due. Raises what leading and adding raise."""
    async with log.lead() as writer:
        took: list[float] = []
        rolling = asyncio.create_task(_roll(writer, rolls, took))
        try:
            with_rolls = await _adds_until(writer, rate, payload, rolling)
        finally:
            rolling.cancel()
            await asyncio.wait([rolling])
        rolling.result()
        pause = asyncio.create_task(asyncio.sleep(with_rolls.seconds))
        without = await _adds_until(writer, rate, payload, pause)
    return {
        "rolls": rolls,
        "adds_per_second": rate,
        **_percentiles("with_rolls", with_rolls),
        **_percentiles("without", without),
        "roll_ms_max": round(max(took) * 1000, 3),
    }


async def _roll(writer: "LogWriter", rolls: int, took: list[float]) -> None:
    clock = asyncio.get_running_loop().time
    for _ in range(rolls):
        await asyncio.sleep(PAUSE_SECONDS)
        began = clock()
        await writer.roll()
        took.append(clock() - began)


async def _adds_until(writer: "LogWriter", rate: float, payload: bytes, over: "asyncio.Task[None]") -> Measurement:
    """Measure adds, in slices of a few rolls, until ``over`` is done."""
    whole = Measurement()
    while not over.done():
        part = await open_loop(
            [partial(writer.add, payload)], Extent(None, 2 * PAUSE_SECONDS), _IN_FLIGHT_MAX, rate, _quiet
        )
        if part.first_error is not None:
            raise part.first_error
        whole.histogram.merge([part.histogram])
        whole.seconds += part.seconds
    return whole


def _percentiles(name: str, measured: Measurement) -> dict[str, float]:
    histogram = measured.histogram
    values = {"p50": histogram.percentile(50), "p99": histogram.percentile(99), "max": histogram.max}
    return {f"{name}_{what}_ms": round((value or 0.0) * 1000, 3) for what, value in values.items()}


def _quiet(done: float, note: str = "") -> None:
    """Show no progress."""
