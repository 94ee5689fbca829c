"""A writer that replaces bookies, on bookies in memory that speak the real wire. ``b0`` to ``b2`` form the first
ensemble of every ledger here, ``b3`` and ``b4`` are spares."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from octavo.client.wire.pool import ConnectionPool
from octavo.client.write.ensemble_changes import EnsembleChanges, Phase
from octavo.client.write.pipeline import Pipeline
from octavo.client.write.writer import LedgerWriter
from octavo.metadata import BeginRecovery, update_ledger
from octavo.protocol.errors import (
    BookieInDoubtError,
    BookieOverloadedError,
    BookieReadOnlyError,
    BookieStorageError,
    InternalError,
    LedgerFencedError,
    MetadataUnavailableError,
    OctavoError,
    QuorumLostError,
)
from octavo.protocol.ids import BookieId, EntryId
from octavo.protocol.messages import Op, Ping
from support.clusters.writing import FakeCluster, fake_cluster
from support.inside import core_of
from support.waiting import WAIT_SECONDS, loop_turns

HASTY: dict[str, Any] = {"bookie_loss_seconds": 0.001}


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(5) as cluster:
        yield cluster


def fragments(ledger: LedgerWriter) -> list[tuple[int, tuple[str, ...]]]:
    return [(fragment.first_entry_id, fragment.bookies) for fragment in ledger.metadata.fragments]


async def test_a_bookie_that_is_gone_is_replaced_and_no_add_fails(cluster: FakeCluster) -> None:
    async with await cluster.writer(3, 3, 2, **HASTY) as ledger:
        await ledger.add_many([b"before"] * 12)
        await cluster.bookies[2].stop()
        after = 12
        while len(ledger.metadata.fragments) == 1:
            assert await ledger.add(b"after") == after
            after += 1
        first, bookies = fragments(ledger)[1]
        assert bookies[:2] == ("b0", "b1")
        spare = int(bookies[2][1:])
        assert spare in (3, 4)
        assert await ledger.add(b"later") == after
        # The new bookie is sent everything from the fragment's start on, and nothing below it.
        await cluster.until(lambda: cluster.held(spare, ledger.id).keys() == set(range(first, after + 1)))
    assert (await cluster.store.read_ledger(ledger.id)).value.last_entry_id == after


@pytest.mark.parametrize("quorums", [(3, 3, 3), (3, 2, 2), (3, 3, 2), (3, 2, 1), (3, 1, 1)], ids=str)
async def test_two_of_three_are_replaced_at_once_and_every_add_succeeds(
    cluster: FakeCluster, quorums: tuple[int, int, int]
) -> None:
    async with await cluster.writer(*quorums, **HASTY) as ledger:
        await ledger.add_many([b"x"] * 7)
        await asyncio.gather(cluster.bookies[0].stop(), cluster.bookies[1].stop())
        assert await ledger.add_many([b"y"] * 50) == range(7, 57)
        await cluster.until(lambda: set(ledger.metadata.last_fragment.bookies) == {"b2", "b3", "b4"})
        await ledger.add(b"z")
    last = (await cluster.store.read_ledger(ledger.id)).value
    assert last.last_entry_id == 57
    holders = [cluster.held(position, ledger.id) for position in range(5)]
    for entry_id in range(58):
        assert sum(entry_id in held for held in holders) >= quorums[2]


@pytest.mark.parametrize(
    "refusal",
    [
        BookieReadOnlyError("full", may_have_happened=False),
        BookieInDoubtError("wiped", may_have_happened=False),
        BookieStorageError("disk gone"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_bookie_that_does_not_take_adds_is_replaced_at_once(cluster: FakeCluster, refusal: OctavoError) -> None:
    cluster.bookies[1].refuse(Op.ADD, refusal)
    async with await cluster.writer(3, 3, 3, bookie_loss_seconds=1000) as ledger:
        assert await ledger.add(b"x") == 0
        assert ledger.metadata.last_fragment.bookies[1] in {"b3", "b4"}
        assert len(ledger.metadata.fragments) == 1, "a fragment in which nothing was acknowledged is replaced (rule W3)"


async def test_a_bookie_that_does_not_answer_in_time_is_replaced(cluster: FakeCluster) -> None:
    cluster.bookies[0].hold(Op.ADD)
    async with await cluster.writer(3, 3, 3, request_timeout_seconds=2.0) as ledger:
        assert await ledger.add(b"x") == 0
        assert "b0" not in ledger.metadata.last_fragment.bookies


async def test_a_registered_spare_that_is_dead_is_passed_over(cluster: FakeCluster) -> None:
    await cluster.bookies[3].stop()
    await cluster.bookies[0].stop()
    async with await cluster.writer(3, 3, 3, connect_timeout_seconds=2.0, **HASTY) as ledger:
        assert await ledger.add(b"x") == 0
        assert ledger.metadata.last_fragment.bookies == ("b4", "b1", "b2")


async def test_a_spare_that_fails_once_it_is_a_member_is_replaced_in_turn(cluster: FakeCluster) -> None:
    for spare in (3, 4):
        cluster.bookies[spare].refuse(Op.ADD, BookieStorageError("also bad"), times=1)
    async with await cluster.writer(3, 3, 3, bookie_quarantine_seconds=0.0, **HASTY) as ledger:
        await cluster.bookies[0].stop()
        assert await ledger.add(b"x") == 0


async def test_without_a_spare_the_writer_goes_on_and_says_why_when_it_cannot(cluster: FakeCluster) -> None:
    for spare in (3, 4):
        await cluster.bookies[spare].stop()
    options = {"connect_timeout_seconds": 0.5, "add_quorum_timeout_seconds": 4.0, **HASTY}
    ledger = await cluster.writer(3, 3, 2, **options)
    await cluster.bookies[0].stop()
    assert await ledger.add(b"two of three") == 0
    await cluster.bookies[1].stop()
    with pytest.raises(QuorumLostError, match=r"no bookie is available to replace.*not to be used: b3, b4") as raised:
        await ledger.add(b"one of three")
    assert raised.value.may_have_happened
    with pytest.raises(QuorumLostError):
        await ledger.close()


async def test_a_bookie_that_comes_back_before_a_spare_is_found_stays(cluster: FakeCluster) -> None:
    for spare in (3, 4):
        await cluster.bookies[spare].stop()
    async with await cluster.writer(3, 3, 3, connect_timeout_seconds=2.0, **HASTY) as ledger:
        await cluster.bookies[0].stop()
        pending = ledger.add_nowait(b"x")
        await asyncio.sleep(0)
        await cluster.bookies[0].start()
        assert await pending == 0
        assert fragments(ledger) == [(0, ("b0", "b1", "b2"))]


async def test_patience_with_a_lost_bookie_while_nothing_hangs_on_it(cluster: FakeCluster) -> None:
    async with await cluster.writer(3, 3, 2, ensemble_change_delay_seconds=1000, **HASTY) as ledger:
        await cluster.bookies[0].stop()
        for _ in range(20):
            await ledger.add(b"x")
        assert fragments(ledger) == [(0, ("b0", "b1", "b2"))]
        await cluster.bookies[1].stop()
        await ledger.add(b"now adds hang")
        assert not {"b0", "b1"} <= set(ledger.metadata.last_fragment.bookies)


async def test_an_idle_writer_changes_no_metadata(cluster: FakeCluster) -> None:
    async with await cluster.writer(3, 3, 2, **HASTY) as ledger:
        await ledger.add(b"x")
        await cluster.until(lambda: all(len(cluster.held(at, ledger.id)) == 1 for at in range(3)))
        version = (await cluster.store.read_ledger(ledger.id)).version
        await cluster.bookies[0].stop()
        await loop_turns()
        assert (await cluster.store.read_ledger(ledger.id)).version == version


async def test_a_writer_whose_ledger_is_being_recovered_finds_out_when_it_changes_the_ensemble(
    cluster: FakeCluster,
) -> None:
    cluster.interposed.silence("watch_ledger")
    ledger = await cluster.writer(3, 3, 3, **HASTY)
    await ledger.add(b"x")
    await update_ledger(cluster.store, ledger.id, BeginRecovery(), writer_token="other")
    await cluster.bookies[0].stop()
    with pytest.raises(LedgerFencedError, match="recovered by another client") as raised:
        await ledger.add(b"in doubt")
    assert raised.value.may_have_happened, "two bookies hold it, and recovery may keep it (rule W6)"
    with pytest.raises(LedgerFencedError) as raised:
        await ledger.add(b"afterwards")
    assert not raised.value.may_have_happened
    with pytest.raises(LedgerFencedError):
        await ledger.close()


async def test_nothing_is_acknowledged_while_the_metadata_do_not_answer_and_everything_afterwards(
    cluster: FakeCluster,
) -> None:
    async with await cluster.writer(3, 3, 2, **HASTY) as ledger:
        await ledger.add(b"x")
        refused = asyncio.Event()

        async def unavailable(*_arguments: Any) -> Any:
            refused.set()
            raise MetadataUnavailableError("no answer")

        cluster.interposed.interpose("compare_and_set_ledger", unavailable)
        cluster.bookies[1].hold(Op.ADD)
        await cluster.bookies[0].stop()
        pending = [ledger.add_nowait(b"y") for _ in range(5)]
        await refused.wait()
        cluster.bookies[1].release(Op.ADD)
        later = ledger.add_nowait(b"z")
        await cluster.until(lambda: len(cluster.held(1, ledger.id)) == len(cluster.held(2, ledger.id)) == 7)
        for position in (1, 2):  # answered behind the adds, so that their confirmations have arrived
            await cluster.pools[0].get(BookieId(f"b{position}")).request(Ping(), timeout_seconds=10)
        assert not any(add.done() for add in (*pending, later)), "above a first id that has been chosen (rule W1)"
        cluster.interposed.restore()
        assert [await add for add in pending] == [1, 2, 3, 4, 5]
        assert await later == 6


async def test_a_writer_that_gave_up_a_change_of_unknown_fate_closes_behind_it(
    cluster: FakeCluster,
) -> None:
    """The new fragment stands there though the answer was lost: it is the writer's own, and the end goes behind it."""
    ledger = await cluster.writer(3, 3, 2, add_quorum_timeout_seconds=3.0, **HASTY)
    await ledger.add(b"acknowledged")

    async def made_and_lost(*change: Any) -> Any:
        await cluster.interposed.real.compare_and_set_ledger(*change)
        raise MetadataUnavailableError("the answer was lost")

    cluster.interposed.interpose("compare_and_set_ledger", made_and_lost)
    cluster.interposed.make_unavailable("read_ledger")
    await asyncio.gather(cluster.bookies[0].stop(), cluster.bookies[1].stop())
    with pytest.raises(MetadataUnavailableError) as raised:
        await ledger.add(b"in doubt")
    assert raised.value.may_have_happened
    cluster.interposed.restore()
    with pytest.raises(MetadataUnavailableError):
        await ledger.close()
    closed = (await cluster.store.read_ledger(ledger.id)).value
    assert [fragment.first_entry_id for fragment in closed.fragments] == [0, 1]
    assert (closed.is_closed, closed.last_entry_id) == (True, 0)


