"""Retention of topics: what goes, and where partitions and offsets begin then (rules K2 and K15)."""

import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from octavo.client.client import Client
from octavo.client.log.documents.chain import Retention
from octavo.client.options import ClientOptions
from octavo.gateway.codes import Code
from octavo.gateway.gateway import Gateway, GatewaySettings
from octavo.gateway.leading.retaining import retention_of
from octavo.gateway.records.batch import read_header
from octavo.gateway.records.names import anchor_document
from octavo.gateway.records.offsets import Anchor, decode_anchor
from octavo.gateway.topics.settings import TopicRetention
from octavo.metadata.clocks.proven_time import BootTime
from octavo.protocol.errors import MetadataUnavailableError
from support.clusters.gateway_cluster import GatewayCluster, now_ms, open_gateway_cluster
from support.clusters.log_cluster import QUICK
from support.kafka.batches import batch_of
from support.kafka.client import (
    ALTER_CONFIGS,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    KafkaClient,
    milliseconds,
)
from support.metadata.interposed_store import InterposedStore
from support.waiting import eventually

EARLIEST, LATEST, TOPIC = -2, -1, 2
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HALF = timedelta(minutes=30)


@pytest.fixture
async def cluster() -> AsyncIterator[GatewayCluster]:
    async with open_gateway_cluster() as made:
        made.client_options["log_segment_bytes"] = 1  # each batch begins another fragment
        yield made


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[KafkaClient]:
    async with await KafkaClient.connect(gateway.port) as connected:
        await connected.metadata("orders")
        yield connected


async def produce(client: KafkaClient, count: int) -> int:
    """Batches of two records, each in a fragment of its own; the size of one."""
    batch = batch_of(b"x" * 500, b"y" * 500)
    for _ in range(count):
        (answer,) = await client.produce("orders", batch)
        assert answer.error_code.value == 0
    return len(batch)


async def alter(client: KafkaClient, *changes: tuple[str, int, str | None], **settings: Any) -> tuple[Code, str | None]:
    """Change settings of the topic; the operations are SET 0, DELETE 1, APPEND 2 and SUBTRACT 3."""
    configs = [{"name": name, "config_operation": operation, "value": value} for name, operation, value in changes]
    resource = {"resource_type": TOPIC, "resource_name": "orders", "configs": configs} | settings
    answer = await client.ask(INCREMENTAL_ALTER_CONFIGS, 0, {"resources": [resource], "validate_only": False})
    one = answer.responses[0]
    return Code(one.error_code.value), one.error_message


async def described(client: KafkaClient) -> dict[str, tuple[str, int, bool]]:
    """Value, source, and whether it cannot be changed, of each setting."""
    resource = {"resource_type": TOPIC, "resource_name": "orders", "configuration_keys": None}
    asked = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    (result,) = (await client.ask(DESCRIBE_CONFIGS, 1, asked)).results
    (newest,) = (await client.ask(DESCRIBE_CONFIGS, 3, asked)).results
    assert [(one.name, one.value) for one in newest.configs] == [(one.name, one.value) for one in result.configs]
    return {one.name: (one.value, one.config_source, one.read_only) for one in result.configs}


async def begins(client: KafkaClient) -> int:
    return int((await client.offset_at("orders", EARLIEST)).offset)


async def anchor(cluster: GatewayCluster) -> Anchor:
    log = await (await cluster.logs.client()).open_log("kafka/orders/0")
    stored = await cluster.logs.store.read_document(anchor_document(log.log_id))
    return Anchor() if stored is None else decode_anchor(stored.value, log.log_id)


async def rolled(gateway: Gateway, client: KafkaClient, cluster: GatewayCluster) -> None:
    """Return once all batches but the last are in fragments that are over."""
    end = (await client.offset_at("orders", LATEST)).offset // 2

    async def has_rolled() -> bool:
        (led,) = gateway.leaders.led
        return bool(await led.log.would_drop(Retention(bytes=1)) >= end - 1)

    await eventually(has_rolled)


