"""A gateway on bookies in memory."""

from collections.abc import AsyncIterator

import pytest
from octavo.gateway.gateway import Gateway
from support.clusters.gateway_cluster import GatewayCluster, open_gateway_cluster


@pytest.fixture
async def cluster() -> AsyncIterator[GatewayCluster]:
    async with open_gateway_cluster() as made:
        yield made


@pytest.fixture
async def gateway(cluster: GatewayCluster) -> Gateway:
    return await cluster.gateway()
