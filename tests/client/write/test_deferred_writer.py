"""The writer of a ledger with deferred sync (rule W10), on bookies in memory that speak the real wire and forget what
was not forced when they restart. ``b0`` to ``b2`` form the first ensemble, ``b3`` is a spare."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from octavo.client.write.writer import LedgerWriter
from octavo.metadata.ledger.model import LedgerState, SyncMode
from octavo.protocol.entries import header_of
from octavo.protocol.errors import (
    BookieOverloadedError,
    BookieStorageError,
    LedgerClosedError,
    LedgerFencedError,
    OctavoError,
    QuorumLostError,
    UnsupportedOperationError,
    WouldBlock,
)
from octavo.protocol.messages import Add, AddFlag, Op
from support.clusters.writing import FakeCluster, fake_cluster
from support.waiting import WAIT_SECONDS, loop_turns

NEVER: dict[str, Any] = {"force_interval_seconds": 1000.0}
"""The writer does not force by itself, but for want of room."""


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(4) as cluster:
        yield cluster


async def deferred(cluster: FakeCluster, *sizes: int, **options: Any) -> LedgerWriter:
    return await cluster.writer(*(sizes or (3, 3, 2)), sync=SyncMode.DEFERRED, **(NEVER | options))


def confirmed(ledger: LedgerWriter, last: int) -> bool:
    return ledger.last_add_confirmed == last


def unforced(cluster: FakeCluster, ledger: LedgerWriter) -> list[set[int]]:
    return [bookie.ledger(ledger.id).unforced for bookie in cluster.bookies[:3]]


async def test_add_returns_when_accepted_and_force_when_durable(cluster: FakeCluster) -> None:
    async with await deferred(cluster) as ledger:
        assert await ledger.add_many([b"a", b"b"]) == range(2)
        await ledger.flush()
        assert (ledger.last_add_confirmed, ledger.length) == (None, 0)
        assert sum({0, 1} <= ids for ids in unforced(cluster, ledger)) >= 2
        await ledger.force()
        assert (ledger.last_add_confirmed, ledger.length) == (1, 2)
        assert sum(not ids for ids in unforced(cluster, ledger)) >= 2
        await ledger.add(b"c")
        request = next(one for one in reversed(cluster.bookies[0].requests) if isinstance(one, Add))
        assert request.flags == AddFlag.DEFERRED_SYNC
        assert header_of(request.entries[0]).last_add_confirmed_plus_one == 2, "the LAC is what is forced"
    assert (await cluster.store.read_ledger(ledger.id)).value.last_entry_id == 2


async def test_force_covers_adds_that_have_not_been_sent_and_those_that_wait_for_room(cluster: FakeCluster) -> None:
    async with await deferred(cluster, window_entries=2) as ledger:
        adds = [asyncio.ensure_future(ledger.add(b"%d" % number)) for number in range(9)]
        await loop_turns(1)
        await ledger.force()
        assert ledger.last_add_confirmed == 8
        assert [add.result() for add in adds] == list(range(9))


async def test_force_of_nothing_and_of_what_is_forced_asks_no_bookie(cluster: FakeCluster) -> None:
    async with await deferred(cluster) as ledger:
        await ledger.force()
        await ledger.add(b"x")
        await ledger.force()
        await cluster.until(lambda: all(bookie.count(Op.FORCE) == 1 for bookie in cluster.bookies[:3]))
        await ledger.force()
        assert [bookie.count(Op.FORCE) for bookie in cluster.bookies] == [1, 1, 1, 0]


async def test_forces_at_the_same_time_all_return_and_a_cancelled_one_disturbs_none(cluster: FakeCluster) -> None:
    cluster.bookies[0].hold(Op.FORCE)
    cluster.bookies[1].hold(Op.FORCE)
    async with await deferred(cluster) as ledger:
        await ledger.add(b"x")
        forces = [asyncio.ensure_future(ledger.force()) for _ in range(3)]
        await cluster.until(lambda: cluster.bookies[0].held(Op.FORCE) > 0)
        forces[0].cancel()
        await loop_turns(2)
        assert not any(force.done() for force in forces[1:])
        cluster.bookies[0].release(Op.FORCE)
        cluster.bookies[1].release(Op.FORCE)
        await asyncio.gather(*forces[1:])


async def test_crash_of_every_bookie_loses_nothing_that_the_writer_has_added(cluster: FakeCluster) -> None:
    async with await deferred(cluster, 3, 3, 3, bookie_loss_seconds=1000) as ledger:
        await ledger.add_many([b"x"] * 5)
        await ledger.force()
        await ledger.add_many([b"y"] * 5)
        for bookie in cluster.bookies[:3]:
            await bookie.stop()
            bookie.restarted()
            assert set(bookie.ledger(ledger.id).entries) == set(range(5))
        for bookie in cluster.bookies[:3]:
            await bookie.start()
        await ledger.force()
        for position in range(3):
            assert list(cluster.held(position, ledger.id)) == list(range(10))
        assert unforced(cluster, ledger) == [set(), set(), set()]


async def test_force_that_a_restarted_bookie_would_answer_does_not_count(cluster: FakeCluster) -> None:
    async with await deferred(cluster, 3, 3, 3, bookie_loss_seconds=1000) as ledger:
        await ledger.add(b"x")
        cluster.bookies[1].hold(Op.ADD)  # what is sent again is not confirmed
        cluster.bookies[1].restarted()
        cluster.bookies[1].disconnect()
        force = asyncio.ensure_future(ledger.force())
        await cluster.bookies[1].until(lambda: cluster.bookies[1].held(Op.ADD) > 0)
        await cluster.until(lambda: cluster.bookies[0].count(Op.FORCE) == cluster.bookies[2].count(Op.FORCE) == 1)
        await loop_turns(5)
        assert (force.done(), cluster.bookies[1].count(Op.FORCE)) == (False, 0)
        cluster.bookies[1].release(Op.ADD)
        await force


async def test_replaced_bookie_is_made_up_for_with_everything_that_is_not_forced(cluster: FakeCluster) -> None:
    async with await deferred(cluster, 3, 3, 3, bookie_loss_seconds=0.001) as ledger:
        await ledger.add_many([b"x"] * 3)
        await ledger.force()
        await ledger.add_many([b"y"] * 4)
        await cluster.bookies[0].stop()
        await ledger.force()
        assert [fragment.first_entry_id for fragment in ledger.metadata.fragments] == [0, 3]
        assert ledger.metadata.last_fragment.bookies == ("b3", "b1", "b2")
        assert list(cluster.held(3, ledger.id)) == [3, 4, 5, 6]
        assert cluster.bookies[3].ledger(ledger.id).unforced == set()


async def test_idle_writer_replaces_a_bookie_that_has_what_is_not_forced(cluster: FakeCluster) -> None:
    async with await deferred(cluster, bookie_loss_seconds=0.001) as ledger:
        await ledger.add(b"x")
        await cluster.bookies[2].stop()
        await cluster.until(lambda: list(cluster.held(3, ledger.id)) == [0])


async def test_lac_follows_although_no_caller_forces(cluster: FakeCluster) -> None:
    async with await deferred(cluster, force_interval_seconds=0.01) as ledger:
        for number in range(3):
            await ledger.add(b"x")
            await cluster.until(partial(confirmed, ledger, number))
        # And the bookies learn it, though no entry follows.
        await cluster.bookies[0].until(lambda: cluster.bookies[0].ledger(ledger.id).explicit is not None)


async def test_adds_wait_while_too_much_is_unforced_and_the_writer_forces_by_itself(cluster: FakeCluster) -> None:
    for bookie in cluster.bookies[:3]:
        bookie.hold(Op.FORCE)
    async with await deferred(cluster, unforced_bytes_max=2000, window_entries=5) as ledger:
        adds = [asyncio.ensure_future(ledger.add(bytes(100))) for _ in range(60)]
        await cluster.until(lambda: cluster.bookies[0].held(Op.FORCE) > 0)
        await cluster.until(lambda: ledger.last_add_pushed is not None and ledger.last_add_pushed > 10)
        await loop_turns(20)
        pushed = ledger.last_add_pushed
        assert pushed is not None
        assert pushed * 100 < 2000 + 2 * 5 * 200, "the bound, and the window above it"
        assert not all(add.done() for add in adds)
        with pytest.raises(WouldBlock):
            ledger.add_nowait(b"x")
        for bookie in cluster.bookies[:3]:
            bookie.release(Op.FORCE)
        assert await asyncio.gather(*adds) == list(range(60))


async def test_close_forces_first(cluster: FakeCluster) -> None:
    ledger = await deferred(cluster)
    await ledger.add_many([b"x"] * 3)
    await ledger.close()
    closed = (await cluster.store.read_ledger(ledger.id)).value
    assert (closed.state, closed.last_entry_id, closed.sync) == (LedgerState.CLOSED, 2, SyncMode.DEFERRED)
    assert sum(not ids for ids in unforced(cluster, ledger)) >= 2
    await ledger.force()
    with pytest.raises(LedgerClosedError):
        await ledger.add(b"late")


async def test_close_that_cannot_force_ends_the_ledger_below_and_says_so(cluster: FakeCluster) -> None:
    ledger = await deferred(cluster, close_timeout_seconds=2.0)
    await ledger.add(b"forced")
    await ledger.force()
    for bookie in cluster.bookies:
        bookie.hold(Op.FORCE)
    await ledger.add(b"accepted")
    with pytest.raises(QuorumLostError):
        await ledger.close()
    assert (await cluster.store.read_ledger(ledger.id)).value.last_entry_id == 0
    with pytest.raises(QuorumLostError):
        await ledger.force()


async def test_bookie_without_the_capability_is_one_clear_error(cluster: FakeCluster) -> None:
    cluster.bookies[1].capabilities = ("repair",)
    ledger = await deferred(cluster)
    with pytest.raises(UnsupportedOperationError, match="bookie b1 runs a version without deferred sync") as raised:
        await ledger.add(b"x")
    assert not raised.value.retryable
    with pytest.raises(UnsupportedOperationError):
        await ledger.close()
    assert cluster.bookies[1].count(Op.ADD) == 0


async def test_busy_bookie_is_forced_again(cluster: FakeCluster) -> None:
    for bookie in cluster.bookies[:3]:
        bookie.refuse(Op.FORCE, BookieOverloadedError("busy"), times=1)
    async with await deferred(cluster, 3, 3, 3) as ledger:
        await ledger.add(b"x")
        await ledger.force()
        assert len(ledger.metadata.fragments) == 1


async def test_bookie_that_cannot_force_is_replaced(cluster: FakeCluster) -> None:
    cluster.bookies[0].refuse(Op.FORCE, BookieStorageError("no disk"))
    async with await deferred(cluster, 3, 3, 3, bookie_loss_seconds=1000) as ledger:
        await ledger.add(b"x")
        await ledger.force()
        assert ledger.metadata.last_fragment.bookies == ("b3", "b1", "b2")


async def test_bookie_that_does_not_answer_a_force_is_replaced(cluster: FakeCluster) -> None:
    cluster.bookies[0].drop(Op.FORCE)
    async with await deferred(cluster, 3, 3, 3, request_timeout_seconds=0.5) as ledger:
        await ledger.add(b"x")
        await ledger.force()
        assert ledger.metadata.last_fragment.bookies[0] == "b3"


async def test_fenced_writer_learns_it_from_a_force_and_reports_what_it_cannot_keep(cluster: FakeCluster) -> None:
    ledger = await deferred(cluster)
    await ledger.add(b"x")
    for bookie in cluster.bookies[:3]:
        bookie.fence(ledger.id)
    with pytest.raises(LedgerFencedError):
        await ledger.force()
    with pytest.raises(LedgerFencedError):
        await ledger.add(b"y")
    with pytest.raises(OctavoError):
        await ledger.close()


@pytest.mark.parametrize("adds", [True, False], ids=["adds-before", "nothing-added-since"])
async def test_force_that_misses_the_quorum_timeout_fails_the_writer_and_waiting_alone_does_not(
    cluster: FakeCluster, adds: bool
) -> None:
    for bookie in cluster.bookies:
        bookie.hold(Op.FORCE)
    ledger = await deferred(cluster, add_quorum_timeout_seconds=0.5)
    await ledger.add(b"x")
    # The timeout passes, and no caller has asked for a force.
    loop = asyncio.get_running_loop()
    passed_at = loop.time() + 0.5
    await cluster.until(lambda: loop.time() > passed_at)
    await loop_turns(2)
    if adds:
        await ledger.add(b"y")
    with pytest.raises(QuorumLostError):
        await asyncio.wait_for(ledger.force(), WAIT_SECONDS)
    with pytest.raises(OctavoError):
        await ledger.close()


async def test_force_of_an_ordinary_ledger_waits_for_its_adds(cluster: FakeCluster) -> None:
    async with await cluster.writer() as ledger:
        add = asyncio.ensure_future(ledger.add(b"x"))
        await loop_turns(1)
        await ledger.force()
        assert (add.done(), ledger.last_add_confirmed) == (True, 0)
        assert cluster.bookies[0].count(Op.FORCE) == 0


@pytest.mark.parametrize("sizes", [(3, 2, 2), (3, 2, 1), (3, 1, 1)], ids=str)
async def test_striped_ledger_is_forced_and_survives_restarts(
    cluster: FakeCluster, sizes: tuple[int, int, int]
) -> None:
    async with await deferred(cluster, *sizes, bookie_loss_seconds=1000) as ledger:
        for number in range(10):
            await ledger.add(b"%d" % number)
            if number % 4 == 1:
                bookie = cluster.bookies[number % 3]
                bookie.restarted()
                bookie.disconnect()
        await ledger.force()
        assert ledger.last_add_confirmed == 9
        lost = unforced(cluster, ledger)
        holders = [cluster.held(position, ledger.id).keys() - lost[position] for position in range(3)]
        for entry_id in range(10):
            assert sum(entry_id in held for held in holders) >= sizes[2]
