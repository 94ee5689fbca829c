"""Logs of a client made by ``octavo.connect``, as an application has them."""

import asyncio
import gc
import itertools
import random
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from octavo.client.client import Client
from octavo.client.options import ClientOptions
from octavo.metadata.store.values import Version
from octavo.protocol.messages import Op
from support.clusters.leading import led_log
from support.clusters.log_cluster import QUICK, open_log_cluster
from support.clusters.reading import cluster_of
from support.metadata.interposed_store import InterposedStore
from support.metadata.metadata_clusters import MemoryCluster
from support.waiting import WAIT_SECONDS, eventually, loop_turns

import octavo


async def test_segments_that_the_log_abandons_raise_no_resource_warning() -> None:
    """A segment is no writer of the application's: warnings are errors here, also those of the garbage collector."""
    options = {"log_duel_pause_seconds": 0.001, "resend_delay_seconds": 0.01}
    async with led_log(layout="chain", **options) as (_, client, log, writer):
        await writer.add(b"0")
        (ledger_id,) = [ledger_id async for ledger_id in client.list_ledgers()]
        async with client.open_ledger(ledger_id):  # recovers the segment: the leader heals, and abandons it
            pass
        assert await asyncio.wait_for(writer.add(b"1"), WAIT_SECONDS) == 1
        await writer.roll()
        await writer.add(b"2")
    del writer, log, client
    gc.collect()


async def test_a_handle_and_a_writer_that_are_not_closed_are_reported() -> None:
    async with cluster_of() as cluster:
        client = await octavo.connect(cluster.uri)
        log = await client.create_log("orders")
        writer = await log.lead()
        for thing in (log, writer):
            with pytest.warns(ResourceWarning, match="was not closed"):
                thing.__del__()
        await client.close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            log.__del__()
            writer.__del__()


async def test_a_client_that_is_closed_ends_its_followers_while_its_writers_still_close() -> None:
    """A follower that tried again and again to open its ledger would never let the writer's close go on."""
    async with cluster_of() as cluster:
        client = await octavo.connect(cluster.uri)
        log = await client.create_log("orders")
        writer = await log.lead()
        await writer.add(b"0")
        followed = asyncio.Event()

        async def follow() -> None:
            async for _ in log.follow():
                followed.set()

        follower = asyncio.create_task(follow())
        await followed.wait()
        await client.close()
        with pytest.raises(octavo.ClientClosedError):
            await follower
        assert writer.closed


async def test_reading_many_segments_leaves_a_followed_ledger_open() -> None:
    segments = 12
    async with (
        cluster_of() as cluster,
        octavo.connect(cluster.uri, explicit_lac_delay_seconds=0.001) as client,
        client.create_log("orders", layout="chain") as log,
        log.lead() as writer,
    ):
        for number in range(segments):
            await writer.add(b"%d" % number)
            await writer.roll()
        await writer.add(b"last")
        followed = asyncio.Event()

        async def follow() -> None:
            async for _ in log.follow(segments):
                followed.set()

        def asked() -> int:
            return sum(bookie.count(Op.READ_LAC) for bookie in cluster.bookies)

        async with asyncio.TaskGroup() as group:
            follower = group.create_task(follow())
            await followed.wait()
            await eventually(lambda: sum(bookie.long_polls for bookie in cluster.bookies) == 2, "two polls wait")
            asked_before = asked()
            assert [entry.position for entry in await log.read(0, segments - 1)] == list(range(segments))
            await loop_turns()
            assert asked() == asked_before, "the follower opened its ledger again"
            follower.cancel()


async def test_a_leader_reads_across_a_roll_while_the_segment_before_is_still_being_closed() -> None:
    may_close = asyncio.Event()
    async with open_log_cluster(MemoryCluster(Path())) as logs:
        store = InterposedStore(await logs.metadata.open())

        async def late(*arguments: Any) -> Version:
            await may_close.wait()
            return await store.real.compare_and_set_ledger(*arguments)

        store.interpose("compare_and_set_ledger", late)
        client = Client(
            store.face,
            cluster_id=logs.cluster_id,
            options=ClientOptions(**(QUICK | {"explicit_lac_delay_seconds": 3600.0})),
            rng=random.Random(1),
        )
        async with client, client.create_log("orders", layout="chain") as log, log.lead() as writer:
            await writer.add_many([b"0", b"1"])
            await writer.roll()
            assert await writer.add(b"2") == 2
            assert [entry.payload for entry in await log.read(0, 2)] == [b"0", b"1", b"2"]
            async with client.open_log("orders") as other:
                assert other.end < 2, "another handle knows what the bookies know"
            may_close.set()


async def test_times_do_not_fall_from_a_segment_to_the_next_one_although_the_clock_is_behind() -> None:
    """The second leader begins at the time of an empty segment, which its takeover takes out of the list."""

    def clock(start: datetime) -> Callable[[], datetime]:
        ticks = itertools.count()
        return lambda: start + timedelta(milliseconds=next(ticks))

    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    async with open_log_cluster(MemoryCluster(Path())) as logs:
        for start in (noon, noon - timedelta(hours=1)):
            client = Client(
                await logs.metadata.open(),
                cluster_id=logs.cluster_id,
                options=ClientOptions(**QUICK),
                rng=random.Random(start.hour),
                wall_clock=clock(start),
            )
            async with client:
                log = await (client.create_log("orders") if start == noon else client.open_log("orders"))
                async with log.lead() as writer:
                    for _ in range(3):
                        await writer.add(b"x")
                        await writer.roll()
                times = [entry.sealed_at for entry in await log.read(0, await log.refresh() - 1)]
        assert len(times) == 6
        assert times == sorted(times)


async def test_times_do_not_fall_when_the_clock_is_set_back_before_a_roll() -> None:
    """Rule P10: the list does not tell yet when the segment before was sealed last."""
    now = [datetime(2026, 1, 1, 12, tzinfo=UTC)]
    noon = now[0]
    async with open_log_cluster(MemoryCluster(Path()), "chain") as logs:
        client = Client(
            await logs.metadata.open(),
            cluster_id=logs.cluster_id,
            options=ClientOptions(**QUICK),
            rng=random.Random(1),
            wall_clock=lambda: now[0],
        )
        async with client:
            log = await client.create_log("orders", layout="chain")
            async with log.lead() as writer:
                now[0] = noon + timedelta(hours=1)
                await writer.add(b"0")
                now[0] = noon
                await writer.roll()
                await writer.add(b"1")
            assert [entry.sealed_at for entry in await log.read(0, 1)] == [noon + timedelta(hours=1)] * 2
