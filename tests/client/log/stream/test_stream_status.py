"""What the metadata of a stream tell people about the segments of its log."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from octavo.client.log.stream.status import segments_of_stream
from support.clusters.log_cluster import LogCluster, open_log_cluster
from support.inside import leader_of
from support.metadata.metadata_clusters import MemoryCluster

import octavo


@pytest.fixture
async def logs() -> AsyncIterator[LogCluster]:
    async with open_log_cluster(MemoryCluster(Path()), "stream") as made:
        yield made


async def shown(log: octavo.Log) -> list[tuple[int | None, int | None, int]]:
    """First position, entries and term of each segment."""
    return [(one.first_position, one.entries, one.term) for one in (await log.status()).segments]


async def test_a_new_log_has_no_segment(logs: LogCluster) -> None:
    assert await shown(await logs.log()) == []


async def test_a_leader_that_adds_nothing_leaves_no_segment_behind(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add_many([b"0", b"1"])
    async with log.take_over():
        assert await shown(log) == [(0, 2, 1), (2, None, 2)], "it may add at any moment"
    (*_, left_behind) = (await logs.root()).fragments
    assert left_behind.first_position == 2, "the metadata still have what is not shown"
    assert await shown(log) == [(0, 2, 1)]


async def test_the_seal_of_a_log_is_no_segment(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add(b"0")
    await log.seal()
    assert await shown(log) == [(0, 1, 1)]


async def test_a_fragment_that_has_no_end_yet_is_shown(logs: LogCluster) -> None:
    """Another client has begun to take the log over: how many entries there are it will find out."""
    log = await logs.log()
    writer = await log.lead()
    await writer.add(b"0")
    (ledger_id,) = await logs.ledgers()
    await logs.end_segment_by_hand(await logs.client(), ledger_id)
    (segment,) = segments_of_stream(await logs.root())
    assert (segment.first_position, segment.entries) == (0, None)
    await leader_of(writer).abandon()
