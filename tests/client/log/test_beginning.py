"""Readers keep to truncations of other clients within ``log_truncation_seconds``, and of their own client at once (rule
P7)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

import pytest
from octavo.client.log.documents.names import list_document
from octavo.client.log.logs import Layout
from octavo.metadata.store.values import Versioned
from octavo.protocol.errors import MetadataUnavailableError, NoSuchLogError, TruncatedError
from support.clusters.log_cluster import LogCluster, collect, open_log_cluster
from support.metadata.interposed_store import InterposedStore
from support.metadata.metadata_clusters import MemoryCluster
from support.waiting import eventually

import octavo

AT_ONCE_SECONDS = 0.001
"""So short that each read asks."""

NEVER_SECONDS = 86_400.0


@pytest.fixture(params=["stream", "chain"])
async def logs(request: pytest.FixtureRequest) -> AsyncIterator[LogCluster]:
    layout: Layout = request.param
    async with open_log_cluster(MemoryCluster(Path()), layout) as made:
        yield made


class Readers(NamedTuple):
    """A log of ten entries, and a reader of it that has read all."""

    log: octavo.Log
    reader: octavo.Log
    client: octavo.Client
    store: InterposedStore
    """Of the reader."""


async def ten_entries(logs: LogCluster, seconds: float) -> Readers:
    log = await logs.log()
    writer = await log.take_over()
    await writer.add_many([str(number).encode() for number in range(10)])
    client, store = await logs.interposed_client(log_truncation_seconds=seconds)
    reader = await client.open_log("orders")
    await collect(reader, 0, 10)
    return Readers(log, reader, client, store)


async def asks_next() -> None:
    """Return once a reader that asks :data:`AT_ONCE_SECONDS` after its last question has to ask again."""
    loop = asyncio.get_running_loop()
    due_at = loop.time() + AT_ONCE_SECONDS
    await eventually(lambda: loop.time() >= due_at)


async def test_a_reader_that_neither_follows_nor_refreshes_keeps_to_a_truncation(logs: LogCluster) -> None:
    log, reader, _, _ = await ten_entries(logs, AT_ONCE_SECONDS)
    await log.truncate(7)
    await asks_next()
    with pytest.raises(TruncatedError) as told:
        await reader.read(3, 8)
    assert told.value.first_position == reader.first_position == 7
    assert [entry.payload for entry in await reader.read(7, 9)] == [b"7", b"8", b"9"]


async def test_an_iteration_ends_where_the_log_was_truncated(logs: LogCluster) -> None:
    log, reader, _, _ = await ten_entries(logs, AT_ONCE_SECONDS)
    async with aclosing(reader.entries(0, 9)) as entries:
        assert (await anext(entries)).payload == b"0"
        await log.truncate(7)
        await asks_next()
        with pytest.raises(TruncatedError, match="position 1 has been truncated; the log begins at 7"):
            await anext(entries)


async def test_bulk_readers_are_told_when_they_begin_to_read_somewhere(logs: LogCluster) -> None:
    log, reader, _, _ = await ten_entries(logs, AT_ONCE_SECONDS)
    await log.truncate(7)
    await asks_next()
    with pytest.raises(TruncatedError):
        await reader.extents(3, 8)
    await log.truncate(9)
    await asks_next()
    with pytest.raises(TruncatedError):
        async with reader.reader_at(7):
            pass


async def test_all_handles_of_the_client_that_truncates_keep_to_it_at_once(logs: LogCluster) -> None:
    _, reader, client, _ = await ten_entries(logs, NEVER_SECONDS)
    another = await client.open_log("orders")
    async with aclosing(reader.entries(0, 9)) as entries:
        await anext(entries)
        await another.truncate(7)
        with pytest.raises(TruncatedError):
            await anext(entries)
    with pytest.raises(TruncatedError):
        await reader.read(6, 6)


async def test_a_reader_asks_no_more_often_than_it_has_to(logs: LogCluster) -> None:
    _, reader, _, store = await ten_entries(logs, NEVER_SECONDS)
    store.make_unavailable("read_document")
    for position in range(10):
        assert (await reader.read(position, position))[0].payload == str(position).encode()


async def test_a_reader_of_a_deleted_log_is_told(logs: LogCluster) -> None:
    _, reader, _, _ = await ten_entries(logs, AT_ONCE_SECONDS)
    await (await logs.client()).delete_log("orders")
    await asks_next()
    for _ in range(2):
        with pytest.raises(NoSuchLogError):
            await reader.read(3, 8)


async def test_readers_go_on_while_the_store_does_not_answer_and_keep_to_what_it_says_then(
    logs: LogCluster, caplog: pytest.LogCaptureFixture
) -> None:
    log, reader, _, store = await ten_entries(logs, AT_ONCE_SECONDS)
    answers = asyncio.Event()

    async def late(name: str) -> Versioned[bytes] | None:
        if name == list_document("orders"):
            await answers.wait()
        return await store.real.read_document(name)

    store.interpose("read_document", late)
    await log.truncate(7)
    await asks_next()
    for _ in range(3):
        assert len(await reader.read(3, 8)) == 6
    assert [record.levelname for record in caplog.records if "where it begins" in record.message] == ["WARNING"]
    answers.set()
    await eventually(lambda: reader.first_position == 7)
    await asks_next()
    with pytest.raises(TruncatedError):
        await reader.read(3, 8)


async def test_a_store_that_fails_is_asked_again_a_little_later(logs: LogCluster) -> None:
    log, reader, _, store = await ten_entries(logs, AT_ONCE_SECONDS)
    asked = 0

    async def fail(name: str) -> Versioned[bytes] | None:
        nonlocal asked
        asked += 1
        raise MetadataUnavailableError("no answer")

    store.interpose("read_document", fail)
    await log.truncate(7)

    async def has_asked_twice() -> bool:
        return asked > 1 or len(await reader.read(3, 8)) != 6

    await eventually(has_asked_twice)
    assert asked > 1
    store.restore()

    async def knows() -> bool:
        try:
            await reader.read(3, 8)
        except TruncatedError:
            return True
        return False

    await eventually(knows)
