"""Balance in whole bookies: a new bookie gets its share, and whatever happens meanwhile, nothing is lost (rules A14 and
A15)."""

import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from octavo.client.client import Client
from octavo.metadata.cluster.repair_states import BookieCondition, Condition
from octavo.metadata.updates.garbage_hold import GarbageHold, set_hold
from octavo.protocol.ids import BookieId, LedgerId
from octavo.repair.base.balance_document import AskedBy, BalanceState, Phase
from octavo.repair.base.documents import AUDITOR_LOCK
from octavo.repair.operate.balance_status import read_balance
from octavo.repair.operate.balancing import ask_for_balance, stop_balance
from support.clusters.repair_cluster import QUICK, RepairCluster, repair_cluster
from support.waiting import eventually

pytestmark = pytest.mark.usefixtures("logged")

ENTRIES = 8


async def filled(cluster: RepairCluster, client: Client, ledgers: int = 12, payload_bytes: int = 2000) -> list[int]:
    return [await cluster.ledger(client, ENTRIES, 3, 3, 2, payload_bytes=payload_bytes) for _ in range(ledgers)]


async def asked(cluster: RepairCluster) -> BalanceState:
    """Asked for, once all bookies are there."""

    async def all_there() -> bool:
        return len(await cluster.store.list_bookies()) == len(cluster.members)

    await eventually(all_there)
    return await ask_for_balance(cluster.store, None, {}, now_ms=int(time.time() * 1000))


async def phase(cluster: RepairCluster) -> Phase | None:
    state = await read_balance(cluster.store)
    return None if state is None else state.phase


async def state_of(cluster: RepairCluster) -> BalanceState:
    state = await read_balance(cluster.store)
    assert state is not None
    return state


async def done(cluster: RepairCluster) -> BalanceState:
    async def is_done() -> bool:
        return await phase(cluster) is Phase.DONE

    await eventually(is_done)
    return await state_of(cluster)


async def named(cluster: RepairCluster, ledgers: list[int]) -> dict[str, int]:
    """How many of the ledgers name each bookie."""
    names = [name for one in ledgers for name in await cluster.names(one)]
    return {name: names.count(name) for name in cluster.members}


async def check_all(cluster: RepairCluster, client: Client, ledgers: list[int], payload_bytes: int = 2000) -> None:
    """Every ledger has three members that hold all of it, and its entries."""
    for ledger_id in ledgers:
        assert len(await cluster.names(ledger_id)) == 3
        assert await cluster.is_whole(ledger_id)
        await cluster.check_entries(client, ledger_id, ENTRIES, payload_bytes=payload_bytes)


async def auditor_of(cluster: RepairCluster) -> str:
    async def there() -> bool:
        return await cluster.store.read_lock(AUDITOR_LOCK) is not None

    await eventually(there)
    holder = await cluster.store.read_lock(AUDITOR_LOCK)
    assert holder is not None
    return holder.holder


async def test_a_new_bookie_gets_its_share_and_every_entry_can_be_read() -> None:
    async with repair_cluster("share", 3) as cluster:
        client = await cluster.client()
        ledgers = await filled(cluster, client)
        before = {one: await cluster.metadata(one) for one in ledgers}
        await cluster.start("b3")
        await asked(cluster)
        ended = await done(cluster)
        counts = await named(cluster, ledgers)
        assert counts["b3"] == 9, f"a quarter of 36 copies: {counts} {ended}"
        assert max(counts.values()) - min(counts.values()) == 0
        assert (ended.moved, ended.failed, ended.under_way) == (9, 0, 0)
        assert ended.moved_bytes == pytest.approx(9 * ENTRIES * 2052, rel=0.01)
        assert "within 5%" in ended.reason
        assert {name: fill.held_bytes for name, fill in ended.bookies.items()} == dict.fromkeys(
            cluster.members, 9 * ENTRIES * 2052
        )
        await check_all(cluster, client, ledgers)
        for one in ledgers:
            after, was = await cluster.metadata(one), before[one]
            assert (after.last_entry_id, after.length) == (was.last_entry_id, was.length)
        # Once more: nothing is left to do, and nothing moves.
        versions = [(await cluster.store.read_ledger(LedgerId(one))).version for one in ledgers]
        await asked(cluster)
        assert (await done(cluster)).moved == 0
        assert versions == [(await cluster.store.read_ledger(LedgerId(one))).version for one in ledgers]


