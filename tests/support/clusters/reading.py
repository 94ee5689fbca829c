"""A cluster of fake bookies with ledgers put there by hand, for tests of readers that want no writer."""

import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from octavo.client.options import ClientOptions
from octavo.client.read.follow import ENTRY_WAIT_SECONDS
from octavo.client.read.opening import open_reader
from octavo.client.read.range_read import BlameList
from octavo.client.read.reader import LedgerReader
from octavo.client.read.source import LedgerTerm
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata import (
    Fragment,
    LedgerMetadata,
    MetadataStore,
    Versioned,
    open_metadata_store,
)
from octavo.protocol.entries import Digest, LedgerSecrets, Sealer, derive_secrets, make_verifier
from octavo.protocol.errors import MetadataUnavailableError
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.quorums import Quorums
from support.clusters.fake_bookie import FakeBookie, registered_bookies
from support.metadata.interposed_store import SilentWatch
from support.metadata.memory_stores import memory_uri

QUICK = ClientOptions(
    read_slow_seconds=60.0,
    read_quorum_timeout_seconds=0.2,
    reconnect_delay_seconds_min=0.001,
    reconnect_delay_seconds_max=0.005,
)
"""Reads that are never taken for slow, and give up soon when bookies are out of reach."""


@dataclass
class Cluster:
    """Bookies ``b0``, ``b1``, ...; what readers need besides."""

    bookies: list[FakeBookie]
    store: MetadataStore
    uri: str
    options: ClientOptions
    pool: ConnectionPool
    blame: BlameList
    readers: list[LedgerReader] = field(default_factory=list)

    def bookie(self, bookie_id: str) -> FakeBookie:
        return next(bookie for bookie in self.bookies if bookie.bookie_id == bookie_id)

    async def ledger(
        self,
        sizes: tuple[int, int, int] = (3, 3, 2),
        *,
        password: bytes = b"",
        digest: Digest = Digest.CRC32C,
        fragments: Sequence[tuple[int, Sequence[str], int]] | None = None,
    ) -> "HandmadeLedger":
        """An open ledger; its first (or only) ensemble is the first E bookies."""
        ledger_id = await self.store.allocate_ledger_id()
        secrets = derive_secrets(password, ledger_id)
        ensembles = fragments or [(0, [bookie.bookie_id for bookie in self.bookies[: sizes[0]]], 0)]
        metadata = LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=sizes[0],
            write_quorum=sizes[1],
            ack_quorum=sizes[2],
            fragments=tuple(
                Fragment(EntryId(first), tuple(map(BookieId, ensemble)), length_before)
                for first, ensemble, length_before in ensembles
            ),
            digest=digest,
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
            verifier=make_verifier(secrets, digest, b"s" * 16),
            salt=b"s" * 16,
        )
        version = await self.store.create_ledger(metadata)
        return HandmadeLedger(self, Versioned(metadata, version), secrets)

    async def open(self, ledger: "HandmadeLedger", **changes: Any) -> LedgerReader:
        """A reader of the ledger as it stands in the metadata; closed with the cluster."""
        return await open_reader(
            LedgerTerm(cast(Any, changes.get("store", self.store)), await self.store.read_ledger(ledger.id)),
            ledger.secrets,
            pool=self.pool,
            options=changes.get("options", self.options),
            blame=self.blame,
            draw=changes.get("draw", lots()),
            feeds=changes.get("feeds"),
            entry_wait_seconds=changes.get("entry_wait_seconds", ENTRY_WAIT_SECONDS),
            on_made=self.readers.append,
        )


