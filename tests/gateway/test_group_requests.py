"""Consumer groups as their members see them, on bookies in memory (rules K10 and K11)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from octavo.gateway.codes import Code
from octavo.gateway.coordinating.coordinator import EXPIRY_CHECK_MS, EXPIRY_MS, GROUP_ID_CHARACTERS_MAX, GroupLimits
from octavo.gateway.coordinating.coordinators import LOGS, TOPIC, number_of
from octavo.gateway.gateway import Gateway
from octavo.gateway.groups.commits import bytes_of
from octavo.gateway.groups.entries import METADATA_BYTES_MAX, Committed, Place
from octavo.protocol.messages import Op
from support.clusters.gateway_cluster import GatewayCluster, now_ms, open_gateway_cluster
from support.kafka.client import DELETE_TOPICS, milliseconds
from support.kafka.groups import (
    FIND_COORDINATOR,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SESSION_MS,
    AnswerError,
    GroupClient,
)
from support.waiting import eventually, loop_turns


class SteadyClock:
    """The clock by which sessions end."""

    def __init__(self) -> None:
        self.ms = 1000

    def __call__(self) -> int:
        return self.ms


type Connect = Callable[..., Awaitable[GroupClient]]


@pytest.fixture
async def cluster() -> AsyncIterator[GatewayCluster]:
    async with open_gateway_cluster() as made:
        made.steady_ms = SteadyClock()
        yield made


@pytest.fixture
async def gateway(cluster: GatewayCluster) -> Gateway:
    return await cluster.gateway()


@pytest.fixture
async def connect(gateway: Gateway) -> AsyncIterator[Connect]:
    """Makes consumers with connections of their own; the topic `orders` is there."""
    async with AsyncExitStack() as stack:

        async def made(group: str = "billing", instance: str | None = None, port: int = 0) -> GroupClient:
            client = await stack.enter_async_context(await GroupClient.of(port or gateway.port, group, instance))
            await client.metadata("orders")
            return client

        yield made


def pass_time(cluster: GatewayCluster, gateway: Gateway, ms: int) -> None:
    assert isinstance(cluster.steady_ms, SteadyClock)
    cluster.steady_ms.ms += ms
    gateway.coordinators.pass_time()


def hold(cluster: GatewayCluster, op: Op) -> None:
    for bookie in cluster.logs.bookies:
        bookie.hold(op)


def release(cluster: GatewayCluster, op: Op) -> None:
    for bookie in cluster.logs.bookies:
        bookie.release(op)


async def pair(connect: Connect) -> tuple[GroupClient, GroupClient]:
    """Two members of a stable group, the leader first."""
    first, second = await connect(), await connect()
    await first.enter()
    joining = asyncio.create_task(second.join())
    await eventually(lambda: _is(first.heartbeat(), Code.REBALANCE_IN_PROGRESS))
    (joined, _) = await asyncio.gather(first.join(), joining)
    assert sorted(joined.members) == sorted([first.member_id, second.member_id])
    shares = {first.member_id: b"0", second.member_id: b"1"}
    answers = await asyncio.gather(first.sync(shares), second.sync())
    assert list(answers) == [(Code.NONE, b"0"), (Code.NONE, b"1")]
    return first, second


async def _is(asked: Awaitable[Code], code: Code) -> bool:
    return await asked is code


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
    cluster: GatewayCluster, gateway: Gateway, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the code that clients expect in each answer: at another one some of them end."""
    client = await connect()
    await client.enter()
    assert await client.commit(5) is Code.NONE
    await gateway.close()
    second = await cluster.gateway()
    again = await connect(port=second.port)
    again.member_id, again.generation = client.member_id, client.generation
    monkeypatch.setattr("octavo.gateway.coordinating.coordinators.OPENING_SECONDS_MAX", 0.02)
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
    await eventually(lambda: _is(second.heartbeat(), Code.REBALANCE_IN_PROGRESS))
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
    await eventually(lambda: _is(other.heartbeat(), Code.NONE))
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
    assert await client.commit(-1) is Code.INVALID_COMMIT_OFFSET_SIZE
    assert await client.committed() == 6


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
    await eventually(lambda: _is_equal(client.committed(), 6))


async def _is_equal(asked: Awaitable[int], value: int) -> bool:
    return await asked == value