async def test_open_ledgers_and_streams_stay_and_are_named_in_the_reason() -> None:
    """Their bookies would give nothing back (rule C8)."""
    async with repair_cluster("stays", 3) as cluster:
        client = await cluster.client()
        writer = await client.create_ledger(3, 3, 2)
        await writer.add_many([b"x" * 1000] * 20)
        log = await client.create_log("log", ensemble_size=3, write_quorum=3, ack_quorum=2)
        async with log.lead() as leader:
            await leader.add_many([b"y" * 1000] * 20)
            await leader.roll()
        await cluster.start("b3")
        await asked(cluster)
        ended = await done(cluster)
        assert ended.moved == 0
        assert "lie in ledgers and streams that do not move" in ended.reason
        assert BookieId("b3") not in await cluster.names(writer.id)
        await writer.close()


async def test_bookies_with_a_condition_take_no_part() -> None:
    async with repair_cluster("conditions", 3) as cluster:
        client = await cluster.client()
        ledgers = await filled(cluster, client)
        await cluster.start("b3")
        await cluster.start("b4")
        now = int(time.time() * 1000)
        held = BookieCondition(Condition.HELD, now, now + 3_600_000)
        await cluster.change_states(lambda states: states.with_bookie(BookieId("b3"), held))
        await asked(cluster)
        ended = await done(cluster)
        counts = await named(cluster, ledgers)
        assert (counts["b3"], counts["b4"]) == (0, 9)
        assert BookieId("b3") not in ended.bookies
        await check_all(cluster, client, ledgers)


async def test_what_is_to_be_repaired_comes_first_and_the_balance_goes_on_afterwards() -> None:
    async with repair_cluster("drain-first", 4) as cluster:
        client = await cluster.client()
        ledgers = await filled(cluster, client)
        await cluster.start("b4")
        drained = next(iter(await cluster.names(ledgers[0])))
        await cluster.set_condition(drained, Condition.DRAINING)
        await asked(cluster)
        await done(cluster)
        counts = await named(cluster, ledgers)
        assert counts[drained] == 0
        others = [number for name, number in counts.items() if name != drained]
        assert sum(others) == 36
        assert max(others) - min(others) <= 1
        await check_all(cluster, client, ledgers)


@pytest.mark.parametrize("hindered_by", ["pause", "hold"])
async def test_a_pause_and_a_hold_on_garbage_collection_keep_everything_where_it_is(hindered_by: str) -> None:
    async with repair_cluster(f"hindered-{hindered_by}", 3) as cluster:
        client = await cluster.client()
        ledgers = await filled(cluster, client, 4)
        if hindered_by == "pause":
            await cluster.change_states(lambda states: replace(states, paused=True))
        else:
            await set_hold(cluster.store, GarbageHold("restored from a dump", datetime.now(UTC)))
        await cluster.start("b3")
        await asked(cluster)

        async def waits() -> bool:
            return await phase(cluster) is Phase.WAITING

        await eventually(waits)
        assert ("paused" if hindered_by == "pause" else "restored from a dump") in (await state_of(cluster)).reason
        assert (await named(cluster, ledgers))["b3"] == 0
        if hindered_by == "pause":
            await cluster.change_states(lambda states: replace(states, paused=False))
            await done(cluster)
            assert (await named(cluster, ledgers))["b3"] == 3


async def test_an_auditor_balances_by_itself_if_a_setting_says_so() -> None:
    """The disks of these bookies are as good as empty."""
    async with repair_cluster("by-itself", 3, balance_seconds=0.2, balance_fill_min=0.0) as cluster:
        client = await cluster.client()
        ledgers = await filled(cluster, client)
        await cluster.start("b3", settings=replace(QUICK, balance_seconds=0.2, balance_fill_min=0.0))
        ended = await done(cluster)
        assert ended.asked_by is AskedBy.SETTING

        async def has_its_share() -> bool:
            return (await named(cluster, ledgers))["b3"] == 9

        await eventually(has_its_share)
        await check_all(cluster, client, ledgers)


