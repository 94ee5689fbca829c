"""Repair on ZooKeeper: its lock, its watches and its transactions of many ledgers (rules A4 and A8)."""

import pytest
from octavo.metadata.cluster.repair_states import Condition
from octavo.protocol.ids import BookieId
from octavo.repair.base.documents import AUDITOR_LOCK
from support.clusters.repair_cluster import RepairCluster, repair_cluster
from support.metadata.zookeeper import new_cluster_uri
from support.waiting import eventually

pytestmark = pytest.mark.usefixtures("logged")


async def without(cluster: RepairCluster, ledgers: list[int], *gone: str) -> bool:
    return all([not await cluster.names(one) & set(gone) and await cluster.is_whole(one) for one in ledgers])


async def test_a_drained_and_a_lost_bookie_are_replaced_and_the_auditor_may_be_one_of_them() -> None:
    async with repair_cluster(new_cluster_uri(), 5) as cluster:
        client = await cluster.client()
        ledgers = [await cluster.ledger(client, 5) for _ in range(40)]
        async with cluster.store.watch_lock(AUDITOR_LOCK) as watch:
            async for holder in watch:
                if holder is not None:
                    break
        assert holder is not None
        drained = next(name for name in sorted(cluster.members) if name != holder.holder)
        await cluster.set_condition(drained, Condition.DRAINING)
        await eventually(lambda: without(cluster, ledgers, drained))
        await cluster.stop(holder.holder)
        await eventually(lambda: without(cluster, ledgers, drained, holder.holder))
        assert (await cluster.states()).condition_of(BookieId(holder.holder)) is Condition.LOST
        for ledger_id in ledgers[::10]:
            await cluster.check_entries(client, ledger_id, 5)
