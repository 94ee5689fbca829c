"""The clock that goes with an event loop's time."""

import asyncio
import time

import uvloop
from octavo.client.write.front.precise_time import precise_time_of


class SimulatedLoop:
    """A loop with a time of its own."""

    def time(self) -> float:
        return 42.5


def test_a_loop_has_its_own_time() -> None:
    loop = SimulatedLoop()
    assert precise_time_of(loop)() == 42.5  # type: ignore[arg-type]


def test_the_time_of_uvloop_is_told_in_more_than_milliseconds() -> None:
    async def times() -> tuple[float, list[float]]:
        loop = asyncio.get_running_loop()
        now = precise_time_of(loop)
        return loop.time(), [now() for _ in range(3)]

    before = time.monotonic()
    loop_time, precise = uvloop.run(times())
    after = time.monotonic()
    assert precise == sorted(set(precise)), "each reading is later than the one before"
    assert before <= precise[0] <= precise[-1] <= after
    assert before - 0.001 <= loop_time <= precise[0], "it is the same clock"
