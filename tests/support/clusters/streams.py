"""Clients of streams on a cluster of fake bookies."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from octavo.client.choose.placer import Placer
from octavo.client.options import ClientOptions
from octavo.client.recover.ender import Ender
from octavo.client.recover.stream_taker import StreamTaker
from octavo.client.terms.streams import Streams
from octavo.client.terms.term_writer import TermWriter
from octavo.client.wire.pool import ConnectionPool
from octavo.client.write.core import WriterTools
from octavo.metadata.stream.model import StreamMetadata
from octavo.protocol.entries import Opener, derive_secrets
from octavo.protocol.ids import LedgerId
from support.clusters.writing import DIGEST, PASSWORD, QUICK, FakeCluster, fake_cluster

NOW = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)
HASTY: dict[str, Any] = {**QUICK, "bookie_loss_seconds": 0.001, "recovery_timeout_seconds": 5.0}


@dataclass
class StreamClient:
    """One client of streams, as another process would have it."""

    streams: Streams
    ender: Ender
    pool: ConnectionPool

    @property
    def taker(self) -> StreamTaker:
        """What takes streams over for it."""
        return self.ender.taker

    async def take_over(self, ledger_id: LedgerId) -> TermWriter:
        """With the password of these tests."""
        return await self.streams.take_over(ledger_id, password=PASSWORD)


@dataclass
class StreamCluster:
    """Bookies, their metadata, and clients."""

    fake: FakeCluster

    def client(
        self, name: str = "", *, renewal_offset: Callable[[int], int] | None = None, **options: Any
    ) -> StreamClient:
        """A client of its own. ``renewal_offset``: as in :class:`WriterTools`."""
        checked = ClientOptions.from_keywords(HASTY | options)
        store = self.fake.store
        seed = random.Random(name)
        pool = ConnectionPool(store, cluster_id=self.fake.cluster_id, options=checked, rng=seed)
        self.fake.pools.append(pool)
        placer = Placer(store, rng=seed, quarantined=pool.quarantined)
        ender = Ender(
            store=store, pool=pool, placer=placer, options=checked, rng=seed, wall_clock=lambda: NOW, client_name=name
        )
        tools = WriterTools(store, pool, placer, checked, lambda: NOW, renewal_offset=renewal_offset)
        streams = Streams(
            tools, ender.taker, token=lambda: f"{seed.getrandbits(64):x}", salt=lambda: b"salt", wall_clock=lambda: NOW
        )
        return StreamClient(streams, ender, pool)

    async def stored(self, ledger_id: LedgerId) -> StreamMetadata:
        """The stream's metadata."""
        return (await self.fake.store.read_stream(ledger_id)).value

    async def held(self, ledger_id: LedgerId) -> list[bytes]:
        """The payloads of all positions that have their place in the metadata, as bookies hold them: at least two
        copies of each, all the same."""
        stream = await self.stored(ledger_id)
        opener = Opener(ledger_id, DIGEST, derive_secrets(PASSWORD, ledger_id))
        payloads: list[bytes] = []
        while (entry_id := stream.place_at(len(payloads))) is not None:
            copies = [
                opener.open(bookie.ledger(ledger_id).entries[entry_id]).payload
                for bookie in self.fake.bookies
                if entry_id in bookie.ledger(ledger_id).entries
            ]
            assert len(copies) >= 2, f"position {len(payloads)} has {len(copies)} copies"
            assert len(set(copies)) == 1
            payloads.append(copies[0])
        return payloads


@asynccontextmanager
async def stream_cluster(size: int = 4) -> AsyncIterator[StreamCluster]:
    """That many bookies."""
    async with fake_cluster(size) as fake:
        yield StreamCluster(fake)
