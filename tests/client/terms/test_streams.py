"""Streams on bookies in memory that speak the real wire: created, written, taken over, put at rest."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from octavo.client.choose import term_ensembles as ensembles
from octavo.client.terms.own_term import OwnTerm
from octavo.client.terms.term_writer import TermWriter
from octavo.metadata.cluster.registration import split_address
from octavo.metadata.ledger.debts import NO_DEBT
from octavo.metadata.stream.model import StreamState
from octavo.metadata.updates.page_out import page_out
from octavo.protocol.entries import Sealer, derive_secrets
from octavo.protocol.errors import (
    BookieReadOnlyError,
    LedgerFencedError,
    LedgerRecoveryError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    TermOverError,
    UnauthorizedError,
)
from octavo.protocol.ids import EntryId, LedgerId
from octavo.protocol.messages import CAPABILITY_TERMS, Add, AddFlag, Op, Read, ReadFlag, ReadLac, Request
from octavo.protocol.places import place
from octavo.protocol.quorums import Quorums
from support.clusters.fake_bookie import FakeBookie
from support.clusters.streams import NOW, StreamCluster, stream_cluster
from support.clusters.writing import DIGEST, PASSWORD
from support.inside import core_of
from support.waiting import eventually

THREE = Quorums(3, 3, 2)


@pytest.fixture
async def cluster() -> AsyncIterator[StreamCluster]:
    async with stream_cluster() as cluster:
        yield cluster


async def create(cluster: StreamCluster, quorums: Quorums = THREE, **options: Any) -> TermWriter:
    return await cluster.client("first", **options).streams.create(quorums, password=PASSWORD)


def members(cluster: StreamCluster, writer: TermWriter) -> list[FakeBookie]:
    """The bookies of the last fragment that the writer knows, in its order."""
    by_id = {bookie.bookie_id: bookie for bookie in cluster.fake.bookies}
    return [by_id[name] for name in writer.stream.last_fragment.bookies]


def requests(cluster: StreamCluster) -> list[Request]:
    return [request for bookie in cluster.fake.bookies for request in bookie.requests]


async def test_what_is_written_in_three_terms_has_positions_without_a_gap(cluster: StreamCluster) -> None:
    writer = await create(cluster)
    assert (writer.term, writer.last_position) == (1, -1)
    assert await writer.add(b"a") == 0
    assert await writer.add_many([b"b", b"c"]) == range(1, 3)
    assert writer.last_position == 2
    await writer.close()
    second = await cluster.client("second").take_over(writer.id)
    assert (second.term, second.last_position) == (2, 2)
    assert (await second.add_many([])).start == 3
    future = second.add_nowait(b"d")
    await second.flush()
    assert future.result() == 3
    await second.close()
    third = await cluster.client("third").take_over(writer.id)
    assert await third.add(b"e") == 4
    await third.close()
    stream = await cluster.stored(writer.id)
    assert (stream.state, stream.term, stream.end_position, stream.length) == (StreamState.AT_REST, 3, 4, 5)
    assert [part.length_before for part in stream.fragments] == [0, 3, 4]
    assert await cluster.held(writer.id) == [b"a", b"b", b"c", b"d", b"e"]


async def test_a_takeover_from_rest_asks_no_bookie(cluster: StreamCluster) -> None:
    writer = await create(cluster)
    await writer.add(b"a")
    await writer.close()
    await cluster.client("second").take_over(writer.id)
    assert not [request for request in requests(cluster) if isinstance(request, Read | ReadLac)]


async def test_a_takeover_learns_the_time_of_the_last_entry_from_the_recovery(cluster: StreamCluster) -> None:
    """Rule P10: no request is sent for it alone, and it is the later one of the writer's clock and the client's."""
    writer = await create(cluster)
    ahead_ms = int(NOW.timestamp() * 1000) + 3_600_000
    core_of(writer).seal_not_before(ahead_ms)
    await writer.add(b"a")
    stream = await cluster.fake.store.read_stream(writer.id)
    opened = await cluster.client("second").taker.take_over(
        stream, derive_secrets(PASSWORD, writer.id), not_before_ms=None
    )
    assert opened.value.last_fragment.opened_at_ms == ahead_ms
    assert all(one.flags & ReadFlag.FENCE for one in requests(cluster) if isinstance(one, Read | ReadLac))


async def test_a_takeover_from_rest_reads_the_metadata_and_then_the_last_entry_for_its_time(
    cluster: StreamCluster,
) -> None:
    writer = await create(cluster)
    ahead_ms = int(NOW.timestamp() * 1000) + 3_600_000
    core_of(writer).seal_not_before(ahead_ms)
    await writer.add(b"a")
    await writer.close()
    stream = await cluster.fake.store.read_stream(writer.id)
    asked_before: list[int] = []

    async def read_stream(ledger_id: LedgerId) -> object:
        asked_before.append(len([one for one in requests(cluster) if isinstance(one, Read | ReadLac)]))
        return await cluster.fake.interposed.real.read_stream(ledger_id)

    cluster.fake.interposed.interpose("read_stream", read_stream)
    opened = await cluster.client("second").taker.take_over(
        stream, derive_secrets(PASSWORD, writer.id), not_before_ms=None
    )
    assert asked_before == [0], "it is shown to be current first (rule T14), and once"
    assert opened.value.last_fragment.opened_at_ms == ahead_ms
    assert {type(one) for one in requests(cluster) if isinstance(one, Read | ReadLac)} == {Read}


async def test_a_takeover_from_an_old_rest_finds_its_term_over(cluster: StreamCluster) -> None:
    """The metadata that say "at rest" are out of date: nothing is opened on top of what another client has opened."""
    writer = await create(cluster)
    await writer.add(b"a")
    await writer.close()
    old = await cluster.fake.store.read_stream(writer.id)
    second = await cluster.client("second").take_over(writer.id)
    with pytest.raises(TermOverError):
        await cluster.client("third").taker.take_over(old, derive_secrets(PASSWORD, writer.id))
    assert await second.add(b"b") == 1


async def test_a_takeover_of_an_open_stream_ends_its_writer(cluster: StreamCluster) -> None:
    writer = await create(cluster)
    await writer.add_many([b"a", b"b"])
    second = await cluster.client("second").take_over(writer.id)
    with pytest.raises(TermOverError) as failed:
        await writer.add(b"late")
    assert isinstance(failed.value, LedgerFencedError)
    assert await second.add(b"c") == 2
    await writer.close()  # its term ended where it had acknowledged, as the metadata tell
    await second.close()
    assert await cluster.held(writer.id) == [b"a", b"b", b"c"]


async def terms_of_others(cluster: StreamCluster, ledger_id: LedgerId, count: int) -> None:
    """Other clients write in so many terms, and all that is old lies in a page then."""
    for number in range(count):
        other = await cluster.client(f"other {number}").take_over(ledger_id)
        await other.add(b"x")
        await other.close()
    await page_out(cluster.fake.store, ledger_id, writer_token="w")


async def test_a_writer_that_leaves_late_learns_from_a_page_that_its_term_ended_with_its_last_entry(
    cluster: StreamCluster,
) -> None:
    """Rule T8: the end that it wanted stands, and only the page shows it."""
    cluster.fake.interposed.silence("watch_stream")
    writer = await create(cluster)
    await writer.add_many([b"a", b"b"])
    await terms_of_others(cluster, writer.id, 3)
    stream = await cluster.stored(writer.id)
    assert stream.page_of_term(1) is not None
    assert stream.end_of_term(1) is None
    await writer.close()
    assert await cluster.stored(writer.id) == stream


async def test_a_writer_that_leaves_late_and_has_sent_more_than_its_term_has_learns_that_it_is_over(
    cluster: StreamCluster,
) -> None:
    cluster.fake.interposed.silence("watch_stream")
    writer = await create(cluster)
    opened = await cluster.fake.store.read_stream(writer.id)
    await writer.add(b"a")
    await terms_of_others(cluster, writer.id, 3)
    own = OwnTerm(opened, store=cluster.fake.store, retry_seconds=0.01, clock_ms=lambda: 0)
    with pytest.raises(TermOverError):
        await own.close(EntryId(place(1, 1)), 2, NO_DEBT)


async def test_a_writer_that_leaves_late_finds_another_page_if_the_one_that_tells_is_replaced(
    cluster: StreamCluster,
) -> None:
    cluster.fake.interposed.silence("watch_stream")
    writer = await create(cluster)
    await writer.add(b"a")
    await terms_of_others(cluster, writer.id, 3)
    real = cluster.fake.interposed.real
    replaced: list[str] = []

    async def read_document(name: str) -> Any:
        if not replaced:
            replaced.append(name)
            await terms_of_others(cluster, writer.id, 2)
        return await real.read_document(name)

    cluster.fake.interposed.interpose("read_document", read_document)
    await writer.close()
    assert replaced


async def test_a_writer_that_hears_nothing_is_stopped_by_the_bookies(cluster: StreamCluster) -> None:
    cluster.fake.interposed.silence("watch_stream")
    writer = await create(cluster)
    await writer.add(b"a")
    await cluster.client("second").take_over(writer.id)
    with pytest.raises(TermOverError, match=r"bookie .* term 1") as failed:
        await writer.add(b"late")
    assert failed.value.may_have_happened


async def test_fences_name_the_term_that_is_over_and_adds_their_own(cluster: StreamCluster) -> None:
    writer = await create(cluster)
    await writer.add(b"a")
    second = await cluster.client("second").take_over(writer.id)
    await second.add(b"b")
    asked = requests(cluster)
    fences = [one for one in asked if isinstance(one, Read | ReadLac) and one.flags & ReadFlag.FENCE]
    assert {type(one) for one in fences} == {Read, ReadLac}
    assert {one.term for one in fences} == {1}
    adds = [one for one in asked if isinstance(one, Add) and not one.flags & AddFlag.RECOVERY]
    assert {one.term for one in adds} == {1, 2}


async def test_what_may_have_been_acknowledged_is_kept_with_its_place(cluster: StreamCluster) -> None:
    """The writer dies with an entry on two bookies, and has heard of one; the takeover writes it back."""
    writer = await create(cluster)
    await writer.add(b"a")
    _, silent, lacking = members(cluster, writer)
    silent.hold(Op.ADD)
    lacking.drop(Op.ADD)
    pending = writer.add_nowait(b"b")
    await eventually(lambda: place(1, 1) in silent.ledger(writer.id).entries)
    second = await cluster.client("second", request_timeout_seconds=0.2).take_over(writer.id)
    assert second.last_position == 1
    assert second.stream.last_fragment.first_entry_id == place(2, 0)
    await second.close()
    assert await cluster.held(writer.id) == [b"a", b"b"]
    with pytest.raises(TermOverError) as failed:
        await pending
    assert failed.value.may_have_happened, "and it has"
    added = [one for one in requests(cluster) if isinstance(one, Add) and one.flags & AddFlag.RECOVERY]
    assert {one.term for one in added} == {1}


async def test_bookies_replaced_while_entries_are_written_back_are_in_the_metadata(cluster: StreamCluster) -> None:
    writer = await create(cluster, Quorums(3, 3, 3))
    await writer.add(b"a")
    *_, dead = members(cluster, writer)
    old = writer.stream.last_fragment
    for bookie in cluster.fake.bookies:
        if bookie.bookie_id not in old.bookies:
            bookie.refuse(Op.ADD, BookieReadOnlyError("no spare for the writer"))
    await dead.stop()
    pending = writer.add_nowait(b"b")
    first, *_ = members(cluster, writer)
    await eventually(lambda: place(1, 1) in first.ledger(writer.id).entries)
    await cluster.fake.pools[0].close()
    for bookie in cluster.fake.bookies:
        bookie.accept(Op.ADD)
    second = await cluster.client("second", recovery_timeout_seconds=0.3).take_over(writer.id)
    parts = second.stream.fragments
    assert parts[-2].term == 1
    assert dead.bookie_id not in parts[-2].bookies
    assert await second.add(b"c") == 2
    await second.close()
    assert await cluster.held(writer.id) == [b"a", b"b", b"c"]
    pending.cancel()


async def test_a_takeover_withdraws_when_a_bookie_knows_of_a_later_term(cluster: StreamCluster) -> None:
    writer = await create(cluster)
    await writer.add(b"a")
    sealer = Sealer(writer.id, DIGEST, derive_secrets(PASSWORD, writer.id))
    for bookie in members(cluster, writer):
        bookie.ledger(writer.id).explicit = sealer.seal_explicit_lac(place(2, 0), length=2, sealed_at_ms=0)
    with pytest.raises(TermOverError, match="knows of term 2"):
        await cluster.client("second").take_over(writer.id)


async def test_of_many_that_take_over_at_once_each_term_has_one(cluster: StreamCluster) -> None:
    writer = await create(cluster)
    await writer.add(b"a")
    clients = [cluster.client(f"client {number}") for number in range(6)]
    results = await asyncio.gather(*(one.take_over(writer.id) for one in clients), return_exceptions=True)
    writers = [one for one in results if isinstance(one, TermWriter)]
    assert writers
    assert all(isinstance(one, TermWriter | TermOverError) for one in results), results
    assert len({one.term for one in writers}) == len(writers)
    last = max(writers, key=lambda one: one.term)
    position = await last.add(b"z")
    await last.close()
    assert (await cluster.held(writer.id))[position] == b"z"


async def test_a_stream_without_entries_is_taken_over_again_and_again(cluster: StreamCluster) -> None:
    writer = await create(cluster)
    for number in range(4):
        second = await cluster.client(f"client {number}").take_over(writer.id)
        assert second.term == number + 2
    assert await second.add(b"a") == 0
    await second.close()
    stream = await cluster.stored(writer.id)
    assert [part.first_entry_id for part in stream.fragments] == [place(5, 0)]


async def test_a_dead_bookie_is_replaced_while_writing_and_in_a_takeover(cluster: StreamCluster) -> None:
    writer = await create(cluster, Quorums(3, 3, 3))
    await writer.add(b"a")
    dead, *_ = members(cluster, writer)
    await dead.stop()
    await writer.add(b"b")
    assert dead.bookie_id not in writer.stream.last_fragment.bookies
    assert await writer.add(b"c") == 2
    parts = writer.stream.fragments
    assert [part.term for part in parts] == [1, 1]
    assert parts[1].first_position == parts[1].first_entry_id - place(1, 0)
    second = await cluster.client("second", recovery_timeout_seconds=0.2).take_over(writer.id)
    assert await second.add(b"d") == 3
    await second.close()
    assert await cluster.held(writer.id) == [b"a", b"b", b"c", b"d"]


async def test_with_a_dead_bookie_and_no_other_one_the_stream_goes_on() -> None:
    async with stream_cluster(3) as cluster:
        writer = await create(cluster)
        await writer.add(b"a")
        await cluster.fake.bookies[1].stop()
        second = await cluster.client("second", recovery_timeout_seconds=0.2).take_over(writer.id)
        assert await second.add(b"b") == 1
        await second.close()
        assert await cluster.held(writer.id) == [b"a", b"b"]


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("at_rest", [False, True])
async def test_a_takeover_does_not_wait_for_a_host_that_takes_connections_and_says_nothing(
    size: int, at_rest: bool
) -> None:
    """The recovery does without it, and so does the choice of the next bookies: another one, if there is one."""
    async with stream_cluster(size) as cluster:
        writer = await create(cluster)
        await writer.add(b"a")
        if at_rest:
            await writer.close()
        silent, *_ = members(cluster, writer)
        host, port = split_address(silent.address)
        await silent.stop()
        with socket.create_server((host, port)):
            client, loop = cluster.client("second"), asyncio.get_running_loop()
            started = loop.time()
            second = await client.take_over(writer.id)
            assert loop.time() - started < ensembles.REACH_SECONDS
            assert (silent.bookie_id in second.stream.last_fragment.bookies) == (size == 3)
            assert await second.add(b"b") == 1
            await second.close()


async def test_without_coverage_no_end_is_claimed(cluster: StreamCluster) -> None:
    writer = await create(cluster)
    await writer.add(b"a")
    for bookie in cluster.fake.bookies:
        await bookie.stop()
    with pytest.raises(LedgerRecoveryError):
        await cluster.client("second", recovery_timeout_seconds=0.2).take_over(writer.id)
    assert (await cluster.stored(writer.id)).state is StreamState.IN_RECOVERY


async def test_a_bookie_that_does_not_know_terms_is_not_chosen_and_its_fence_does_not_count() -> None:
    async with stream_cluster(3) as cluster:
        writer = await create(cluster)
        await writer.add(b"a")
        for bookie in cluster.fake.bookies[:2]:
            bookie.capabilities = tuple(set(bookie.capabilities) - {CAPABILITY_TERMS})
        with pytest.raises(LedgerRecoveryError, match="does not know terms"):
            await cluster.client("second", recovery_timeout_seconds=0.2).take_over(writer.id)
        with pytest.raises(NotEnoughBookiesError):
            await create(cluster)


async def test_an_opening_whose_answer_is_lost_is_recognised(cluster: StreamCluster) -> None:
    writer = await create(cluster)
    await writer.add(b"a")
    lost: list[object] = []

    async def losing(metadata: Any, expected: Any) -> Any:
        version = await cluster.fake.interposed.real.compare_and_set_stream(metadata, expected)
        if len(lost) < 2:
            lost.append(metadata.term)
            raise MetadataUnavailableError("the answer was lost")
        return version

    cluster.fake.interposed.interpose("compare_and_set_stream", losing)
    second = await cluster.client("second").take_over(writer.id)
    assert (lost, second.term) == ([1, 2], 2)
    assert await second.add(b"b") == 1


async def test_a_term_that_another_client_gave_its_end_is_begun_again(cluster: StreamCluster) -> None:
    """Between the recovery and its last change, another client's change gets in; the takeover starts over."""
    writer = await create(cluster)
    await writer.add(b"a")
    real = cluster.fake.interposed.real
    refused: list[int] = []

    async def beaten(metadata: Any, expected: Any) -> Any:
        if metadata.term == 2 and not refused:
            refused.append(metadata.term)
            stored = await real.read_stream(metadata.ledger_id)
            part = stored.value.last_fragment
            rested = stored.value.at_rest(part.first_entry_id, 1)
            await real.compare_and_set_stream(rested, stored.version)
        return await real.compare_and_set_stream(metadata, expected)

    cluster.fake.interposed.interpose("compare_and_set_stream", beaten)
    second = await cluster.client("second").take_over(writer.id)
    assert (refused, second.term, second.last_position) == ([2], 2, 0)


