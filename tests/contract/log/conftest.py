"""Every test of this folder runs on every layout and every metadata driver."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.log_cluster import LogCluster, open_log_cluster
from support.metadata_clusters import DRIVERS


@pytest.fixture(params=["chain", "stream"])
def layout(request: pytest.FixtureRequest) -> str:
    """How the log is laid out: the suite holds for every layout."""
    return str(request.param)


@pytest.fixture(params=DRIVERS)
async def logs(request: pytest.FixtureRequest, tmp_path: Path, layout: str) -> AsyncIterator[LogCluster]:
    async with open_log_cluster(DRIVERS[request.param](tmp_path), layout) as made:
        yield made
