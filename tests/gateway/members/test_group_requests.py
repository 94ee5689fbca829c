"""Consumer groups as their members see them, on bookies in memory (rules K10 and K11)."""

import asyncio

import pytest
from octavo.gateway.codes import Code
from octavo.gateway.coordinating.coordinator import GROUP_ID_CHARACTERS_MAX, GroupLimits
from octavo.gateway.coordinating.coordinators import LOGS, TOPIC, number_of
from octavo.gateway.gateway import Gateway
from octavo.gateway.groups.entries import METADATA_BYTES_MAX
from octavo.protocol.messages import Op
from support.clusters.gateway_cluster import GatewayCluster
from support.kafka.client import DELETE_TOPICS, milliseconds
from support.kafka.coordinated import Connect, hold, is_code, is_offset, pair, pass_time, release
from support.kafka.groups import (
    FIND_COORDINATOR,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SESSION_MS,
    AnswerError,
    GroupClient,
)
from support.waiting import eventually

# --- coordinators -----------------------------------------------------------------------------------------------------


async def test_the_gateway_coordinates_all_groups_once_their_logs_are_made(gateway: Gateway, connect: Connect) -> None:
    client = await connect()
    assert [one.name for one in (await client.ask(3, 1, {"topics": None})).topics] == ["orders"]
    found = await client.ask(FIND_COORDINATOR, 2, {"key": "billing", "key_type": 0})
    assert (found.error_code.value, found.node_id, found.host, found.port) == (0, 1, "127.0.0.1", gateway.port)
    assert (await client.ask(FIND_COORDINATOR, 0, {"key": "billing"})).port == gateway.port
    (own,) = [one for one in (await client.ask(3, 1, {"topics": None})).topics if one.is_internal]
    assert (own.name, len(own.partitions)) == (TOPIC, LOGS)
    for key, kind, code in (("mine", 1, Code.INVALID_REQUEST), ("", 0, Code.INVALID_GROUP_ID)):
        refused = await client.ask(FIND_COORDINATOR, 2, {"key": key, "key_type": kind})
        assert (Code(refused.error_code.value), refused.node_id) == (code, -1)
    client.group = "g" * (GROUP_ID_CHARACTERS_MAX + 1)
    assert (await client.join()).code is Code.INVALID_GROUP_ID


async def test_the_logs_of_coordinators_are_no_topic_for_clients(connect: Connect) -> None:
    client = await connect()
    await client.ask(FIND_COORDINATOR, 2, {"key": "billing", "key_type": 0})
    (produced,) = await client.produce(TOPIC, b"x" * 100)
    assert produced.error_code.value == Code.INVALID_TOPIC_EXCEPTION
    assert (
        await client.fetch(TOPIC, 0, partition=number_of("billing"))
    ).error_code.value == Code.INVALID_TOPIC_EXCEPTION
    assert (await client.offset_at(TOPIC, -1)).error_code.value == Code.INVALID_TOPIC_EXCEPTION
    assert await client.commit(1, topic=TOPIC) is Code.INVALID_TOPIC_EXCEPTION
    deleted = await client.ask(DELETE_TOPICS, 3, {"topic_names": [TOPIC], "timeout": milliseconds(1000)})
    assert deleted.responses[0].error_code.value == Code.INVALID_TOPIC_EXCEPTION
    await client.enter()


async def test_logs_that_cannot_be_made_yet_are_made_when_they_can(cluster: GatewayCluster) -> None:
    gateway = await cluster.gateway(write_quorum=9, ack_quorum=5)
    async with await GroupClient.of(gateway.port) as client:
        found = await client.ask(FIND_COORDINATOR, 2, {"key": "billing", "key_type": 0})
        assert found.error_code.value == Code.COORDINATOR_NOT_AVAILABLE
        assert "cannot be made" in found.error_message
        assert (await client.join()).code is Code.COORDINATOR_NOT_AVAILABLE
        assert await client.listed() == []


