"""Topics: their documents, how they are made and deleted, and the ids of producers (rules K6 and K12)."""

import asyncio
from dataclasses import replace

import pytest
from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.topics.catalogue import ALL_PARTITIONS_MAX, TOPICS_MAX
from octavo.gateway.topics.document import (
    NAME_CHARACTERS_MAX,
    PARTITIONS_MAX,
    Topic,
    TopicState,
    check_topic_name,
    decode_topic,
    topic_document,
)
from octavo.gateway.topics.producer_ids import BLOCK, DOCUMENT, ProducerIds, encode_counter
from octavo.gateway.topics.settings import Change, TopicRetention, TopicSettings
from octavo.metadata import MetadataStore
from octavo.metadata.encoding import encode_object
from octavo.protocol.errors import MetadataError, MetadataUnavailableError
from octavo.protocol.ids import LedgerId
from support.clusters.gateway_cluster import GatewayCluster
from support.kafka.catalogues import catalogue_of
from support.metadata.interposed_store import InterposedStore

TOPIC = Topic("orders", "5f" * 16, partitions=3, write_quorum=3, ack_quorum=2)


async def logs_of(cluster: GatewayCluster) -> list[str]:
    return [name async for name in (await cluster.logs.client()).list_logs("kafka/")]


@pytest.mark.parametrize("name", ["orders", "a" * NAME_CHARACTERS_MAX, "a.b_c-D9", "_one"])
def test_a_name_that_a_topic_may_have(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "a" * (NAME_CHARACTERS_MAX + 1), "ü", "__own", "a\n"])
def test_a_name_that_no_topic_may_have_is_refused(name: str) -> None:
    with pytest.raises(RefusedError) as refused:
        check_topic_name(name)
    assert refused.value.code is Code.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("retention", [TopicRetention(), TopicRetention(1000, None), TopicRetention(None, 5)])
def test_a_topic_is_read_as_it_was_stored(retention: TopicRetention) -> None:
    topic = replace(TOPIC, settings=TopicSettings(7000, retention))
    assert decode_topic(topic.encode(), "orders") == topic
    assert (b'"retention"' in topic.encode()) == (retention != TopicRetention()), "older gateways do not know the field"


def test_a_topic_of_another_name_or_with_an_impossible_retention_is_refused() -> None:
    with pytest.raises(MetadataError, match="of another topic"):
        decode_topic(TOPIC.encode(), "payments")
    for wrong in ([0, None], [None, -1], ["1", None], [True, None], [1], [1, 1, 1]):
        fields = {
            "name": "orders", "topic_id": "5f" * 16, "partitions": 3, "write_quorum": 3, "ack_quorum": 2,
            "bytes_max": 500, "state": "active", "retention": wrong,
        }  # fmt: skip
        with pytest.raises(MetadataError, match="its retention is"):
            decode_topic(encode_object(fields, format_number=1), "orders")


async def test_settings_change_for_all_gateways_and_stay(cluster: GatewayCluster, store: MetadataStore) -> None:
    catalogue = await catalogue_of(cluster, cluster.logs.store)
    other = await catalogue_of(cluster, cluster.logs.store)
    topic = await catalogue.create("orders", 3)
    await other.catch_up()
    changes = [("retention.ms", Change.SET, "1000"), ("max.message.bytes", Change.SET, "500")]
    await catalogue.alter("orders", changes, anew=False, validate_only=True)
    assert catalogue.find("orders") == topic
    await catalogue.alter("orders", changes, anew=False, validate_only=False)
    assert catalogue.find("orders") == replace(topic, settings=TopicSettings(500, TopicRetention(1000)))
    assert (await other.look_again(topic)) == catalogue.find("orders")
    await other.alter("orders", [("retention.bytes", Change.SET, "9")], anew=True, validate_only=False)
    await catalogue.catch_up()
    assert catalogue.find("orders") == replace(topic, settings=TopicSettings(retention=TopicRetention(None, 9)))
    await other.delete("orders")
    assert await catalogue.look_again(topic) is None
    with pytest.raises(RefusedError, match="there is no topic 'orders'"):
        await catalogue.alter("orders", changes, anew=False, validate_only=False)


