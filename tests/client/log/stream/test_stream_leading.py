"""Leaders of a log that is a stream: they heal in new terms, renew, roll and apply the retention."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from octavo.client.client import Client
from octavo.client.log.documents.names import list_document
from octavo.client.options import ClientOptions
from octavo.metadata.stream.changes import BeginTakeover
from octavo.metadata.stream.model import StreamMetadata, StreamState
from octavo.metadata.stream.pages import pages_prefix
from octavo.metadata.updates.page_out import page_out
from octavo.metadata.updates.update import update_stream
from octavo.protocol.errors import BookieInDoubtError, MetadataUnavailableError, OctavoError
from octavo.protocol.ids import LedgerId
from octavo.protocol.messages import Op
from octavo.protocol.places import place
from support.clusters.log_cluster import QUICK, LogCluster, collect, open_log_cluster
from support.inside import active_of
from support.metadata.metadata_clusters import MemoryCluster
from support.waiting import WAIT_SECONDS, eventually, loop_turns

import octavo

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
async def logs() -> AsyncIterator[LogCluster]:
    async with open_log_cluster(MemoryCluster(Path()), "stream") as made:
        yield made


async def fail(writer: octavo.LogWriter, error: OctavoError) -> None:
    """Let the term that is written fail, as any defect or lost quorum would."""
    active_of(writer).core.fail(error)


async def test_a_leader_that_heals_stays_the_same_leader_in_the_next_term(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add(b"0")
        for number in range(1, 4):
            await fail(writer, octavo.QuorumLostError("for a test"))
            assert await writer.add(b"%d" % number) == number
        assert writer.term == 1
    root = await logs.root()
    assert [(one.term, one.first_term) for one in root.fragments] == [(2, 2), (3, 2), (4, 2), (5, 2)]
    assert root.state is StreamState.AT_REST
    assert {entry.term for entry in await log.read(0, 3)} == {1}
    async with log.lead() as second:
        assert second.term == 5
        await second.add(b"4")
    assert [entry.term for entry in await log.read(3, 4)] == [1, 5]


async def test_an_add_in_doubt_that_the_leader_sends_again_in_its_next_term_has_happened(logs: LogCluster) -> None:
    """Its term is over and ended below it; only the leader's last term tells (rule P6)."""
    log = await logs.log(log_add_timeout_seconds=0.3, resend_delay_seconds=0.01)
    async with log.lead() as writer:
        await writer.add(b"0")
        for bookie in logs.bookies:
            bookie.drop(Op.ADD)  # nothing is stored
        with pytest.raises(octavo.OctavoTimeoutError) as caught:
            await writer.add(b"late")
        assert caught.value.doubt is not None
        assert await log.outcome(caught.value) is None
        for bookie in logs.bookies:
            bookie.accept(Op.ADD)
        await fail(writer, octavo.QuorumLostError("for a test"))
        await asyncio.wait_for(writer.flush(), WAIT_SECONDS)
        root = await logs.root()
        assert (root.term, root.end_of_term(2)) == (3, root.fragments[0].first_entry_id), "its own term ended below"
        assert await log.outcome(caught.value) is True
    assert [entry.payload for entry in await log.read(0, 1)] == [b"0", b"late"]
    async with log.lead():
        assert await log.outcome(caught.value) is True


@pytest.mark.parametrize("losing", [StreamState.IN_RECOVERY, StreamState.OPEN])
async def test_a_leader_whose_takeover_from_itself_lost_an_answer_knows_its_own_term(
    logs: LogCluster, losing: StreamState
) -> None:
    await logs.log()
    client, store = await logs.interposed_client(recovery_timeout_seconds=0.05)
    log = await client.open_log("orders")
    lost: list[int] = []

    async def unanswered(metadata: Any, expected: Any) -> Any:
        version = await store.real.compare_and_set_stream(metadata, expected)
        if metadata.state is losing and len(lost) < 3:
            lost.append(metadata.term)
            # So often that this takeover gives up, and the next one finds a term that no answer has told of.
            store.make_unavailable("read_stream")
            store.make_unavailable("compare_and_set_stream")
            asyncio.get_running_loop().call_later(0.1, store.restore)
            raise MetadataUnavailableError("the answer was lost")
        return version

    async with log.lead() as writer:
        await writer.add(b"0")
        store.interpose("compare_and_set_stream", unanswered)
        await fail(writer, octavo.QuorumLostError("for a test"))
        assert await asyncio.wait_for(writer.add(b"1"), WAIT_SECONDS) == 1
        assert lost
        assert not writer.lost.is_set()
    assert await collect(log, 0, 2) == [b"0", b"1"]


