"""The tasks of a gateway that nothing waits for: where one of them ends, the gateway ends with the reason."""

import asyncio

import pytest
from octavo.gateway.leading.gateways import gateway_lock
from octavo.protocol.errors import InternalError, TasksCancelledError
from support.clusters.gateway_cluster import open_gateway_cluster
from support.kafka.coordinated import SteadyClock
from support.kafka.groups import GroupClient


async def test_a_gateway_whose_clock_fails_ends_and_lets_no_member_wait_for_ever() -> None:
    async with open_gateway_cluster() as cluster:
        clock = SteadyClock()
        cluster.steady_ms = lambda: clock.ms // clock.ms
        gateway = await cluster.gateway()
        waiting = asyncio.ensure_future(gateway.wait_lost())
        async with await GroupClient.of(gateway.port) as member:
            await member.metadata("orders")
            await member.enter()
            assert not waiting.done()
            clock.ms = 0  # from now on there is no time
            with pytest.raises(InternalError, match="the gateway has a defect: ZeroDivisionError"):
                await waiting


async def test_a_gateway_that_cannot_watch_the_others_ends() -> None:
    async with open_gateway_cluster() as cluster:
        gateway = await cluster.gateway()
        waiting = asyncio.ensure_future(gateway.wait_lost())
        other = await cluster.logs.metadata.open()
        await other.lock(gateway_lock(9), "no address")
        with pytest.raises(InternalError, match="the gateway has a defect: ValueError"):
            await waiting


async def test_a_gateway_whose_tasks_were_cancelled_ends() -> None:
    async with open_gateway_cluster() as cluster:
        gateway = await cluster.gateway()
        waiting = asyncio.ensure_future(gateway.wait_lost())
        await asyncio.sleep(0)
        for task in gateway.gateways.watching:
            task.cancel()
        with pytest.raises(TasksCancelledError):
            await waiting
