"""Every test of this folder runs on every layout and every metadata driver; and once more on a stream that requires all
copies of its entries, on one driver, because drivers know nothing of copies."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.clusters.log_cluster import LogCluster, open_log_cluster
from support.metadata.metadata_clusters import DRIVERS

KINDS = (
    *((driver, layout, None) for layout in ("chain", "stream") for driver in DRIVERS),
    ("memory", "stream", "required"),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module that is about some layouts names them as ``LAYOUTS``."""
    if "logs" in metafunc.fixturenames:
        layouts = getattr(metafunc.module, "LAYOUTS", ("chain", "stream"))
        kinds = [kind for kind in KINDS if kind[1] in layouts]
        metafunc.parametrize("logs", kinds, indirect=True, ids=["-".join(filter(None, kind)) for kind in kinds])


@pytest.fixture
async def logs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LogCluster]:
    driver, layout, full_copies = request.param
    async with open_log_cluster(DRIVERS[driver](tmp_path), layout, full_copies=full_copies) as made:
        yield made