async def test_offsets_of_a_topic_go_with_it(connect: Connect) -> None:
    client = await connect()
    assert await client.commit(5) is Code.NONE
    await client.ask(DELETE_TOPICS, 3, {"topic_names": ["orders"], "timeout": milliseconds(1000)})
    assert await client.fetch_commits(None) == []
    assert await client.commit(6) is Code.UNKNOWN_TOPIC_OR_PARTITION
    await client.metadata("orders")
    assert await client.committed() == -1, "a new topic of the same name"


# --- looking after groups ---------------------------------------------------------------------------------------------


async def test_groups_are_described_and_listed(gateway: Gateway, connect: Connect) -> None:
    first, second = await pair(connect)
    described = await first.describe()
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    assert {one.member_id: one.member_assignment for one in described.members} == {
        first.member_id: b"0", second.member_id: b"1"
    }  # fmt: skip
    assert {(one.client_id, one.client_host, one.member_metadata) for one in described.members} == {
        ("test", "127.0.0.1", b"m")
    }  # fmt: skip
    other = await connect("audit")
    assert (await other.describe()).group_state == "Dead"
    await other.commit(1)
    assert (await other.describe()).group_state == "Empty"
    assert await other.listed() == ["audit", "billing"]


async def test_a_group_without_members_can_be_deleted(connect: Connect) -> None:
    member, other = await connect(), await connect("audit")
    assert await member.delete_group() is Code.GROUP_ID_NOT_FOUND
    await member.enter()
    await member.commit(5)
    assert await member.delete_group() is Code.NON_EMPTY_GROUP
    await other.commit(6)
    await member.leave()
    assert await member.delete_group() is Code.NONE
    assert await member.committed() == -1
    assert await other.listed() == ["audit"]


async def test_a_group_in_which_a_member_has_an_id_is_not_deleted(connect: Connect) -> None:
    client, joining = await connect(), await connect()
    await client.commit(5)
    answer = await joining.ask(JOIN_GROUP, 5, joining.join_request())
    assert answer.error_code.value == Code.MEMBER_ID_REQUIRED
    assert await client.delete_group() is Code.NON_EMPTY_GROUP
    joining.member_id = answer.member_id
    assert (await joining.join()).code is Code.NONE


async def test_offsets_of_a_group_without_members_can_be_deleted(connect: Connect) -> None:
    client, member = await connect(), await connect()
    await client.commit(5)

    async def delete(*partitions: int) -> tuple[Code, list[Code]]:
        rows = [{"partition_index": one} for one in partitions]
        asked = {"group_id": "billing", "topics": [{"name": "orders", "partitions": rows}]}
        answer = await client.ask(OFFSET_DELETE, 0, asked)
        codes = [Code(one.error_code.value) for topic in answer.topics for one in topic.partitions]
        return Code(answer.error_code.value), codes

    await member.enter()
    assert await delete(0) == (Code.NON_EMPTY_GROUP, [])
    await member.leave()
    assert await delete(0, 4) == (Code.NONE, [Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION])
    assert await client.committed() == -1


async def test_a_group_that_is_not_used_expires(cluster: GatewayCluster) -> None:
    day = [now_ms()]
    cluster.clock_ms = lambda: day[0]
    gateway = await cluster.gateway()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(await GroupClient.of(gateway.port))
        member = await stack.enter_async_context(await GroupClient.of(gateway.port, "audit"))
        await client.metadata("orders")
        await client.commit(5)
        joining = await stack.enter_async_context(await GroupClient.of(gateway.port, "joining"))
        await joining.commit(7)
        await joining.ask(JOIN_GROUP, 5, joining.join_request() | {"session_timeout": milliseconds(1_800_000)})
        await member.enter()
        await member.commit(6)
        day[0] += EXPIRY_MS
        pass_time(cluster, gateway, 0)
        assert await client.committed() == 5
        day[0] += 1
        for _ in range(61):
            assert await member.heartbeat() is Code.NONE
            pass_time(cluster, gateway, SESSION_MS - 1)
        await eventually(lambda: _is_equal(client.committed(), -1))
        assert await member.committed() == 6
        assert await joining.committed() == 7, "a client has an id to join with"
        pass_time(cluster, gateway, 0)
        assert await client.listed() == ["audit", "joining"]


