"""Many things are done at once, but not all; the first error ends them."""

import asyncio

import pytest
from octavo.cli.bench.ledgers import run_each
from octavo.protocol.errors import QuorumLostError


async def test_each_thing_is_taken_once_and_no_more_at_once_than_asked() -> None:
    taken: list[int] = []
    under_way = most = 0

    async def step(thing: int) -> None:
        nonlocal under_way, most
        taken.append(thing)
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    await run_each(step, range(50), at_once=7)
    assert taken == list(range(50))
    assert most == 7


async def test_nothing_to_do_is_done() -> None:
    async def step(thing: int) -> None:
        raise AssertionError(thing)

    await run_each(step, [])


async def test_the_first_error_ends_the_steps_under_way_and_is_raised_itself() -> None:
    begun: list[int] = []
    cancelled: list[int] = []

    async def step(thing: int) -> None:
        begun.append(thing)
        if thing == 2:
            raise QuorumLostError("too few bookies")
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.append(thing)
            raise

    with pytest.raises(QuorumLostError, match="too few bookies"):
        await run_each(step, range(10), at_once=3)
    assert begun == [0, 1, 2]
    assert sorted(cancelled) == [0, 1]
