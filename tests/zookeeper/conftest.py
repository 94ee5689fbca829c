"""A cluster in the real ZooKeeper of the test run: one handle through a bad network, others directly."""

import itertools
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from octavo.metadata import MetadataStore
from octavo.metadata.zookeeper.cluster import open_zookeeper_store
from support.metadata.zookeeper import Opener, new_cluster_uri, shared_server
from support.metadata.zookeeper_proxy import ZooKeeperProxy


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def uri() -> str:
    """Where the test's cluster is, directly."""
    return new_cluster_uri()


@pytest.fixture
async def proxy(stack: AsyncExitStack) -> ZooKeeperProxy:
    """A way to the server that the test may spoil."""
    return await stack.enter_async_context(ZooKeeperProxy(shared_server().servers[0].client_port))


@pytest.fixture
async def open_store(stack: AsyncExitStack) -> Opener:
    """Opens handles that are closed at the end."""

    seeds = itertools.count()

    async def open_one(uri: str, *, lease_seconds: float = 2.0, operation_seconds: float = 15.0) -> MetadataStore:
        store = await open_zookeeper_store(
            uri,
            create=True,
            lease_seconds=lease_seconds,
            operation_seconds=operation_seconds,
            rng=random.Random(next(seeds)),
        )
        stack.push_async_callback(store.close)
        return store

    return open_one


@pytest.fixture
async def other(open_store: Opener, uri: str) -> MetadataStore:
    """A handle whose network is good."""
    return await open_store(uri)


@pytest.fixture
async def store(open_store: Opener, uri: str, proxy: ZooKeeperProxy, other: MetadataStore) -> MetadataStore:
    """A handle that reaches the server through the proxy. The cluster exists already."""
    root = uri.rpartition("/")[2]
    return await open_store(f"zk://127.0.0.1:{proxy.port}/{root}")
