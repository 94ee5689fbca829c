"""A gateway under test: bookies in memory, and a gateway in the test's own process that real clients connect to."""

import contextlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from octavo.gateway.access.access import GatewayAccess
from octavo.gateway.gateway import Gateway, GatewaySettings
from octavo.gateway.wire.server import TlsListener
from octavo.metadata import MetadataStore
from support.clusters.log_cluster import LogCluster, open_log_cluster
from support.metadata.metadata_clusters import LEASE_SECONDS, MemoryCluster

import octavo


def now_ms() -> int:
    """The time of day."""
    return int(datetime.now(UTC).timestamp() * 1000)


@dataclass
class GatewayCluster:
    """A cluster, and gateways on it."""

    logs: LogCluster
    stack: contextlib.AsyncExitStack
    clock_ms: Callable[[], int] = now_ms
    steady_ms: Callable[[], int] | None = None
    """The clock by which sessions end; None: that of the event loop."""
    client_options: dict[str, Any] = field(default_factory=dict)
    """Of the gateways' clients."""
    clients: dict[Gateway, octavo.Client] = field(default_factory=dict)
    """The client of each gateway."""
    _stores: dict[Gateway, MetadataStore] = field(default_factory=dict)
    """The handle of each gateway, which is that of its client, too."""

    async def gateway(self, **settings: Any) -> Gateway:
        """A gateway with a client of its own, as another process would have."""
        return await self.gateway_on(await self.logs.metadata.open(), **settings)

    async def gateway_on(
        self,
        store: MetadataStore,
        *,
        access: GatewayAccess | None = None,
        tls: TlsListener | None = None,
        **settings: Any,
    ) -> Gateway:
        """A gateway that uses this handle."""
        client = await self.logs.client_of(store, **self.client_options)
        chosen, number = GatewaySettings(**{"port": 0, **settings}), len(self._stores)
        gateway = await Gateway.start(
            client, store, chosen, name=f"gateway {number}", clock_ms=self.clock_ms, rng=random.Random(number),
            steady_ms=self.steady_ms, access=access, tls=tls,
        )  # fmt: skip
        self.clients[gateway], self._stores[gateway] = client, store
        self.stack.push_async_callback(gateway.close)
        return gateway

    async def lose_leases_of(self, gateway: Gateway) -> None:
        """Let the leases of a gateway end, as if its process stood still; those of all others are renewed."""
        metadata = self.logs.metadata
        for _ in range(4):
            metadata.now += LEASE_SECONDS / 3
            await metadata.time_passed()
            for handle in metadata.handles:
                if handle is not self._stores[gateway] and "closed" not in repr(handle):
                    await handle.renew_leases()


@contextlib.asynccontextmanager
async def open_gateway_cluster(bookies_count: int = 3) -> AsyncIterator[GatewayCluster]:
    """A cluster without a gateway. Gateways are closed at the end."""
    async with (
        open_log_cluster(MemoryCluster(Path()), "stream", bookies_count) as logs,
        contextlib.AsyncExitStack() as stack,
    ):
        yield GatewayCluster(logs, stack)
