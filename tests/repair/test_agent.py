"""Repair in whole bookies: what is lost comes back by itself (rules A1 to A11, C1 to C7,
C9 and C10, O1 and O3, D3)."""

import re
from dataclasses import replace

import pytest
from octavo.bookie.disk.rate import RateLimiter
from octavo.metadata.cluster.repair_states import Condition
from octavo.protocol.ids import BookieId, LedgerId
from octavo.repair.base.documents import AUDITOR_LOCK
from octavo.repair.base.planning import BlockedClass
from octavo.repair.operate.operators import ask_for_checks, find_unfinished, take_checked
from support.clusters.repair_cluster import RepairCluster, payload, repair_cluster
from support.waiting import eventually

pytestmark = pytest.mark.usefixtures("logged")


async def auditor_of(cluster: RepairCluster) -> str:
    async with cluster.store.watch_lock(AUDITOR_LOCK) as watch:
        async for holder in watch:
            if holder is not None:
                return holder.holder
    raise AssertionError("a watch does not end by itself")


async def next_round(cluster: RepairCluster, auditor: str) -> None:
    """Return when the auditor has ended another round."""
    before = cluster.bookie(auditor).service.companion_facts.get("repair_round_at_ms")

    async def newer() -> bool:
        return bool(cluster.bookie(auditor).service.companion_facts.get("repair_round_at_ms") != before)

    await eventually(newer)


async def healed(cluster: RepairCluster, ledgers: list[int], *gone: str) -> bool:
    return all([not await cluster.names(one) & set(gone) and await cluster.is_whole(one) for one in ledgers])


async def test_copies_of_a_lost_bookie_come_back_on_others_and_nothing_else_changes() -> None:
    async with repair_cluster("lost-bookie", 4) as cluster:
        client = await cluster.client()
        ledgers = [await cluster.ledger(client, 20) for _ in range(5)]
        ledgers.append(await cluster.ledger(client, 20, 3, 2, 2))  # striped
        ledgers.append(await cluster.ledger(client, 0))  # never written: only the name changes
        deleted = await cluster.ledger(client, 1)
        before = {ledger_id: await cluster.metadata(ledger_id) for ledger_id in ledgers}
        await client.delete_ledger(deleted)
        await cluster.stop("b1")
        await eventually(lambda: healed(cluster, ledgers, "b1"))
        assert (await cluster.states()).condition_of(BookieId("b1")) is Condition.LOST
        for ledger_id in ledgers:
            await cluster.check_entries(client, ledger_id, 0 if ledger_id == ledgers[-1] else 20)
            after = await cluster.metadata(ledger_id)
            assert (after.last_entry_id, after.length) == (before[ledger_id].last_entry_id, before[ledger_id].length)
            for fragment, was in zip(after.fragments, before[ledger_id].fragments, strict=True):
                changed = [pair for pair in zip(was.bookies, fragment.bookies, strict=True) if pair[0] != pair[1]]
                assert all(old == "b1" for old, _ in changed)
                assert len(changed) == ("b1" in was.bookies)

        async def tidy() -> bool:
            summary, names = await cluster.summary(), await cluster.document_versions()
            return summary is not None and summary.is_quiet and not any("work" in one or "done" in one for one in names)

        await eventually(tidy)
        assert await find_unfinished(cluster.store, await cluster.states()) == []


async def test_a_healthy_cluster_costs_no_metadata_writes() -> None:
    async with repair_cluster("healthy", 3, audit_seconds=0.05) as cluster:
        client = await cluster.client()
        await cluster.ledger(client, 5)
        auditor = await auditor_of(cluster)

        async def nothing_is_written() -> bool:
            """In many rounds. The bookies have only just started, one after another, which may cost a few."""
            before = await cluster.document_versions()
            for _ in range(8):
                await next_round(cluster, auditor)
            return await cluster.document_versions() == before

        await eventually(nothing_is_written)
        before = await cluster.document_versions()
        assert not any("work" in name or "done" in name for name in before)


async def test_a_drained_bookie_serves_on_and_is_emptied_and_a_new_auditor_takes_over() -> None:
    async with repair_cluster("drained", 4) as cluster:
        client = await cluster.client()
        ledgers = [await cluster.ledger(client, 10) for _ in range(3)]
        writer = await client.create_ledger()
        await writer.add(payload(writer.id, 0, 100))
        drained = next(iter(writer.metadata.last_fragment.bookies))
        await cluster.set_condition(drained, Condition.DRAINING)
        auditor = await auditor_of(cluster)
        if auditor != drained:
            await cluster.stop(auditor)  # its plans are taken over; it is down for a moment only
            await cluster.start(auditor)

        async def left() -> bool:
            return drained not in {name for one in ledgers for name in await cluster.names(one)}

        await eventually(left)

        # The writer is idle, and replaces the bookie all the same; then what lies before is moved, too (rule O2).
        async def replaced() -> bool:
            return drained not in await cluster.names(writer.id)

        await eventually(replaced)
        assert await writer.add(payload(writer.id, 1, 100)) == 1
        await writer.close()
        await cluster.check_entries(client, writer.id, 2)
        registration = (await cluster.store.list_bookies())[BookieId(drained)]
        assert registration.state.value == "read-only"


async def test_a_drain_concerns_ledgers_that_were_created_after_the_last_round() -> None:
    async with repair_cluster("far-rounds", 4, audit_seconds=600.0) as cluster:
        client = await cluster.client()
        await auditor_of(cluster)
        ledgers = [await cluster.ledger(client, 5) for _ in range(2)]
        drained = next(iter(await cluster.names(ledgers[0])))
        await cluster.set_condition(drained, Condition.DRAINING)
        await eventually(lambda: healed(cluster, ledgers, drained))


