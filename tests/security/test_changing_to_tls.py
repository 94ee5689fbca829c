"""A running cluster changes from plain connections to TLS and authentication by two rounds of restarts, under load."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from octavo.bookie.bookie import Bookie
from octavo.client.client import Client
from octavo.client.write.writer import LedgerWriter
from octavo.metadata import MetadataStore, open_metadata_store
from octavo.metadata.cluster.principals import DOCUMENT, Principal, Principals, encode_principals
from octavo.protocol.errors import UnauthorizedError
from octavo.security.roles import Role
from support.clusters.certificates import Certificates
from support.clusters.tls_bookies import Cluster, start_bookie, tls_settings
from support.disks.faulty_filesystem import MemoryFileSystem
from support.metadata.memory_stores import memory_uri
from support.waiting import eventually

BOOKIES = (1, 2, 3)


class Rolling:
    """Three bookies that keep their disks and ports over restarts."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._filesystems = {number: MemoryFileSystem() for number in BOOKIES}
        self._ports = dict.fromkeys(BOOKIES, 0)
        self._bookies: dict[int, Bookie] = {}

    async def restart(self, number: int, **settings: Any) -> None:
        """Stop a bookie, if it runs, and start it with these settings."""
        if number in self._bookies:
            await self._bookies.pop(number).stop()
        bookie = await start_bookie(
            self._store, number, filesystem=self._filesystems[number], port=self._ports[number], **settings
        )
        self._bookies[number] = bookie
        self._ports[number] = int(bookie.address.rpartition(":")[2])

    async def stop(self) -> None:
        for bookie in self._bookies.values():
            await bookie.stop()


class Written:
    """What a client has added while it was told to go on."""

    def __init__(self, ledger: LedgerWriter) -> None:
        self.ledger_id = ledger.id
        self.acknowledged = 0
        self.over = False
        self._ledger = ledger

    async def add(self) -> None:
        while not self.over:
            assert await self._ledger.add(b"%d" % self.acknowledged) == self.acknowledged
            self.acknowledged += 1
            await asyncio.sleep(0)

    async def goes_on(self) -> None:
        """Wait until further adds have been acknowledged."""
        before = self.acknowledged
        await eventually(lambda: self.acknowledged > before + 5, "adds go on")


@contextlib.asynccontextmanager
async def under_load(client: Client) -> AsyncIterator[Written]:
    """The client adds to a ledger inside the block."""
    async with client.create_ledger(3, 3, 2) as ledger:
        written = Written(ledger)
        adding = asyncio.ensure_future(written.add())
        try:
            await written.goes_on()
            yield written
        finally:
            written.over = True
            await adding


async def test_two_rounds_of_restarts_bring_tls_and_no_add_is_lost(certificates: Certificates) -> None:
    principals = Principals().with_principal(Principal(name="writer", roles=frozenset({Role.APPEND})))
    optional, required = (
        {**tls_settings(certificates.server("rolling", uris=("octavo:bookie",)), mode), "auth": auth}
        for mode, auth in (("optional", "none"), ("required", "required"))
    )
    uri = memory_uri("rolling-tls")
    async with await open_metadata_store(uri, create=True) as store:
        await store.create_document(DOCUMENT, encode_principals(principals))
        cluster, rolling = Cluster(store, uri), Rolling(store)
        try:
            for number in BOOKIES:
                await rolling.restart(number)
            patient = {"bookie_loss_seconds": 60.0, "add_quorum_timeout_seconds": 60.0}
            secret = certificates.client("writer")
            async with cluster.client(**patient) as plain, cluster.client(tls=secret, **patient) as secure:
                async with under_load(plain) as plain_ids:
                    for number in BOOKIES:
                        await rolling.restart(number, **optional)
                        await plain_ids.goes_on()
                async with under_load(secure) as secure_ids:
                    for number in BOOKIES:
                        await rolling.restart(number, **required)
                        await secure_ids.goes_on()
                for written in (plain_ids, secure_ids):
                    async with secure.open_ledger(written.ledger_id) as reader:
                        payloads = [entry.payload async for entry in reader]
                    assert payloads == [b"%d" % number for number in range(len(payloads))]
                    assert len(payloads) == written.acknowledged
                ledger = await plain.create_ledger(3, 3, 2)
                with pytest.raises(UnauthorizedError, match="this bookie speaks TLS only"):
                    await ledger.add(b"plain")
                with pytest.raises(UnauthorizedError):
                    await ledger.close()
        finally:
            await rolling.stop()