async def test_an_operator_stops_it_and_what_was_moved_stays() -> None:
    async with repair_cluster("stopped", 3, bytes_per_second=40_000, bytes_per_second_min=40_000) as cluster:
        client = await cluster.client()
        ledgers = await filled(cluster, client, 12, 4000)
        await cluster.start("b3", settings=replace(QUICK, bytes_per_second=40_000, bytes_per_second_min=40_000))
        await asked(cluster)

        async def some_moved() -> bool:
            return (await named(cluster, ledgers))["b3"] > 0

        await eventually(some_moved)
        await stop_balance(cluster.store)

        async def plan_is_gone() -> bool:
            return not any("work" in name for name in await cluster.document_versions())

        await eventually(plan_is_gone)
        assert await phase(cluster) is Phase.STOPPED
        assert (await named(cluster, ledgers))["b3"] < 9
        await check_all(cluster, client, ledgers, 4000)


async def test_the_target_is_stopped_in_the_middle_and_goes_on_when_it_is_back() -> None:
    slow = replace(QUICK, bytes_per_second=60_000, bytes_per_second_min=60_000)
    async with repair_cluster("target-dies", 3) as cluster:
        client = await cluster.client()
        ledgers = await filled(cluster, client, 12, 4000)
        await cluster.start("b3", settings=slow)
        await asked(cluster)

        async def some_copied() -> bool:
            return cluster.copied("b3") > 0

        await eventually(some_copied)
        await cluster.stop("b3")
        for ledger_id in ledgers:
            await cluster.check_entries(client, ledger_id, ENTRIES, payload_bytes=4000)
        await cluster.start("b3", settings=QUICK)
        await done(cluster)
        await check_all(cluster, client, ledgers, 4000)
        assert (await named(cluster, ledgers))["b3"] == 9


async def test_the_auditor_is_stopped_in_the_middle_and_the_next_one_goes_on() -> None:
    slow = replace(QUICK, bytes_per_second=60_000, bytes_per_second_min=60_000)
    async with repair_cluster("auditor-dies", 3) as cluster:
        client = await cluster.client()
        ledgers = await filled(cluster, client, 12, 4000)
        auditor = await auditor_of(cluster)
        await cluster.start("b3", settings=slow)
        await asked(cluster)

        async def some_copied() -> bool:
            return cluster.copied("b3") > 0

        await eventually(some_copied)
        await cluster.stop(auditor)
        await cluster.start(auditor)
        await done(cluster)
        await check_all(cluster, client, ledgers, 4000)
        assert (await named(cluster, ledgers))["b3"] == 9


async def test_ledgers_that_are_deleted_meanwhile_are_left_out() -> None:
    slow = replace(QUICK, bytes_per_second=60_000, bytes_per_second_min=60_000)
    async with repair_cluster("deleted", 3) as cluster:
        client = await cluster.client()
        ledgers = await filled(cluster, client, 12, 4000)
        await cluster.start("b3", settings=slow)
        await asked(cluster)

        async def some_copied() -> bool:
            return cluster.copied("b3") > 0

        await eventually(some_copied)
        for ledger_id in ledgers[:6]:
            await client.delete_ledger(ledger_id)
        await done(cluster)
        await check_all(cluster, client, ledgers[6:], 4000)


async def test_a_source_that_dies_meanwhile_is_repaired_and_no_copy_is_missing() -> None:
    slow = replace(QUICK, bytes_per_second=60_000, bytes_per_second_min=60_000)
    async with repair_cluster("source-dies", 4) as cluster:
        client = await cluster.client()
        ledgers = await filled(cluster, client, 12, 4000)
        await cluster.start("b4", settings=slow)
        await asked(cluster)

        async def some_copied() -> bool:
            return cluster.copied("b4") > 0

        await eventually(some_copied)
        await cluster.stop("b0")
        await done(cluster)

        async def whole() -> bool:
            return all([await cluster.is_whole(one) for one in ledgers])

        await eventually(whole)
        assert (await named(cluster, ledgers))["b0"] == 0
        await check_all(cluster, client, ledgers, 4000)