async def test_a_bookie_with_new_disks_is_filled_again_and_is_sure_of_its_ledgers() -> None:
    async with repair_cluster("new-disks", 3) as cluster:
        client = await cluster.client()
        ledgers = [await cluster.ledger(client, 10) for _ in range(4)]
        writer = await client.create_ledger()
        await writer.add(payload(writer.id, 0, 100))
        await cluster.stop("b2")
        await cluster.replace_disks("b2")
        bookie = cluster.bookie("b2")
        assert bookie.service.storage.doubt is not None

        async def full() -> bool:
            return all([await cluster.is_whole(one) for one in ledgers])

        await eventually(full)

        async def almost_sure() -> bool:
            doubt = bookie.service.storage.doubt
            return doubt is not None and doubt.sure_below == doubt.stop and set(doubt.exceptions) == {writer.id}

        await eventually(almost_sure)  # of the open ledger it cannot be sure (rule D3)
        await writer.close()

        async def sure() -> bool:
            return bookie.service.storage.doubt is None

        await eventually(sure)
        assert await cluster.is_whole(writer.id)

        async def ordinary() -> bool:
            return (await cluster.states()).condition_of(BookieId("b2")) is None

        await eventually(ordinary)


async def test_holes_are_found_when_a_ledger_is_closed_and_filled() -> None:
    async with repair_cluster("holes", 3, lost_seconds=600.0) as cluster:
        client = await cluster.client(ensemble_change_delay_seconds=60.0)
        writer = await client.create_ledger()
        await writer.add(payload(writer.id, 0, 100))
        auditor = await auditor_of(cluster)
        away = next(name for name in ("b0", "b1", "b2") if name != auditor)
        await cluster.stop(away)
        for number in range(1, 10):
            await writer.add(payload(writer.id, number, 100))
        await writer.close()
        await next_round(cluster, auditor)
        await cluster.start(away)
        await eventually(lambda: cluster.is_whole(writer.id))
        assert (await cluster.metadata(writer.id)).fragments == writer.metadata.fragments


async def test_what_no_bookie_has_is_short_keeps_its_names_and_is_tried_when_a_bookie_comes_back() -> None:
    async with repair_cluster("short", 4) as cluster:
        client = await cluster.client(ensemble_change_delay_seconds=60.0)
        ledger_id = await cluster.ledger(client, 5, 2, 2, 1)
        first, second = (await cluster.metadata(ledger_id)).last_fragment.bookies
        await cluster.change_states(lambda states: replace(states, brake_overridden=True))
        await cluster.stop(first)
        await cluster.stop(second)

        async def blocked() -> bool:
            await cluster.change_states(lambda states: replace(states, brake_overridden=True))
            summary = await cluster.summary()
            return summary is not None and summary.blocked_counts.get(BlockedClass.SHORT.value) == 1

        await eventually(blocked)
        summary = await cluster.summary()
        assert summary is not None
        assert summary.blocked[0].ledger_id == ledger_id
        assert "no sound copy" in summary.blocked[0].reason
        assert await cluster.names(ledger_id) == {first, second}
        await cluster.start(second)
        await eventually(lambda: healed(cluster, [ledger_id], first))
        await cluster.check_entries(client, ledger_id, 5)


async def test_an_abandoned_ledger_is_recovered_before_it_is_too_late_and_then_repaired() -> None:
    async with repair_cluster("abandoned", 4, open_seconds=0.3) as cluster:
        gone = await cluster.client()
        writer = await gone.create_ledger()
        await writer.add_many([payload(writer.id, number, 100) for number in range(5)])
        lost = writer.metadata.last_fragment.bookies[0]
        await cluster.kill_client(gone)
        await cluster.stop(lost)

        async def closed() -> bool:
            return (await cluster.metadata(writer.id)).is_closed

        await eventually(closed)
        metadata = await cluster.metadata(writer.id)
        assert re.fullmatch(r"octavo repair, bookie b\d", metadata.fenced_by)
        assert metadata.fenced_at is not None
        await eventually(lambda: healed(cluster, [writer.id], lost))
        await cluster.check_entries(await cluster.client(), writer.id, 5)


async def test_a_check_mends_what_was_damaged_and_says_what_is_short() -> None:
    async with repair_cluster("check", 3) as cluster:
        client = await cluster.client()
        ledger_id = LedgerId(await cluster.ledger(client, 10))
        bookie = cluster.bookie("b0")
        await bookie.service.storage.checkpoint()
        cluster.damage_entry("b0", ledger_id, 5)
        await ask_for_checks(cluster.store, [ledger_id], now_ms=1)
        result: dict[LedgerId, bool] = {}

        async def checked() -> bool:
            result.update(await take_checked(cluster.store, [ledger_id]))
            return bool(result)

        await eventually(checked)
        assert result == {ledger_id: False}
        assert await cluster.is_whole(ledger_id)
        assert cluster.copied("b0") >= 1  # by the check, and by the bookie, which was told of the damage


async def test_a_ledger_that_was_deleted_by_mistake_is_filled_again_when_it_is_revived() -> None:
    async with repair_cluster("revived", 3, audit_seconds=600.0) as cluster:
        client = await cluster.client()
        ledger_id = LedgerId(await cluster.ledger(client, 10))
        bookie = cluster.bookie("b0")
        await bookie.service.storage.checkpoint()
        await bookie.service.storage.writer.delete(ledger_id)
        for _ in range(2):
            await bookie.service.storage.compact(0.99, RateLimiter(1e12))
        assert await bookie.service.revive(ledger_id)  # as any request that reaches the ledger does
        # Copied entries are counted a moment after they can be read.
        await eventually(lambda: cluster.copied("b0") == 10)
        assert await cluster.is_whole(ledger_id)