async def test_groups_have_bounds(cluster: GatewayCluster) -> None:
    """Of those of one coordinator: groups, what members say, and offsets (rule K13)."""
    offsets = bytes_of({Place("", 0): Committed(0, -1, "", 0)})
    limits = GroupLimits(groups_max=2, members_bytes_max=2000, offsets_bytes_max=2 * offsets)
    gateway = await cluster.gateway(groups=limits)
    names = [name for name in (f"group {number}" for number in range(200)) if number_of(name) == 3]
    async with AsyncExitStack() as stack:
        first, second, third, other = [
            await stack.enter_async_context(await GroupClient.of(gateway.port, name)) for name in (*names[:3], "other")
        ]
        await first.ask(3, 1, {"topics": [{"name": name} for name in ("orders", "a", "b")]})
        assert number_of("other") != 3
        await second.enter()
        assert await first.commit(1) is Code.NONE
        assert await third.commit(1) is Code.GROUP_MAX_SIZE_REACHED
        assert (await third.join()).code is Code.GROUP_MAX_SIZE_REACHED
        assert await other.commit(1) is Code.NONE
        codes = await first.commit_many({("orders", 0): 2, ("a", 0): 1, ("b", 0): 1})
        assert set(codes.values()) == {Code.INVALID_COMMIT_OFFSET_SIZE}
        assert await first.fetch_commits(None) == [("orders", 0, 1, -1, "")]
        assert await first.commit(3, topic="a") is Code.NONE
        assert await first.commit(3, topic="b") is Code.INVALID_COMMIT_OFFSET_SIZE
        for _ in range(20):
            assert (await second.join(metadata=b"m" * 1000)).code is Code.NONE, "it replaces what it said before"
        assert (await first.join(metadata=b"m" * 1000)).code is Code.GROUP_MAX_SIZE_REACHED
        assert (await second.sync({second.member_id: b"x" * 1000}))[0] is Code.GROUP_MAX_SIZE_REACHED
        assert await second.leave() is Code.NONE
        assert (await first.join(metadata=b"m" * 1000)).code is Code.NONE
        second.member_id = ""
        assert (await second.join(metadata=b"m" * 1000)).code is Code.GROUP_MAX_SIZE_REACHED


async def test_a_group_of_which_nothing_is_left_takes_no_place(
    cluster: GatewayCluster, gateway: Gateway, connect: Connect
) -> None:
    client, reader = await connect(), await connect()
    await client.join()
    assert await reader.listed() == ["billing"]
    await client.leave()
    assert await reader.listed() == []
    assert await client.commit(1) is Code.UNKNOWN_MEMBER_ID
    assert await client.sync() == (Code.UNKNOWN_MEMBER_ID, b"")
    client.member_id, client.generation = "", -1
    assert await client.commit_many({}) == {}
    assert await client.commit(1, topic="none") is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert await reader.listed() == []


async def test_a_group_that_had_members_counts_from_when_they_are_known_to_be_gone(cluster: GatewayCluster) -> None:
    """Its members may commit nothing for long, and must not lose their offsets to a takeover."""
    day = [now_ms()]
    cluster.clock_ms = lambda: day[0]
    first = await cluster.gateway()
    async with await GroupClient.of(first.port) as member:
        await member.metadata("orders")
        await member.enter()
        await member.commit(5)
        waiting = asyncio.create_task(cluster.gateway())
        await cluster.lose_leases_of(first)
        second = await waiting
    day[0] += EXPIRY_MS + 1
    async with await GroupClient.of(second.port) as client:
        for _ in range(3):
            assert await client.committed() == 5
            pass_time(cluster, second, EXPIRY_CHECK_MS)
            await loop_turns()
        assert await client.commit(5) is Code.NONE
        day[0] += EXPIRY_MS + 1
        pass_time(cluster, second, EXPIRY_CHECK_MS)
        await eventually(lambda: _is_equal(client.committed(), -1))


# --- takeover ---------------------------------------------------------------------------------------------------------


async def test_the_next_gateway_knows_commits_and_generations(
    cluster: GatewayCluster, gateway: Gateway, connect: Connect
) -> None:
    member, other = await connect(), await connect("audit")
    await member.enter()
    assert await member.commit(5, metadata="x") is Code.NONE
    assert await other.commit(6) is Code.NONE
    waiting = asyncio.create_task(cluster.gateway())
    await cluster.lose_leases_of(gateway)
    second = await waiting
    again, stranger, simple = [await connect(group, port=second.port) for group in ("billing", "billing", "audit")]
    assert await again.fetch_commits({"orders": [0]}) == [("orders", 0, 5, -1, "x")]
    again.member_id, again.generation = member.member_id, member.generation
    assert await again.commit(1) is Code.UNKNOWN_MEMBER_ID
    assert await again.heartbeat() is Code.UNKNOWN_MEMBER_ID
    assert await stranger.commit(2) is Code.UNKNOWN_MEMBER_ID, "the member may not know yet"
    assert await stranger.delete_group() is Code.NON_EMPTY_GROUP
    assert await simple.commit(7) is Code.NONE, "a group that has never had members"
    again.member_id = ""
    joined = await again.join()
    assert (joined.code, joined.generation) == (Code.NONE, 2)
    assert joined.member_id != member.member_id
    assert joined.member_id.startswith("member-2-"), "ids of an earlier coordinator are never given again"
    assert await again.leave() is Code.NONE
    assert await stranger.commit(2) is Code.UNKNOWN_MEMBER_ID
    pass_time(cluster, second, SESSION_MS)
    assert await stranger.commit(2) is Code.NONE
    assert await stranger.committed() == 2


