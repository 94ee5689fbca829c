"""A leader that closes while another client has begun to take over and goes no further."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from octavo.metadata.store.values import Versioned
from octavo.metadata.stream.changes import BeginTakeover
from octavo.metadata.stream.model import StreamMetadata, StreamState
from octavo.metadata.updates.update import update_stream
from octavo.protocol.ids import LedgerId
from support.clusters.log_cluster import LogCluster, collect, open_log_cluster
from support.metadata.interposed_store import InterposedStore
from support.metadata.metadata_clusters import MemoryCluster
from support.waiting import eventually

import octavo


@pytest.fixture
async def logs() -> AsyncIterator[LogCluster]:
    async with open_log_cluster(MemoryCluster(Path()), "stream") as made:
        yield made


async def begin_takeover(logs: LogCluster, term: int) -> LedgerId:
    (number,) = await logs.ledgers()
    ledger_id = LedgerId(number)
    await update_stream(logs.store, ledger_id, BeginTakeover(term), writer_token="rival")
    return ledger_id


@pytest.mark.parametrize("adds", [1, 5])
async def test_the_stream_is_laid_to_rest_all_the_same(logs: LogCluster, adds: int) -> None:
    log = await logs.log()
    reader = await (await logs.client()).open_log("orders")
    writer = await log.take_over()
    payloads = [b"%d" % number for number in range(adds)]
    for payload in payloads:
        await writer.add(payload)
    ledger_id = await begin_takeover(logs, 2)
    await writer.close()
    stream = (await logs.store.read_stream(ledger_id)).value
    assert (stream.state, stream.term, stream.end_position) == (StreamState.AT_REST, 2, adds - 1)
    assert await collect(reader, 0, adds) == payloads


async def test_also_by_a_leader_that_has_just_met_the_rival(logs: LogCluster) -> None:
    log = await logs.log(log_duel_pause_seconds=30.0)
    writer = await log.take_over()
    await writer.add(b"a")
    ledger_id = await begin_takeover(logs, 2)
    await eventually(lambda: writer.statistics().state == "healing")
    await writer.close()
    stream = (await logs.store.read_stream(ledger_id)).value
    assert (stream.state, stream.term, stream.end_position) == (StreamState.AT_REST, 2, 0)


async def test_a_rival_that_has_opened_its_term_is_left_alone(logs: LogCluster) -> None:
    log = await logs.log()
    writer = await log.take_over()
    await writer.add(b"a")
    rival = await (await logs.client()).open_log("orders")
    async with rival.take_over() as successor:
        await writer.close()
        assert await successor.add(b"b") == 1
        assert not successor.lost.is_set()
    assert await collect(rival, 0, 2) == [b"a", b"b"]


async def test_a_takeover_from_a_rival_is_left_alone() -> None:
    """A rival opens its term while the leader closes, before any of the leader's readings of the stream, and a third
    client begins to take over from it. That term is not the leader's to end."""
    number = 1
    while await _rival_opens_before(number):
        number += 1
    assert number > 2, "a leader that is refused its rest reads the stream more than once"


async def _rival_opens_before(reading: int) -> bool:
    """Whether the closing leader reads the stream this number of times; a rival opens its term before the last."""
    async with open_log_cluster(MemoryCluster(Path()), "stream") as logs:
        await logs.log()
        writers: list[octavo.LogWriter] = []
        stores: list[InterposedStore] = []
        taken: list[Versioned[StreamMetadata]] = []
        readings = 0

        async def lead() -> None:
            client, store = await logs.interposed_client()
            store.silence("watch_stream")  # it goes by what it reads
            stores.append(store)
            writers.append(await (await client.open_log("orders")).take_over())
            await writers[-1].add(b"entry")

        async def read_stream(ledger_id: LedgerId) -> Versioned[StreamMetadata]:
            nonlocal readings
            readings += 1
            if readings == reading:
                await lead()
                await begin_takeover(logs, (await logs.root()).term)
                taken.append(await logs.stored_root())
            return await logs.store.read_stream(ledger_id)

        await lead()
        await begin_takeover(logs, 2)
        stores[0].interpose("read_stream", read_stream)
        await writers[0].close()
        if taken:
            assert taken[0].value.state is StreamState.IN_RECOVERY
            assert [await logs.stored_root()] == taken
            await writers[1].close()
        assert (await logs.root()).state is StreamState.AT_REST
        return bool(taken)
