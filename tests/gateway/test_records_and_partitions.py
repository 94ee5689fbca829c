"""Records that are deleted, and topics that get more partitions (rules K2 and K12)."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from octavo.gateway.codes import Code
from octavo.gateway.gateway import Gateway
from octavo.gateway.leading.recent import BYTES_MAX as RECENT_BYTES_MAX
from octavo.gateway.records.batch import read_header
from octavo.gateway.records.names import anchor_document
from octavo.gateway.topics.document import PARTITIONS_MAX
from octavo.protocol.errors import MetadataUnavailableError
from support.clusters.gateway_cluster import GatewayCluster
from support.kafka.batches import batch_of
from support.kafka.catalogues import catalogue_of
from support.kafka.client import CREATE_PARTITIONS, DELETE_RECORDS, DELETE_TOPICS, KafkaClient, milliseconds
from support.kafka.groups import FIND_COORDINATOR
from support.metadata.interposed_store import InterposedStore
from support.waiting import eventually

EARLIEST = -2
END = -1


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[KafkaClient]:
    async with await KafkaClient.connect(gateway.port) as connected:
        await connected.metadata("orders")
        yield connected


async def produce(client: KafkaClient, *values: bytes, partition: int = 0) -> tuple[Code, int]:
    (answer,) = await client.produce_at("orders", partition, batch_of(*values))
    return Code(answer.error_code.value), answer.base_offset


async def delete_below(client: KafkaClient, offset: int, topic: str = "orders", partition: int = 0) -> tuple[Code, int]:
    rows = [{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}]
    answer = await client.ask(DELETE_RECORDS, 1, {"topics": rows, "timeout": milliseconds(1000)})
    one = answer.topics[0].partitions[0]
    assert one.partition_index == partition
    return Code(one.error_code.value), one.low_watermark


async def first_position(cluster: GatewayCluster) -> int:
    log = await (await cluster.logs.client()).open_log("kafka/orders/0")
    return log.first_position


async def test_records_below_an_offset_are_deleted(cluster: GatewayCluster, client: KafkaClient) -> None:
    for number in range(3):
        assert await produce(client, b"x", b"y") == (Code.NONE, 2 * number)
    assert await delete_below(client, 3) == (Code.NONE, 3)
    assert (await client.offset_at("orders", EARLIEST)).offset == 3
    assert (await client.fetch("orders", 2)).error_code.value == Code.OFFSET_OUT_OF_RANGE
    fetched = await client.fetch("orders", 3, partition_bytes_max=1)
    assert (fetched.error_code.value, fetched.log_start_offset, fetched.high_watermark) == (0, 3, 6)
    header = read_header(fetched.records)
    assert header is not None
    assert header.base_offset == 2, "the whole batch that holds the offset"
    assert await first_position(cluster) == 1
    assert await delete_below(client, 1) == (Code.NONE, 3), "it never begins lower again"
    assert await produce(client, b"z") == (Code.NONE, 6)


async def test_offsets_go_on_where_all_records_were_deleted(cluster: GatewayCluster, gateway: Gateway) -> None:
    """The next gateway finds no entry, and begins at the anchor."""
    async with await KafkaClient.connect(gateway.port) as client:
        await client.metadata("orders")
        await produce(client, b"x", b"y", b"z")
        assert await delete_below(client, END) == (Code.NONE, 3)
        assert (await client.fetch("orders", 3)).records == b""
    assert await first_position(cluster) == 1
    await cluster.lose_leases_of(gateway)
    second = await cluster.gateway()
    async with await KafkaClient.connect(second.port) as client:
        assert (await client.offset_at("orders", EARLIEST)).offset == 3
        assert (await client.offset_at("orders", END)).offset == 3
        assert await produce(client, b"a") == (Code.NONE, 3)
        assert (await client.fetch("orders", 2)).error_code.value == Code.OFFSET_OUT_OF_RANGE
        assert (await client.fetch("orders", 3)).high_watermark == 4


async def test_what_is_left_is_found_by_its_offset_also_by_the_next_leader(
    cluster: GatewayCluster, gateway: Gateway
) -> None:
    async with await KafkaClient.connect(gateway.port) as client:
        await client.metadata("orders")
        for _ in range(20):
            await produce(client, b"x", b"y")
    await gateway.close()
    second = await cluster.gateway()
    async with await KafkaClient.connect(second.port) as client:
        assert await delete_below(client, 17) == (Code.NONE, 17)
        for offset in range(17, 40):
            fetched = await client.fetch("orders", offset, partition_bytes_max=1)
            header = read_header(fetched.records)
            assert header is not None
            assert header.base_offset == offset - offset % 2
    await second.close()
    third = await cluster.gateway()
    async with await KafkaClient.connect(third.port) as client:
        assert (await client.offset_at("orders", EARLIEST)).offset == 17
        assert (await client.fetch("orders", 17)).error_code.value == 0
        assert (await client.fetch("orders", 16)).error_code.value == Code.OFFSET_OUT_OF_RANGE


async def test_records_behind_the_deleted_ones_are_found_in_the_log(client: KafkaClient) -> None:
    """They are not looked for where the log has no entries any more."""
    for _ in range(20):
        await produce(client, b"x")
    assert await delete_below(client, END) == (Code.NONE, 20)
    for offset in range(20, 24):
        assert await produce(client, b"x" * (RECENT_BYTES_MAX // 3)) == (Code.NONE, offset)
    fetched = await client.fetch("orders", 20, partition_bytes_max=1)
    header = read_header(fetched.records)
    assert (fetched.error_code.value, header is not None and header.base_offset) == (0, 20)


async def test_records_that_cannot_be_deleted_are_refused(client: KafkaClient) -> None:
    await produce(client, b"x", b"y")
    for offset in (3, -2):
        assert await delete_below(client, offset) == (Code.OFFSET_OUT_OF_RANGE, -1)
    assert await delete_below(client, 1, "others") == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert await delete_below(client, 1, partition=1) == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert (await client.offset_at("orders", EARLIEST)).offset == 0


async def test_no_entry_is_removed_before_the_anchor_is_stored(cluster: GatewayCluster) -> None:
    store = InterposedStore(await cluster.logs.metadata.open())
    gateway = await cluster.gateway_on(store.face)
    async with await KafkaClient.connect(gateway.port) as client:
        await client.metadata("orders")
        await produce(client, b"x", b"y")

        async def put(name: str, *arguments: Any) -> Any:
            if name.startswith(anchor_document("")):
                raise MetadataUnavailableError("no answer")
            return await store.real.put_document(name, *arguments)

        store.interpose("put_document", put)
        assert await delete_below(client, END) == (Code.REQUEST_TIMED_OUT, -1)
        assert await first_position(cluster) == 0
        assert (await client.offset_at("orders", EARLIEST)).offset == 0
        store.restore()
        assert await delete_below(client, END) == (Code.NONE, 2)
        assert await first_position(cluster) == 1


# --- partitions -------------------------------------------------------------------------------------------------------


async def grow(client: KafkaClient, topic: str, count: int, **changes: Any) -> Code:
    row: Mapping[str, Any] = {"name": topic, "count": count, "assignments": changes.pop("assignments", None)}
    asked = {"topics": [row], "timeout": milliseconds(1000), "validate_only": False} | changes
    (answer,) = (await client.ask(CREATE_PARTITIONS, 1, asked)).results
    assert (answer.name, answer.error_message is None) == (topic, answer.error_code.value == 0)
    return Code(answer.error_code.value)


async def partitions_of(client: KafkaClient, topic: str = "orders") -> int:
    (found,) = (await client.metadata(topic, create=False)).topics
    return len(found.partitions)


async def test_a_topic_gets_more_partitions_at_every_gateway(cluster: GatewayCluster, client: KafkaClient) -> None:
    assert await produce(client, b"x") == (Code.NONE, 0)
    assert await grow(client, "orders", 3, validate_only=True) is Code.NONE
    assert await partitions_of(client) == 1
    assert await grow(client, "orders", 3) is Code.NONE
    assert await partitions_of(client) == 3
    for partition in (1, 2):
        assert await produce(client, b"x", partition=partition) == (Code.NONE, 0)
    assert await produce(client, b"x") == (Code.NONE, 1)
    other = await cluster.gateway()
    async with await KafkaClient.connect(other.port) as beside:
        assert await partitions_of(beside) == 3
        assert await grow(client, "orders", 4) is Code.NONE

        async def knows() -> bool:
            return await partitions_of(beside) == 4

        await eventually(knows)


async def test_partitions_that_a_topic_cannot_have_are_refused(client: KafkaClient) -> None:
    for count in (0, 1, PARTITIONS_MAX + 1):
        assert await grow(client, "orders", count) is Code.INVALID_PARTITIONS
    assert await grow(client, "others", 3) is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert await grow(client, "no/topic", 3) is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert await grow(client, "orders", 3, assignments=[{"broker_ids": (1,)}]) is Code.INVALID_REQUEST
    await client.ask(FIND_COORDINATOR, 2, {"key": "billing", "key_type": 0})
    assert await grow(client, "__consumer_offsets", 17) is Code.INVALID_TOPIC_EXCEPTION
    assert await partitions_of(client) == 1


async def test_logs_that_did_not_become_partitions_are_deleted_with_the_topic(cluster: GatewayCluster) -> None:
    """The gateway dies when the logs are made, before the topic has more partitions."""
    store = InterposedStore(await cluster.logs.metadata.open())
    catalogue = await catalogue_of(cluster, store.face)
    await catalogue.create("orders", 1)
    store.make_unavailable("compare_and_set_document")
    with pytest.raises(MetadataUnavailableError):
        await catalogue.grow("orders", 3)
    gateway = await cluster.gateway()
    async with await KafkaClient.connect(gateway.port) as client:
        assert await partitions_of(client) == 1
        asked = {"topic_names": ("orders",), "timeout": milliseconds(1000)}
        assert (await client.ask(DELETE_TOPICS, 3, asked)).responses[0].error_code.value == 0
    assert [name async for name in (await cluster.logs.client()).list_logs("kafka/")] == []
