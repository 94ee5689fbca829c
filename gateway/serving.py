"""A gateway as a program runs it: with a client, a metadata store, a clock and chance of its own."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from octavo.client.client_name import default_client_name
from octavo.client.connect import connect
from octavo.gateway.gateway import Gateway, GatewaySettings
from octavo.metadata.connect import open_cluster


@asynccontextmanager
async def serving(uri: str, settings: GatewaySettings) -> AsyncIterator[Gateway]:
    """Serve the clients of the cluster with this metadata store for the time of a block.

    Waits until no other gateway serves the cluster. The block is to end when ``gateway.wait_lost()`` returns.

    Raises:
        OSError: The address cannot be used.
        OctavoError: The metadata store or the bookies do not answer.
    """
    name = f"gateway of {default_client_name()}"
    async with await open_cluster(uri) as store, connect(uri) as client:
        gateway = await Gateway.start(client, store, settings, name=name, clock_ms=_now_ms, rng=random.Random())
        try:
            yield gateway
        finally:
            await gateway.close()


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)