@pytest.mark.parametrize("step", ["compare_and_set_ledger", "put_in_quarantine"])
async def test_a_defect_met_while_changing_the_ensemble_ends_the_writer(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    ledger = await cluster.writer(3, 3, 3, **HASTY)
    await ledger.add(b"x")

    def broken(*_arguments: Any) -> Any:
        raise ZeroDivisionError("a defect")

    if step == "compare_and_set_ledger":
        cluster.interposed.interpose(step, broken)
    else:
        monkeypatch.setattr(ConnectionPool, step, broken)
    await cluster.bookies[0].stop()
    await cluster.bookies[1].stop()
    with pytest.raises(InternalError, match="ZeroDivisionError: a defect") as raised:
        await asyncio.wait_for(ledger.add(b"in doubt"), WAIT_SECONDS)
    assert raised.value.may_have_happened
    cluster.interposed.restore()
    monkeypatch.undo()
    with pytest.raises(InternalError):
        await asyncio.wait_for(ledger.close(), WAIT_SECONDS)
    closed = (await cluster.store.read_ledger(ledger.id)).value
    assert (closed.is_closed, closed.last_entry_id) == (True, 0)


BROKEN_STEPS = {
    "answer": (Pipeline, "on_confirmed", 2),
    "refusal": (Pipeline, "on_failed", 3),
    "connection lost": (EnsembleChanges, "on_lost", 3),
    "end of a pause": (Pipeline, "on_ready", 3),
    "time to replace a bookie": (EnsembleChanges, "poll", 3),
}
"""Entry point of the shell -> the step of a state machine that fails there, and the ack quorum of the ledger."""


@pytest.mark.parametrize("entry", BROKEN_STEPS)
async def test_a_defect_in_any_step_ends_the_writer_and_acknowledges_nothing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    owner, step, ack_quorum = BROKEN_STEPS[entry]
    ledger = await cluster.writer(3, 3, ack_quorum, **HASTY)
    await ledger.add(b"x")

    really, calls = getattr(owner, step), 0

    def broken(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if entry == "time to replace a bookie" and calls == 1:
            return really(*arguments)  # when the connection is lost; the timer that this sets is the one to fail
        raise ZeroDivisionError("a defect")

    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
    monkeypatch.setattr(owner, step, broken)
    loses_connection = entry in {"connection lost", "time to replace a bookie"}
    if loses_connection:
        cluster.bookies[0].hold(Op.ADD)
    elif entry != "answer":
        cluster.bookies[0].refuse(Op.ADD, BookieOverloadedError("busy", may_have_happened=False))
    added = asyncio.ensure_future(ledger.add(b"in doubt"))
    if loses_connection:
        await cluster.bookies[0].received(Op.ADD, 2)
        await cluster.bookies[0].stop()
    with pytest.raises(InternalError, match="ZeroDivisionError: a defect") as raised:
        await asyncio.wait_for(added, WAIT_SECONDS)
    assert raised.value.may_have_happened
    assert reported, "the defect is reported to the event loop, too"
    assert ledger.last_add_confirmed == 0
    monkeypatch.undo()
    with pytest.raises(InternalError):
        await asyncio.wait_for(ledger.close(), WAIT_SECONDS)
    closed = (await cluster.store.read_ledger(ledger.id)).value
    assert (closed.is_closed, closed.last_entry_id) == (True, 0)


async def test_closing_waits_for_a_change_that_is_under_way(
    cluster: FakeCluster,
) -> None:
    """Rule W5: one change of the metadata at a time."""
    ledger = await cluster.writer(3, 3, 2, **HASTY)
    await ledger.add(b"x")
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(*arguments: Any) -> Any:
        begun.set()
        await go.wait()
        return await cluster.interposed.real.compare_and_set_ledger(*arguments)

    cluster.interposed.interpose("compare_and_set_ledger", slow)
    cluster.bookies[1].hold(Op.ADD)
    await cluster.bookies[0].stop()
    pending = ledger.add_nowait(b"y")
    await begun.wait()
    cluster.bookies[1].release(Op.ADD)
    closing = asyncio.ensure_future(ledger.close())
    await asyncio.sleep(0)
    go.set()
    await closing
    assert await pending == 1
    closed = (await cluster.store.read_ledger(ledger.id)).value
    assert (closed.last_entry_id, len(closed.fragments)) == (1, 2)


def looks_for_a_bookie(ledger: LedgerWriter) -> bool:
    path = core_of(ledger).path
    return path is not None and path.replication.changes.phase is Phase.SEEKING


async def test_closing_waits_for_a_change_although_no_add_waits_for_it(cluster: FakeCluster) -> None:
    """Rule W5: everything has been acknowledged while a bookie was looked for, in place of one that is gone."""
    ledger = await cluster.writer(3, 3, 2, **HASTY)
    look, begun, go = (asyncio.Event() for _ in range(3))
    real = cluster.interposed.real

    async def slow_look(*arguments: Any) -> Any:
        await look.wait()
        return await real.list_bookies(*arguments)

    async def slow_first(*arguments: Any) -> Any:
        if not begun.is_set():
            begun.set()
            await go.wait()
        return await real.compare_and_set_ledger(*arguments)

    cluster.interposed.interpose("list_bookies", slow_look)
    cluster.interposed.interpose("compare_and_set_ledger", slow_first)
    cluster.bookies[1].hold(Op.ADD)
    await cluster.bookies[0].stop()
    adding = ledger.add_nowait(b"x")
    await cluster.until(lambda: looks_for_a_bookie(ledger))
    cluster.bookies[1].release(Op.ADD)
    assert await adding == 0
    look.set()
    await asyncio.wait_for(begun.wait(), WAIT_SECONDS)
    closing = asyncio.ensure_future(ledger.close())
    await loop_turns(50)
    assert not closing.done()
    assert not (await cluster.store.read_ledger(ledger.id)).value.is_closed
    go.set()
    await closing
    closed = (await cluster.store.read_ledger(ledger.id)).value
    assert (closed.last_entry_id, len(closed.fragments)) == (0, 2)


async def test_a_bookie_that_was_replaced_is_not_chosen_again_until_it_registers_anew(cluster: FakeCluster) -> None:
    async with await cluster.writer(3, 3, 3, **HASTY) as ledger:
        pool = cluster.pools[-1]
        await cluster.bookies[0].stop()
        await ledger.add(b"x")
        assert set(pool.quarantined()) == {"b0"}
        cluster.bookies[0].restarted()
        await cluster.bookies[0].start()
        await cluster.store.register_bookie(cluster.bookies[0].registration())
        await cluster.until(lambda: not pool.quarantined())


async def test_rolling_restarts_under_load_fail_no_add(cluster: FakeCluster) -> None:
    async with await cluster.writer(3, 2, 2, bookie_quarantine_seconds=0.0, **HASTY) as ledger:
        acknowledged: list[int] = []

        async def produce() -> None:
            while not stop.is_set():
                acknowledged.append(await ledger.add(b"payload"))

        stop = asyncio.Event()
        producers = [asyncio.create_task(produce()) for _ in range(5)]
        for bookie in [*cluster.bookies, *cluster.bookies]:
            await bookie.stop()
            target = len(acknowledged) + 20
            await cluster.until(lambda target=target: len(acknowledged) >= target)  # type: ignore[misc]
            await bookie.start()
        stop.set()
        await asyncio.gather(*producers)
        assert sorted(acknowledged) == list(range(len(acknowledged)))
        assert len(ledger.metadata.fragments) > 2
    closed = (await cluster.store.read_ledger(ledger.id)).value
    assert closed.last_entry_id == len(acknowledged) - 1
    for entry_id in acknowledged:
        bookies = closed.fragment_of(EntryId(entry_id)).bookies
        held = sum(entry_id in cluster.held(int(bookie[1:]), ledger.id) for bookie in bookies)
        assert held >= 2, f"entry {entry_id} is on {held} of its bookies"


async def test_a_bookie_that_takes_adds_again_is_not_replaced_later(cluster: FakeCluster) -> None:
    for spare in (3, 4):
        await cluster.bookies[spare].stop()
    cluster.bookies[0].refuse(Op.ADD, BookieStorageError("a moment"), times=1)
    async with await cluster.writer(3, 3, 3, bookie_quarantine_seconds=0.0) as ledger:
        assert await ledger.add(b"confirmed at the second attempt") == 0
        for spare in (3, 4):
            await cluster.bookies[spare].start()
        for _ in range(10):
            await ledger.add(b"x")
        assert fragments(ledger) == [(0, ("b0", "b1", "b2"))]


async def test_what_a_replaced_bookie_answers_late_does_not_count_against_its_successor(cluster: FakeCluster) -> None:
    cluster.bookies[0].refuse(Op.ADD, BookieStorageError("disk gone"))
    cluster.bookies[0].hold(Op.ADD)
    async with await cluster.writer(3, 3, 3, bookie_loss_seconds=1000) as ledger:
        first = ledger.add_nowait(b"x")
        await cluster.bookies[0].received(Op.ADD, 1)
        second = ledger.add_nowait(b"y")
        await cluster.bookies[0].received(Op.ADD, 2)
        cluster.bookies[0].release(Op.ADD, 1)
        assert [await first, await second] == [0, 1]
        ensemble = ledger.metadata.last_fragment.bookies
        assert "b0" not in ensemble
        successor = cluster.bookies[int(ensemble[0][1:])]
        successor.hold(Op.ADD)
        third = ledger.add_nowait(b"z")
        await cluster.until(lambda: successor.held(Op.ADD) == 1)
        cluster.bookies[0].release(Op.ADD)
        # Answers come in order: once this one is here the refusal has been dealt with.
        await cluster.pools[0].get(BookieId("b0")).request(Ping(), timeout_seconds=10)
        for _ in range(1000):
            await asyncio.sleep(0)
        successor.release(Op.ADD)
        assert await third == 2
        assert ledger.metadata.last_fragment.bookies == ensemble
