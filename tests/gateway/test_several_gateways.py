"""Several gateways on one cluster: who leads what, hand-overs, and what is left of one that is lost (rule K9)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import pytest
from octavo.gateway.codes import Code
from octavo.gateway.coordinating.coordinators import LOGS, log_name, number_of
from octavo.gateway.gateway import Gateway
from octavo.gateway.leading.choice import chosen
from octavo.gateway.leading.gateways import GATEWAYS_MAX, Gateways, gateway_lock, node_lock
from octavo.protocol.messages import Op
from support.clusters.gateway_cluster import GatewayCluster
from support.kafka.batches import batch_of
from support.kafka.client import CREATE_TOPICS, DELETE_TOPICS, KafkaClient, milliseconds
from support.kafka.groups import FIND_COORDINATOR, GroupClient
from support.metadata.interposed_store import InterposedStore
from support.waiting import eventually, loop_turns

PARTITIONS = 8


type Connect = Callable[[Gateway], Awaitable[KafkaClient]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes clients of a gateway."""
    async with AsyncExitStack() as stack:

        async def made(gateway: Gateway) -> KafkaClient:
            return await stack.enter_async_context(await KafkaClient.connect(gateway.port))

        yield made


async def make_topic(client: KafkaClient, name: str = "orders", partitions: int = PARTITIONS) -> None:
    topic = {
        "name": name, "num_partitions": partitions, "replication_factor": -1, "assignments": [], "configs": []
    }  # fmt: skip
    asked = {"topics": [topic], "timeout": milliseconds(1000), "validate_only": False}
    (answer,) = (await client.ask(CREATE_TOPICS, 4, asked)).topics
    assert answer.error_code.value == 0, answer


async def leaders(client: KafkaClient, topic: str = "orders") -> list[int]:
    """The number of the gateway that leads each partition."""
    (found,) = (await client.metadata(topic, create=False)).topics
    assert found.error_code.value == 0
    return [one.leader_id for one in sorted(found.partitions, key=lambda one: one.partition_index)]


async def produce(client: KafkaClient, partition: int, sequence: int, value: bytes = b"x") -> tuple[Code, int]:
    batch = batch_of(value, producer_id=7, producer_epoch=0, base_sequence=sequence)
    (answer,) = await client.produce_at("orders", partition, batch)
    return Code(answer.error_code.value), answer.base_offset


async def produced(clients: dict[int, KafkaClient], partition: int, sequence: int) -> int:
    """Send a batch to the leader, as a client does: where it is refused, the leader is looked for again."""
    offsets: list[int] = []

    async def is_acknowledged() -> bool:
        client = next(iter(clients.values()))
        leader = (await leaders(client))[partition]
        code, offset = await produce(clients.get(leader, client), partition, sequence)
        assert code in (Code.NONE, Code.NOT_LEADER_OR_FOLLOWER, Code.LEADER_NOT_AVAILABLE)
        offsets.append(offset)
        return code is Code.NONE

    await eventually(is_acknowledged)
    return offsets[-1]


async def _has_moved(member: GroupClient) -> bool:
    return await member.heartbeat() is Code.NOT_COORDINATOR


# --- who leads what ---------------------------------------------------------------------------------------------------


async def test_each_gateway_names_the_same_leaders_and_coordinators(cluster: GatewayCluster, connect: Connect) -> None:
    gateways = [await cluster.gateway() for _ in range(3)]
    clients = [await connect(gateway) for gateway in gateways]
    await make_topic(clients[0])
    answers = [await client.metadata("orders") for client in clients]
    addresses = {(gateway.gateways.node_id, "127.0.0.1", gateway.port) for gateway in gateways}
    assert len(addresses) == 3
    for answer in answers:
        assert {(one.node_id, one.host, one.port) for one in answer.brokers} == addresses
        assert answer.controller_id == 1
    named = [await leaders(client) for client in clients]
    assert named[0] == named[1] == named[2]
    assert {*named[0]} == {1, 2, 3}
    for group in ("a", "b", "c"):
        found = [
            await client.ask(FIND_COORDINATOR, 2, {"key": group, "key_type": 0}) for client in clients
        ]  # fmt: skip
        assert all(one.error_code.value == 0 for one in found)
        assert len({(one.node_id, one.port) for one in found}) == 1
        assert (found[0].node_id, found[0].host, found[0].port) in addresses