@pytest.mark.parametrize("given_up", ["renewal", "takeover"])
async def test_a_term_that_a_leader_gave_up_opening_and_that_stands_after_all_is_no_rivals(
    logs: LogCluster, given_up: str
) -> None:
    """The request arrives when the leader takes over from itself already, from the term before."""
    await logs.log()
    client, store = await logs.interposed_client(recovery_timeout_seconds=0.05)
    log = await client.open_log("orders")
    sent = asyncio.Event()
    late: list[tuple[StreamMetadata, Any]] = []

    async def delayed(metadata: StreamMetadata, expected: Any) -> Any:
        if metadata.term == 3 and not sent.is_set():
            late.append((metadata, expected))
            sent.set()
            raise MetadataUnavailableError("it is on its way")
        if late:
            if metadata.owner == late[0][0].owner:
                raise MetadataUnavailableError("it is on its way")
            await store.real.compare_and_set_stream(*late.pop())
        return await store.real.compare_and_set_stream(metadata, expected)

    async with log.lead() as writer:
        await writer.add(b"0")
        store.interpose("compare_and_set_stream", delayed)
        if given_up == "renewal":
            renewing = asyncio.ensure_future(active_of(writer).term.renew())  # type: ignore[attr-defined]
            await asyncio.wait_for(sent.wait(), WAIT_SECONDS)
        await fail(writer, octavo.QuorumLostError("for a test"))
        assert await asyncio.wait_for(writer.add(b"1"), WAIT_SECONDS) == 1
        if given_up == "renewal":
            await renewing
        assert sent.is_set()
        assert not late
        assert not writer.lost.is_set()
    assert await collect(log, 0, 2) == [b"0", b"1"]
    assert {entry.term for entry in await log.read(0, 1)} == {1}


async def test_a_rival_that_was_quicker_ends_the_leader_and_its_adds_are_told_apart(logs: LogCluster) -> None:
    log = await logs.log()
    other = await (await logs.client()).open_log("orders")
    old = await log.take_over()
    await old.add(b"0")
    for bookie in logs.bookies:
        bookie.hold(Op.ADD)
    pending = asyncio.ensure_future(old.add(b"stored by all"))
    await logs.bookies[0].received(Op.ADD, 2)
    taking = asyncio.ensure_future(other.take_over().__aenter__())
    await eventually(lambda: all(bookie.held(Op.ADD) == 2 for bookie in logs.bookies))  # its copies are written back
    await eventually(lambda: old.statistics().state == "healing")
    for bookie in logs.bookies:
        bookie.release(Op.ADD)
    async with await taking as new:
        with pytest.raises(octavo.NotLeaderError) as caught:
            await pending
        assert caught.value.may_have_happened
        assert await new.add(b"2") == 2
    assert await log.outcome(caught.value) is True
    assert await collect(other, 0, 3) == [b"0", b"stored by all", b"2"]


async def test_a_takeover_that_another_client_begins_and_does_not_end_is_ended_by_the_leader(
    logs: LogCluster,
) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add(b"0")
        root = await logs.root()
        await update_stream(logs.store, root.ledger_id, BeginTakeover(root.term), writer_token="rival")
        assert await asyncio.wait_for(writer.add(b"1"), WAIT_SECONDS) == 1
        assert not writer.lost.is_set()


