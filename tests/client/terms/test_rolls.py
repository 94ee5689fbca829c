"""Fragments that a writer begins although no bookie has failed (rule U6), on bookies in memory."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from octavo.client.terms.term_writer import TermWriter
from octavo.metadata.stream.changes import BeginTakeover
from octavo.metadata.updates.update import update_stream
from octavo.protocol.entries import header_of
from octavo.protocol.errors import MetadataUnavailableError, TermOverError
from octavo.protocol.messages import Add, Op
from octavo.protocol.places import place
from octavo.protocol.quorums import Quorums
from support.clusters.streams import StreamCluster, stream_cluster
from support.clusters.writing import PASSWORD
from support.waiting import eventually, loop_turns

THREE = Quorums(3, 3, 2)


@pytest.fixture
async def cluster() -> AsyncIterator[StreamCluster]:
    async with stream_cluster(3) as cluster:
        yield cluster


async def create(cluster: StreamCluster, **options: Any) -> TermWriter:
    return await cluster.client("first", **options).streams.create(THREE, password=PASSWORD)


def adds(cluster: StreamCluster) -> list[int]:
    """The ids in all ADDs that bookies got."""
    requests = [one for bookie in cluster.fake.bookies for one in bookie.requests if isinstance(one, Add)]
    return [header_of(entry).entry_id for one in requests for entry in one.entries]


async def test_a_roll_begins_a_fragment_behind_what_is_acknowledged(cluster: StreamCluster) -> None:
    writer = await create(cluster)
    assert not await writer.roll(), "nothing has been written"
    await writer.add_many([b"a", b"bb"])
    assert await writer.roll()
    assert not await writer.roll(), "the new fragment holds nothing"
    assert await writer.add(b"c") == 2
    await writer.close()
    stream = await cluster.stored(writer.id)
    assert [(one.first_entry_id, one.first_position, one.length_before) for one in stream.fragments] == [
        (place(1, 0), 0, 0),
        (place(1, 2), 2, 3),
    ]
    assert await cluster.held(writer.id) == [b"a", b"bb", b"c"]


async def test_on_the_same_bookies_nothing_is_sent_again_and_no_bookie_is_blamed(cluster: StreamCluster) -> None:
    writer = await create(cluster)
    await writer.add(b"a")
    for bookie in cluster.fake.bookies:
        bookie.hold(Op.ADD)
    pending = [writer.add_nowait(b"b"), writer.add_nowait(b"c")]
    await cluster.fake.bookies[0].received(Op.ADD, 2)
    assert await writer.roll()
    for bookie in cluster.fake.bookies:
        bookie.release(Op.ADD)
    assert await asyncio.gather(*pending) == [1, 2]
    stream = writer.stream
    assert [one.first_position for one in stream.fragments] == [0, 1]
    assert stream.fragments[0].bookies == stream.fragments[1].bookies
    await eventually(lambda: len(adds(cluster)) == 9)
    assert not cluster.fake.pools[0].quarantined()
    assert not any(cluster.fake.pools[0].counts.ensemble_changes.values())


async def test_other_bookies_are_used_where_there_are_some() -> None:
    async with stream_cluster(6) as cluster:
        writer = await create(cluster)
        positions = []
        for number in range(12):
            tasks = [asyncio.ensure_future(writer.add(b"%d/%d" % (number, at))) for at in range(20)]
            rolling = asyncio.ensure_future(writer.roll())
            positions += await asyncio.gather(*tasks)
            await rolling
        assert positions == list(range(240))
        await writer.close()
        stream = await cluster.stored(writer.id)
        assert len(stream.fragments) > 6
        assert len(stream.members) == 6
        assert await cluster.held(writer.id) == [b"%d/%d" % (number, at) for number in range(12) for at in range(20)]
        assert not cluster.fake.pools[0].quarantined()


async def test_nothing_is_acknowledged_until_the_change_is_known_to_stand(cluster: StreamCluster) -> None:
    writer = await create(cluster)
    await writer.add(b"a")
    answer, chosen = asyncio.Event(), asyncio.Event()
    real = cluster.fake.interposed.real

    async def slow(metadata: Any, expected: Any) -> Any:
        chosen.set()
        version = await real.compare_and_set_stream(metadata, expected)
        await answer.wait()
        return version

    cluster.fake.interposed.interpose("compare_and_set_stream", slow)
    rolling = asyncio.ensure_future(writer.roll())
    await chosen.wait()
    pending = writer.add_nowait(b"b")
    await eventually(lambda: sum(place(1, 1) in one.ledger(writer.id).entries for one in cluster.fake.bookies) == 3)
    await loop_turns(20)
    assert not pending.done()
    answer.set()
    assert await rolling
    assert await pending == 1


async def test_a_store_that_does_not_answer_delays_no_add(cluster: StreamCluster) -> None:
    writer = await create(cluster)
    await writer.add(b"a")
    for method in ("read_stream", "compare_and_set_stream", "list_bookies"):
        cluster.fake.interposed.make_unavailable(method)
    with pytest.raises(MetadataUnavailableError):
        await writer.roll()
    assert await writer.add(b"b") == 1
    cluster.fake.interposed.restore()
    assert await writer.roll()
    assert await writer.add(b"c") == 2


async def test_a_roll_whose_answer_is_lost_is_recognised(cluster: StreamCluster) -> None:
    writer = await create(cluster)
    await writer.add(b"a")
    real = cluster.fake.interposed.real
    lost: list[int] = []

    async def losing(metadata: Any, expected: Any) -> Any:
        version = await real.compare_and_set_stream(metadata, expected)
        if not lost:
            lost.append(len(metadata.fragments))
            raise MetadataUnavailableError("the answer was lost")
        return version

    cluster.fake.interposed.interpose("compare_and_set_stream", losing)
    assert await writer.roll()
    assert await writer.add(b"b") == 1
    assert (lost, len((await cluster.stored(writer.id)).fragments)) == ([2], 2)


async def test_a_takeover_that_has_begun_refuses_the_roll_and_ends_the_writer(cluster: StreamCluster) -> None:
    cluster.fake.interposed.silence("watch_stream")
    writer = await create(cluster)
    await writer.add(b"a")
    await update_stream(cluster.fake.interposed.real, writer.id, BeginTakeover(1), writer_token="rival")
    with pytest.raises(TermOverError):
        await writer.roll()
    second = await cluster.client("second").take_over(writer.id)
    assert await second.add(b"b") == 1
    with pytest.raises(TermOverError):
        await writer.roll()
    assert len((await cluster.stored(writer.id)).fragments) == 2, "no fragment of the old writer"


async def test_bookies_that_cannot_be_reached_are_no_reason_to_leave_those_that_serve() -> None:
    async with stream_cluster(4) as cluster:
        writer = await create(cluster)
        await writer.add(b"a")
        present = writer.stream.last_fragment.bookies
        (spare,) = [one for one in cluster.fake.bookies if one.bookie_id not in present]
        await spare.stop()
        for at in range(8):
            assert await writer.roll()
            assert await writer.add(b"%d" % at) == at + 1
        assert all(one.bookies == present for one in writer.stream.fragments)


async def test_a_roll_that_is_broken_off_before_its_change_leaves_the_fragment(cluster: StreamCluster) -> None:
    writer = await create(cluster)
    await writer.add(b"a")
    asked = asyncio.Event()

    async def unanswered(*_arguments: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    cluster.fake.interposed.interpose("read_stream", unanswered)
    rolling = asyncio.ensure_future(writer.roll())
    await asked.wait()
    rolling.cancel()
    await asyncio.wait([rolling])
    cluster.fake.interposed.restore()
    assert await writer.add(b"b") == 1
    assert await writer.roll()
    await writer.close()