async def test_only_the_leader_serves_a_partition(cluster: GatewayCluster, connect: Connect) -> None:
    gateways = {one.gateways.node_id: one for one in [await cluster.gateway() for _ in range(2)]}
    clients = {node_id: await connect(gateway) for node_id, gateway in gateways.items()}
    await make_topic(clients[1])
    for partition, leader in enumerate(await leaders(clients[1])):
        right, wrong = clients[leader], clients[3 - leader]
        assert await produce(wrong, partition, 0) == (Code.NOT_LEADER_OR_FOLLOWER, -1)
        assert await produce(right, partition, 0) == (Code.NONE, 0)
        assert await produce(wrong, partition, 1) == (Code.NOT_LEADER_OR_FOLLOWER, -1)
        assert (await wrong.fetch("orders", 0, partition=partition)).error_code.value == Code.NOT_LEADER_OR_FOLLOWER
        assert (await wrong.offset_at("orders", -1, partition=partition)).error_code.value == (
            Code.NOT_LEADER_OR_FOLLOWER
        )
        assert (await right.offset_at("orders", -1, partition=partition)).offset == 1


async def test_only_the_coordinator_answers_for_a_group(cluster: GatewayCluster) -> None:
    gateways = {one.gateways.node_id: one for one in [await cluster.gateway() for _ in range(2)]}
    listed: list[str] = []
    for group in ("a", "b", "c", "d"):
        coordinator = gateways[1].gateways.choice(log_name(number_of(group)))
        assert coordinator is not None
        right, wrong = gateways[coordinator.node_id].port, gateways[3 - coordinator.node_id].port
        async with await GroupClient.of(wrong, group) as stray, await GroupClient.of(right, group) as member:
            await stray.metadata("orders")
            await stray.ask(FIND_COORDINATOR, 2, {"key": group, "key_type": 0})
            assert (await stray.join()).code is Code.NOT_COORDINATOR
            assert await stray.commit(5) is Code.NOT_COORDINATOR
            await member.enter()
            assert await member.commit(5) is Code.NONE
            assert group in await member.listed()
            assert group not in await stray.listed()
            listed.append(group)
    assert {one.node_id for one in map(gateways[1].gateways.choice, map(log_name, range(LOGS))) if one} == {1, 2}
    assert listed


# --- gateways that come and go ----------------------------------------------------------------------------------------


async def test_a_gateway_that_joins_gets_its_share_and_nothing_is_lost_or_doubled(
    cluster: GatewayCluster, connect: Connect
) -> None:
    first = await cluster.gateway()
    clients = {1: await connect(first)}
    await make_topic(clients[1])
    for partition in range(PARTITIONS):
        assert await produced(clients, partition, 0) == 0
    assert len(first.leaders) == PARTITIONS
    second = await cluster.gateway()
    clients[2] = await connect(second)
    share = [number for number in range(PARTITIONS) if second.gateways.is_own(f"kafka/orders/{number}")]
    assert 0 < len(share) < PARTITIONS
    await eventually(lambda: len(first.leaders) == PARTITIONS - len(share))
    for partition in range(PARTITIONS):
        assert await produced(clients, partition, 0) == 0, "a repeat"
        assert await produced(clients, partition, 1) == 1
    assert await leaders(clients[1]) == await leaders(clients[2])
    assert len(second.leaders) == len(share)


async def test_what_is_under_way_at_a_hand_over_is_acknowledged(cluster: GatewayCluster, connect: Connect) -> None:
    first = await cluster.gateway()
    client = await connect(first)
    await make_topic(client)
    for partition in range(PARTITIONS):
        await produced({1: client}, partition, 0)
    for bookie in cluster.logs.bookies:
        bookie.hold(Op.ADD)
    senders = [await connect(first) for _ in range(PARTITIONS)]
    waiting = [asyncio.create_task(produce(one, partition, 1)) for partition, one in enumerate(senders)]
    await eventually(lambda: all(bookie.held(Op.ADD) for bookie in cluster.logs.bookies))
    second = await cluster.gateway()
    assert any(second.gateways.is_own(f"kafka/orders/{number}") for number in range(PARTITIONS))
    for bookie in cluster.logs.bookies:
        bookie.release(Op.ADD)
    assert [await one for one in waiting] == [(Code.NONE, 1)] * PARTITIONS
    clients = {1: client, 2: await connect(second)}
    for partition in range(PARTITIONS):
        assert await produced(clients, partition, 1) == 1, "a repeat"
        assert await produced(clients, partition, 2) == 2