async def test_the_oldest_records_go_while_there_are_more_bytes_than_the_topic_keeps(
    cluster: GatewayCluster, gateway: Gateway, client: KafkaClient
) -> None:
    size = await produce(client, 6)
    await rolled(gateway, client, cluster)
    await gateway.retaining.look()
    assert await begins(client) == 0, "the topic keeps everything"
    assert await alter(client, ("retention.bytes", 0, str(3 * size))) == (Code.NONE, None)
    await gateway.retaining.look()
    begin = await begins(client)
    assert begin in {4, 6}, "whole fragments, and never below the limit"
    assert await anchor(cluster) == Anchor(begin // 2, begin, begin)
    assert (await client.fetch("orders", begin - 1)).error_code.value == Code.OFFSET_OUT_OF_RANGE
    fetched = await client.fetch("orders", begin, partition_bytes_max=1)
    header = read_header(fetched.records)
    assert header is not None
    assert (header.base_offset, fetched.log_start_offset) == (begin, begin)
    await gateway.retaining.look()
    assert await begins(client) == begin
    (answer,) = await client.produce("orders", batch_of(b"z"))
    assert answer.base_offset == 12


async def test_the_next_leader_begins_where_the_last_one_has_cut(cluster: GatewayCluster, gateway: Gateway) -> None:
    """A takeover opens an empty fragment, and retention leaves nothing before it: the next offset is the anchor's."""
    async with await KafkaClient.connect(gateway.port) as client:
        await client.metadata("orders")
        await produce(client, 3)
        await rolled(gateway, client, cluster)
        await alter(client, ("retention.bytes", 0, "1"))
    await gateway.close()
    second = await cluster.gateway()
    async with await KafkaClient.connect(second.port) as client:
        await eventually(lambda: _has_gone(second, client, 6))
        assert (await client.offset_at("orders", LATEST)).offset == 6
        assert (await client.fetch("orders", 6)).records == b""
    await second.close()
    third = await cluster.gateway()
    async with await KafkaClient.connect(third.port) as client:
        (answer,) = await client.produce("orders", batch_of(b"x"))
        assert (answer.base_offset, await begins(client)) == (6, 6)


async def _has_gone(gateway: Gateway, client: KafkaClient, offset: int) -> bool:
    await gateway.retaining.look()
    return await begins(client) == offset


async def test_nothing_is_removed_before_the_anchor_stands(cluster: GatewayCluster) -> None:
    real = await cluster.logs.metadata.open()
    store = InterposedStore(real)
    gateway = await cluster.gateway_on(store.face)
    async with await KafkaClient.connect(gateway.port) as client:
        await client.metadata("orders")
        await produce(client, 4)
        await rolled(gateway, client, cluster)
        await alter(client, ("retention.bytes", 0, "1"))

        async def refuse(name: str, *rest: Any) -> Any:
            if name.startswith("kafka/anchors/"):
                raise MetadataUnavailableError("the store does not answer")
            return await real.put_document(name, *rest)

        store.interpose("put_document", refuse)
        await gateway.retaining.look()
        assert await begins(client) == 0
        assert (await client.fetch("orders", 0)).error_code.value == 0
        store.restore()
        await gateway.retaining.look()
        assert await begins(client) >= 4


async def test_records_that_were_deleted_do_not_come_back(gateway: Gateway, client: KafkaClient) -> None:
    """Retention that would cut lower than DeleteRecords has cut changes nothing."""
    size = await produce(client, 6)
    (led,) = gateway.leaders.led
    assert await led.delete_below(9) == 9
    await alter(client, ("retention.bytes", 0, str(5 * size)))
    await gateway.retaining.look()
    assert await begins(client) == 9
    header = read_header((await client.fetch("orders", 9, partition_bytes_max=1)).records)
    assert header is not None
    assert header.base_offset == 8


async def test_partitions_of_a_topic_with_retention_are_led_without_being_asked_for(cluster: GatewayCluster) -> None:
    first = await cluster.gateway()
    second = await cluster.gateway()
    wanted = {
        "name": "orders", "num_partitions": 8, "replication_factor": 3, "assignments": [],
        "configs": [{"name": "retention.ms", "value": "1000"}],
    }  # fmt: skip
    async with await KafkaClient.connect(first.port) as client:
        asked = {"topics": [wanted], "timeout": milliseconds(1000), "validate_only": False}
        assert (await client.ask(CREATE_TOPICS, 4, asked)).topics[0].error_code.value == 0
        assert (await described(client))["retention.ms"] == ("1000", 1, False)
    await eventually(lambda: second.catalogue.find("orders") is not None and len(first.gateways.present) == 2)
    await eventually(lambda: len(second.gateways.present) == 2)
    assert len(first.leaders) == len(second.leaders) == 0
    await first.retaining.look()
    await second.retaining.look()
    assert len(first.leaders) + len(second.leaders) == 8
    assert min(len(first.leaders), len(second.leaders)) > 0


async def test_settings_are_changed_described_and_refused(client: KafkaClient) -> None:
    assert await alter(client, ("retention.ms", 0, "5000"), ("max.message.bytes", 0, "900")) == (Code.NONE, None)
    found = await described(client)
    assert (found["retention.ms"], found["max.message.bytes"]) == (("5000", 1, False), ("900", 1, False))
    assert found["retention.bytes"] == ("-1", 5, False)
    assert found["cleanup.policy"] == ("delete", 5, True)
    assert await alter(client, ("retention.ms", 1, None)) == (Code.NONE, None)
    code, text = await alter(client, ("retention.ms", 0, "1"), ("cleanup.policy", 0, "compact"))
    assert (code, text) == (
        Code.INVALID_CONFIG,
        "cleanup.policy can only be delete, not compact: compaction is not supported",
    )
    assert (await described(client))["retention.ms"] == ("-1", 5, False), "none of them, or all"
    assert (await alter(client, ("retention.ms", 9, "1")))[0] is Code.INVALID_REQUEST
    assert (await alter(client, resource_type=4))[0] is Code.INVALID_REQUEST
    assert (await alter(client, resource_name="none"))[0] is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert (await alter(client, resource_name="__consumer_offsets"))[0] is Code.UNKNOWN_TOPIC_OR_PARTITION
    resource = {
        "resource_type": TOPIC, "resource_name": "orders", "configs": [{"name": "retention.bytes", "value": "77"}]
    }  # fmt: skip
    for validate_only, value in ((True, "-1"), (False, "77")):
        answer = await client.ask(ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": validate_only})
        assert answer.responses[0].error_code.value == 0
        assert (await described(client))["retention.bytes"][0] == value
    assert (await described(client))["max.message.bytes"] == ("1048588", 5, False), "what is not named gets its default"


@pytest.mark.parametrize("off", [timedelta(), timedelta(days=365)])
async def test_records_go_once_the_log_has_proved_that_they_are_old_enough(
    cluster: GatewayCluster, off: timedelta
) -> None:
    """Whatever the gateway's clock says, which is set an hour after they came, perhaps to next year."""
    passed = timedelta()
    store = InterposedStore(await cluster.logs.metadata.open())

    async def store_time_ms() -> int:
        return int((NOON + passed).timestamp() * 1000)

    store.interpose("time_ms", store_time_ms)
    client = Client(
        store.face,
        cluster_id=cluster.logs.cluster_id,
        options=ClientOptions(**QUICK, log_segment_bytes=1),
        rng=random.Random(1),
        wall_clock=lambda: NOON + passed + (off if passed >= HALF else timedelta()),
        boot_clock=lambda: BootTime("a", int(passed.total_seconds() * 1000) + 1000),
    )
    await cluster.logs.stack.enter_async_context(client)
    gateway = await Gateway.start(
        client, store.face, GatewaySettings(port=0), name="a", clock_ms=now_ms, rng=random.Random(2)
    )
    cluster.stack.push_async_callback(gateway.close)
    async with await KafkaClient.connect(gateway.port) as consumer:
        await consumer.metadata("orders")
        await produce(consumer, 4)
        await rolled(gateway, consumer, cluster)
        await alter(consumer, ("retention.ms", 0, str(3600 * 1000)))
        while passed < timedelta(minutes=60):
            await gateway.retaining.look()
            assert await begins(consumer) == 0
            passed += timedelta(minutes=5)
        while passed < timedelta(minutes=75):
            passed += timedelta(minutes=5)
            await gateway.retaining.look()
        assert await begins(consumer) in {6, 8}, "the last fragment, which may be empty, never goes"


@pytest.mark.parametrize(
    ("retention", "of_the_log"),
    [
        (TopicRetention(1500, None), Retention(seconds=1.5)),
        (TopicRetention(None, 7), Retention(bytes=7)),
        (TopicRetention(1, 1), Retention(seconds=0.001, bytes=1)),
        (TopicRetention(2**63 - 1, None), Retention(seconds=(2**63 - 1) / 1000)),
    ],
)
def test_the_retention_of_a_topic_as_logs_understand_it(retention: TopicRetention, of_the_log: Retention) -> None:
    assert retention_of(retention) == of_the_log
