"""Every test of the contract runs on every driver."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from octavo.metadata import MetadataStore
from support.metadata.metadata_clusters import DRIVERS, Cluster


@pytest.fixture(params=DRIVERS)
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    made = DRIVERS[request.param](tmp_path)
    async with made.stack:
        yield made


@pytest.fixture
async def store(cluster: Cluster) -> MetadataStore:
    return await cluster.open()


@pytest.fixture
async def other(cluster: Cluster, store: MetadataStore) -> MetadataStore:
    return await cluster.open()