async def test_a_gateway_that_waited_for_a_log_gives_it_to_the_one_that_is_the_choice_by_then(
    cluster: GatewayCluster, connect: Connect
) -> None:
    moves = (
        number
        for number in range(PARTITIONS)
        if chosen(f"kafka/orders/{number}", [1, 2]) == 2 and chosen(f"kafka/orders/{number}", [1, 2, 3]) == 3
    )
    partition = next(moves)
    first = await cluster.gateway()
    clients = {1: await connect(first)}
    await make_topic(clients[1])
    assert await produced(clients, partition, 0) == 0
    for bookie in cluster.logs.bookies:
        bookie.hold(Op.ADD)
    under_way = asyncio.create_task(produce(clients[1], partition, 1))
    await eventually(lambda: all(bookie.held(Op.ADD) for bookie in cluster.logs.bookies))
    second = await cluster.gateway()
    waiting = asyncio.create_task(produce(await connect(second), partition, 2))
    await eventually(lambda: second.leaders.opening == 1)
    third = await cluster.gateway()
    await eventually(lambda: 3 in second.gateways.present)
    for bookie in cluster.logs.bookies:
        bookie.release(Op.ADD)
    assert await under_way == (Code.NONE, 1)
    assert (await waiting)[0] in (Code.NOT_LEADER_OR_FOLLOWER, Code.LEADER_NOT_AVAILABLE)
    assert await produced({3: await connect(third)}, partition, 2) == 2
    assert len(second.leaders) == 0


async def test_the_partitions_of_a_gateway_that_is_lost_are_led_by_the_others(
    cluster: GatewayCluster, connect: Connect
) -> None:
    gateways = {one.gateways.node_id: one for one in [await cluster.gateway() for _ in range(3)]}
    clients = {node_id: await connect(gateway) for node_id, gateway in gateways.items()}
    await make_topic(clients[1])
    before = await leaders(clients[1])
    for partition in range(PARTITIONS):
        assert await produced(clients, partition, 0) == 0
    await cluster.lose_leases_of(gateways[2])
    lost = clients.pop(2)
    await eventually(lambda: 2 not in gateways[1].gateways.present and 2 not in gateways[3].gateways.present)
    after = await leaders(clients[1])
    assert 2 not in after
    assert [new for old, new in zip(before, after, strict=True) if old != 2] == [one for one in before if one != 2]
    for partition in range(PARTITIONS):
        assert await produced(clients, partition, 0) == 0, "a repeat"
        assert await produced(clients, partition, 1) == 1
        if before[partition] == 2:
            code, _ = await produce(lost, partition, 2)
            assert code is Code.NOT_LEADER_OR_FOLLOWER, "it says nothing of now"


async def test_a_gateway_that_ends_in_order_hands_over_what_it_leads(cluster: GatewayCluster, connect: Connect) -> None:
    """No lease has to end for that: no time passes."""
    first, second = await cluster.gateway(), await cluster.gateway()
    clients = {1: await connect(first), 2: await connect(second)}
    await make_topic(clients[1])
    for partition in range(PARTITIONS):
        assert await produced(clients, partition, 0) == 0
    del clients[1]
    await first.close()
    for partition in range(PARTITIONS):
        assert await produced(clients, partition, 0) == 0, "a repeat"
        assert await produced(clients, partition, 1) == 1
    assert await leaders(clients[2]) == [2] * PARTITIONS


async def test_commits_do_not_go_back_when_their_coordinator_moves(cluster: GatewayCluster) -> None:
    """To a gateway that joins, and back when it is lost (rule K10)."""
    first = await cluster.gateway()
    groups = [f"group {number}" for number in range(8)]
    async with AsyncExitStack() as stack:
        members = {group: await stack.enter_async_context(await GroupClient.of(first.port, group)) for group in groups}
        for number, (group, member) in enumerate(members.items()):
            await member.metadata("orders")
            await member.ask(FIND_COORDINATOR, 2, {"key": group, "key_type": 0})
            await member.enter()
            assert await member.commit(number) is Code.NONE
        second = await cluster.gateway()
        moved = [group for group in groups if second.gateways.is_own(log_name(number_of(group)))]
        assert 0 < len(moved) < len(groups)
        for group in moved:
            await eventually(partial(_has_moved, members[group]))
        for number, group in enumerate(groups):
            port = second.port if group in moved else first.port
            async with await GroupClient.of(port, group) as reader:
                assert await reader.committed() == number
        await cluster.lose_leases_of(second)
        await eventually(lambda: 2 not in first.gateways.present)
        for number, (group, member) in enumerate(members.items()):
            assert await member.committed() == number
            expected = Code.UNKNOWN_MEMBER_ID if group in moved else Code.NONE
            assert await member.heartbeat() is expected


