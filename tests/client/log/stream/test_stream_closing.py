"""A leader that closes while another client has begun to take over and goes no further."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from octavo.client.log.writer.life import Life
from octavo.metadata.stream.changes import BeginTakeover
from octavo.metadata.stream.model import StreamState
from octavo.metadata.updates.update import update_stream
from octavo.protocol.ids import LedgerId
from support.clusters.log_cluster import LogCluster, collect, open_log_cluster
from support.metadata.metadata_clusters import MemoryCluster
from support.waiting import eventually


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
    await eventually(lambda: writer._life is Life.HEALING)
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
