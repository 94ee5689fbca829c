"""Every test of this folder runs on every layout and every metadata driver."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from octavo.metadata import BookieRegistration, BookieState
from octavo.protocol.ids import BookieId
from support.fake_bookie import FakeBookie
from support.log_cluster import LogCluster
from support.metadata_clusters import DRIVERS


@pytest.fixture(params=["chain"])
def layout(request: pytest.FixtureRequest) -> str:
    """How the log is laid out: the suite holds for every layout."""
    return str(request.param)


@pytest.fixture(params=DRIVERS)
async def logs(request: pytest.FixtureRequest, tmp_path: Path, layout: str) -> AsyncIterator[LogCluster]:
    made = DRIVERS[request.param](tmp_path)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(made.stack)
        store = await made.open()
        cluster_id = await store.cluster_id()
        bookies = [FakeBookie(f"b{number}", cluster_id=cluster_id) for number in range(3)]
        for bookie in bookies:
            await stack.enter_async_context(bookie)
            await store.register_bookie(
                BookieRegistration(
                    bookie_id=BookieId(bookie.bookie_id),
                    address=bookie.address,
                    state=BookieState.WRITABLE,
                    version="fake",
                    boot_id=bookie.boot_id,
                )
            )
        clients = await stack.enter_async_context(contextlib.AsyncExitStack())
        yield LogCluster(made, store, cluster_id, bookies, layout, clients)
