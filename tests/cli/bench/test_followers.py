"""Times at which entries reached followers: the last of those in a process, the last of all, and since when."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest
from octavo.cli.bench.follow_client import Arrivals
from octavo.cli.bench.followers import delays_of
from octavo.cli.session import CommandError
from octavo.protocol.errors import QuorumLostError


async def given(entries: Iterable[object]) -> AsyncIterator[object]:
    for entry in entries:
        yield entry


async def failing() -> AsyncIterator[object]:
    yield b"first"
    raise QuorumLostError("too few bookies")


async def test_the_last_arrival_of_each_entry_is_kept() -> None:
    clock = iter(range(10))
    arrivals = Arrivals(2)
    await arrivals.follow(given("abc"), lambda: next(clock))
    await arrivals.follow(given("ab"), lambda: next(clock))
    assert arrivals.since(0) == [3, 4, 2]
    assert arrivals.since(1) == [4, 2]


async def test_entries_are_waited_for_until_every_follower_has_them() -> None:
    arrivals = Arrivals(2)
    await arrivals.follow(given("ab"))
    waiting = asyncio.create_task(arrivals.wait_for(2))
    await asyncio.sleep(0)
    assert not waiting.done()
    await arrivals.follow(given("ab"))
    await waiting


async def test_a_follower_that_fails_ends_the_wait() -> None:
    arrivals = Arrivals(1)
    await arrivals.follow(failing())
    with pytest.raises(CommandError, match="too few bookies"):
        await arrivals.wait_for(1)


def test_a_delay_lasts_from_when_the_add_was_due_to_the_last_process() -> None:
    assert delays_of([[10.5, 11.25], [10.25, 12.0]], begun=10.0, rate=2.0) == [0.5, 1.5]
    with pytest.raises(ValueError, match="shorter"):
        delays_of([[1.0], []], begun=0.0, rate=1.0)
