"""What followers have received is waited for, and an error of one ends the wait."""

import asyncio

import pytest
from octavo.cli.bench.many_logs import Received
from octavo.cli.session import CommandError
from octavo.protocol.errors import QuorumLostError


async def test_the_wait_ends_with_the_last_entry_and_not_before() -> None:
    received = Received()
    received.note()
    await received.wait_for(1)
    waiting = asyncio.create_task(received.wait_for(3))
    await asyncio.sleep(0)
    received.note()
    await asyncio.sleep(0)
    assert not waiting.done()
    received.note()
    received.note()
    await waiting
    assert received.entries == 4


async def test_an_error_of_a_follower_ends_the_wait_and_every_later_one() -> None:
    received = Received()
    waiting = asyncio.create_task(received.wait_for(1))
    await asyncio.sleep(0)
    received.fail(QuorumLostError("too few bookies"))
    with pytest.raises(CommandError, match="too few bookies"):
        await waiting
    with pytest.raises(CommandError, match="a follower failed"):
        await received.wait_for(0)


async def test_followers_that_take_too_long_are_told_with_what_they_have() -> None:
    received = Received()
    received.note()
    with pytest.raises(CommandError, match=r"received 1 of 2 entries within 0\.01 s"):
        await received.wait_for(2, seconds_max=0.01)
