"""How gateways learn of the topics that others change (rule K12)."""

import asyncio
from dataclasses import replace

import pytest
from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.topics.catalogue import LOCK, Catalogue
from octavo.gateway.topics.changes import DOCUMENT, NAMES_MAX, TopicChanges, decode_changes
from octavo.gateway.topics.document import Topic, TopicState, decode_topic, topic_document
from octavo.metadata.encoding import encode_object
from octavo.protocol.errors import MetadataError, MetadataUnavailableError, OctavoTimeoutError
from support.clusters.gateway_cluster import GatewayCluster
from support.kafka.catalogues import catalogue_of
from support.metadata.interposed_store import InterposedStore
from support.waiting import eventually


def test_changes_since_a_number_are_the_names_behind_it() -> None:
    changes = TopicChanges().then("a").then("b").then("a")
    assert [changes.since(number) for number in range(4)] == [{"a", "b"}, {"a", "b"}, {"a"}, set()]
    assert changes.since(4) is None, "of another cluster, or from before a restore"
    for _ in range(NAMES_MAX):
        changes = changes.then("c")
    assert len(changes.names) == NAMES_MAX
    assert changes.since(3) == {"c"}
    assert changes.since(2) is None
    assert decode_changes(changes.encode()) == changes


@pytest.mark.parametrize("fields", [{"number": 1, "names": ["a", "b"]}, {"number": 1, "names": [1]}])
def test_changes_that_contradict_each_other_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(MetadataError, match="do not go with its number"):
        decode_changes(encode_object(fields, format_number=1))


async def two(cluster: GatewayCluster, gone: list[Topic] | None = None) -> tuple[Catalogue, Catalogue]:
    """Two gateways' catalogues; the second one is told of topics that are ``gone``."""
    stores = [await cluster.logs.metadata.open() for _ in range(2)]
    return await catalogue_of(cluster, stores[0]), await catalogue_of(cluster, stores[1], gone)


async def test_a_gateway_that_has_caught_up_knows_what_others_have_changed(cluster: GatewayCluster) -> None:
    gone: list[Topic] = []
    one, other = await two(cluster, gone)
    made = await one.create("orders")
    assert other.find("orders") is None
    await other.catch_up()
    assert other.find("orders") == made
    await one.delete("orders")
    again = await one.create("orders")
    await other.catch_up()
    assert other.find("orders") == again
    assert gone == [made]
    assert not other.has_id(made.topic_id)
    assert other.has_id(again.topic_id)
    await other.delete("orders")
    await one.catch_up()
    assert one.all() == []
    assert gone == [made], "its own deletion is not told"


async def test_a_gateway_that_is_far_behind_reads_all(cluster: GatewayCluster) -> None:
    one, other = await two(cluster)
    await one.create("orders")
    store = cluster.logs.store
    found = await store.read_document(DOCUMENT)
    assert found is not None
    changes = decode_changes(found.value)
    for _ in range(NAMES_MAX):
        changes = changes.then("payments")
    await store.put_document(DOCUMENT, changes.encode(), found.version)
    await other.catch_up()
    assert [topic.name for topic in other.all()] == ["orders"]


async def test_a_topic_can_be_looked_for_before_its_announcement_arrives(cluster: GatewayCluster) -> None:
    one, other = await two(cluster)
    made = await one.create("orders")
    assert await other.look("orders") == made
    assert await other.look("payments") is None
    assert await other.look("no/topic") is None


async def test_a_topic_is_announced_before_it_can_be_used(cluster: GatewayCluster) -> None:
    """A coordinator that has caught up knows its id, and does not forget its offsets (rule K10)."""
    store = InterposedStore(await cluster.logs.metadata.open())
    one = await catalogue_of(cluster, store.face)
    other = await catalogue_of(cluster, await cluster.logs.metadata.open())

    async def die(*_arguments: object) -> object:
        await other.catch_up()
        raise MetadataUnavailableError("the gateway dies")

    store.interpose("compare_and_set_document", die)  # to the state in which it can be used
    with pytest.raises(MetadataUnavailableError):
        await one.create("orders")
    found = await cluster.logs.store.read_document(topic_document("orders"))
    assert found is not None
    unfinished = decode_topic(found.value, "orders")
    assert unfinished.state is TopicState.MAKING
    assert other.has_id(unfinished.topic_id)
    assert await other.create("orders") == replace(unfinished, state=TopicState.ACTIVE)


async def test_two_gateways_that_make_one_topic_make_one(cluster: GatewayCluster) -> None:
    one, other = await two(cluster)
    made = await asyncio.gather(one.create("orders"), other.create("orders"), return_exceptions=True)
    refused = [each for each in made if isinstance(each, RefusedError)]
    assert [each.code for each in refused] == [Code.TOPIC_ALREADY_EXISTS]
    for catalogue in (one, other):
        await catalogue.catch_up()
    assert one.all() == other.all() == [each for each in made if isinstance(each, Topic)]


async def test_a_deletion_that_another_gateway_has_left_is_finished_before_the_topic_is_made_again(
    cluster: GatewayCluster,
) -> None:
    store = InterposedStore(await cluster.logs.metadata.open())
    one = await catalogue_of(cluster, store.face)
    other = await catalogue_of(cluster, await cluster.logs.metadata.open())
    first = await one.create("orders")
    store.make_unavailable("delete_document")
    with pytest.raises(MetadataUnavailableError):
        await one.delete("orders")
    second = await other.create("orders")
    assert second.topic_id != first.topic_id


async def test_while_a_gateway_changes_topics_others_wait_a_while(cluster: GatewayCluster) -> None:
    one = await catalogue_of(cluster, await cluster.logs.metadata.open(), lock_seconds_max=0.3)
    lease = await cluster.logs.store.lock(LOCK, "another gateway")
    with pytest.raises(OctavoTimeoutError, match="another gateway has been changing topics"):
        await one.create("orders")
    await lease.release()
    assert (await one.create("orders")).name == "orders"


async def test_changes_are_followed_also_after_the_store_did_not_answer(cluster: GatewayCluster) -> None:
    store = InterposedStore(await cluster.logs.metadata.open())
    other = await catalogue_of(cluster, store.face, retry_seconds=0.001)
    one = await catalogue_of(cluster, await cluster.logs.metadata.open())
    following = asyncio.create_task(other.follow())
    await one.create("orders")
    await eventually(lambda: other.find("orders") is not None)
    store.make_unavailable("read_document")
    await one.create("payments")
    store.restore()
    await eventually(lambda: other.find("payments") is not None)
    following.cancel()
    await asyncio.wait([following])