class TroubledStore:
    """A store as a reader in trouble sees it: watches say nothing, and nothing answers while it is ``down``."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.down = False
        self.reads = 0

    async def read_ledger(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        """As the store does, when it can be reached."""
        self.reads += 1
        if self.down:
            raise MetadataUnavailableError("the metadata store does not answer")
        return await self._store.read_ledger(ledger_id)

    def watch_ledger(self, _ledger_id: LedgerId) -> SilentWatch:
        """A watch that never reports anything."""
        return SilentWatch()


def lots() -> Callable[[], float]:
    """Lots that prefer earlier positions, then stay in the middle."""
    numbers = itertools.count(1)
    return lambda: 1 - 1 / next(numbers)


@dataclass
class HandmadeLedger:
    """A ledger that this test writes: seals like a writer and puts entries where it likes."""

    cluster: Cluster
    versioned: Versioned[LedgerMetadata]
    secrets: LedgerSecrets
    sealed: list[bytes] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    length: int = 0

    @property
    def id(self) -> LedgerId:
        return self.versioned.value.ledger_id

    @property
    def sealer(self) -> Sealer:
        return Sealer(self.id, self.versioned.value.digest, self.secrets)

    def add(self, *payloads: bytes, confirmed: int | None = -1) -> None:
        """Seal entries and put each on its write set; ``confirmed`` is their LAC, by default all earlier ones."""
        metadata = self.versioned.value
        quorums = Quorums(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        puts: dict[str, list[bytes]] = {}
        for payload in payloads:
            entry_id = EntryId(len(self.sealed))
            lac = entry_id - 1 if confirmed == -1 else confirmed
            (sealed,) = self.sealer.seal(
                entry_id,
                [payload],
                last_add_confirmed=None if lac is None or lac < 0 else EntryId(lac),
                length=self.length,
                sealed_at_ms=0,
            )
            self.sealed.append(sealed)
            self.payloads.append(payload)
            self.length += len(payload)
            bookies = metadata.fragment_of(entry_id).bookies
            for position in quorums.write_set(entry_id):
                puts.setdefault(bookies[position], []).append(sealed)
        for bookie_id, entries in puts.items():
            self.cluster.bookie(bookie_id).put(self.id, entries)

    def add_numbered(self, count: int, size: int = 10) -> None:
        """That many entries with payloads that tell them apart."""
        start = len(self.sealed)
        self.add(*(b"%0*d" % (size, i) for i in range(start, start + count)))

    def say_lac(self, *bookie_ids: str) -> None:
        """The writer's explicit LAC, up to its last entry, at these bookies (all, if none is named)."""
        sealed = self.sealer.seal_explicit_lac(EntryId(len(self.sealed) - 1), length=self.length, sealed_at_ms=0)
        for bookie_id in bookie_ids or self.versioned.value.last_fragment.bookies:
            bookie = self.cluster.bookie(bookie_id)
            bookie.ledger(self.id).explicit = sealed
            bookie.put(self.id, [])

    async def change_ensemble(self, *bookie_ids: str) -> None:
        """Go on with other bookies from the next entry on."""
        await self.change(
            self.versioned.value.with_ensemble_change(
                EntryId(len(self.sealed)), tuple(map(BookieId, bookie_ids)), self.length
            )
        )

    async def close(self) -> None:
        """Close it at its last entry."""
        last = EntryId(len(self.sealed) - 1) if self.sealed else None
        await self.change(self.versioned.value.closed(last, self.length))

    async def change(self, metadata: LedgerMetadata) -> None:
        """Store these metadata."""
        version = await self.cluster.store.compare_and_set_ledger(metadata, self.versioned.version)
        self.versioned = Versioned(metadata, version)


@contextlib.asynccontextmanager
async def cluster_of(count: int = 3, options: ClientOptions = QUICK) -> AsyncIterator[Cluster]:
    """That many bookies in a cluster of their own."""
    uri = memory_uri("reading")
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(await open_metadata_store(uri, create=True, rng=random.Random(1)))
        bookies = await stack.enter_async_context(registered_bookies(store, count))
        pool = ConnectionPool(store, cluster_id=await store.cluster_id(), options=options, rng=random.Random(2))
        stack.push_async_callback(pool.close)
        cluster = Cluster(bookies, store, uri, options, pool, BlameList(blame_seconds=60.0, now=lambda: 0.0))
        try:
            yield cluster
        finally:
            for reader in cluster.readers:
                await reader.close()
