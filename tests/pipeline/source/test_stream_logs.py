"""Spark plans reads of logs that are streams: no further than they are known to be confirmed."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from octavo.pipeline.base.options import ClusterOptions
from octavo.pipeline.source.log_scan import log_pieces
from octavo.protocol.errors import NoSuchEntryError
from support.clusters.log_cluster import LogCluster, collect, open_log_cluster
from support.metadata.metadata_clusters import MemoryCluster

CLUSTER = ClusterOptions("memory://unused")


@pytest.fixture
async def logs() -> AsyncIterator[LogCluster]:
    async with open_log_cluster(MemoryCluster(Path()), "stream") as made:
        yield made


async def test_positions_that_are_not_confirmed_are_not_planned(logs: LogCluster) -> None:
    """A checkpoint may name more than the log holds: of metadata that were restored, for example. Which place such a
    position has is not known, and what lies at a guessed one may be no part of the log (rule V1)."""
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add_many([b"0", b"1"])
        reading_client = await logs.client()
        other = await reading_client.open_log("orders")
        await writer.add(b"2")
        await collect(await reading_client.open_log("orders"), 0, 3)  # the bookies know that it is confirmed
        planned = await log_pieces(reading_client, other, CLUSTER, first=1, last=2)
        assert sum(piece.range.count for piece in planned.pieces) == 2
        with pytest.raises(NoSuchEntryError, match="position 3 is not below its end, 3"):
            await log_pieces(reading_client, other, CLUSTER, first=1, last=3)