async def test_adds_go_on_across_a_renewal(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        active: Any = active_of(writer)
        segment = active.term
        adds = [asyncio.ensure_future(writer.add(b"%d" % number)) for number in range(50)]
        await loop_turns(1)
        renewing = asyncio.ensure_future(segment.renew())
        adds += [asyncio.ensure_future(writer.add(b"%d" % number)) for number in range(50, 100)]
        assert await asyncio.gather(*adds) == list(range(100))
        await renewing
        assert await writer.add(b"100") == 100
        assert (segment.term, writer.term) == (3, 1)
        assert [entry.payload for entry in await log.read(98, 100)] == [b"98", b"99", b"100"]
    assert {entry.term for entry in await log.read(0, 100)} == {1}


async def test_a_bookie_that_refuses_the_term_for_doubt_is_got_back_by_a_renewal(logs: LogCluster) -> None:
    """There is no spare. The bookie takes the next term, as one does whose floor is the present one (rule T12)."""
    log = await logs.log(log_retention_seconds=0.02, resend_delay_seconds=0.01)
    async with log.lead() as writer:
        await writer.add(b"0")
        active: Any = active_of(writer)
        segment = active.term
        doubtful = logs.bookies[2]
        doubtful.refuse(Op.ADD, BookieInDoubtError("it has lost a disk"))
        await writer.add(b"1")
        await eventually(lambda: segment.term > 2)
        assert (await logs.root()).last_fragment.first_term == 2
        doubtful.accept(Op.ADD)
        await eventually(lambda: not segment.is_refused_for_doubt)
        term = segment.term
        assert await writer.add(b"2") == 2
        await eventually(lambda: place(term, 0) in doubtful.ledger(segment.core.id).entries)
        assert (segment.term, writer.term) == (term, 1), "there is no reason for another one"


async def test_a_log_rolls_by_size_and_by_age_and_adds_go_on(logs: LogCluster) -> None:
    log = await logs.log(log_segment_bytes=1000, log_segment_seconds=0.05)
    async with log.lead() as writer:
        count = 0
        while len((await logs.root()).fragments) < 5:
            assert await writer.add(b"x" * 100) == count
            count += 1
        await eventually(lambda: not writer.statistics().is_rolling)
        active = active_of(writer)
        assert active.core.length_pushed == 100 * count, "of all fragments"
        assert active.full_at == (await logs.root()).last_fragment.length_before + 1000
        sizes = [one.length_before for one in (await logs.root()).fragments]
        assert all(later > before for before, later in pairwise(sizes))
        await writer.add(b"y")
        many = len((await logs.root()).fragments)
        await eventually(lambda: _has_fragments(logs, many + 1))
        many = len((await logs.root()).fragments)
        assert await writer.add(b"z") == count + 1
    assert [entry.position for entry in await log.read(0, count + 1)] == list(range(count + 2))


async def _has_fragments(logs: LogCluster, count: int) -> bool:
    return len((await logs.root()).fragments) >= count


async def test_the_leader_applies_the_retention(logs: LogCluster) -> None:
    client = await logs.client(log_retention_seconds=0.01)
    log = await client.create_log("orders", retention=octavo.Retention(bytes=250), layout="stream")
    async with log.lead() as writer:
        for number in range(10):
            await writer.add(b"x" * 100)
            await writer.roll()
            assert writer.end == number + 1
        await eventually(lambda: _begins_at(log, 8))
        root = await logs.root()
        assert (root.start, root.last_fragment.first_position) == (8, 10)


async def _begins_at(log: octavo.Log, position: int) -> bool:
    await log.refresh()
    return log.first_position == position


async def test_a_stream_that_was_deleted_by_hand_ends_the_leader(logs: LogCluster) -> None:
    log = await logs.log()
    writer = await log.take_over()
    await writer.add(b"0")
    (ledger_id,) = await logs.ledgers()
    await logs.store.delete_ledger(LedgerId(ledger_id))
    await asyncio.wait_for(writer.lost.wait(), WAIT_SECONDS)
    with pytest.raises(octavo.LogDamagedError, match="deleted by hand"):
        await writer.add(b"1")


async def test_the_stream_of_a_log_is_deleted_with_its_log_and_with_its_pages(logs: LogCluster) -> None:
    log = await logs.log()
    client = await logs.client()
    for number in range(3):
        async with log.lead() as writer:
            await writer.add(b"%d" % number)
    (ledger_id,) = await logs.ledgers()
    await page_out(logs.store, LedgerId(ledger_id), writer_token="test")
    assert await pages_of(logs, ledger_id)
    with pytest.raises(octavo.LedgerKindError, match="the stream of log orders"):
        await client.delete_ledger(ledger_id)
    assert await collect(log, 0, 3) == [b"0", b"1", b"2"]
    await logs.store.delete_document(list_document("orders"))
    await client.delete_ledger(ledger_id)  # nothing else would
    assert not await logs.ledgers()
    assert not await pages_of(logs, ledger_id)


async def pages_of(logs: LogCluster, ledger_id: int) -> list[str]:
    return [name async for name in logs.store.list_documents(pages_prefix(LedgerId(ledger_id)))]


def clock(start: datetime) -> Callable[[], datetime]:
    """A clock that goes on by a millisecond each time it is read."""
    times = iter(start + timedelta(milliseconds=at) for at in range(1_000_000))
    return lambda: next(times)


async def test_times_do_not_fall_from_leader_to_leader_although_the_clocks_differ(logs: LogCluster) -> None:
    """The second leader adds nothing, and truncates what the first one has added."""
    for number, start in enumerate((NOON, NOON - timedelta(hours=1), NOON - timedelta(hours=2))):
        client = Client(
            await logs.metadata.open(),
            cluster_id=logs.cluster_id,
            options=ClientOptions(**QUICK),
            rng=random.Random(number),
            wall_clock=clock(start),
        )
        async with client:
            log = await (client.open_log("orders") if number else client.create_log("orders", layout="stream"))
            async with log.lead() as writer:
                if number == 1:
                    await log.truncate(before=await log.refresh())
                    continue
                for _ in range(3):
                    await writer.add(b"x")
                    await writer.roll()
                    await fail(writer, octavo.QuorumLostError("for a test"))
                    await writer.add(b"x")
            (last, *_, newest) = await log.read(log.first_position, await log.refresh() - 1)
            assert last.sealed_at >= NOON
            assert newest.sealed_at >= last.sealed_at
    assert len((await logs.root()).fragments) >= 2


async def test_times_do_not_fall_when_a_leader_whose_clock_was_set_back_heals(logs: LogCluster) -> None:
    """Rule P10: the next term takes the time of the one before, of which nothing is read: bookies know its end."""
    now = [NOON]
    client = Client(
        await logs.metadata.open(),
        cluster_id=logs.cluster_id,
        options=ClientOptions(**QUICK),
        rng=random.Random(1),
        wall_clock=lambda: now[0],
    )
    async with client:
        log = await client.create_log("orders", layout="stream")
        async with log.lead() as writer:
            for number in range(3):
                now[0] = NOON + timedelta(hours=number + 1)  # later than the term was opened
                await writer.add(b"%d" % number)
                await eventually(logs.ends_are_known)
                now[0] = NOON
                await fail(writer, octavo.QuorumLostError("for a test"))
                await writer.add(b"again")
        hours = [(entry.sealed_at - NOON) / timedelta(hours=1) for entry in await log.read(0, 5)]
        assert hours == [1, 1, 2, 2, 3, 3]


async def test_a_leader_that_closes_ends_no_term_of_another(logs: LogCluster) -> None:
    """Its own was taken over and is over, and the next one is being taken over."""
    log = await logs.log()
    client, store = await logs.interposed_client()
    store.silence("watch_stream")
    leading = await client.open_log("orders")
    old = await leading.lead()
    async with log.take_over() as writer:
        await writer.add(b"0")
        stream = await logs.stored_root()
        await update_stream(logs.store, stream.value.ledger_id, BeginTakeover(stream.value.term), writer_token="third")
        await old.close()
        assert (await logs.root()).state is StreamState.IN_RECOVERY


async def test_a_handle_that_knows_only_an_old_term_takes_over(logs: LogCluster) -> None:
    log = await logs.log()
    old = await (await logs.client()).open_log("orders")
    for number in range(3):
        async with (await logs.client()).open_log("orders") as other, other.take_over() as leader:
            assert await leader.add(b"x") == number
    async with old.take_over() as writer:
        assert await writer.add(b"y") == 3
    assert await collect(log, 0, 4) == [b"x", b"x", b"x", b"y"]
