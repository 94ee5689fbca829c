"""What ``statistics()`` says of writers, readers, logs and clients, beside what their callers can see happen."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from octavo.metadata.ledger.debts import FullCopies
from octavo.metadata.ledger.model import SyncMode
from octavo.metadata.stream.changes import BeginTakeover
from octavo.metadata.updates.update import update_stream
from octavo.protocol.entries import Entry
from octavo.protocol.ids import LedgerId
from octavo.protocol.messages import Op
from support.clusters.log_cluster import LogCluster, open_log_cluster
from support.clusters.reading import cluster_of
from support.clusters.writing import FakeCluster, fake_cluster
from support.metadata.metadata_clusters import MemoryCluster
from support.waiting import WAIT_SECONDS, eventually, loop_turns

import octavo


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(4) as cluster:
        yield cluster


@pytest.fixture
async def logs() -> AsyncIterator[LogCluster]:
    async with open_log_cluster(MemoryCluster(Path()), "stream", 4) as made:
        yield made


VALUES = [getattr(octavo, name) for name in octavo.__all__ if name.endswith("Statistics")]


@pytest.mark.parametrize("kind", VALUES)
def test_every_value_is_frozen_and_without_a_dict(kind: type) -> None:
    assert is_dataclass(kind)
    value: Any = object.__new__(kind)
    with pytest.raises(FrozenInstanceError):
        setattr(value, fields(kind)[0].name, 1)
    assert not hasattr(value, "__dict__")


def test_there_is_a_value_for_each_kind_of_object() -> None:
    assert len(VALUES) == 8


# --- the writer of a ledger -------------------------------------------------------------------------------------------


async def test_adds_are_counted_where_they_are(cluster: FakeCluster) -> None:
    async with await cluster.writer(window_entries=3) as ledger:
        before = ledger.statistics()
        assert before.replication.ensemble == ("b0", "b1", "b2")
        assert (before.replication.pending_seconds, before.adds.free_entries) == (None, 3)
        for bookie in cluster.bookies:
            bookie.hold(Op.ADD)
        adding = asyncio.ensure_future(ledger.add_many([b"four"] * 5))
        await loop_turns(1)
        collected = ledger.statistics().adds
        assert (collected.collected_entries, collected.collected_bytes, collected.free_entries) == (3, 12, 0)
        assert (collected.queued_entries, collected.queued_bytes, collected.unacknowledged_entries) == (2, 8, 0)
        await cluster.bookies[0].received(Op.ADD)
        sent = ledger.statistics()
        assert (sent.adds.collected_entries, sent.adds.held_entries, sent.adds.held_bytes) == (0, 0, 0)
        assert (sent.adds.unacknowledged_entries, sent.adds.unacknowledged_bytes) == (3, 12)
        replication = sent.replication
        assert (replication.pending_entries, replication.pending_bytes, replication.pending_frames) == (3, 12, 1)
        assert replication.pending_seconds is not None
        assert 0 <= replication.pending_seconds < WAIT_SECONDS
        for bookie in cluster.bookies:
            bookie.release(Op.ADD)
        await adding
        after = ledger.statistics()
        assert after.adds == before.adds
        assert (after.replication.last_add_confirmed, after.replication.length) == (4, 20)
        assert (after.replication.pending_entries, after.replication.pending_frames) == (0, 0)
    assert ledger.statistics().state == "closed"


async def test_entries_that_lack_copies_are_named_and_take_room_where_copies_are_required(
    cluster: FakeCluster,
) -> None:
    options: dict[str, Any] = {"window_entries": 4, "bookie_loss_seconds": 3600.0}
    async with await cluster.writer(full_copies=FullCopies.REQUIRED, **options) as ledger:
        cluster.bookies[2].hold(Op.ADD)
        await ledger.add_many([b"four"] * 3)
        short = ledger.statistics()
        assert short.replication.short_entries == range(3)
        assert short.replication.retained_bytes > 12
        assert (short.adds.held_entries, short.adds.held_bytes, short.adds.free_entries) == (3, 12, 1)
        cluster.bookies[2].release(Op.ADD)
        await eventually(lambda: not ledger.statistics().replication.short_entries)
        full = ledger.statistics()
        assert (full.adds.held_entries, full.adds.held_bytes, full.replication.retained_bytes) == (0, 0, 0)


async def test_a_bookie_that_is_lost_is_troubled_until_it_is_replaced(cluster: FakeCluster) -> None:
    async with await cluster.writer(3, 3, 3, bookie_loss_seconds=0.001) as ledger:
        await ledger.add(b"0")
        await eventually(lambda: ledger.statistics().replication.troubled_bookies == ())
        await cluster.bookies[1].stop()
        await eventually(lambda: ledger.statistics().replication.troubled_bookies == ("b1",))
        await ledger.add(b"1")
        assert ledger.statistics().replication.replaced_bookies == 1
        assert ledger.statistics().replication.ensemble == ("b0", "b3", "b2")
        assert not ledger.statistics().replication.is_changing_ensemble


async def test_a_writer_that_was_fenced_says_why_it_takes_no_adds(cluster: FakeCluster) -> None:
    ledger = await cluster.writer()
    await ledger.add(b"0")
    for bookie in cluster.bookies:
        bookie.fence(ledger.id)
    with pytest.raises(octavo.LedgerFencedError) as caught:
        await ledger.add(b"1")
    failed = ledger.statistics()
    assert (failed.state, failed.failure) == ("failed", caught.value.message)
    assert (failed.adds.unacknowledged_entries, failed.adds.held_entries) == (0, 0)
    await cluster.abandon(ledger)


async def test_with_deferred_sync_what_is_accepted_is_pending_until_it_is_forced(cluster: FakeCluster) -> None:
    async with await cluster.writer(sync=SyncMode.DEFERRED) as ledger:
        await ledger.add_many([b"four"] * 3)
        accepted = ledger.statistics()
        assert (accepted.replication.unforced_entries, accepted.replication.pending_entries) == (3, 3)
        assert (accepted.adds.unacknowledged_entries, accepted.adds.unacknowledged_bytes) == (0, 0)
        assert accepted.replication.last_add_confirmed is None
        await ledger.force()
        forced = ledger.statistics().replication
        assert (forced.unforced_entries, forced.last_add_confirmed) == (0, 2)


# --- the writer of a log ----------------------------------------------------------------------------------------------


async def test_a_writer_that_heals_says_so_and_counts_what_is_in_doubt(logs: LogCluster) -> None:
    log = await logs.log(log_duel_pause_seconds=0.01)
    async with log.take_over() as writer:
        await writer.add(b"0")
        for bookie in logs.bookies:
            bookie.hold(Op.ADD)
        adding = asyncio.ensure_future(writer.add_many([b"1", b"2"]))
        await logs.bookies[0].received(Op.ADD, 2)
        sent = writer.statistics()
        assert (sent.state, sent.adds.unacknowledged_entries, sent.adds.in_doubt_entries) == ("writing", 2, 0)
        assert (sent.next_position, sent.end, sent.replication.pending_entries) == (3, 1, 2)
        ledger_id = sent.replication.ledger_id
        await update_stream(logs.store, LedgerId(ledger_id), BeginTakeover(sent.replication.term), writer_token="rival")
        await eventually(lambda: writer.statistics().state == "healing")
        healing = writer.statistics()
        assert healing.failure is not None
        assert healing.adds.in_doubt_entries == 2
        assert 0 <= healing.state_seconds < WAIT_SECONDS
        for bookie in logs.bookies:
            bookie.release(Op.ADD)
        assert await asyncio.wait_for(adding, WAIT_SECONDS) == range(1, 3)
        after = writer.statistics()
        assert (after.state, after.failure, after.heals, after.rolls) == ("writing", None, 1, 0)
        assert after.end == 3
        assert after.replication.term > sent.replication.term
    assert writer.statistics().state == "ended"


async def test_rolls_are_counted_and_the_segment_says_when_it_is_full(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.take_over() as writer:
        full = writer.statistics().segment_bytes_left
        await writer.add(b"four")
        assert writer.statistics().segment_bytes_left == full - 4
        rolling = asyncio.ensure_future(writer.roll())
        await loop_turns(1)
        assert writer.statistics().is_rolling
        await rolling
        rolled = writer.statistics()
        assert (rolled.rolls, rolled.heals, rolled.is_rolling) == (1, 0, False)
        assert (rolled.segment_bytes_left, rolled.term, rolled.log) == (full, writer.term, "orders")


# --- readers ----------------------------------------------------------------------------------------------------------


async def test_a_reader_says_from_which_bookies_it_has_read_and_how_long_it_waits() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add(b"zero", b"one", b"two")
        await ledger.close()
        reader = await cluster.open(ledger, options=replace(cluster.options, read_slow_seconds=0.001))
        assert reader.statistics().entries_read == 0
        for bookie in cluster.bookies:
            bookie.hold(Op.READ)
        reading = asyncio.ensure_future(reader.read(0, 2))
        await eventually(lambda: reader.statistics().speculative_reads == 2)
        waiting = reader.statistics()
        assert waiting.requests_under_way == 1
        assert waiting.waiting_seconds is not None
        assert waiting.waiting_seconds > 0
        cluster.bookies[1].release(Op.READ)
        await reading
        after = reader.statistics()
        assert after.entries_by_bookie == {"b1": 3}
        assert (after.entries_read, after.waiting_seconds, after.requests_under_way, after.retries) == (3, None, 0, 0)
        with pytest.raises(TypeError):
            after.entries_by_bookie["b1"] = 4  # type: ignore[index]
        for bookie in cluster.bookies:
            bookie.release(Op.READ)
        await reader.close()
        assert reader.statistics().is_closed


async def test_a_reader_counts_how_often_it_asked_again() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add(b"zero")
        await ledger.close()
        reader = await cluster.open(ledger)
        for bookie in cluster.bookies:
            bookie.refuse(Op.READ, octavo.BookieOverloadedError("for a test"), times=1)
        assert [entry.payload for entry in await reader.read(0, 0)] == [b"zero"]
        assert reader.statistics().retries == 1


async def test_a_follower_that_has_read_all_waits_for_more() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add(b"zero")
        ledger.say_lac("b0", "b1", "b2")
        reader = await cluster.open(ledger)
        found: list[Entry] = []

        async def follow() -> None:
            async for entry in reader.follow():
                found.append(entry)  # noqa: PERF401

        following = asyncio.ensure_future(follow())
        await eventually(lambda: len(found) == 1 and reader.statistics().waiting_for_more == 1)
        assert reader.statistics().last_add_confirmed == 0
        following.cancel()
        await asyncio.wait([following])
        assert reader.statistics().waiting_for_more == 0


# --- logs and clients -------------------------------------------------------------------------------------------------


async def test_a_handle_counts_followers_and_knows_how_old_its_knowledge_is(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.take_over() as writer:
        await writer.add(b"0")
        assert (log.statistics().end, log.statistics().is_leading, log.statistics().followers) == (1, True, 0)
        follower = log.follow()
        await anext(follower)
        assert log.statistics().followers == 1
        await follower.aclose()
        assert log.statistics().followers == 0
    assert not log.statistics().is_leading
    await loop_turns(3)
    old = log.statistics().metadata_seconds
    await log.refresh()
    assert 0 <= log.statistics().metadata_seconds < old + WAIT_SECONDS
    assert not log.statistics().is_metadata_silent
    await log.close()
    assert log.statistics().is_closed


async def test_a_client_tells_of_everything_that_is_open(logs: LogCluster) -> None:
    client = await logs.client(bookie_loss_seconds=0.001)
    async with client.create_log("orders") as log, log.lead() as writer:
        await writer.add(b"0")
        statistics = client.statistics()
        assert [one.log for one in statistics.log_writers] == ["orders"]
        assert [one.end for one in statistics.logs] == [1]
        assert statistics.adds_acknowledged == client.metrics()["octavo_client_adds_total"]["acknowledged"] == 1
        assert (statistics.ledger_writers, statistics.ledger_readers, statistics.is_closed) == ((), (), False)
    assert (client.statistics().log_writers, client.statistics().logs) == ((), ())
    async with client.create_ledger(3, 3, 2) as ledger:
        await ledger.add(b"0")
        (one,) = client.statistics().ledger_writers
        assert one.ledger_id == ledger.id
    await client.close()
    assert client.statistics().is_closed


async def test_a_client_tells_which_bookies_it_cannot_reach_or_does_not_choose(logs: LogCluster) -> None:
    client = await logs.client(bookie_loss_seconds=0.001)
    async with client.create_ledger(3, 3, 3) as ledger:
        await ledger.add(b"0")
        await eventually(lambda: all(one.state == "connected" for one in client.statistics().bookies.values()))
        lost = ledger.statistics().replication.ensemble[0]
        bookie = next(one for one in logs.bookies if one.bookie_id == lost)
        await bookie.stop()
        await ledger.add(b"1")
        assert ledger.statistics().replication.replaced_bookies == 1
        down = client.statistics().bookies[lost]
        assert down.state == "down"
        assert down.error is not None
        assert down.quarantined_seconds is not None
        assert down.quarantined_seconds > 0
        assert sum(client.statistics().ensemble_changes.values()) == 1


async def test_requests_that_a_bookie_holds_are_under_way(logs: LogCluster) -> None:
    client = await logs.client()
    async with client.create_ledger(3, 3, 2) as ledger:
        for bookie in logs.bookies:
            bookie.hold(Op.ADD)
        adding = ledger.add_nowait(b"0")
        for bookie in logs.bookies:
            if bookie.bookie_id in ledger.statistics().replication.ensemble:
                await bookie.received(Op.ADD)
        assert sum(one.requests_under_way for one in client.statistics().bookies.values()) == 3
        for bookie in logs.bookies:
            bookie.release(Op.ADD)
        await adding


async def test_each_request_of_a_pack_is_under_way(logs: LogCluster) -> None:
    client = await logs.client()
    async with client.create_ledger(3, 3, 2) as one, client.create_ledger(3, 3, 2) as other:
        for ledger in (one, other):
            await ledger.add(b"0")
        for bookie in logs.bookies:
            bookie.hold(Op.ADD)
        adding = [ledger.add_nowait(b"1") for ledger in (one, other)]
        for bookie_id in one.statistics().replication.ensemble:
            bookie = next(bookie for bookie in logs.bookies if bookie.bookie_id == bookie_id)
            await eventually(lambda bookie=bookie: bookie.packs[-1:] == [2])  # type: ignore[misc]
        assert sum(one.requests_under_way for one in client.statistics().bookies.values()) == 6
        for bookie in logs.bookies:
            bookie.release(Op.ADD)
        await asyncio.gather(*adding)
        await eventually(lambda: not any(one.requests_under_way for one in client.statistics().bookies.values()))
