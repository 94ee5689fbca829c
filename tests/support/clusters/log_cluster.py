"""Logs under test: a metadata store of any driver, and bookies that keep what they are given in memory."""

import contextlib
import itertools
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from octavo.client.client import Client
from octavo.client.options import ClientOptions
from octavo.metadata import MetadataStore
from octavo.metadata.store.values import Versioned
from octavo.metadata.stream.changes import BeginTakeover
from octavo.metadata.stream.model import StreamMetadata
from octavo.metadata.updates.update import update_stream
from octavo.protocol.ids import LedgerId
from support.clusters.fake_bookie import FakeBookie, registered_bookies
from support.metadata.interposed_store import InterposedStore
from support.metadata.metadata_clusters import Cluster as MetadataCluster
from support.waiting import eventually

import octavo

QUICK: dict[str, Any] = {
    "reconnect_delay_seconds_min": 0.001,
    "reconnect_delay_seconds_max": 0.005,
    "resend_delay_seconds": 0.01,
    "close_timeout_seconds": 30.0,
    "recovery_timeout_seconds": 30.0,
    "explicit_lac_delay_seconds": 0.001,
    "cursor_flush_seconds": 0.01,
    "log_duel_pause_seconds": 0.1,  # longer than a takeover takes on a busy machine: the old leader gives way
}
"""Options under which nothing takes long."""


@dataclass
class LogCluster:
    """Bookies, a metadata store, and as many clients as a test wants."""

    metadata: MetadataCluster
    store: MetadataStore
    cluster_id: str
    bookies: list[FakeBookie]
    layout: str
    stack: contextlib.AsyncExitStack
    full_copies: str | None = None
    """What the logs promise about all copies of their entries; of a stream."""
    _seeds: "itertools.count[int]" = field(default_factory=lambda: itertools.count(10))

    async def client(self, **options: Any) -> octavo.Client:
        """A client of its own, as another process would have."""
        return await self.client_of(await self.metadata.open(), **options)

    async def interposed_client(self, **options: Any) -> tuple[octavo.Client, InterposedStore]:
        """A client of its own, and the store between it and the real one."""
        store = InterposedStore(await self.metadata.open())
        return await self.client_of(store.face, **options), store

    async def client_of(self, store: MetadataStore, **options: Any) -> octavo.Client:
        """A client that uses this handle, and closes it."""
        client = Client(
            store,
            cluster_id=self.cluster_id,
            options=ClientOptions(**(QUICK | options)),
            rng=random.Random(next(self._seeds)),
        )
        return await self.stack.enter_async_context(client)

    async def log(self, name: str = "orders", **options: Any) -> octavo.Log:
        """A new log, and a handle on it in a client of its own."""
        client = await self.client(**options)
        kind: Any = {"layout": self.layout, "full_copies": self.full_copies}
        return await client.create_log(name, **kind)

    async def ledgers(self) -> set[int]:
        """The ledgers of the cluster."""
        return {ledger_id async for ledger_id in self.store.list_ledgers()}

    async def stored_root(self) -> Versioned[StreamMetadata]:
        """The metadata of the only stream, with their version."""
        (ledger_id,) = await self.ledgers()
        return await self.store.read_stream(LedgerId(ledger_id))

    async def root(self) -> StreamMetadata:
        """The metadata of the only stream."""
        return (await self.stored_root()).value

    async def pieces(self) -> set[tuple[int, int]]:
        """What the cluster holds of logs and truncation removes: the ledgers of chains, the fragments of streams."""
        found: set[tuple[int, int]] = set()
        for ledger_id in await self.ledgers():
            if self.layout == "chain":
                found.add((ledger_id, 0))
            else:
                stream = (await self.store.read_stream(LedgerId(ledger_id))).value
                found |= {(ledger_id, fragment.first_position) for fragment in stream.fragments}
        return found

    def ends_are_known(self) -> bool:
        """Whether each bookie has been told that all its entries are acknowledged: then every client reads them."""
        ledgers = [ledger for bookie in self.bookies for ledger in bookie.ledgers.values() if ledger.entries]
        return all(ledger.last_add_confirmed == max(ledger.entries) for ledger in ledgers)

    async def end_segment_by_hand(self, client: octavo.Client, ledger_id: int) -> None:
        """What an operator may do to the segment that a leader writes: after it the leader cannot add to it."""
        if self.layout == "chain":
            async with client.open_ledger(ledger_id):  # recovers it
                return
        term = (await self.store.read_stream(LedgerId(ledger_id))).value.term
        await update_stream(self.store, LedgerId(ledger_id), BeginTakeover(term), writer_token="by hand")


async def collect(log: octavo.Log, first: int, stop: int) -> list[bytes]:
    """The payloads of positions ``first`` to ``stop`` (exclusive), once the log reaches so far."""
    await eventually(lambda: _reaches(log, stop))
    return [entry.payload for entry in await log.read(first, stop - 1)]


async def _reaches(log: octavo.Log, stop: int) -> bool:
    return await log.refresh() >= stop


@contextlib.asynccontextmanager
async def open_log_cluster(
    metadata: MetadataCluster, layout: str = "chain", bookies_count: int = 3, *, full_copies: str | None = None
) -> AsyncIterator[LogCluster]:
    """A number of bookies on this metadata store. Clients and bookies are closed at the end."""
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(metadata.stack)
        store = await metadata.open()
        bookies = await stack.enter_async_context(registered_bookies(store, bookies_count))
        clients = await stack.enter_async_context(contextlib.AsyncExitStack())
        yield LogCluster(metadata, store, await store.cluster_id(), bookies, layout, clients, full_copies)
