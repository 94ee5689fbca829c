"""Accepting a loss: only for a ledger that is blocked, only without bookies that never come back (rule O4)."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from octavo.client.terms.term_writer import TermWriter
from octavo.metadata import LedgerState
from octavo.metadata.cluster.repair_states import BookieCondition, Condition, RepairStates
from octavo.metadata.stream.model import StreamState
from octavo.metadata.updates.garbage_hold import GarbageHold, set_hold
from octavo.protocol.errors import LedgerRecoveryError, UnauthorizedError
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import Op
from octavo.protocol.places import place
from octavo.protocol.quorums import Quorums
from octavo.repair.base.documents import AcceptedLoss, accepted_name
from octavo.repair.operate.accept_loss import SILENT_AFTER_SECONDS, BlockedRecovery
from octavo.repair.operate.operators import RepairRefusedError, change_states
from support.clusters.reading import QUICK, Cluster, HandmadeLedger, cluster_of
from support.clusters.streams import StreamCluster, stream_cluster
from support.clusters.writing import PASSWORD, FakeCluster
from support.metadata.metadata_clusters import cookie

B0, B1, B2 = BookieId("b0"), BookieId("b1"), BookieId("b2")


@asynccontextmanager
async def recovery_of(
    cluster: Cluster, ledger: HandmadeLedger, password: bytes = b"", timeout_seconds: float = 0.2
) -> AsyncIterator[BlockedRecovery]:
    recovery = BlockedRecovery(
        cluster.store, ledger.id, password, await cluster.store.cluster_id(),
        replace(QUICK, recovery_timeout_seconds=timeout_seconds, request_timeout_seconds=timeout_seconds),
    )  # fmt: skip
    try:
        yield recovery
    finally:
        await recovery.close()


async def set_condition(cluster: Cluster | FakeCluster, condition: Condition, *names: BookieId) -> None:
    def change(states: RepairStates) -> RepairStates:
        for name in names:
            states = states.with_bookie(name, BookieCondition(condition, 0))
        return states

    await change_states(cluster.store, change)
    if condition is Condition.RETIRED:
        for name in names:
            await unregister(cluster, name)


async def unregister(cluster: Cluster | FakeCluster, name: BookieId) -> None:
    """No retired bookie is registered."""
    found = (await cluster.store.list_bookies()).get(name)
    if found is not None:
        await (await cluster.store.register_bookie(found)).release()


async def blocked_ledger(cluster: Cluster) -> HandmadeLedger:
    """Two of three bookies are gone for good; entries 0 to 4 were acknowledged, 5 and 6 may have been."""
    ledger = await cluster.ledger()
    ledger.add_numbered(5)
    ledger.add(b"5", b"6", confirmed=4)
    for entry_id in (5, 6):
        cluster.bookie("b2").forget(ledger.id, entry_id)
    await cluster.bookie("b0").stop()
    await cluster.bookie("b1").stop()
    return ledger


async def test_a_blocked_ledger_is_closed_without_bookies_that_are_retired_and_that_is_recorded() -> None:
    async with cluster_of(5) as cluster:
        ledger = await blocked_ledger(cluster)
        await set_condition(cluster, Condition.RETIRED, B0, B1)
        async with recovery_of(cluster, ledger) as recovery:
            assert "b0" in await recovery.check([B0, B1])
            closed = await recovery.accept([B0, B1], reason="fire", now_ms=5)
        assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, 4)
        found = await cluster.store.read_document(accepted_name(ledger.id))
        assert found is not None
        assert AcceptedLoss.decode(found.value, "x") == AcceptedLoss(ledger.id, (B0, B1), 5, 4, "fire")
        assert cluster.bookie("b2").ledger(ledger.id).fenced


async def test_no_loss_is_accepted_while_the_metadata_may_be_older_than_the_data() -> None:
    """Rule D5: bookies that older metadata do not name may have what seems lost."""
    async with cluster_of(5) as cluster:
        ledger = await blocked_ledger(cluster)
        await set_condition(cluster, Condition.RETIRED, B0, B1)
        await set_hold(cluster.store, GarbageHold("restored from a dump", datetime(2026, 1, 1, tzinfo=UTC)))
        async with recovery_of(cluster, ledger) as recovery:
            with pytest.raises(RepairRefusedError, match="restored from a dump"):
                await recovery.check([B0, B1])
            with pytest.raises(RepairRefusedError, match="release-garbage"):
                await recovery.accept([B0, B1], reason="fire", now_ms=5)
        assert not (await cluster.store.read_ledger(ledger.id)).value.is_closed
        assert not cluster.bookie("b2").ledger(ledger.id).fenced


async def test_what_a_remaining_bookie_has_is_kept_however_late_it_answers() -> None:
    async with cluster_of(5) as cluster:
        ledger = await blocked_ledger(cluster)
        ledger.add(b"7", confirmed=4)  # above the end: 5 and 6 are nowhere
        await set_condition(cluster, Condition.RETIRED, B0, B1)
        remaining = cluster.bookie("b2")
        async with recovery_of(cluster, ledger) as recovery:
            await recovery.check([B0, B1])
            for op in (Op.READ_LAC, Op.READ):
                remaining.hold(op)
            accepting = asyncio.ensure_future(recovery.accept([B0, B1], reason="", now_ms=0))
            before = remaining.count(Op.READ_LAC)
            await remaining.received(Op.READ_LAC, before + 1)
            remaining.release(Op.READ_LAC)
            before = remaining.count(Op.READ)
            await remaining.received(Op.READ, before + 1)
            remaining.release(Op.READ)
            assert (await accepting).last_entry_id == 4


async def test_a_remaining_bookie_that_does_not_answer_may_have_entries_and_is_needed() -> None:
    async with cluster_of(5) as cluster:
        ledger = await blocked_ledger(cluster)
        await set_condition(cluster, Condition.RETIRED, B0, B1)
        await cluster.bookie("b2").stop()
        async with recovery_of(cluster, ledger) as recovery:
            with pytest.raises(LedgerRecoveryError, match="b2 does not answer, and may hold entries"):
                await recovery.accept([B0, B1], reason="", now_ms=0)
        assert not (await cluster.store.read_ledger(ledger.id)).value.is_closed
        assert await cluster.store.read_document(accepted_name(ledger.id)) is None


@pytest.mark.parametrize("condition", [Condition.LOST, Condition.MISSING, Condition.DRAINING, None])
async def test_a_bookie_that_could_come_back_is_not_given_up(condition: Condition | None) -> None:
    async with cluster_of(5) as cluster:
        ledger = await blocked_ledger(cluster)
        await set_condition(cluster, Condition.RETIRED, B0)
        if condition is not None:
            await set_condition(cluster, condition, B1)
        async with recovery_of(cluster, ledger) as recovery:
            with pytest.raises(RepairRefusedError, match="b1 is neither retired nor in doubt"):
                await recovery.check([B0, B1])
            with pytest.raises(RepairRefusedError):
                await recovery.accept([B0, B1], reason="", now_ms=0)
        assert not (await cluster.store.read_ledger(ledger.id)).value.is_closed


async def test_a_retirement_that_can_be_taken_back_is_none() -> None:
    """Its command was interrupted before the last step (rule O5): the bookie may be made to start again."""
    async with cluster_of(5) as cluster:
        ledger = await blocked_ledger(cluster)
        await set_condition(cluster, Condition.RETIRED, B0, B1)
        await cluster.store.create_cookie(cookie("b1"))
        async with recovery_of(cluster, ledger) as recovery:
            with pytest.raises(RepairRefusedError, match=r"b1 was interrupted.*octavo repair retire b1 --lost"):
                await recovery.check([B0, B1])
        assert not (await cluster.store.read_ledger(ledger.id)).value.is_closed


async def set_since(cluster: Cluster, condition: Condition, name: BookieId, seconds_ago: float) -> None:
    since_ms = await cluster.store.time_ms() - int(seconds_ago * 1000)
    entry = BookieCondition(condition, since_ms)
    await change_states(cluster.store, lambda states: states.with_bookie(name, entry))


async def test_a_loss_is_accepted_when_a_process_that_was_paused_confirms_nothing_any_more() -> None:
    """Rule B10: a bookie that lost its registration confirms adds for an hour."""
    async with cluster_of(5) as cluster:
        ledger = await blocked_ledger(cluster)
        await set_condition(cluster, Condition.RETIRED, B0, B1)
        await set_since(cluster, Condition.RETIRED, B1, SILENT_AFTER_SECONDS - 120)
        async with recovery_of(cluster, ledger) as recovery:
            with pytest.raises(RepairRefusedError, match=r"b1 has been retired for less than.*in 2 min.*--ended"):
                await recovery.check([B0, B1])
            with pytest.raises(RepairRefusedError):
                await recovery.accept([B0, B1], reason="fire", now_ms=5)
            assert not (await cluster.store.read_ledger(ledger.id)).value.is_closed
            await set_since(cluster, Condition.RETIRED, B1, SILENT_AFTER_SECONDS + 1)
            await recovery.check([B0, B1])
            await recovery.accept([B0, B1], reason="fire", now_ms=5)


async def test_a_loss_is_accepted_at_once_if_an_operator_has_seen_that_the_process_ended() -> None:
    async with cluster_of(5) as cluster:
        ledger = await blocked_ledger(cluster)
        await set_condition(cluster, Condition.RETIRED, B0, B1)
        await set_since(cluster, Condition.RETIRED, B1, 0)
        async with recovery_of(cluster, ledger) as recovery:
            await recovery.check([B0, B1], ended=True)
            closed = await recovery.accept([B0, B1], reason="fire", now_ms=5, ended=True)
        assert closed.last_entry_id == 4


async def test_a_retired_bookie_that_is_registered_is_not_given_up() -> None:
    async with cluster_of(5) as cluster:
        ledger = await blocked_ledger(cluster)
        found = (await cluster.store.list_bookies())[B1]
        await set_condition(cluster, Condition.RETIRED, B0, B1)
        await cluster.store.register_bookie(found)
        async with recovery_of(cluster, ledger) as recovery:
            with pytest.raises(RepairRefusedError, match=r"b1 is registered at .* although it is retired"):
                await recovery.check([B0, B1], ended=True)


async def test_the_process_before_a_bookie_in_doubt_is_waited_for_too() -> None:
    async with cluster_of(5) as cluster:
        ledger = await blocked_ledger(cluster)
        await doubtful(cluster, ledger)
        await set_since(cluster, Condition.DOUBTFUL, B1, 60)
        await cluster.bookie("b1").start()
        cluster.bookie("b1").facts["doubt_floor"] = ledger.id + 1
        async with recovery_of(cluster, ledger) as recovery:
            with pytest.raises(RepairRefusedError, match="b1 has been doubtful for less than"):
                await recovery.check([B0, B1])
            await recovery.check([B0, B1], ended=True)


async def doubtful(cluster: Cluster, ledger: HandmadeLedger) -> None:
    """``b0`` is retired; ``b1`` is in doubt and cannot tell whether it had an entry."""
    await set_condition(cluster, Condition.RETIRED, B0)
    await set_condition(cluster, Condition.DOUBTFUL, B1)
    bookie = cluster.bookie("b1")
    bookie.ledger(ledger.id).entries.clear()
    bookie.ledger(ledger.id).unknown.update(range(20))
    bookie.facts["in_doubt"] = True


async def test_a_bookie_in_doubt_is_given_up_only_if_its_floor_is_above_the_ledger() -> None:
    """Below its floor a bookie refuses ordinary adds for ever; above it, it could confirm one unfenced (rule I7)."""
    async with cluster_of(5) as cluster:
        ledger = await blocked_ledger(cluster)
        await doubtful(cluster, ledger)
        async with recovery_of(cluster, ledger) as recovery:
            with pytest.raises(RepairRefusedError, match="b1 is in doubt and does not answer"):
                await recovery.check([B0, B1])
        await cluster.bookie("b1").start()
        async with recovery_of(cluster, ledger) as recovery:
            for floor in (None, 0, ledger.id):  # none: a bookie of an older version
                if floor is not None:
                    cluster.bookie("b1").facts["doubt_floor"] = floor
                with pytest.raises(RepairRefusedError, match="in doubt about older ledgers only"):
                    await recovery.check([B0, B1])
                with pytest.raises(RepairRefusedError, match="in doubt about older ledgers only"):
                    await recovery.accept([B0, B1], reason="", now_ms=0)
            cluster.bookie("b1").facts["doubt_floor"] = ledger.id + 1
            assert "b1" in await recovery.check([B0, B1])
            closed = await recovery.accept([B0, B1], reason="", now_ms=0)
        assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, 4)


async def given_up_in_doubt(cluster: Cluster, ledger: HandmadeLedger, *kept: tuple[str, int]) -> None:
    """``b0`` and ``b1`` run, and are in doubt: of entries 5 and 6 each has only those that ``kept`` names, and cannot
    tell of the others."""
    await set_condition(cluster, Condition.DOUBTFUL, B0, B1)
    for name in ("b0", "b1"):
        bookie = cluster.bookie(name)
        held = bookie.ledger(ledger.id)
        for entry_id in (5, 6):
            if (name, entry_id) not in kept:
                bookie.forget(ledger.id, entry_id)
        held.unknown.update(entry_id for entry_id in range(5, 20) if (name, entry_id) not in kept)
        bookie.facts |= {"in_doubt": True, "doubt_floor": ledger.id + 1}
        await bookie.start()


async def answering_last[T](cluster: Cluster, name: str, asking: Coroutine[Any, Any, T]) -> T:
    """What ``asking`` comes to if this bookie answers reads after the two others."""
    asked = [cluster.bookie(one) for one in ("b0", "b1", "b2")]
    before = [bookie.count(Op.READ) for bookie in asked]
    cluster.bookie(name).hold(Op.READ)
    task = asyncio.ensure_future(asking)
    for bookie, count in zip(asked, before, strict=True):
        await bookie.received(Op.READ, count + 1)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not task.done()
    cluster.bookie(name).release(Op.READ)
    return await task


@pytest.mark.parametrize("late", ["b0", "b1", "b2"])
@pytest.mark.parametrize(
    ("kept", "last"), [([("b0", 5), ("b0", 6)], 6), ([("b0", 5), ("b1", 6)], 6), ([("b0", 6), ("b1", 6)], 4)]
)
async def test_entries_that_bookies_in_doubt_still_have_are_kept_in_every_order_of_answers(
    kept: list[tuple[str, int]], last: int, late: str
) -> None:
    """They run, and only they have what the third one missed: the loss that is accepted is that of what none has. The
    first attempt, without any loss, may have written some of it back, and may not."""
    async with cluster_of(5) as cluster:
        ledger = await blocked_ledger(cluster)
        await given_up_in_doubt(cluster, ledger, *kept)
        async with recovery_of(cluster, ledger, timeout_seconds=30.0) as recovery:
            await answering_last(cluster, late, recovery.check([B0, B1]))
            closed = await answering_last(cluster, late, recovery.accept([B0, B1], reason="", now_ms=0))
        assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, last)


async def test_a_bookie_in_doubt_that_does_not_answer_any_more_is_needed_until_it_is_retired() -> None:
    async with cluster_of(5) as cluster:
        ledger = await blocked_ledger(cluster)
        await given_up_in_doubt(cluster, ledger, ("b0", 5))
        cluster.bookie("b0").hold(Op.READ)
        async with recovery_of(cluster, ledger) as recovery:
            with pytest.raises(LedgerRecoveryError, match=r"b0 does not answer, and may hold entries.*retire it"):
                await recovery.accept([B0, B1], reason="", now_ms=0)
        assert not (await cluster.store.read_ledger(ledger.id)).value.is_closed


async def test_a_ledger_that_can_be_recovered_is_recovered_and_nothing_is_accepted() -> None:
    async with cluster_of(4) as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(3)
        await cluster.bookie("b0").stop()
        await set_condition(cluster, Condition.RETIRED, B0)
        async with recovery_of(cluster, ledger) as recovery:
            with pytest.raises(RepairRefusedError, match="recovered without any loss"):
                await recovery.check([B0])
            with pytest.raises(RepairRefusedError, match="is closed"):
                await recovery.check([B0])
        assert (await cluster.store.read_ledger(ledger.id)).value.last_entry_id == 2
        assert await cluster.store.read_document(accepted_name(ledger.id)) is None


async def test_bookies_elsewhere_and_wrong_passwords_are_refused() -> None:
    async with cluster_of(5) as cluster:
        ledger = await blocked_ledger(cluster)
        await set_condition(cluster, Condition.RETIRED, B0, B1, BookieId("b4"))
        async with recovery_of(cluster, ledger) as recovery:
            with pytest.raises(RepairRefusedError, match="not in the last fragment"):
                await recovery.check([BookieId("b4")])
        async with recovery_of(cluster, ledger, b"wrong") as recovery:
            with pytest.raises(UnauthorizedError):
                await recovery.check([B0, B1])
        current = await cluster.store.read_ledger(ledger.id)
        assert current.version == ledger.versioned.version


async def blocked_stream(cluster: StreamCluster) -> TermWriter:
    """Two of the three bookies of its last fragment are gone for good, and its writer, too."""
    writer = await cluster.client("first").streams.create(Quorums(3, 3, 2), password=PASSWORD)
    await writer.add_many([b"0", b"1", b"2"])
    gone = writer.stream.last_fragment.bookies[:2]
    for bookie in cluster.fake.bookies:
        if bookie.bookie_id in gone:
            await bookie.stop()
    return writer


@asynccontextmanager
async def recovery_of_stream(cluster: StreamCluster, writer: TermWriter) -> AsyncIterator[BlockedRecovery]:
    recovery = BlockedRecovery(
        cluster.fake.store, writer.id, PASSWORD, cluster.fake.cluster_id,
        replace(QUICK, recovery_timeout_seconds=0.2, request_timeout_seconds=0.2),
    )  # fmt: skip
    try:
        yield recovery
    finally:
        await recovery.close()


async def test_a_blocked_stream_is_laid_to_rest_without_bookies_that_are_retired_and_goes_on() -> None:
    async with stream_cluster(6) as cluster:
        writer = await blocked_stream(cluster)
        gone = writer.stream.last_fragment.bookies[:2]
        with pytest.raises(LedgerRecoveryError):
            await cluster.client("second", recovery_timeout_seconds=0.2).take_over(writer.id)
        async with recovery_of_stream(cluster, writer) as recovery:
            for condition in (None, Condition.DOUBTFUL):
                if condition is not None:
                    await set_condition(cluster.fake, condition, *gone)
                with pytest.raises(RepairRefusedError, match="retire it first"):
                    await recovery.check(gone)
            await set_condition(cluster.fake, Condition.RETIRED, *gone)
            assert gone[0] in await recovery.check(gone)
            ended = await recovery.accept(gone, reason="fire", now_ms=5)
            assert (ended.state, ended.last_entry_id) == (StreamState.AT_REST, place(1, 2))
            with pytest.raises(RepairRefusedError, match="is at rest; nothing has to be accepted"):
                await recovery.check(gone)
        found = await cluster.fake.store.read_document(accepted_name(writer.id, 1))
        assert found is not None
        assert AcceptedLoss.decode(found.value, "x") == AcceptedLoss(writer.id, gone, 5, place(1, 2), "fire")
        second = await cluster.client("second").take_over(writer.id)
        assert await second.add(b"3") == 3
