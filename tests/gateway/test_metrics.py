"""What a gateway counts: every metric of the table, each moved by what it is about."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from octavo.gateway.codes import Code
from octavo.gateway.collect import samples
from octavo.gateway.coordinating.coordinators import number_of
from octavo.gateway.gateway import Gateway
from octavo.metrics import table
from octavo.metrics.exposition import expose
from octavo.metrics.table import GATEWAY_METRICS
from octavo.protocol.messages import Op
from prometheus_client.parser import text_string_to_metric_families
from support.clusters.gateway_cluster import GatewayCluster
from support.kafka.batches import batch_of
from support.kafka.client import METADATA, PRODUCE, KafkaClient, frame
from support.kafka.groups import GroupClient
from support.waiting import eventually

type Values = dict[str, dict[tuple[str, ...], float]]

OF_THE_PROCESS = {table.GATEWAY_LOOP_LAG_SECONDS, table.GATEWAY_GC_PAUSE_SECONDS}
"""What the gateway's process measures, and the command exposes."""


def scrape(gateway: Gateway) -> Values:
    """What Prometheus would see: sample name -> values of the labels -> value."""
    found: Values = {}
    for family in text_string_to_metric_families(expose(samples(gateway, software="0-test")).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[KafkaClient]:
    async with await KafkaClient.connect(gateway.port) as connected:
        await connected.metadata("orders")
        yield connected


async def test_a_gateway_exposes_every_metric_of_the_table_and_no_other(gateway: Gateway, client: KafkaClient) -> None:
    async with await GroupClient.of(gateway.port) as consumer:
        assert await consumer.commit(0) is Code.NONE
    await gateway.lag_watch.look()
    exposed = {sample.metric for sample in samples(gateway, software="0-test")}
    assert exposed == {metric for metrics in GATEWAY_METRICS.values() for metric in metrics} - OF_THE_PROCESS


async def test_requests_are_counted_by_kind_and_by_the_first_error_in_their_answer(
    gateway: Gateway, client: KafkaClient
) -> None:
    await client.produce("orders", batch_of(b"one", b"two"))
    await client.produce("nothing", batch_of(b"x"))
    await client.fetch("orders", 0)
    await client.fetch("orders", 9)
    await client.metadata("no/name")
    found = scrape(gateway)
    requests = found["octavo_gateway_requests_total"]
    assert requests["PRODUCE", "ok"] == requests["FETCH", "ok"] == requests["METADATA", "ok"] == 1
    assert requests["PRODUCE", "UNKNOWN_TOPIC_OR_PARTITION"] == 1
    assert requests["FETCH", "OFFSET_OUT_OF_RANGE"] == 1
    assert requests["METADATA", "INVALID_TOPIC_EXCEPTION"] == 1
    assert found["octavo_gateway_request_seconds_count"]["PRODUCE",] == 2
    assert found["octavo_gateway_received_bytes_total"][()] > 2 * len(batch_of(b"x"))


async def test_batches_are_counted_once_they_are_acknowledged(
    cluster: GatewayCluster, gateway: Gateway, client: KafkaClient
) -> None:
    batch = batch_of(b"one", b"two", b"three")
    for bookie in cluster.logs.bookies:
        bookie.hold(Op.ADD)
    producing = asyncio.ensure_future(client.produce("orders", batch))
    await eventually(lambda: scrape(gateway)["octavo_gateway_batches_under_way"][()] == 1)
    assert scrape(gateway)["octavo_gateway_batches_total"][()] == 0
    for bookie in cluster.logs.bookies:
        bookie.release(Op.ADD)
    await producing
    await client.produce("orders", b"no batch")
    late = batch_of(b"x", producer_id=7, producer_epoch=0, base_sequence=5)
    assert (await client.produce("orders", late))[0].error_code.value == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    await client.fetch("orders", 0)
    found = scrape(gateway)
    assert found["octavo_gateway_batches_total"][()] == 1
    assert found["octavo_gateway_records_total"][()] == 3
    assert (
        found["octavo_gateway_batch_bytes_total"][()] == found["octavo_gateway_fetched_bytes_total"][()] == len(batch)
    )
    assert found["octavo_gateway_sent_bytes_total"][()] > len(batch)
    assert found["octavo_gateway_batches_under_way"][()] == 0


async def test_partitions_producers_and_gateways_are_counted(
    cluster: GatewayCluster, gateway: Gateway, client: KafkaClient
) -> None:
    await client.produce("orders", batch_of(b"x", producer_id=7, producer_epoch=0, base_sequence=0))
    found = scrape(gateway)
    assert found["octavo_gateway_partitions"] == {("leading",): 1, ("opening",): 0}
    assert (found["octavo_gateway_topics"][()], found["octavo_gateway_producers"][()]) == (1, 1)
    assert found["octavo_gateway_connections"][()] == 1
    assert found["octavo_gateway_build_info"] == {("0-test", "1"): 1}
    await cluster.gateway()
    await eventually(lambda: scrape(gateway)["octavo_gateway_gateways"][()] == 2)


async def test_a_lead_that_is_lost_is_counted_and_one_that_is_given_up_is_not(
    cluster: GatewayCluster, gateway: Gateway, client: KafkaClient
) -> None:
    await client.produce("orders", batch_of(b"x"))
    assert scrape(gateway)["octavo_gateway_serves"][()] == 1
    await cluster.lose_leases_of(gateway)
    assert (await client.produce("orders", batch_of(b"x")))[0].error_code.value == Code.NOT_LEADER_OR_FOLLOWER
    found = scrape(gateway)
    assert found["octavo_gateway_leads_lost_total"] == {("partition",): 1, ("coordinator",): 0}
    assert found["octavo_gateway_serves"][()] == 0
    second = await cluster.gateway()
    async with await KafkaClient.connect(second.port) as other:
        await other.produce("orders", batch_of(b"x"))
        await second.close()
    assert second.leaders.lost == 0
    assert len(second.leaders) == 0


async def test_groups_are_counted_by_state_with_their_members(gateway: Gateway, client: KafkaClient) -> None:
    states = {("Empty",): 0, ("PreparingRebalance",): 0, ("CompletingRebalance",): 0, ("Stable",): 0}
    states |= {("Assigning",): 0, ("Reconciling",): 0}
    assert scrape(gateway)["octavo_gateway_groups"] == states
    async with await GroupClient.of(gateway.port) as member, await GroupClient.of(gateway.port, "other") as other:
        await member.enter()
        assert (await other.join()).code is Code.NONE
        found = scrape(gateway)
        assert found["octavo_gateway_groups"] == states | {("Stable",): 1, ("CompletingRebalance",): 1}
        assert found["octavo_gateway_members"][()] == 2
        assert found["octavo_gateway_coordinators"][()] == len({number_of("billing"), number_of("other")})
        await member.leave()
        assert scrape(gateway)["octavo_gateway_members"][()] == 1


async def test_lag_is_that_of_each_group_in_each_partition(
    cluster: GatewayCluster, gateway: Gateway, client: KafkaClient
) -> None:
    await client.produce("orders", batch_of(b"one", b"two", b"three"))
    async with await GroupClient.of(gateway.port) as member, await GroupClient.of(gateway.port, "audit") as other:
        assert await member.commit(1) is Code.NONE
        assert await other.commit(3) is Code.NONE
    assert "octavo_gateway_group_lag_records" not in scrape(gateway), "nothing has been looked at"
    await gateway.lag_watch.look()
    found = scrape(gateway)
    assert found["octavo_gateway_group_lag_records"] == {("billing", "orders", "0"): 2, ("audit", "orders", "0"): 0}
    assert set(found["octavo_gateway_group_behind_seconds"]) == {("billing",), ("audit",)}
    assert found["octavo_gateway_group_behind_seconds"]["audit",] == 0
    assert found["octavo_gateway_group_offsets_left_out"][()] == 0


async def test_a_malformed_request_is_counted_and_ends_its_connection(gateway: Gateway, client: KafkaClient) -> None:
    def malformed(name: str) -> float:
        return scrape(gateway)["octavo_gateway_requests_total"].get((name, "malformed"), 0)

    for key, version, name in ((PRODUCE, 7, "PRODUCE"), (METADATA, 5, "METADATA")):
        async with await KafkaClient.connect(gateway.port) as wrong:
            wrong.writer.write(frame(key, version, 1, b"\x7f" * 9))
            assert await wrong.reader.read() == b""
        assert malformed(name) == 1
