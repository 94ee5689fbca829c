"""All servers gone for longer than a bookie's session, and back: a whole cluster of processes goes through it."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from octavo.client.client import Client
from octavo.client.options import ClientOptions
from octavo.metadata.zookeeper.cluster import open_zookeeper_store
from octavo.protocol.errors import MetadataUnavailableError
from support.commands.processes import Up, is_running, stop_process
from support.metadata.zookeeper import QUICK
from support.waiting import WAIT_SECONDS, eventually, pause
from zookeeper_server import ServerGroup

import octavo

PATIENCE_SECONDS = WAIT_SECONDS

LEASE_SECONDS = 10.0
"""Of a bookie's registration, by default."""

ADD_SECONDS = 12.0
"""What an add of the writer below has."""

OPTIONS = ClientOptions(add_quorum_timeout_seconds=ADD_SECONDS, request_timeout_seconds=6.0, bookie_loss_seconds=0.1)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[ServerGroup]:
    with ServerGroup(tmp_path / "zookeeper", size=3, settings=replace(QUICK), outlives=False) as group:
        yield group


@asynccontextmanager
async def client_of(uri: str) -> AsyncIterator[Client]:
    """With less patience for the metadata than usual."""
    store = await open_zookeeper_store(
        uri, create=False, lease_seconds=LEASE_SECONDS, operation_seconds=8.0, rng=random.Random(1)
    )
    async with Client(store, cluster_id=await store.cluster_id(), options=OPTIONS, rng=random.Random(2)) as client:
        yield client


def payload(entry_id: int) -> bytes:
    return b"entry %d" % entry_id


async def add(writer: octavo.LedgerWriter, number: int) -> None:
    first = 0 if writer.last_add_confirmed is None else writer.last_add_confirmed + 1
    ids = range(first, first + number)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await writer.add_many([payload(entry_id) for entry_id in ids]) == ids


async def test_all_servers_gone_and_back(servers: ServerGroup, tmp_path: Path) -> None:
    uri = f"{servers.uri}/outage"
    with Up(tmp_path / "data", "--bookies", 4, "--metadata", uri) as up:
        await asyncio.to_thread(up.wait_ready)
        async with client_of(uri) as client:
            before = await client.bookies()
            going_on = await client.create_ledger(3, 3, 2)
            needs_everybody = await client.create_ledger(4, 4, 4)
            not_begun = await client.create_ledger(3, 3, 2)
            await add(going_on, 50)
            await add(needs_everybody, 50)

            for number in (1, 2, 3):
                servers.kill_server(number)
            gone_at = time.monotonic()
            await add(going_on, 50)
            await add(needs_everybody, 50)  # none of the adds needs the metadata
            await add(not_begun, 50)
            with pytest.raises(MetadataUnavailableError):
                await client.create_ledger(3, 3, 2)

            hung = up.pids["bookie-1"]
            await asyncio.to_thread(stop_process, hung)
            try:
                began_at = time.monotonic()
                with pytest.raises(MetadataUnavailableError, match="did not reach their ack quorum within 12 s") as e:
                    await add(needs_everybody, 1)
                assert e.value.may_have_happened, "three bookies hold it"
                assert ADD_SECONDS <= time.monotonic() - began_at < PATIENCE_SECONDS
                await add(going_on, 50)  # two of three will do, or three do
            finally:
                os.kill(hung, signal.SIGCONT)
            await pause(max(0.0, gone_at + LEASE_SECONDS + 1.0 - time.monotonic()))
            assert [name for name, pid in up.pids.items() if not is_running(pid)] == []
            await add(going_on, 50)

            servers.start()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await _until_back(client, len(before))
            assert {bookie.bookie_id for bookie in await client.bookies()} == {bookie.bookie_id for bookie in before}
            assert [name for name, pid in up.pids.items() if not is_running(pid)] == []
            async with client.create_ledger(3, 3, 2) as afterwards:
                await add(afterwards, 50)
            await add(going_on, 50)
            await add(not_begun, 50)
            await going_on.close()
            await not_begun.close()
            with pytest.raises(MetadataUnavailableError):
                await needs_everybody.close()
            for writer, entries in ((going_on, 250), (needs_everybody, 100), (not_begun, 100), (afterwards, 50)):
                async with client.open_ledger(writer.id) as reader:
                    found = [entry.payload async for entry in reader]
                assert found[:entries] == [payload(entry_id) for entry_id in range(entries)]
                assert len(found) - entries in ({0, 1} if writer is needs_everybody else {0})


async def _until_back(client: Client, number: int) -> None:
    async def is_back() -> bool:
        try:
            bookies = await client.bookies()
        except MetadataUnavailableError:
            return False
        return [bookie.state.value for bookie in bookies] == ["writable"] * number

    await eventually(is_back)
