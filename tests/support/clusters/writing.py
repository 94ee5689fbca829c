"""A cluster of fake bookies on metadata in memory, and writers on it."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from octavo.client.choose.placer import Placer
from octavo.client.options import ClientOptions
from octavo.client.wire.pool import ConnectionPool
from octavo.client.write.core import WriterTools
from octavo.client.write.front.batching import WAIT_SECONDS_MAX
from octavo.client.write.kinds.ledgers import write_ledger
from octavo.client.write.writer import LedgerWriter
from octavo.metadata import (
    Fragment,
    LedgerMetadata,
    MetadataStore,
    Versioned,
    open_metadata_store,
)
from octavo.metadata.ledger.debts import FullCopies
from octavo.metadata.ledger.model import SyncMode
from octavo.protocol.entries import Digest, Entry, Opener, derive_secrets, make_verifier
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from support.clusters.fake_bookie import FakeBookie, registered_bookies
from support.metadata.interposed_store import InterposedStore
from support.waiting import eventually

QUICK: dict[str, Any] = {
    "reconnect_delay_seconds_min": 0.001,
    "reconnect_delay_seconds_max": 0.002,
    "resend_delay_seconds": 0.001,
    "explicit_lac_delay_seconds": 0.001,
}
"""Options under which nothing that must happen takes long."""

PASSWORD = b"secret"
DIGEST = Digest.CRC32C


@dataclass
class FakeCluster:
    """Bookies ``b0``, ``b1``, ... , which form every ensemble in this order."""

    store: MetadataStore
    interposed: InterposedStore
    """The same store, to change what its methods do."""
    bookies: list[FakeBookie]
    cluster_id: str
    pools: list[ConnectionPool] = field(default_factory=list)
    """Those of the writers, in their order, and of whatever else a test makes."""
    writers: list[LedgerWriter] = field(default_factory=list)
    wait_seconds_max: float = WAIT_SECONDS_MAX
    frame_clock: Callable[[], float] | None = None
    """By which the frames of later writers are due; None: as for every client."""

    async def writer(
        self,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        *,
        sync: SyncMode = SyncMode.IMMEDIATE,
        full_copies: FullCopies | None = None,
        **options: Any,
    ) -> LedgerWriter:
        """A writer of a new ledger, connected to every bookie that is up. Its adds wait for later ones as
        :attr:`wait_seconds_max` says."""
        checked = ClientOptions.from_keywords(QUICK | options)
        pool = ConnectionPool(self.store, cluster_id=self.cluster_id, options=checked, rng=random.Random(0))
        self.pools.insert(len(self.writers), pool)
        ledger_id = await self.store.allocate_ledger_id()
        ensemble = tuple(BookieId(bookie.bookie_id) for bookie in self.bookies[:ensemble_size])
        secrets = derive_secrets(PASSWORD, ledger_id)
        metadata = LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            fragments=(Fragment(EntryId(0), ensemble),),
            digest=DIGEST,
            sync=sync,
            full_copies=full_copies,
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
            verifier=make_verifier(secrets, DIGEST, b"salt"),
            salt=b"salt",
            writer_token="test",
        )
        version = await self.store.create_ledger(metadata)
        placer = Placer(self.store, rng=random.Random(0), quarantined=pool.quarantined)
        writer = write_ledger(
            Versioned(metadata, version),
            secrets,
            WriterTools(
                *(self.store, pool, placer, checked, lambda: datetime.fromtimestamp(0, UTC)),
                wait_seconds_max=self.wait_seconds_max,
                frame_clock=self.frame_clock,
            ),
        )
        self.writers.append(writer)
        for bookie in self.bookies[:ensemble_size]:
            if bookie.listening and not bookie.hello_hung:
                await pool.get(BookieId(bookie.bookie_id)).wait_writable(timeout_seconds=10)
        return writer

    async def abandon(self, writer: LedgerWriter) -> None:
        """The writer's process is gone: it reaches no bookie any more, and nothing of it is closed."""
        await self.pools[self.writers.index(writer)].close()

    def held(self, position: int, ledger_id: LedgerId) -> dict[int, bytes]:
        """Id to payload of what the bookie holds, verified."""
        opener = Opener(ledger_id, DIGEST, derive_secrets(PASSWORD, ledger_id))
        entries: list[Entry] = [
            opener.open(sealed) for sealed in self.bookies[position].ledger(ledger_id).entries.values()
        ]
        return {entry.entry_id: entry.payload for entry in sorted(entries)}

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something the loop is doing has made the condition true."""
        await eventually(condition)


@asynccontextmanager
async def fake_cluster(size: int = 3) -> AsyncIterator[FakeCluster]:
    """Start that many bookies, registered; stop everything on the way out."""
    async with await open_metadata_store("memory://") as opened, registered_bookies(opened, size) as bookies:
        store = InterposedStore(opened)
        cluster = FakeCluster(store.face, store, bookies, await store.cluster_id())
        try:
            yield cluster
        finally:
            for pool in cluster.pools:
                await pool.close()
