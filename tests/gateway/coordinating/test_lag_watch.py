"""The lag of the groups that a gateway coordinates, in partitions that it leads, and in those of others."""

from collections.abc import AsyncIterator

import pytest
from octavo.gateway.codes import Code
from octavo.gateway.coordinating.coordinators import log_name, number_of
from octavo.gateway.coordinating.lag_watch import LagWatch, PartitionLag
from octavo.gateway.gateway import Gateway
from support.clusters.gateway_cluster import GatewayCluster, open_gateway_cluster
from support.kafka.batches import batch_of
from support.kafka.client import KafkaClient
from support.kafka.coordinated import SteadyClock
from support.kafka.groups import GroupClient
from support.waiting import eventually


@pytest.fixture
async def cluster() -> AsyncIterator[GatewayCluster]:
    async with open_gateway_cluster() as made:
        made.steady_ms = SteadyClock()
        yield made


def steady(cluster: GatewayCluster) -> SteadyClock:
    assert isinstance(cluster.steady_ms, SteadyClock)
    return cluster.steady_ms


async def committed(gateway: Gateway, group: str, offset: int) -> None:
    """Commit as a consumer does, which repeats what is refused while the coordinator begins."""
    async with await GroupClient.of(gateway.port, group) as consumer:
        await eventually(lambda: _is_done(consumer, offset))


async def _is_done(consumer: GroupClient, offset: int) -> bool:
    return await consumer.commit(offset) is Code.NONE


async def produced(gateway: Gateway, *values: bytes) -> None:
    async with await KafkaClient.connect(gateway.port) as producer:

        async def is_done() -> bool:
            (answer,) = await producer.produce("orders", batch_of(*values))
            return bool(answer.error_code.value == Code.NONE)

        await producer.metadata("orders")
        await eventually(is_done)


async def test_lag_and_its_duration_follow_the_group_and_the_partition(cluster: GatewayCluster) -> None:
    gateway = await cluster.gateway()
    watch = gateway.lag_watch
    await produced(gateway, b"one", b"two")
    await committed(gateway, "billing", 2)
    await watch.look()
    assert watch.lags == (PartitionLag("billing", "orders", 0, 0),)
    await produced(gateway, b"three")
    await watch.look()
    steady(cluster).ms += 40_000
    await watch.look()
    assert (watch.lags[0].records, watch.behind_seconds) == (1, {"billing": 40.0})
    await committed(gateway, "billing", 3)
    await watch.look()
    assert (watch.lags[0].records, watch.behind_seconds) == (0, {"billing": 0.0})
    async with await GroupClient.of(gateway.port) as consumer:
        assert await consumer.delete_group() is Code.NONE
    await watch.look()
    assert len(watch.lags) == len(watch.behind_seconds) == 0


async def test_the_end_of_a_partition_that_another_gateway_leads_comes_from_its_log(cluster: GatewayCluster) -> None:
    gateways = {one.gateways.node_id: one for one in (await cluster.gateway(), await cluster.gateway())}
    first, second = gateways.values()
    await eventually(lambda: len(first.gateways.present) == len(second.gateways.present) == 2)
    log_leader = first.gateways.choice("kafka/orders/0")
    assert log_leader is not None
    leader = gateways.pop(log_leader.node_id)
    (other,) = gateways.values()
    group = next(one for one in map(str, range(999)) if other.gateways.is_own(log_name(number_of(one))))
    await produced(leader, b"one", b"two", b"three")
    await committed(other, group, 1)
    await other.lag_watch.look()
    topic = other.catalogue.find("orders")
    assert topic is not None
    assert other.leaders.find(topic, 0) is None
    assert leader.leaders.find(topic, 0) is not None
    assert other.lag_watch.lags == (PartitionLag(group, "orders", 0, 2),)
    assert leader.lag_watch.lags == ()
    await leader.lag_watch.look()
    assert leader.lag_watch.lags == (), "each group is shown by its coordinator alone"


async def test_a_bounded_number_of_offsets_is_looked_at_and_the_rest_is_counted(cluster: GatewayCluster) -> None:
    gateway = await cluster.gateway()
    await produced(gateway, b"one")
    for group in ("billing", "audit", "search"):
        await committed(gateway, group, 0)
    store = await cluster.logs.metadata.open()
    watch = LagWatch(
        await cluster.logs.client_of(store), store, gateway.catalogue, gateway.leaders, gateway.coordinators,
        steady_ms=steady(cluster), offsets_max=2,
    )  # fmt: skip
    await watch.look()
    assert [one.group_id for one in watch.lags] == ["audit", "billing"]
    assert watch.left_out == 1


async def test_a_gateway_whose_lease_has_ended_shows_no_lag(cluster: GatewayCluster) -> None:
    gateway = await cluster.gateway()
    await produced(gateway, b"one")
    await committed(gateway, "billing", 0)
    await gateway.lag_watch.look()
    assert len(gateway.lag_watch.lags) == 1
    await cluster.lose_leases_of(gateway)
    await gateway.lag_watch.look()
    assert list(gateway.lag_watch.lags) == []
