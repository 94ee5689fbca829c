"""Consumer groups that are looked after, expire, and change their coordinator, on bookies in memory (rule K10)."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from octavo.gateway.codes import Code
from octavo.gateway.coordinating.coordinator import EXPIRY_CHECK_MS, EXPIRY_MS, GroupLimits
from octavo.gateway.coordinating.coordinators import TOPIC, number_of
from octavo.gateway.gateway import Gateway
from octavo.gateway.groups.commits import bytes_of
from octavo.gateway.groups.entries import Committed
from octavo.gateway.groups.places import Place
from support.clusters.gateway_cluster import GatewayCluster, now_ms
from support.kafka.client import milliseconds
from support.kafka.coordinated import Connect, is_code, is_offset, pair, pass_time
from support.kafka.groups import (
    JOIN_GROUP,
    OFFSET_DELETE,
    SESSION_MS,
    AnswerError,
    GroupClient,
)
from support.waiting import eventually, loop_turns

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
        await eventually(lambda: is_offset(client.committed(), -1))
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
        await cluster.lose_leases_of(first)
        second = await cluster.gateway()
    day[0] += EXPIRY_MS + 1
    async with await GroupClient.of(second.port) as client:
        for _ in range(3):
            assert await client.committed() == 5
            pass_time(cluster, second, EXPIRY_CHECK_MS)
            await loop_turns()
        assert await client.commit(5) is Code.NONE
        day[0] += EXPIRY_MS + 1
        pass_time(cluster, second, EXPIRY_CHECK_MS)
        await eventually(lambda: is_offset(client.committed(), -1))


# --- takeover ---------------------------------------------------------------------------------------------------------


async def test_the_next_gateway_knows_commits_and_generations(
    cluster: GatewayCluster, gateway: Gateway, connect: Connect
) -> None:
    member, other = await connect(), await connect("audit")
    await member.enter()
    assert await member.commit(5, metadata="x") is Code.NONE
    assert await other.commit(6) is Code.NONE
    await cluster.lose_leases_of(gateway)
    second = await cluster.gateway()
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
    await eventually(lambda: is_code(member.heartbeat(), Code.REBALANCE_IN_PROGRESS))
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
    await eventually(lambda: is_code(member.heartbeat(), Code.REBALANCE_IN_PROGRESS))
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
