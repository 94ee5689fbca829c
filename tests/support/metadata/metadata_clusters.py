"""Metadata stores under test: every driver behind the same few operations, and values to put into them.

Time for leases stands still and is moved by hand (:meth:`Cluster.advance`); nothing here waits for a clock.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from octavo.metadata import BookieRegistration, BookieState, Cookie, MetadataStore, Version, Watch
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.metadata.sqlite.store import open_sqlite_store
from octavo.metadata.zookeeper.cluster import open_zookeeper_store
from octavo.protocol.ids import BookieId, LedgerId
from support.metadata.ledger_metadata import open_ledger
from support.metadata.zookeeper import expire_session, new_cluster_uri, records_of
from support.waiting import WAIT_SECONDS

LEASE_SECONDS = 10.0
PATIENCE_SECONDS = WAIT_SECONDS
"""Time-out of an event that must come: long enough for a slow machine, and a hang is reported."""


class Cluster:
    """A store under test: opens handles on it and moves the time of their leases."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.stack = AsyncExitStack()
        self.handles: list[MetadataStore] = []
        self.renewed_at: dict[MetadataStore, float] = {}

    async def open(self) -> MetadataStore:
        """Open another handle, as another process would."""
        handle = await self.open_handle()
        self.handles.append(handle)
        self.renewed_at[handle] = self.now
        self.stack.push_async_callback(handle.close)
        return handle

    async def advance(self, seconds: float, *, asleep: MetadataStore | None = None) -> None:
        """Advance the time in steps in which every handle except ``asleep`` renews its leases."""
        steps = max(1, round(seconds / 3))
        for _ in range(steps):
            self.now += seconds / steps
            await self.time_passed()
            for handle in self.handles:
                if handle is not asleep and "closed" not in repr(handle):
                    await handle.renew_leases()
                    self.renewed_at[handle] = self.now

    async def open_handle(self) -> MetadataStore:
        raise NotImplementedError

    async def time_passed(self) -> None:
        """Let the store process the passed time."""


class MemoryCluster(Cluster):
    def __init__(self, _directory: Path) -> None:
        super().__init__()
        self.server = MemoryServer("contract", clock=lambda: self.now, rng=random.Random(1))

    async def open_handle(self) -> MetadataStore:
        return open_memory_store(self.server, lease_seconds=LEASE_SECONDS, rng=random.Random(len(self.handles)))

    async def time_passed(self) -> None:
        self.server.end_late_sessions()
        self.server.check_invariants()


class SqliteCluster(Cluster):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.path = directory / "made" / "for it" / "metadata.db"

    async def open_handle(self) -> MetadataStore:
        return await open_sqlite_store(
            self.path,
            create=True,
            lease_seconds=LEASE_SECONDS,
            poll_seconds=0.005,
            clock=lambda: self.now,
            boot_id="this-boot",
            rng=random.Random(len(self.handles)),
        )


class ZooKeeperCluster(Cluster):
    """A cluster in the ZooKeeper server of this test run. Its sessions last as long as the handles are open; instead of
    letting time pass, a test ends them."""

    def __init__(self, _directory: Path) -> None:
        super().__init__()
        self.uri = new_cluster_uri()

    async def open_handle(self) -> MetadataStore:
        return await open_zookeeper_store(
            self.uri,
            create=True,
            lease_seconds=LEASE_SECONDS,
            clock=lambda: self.now,
            rng=random.Random(len(self.handles)),
        )

    async def time_passed(self) -> None:
        for handle in self.handles:
            if self.now >= self.renewed_at[handle] + LEASE_SECONDS and "closed" not in repr(handle):
                await expire_session(records_of(handle))


DRIVERS: dict[str, Callable[[Path], Cluster]] = {
    "memory": MemoryCluster,
    "sqlite": SqliteCluster,
    "zookeeper": ZooKeeperCluster,
}


async def soon[T](awaitable: Awaitable[T]) -> T:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await awaitable


async def until[T](watch: Watch[T], wanted: Callable[[T], bool]) -> T:
    """The first value of the watch that satisfies the condition."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for value in watch:
            if wanted(value):
                return value
    raise AssertionError("a watch does not end by itself")


async def new_ledger(store: MetadataStore, *, token: str = "") -> tuple[LedgerId, Version]:
    ledger_id = await store.allocate_ledger_id()
    return ledger_id, await store.create_ledger(open_ledger(ledger_id, writer_token=token))


def registration(name: str, *, state: BookieState = BookieState.WRITABLE, boot: str = "boot-1") -> BookieRegistration:
    return BookieRegistration(
        bookie_id=BookieId(name), address=f"{name}.example:3181", state=state, version="0.1.0", boot_id=boot
    )


def cookie(name: str, generation: int = 1) -> Cookie:
    return Cookie(bookie_id=BookieId(name), generation=generation, address=f"{name}.example:3181", body=b"\x00disks")
