"""A log with a leader on fake bookies, in the middle of whose life a test begins."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from octavo.client.log.logs import Layout
from support.clusters.reading import Cluster, cluster_of

import octavo


class Led(NamedTuple):
    """A cluster, a client of it, the log ``orders`` that it has made, and its writer."""

    cluster: Cluster
    client: octavo.Client
    log: octavo.Log
    writer: octavo.LogWriter


@asynccontextmanager
async def led_log(*, layout: Layout = "stream", **options: Any) -> AsyncIterator[Led]:
    """A new log that a client with these options leads."""
    async with (
        cluster_of() as cluster,
        octavo.connect(cluster.uri, **options) as client,
        client.create_log("orders", layout=layout) as log,
        log.lead() as writer,
    ):
        yield Led(cluster, client, log, writer)