async def test_a_wrong_password_fences_nothing(cluster: StreamCluster) -> None:
    writer = await create(cluster)
    with pytest.raises(UnauthorizedError):
        await cluster.client("second").streams.take_over(writer.id, password=b"wrong")
    assert await writer.add(b"a") == 0


async def test_a_stream_that_is_deleted_ends_its_writer(cluster: StreamCluster) -> None:
    writer = await create(cluster)
    await writer.add(b"a")
    await cluster.fake.store.delete_ledger(writer.id)

    async def fails() -> bool:
        try:
            await writer.add(b"b")
        except NoSuchLedgerError:
            return True
        return False

    await eventually(fails)


async def test_an_idle_writer_learns_that_its_term_is_over(cluster: StreamCluster) -> None:
    writer = await create(cluster)
    await writer.add(b"a")
    await cluster.client("second").take_over(writer.id)
    await eventually(lambda: writer.statistics().state == "failed")
    with pytest.raises(TermOverError):
        writer.add_nowait(b"b")


async def test_a_client_that_lost_may_take_over_again(cluster: StreamCluster) -> None:
    writer = await create(cluster)
    old = await cluster.fake.store.read_stream(writer.id)
    await cluster.client("second").take_over(writer.id)
    third = cluster.client("third")
    with pytest.raises(TermOverError):
        await third.taker.take_over(old, derive_secrets(PASSWORD, writer.id))
    again = await third.take_over(writer.id)
    assert again.term == 3
    assert await again.add(b"a") == 0


async def test_laying_a_stream_to_rest_leaves_a_later_term_alone(cluster: StreamCluster) -> None:
    """Rule O3: a stream that another client takes over meanwhile is not abandoned."""
    writer = await create(cluster)
    await writer.add(b"a")
    old = await cluster.fake.store.read_stream(writer.id)
    second = await cluster.client("second").take_over(writer.id)
    with pytest.raises(TermOverError):
        await cluster.client("third").taker.lay_to_rest(old, derive_secrets(PASSWORD, writer.id))
    assert await second.add(b"b") == 1
    now = await cluster.fake.store.read_stream(writer.id)
    rested = await cluster.client("third").taker.lay_to_rest(now, derive_secrets(PASSWORD, writer.id))
    assert (rested.value.state, rested.value.term, rested.value.end_position) == (StreamState.AT_REST, 2, 1)
    with pytest.raises(TermOverError):
        await second.add(b"late")
    again = await cluster.client("fourth").taker.lay_to_rest(rested, derive_secrets(PASSWORD, writer.id))
    assert again == rested