async def test_a_topic_is_a_log_for_each_partition(cluster: GatewayCluster, store: MetadataStore) -> None:
    catalogue = await catalogue_of(cluster, cluster.logs.store)
    topic = await catalogue.create("orders", 3)
    assert (topic.state, topic.write_quorum, topic.ack_quorum) == (TopicState.ACTIVE, 3, 2)
    assert await logs_of(cluster) == ["kafka/orders/0", "kafka/orders/1", "kafka/orders/2"]
    assert (await catalogue.create("payments", -1, 1)).partitions == 2
    again = await catalogue_of(cluster, cluster.logs.store)
    assert again.find("orders") == topic
    assert [one.name for one in again.all()] == ["orders", "payments"]
    assert again.partition("orders", 2) == topic
    for name, number in (("orders", 3), ("orders", -1), ("others", 0)):
        with pytest.raises(RefusedError, match="there is no partition"):
            again.partition(name, number)


async def test_a_topic_that_asks_for_more_copies_before_an_acknowledgement_gets_them(cluster: GatewayCluster) -> None:
    catalogue = await catalogue_of(cluster, cluster.logs.store)
    topic = await catalogue.create("orders", 1, 3, {"min.insync.replicas": "3"})
    assert (topic.write_quorum, topic.ack_quorum) == (3, 3)
    log = await (await cluster.logs.client()).open_log(topic.log_name(0))
    async with log.lead() as writer:
        await writer.add(b"a batch")
        (segment,) = (await log.status()).segments
    assert (await cluster.logs.store.read_stream(LedgerId(segment.ledger_id))).value.last_fragment.ack_quorum == 3
    await catalogue.alter("orders", [("min.insync.replicas", Change.SET, "2")], anew=False, validate_only=False)
    assert catalogue.find("orders") == topic
    with pytest.raises(RefusedError, match=r"min.insync.replicas is a number from 1 to 2, not '3'"):
        await catalogue.create("payments", 1, 2, {"min.insync.replicas": "3"})
    assert catalogue.find("payments") is None


async def test_a_deleted_topic_is_gone_and_its_id_is_not_used_again(cluster: GatewayCluster) -> None:
    catalogue = await catalogue_of(cluster, cluster.logs.store)
    first = await catalogue.create("orders")
    await catalogue.delete("orders")
    assert catalogue.find("orders") is None
    assert await logs_of(cluster) == []
    assert await cluster.logs.store.read_document(topic_document("orders")) is None
    with pytest.raises(RefusedError, match="there is no topic"):
        await catalogue.delete("orders")
    assert (await catalogue.create("orders")).topic_id != first.topic_id


async def test_two_requests_for_one_topic_make_one(cluster: GatewayCluster) -> None:
    catalogue = await catalogue_of(cluster, cluster.logs.store)
    made = await asyncio.gather(*(catalogue.create("orders") for _ in range(3)), return_exceptions=True)
    refused = [one.code for one in made if isinstance(one, RefusedError)]
    assert refused == [Code.TOPIC_ALREADY_EXISTS] * 2


