"""A leader changes the quorums of a log that is a stream (rule T13), on bookies in memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from octavo.metadata.stream.model import StreamMetadata, StreamState
from octavo.metadata.updates.page_out import page_out
from octavo.protocol.errors import InvalidArgumentError, MetadataUnavailableError, OctavoError
from octavo.protocol.ids import LedgerId
from octavo.protocol.messages import Op
from octavo.protocol.quorums import Quorums
from support.clusters.log_cluster import LogCluster, collect, open_log_cluster
from support.inside import active_of
from support.metadata.interposed_store import InterposedStore
from support.metadata.metadata_clusters import MemoryCluster
from support.waiting import WAIT_SECONDS, loop_turns

import octavo


@pytest.fixture
async def logs() -> AsyncIterator[LogCluster]:
    async with open_log_cluster(MemoryCluster(Path()), "stream", 5) as made:
        yield made


def forms(stream: StreamMetadata) -> list[tuple[int, int, int]]:
    """E, Qw and Qa of each fragment."""
    return [(len(one.bookies), one.write_quorum, one.ack_quorum) for one in stream.fragments]


async def interposed_log(logs: LogCluster, **options: Any) -> tuple[octavo.Log, InterposedStore]:
    """A new log in a client of its own, and the store between the two."""
    client, store = await logs.interposed_client(**options)
    return await client.create_log("orders", layout="stream"), store


def copies(logs: LogCluster, ledger_id: int, payload: bytes) -> int:
    """How many bookies hold an entry with this payload."""
    return sum(
        any(payload in sealed for sealed in bookie.ledger(LedgerId(ledger_id)).entries.values())
        for bookie in logs.bookies
    )


async def test_each_position_is_stored_with_the_quorums_of_its_time(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add(b"three copies: 0")
        await writer.change(ensemble_size=5)
        await writer.add_many([b"of five: %d" % at for at in range(1, 6)])
        await writer.change(ensemble_size=2, write_quorum=2)
        await writer.add(b"two copies: 6")
        assert (writer.term, writer.end) == (1, 7), "it is the same leader"
    root = await logs.root()
    assert forms(root) == [(3, 3, 2), (5, 3, 2), (2, 2, 2)]
    assert [(one.term, one.first_term) for one in root.fragments] == [(2, 2), (3, 2), (4, 2)]
    assert [copies(logs, root.ledger_id, b": %d" % at) for at in range(7)] == [3, 3, 3, 3, 3, 3, 2]
    assert [entry.payload[-1:] for entry in await log.read(0, 6)] == [b"%d" % at for at in range(7)]
    assert {entry.term for entry in await log.read(0, 6)} == {1}
    status = await log.status()
    assert status.quorums == Quorums(2, 2, 2)
    assert [one.quorums for one in status.segments] == [Quorums(*form) for form in forms(root)]


async def test_later_leaders_keep_to_them(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.change(ensemble_size=4, write_quorum=4, ack_quorum=3)
    async with log.lead() as second:  # from rest, after a term without entries
        await second.add(b"0")
        await second.roll()
        await second.add(b"1")
    async with log.take_over() as third:
        await third.add(b"2")
        second_log = await (await logs.client()).open_log("orders")
        async with second_log.take_over() as fourth:  # from a leader that writes
            await fourth.add(b"3")
    assert set(forms(await logs.root())) == {(4, 4, 3)}
    assert [entry.payload for entry in await log.read(0, 3)] == [b"0", b"1", b"2", b"3"]


async def test_adds_and_a_follower_go_on_meanwhile(logs: LogCluster) -> None:
    log = await logs.log()
    changes = [{"ensemble_size": 5}, {"write_quorum": 5}, {"ack_quorum": 5}, {"ack_quorum": 1}, {"write_quorum": 1}]
    seen: list[bytes] = []

    async def follow(stop: int) -> None:
        follower = await (await logs.client()).open_log("orders")
        async with aclosing(follower.follow(0)) as entries:
            async for entry in entries:
                assert entry.position == len(seen)
                seen.append(entry.payload)
                if len(seen) == stop:
                    return

    async with log.lead() as writer:
        following = asyncio.create_task(follow(60))
        adding = [writer.add_nowait(b"%d" % at) for at in range(10)]
        for number, change in enumerate(changes, 1):
            changing = asyncio.create_task(writer.change(**change))
            for at in range(10 * number, 10 * number + 10):
                adding.append(writer.add_nowait(b"%d" % at))
                await asyncio.sleep(0)
            await changing
        assert await asyncio.gather(*adding) == list(range(60))
        await asyncio.wait_for(following, WAIT_SECONDS)
    assert seen == [b"%d" % at for at in range(60)]
    assert forms(await logs.root())[-1] == (5, 1, 1)


async def test_what_is_as_wanted_already_is_not_changed(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        before = (await logs.stored_root()).version
        await writer.change(ensemble_size=3, ack_quorum=2)
        assert (await logs.stored_root()).version == before


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({}, "at least one"),
        ({"write_quorum": 4}, "E=3, Qw=4"),
        ({"ack_quorum": 0}, "Qa=0"),
        ({"ensemble_size": 2}, "E=2, Qw=3"),
        ({"ensemble_size": 2.0}, "integer"),
    ],
)
async def test_quorums_that_cannot_be_are_refused(logs: LogCluster, change: dict[str, Any], complaint: str) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        before = (await logs.stored_root()).version
        with pytest.raises(InvalidArgumentError, match=complaint):
            await writer.change(**change)
        assert (await logs.stored_root()).version == before
        assert await writer.add(b"0") == 0


async def test_without_enough_bookies_the_present_term_serves_on(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add(b"0")
        before = (await logs.stored_root()).version
        with pytest.raises(octavo.NotEnoughBookiesError):
            await writer.change(ensemble_size=6)
        assert (await logs.stored_root()).version == before
        assert await writer.add(b"1") == 1


async def test_a_store_that_does_not_answer_holds_up_no_adds(logs: LogCluster) -> None:
    log, store = await interposed_log(logs)
    async with log.lead() as writer:
        await writer.add(b"0")
        store.make_unavailable("read_stream")
        with pytest.raises(MetadataUnavailableError):
            await writer.change(ensemble_size=5)
        assert await writer.add(b"1") == 1
        store.restore()
        await writer.change(ensemble_size=5)
        assert await writer.add(b"2") == 2


async def test_of_the_term_after_nothing_is_sent_before_all_is_acknowledged_with_the_old_quorums(
    logs: LogCluster,
) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add(b"0")
        for bookie in logs.bookies:
            bookie.hold(Op.ADD)
        old = writer.add_nowait(b"old")
        changing = asyncio.create_task(writer.change(ensemble_size=1, write_quorum=1, ack_quorum=1))
        await loop_turns(50)
        new = writer.add_nowait(b"new")
        await loop_turns(50)
        root = await logs.root()
        assert (forms(root), copies(logs, root.ledger_id, b"new")) == ([(3, 3, 2)], 0)
        for bookie in logs.bookies:
            bookie.release(Op.ADD)
        await changing
        assert [await old, await new] == [1, 2]
        assert forms(await logs.root()) == [(3, 3, 2), (1, 1, 1)]
        assert (copies(logs, root.ledger_id, b"old"), copies(logs, root.ledger_id, b"new")) == (3, 1)


async def test_a_change_whose_segment_fails_is_made_after_healing(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add(b"0")
        for bookie in logs.bookies:
            bookie.hold(Op.ADD)
        pending = writer.add_nowait(b"1")
        changing = asyncio.create_task(writer.change(ensemble_size=5))
        await loop_turns(50)
        active_of(writer).core.fail(octavo.QuorumLostError("for a test"))
        assert writer.statistics().state == "healing"
        for bookie in logs.bookies:
            bookie.release(Op.ADD)
        await asyncio.wait_for(changing, WAIT_SECONDS)
        assert await pending == 1
        assert await writer.add(b"2") == 2
        assert forms(await logs.root())[-1] == (5, 3, 2)
    assert await collect(log, 0, 3) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("stands", [True, False])
async def test_a_leader_that_dies_with_its_change_in_doubt(logs: LogCluster, stands: bool) -> None:
    """The next leader recovers the last term with the quorums of that term, whichever it is."""
    log, store = await interposed_log(logs)
    writer = await log.take_over()
    await writer.add(b"0")
    asked = asyncio.Event()

    async def unanswered(metadata: Any, expected: Any) -> Any:
        if stands:
            await store.real.compare_and_set_stream(metadata, expected)
        asked.set()
        await asyncio.Event().wait()

    store.interpose("compare_and_set_stream", unanswered)
    changing = asyncio.create_task(writer.change(ensemble_size=5, write_quorum=5, ack_quorum=4))
    await asked.wait()
    waiting = asyncio.create_task(writer.add(b"never sent"))
    await loop_turns(20)
    second_log = await (await logs.client()).open_log("orders")
    async with second_log.take_over() as second:
        wanted = (5, 5, 4) if stands else (3, 3, 2)
        assert forms(await logs.root())[-1] == wanted
        assert await second.add(b"1") == 1
    changing.cancel()
    waiting.cancel()
    await asyncio.wait([changing, waiting])
    with contextlib.suppress(octavo.NotLeaderError):  # of the add, if the writer has not heard of its end before
        await writer.close()
    assert forms(await logs.root()) == [(3, 3, 2), wanted], "the term without entries is gone"
    assert await collect(second_log, 0, 2) == [b"0", b"1"]


async def test_the_change_of_a_leader_that_was_taken_over_is_refused(logs: LogCluster) -> None:
    log = await logs.log()
    writer = await log.take_over()
    await writer.add(b"0")
    second_log = await (await logs.client()).open_log("orders")
    async with second_log.take_over() as second:
        await second.add(b"1")
        with pytest.raises(octavo.NotLeaderError):
            await writer.change(ensemble_size=5)
        assert forms(await logs.root()) == [(3, 3, 2), (3, 3, 2)]
        assert await second.add(b"2") == 2


async def test_quorums_of_positions_in_pages(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        for at in range(6):
            await writer.add(b"%d" % at)
            await writer.change(ensemble_size=5 - at % 3)
        await page_out(logs.store, (await logs.root()).ledger_id, writer_token="by hand")
    reader = await (await logs.client()).open_log("orders")
    root = await logs.stored_root()
    assert root.value.pages, "the older fragments are in a page"
    assert [entry.payload for entry in await reader.read(0, 5)] == [b"%d" % at for at in range(6)]


async def test_a_log_that_rests_with_a_change_of_its_last_leader_is_sealed_and_read(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add(b"0")
        await writer.change(ensemble_size=4)
    assert await log.seal() == 1
    root = await logs.root()
    assert root.state is StreamState.CLOSED
    assert await collect(log, 0, 1) == [b"0"]


async def test_a_writer_that_is_closed_changes_nothing(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add(b"0")
    with pytest.raises(OctavoError):
        await writer.change(ensemble_size=4)
    assert forms(await logs.root()) == [(3, 3, 2)]
