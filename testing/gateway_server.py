"""A gateway of a test, for a thread of its own. It has no access control, and listens on a loopback address only."""

import asyncio
import random
import time
from typing import Final

from octavo.client.client import Client
from octavo.client.options import ClientOptions
from octavo.gateway.gateway import Gateway, GatewaySettings
from octavo.metadata.connect import open_cluster
from octavo.testing.server_thread import Life, cancel_all

NAME: Final = "gateway"
"""By which a test kills it, and starts it again."""

_HOST: Final = "127.0.0.1"


class GatewayServer:
    """See the module."""

    name = NAME

    def __init__(self, uri: str, *, bookies: int, lease_seconds: float) -> None:
        self._uri = uri
        self._bookies = bookies
        self._lease_seconds = lease_seconds
        self._port = 0

    def keep_address(self, address: str) -> None:
        """Listen there from the next start on."""
        self._port = int(address.rpartition(":")[2])

    def freeze(self) -> None:
        """A kill begins: a gateway has no files."""

    def thaw(self) -> None:
        """Before each start: a gateway has no files."""

    async def serve(self, life: Life) -> None:
        """Start, and end as ``life`` says, or when the session in the metadata store has ended."""
        store = await open_cluster(self._uri, lease_seconds=self._lease_seconds)
        try:
            options = ClientOptions(lease_seconds=self._lease_seconds)
            client = Client(store, cluster_id=await store.cluster_id(), options=options, client_name=NAME)
            async with client:
                gateway = await Gateway.start(
                    client, store, self._settings(), name=NAME, clock_ms=_now_ms, rng=random.Random()
                )
                life.started(f"{_HOST}:{gateway.port}")
                lost = asyncio.ensure_future(gateway.wait_lost())
                lost.add_done_callback(lambda _: life.end_with(kill=True))
                if await life.is_killed():
                    await gateway.server.close()
                    await cancel_all()
                else:
                    lost.cancel()
                    await gateway.close()
        finally:
            await store.close()

    def _settings(self) -> GatewaySettings:
        copies = min(3, self._bookies)
        return GatewaySettings(host=_HOST, port=self._port, write_quorum=copies, ack_quorum=min(2, copies))


def _now_ms() -> int:
    return int(time.time() * 1000)
