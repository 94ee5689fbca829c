"""A gateway on bookies in memory, and consumers that connect to it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from octavo.gateway.gateway import Gateway
from support.clusters.gateway_cluster import GatewayCluster, open_gateway_cluster
from support.kafka.coordinated import Connect, SteadyClock
from support.kafka.groups import GroupClient


@pytest.fixture
async def cluster() -> AsyncIterator[GatewayCluster]:
    async with open_gateway_cluster() as made:
        made.steady_ms = SteadyClock()
        yield made


@pytest.fixture
async def connect(gateway: Gateway) -> AsyncIterator[Connect]:
    """Makes consumers with connections of their own; the topic `orders` is there."""
    async with AsyncExitStack() as stack:

        async def made(group: str = "billing", instance: str | None = None, port: int = 0) -> GroupClient:
            client = await stack.enter_async_context(await GroupClient.of(port or gateway.port, group, instance))
            await client.metadata("orders")
            return client

        yield made