async def test_a_gateway_whose_lease_has_ended_answers_nothing_of_groups(
    cluster: GatewayCluster, gateway: Gateway, connect: Connect
) -> None:
    member, joining = await connect(), await connect()
    await member.enter()
    await member.commit(5)
    waiting = asyncio.create_task(joining.join())
    await eventually(lambda: _is(member.heartbeat(), Code.REBALANCE_IN_PROGRESS))
    await cluster.lose_leases_of(gateway)
    assert await member.heartbeat() is Code.NOT_COORDINATOR
    assert await member.commit(6) is Code.NOT_COORDINATOR
    with pytest.raises(AnswerError, match="NOT_COORDINATOR"):
        await member.committed()
    assert (await member.describe()).error_code.value == Code.NOT_COORDINATOR
    assert (await waiting).code is Code.NOT_COORDINATOR


async def test_a_coordinator_that_loses_its_log_is_followed_by_one_that_has_read_it(
    cluster: GatewayCluster, gateway: Gateway, connect: Connect
) -> None:
    member, joining = await connect(), await connect()
    await member.enter()
    await member.commit(5)
    waiting = asyncio.create_task(joining.join())
    await eventually(lambda: _is(member.heartbeat(), Code.REBALANCE_IN_PROGRESS))
    log = await (await cluster.logs.client()).open_log(f"kafka/{TOPIC}/{number_of('billing')}")
    async with log.take_over():
        pass
    codes = set()

    async def is_unknown() -> bool:
        code = await member.heartbeat()
        codes.add(code)
        return code is Code.UNKNOWN_MEMBER_ID

    await eventually(is_unknown)
    assert codes <= {
        Code.REBALANCE_IN_PROGRESS, Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE,
        Code.COORDINATOR_LOAD_IN_PROGRESS, Code.UNKNOWN_MEMBER_ID,
    }  # fmt: skip
    assert (await waiting).code is Code.NOT_COORDINATOR
    assert await member.committed() == 5


async def test_the_log_of_a_coordinator_is_kept_short_and_nothing_goes_back(cluster: GatewayCluster) -> None:
    gateway = await cluster.gateway(groups=GroupLimits(restate_bytes=5000))
    name = f"kafka/{TOPIC}/{number_of('billing')}"
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(await GroupClient.of(gateway.port))
        await client.metadata("orders")
        for round_number in range(3):
            member = await stack.enter_async_context(await GroupClient.of(gateway.port))
            await member.enter()
            for offset in range(60):
                assert await member.commit(100 * round_number + offset) is Code.NONE
                assert await client.committed() == 100 * round_number + offset
            assert await member.leave() is Code.NONE
        log = await (await cluster.logs.client()).open_log(name)
        await eventually(lambda: _reaches(log, 100))
        assert log.first_position > 100
    await gateway.close()
    second = await cluster.gateway()
    async with await GroupClient.of(second.port) as client:
        assert await client.committed() == 259
        assert (await client.join()).generation == 7


async def _reaches(log: object, position: int) -> bool:
    await log.refresh()  # type: ignore[attr-defined]
    return bool(log.first_position > position)  # type: ignore[attr-defined]


async def test_an_entry_of_another_program_in_the_log_of_a_coordinator_is_skipped(
    cluster: GatewayCluster, gateway: Gateway, connect: Connect
) -> None:
    client = await connect()
    await client.commit(5)
    await gateway.close()
    log = await (await cluster.logs.client()).open_log(f"kafka/{TOPIC}/{number_of('billing')}")
    async with log.lead() as writer:
        await writer.add(b"of another program")
    second = await cluster.gateway()
    again = await connect(port=second.port)
    assert await again.committed() == 5
    assert await again.commit(6) is Code.NONE
