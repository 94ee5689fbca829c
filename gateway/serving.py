"""A gateway as a program runs it: with a client, a metadata store, a clock and chance of its own."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from octavo.client.client import Client
from octavo.client.client_name import default_client_name
from octavo.client.options import ClientOptions
from octavo.client.wire.security import options_with_environment
from octavo.gateway.gateway import Gateway, GatewaySettings
from octavo.metadata.connect import open_cluster


@asynccontextmanager
async def serving(uri: str, settings: GatewaySettings) -> AsyncIterator[Gateway]:
    """Serve the clients of the cluster with this metadata store for the time of a block, beside its other gateways.

    The block is to end when ``gateway.wait_lost()`` returns.

    Raises:
        OSError: The address cannot be used.
        OctavoError: The metadata store or the bookies do not answer.
    """
    name = f"gateway of {default_client_name()}"
    options = options_with_environment(ClientOptions())
    store = await open_cluster(uri, lease_seconds=options.lease_seconds)
    try:
        # The client uses this store, and closes it: the locks of logs and of the gateway are of one session.
        client = Client(store, cluster_id=await store.cluster_id(), options=options, client_name=default_client_name())
    except BaseException:
        await store.close()
        raise
    async with client:
        gateway = await Gateway.start(client, store, settings, name=name, clock_ms=_now_ms, rng=random.Random())
        try:
            yield gateway
        finally:
            await gateway.close()


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)
