"""Followers of a log on real bookies, in memory: they miss nothing and get nothing twice while every bookie is
restarted, another client takes the log over, and the log rolls (rules R6, V3 and V4)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from octavo.bookie.bookie import Bookie
from octavo.client.log.log import Log
from octavo.metadata import MetadataStore, open_metadata_store
from support.clusters.tls_bookies import Cluster, start_bookie
from support.disks.faulty_filesystem import MemoryFileSystem
from support.metadata.memory_stores import memory_uri
from support.waiting import WAIT_SECONDS

QUICK: dict[str, Any] = {
    "reconnect_delay_seconds_min": 0.001, "reconnect_delay_seconds_max": 0.01, "resend_delay_seconds": 0.01,
    "bookie_loss_seconds": 30.0, "log_duel_pause_seconds": 0.01,
}  # fmt: skip


class Machines:
    """Bookies that can be restarted on their disks."""

    def __init__(self, store: MetadataStore, stack: contextlib.AsyncExitStack) -> None:
        self._store = store
        self._stack = stack
        self._disks = [MemoryFileSystem() for _ in range(3)]
        self.bookies: list[Bookie] = []

    async def start(self) -> None:
        """Start all."""
        for number, disk in enumerate(self._disks, 1):
            self.bookies.append(await start_bookie(self._store, number, filesystem=disk))
        self._stack.push_async_callback(self.stop)

    async def stop(self) -> None:
        """Stop all."""
        for bookie in self.bookies:
            await bookie.stop()

    async def restart(self, index: int) -> None:
        """Stop one and start it again."""
        await self.bookies[index].stop()
        self.bookies[index] = await start_bookie(self._store, index + 1, filesystem=self._disks[index])


@asynccontextmanager
async def machines() -> AsyncIterator[tuple[Machines, Cluster]]:
    uri = memory_uri("restarts")
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(await open_metadata_store(uri, create=True))
        found = Machines(store, stack)
        await found.start()
        yield found, Cluster(store, uri)


class Follower:
    """Follows a log from its beginning, and checks that positions follow one another."""

    def __init__(self, log: Log) -> None:
        self.payloads: list[bytes] = []
        self._more = asyncio.Event()
        self.task = asyncio.create_task(self._run(log))

    async def _run(self, log: Log) -> None:
        async for entry in log.follow():
            assert entry.position == len(self.payloads)
            self.payloads.append(entry.payload)
            self._more.set()

    async def has(self, payloads: list[bytes]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while len(self.payloads) < len(payloads):
                self._more.clear()
                await self._more.wait()
        assert self.payloads == payloads


@pytest.mark.parametrize("layout", ["stream", "chain"])
async def test_followers_miss_nothing_while_bookies_restart_and_leaders_change(layout: Any) -> None:
    async with machines() as (machines_, cluster), contextlib.AsyncExitStack() as stack:
        leading, rival, following = [await stack.enter_async_context(cluster.client(**QUICK)) for _ in range(3)]
        log = await leading.create_log("orders", 3, 3, 2, layout=layout)
        followers = [Follower(await following.open_log("orders")) for _ in range(3)]
        payloads: list[bytes] = []
        writer = await log.lead()

        async def add(count: int) -> None:
            new = [b"%d" % (len(payloads) + number) for number in range(count)]
            for payload in new:
                await writer.add(payload)
            payloads.extend(new)
            for follower in followers:
                await follower.has(payloads)

        await add(5)
        for index in range(3):
            await machines_.restart(index)
            await add(3)
        await writer.roll()
        await add(3)
        writer = await (await rival.open_log("orders")).take_over()
        await add(3)
        for index in range(3):
            await machines_.restart(index)
        await add(3)
        for follower in followers:
            follower.task.cancel()