@pytest.mark.parametrize("failing", [1, 2, 3])
async def test_a_topic_that_was_left_half_made_or_half_deleted_is_finished(
    cluster: GatewayCluster, failing: int
) -> None:
    """The gateway dies before the topic is there, before its deletion has begun, and before its document goes."""
    store = InterposedStore(await cluster.logs.metadata.open())
    catalogue = await catalogue_of(cluster, store.face)
    kept = await catalogue.create("kept")
    writes = 0

    async def die(*arguments: object) -> object:
        nonlocal writes
        writes += 1
        if writes == failing:
            raise MetadataUnavailableError("the gateway dies")
        return await store.real.compare_and_set_document(*arguments)  # type: ignore[arg-type]

    store.interpose("compare_and_set_document", die)
    if failing == 1:
        with pytest.raises(MetadataUnavailableError):
            await catalogue.create("orders")
        assert catalogue.find("orders") is None
    else:
        await catalogue.create("orders")
        store.make_unavailable("delete_document")
        with pytest.raises(MetadataUnavailableError):
            await catalogue.delete("orders")
    next_one = await catalogue_of(cluster, cluster.logs.store)
    assert [one.name for one in next_one.all()] == (["kept"] if failing == 3 else ["kept", "orders"])
    assert next_one.find("kept") == kept
    store.restore()
    if failing == 1:
        assert (await catalogue.create("payments")).state is TopicState.ACTIVE


async def test_a_topic_that_could_not_be_made_is_finished_by_the_next_request_for_it(cluster: GatewayCluster) -> None:
    store = InterposedStore(await cluster.logs.metadata.open())
    catalogue = await catalogue_of(cluster, store.face)
    store.make_unavailable("compare_and_set_document")
    with pytest.raises(MetadataUnavailableError):
        await catalogue.create("orders")
    store.restore()
    assert (await catalogue.create("orders")).state is TopicState.ACTIVE


@pytest.mark.parametrize(
    ("partitions", "replicas", "code"),
    [
        (0, -1, Code.INVALID_PARTITIONS),
        (PARTITIONS_MAX + 1, -1, Code.INVALID_PARTITIONS),
        (1, 0, Code.INVALID_REPLICATION_FACTOR),
        (1, 4, Code.INVALID_REPLICATION_FACTOR),
    ],
)
async def test_numbers_that_a_topic_cannot_have_are_refused(
    cluster: GatewayCluster, partitions: int, replicas: int, code: Code
) -> None:
    catalogue = await catalogue_of(cluster, cluster.logs.store)
    with pytest.raises(RefusedError) as refused:
        await catalogue.create("orders", partitions, replicas)
    assert refused.value.code is code


async def test_there_are_not_more_topics_than_the_limit(cluster: GatewayCluster) -> None:
    store = cluster.logs.store
    for number in range(TOPICS_MAX):
        topic = replace(TOPIC, name=f"t{number}", partitions=1)
        await store.create_document(topic_document(topic.name), topic.encode())
    catalogue = await catalogue_of(cluster, store)
    with pytest.raises(RefusedError, match="which is the limit"):
        await catalogue.create("orders")


async def test_there_are_not_more_partitions_than_the_limit(cluster: GatewayCluster) -> None:
    store = cluster.logs.store
    large = replace(TOPIC, partitions=ALL_PARTITIONS_MAX - 1)
    await store.create_document(topic_document(large.name), large.encode())
    catalogue = await catalogue_of(cluster, store)
    with pytest.raises(RefusedError, match="at most"):
        await catalogue.create("payments", 2)
    assert (await catalogue.create("payments", 1)).partitions == 1


async def test_no_producer_id_is_given_twice_in_any_gateway(store: MetadataStore) -> None:
    gateways = [ProducerIds(store) for _ in range(3)]
    taken = [await gateways[number % 3].take() for number in range(30)]
    taken += await asyncio.gather(*(one.take() for one in gateways for _ in range(BLOCK)))
    assert len(set(taken)) == len(taken)
    assert await gateways[0].highest_stop() > max(taken)


async def test_ids_begin_at_0_and_go_on_behind_the_counter(store: MetadataStore) -> None:
    assert await ProducerIds(store).highest_stop() == 0
    assert [await ProducerIds(store).take(), await ProducerIds(store).take()] == [0, BLOCK]


async def test_a_damaged_counter_gives_no_id(store: MetadataStore) -> None:
    await store.create_document(DOCUMENT, encode_counter(-1))
    with pytest.raises(MetadataError, match="below 0"):
        await ProducerIds(store).take()
