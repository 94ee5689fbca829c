"""Readers that are closed or cancelled while they read: what they have begun ends, and nothing else does."""

import asyncio
import gc
from collections.abc import Sequence

import pytest
from octavo.client.read.range_read import RangeRead
from octavo.protocol.entries import Entry
from octavo.protocol.errors import (
    ClientClosedError,
)
from octavo.protocol.messages import Op
from support.clusters.reading import cluster_of
from support.waiting import eventually


def payloads(entries: Sequence[Entry]) -> list[bytes]:
    return [entry.payload for entry in entries]


async def test_closing_ends_reads_iterations_and_waits() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(5)
        reader = await cluster.open(ledger)
        for bookie in cluster.bookies:
            bookie.drop(Op.READ)
        tasks = [
            asyncio.create_task(reader.read(0, 3)),
            asyncio.create_task(_collect(reader.entries())),
            asyncio.create_task(_collect(reader.follow(4))),
            asyncio.create_task(reader.wait_last_add_confirmed(9)),
        ]
        await cluster.bookies[0].received(Op.READ, 2)
        await reader.close()
        await reader.close()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ClientClosedError] * 4
        with pytest.raises(ClientClosedError):
            await reader.read(0, 0)
        with pytest.raises(ClientClosedError):
            reader.follow()
        with pytest.raises(ClientClosedError):
            await reader.refresh_last_add_confirmed()


async def test_leaving_the_block_closes_the_reader() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(2)
        async with await cluster.open(ledger) as reader:
            assert not reader.closed
        assert reader.closed


def reads_under_way() -> list[RangeRead]:
    """The reads that anything still refers to."""
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, RangeRead)]


async def test_cancelled_read_disturbs_no_other() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(5)
        await ledger.close()
        reader = await cluster.open(ledger)
        cluster.bookies[0].hold(Op.READ)
        doomed = asyncio.create_task(reader.read(0, 4))
        other = asyncio.create_task(reader.read(0, 4))
        await cluster.bookies[0].received(Op.READ, 2)
        doomed.cancel()
        await asyncio.wait([doomed])
        assert doomed.cancelled()
        cluster.bookies[0].release(Op.READ)
        assert payloads(await other) == ledger.payloads
        del doomed, other
        assert not reads_under_way()


async def test_abandoned_iteration_leaves_nothing_under_way() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(5000, size=1000)
        await ledger.close()
        reader = await cluster.open(ledger)
        iteration = reader.entries()
        assert (await anext(iteration)).entry_id == 0
        assert reads_under_way()
        await iteration.aclose()
        await eventually(lambda: not reads_under_way())


async def test_closing_while_a_bookie_is_being_connected_leaves_no_task_behind() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(5)
        await ledger.close()
        reader = await cluster.open(ledger)
        for bookie in cluster.bookies:
            bookie.hello_hung = True
        before = asyncio.all_tasks()
        reading = asyncio.create_task(reader.read(0, 4))
        await cluster.bookies[0].until(lambda: cluster.bookies[0].connections_made == 1)
        await reader.close()
        with pytest.raises(ClientClosedError):
            await reading
        await asyncio.sleep(0)
        left = [task for task in asyncio.all_tasks() - before if "_request" in repr(task)]
        assert left == []


async def _collect(entries: object) -> list[Entry]:
    return [entry async for entry in entries]  # type: ignore[attr-defined]
