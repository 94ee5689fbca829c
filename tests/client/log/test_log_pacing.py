"""Takeovers that begin together are spread; one alone is not delayed."""

import asyncio
import random
from contextlib import AsyncExitStack

from octavo.client.log.seam.pacing import SPREAD_SECONDS, UNDELAYED, TakeoverPacing, pause_seconds


def highest(low: float, high: float) -> float:
    assert low == 0
    return high


def test_a_pause_grows_with_what_is_under_way() -> None:
    assert [pause_seconds(number, highest) for number in (1, UNDELAYED)] == [0.0, 0.0]
    assert pause_seconds(UNDELAYED + 1, highest) == SPREAD_SECONDS * (UNDELAYED + 1)
    assert pause_seconds(1000, highest) == SPREAD_SECONDS * 1000


def test_a_thousand_takeovers_at_once_begin_over_seconds() -> None:
    uniform = random.Random(1).uniform
    begins = sorted(pause_seconds(number, uniform) for number in range(1, 1001))
    busiest = max(sum(begin <= later < begin + 0.1 for later in begins) for begin in begins)
    assert busiest < 200
    assert 3 < begins[-1] <= 5


async def test_turns_that_end_are_forgotten() -> None:
    pacing = TakeoverPacing(highest)
    async with AsyncExitStack() as stack:
        for _ in range(UNDELAYED):
            await stack.enter_async_context(pacing.turn())
        waiting = asyncio.ensure_future(pacing.turn().__aenter__())
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert pacing.under_way == UNDELAYED
    assert pacing.under_way == 0


async def test_takeovers_that_fence_nothing_wait_for_nothing() -> None:
    """A thousand logs that are at rest, as after they were created, are led at once."""
    pacing = TakeoverPacing(highest)
    async with AsyncExitStack() as stack, asyncio.timeout(5):
        for _ in range(10 * UNDELAYED):
            await stack.enter_async_context(pacing.turn(fences=False))
        await stack.enter_async_context(pacing.turn())
        assert pacing.under_way == 1
