"""Logs that are streams on metadata that were restored from a dump: what was acknowledged before the dump is there."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from octavo.metadata.stream.model import StreamMetadata
from octavo.protocol.ids import LedgerId
from support.clusters.log_cluster import LogCluster, collect, open_log_cluster
from support.inside import active_of
from support.metadata.metadata_clusters import MemoryCluster
from support.waiting import WAIT_SECONDS

import octavo

TERMS_SKIPPED = 1000


@pytest.fixture
async def logs() -> AsyncIterator[LogCluster]:
    async with open_log_cluster(MemoryCluster(Path()), "stream") as made:
        yield made


async def dump(logs: LogCluster) -> tuple[StreamMetadata, dict[str, bytes]]:
    """The metadata of the only log."""
    (ledger_id,) = await logs.ledgers()
    documents = {}
    async for name in logs.store.list_documents():
        found = await logs.store.read_document(name)
        assert found is not None
        documents[name] = found.value
    return (await logs.store.read_stream(LedgerId(ledger_id))).value, documents


async def restore(logs: LogCluster, dumped: tuple[StreamMetadata, dict[str, bytes]]) -> None:
    """Another store with these metadata, as `octavo cluster restore` makes it. The bookies keep what they have."""
    stream, documents = dumped
    metadata = MemoryCluster(Path())
    await logs.stack.enter_async_context(metadata.stack)
    store = await metadata.open()
    metadata.server.cluster_id, metadata.server.next_ledger_id = logs.cluster_id, stream.ledger_id + 1
    await store.create_stream(stream.restored(TERMS_SKIPPED))
    for name, value in documents.items():
        await store.create_document(name, value)
    for bookie in logs.bookies:
        await store.register_bookie(bookie.registration())
    logs.metadata, logs.store = metadata, store


async def go_on(log: octavo.Log, writer: octavo.LogWriter, how: str) -> None:
    """What happened after the dump, unknown to it."""
    if how == "taken over":
        writer = await log.take_over()
    elif how == "renewed":
        await active_of(writer).term.renew()  # type: ignore[attr-defined]
    await writer.add(b"after the dump")
    await writer.add(b"and known to the bookies as confirmed")
    await writer.close()


@pytest.mark.parametrize("how", ["in the same term", "renewed", "taken over"])
async def test_a_stream_that_was_written_when_it_was_dumped_can_be_led_after_a_restore(
    logs: LogCluster, how: str
) -> None:
    """The bookies know of terms that the metadata do not have, and that no client has opened in them (rule T3)."""
    log = await logs.log()
    writer = await log.take_over()
    for number in range(3):
        await writer.add(b"%d" % number)
    dumped = await dump(logs)
    await go_on(log, writer, how)
    await restore(logs, dumped)
    client = await logs.client()
    log = await client.open_log("orders")
    async with asyncio.timeout(WAIT_SECONDS):
        async with await log.take_over() as second:
            assert second.term == dumped[0].term + TERMS_SKIPPED
            position = await second.add(b"new")
        entries = await collect(log, 0, position + 1)
    assert (entries[:3], entries[-1]) == ([b"0", b"1", b"2"], b"new")


async def test_a_stream_that_was_at_rest_when_it_was_dumped_goes_on_behind_its_end(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add(b"0")
    dumped = await dump(logs)
    await go_on(log, await log.take_over(), "in the same term")
    await restore(logs, dumped)
    log = await (await logs.client()).open_log("orders")
    async with asyncio.timeout(WAIT_SECONDS), await log.take_over() as second:
        assert await second.add(b"new") == 1
    assert await collect(log, 0, 2) == [b"0", b"new"]
