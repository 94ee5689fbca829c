"""A writer that goes on in the next term without a failed add (rule T11), on bookies in memory."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from octavo.client.options import ClientOptions
from octavo.client.terms.term import RENEWAL_OFFSET
from octavo.client.terms.term_writer import TermWriter
from octavo.metadata.stream.changes import BeginTakeover
from octavo.metadata.stream.model import StreamState
from octavo.metadata.updates.update import update_stream
from octavo.protocol.entries import header_of
from octavo.protocol.errors import (
    BookieInDoubtError,
    InvalidArgumentError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    OctavoError,
    TermOverError,
)
from octavo.protocol.messages import Add, Op
from octavo.protocol.places import OFFSET_MAX, offset_of, place, term_of
from octavo.protocol.quorums import Quorums
from support.clusters.streams import StreamCluster, stream_cluster
from support.clusters.writing import PASSWORD
from support.inside import core_of
from support.waiting import WAIT_SECONDS, eventually, loop_turns

THREE = Quorums(3, 3, 2)


@pytest.fixture
async def cluster() -> AsyncIterator[StreamCluster]:
    async with stream_cluster(3) as cluster:
        yield cluster


async def near_the_end(cluster: StreamCluster, left: int, **options: Any) -> TermWriter:
    """The writer of a new stream, whose first term is renewed after this number of places."""

    def renewal_offset(term: int) -> int:
        return left if term == 1 else RENEWAL_OFFSET

    client = cluster.client("first", renewal_offset=renewal_offset, **options)
    return await client.streams.create(THREE, password=PASSWORD)


def sent(cluster: StreamCluster) -> list[tuple[int, int]]:
    """Term and offset of the first entry of each ADD, in the order in which the first bookie got them."""
    adds = [one for one in cluster.fake.bookies[0].requests if isinstance(one, Add)]
    return [(one.term, offset_of(header_of(one.entries[0]).entry_id)) for one in adds]


def test_a_term_ends_before_its_places_do() -> None:
    """A turn of the loop sends one window at most beyond the place where the renewal begins."""
    window_max = 1_000_000
    assert ClientOptions(window_entries=window_max).window_entries == window_max
    with pytest.raises(InvalidArgumentError):
        ClientOptions(window_entries=window_max + 1)
    assert RENEWAL_OFFSET + window_max - 1 <= OFFSET_MAX


async def test_adds_go_on_in_the_next_term_at_the_next_positions(cluster: StreamCluster) -> None:
    writer = await near_the_end(cluster, 3)
    assert await writer.add_many([b"a", b"b"]) == range(2)
    # The turn that crosses the boundary is sent as it is: there are a million places behind it.
    assert await writer.add_many([b"c", b"d"]) == range(2, 4)
    assert writer.term == 1
    assert await writer.add(b"e") == 4
    assert (writer.term, writer.last_position) == (2, 4)
    assert [await writer.add(b"f%d" % at) for at in range(3)] == [5, 6, 7]
    await writer.close()
    stream = await cluster.stored(writer.id)
    assert (stream.state, stream.term, stream.end_position) == (StreamState.AT_REST, 2, 7)
    last = stream.last_fragment
    assert (last.first_entry_id, last.first_position, last.leader_term) == (place(2, 0), 4, 1)
    assert (last.length_before, stream.length) == (4, 11)
    third = await cluster.client("third").take_over(writer.id)
    assert (third.term, third.stream.last_fragment.first_term) == (3, 3)
    assert await third.add(b"g") == 8


async def test_many_adds_across_the_boundary_keep_their_order(cluster: StreamCluster) -> None:
    writer = await near_the_end(cluster, 100, window_entries=30)
    payloads = [b"%d" % at for at in range(300)]
    assert await writer.add_many(payloads) == range(300)
    assert writer.term == 2
    stored: dict[int, bytes] = {}
    for one in cluster.fake.bookies[0].requests:
        if isinstance(one, Add):
            stored |= {header_of(entry).entry_id: entry for entry in one.entries}
    places = sorted(stored)
    assert [term_of(one) for one in places] == sorted(term_of(one) for one in places)
    assert sum(term_of(one) == 2 for one in places) >= 170
    assert len(places) == 300
    await writer.close()


async def test_nothing_of_the_next_term_is_sent_before_everything_is_acknowledged(cluster: StreamCluster) -> None:
    writer = await near_the_end(cluster, 1)
    for bookie in cluster.fake.bookies:
        bookie.hold(Op.ADD)
    pending = [writer.add_nowait(b"a"), writer.add_nowait(b"b")]
    await cluster.fake.bookies[0].received(Op.ADD, 1)
    waiting = writer.add_nowait(b"c")
    flushed = asyncio.ensure_future(writer.flush())
    await loop_turns(20)
    assert (sent(cluster), writer.term, waiting.done()) == ([(1, 0)], 1, False)
    for bookie in cluster.fake.bookies:
        bookie.release(Op.ADD)
    assert await waiting == 2
    assert [one.result() for one in pending] == [0, 1]
    await flushed
    assert sent(cluster) == [(1, 0), (2, 0)]


async def test_until_the_change_is_known_to_stand_nothing_is_sent(cluster: StreamCluster) -> None:
    writer = await near_the_end(cluster, 1)
    await writer.add_many([b"a", b"b"])
    answer = asyncio.Event()
    real = cluster.fake.interposed.real

    async def slow(metadata: Any, expected: Any) -> Any:
        version = await real.compare_and_set_stream(metadata, expected)
        await answer.wait()
        return version

    cluster.fake.interposed.interpose("compare_and_set_stream", slow)
    waiting = [writer.add_nowait(b"c"), writer.add_nowait(b"d")]
    await eventually(lambda: _is_renewed(cluster, writer))
    flushed = asyncio.ensure_future(writer.flush())
    await loop_turns(20)
    assert (sent(cluster), writer.term) == ([(1, 0)], 1), "the watch has shown the next term"
    answer.set()
    assert await asyncio.gather(*waiting) == [2, 3]
    await flushed


async def _is_renewed(cluster: StreamCluster, writer: TermWriter) -> bool:
    return (await cluster.stored(writer.id)).term == 2


async def test_a_renewal_whose_answer_is_lost_is_recognised(cluster: StreamCluster) -> None:
    writer = await near_the_end(cluster, 1)
    await writer.add_many([b"a", b"b"])
    real = cluster.fake.interposed.real
    lost: list[int] = []

    async def losing(metadata: Any, expected: Any) -> Any:
        version = await real.compare_and_set_stream(metadata, expected)
        if not lost:
            lost.append(metadata.term)
            raise MetadataUnavailableError("the answer was lost")
        return version

    cluster.fake.interposed.interpose("compare_and_set_stream", losing)
    assert await writer.add(b"c") == 2
    assert (lost, writer.term, (await cluster.stored(writer.id)).term) == ([2], 2, 2)


async def test_adds_wait_while_the_store_does_not_answer(cluster: StreamCluster) -> None:
    writer = await near_the_end(cluster, 1)
    await writer.add_many([b"a", b"b"])
    cluster.fake.interposed.make_unavailable("compare_and_set_stream")
    waiting = writer.add_nowait(b"c")
    await loop_turns(50)
    assert not waiting.done()
    cluster.fake.interposed.restore()
    assert await waiting == 2


async def test_a_takeover_that_has_begun_ends_the_writer_and_the_adds_that_waited_did_not_happen(
    cluster: StreamCluster,
) -> None:
    cluster.fake.interposed.silence("watch_stream")
    writer = await near_the_end(cluster, 1)
    await writer.add_many([b"a", b"b"])
    real = cluster.fake.interposed.real
    await update_stream(real, writer.id, BeginTakeover(1), writer_token="rival")
    with pytest.raises(TermOverError) as failed:
        await writer.add(b"c")
    assert not failed.value.may_have_happened
    assert (await cluster.stored(writer.id)).term == 1


@pytest.mark.parametrize("made", [True, False])
async def test_closing_during_a_renewal_in_doubt_lays_to_rest_what_stands(cluster: StreamCluster, made: bool) -> None:
    writer = await near_the_end(cluster, 1, close_timeout_seconds=0.4)
    await writer.add_many([b"a", b"b"])
    real = cluster.fake.interposed.real

    async def unanswered(metadata: Any, expected: Any) -> Any:
        if metadata.state is StreamState.AT_REST:
            return await real.compare_and_set_stream(metadata, expected)
        if made and expected == (await real.read_stream(writer.id)).version:
            await real.compare_and_set_stream(metadata, expected)
        raise MetadataUnavailableError("no answer")

    read = real.read_stream

    async def unread(ledger_id: Any) -> Any:
        if core_of(writer).life.state.value.startswith("closing, writing"):
            return await read(ledger_id)
        raise MetadataUnavailableError("no answer")

    cluster.fake.interposed.interpose("compare_and_set_stream", unanswered)
    cluster.fake.interposed.interpose("read_stream", unread)
    waiting = writer.add_nowait(b"c")
    with pytest.raises(OctavoError):
        await writer.close()
    with pytest.raises(OctavoError) as failed:
        await waiting
    assert not failed.value.may_have_happened
    stream = (await real.read_stream(writer.id)).value
    assert (stream.state, stream.term, stream.end_position) == (
        StreamState.AT_REST,
        2 if made else 1,
        1,
    )


async def test_a_stream_deleted_meanwhile_ends_the_renewal(cluster: StreamCluster) -> None:
    cluster.fake.interposed.silence("watch_stream")
    writer = await near_the_end(cluster, 1)
    await writer.add_many([b"a", b"b"])
    await cluster.fake.interposed.real.delete_ledger(writer.id)
    with pytest.raises(NoSuchLedgerError) as failed:
        await writer.add(b"c")
    assert not failed.value.may_have_happened


async def test_a_bookie_that_refuses_the_term_for_doubt_takes_the_next_one(cluster: StreamCluster) -> None:
    """It has lost its disk, and its floor is the term (rule T12). There is no spare."""
    writer = await cluster.client("first", resend_delay_seconds=0.01).streams.create(THREE, password=PASSWORD)
    await writer.add(b"a")
    doubtful = cluster.fake.bookies[2]
    doubtful.refuse(Op.ADD, BookieInDoubtError("it has lost a disk"))
    await writer.add(b"b")
    await eventually(lambda: writer.is_refused_for_doubt)
    doubtful.accept(Op.ADD)  # as it does of term 2
    adds = [asyncio.ensure_future(writer.add(b"%d" % at)) for at in range(10)]
    await writer.renew()
    assert sorted(await asyncio.gather(*adds)) == list(range(2, 12))
    assert writer.term == 2
    assert await writer.add(b"z") == 12
    await eventually(
        lambda: (
            place(2, writer.last_position - writer.stream.last_fragment.first_position)
            in doubtful.ledger(writer.id).entries
        )
    )
    assert not writer.is_refused_for_doubt
    await writer.close()


async def test_a_writer_of_nothing_renews_and_an_empty_term_leaves_nothing(cluster: StreamCluster) -> None:
    writer = await cluster.client("first").streams.create(THREE, password=PASSWORD)
    for _ in range(3):
        await writer.renew()
    assert await writer.add(b"a") == 0
    stream = await cluster.stored(writer.id)
    assert [(one.first_entry_id, one.first_term) for one in stream.fragments] == [(place(4, 0), 1)]
    await writer.close()


async def test_a_renewal_waits_until_what_was_sent_is_acknowledged(cluster: StreamCluster) -> None:
    """The end of the term would otherwise leave out what is acknowledged a moment later."""
    writer = await cluster.client("first").streams.create(THREE, password=PASSWORD)
    for bookie in cluster.fake.bookies:
        bookie.hold(Op.ADD)
    pending = writer.add_nowait(b"a")
    await cluster.fake.bookies[0].received(Op.ADD, 1)
    renewing = asyncio.ensure_future(writer.renew())
    await loop_turns(50)
    assert (await cluster.stored(writer.id)).term == 1
    for bookie in cluster.fake.bookies:
        bookie.release(Op.ADD)
    assert await pending == 0
    await renewing
    stream = await cluster.stored(writer.id)
    assert (stream.term, stream.last_fragment.first_position) == (2, 1)
    assert await writer.add(b"b") == 1


async def test_a_writer_that_fails_while_its_renewal_looks_for_bookies_ends_the_renewal(cluster: StreamCluster) -> None:
    """The writer would never tell it that what it waits for is lost, and a leader could not heal."""
    writer = await cluster.client("first").streams.create(THREE, password=PASSWORD)
    for bookie in cluster.fake.bookies:
        bookie.hold(Op.ADD)
    pending = writer.add_nowait(b"a")
    await cluster.fake.bookies[0].received(Op.ADD, 1)
    silent = cluster.fake.bookies[2]
    silent.hello_hung = True
    silent.disconnect()
    made = silent.connections_made
    await silent.until(lambda: silent.connections_made > made)
    renewing = asyncio.ensure_future(writer.renew())
    await loop_turns(50)
    core_of(writer).fail(TermOverError("its term is over"))
    await loop_turns(50)
    assert not renewing.done(), "it waits for the bookie"
    silent.hello_hung = False
    silent.disconnect()
    async with asyncio.timeout(WAIT_SECONDS):
        await renewing
    with pytest.raises(TermOverError):
        await pending
    assert (await cluster.stored(writer.id)).term == 1