async def test_while_a_coordinator_reads_its_log_clients_are_told_to_ask_again(
    cluster: GatewayCluster, gateway: Gateway, connect: Connect
) -> None:
    """With the code that clients expect in each answer: at another one some of them end."""
    client = await connect()
    await client.enter()
    assert await client.commit(5) is Code.NONE
    await gateway.close()
    second = await cluster.gateway(groups=GroupLimits(opening_seconds_max=0.02))
    again = await connect(port=second.port)
    again.member_id, again.generation = client.member_id, client.generation
    hold(cluster, Op.READ)
    with pytest.raises(AnswerError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        await again.committed()
    assert (await again.join()).code is Code.COORDINATOR_LOAD_IN_PROGRESS
    assert await again.commit(6) is Code.COORDINATOR_LOAD_IN_PROGRESS
    assert await again.heartbeat() is Code.NONE, "as with Kafka"
    assert (await again.sync())[0] is Code.REBALANCE_IN_PROGRESS, "as with Kafka"
    release(cluster, Op.READ)

    codes = set()

    async def is_loaded() -> bool:
        try:
            return await again.committed() == 5
        except AnswerError as error:
            codes.add(error.code)
            return False

    await eventually(is_loaded)
    assert codes <= {Code.COORDINATOR_LOAD_IN_PROGRESS}
    assert await again.heartbeat() is Code.UNKNOWN_MEMBER_ID, "now it learns"


async def test_a_coordinator_that_cannot_begin_is_asked_again(cluster: GatewayCluster, connect: Connect) -> None:
    client = await connect()
    await client.ask(FIND_COORDINATOR, 2, {"key": "billing", "key_type": 0})
    for bookie in cluster.logs.bookies:
        await bookie.stop()
    assert await client.commit(5) is Code.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(AnswerError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        await client.committed()


# --- members ----------------------------------------------------------------------------------------------------------


async def test_members_share_partitions_and_a_third_begins_a_new_generation(connect: Connect) -> None:
    first, second = await pair(connect)
    assert first.generation == second.generation == 2
    third = await connect()
    joining = asyncio.create_task(third.join())
    await eventually(lambda: is_code(second.heartbeat(), Code.REBALANCE_IN_PROGRESS))
    assert await first.commit(7) is Code.NONE, "what the member has done before it gives its partitions up"
    await asyncio.gather(first.join(), second.join(), joining)
    assert await first.commit(8) is Code.REBALANCE_IN_PROGRESS, "the partitions are being shared anew"
    assert (first.generation, third.generation) == (3, 3)


async def test_an_older_join_has_no_id_first_and_one_time_for_session_and_rebalance(connect: Connect) -> None:
    client = await connect()
    joined = await client.join(version=0)
    assert (joined.code, joined.generation, joined.leader_id) == (Code.NONE, 1, joined.member_id)
    assert await client.sync({client.member_id: b"x"}) == (Code.NONE, b"x")


async def test_a_generation_that_is_not_durable_is_given_to_no_member(
    cluster: GatewayCluster, connect: Connect
) -> None:
    client = await connect()
    await client.join()
    hold(cluster, Op.ADD)
    syncing = asyncio.create_task(client.sync({client.member_id: b"mine"}))
    other = await connect()
    other.member_id, other.generation = client.member_id, client.generation
    await eventually(lambda: is_code(other.heartbeat(), Code.NONE))
    assert await other.commit(1) is Code.REBALANCE_IN_PROGRESS
    done, _ = await asyncio.wait([syncing], timeout=0.05)
    assert done == set()
    release(cluster, Op.ADD)
    assert await syncing == (Code.NONE, b"mine")
    assert await other.commit(1) is Code.NONE


async def test_a_member_that_is_not_heard_of_loses_its_place_and_commits_nothing(
    cluster: GatewayCluster, gateway: Gateway, connect: Connect
) -> None:
    first, second = await pair(connect)
    assert await second.commit(3, partition=0) is Code.NONE
    pass_time(cluster, gateway, SESSION_MS - 1)
    assert await first.heartbeat() is Code.NONE
    pass_time(cluster, gateway, 1)
    assert await first.heartbeat() is Code.REBALANCE_IN_PROGRESS
    assert (await first.join()).members == (first.member_id,)
    assert await first.sync({first.member_id: b"01"}) == (Code.NONE, b"01")
    assert await second.heartbeat() is Code.UNKNOWN_MEMBER_ID
    assert await second.commit(1) is Code.UNKNOWN_MEMBER_ID
    assert await first.committed() == 3
    stale = await connect()
    stale.member_id, stale.generation = first.member_id, first.generation - 1
    assert await stale.commit(1) is Code.ILLEGAL_GENERATION
    assert await first.committed() == 3


async def test_a_member_that_leaves_makes_room_at_once(connect: Connect) -> None:
    first, second = await pair(connect)
    assert await second.leave() is Code.NONE
    assert await second.leave() is Code.UNKNOWN_MEMBER_ID
    assert await first.heartbeat() is Code.REBALANCE_IN_PROGRESS
    asked = {"group_id": first.group, "member_id": first.member_id}
    assert (await first.ask(LEAVE_GROUP, 0, asked)).error_code.value == 0
    assert (await first.describe()).group_state == "Empty"


async def test_a_static_member_keeps_its_place_and_its_older_process_is_fenced(connect: Connect) -> None:
    first = await connect(instance="host a")
    await first.enter()
    again = await connect(instance="host a")
    joined = await again.join()
    assert joined.code is Code.NONE
    assert await first.heartbeat() is Code.FENCED_INSTANCE_ID
    assert await first.commit(1) is Code.FENCED_INSTANCE_ID
    assert await again.commit(1) is (Code.NONE if joined.generation == first.generation else Code.REBALANCE_IN_PROGRESS)


# --- commits ----------------------------------------------------------------------------------------------------------


async def test_offsets_are_committed_and_fetched_with_their_metadata(connect: Connect) -> None:
    client = await connect()
    await client.ask(3, 1, {"topics": [{"name": "payments"}]})
    assert await client.fetch_commits(None) == []
    assert await client.fetch_commits({"orders": [0, 5], "none": [0]}) == [
        ("orders", 0, -1, -1, ""), ("orders", 5, -1, -1, ""), ("none", 0, -1, -1, "")
    ]  # fmt: skip
    assert await client.commit(5, metadata="from host a", epoch=3) is Code.NONE
    assert await client.commit(6, topic="payments", metadata=None) is Code.NONE
    assert sorted(await client.fetch_commits(None)) == [("orders", 0, 5, 3, "from host a"), ("payments", 0, 6, -1, "")]
    assert await client.fetch_commits({"orders": [0]}) == [("orders", 0, 5, 3, "from host a")]
    assert await client.commit(2) is Code.NONE, "a consumer may go back"
    assert await client.committed() == 2
    other = await connect("audit")
    assert await other.committed() == -1, "groups have offsets of their own"
    old = await client.ask(
        OFFSET_FETCH, 1, {"group_id": "billing", "topics": [{"name": "orders", "partition_indexes": (0,)}]}
    )
    assert old.topics[0].partitions[0].committed_offset == 2


async def test_what_cannot_be_committed_is_refused_and_the_rest_is_committed(connect: Connect) -> None:
    client = await connect()
    codes = await client.commit_many({("orders", 0): 5, ("orders", 1): 5, ("none", 0): 5})
    assert codes == {
        ("orders", 0): Code.NONE, ("orders", 1): Code.UNKNOWN_TOPIC_OR_PARTITION,
        ("none", 0): Code.UNKNOWN_TOPIC_OR_PARTITION,
    }  # fmt: skip
    assert await client.commit(6, metadata="ü" * (METADATA_BYTES_MAX // 2)) is Code.NONE
    assert await client.commit(7, metadata="ü" * (METADATA_BYTES_MAX // 2) + "x") is Code.OFFSET_METADATA_TOO_LARGE
    assert await client.commit(-3) is Code.INVALID_COMMIT_OFFSET_SIZE
    assert await client.committed() == 6


@pytest.mark.parametrize("offset", [-2, -1])
async def test_a_group_is_reset_to_the_beginning_or_the_end(connect: Connect, offset: int) -> None:
    """As kafkajs does it, which looks up the offset when it begins to read."""
    client = await connect()
    assert await client.commit(offset) is Code.NONE
    assert await client.committed() == offset
    assert await client.commit(7) is Code.NONE
    assert await client.committed() == 7


async def test_a_commit_without_a_generation_is_refused_while_the_group_has_members(connect: Connect) -> None:
    member, stranger = await connect(), await connect()
    assert await stranger.commit(1) is Code.NONE
    await member.enter()
    assert await stranger.commit(2) is Code.UNKNOWN_MEMBER_ID
    assert await member.leave() is Code.NONE
    assert await stranger.commit(3) is Code.NONE
    assert await member.commit(4) is Code.UNKNOWN_MEMBER_ID
    assert await stranger.committed() == 3


async def test_a_commit_is_neither_answered_nor_seen_before_it_is_durable(
    cluster: GatewayCluster, connect: Connect
) -> None:
    client, reader = await connect(), await connect()
    assert await client.commit(5) is Code.NONE
    hold(cluster, Op.ADD)
    committing = asyncio.create_task(client.commit(6))
    done, _ = await asyncio.wait([committing], timeout=0.05)
    assert done == set()
    assert await reader.committed() == 5
    release(cluster, Op.ADD)
    assert await committing is Code.NONE
    assert await reader.committed() == 6


async def test_a_closed_connection_withdraws_no_commit(cluster: GatewayCluster, connect: Connect) -> None:
    client = await connect()
    assert await client.commit(5) is Code.NONE
    hold(cluster, Op.ADD)
    leaving = await connect()
    await leaving.send(OFFSET_COMMIT, 7, leaving.commit_request({("orders", 0): 6}))
    await asyncio.wait([asyncio.create_task(client.committed())], timeout=0.05)
    leaving.writer.close()
    release(cluster, Op.ADD)
    await eventually(lambda: is_offset(client.committed(), 6))


async def test_offsets_of_a_topic_go_with_it(connect: Connect) -> None:
    client = await connect()
    assert await client.commit(5) is Code.NONE
    await client.ask(DELETE_TOPICS, 3, {"topic_names": ["orders"], "timeout": milliseconds(1000)})
    assert await client.fetch_commits(None) == []
    assert await client.commit(6) is Code.UNKNOWN_TOPIC_OR_PARTITION
    await client.metadata("orders")
    assert await client.committed() == -1, "a new topic of the same name"