async def test_offsets_of_a_topic_that_another_gateway_made_stay_where_its_announcement_was_missed(
    cluster: GatewayCluster,
) -> None:
    """The next coordinator reads what was announced of topics before it drops offsets of deleted ones (rule K10)."""
    first = await cluster.gateway()
    store = InterposedStore(await cluster.logs.metadata.open())
    store.silence("watch_document")
    second = await cluster.gateway_on(store.face)
    group = next(f"group {n}" for n in range(100) if first.gateways.is_own(log_name(number_of(f"group {n}"))))
    async with await GroupClient.of(first.port, group) as member:
        await member.metadata("orders")
        await member.ask(FIND_COORDINATOR, 2, {"key": group, "key_type": 0})
        await member.enter()
        assert await member.commit(5) is Code.NONE
    await first.close()
    async with await GroupClient.of(second.port, group) as reader:
        assert await reader.committed() == 5


# --- topics -----------------------------------------------------------------------------------------------------------


async def test_a_topic_that_one_gateway_makes_or_deletes_is_known_to_all(
    cluster: GatewayCluster, connect: Connect
) -> None:
    first, second = await cluster.gateway(), await cluster.gateway()
    clients = {1: await connect(first), 2: await connect(second)}
    await make_topic(clients[1])
    assert {*await leaders(clients[2])} == {1, 2}
    for partition in range(PARTITIONS):
        assert await produced(clients, partition, 0) == 0
    asked = {"topic_names": ("orders",), "timeout": milliseconds(1000)}
    assert (await clients[1].ask(DELETE_TOPICS, 3, asked)).responses[0].error_code.value == 0
    await eventually(lambda: len(second.leaders) == 0)
    (found,) = (await clients[2].metadata("orders", create=False)).topics
    assert found.error_code.value == Code.UNKNOWN_TOPIC_OR_PARTITION
    await make_topic(clients[2])
    for partition in range(PARTITIONS):
        assert await produced(clients, partition, 0) == 0, "a new topic begins at 0"


async def test_two_gateways_that_are_asked_for_a_new_topic_make_one(cluster: GatewayCluster, connect: Connect) -> None:
    clients = [await connect(await cluster.gateway()) for _ in range(3)]
    answers = await asyncio.gather(*(client.metadata("orders") for client in clients))
    assert [answer.topics[0].error_code.value for answer in answers] == [0, 0, 0]
    names = [name async for name in cluster.logs.store.list_documents("kafka/topics/")]
    assert names == ["kafka/topics/orders"]


# --- numbers ----------------------------------------------------------------------------------------------------------


async def test_a_gateway_has_the_lowest_number_that_is_free(cluster: GatewayCluster) -> None:
    store = cluster.logs.store
    first, second = await Gateways.enter(store, "one"), await Gateways.enter(store, "two")
    assert (first.node_id, second.node_id) == (1, 2)
    await first.close()
    third = await Gateways.enter(store, "three")
    assert third.node_id == 1
    for number in range(3, GATEWAYS_MAX + 1):
        assert (await Gateways.enter(store, "more")).node_id == number
    waiting = asyncio.create_task(Gateways.enter(store, "one too many"))
    await third.close()
    assert (await waiting).node_id == 1


async def test_a_gateway_that_begins_at_the_address_of_one_that_was_killed_waits_for_its_lease(
    cluster: GatewayCluster,
) -> None:
    killed = await Gateways.enter(await cluster.logs.metadata.open(), "killed")
    await killed.take_part("127.0.0.1", 9092)
    other = await Gateways.enter(await cluster.logs.metadata.open(), "other")
    await other.take_part("127.0.0.1", 9093)
    again = await Gateways.enter(cluster.logs.store, "again")
    waiting = asyncio.create_task(again.take_part("127.0.0.1", 9092))
    await loop_turns()
    assert not waiting.done()
    await killed.leave()
    await waiting
    await eventually(lambda: list(again.present) == list(other.present) == [2, 3])
    for one in (killed, other, again):
        await one.leave()
        await one.close()


async def test_a_gateway_takes_part_while_it_holds_its_lock(cluster: GatewayCluster) -> None:
    store = cluster.logs.store
    one, other = await Gateways.enter(store, "one"), await Gateways.enter(store, "other")
    assert one.choice("kafka/orders/0") is None
    await one.take_part("127.0.0.1", 9092)
    assert one.is_own("kafka/orders/0")
    await other.take_part("::1", 9093)
    await eventually(lambda: len(one.present) == 2)
    assert one.present == other.present == {1: (1, "127.0.0.1", 9092), 2: (2, "::1", 9093)}
    holder = await store.read_lock(gateway_lock(2))
    assert holder is not None
    assert holder.holder == "::1:9093 other"
    await one.leave()
    await eventually(lambda: list(other.present) == [2])
    assert not one.is_own("kafka/orders/0")
    assert one.is_current, "it may lead until it has closed"
    assert await store.read_lock(node_lock(1)) is not None
    await one.close()
    assert not one.is_current
    await other.leave()
    await other.close()
