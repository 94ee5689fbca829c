"""A gateway as its clients see it, on bookies in memory (rules K1 to K7, and K12)."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from octavo.gateway.codes import Code
from octavo.gateway.gateway import Gateway
from octavo.gateway.leading.recent import BYTES_MAX as RECENT_BYTES_MAX
from octavo.gateway.records.batch import read_header
from octavo.gateway.records.names import anchor_document, snapshots_prefix
from octavo.gateway.topics.changes import DOCUMENT as CHANGES
from octavo.gateway.topics.document import decode_topic, topic_document
from octavo.protocol.messages import Op
from support.clusters.gateway_cluster import GatewayCluster, now_ms
from support.clusters.log_cluster import collect
from support.kafka.batches import batch_of
from support.kafka.client import (
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    FETCH,
    INIT_PRODUCER_ID,
    PRODUCE,
    KafkaClient,
    fetch_request,
    milliseconds,
    produce_request,
)
from support.waiting import eventually


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[KafkaClient]:
    async with await KafkaClient.connect(gateway.port) as connected:
        await connected.metadata("orders")
        yield connected


def of_producer(sequence: int, *values: bytes, producer_id: int = 7, epoch: int = 0) -> bytes:
    return batch_of(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


async def produce(client: KafkaClient, batch: bytes, topic: str = "orders", **settings: Any) -> tuple[Code, int]:
    (answer,) = await client.produce(topic, batch, **settings)
    return Code(answer.error_code.value), answer.base_offset


def hold_adds(cluster: GatewayCluster) -> None:
    for bookie in cluster.logs.bookies:
        bookie.hold(Op.ADD)


def release_adds(cluster: GatewayCluster) -> None:
    for bookie in cluster.logs.bookies:
        bookie.release(Op.ADD)


def batches_in(records: bytes) -> list[bytes]:
    found = []
    while records:
        size = 12 + int.from_bytes(records[8:12])
        found.append(records[:size])
        records = records[size:]
    return found


# --- topics -----------------------------------------------------------------------------------------------------------


async def test_a_topic_that_a_client_names_is_made_and_found(cluster: GatewayCluster, gateway: Gateway) -> None:
    async with await KafkaClient.connect(gateway.port) as client:
        assert (await client.metadata("orders", create=False)).topics[0].error_code.value == 3
        made = (await client.metadata("orders")).topics[0]
        assert (made.error_code.value, [one.leader_id for one in made.partitions]) == (0, [1])
        wrong = (await client.metadata("no/name")).topics[0]
        assert wrong.error_code.value == Code.INVALID_TOPIC_EXCEPTION
        everything = await client.ask(3, 1, {"topics": None})
        assert [(one.host, one.port) for one in everything.brokers] == [("127.0.0.1", gateway.port)]
        assert [one.name for one in everything.topics] == ["orders"]
        assert (await client.ask(3, 1, {"topics": []})).topics == ()
        assert [one.name for one in (await client.ask(3, 0, {"topics": []})).topics] == ["orders"]


async def test_a_gateway_may_make_no_topics_by_itself(cluster: GatewayCluster) -> None:
    gateway = await cluster.gateway(creates_topics=False)
    async with await KafkaClient.connect(gateway.port) as client:
        assert (await client.metadata("orders")).topics[0].error_code.value == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert await produce(client, batch_of(b"x")) == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1)


async def test_topics_are_created_described_and_deleted(client: KafkaClient) -> None:
    def wanted(name: str, configs: list[dict[str, Any]], partitions: int = 2) -> dict[str, Any]:
        return {
            "name": name, "num_partitions": partitions, "replication_factor": 3, "assignments": [], "configs": configs
        }  # fmt: skip

    asked = {"timeout": milliseconds(1000), "validate_only": False}
    size, compact = {"name": "max.message.bytes", "value": "500"}, {"name": "cleanup.policy", "value": "compact"}
    topics = [wanted("made", [size]), wanted("wrong", [compact]), wanted("orders", []), wanted("none", [], 0)]
    answer = await client.ask(CREATE_TOPICS, 4, asked | {"topics": topics})
    assert [Code(one.error_code.value) for one in answer.topics] == [
        Code.NONE, Code.INVALID_CONFIG, Code.TOPIC_ALREADY_EXISTS, Code.INVALID_PARTITIONS
    ]  # fmt: skip
    only_asked = await client.ask(CREATE_TOPICS, 4, asked | {"validate_only": True, "topics": [wanted("later", [])]})
    assert only_asked.topics[0].error_code.value == 0
    assert (await client.metadata("later", create=False)).topics[0].error_code.value == 3

    def resource(name: str, kind: int = 2, keys: list[str] | None = None) -> dict[str, Any]:
        return {"resource_type": kind, "resource_name": name, "configuration_keys": keys}

    resources = [resource("made", keys=["max.message.bytes"]), resource("later"), resource("1", 4), resource("x", 9)]
    flags = {"include_synonyms": False, "include_documentation": False}
    described = (await client.ask(DESCRIBE_CONFIGS, 1, {"resources": resources, **flags})).results
    assert [Code(one.error_code.value) for one in described] == [
        Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.NONE, Code.INVALID_REQUEST
    ]  # fmt: skip
    assert [(one.name, one.value) for one in described[0].configs] == [("max.message.bytes", "500")]
    assert await produce(client, batch_of(b"x" * 500), "made") == (Code.MESSAGE_TOO_LARGE, -1)

    deleted = await client.ask(DELETE_TOPICS, 3, {"topic_names": ["made", "later"], "timeout": milliseconds(1000)})
    assert [Code(one.error_code.value) for one in deleted.responses] == [Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert await produce(client, batch_of(b"x"), "made") == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1)


async def test_a_topic_that_is_made_again_begins_again(cluster: GatewayCluster, client: KafkaClient) -> None:
    assert await produce(client, batch_of(b"one", b"two")) == (Code.NONE, 0)
    await client.ask(DELETE_TOPICS, 3, {"topic_names": ["orders"], "timeout": milliseconds(1000)})
    assert [name async for name in cluster.logs.store.list_documents("kafka/")] == [CHANGES]
    assert (await client.fetch("orders", 0)).error_code.value == Code.UNKNOWN_TOPIC_OR_PARTITION
    await client.metadata("orders")
    assert await produce(client, batch_of(b"new")) == (Code.NONE, 0)
    assert (await client.fetch("orders", 0)).high_watermark == 1


# --- producing --------------------------------------------------------------------------------------------------------


async def test_batches_get_consecutive_offsets_and_are_stored_as_they_came(
    cluster: GatewayCluster, client: KafkaClient
) -> None:
    sent = [batch_of(b"one", b"two"), batch_of(b"three"), batch_of(b"four", b"five")]
    assert [(await produce(client, batch))[1] for batch in sent] == [0, 2, 3]
    log = await (await cluster.logs.client()).open_log("kafka/orders/0")
    stored = await collect(log, 0, 3)
    assert [(one[8:12], one[16:]) for one in stored] == [(one[8:12], one[16:]) for one in sent]
    headers = [header for one in stored if (header := read_header(one)) is not None]
    assert [(header.base_offset, header.leader_epoch) for header in headers] == [(0, 1), (2, 1), (3, 1)]


async def test_a_request_may_hold_batches_for_several_partitions_of_which_some_are_refused(
    client: KafkaClient,
) -> None:
    answers = await client.produce("orders", batch_of(b"one"), batch_of(b"two"))
    assert [Code(one.error_code.value) for one in answers] == [Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert "there is no partition 1" in answers[1].error_message


async def test_old_formats_transactions_and_wrong_acks_are_refused(client: KafkaClient) -> None:
    assert (await produce(client, batch_of(b"x", magic=1)))[0] is Code.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert (await produce(client, batch_of(b"x"), acks=2))[0] is Code.INVALID_REQUIRED_ACKS
    assert (await produce(client, batch_of(b"x", crc=5)))[0] is Code.CORRUPT_MESSAGE
    transactional = produce_request("orders", batch_of(b"x"), transactional_id="mine")
    answer = await client.ask(PRODUCE, 8, transactional)
    (refused,) = answer.responses[0].partition_responses
    assert (refused.error_code.value, refused.error_message) == (42, "transactions are not supported")
    assert await produce(client, batch_of(b"x")) == (Code.NONE, 0)


async def test_a_producer_that_wants_no_answer_gets_none(client: KafkaClient) -> None:
    await client.send(PRODUCE, 8, produce_request("orders", batch_of(b"one"), acks=0))
    assert await produce(client, batch_of(b"two")) == (Code.NONE, 1)


async def test_a_repeated_batch_is_stored_once_and_one_that_does_not_follow_is_refused(client: KafkaClient) -> None:
    assert await produce(client, of_producer(0, b"one", b"two")) == (Code.NONE, 0)
    assert await produce(client, of_producer(0, b"one", b"two")) == (Code.NONE, 0)
    assert await produce(client, of_producer(3, b"x")) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert await produce(client, of_producer(2, b"three")) == (Code.NONE, 2)
    assert await produce(client, of_producer(0, b"new", epoch=1)) == (Code.NONE, 3)
    assert await produce(client, of_producer(3, b"old")) == (Code.INVALID_PRODUCER_EPOCH, -1)


async def test_a_repeat_of_a_batch_under_way_is_answered_with_that_batch(
    cluster: GatewayCluster, client: KafkaClient, gateway: Gateway
) -> None:
    await produce(client, of_producer(0, b"one"))
    hold_adds(cluster)
    first = asyncio.create_task(produce(client, of_producer(1, b"two")))
    async with await KafkaClient.connect(gateway.port) as second:
        repeat = asyncio.create_task(produce(second, of_producer(1, b"two")))
        done, _ = await asyncio.wait([first, repeat], timeout=0.1)
        assert done == set(), "neither is answered before the batch is durable"
        release_adds(cluster)
        assert await first == await repeat == (Code.NONE, 1)


async def test_ids_of_producers_are_given_and_transactions_are_refused(client: KafkaClient) -> None:
    async def ask(transactional_id: str | None) -> Any:
        asked = {"transactional_id": transactional_id, "transaction_timeout": milliseconds(1000)}
        return await client.ask(INIT_PRODUCER_ID, 1, asked)

    first, second, refused = await ask(None), await ask(None), await ask("mine")
    assert (first.error_code.value, first.producer_id, first.producer_epoch) == (0, 0, 0)
    assert second.producer_id == 1
    assert (Code(refused.error_code.value), refused.producer_id) == (Code.UNSUPPORTED_VERSION, -1)


async def test_a_batch_that_is_late_is_answered_as_in_doubt_and_a_repeat_gets_its_offset(
    cluster: GatewayCluster, client: KafkaClient
) -> None:
    await produce(client, of_producer(0, b"one"))
    hold_adds(cluster)
    asked = produce_request("orders", of_producer(1, b"two")) | {"timeout": milliseconds(20)}
    answer = await client.ask(PRODUCE, 8, asked)
    assert answer.responses[0].partition_responses[0].error_code.value == Code.REQUEST_TIMED_OUT
    release_adds(cluster)
    assert await produce(client, of_producer(1, b"two")) == (Code.NONE, 1)


async def test_a_closed_connection_withdraws_no_batch(
    cluster: GatewayCluster, client: KafkaClient, gateway: Gateway
) -> None:
    await produce(client, batch_of(b"one"))
    hold_adds(cluster)
    async with await KafkaClient.connect(gateway.port) as second:
        await second.send(PRODUCE, 8, produce_request("orders", batch_of(b"two")))
        third = asyncio.create_task(produce(client, batch_of(b"three")))
        await asyncio.wait([third], timeout=0.1)
    release_adds(cluster)
    assert (await third)[0] is Code.NONE
    assert (await client.offset_at("orders", -1)).offset == 3


# --- consuming --------------------------------------------------------------------------------------------------------


async def test_a_fetch_gives_whole_batches_and_at_least_one(client: KafkaClient) -> None:
    sent = [batch_of(b"x" * 100, b"y"), batch_of(b"z"), batch_of(b"w")]
    for batch in sent:
        await produce(client, batch)
    fetched = await client.fetch("orders", 0)
    assert (fetched.high_watermark, fetched.log_start_offset) == (4, 0)
    assert [one[16:] for one in batches_in(fetched.records)] == [one[16:] for one in sent]
    within = await client.fetch("orders", 1, bytes_max=1, partition_bytes_max=1)
    assert [one[16:] for one in batches_in(within.records)] == [sent[0][16:]], "the batch that holds offset 1, whole"
    assert len(batches_in((await client.fetch("orders", 2, bytes_max=len(sent[1]))).records)) == 1
    assert (await client.fetch("orders", 4)).records in (None, b"")
    for offset in (5, -1):
        assert (await client.fetch("orders", offset)).error_code.value == Code.OFFSET_OUT_OF_RANGE


async def test_a_fetch_may_name_a_topic_by_its_id(cluster: GatewayCluster, client: KafkaClient) -> None:
    """As @platformatic/kafka does."""
    batch = batch_of(b"one", b"two")
    await produce(client, batch)
    found = await cluster.logs.store.read_document(topic_document("orders"))
    assert found is not None
    topic_id = uuid.UUID(hex=decode_topic(found.value, "orders").topic_id)
    answer = await client.ask(FETCH, 11, fetch_request(str(topic_id), 0))
    assert answer.responses[0].topic == str(topic_id)
    assert [one[16:] for one in batches_in(answer.responses[0].partitions[0].records)] == [batch[16:]]
    unknown = await client.fetch(str(uuid.UUID(int=7)), 0)
    assert unknown.error_code.value == Code.UNKNOWN_TOPIC_OR_PARTITION
    name = str(uuid.UUID(int=8))
    await client.metadata(name)
    await produce(client, batch_of(b"three"), name)
    assert len(batches_in((await client.fetch(name, 0)).records)) == 1, "the name of a topic is its name"


async def test_a_fetch_waits_for_records_and_ends_at_its_time(client: KafkaClient, gateway: Gateway) -> None:
    loop = asyncio.get_running_loop()
    await produce(client, batch_of(b"one"))
    began_at = loop.time()
    assert (await client.fetch("orders", 1, wait_ms=60)).records in (None, b"")
    assert loop.time() - began_at >= 0.05
    async with await KafkaClient.connect(gateway.port) as consumer:
        waiting = asyncio.create_task(consumer.fetch("orders", 1, wait_ms=60_000))
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert done == set()
        await produce(client, batch_of(b"two"))
        assert len(batches_in((await waiting).records)) == 1


async def test_a_fetch_that_wants_more_than_there_is_ends_at_its_time_also_while_records_come(
    client: KafkaClient, gateway: Gateway
) -> None:
    await produce(client, batch_of(b"one"))
    async with await KafkaClient.connect(gateway.port) as consumer:
        waiting = asyncio.create_task(consumer.fetch("orders", 0, wait_ms=150, bytes_min=1 << 20))
        while not waiting.done():
            await produce(client, batch_of(b"more"))
        assert len(batches_in((await waiting).records)) > 1


async def test_old_records_are_read_from_the_log(client: KafkaClient) -> None:
    large = b"x" * (RECENT_BYTES_MAX // 3)
    for number in range(8):
        assert await produce(client, batch_of(large, b"%d" % number)) == (Code.NONE, 2 * number)
    for offset in range(16):
        fetched = await client.fetch("orders", offset, bytes_max=1)
        (header,) = [read_header(one) for one in batches_in(fetched.records)]
        assert header is not None
        assert header.base_offset == offset // 2 * 2


async def test_entries_of_other_programs_take_no_offset_and_are_skipped(cluster: GatewayCluster) -> None:
    first = await cluster.gateway()
    async with await KafkaClient.connect(first.port) as client:
        await client.metadata("orders")
        await produce(client, batch_of(b"one", b"two"))
    await first.close()
    log = await (await cluster.logs.client()).open_log("kafka/orders/0")
    async with log.lead() as writer:
        await writer.add(b"of another program")
    second = await cluster.gateway()
    async with await KafkaClient.connect(second.port) as client:
        assert await produce(client, batch_of(b"three")) == (Code.NONE, 2)
        assert len(batches_in((await client.fetch("orders", 0)).records)) == 2
        old = await client.fetch("orders", 0, leader_epoch=1)
        assert old.error_code.value == Code.FENCED_LEADER_EPOCH, "the epoch of the first gateway"


async def test_offsets_are_listed_by_place_and_by_time(client: KafkaClient) -> None:
    assert ((await client.offset_at("orders", -1)).offset, (await client.offset_at("orders", -2)).offset) == (0, 0)
    times = [(b"one", 5000), (b"two", 3000), (b"three", 9000)]
    for value, time in times:
        await produce(client, batch_of(value, base_timestamp=time, max_timestamp=time))
    assert (await client.offset_at("orders", -1)).offset == 3
    found = {time: (await client.offset_at("orders", time)) for time in (0, 3000, 5000, 5001, 9001)}
    assert {time: (one.offset, one.timestamp) for time, one in found.items()} == {
        0: (0, 5000), 3000: (0, 5000), 5000: (0, 5000), 5001: (2, 9000), 9001: (-1, -1)
    }  # fmt: skip
    assert (await client.offset_at("orders", 0, partition=3)).error_code.value == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert (await client.offset_at("orders", -7)).error_code.value == Code.INVALID_REQUEST


async def test_sessions_and_epochs_of_leaders_that_are_not_known_are_refused(client: KafkaClient) -> None:
    await produce(client, batch_of(b"one"))
    assert (await client.fetch("orders", 0, leader_epoch=1)).error_code.value == Code.NONE
    assert (await client.fetch("orders", 0, leader_epoch=0)).error_code.value == Code.NONE, "librdkafka knows none"
    assert (await client.fetch("orders", 0, leader_epoch=2)).error_code.value == Code.UNKNOWN_LEADER_EPOCH
    answer = await client.ask(FETCH, 11, fetch_request("orders", 0, session_id=5))
    assert answer.error_code.value == Code.FETCH_SESSION_ID_NOT_FOUND


# --- leading ----------------------------------------------------------------------------------------------------------


async def test_the_next_gateway_knows_offsets_and_producers(cluster: GatewayCluster) -> None:
    """The first ends in order, and stores a snapshot; the second is lost with its lease."""
    for number in range(3):
        gateway = await cluster.gateway()
        async with await KafkaClient.connect(gateway.port) as client:
            await client.metadata("orders")
            if number:
                repeated = await produce(client, of_producer(number - 1, b"x"))
                assert repeated == (Code.NONE, number - 1), "the last batch of the gateway before"
            assert await produce(client, of_producer(number, b"x")) == (Code.NONE, number)
        await gateway.close()
    names = [name async for name in cluster.logs.store.list_documents("kafka/producers/")]
    assert len([name for name in names if "-" not in name.rpartition("/")[2]]) == 2, "two snapshots are kept"


async def test_a_gateway_whose_lease_has_ended_says_nothing_of_now(cluster: GatewayCluster) -> None:
    first = await cluster.gateway()
    async with await KafkaClient.connect(first.port) as client:
        await client.metadata("orders")
        for number in range(3):
            await produce(client, of_producer(number, b"x"))
        await cluster.lose_leases_of(first)
        second = await cluster.gateway()
        async with await KafkaClient.connect(second.port) as other:
            assert await produce(other, of_producer(2, b"x")) == (Code.NONE, 2)
            assert await produce(other, of_producer(3, b"x")) == (Code.NONE, 3)
        code, _ = await produce(client, of_producer(4, b"late"))
        assert code in (Code.NOT_LEADER_OR_FOLLOWER, Code.LEADER_NOT_AVAILABLE)


async def test_a_log_that_another_program_has_emptied_is_not_led(cluster: GatewayCluster) -> None:
    """Nothing tells its next offset, and offset 0 was given to another record (rule K2)."""
    first = await cluster.gateway()
    async with await KafkaClient.connect(first.port) as client:
        await client.metadata("orders")
        await produce(client, batch_of(b"one"))
    await first.close()
    other = await cluster.logs.client()
    log = await other.open_log("kafka/orders/0")
    await log.truncate(1)
    second = await cluster.gateway()
    async with await KafkaClient.connect(second.port) as client:
        assert await produce(client, batch_of(b"two")) == (Code.NONE, 1), "the snapshot names the next offset"
    await second.close()
    await log.refresh()
    await log.truncate(await log.refresh())
    async for name in cluster.logs.store.list_documents(snapshots_prefix(log.log_id)):
        await cluster.logs.store.delete_document(name)
    assert await cluster.logs.store.read_document(anchor_document(log.log_id)) is None
    third = await cluster.gateway()
    async with await KafkaClient.connect(third.port) as client:
        (answer,) = await client.produce("orders", batch_of(b"three"))
        assert answer.error_code.value == Code.LEADER_NOT_AVAILABLE
        assert "truncated" in answer.error_message


async def test_a_partition_whose_lead_is_lost_is_led_again_by_the_next_request(
    cluster: GatewayCluster, client: KafkaClient
) -> None:
    assert await produce(client, of_producer(0, b"one")) == (Code.NONE, 0)
    log = await (await cluster.logs.client()).open_log("kafka/orders/0")
    async with log.take_over():
        pass
    codes = set()

    async def is_led_again() -> bool:
        code, offset = await produce(client, of_producer(1, b"two"))
        codes.add(code)
        return (code, offset) == (Code.NONE, 1)

    await eventually(is_led_again)
    assert codes <= {Code.NONE, Code.NOT_LEADER_OR_FOLLOWER, Code.LEADER_NOT_AVAILABLE}
    assert (await client.fetch("orders", 0)).high_watermark == 2


async def test_the_next_gateway_reads_on_behind_a_snapshot(cluster: GatewayCluster) -> None:
    """The first gateway ends in order, and stores one; the second adds more, and is lost without another (rule K5)."""
    first = await cluster.gateway()
    async with await KafkaClient.connect(first.port) as client:
        await client.metadata("orders")
        assert await produce(client, of_producer(0, b"x")) == (Code.NONE, 0)
    await first.close()
    second = await cluster.gateway()
    async with await KafkaClient.connect(second.port) as client:
        assert await produce(client, of_producer(1, b"x", b"y")) == (Code.NONE, 1)
        await cluster.lose_leases_of(second)
        third = await cluster.gateway()
    async with await KafkaClient.connect(third.port) as client:
        assert await produce(client, of_producer(1, b"x", b"y")) == (Code.NONE, 1), "a repeat"
        assert await produce(client, of_producer(3, b"z")) == (Code.NONE, 3)


async def test_offsets_go_on_behind_a_batch_that_is_older_than_what_a_leader_reads(cluster: GatewayCluster) -> None:
    """Two days later, and without a snapshot: its producer counts as forgotten, its offsets do not (rule K2)."""
    first = await cluster.gateway()
    async with await KafkaClient.connect(first.port) as client:
        await client.metadata("orders")
        assert await produce(client, of_producer(0, b"x", b"y", producer_id=0)) == (Code.NONE, 0)
        await client.ask(INIT_PRODUCER_ID, 1, {"transactional_id": None, "transaction_timeout": milliseconds(1000)})
    await first.close()
    names = [name async for name in cluster.logs.store.list_documents("kafka/producers/")]
    for name in names:
        await cluster.logs.store.delete_document(name)
    cluster.clock_ms = lambda: now_ms() + 2 * 24 * 3600 * 1000
    second = await cluster.gateway()
    async with await KafkaClient.connect(second.port) as client:
        assert await produce(client, of_producer(2, b"z", producer_id=0)) == (Code.NONE, 2)
        assert await produce(client, of_producer(9, b"z", producer_id=5000)) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert (await client.fetch("orders", 0)).high_watermark == 3
