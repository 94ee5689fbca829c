"""Requests of members of the consumer protocol, and of those who look after their groups (rule K16)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import pytest
from octavo.gateway.codes import Code
from octavo.gateway.coordinating.coordinator import GroupLimits
from octavo.gateway.gateway import Gateway
from octavo.gateway.groups.epoch_group import GOES_AWAY, HEARTBEAT_MS, SESSION_MS, WAITING_HEARTBEAT_MS
from octavo.protocol.messages import Op
from support.clusters.gateway_cluster import GatewayCluster
from support.kafka.client import CREATE_PARTITIONS, CREATE_TOPICS, METADATA, milliseconds
from support.kafka.coordinated import hold, is_code, pass_time, release
from support.kafka.epochs import EpochClient
from support.kafka.groups import LIST_GROUPS, AnswerError, GroupClient
from support.waiting import eventually, loop_turns

type Enter = Callable[..., Awaitable[EpochClient]]


@pytest.fixture
async def enter(gateway: Gateway) -> AsyncIterator[Enter]:
    """Makes consumers with connections of their own; the topic `orders` has four partitions."""
    async with AsyncExitStack() as stack:

        async def made(group: str = "billing", instance: str | None = None, port: int = 0) -> EpochClient:
            return await stack.enter_async_context(await EpochClient.of(port or gateway.port, group, instance))

        await topic(await made(), "orders", 4)
        yield made


async def hears(client: EpochClient) -> bool:
    """Whether its heartbeat is answered well now."""
    return await is_code(client.hear(), Code.NONE)


async def topic(client: GroupClient, name: str, partitions: int) -> None:
    new = {"name": name, "num_partitions": partitions, "replication_factor": -1, "assignments": [], "configs": []}
    await client.ask(CREATE_TOPICS, 7, {"topics": [new], "timeout": milliseconds(5000), "validate_only": False})


async def pair(enter: Enter) -> tuple[EpochClient, EpochClient]:
    """Two members that have two partitions each."""
    first, second = await enter(), await enter()
    for one in (first, second):
        assert await one.join() is Code.NONE
    for one in (first, first, second):
        assert await one.hear() is Code.NONE
    return first, second


async def test_members_share_a_topic_and_commit(enter: Enter) -> None:
    first, second = await enter(), await enter()
    assert await first.join() is Code.NONE
    assert (await first.assigned(), first.interval_ms) == ({"orders": [0, 1, 2, 3]}, HEARTBEAT_MS)
    assert await second.join() is Code.NONE
    assert (await second.assigned(), second.interval_ms) == ({}, WAITING_HEARTBEAT_MS)
    assert await first.hear() is Code.NONE
    assert await first.assigned() == {"orders": [0, 1]}
    assert await first.commit(7) is Code.NONE, "before it gives partitions back"
    assert await first.hear() is Code.NONE
    assert await second.hear() is Code.NONE
    assert await second.assigned() == {"orders": [2, 3]}
    assert await first.offset_as_member() == 7


async def test_a_stale_member_commits_nothing_and_is_told_nothing(enter: Enter) -> None:
    first, second = await pair(enter)
    present, first.generation = first.generation, first.generation - 1
    assert await first.commit(8) is Code.STALE_MEMBER_EPOCH
    for epoch, code in ((present - 1, Code.STALE_MEMBER_EPOCH), (-1, Code.STALE_MEMBER_EPOCH)):
        with pytest.raises(AnswerError, match=code.name):
            await first.offset_as_member(epoch)
    assert await first.go() is Code.NONE
    first.generation = present
    assert await first.commit(8) is Code.UNKNOWN_MEMBER_ID
    with pytest.raises(AnswerError, match="UNKNOWN_MEMBER_ID"):
        await first.offset_as_member()
    assert await second.committed() == -1, "who is no member may look"
    stranger = await enter()
    assert await stranger.commit(8) is Code.UNKNOWN_MEMBER_ID, "the group has members"
    assert await second.go() is Code.NONE
    with pytest.raises(AnswerError, match="UNKNOWN_MEMBER_ID"):
        await second.offset_as_member(1)
    assert await stranger.commit(9) is Code.NONE
    assert await stranger.committed() == 9


async def test_a_heartbeat_is_answered_once_what_it_changes_is_durable(cluster: GatewayCluster, enter: Enter) -> None:
    first, second = await enter(), await enter()
    assert await first.join() is Code.NONE
    hold(cluster, Op.ADD)
    joining = asyncio.create_task(second.join())
    again = await enter()
    again.member_id = first.member_id
    again.generation, again.has = first.generation, first.has
    hearing = asyncio.create_task(again.hear())
    await loop_turns(50)
    assert not joining.done()
    assert not hearing.done(), "what it is told is not durable either"
    release(cluster, Op.ADD)
    assert await joining is Code.NONE
    assert await hearing is Code.NONE


async def test_a_member_that_is_not_heard_of_is_removed(
    cluster: GatewayCluster, gateway: Gateway, enter: Enter
) -> None:
    first, second = await pair(enter)
    pass_time(cluster, gateway, SESSION_MS - 1)
    assert await second.hear() is Code.NONE
    pass_time(cluster, gateway, 1)
    assert await first.hear() is Code.UNKNOWN_MEMBER_ID
    assert await second.hear() is Code.NONE
    assert await second.assigned() == {"orders": [0, 1, 2, 3]}
    assert await first.join() is Code.NONE


async def test_the_session_can_be_shorter(cluster: GatewayCluster) -> None:
    gateway = await cluster.gateway(groups=GroupLimits(epoch_session_ms=2000))
    async with await EpochClient.of(gateway.port) as client:
        assert await client.join() is Code.NONE
        pass_time(cluster, gateway, 2000)
        assert await client.hear() is Code.UNKNOWN_MEMBER_ID


async def test_a_static_member_takes_its_place_back(enter: Enter) -> None:
    first, other, second = await enter(instance="one"), await enter(), await enter(instance="one")
    for one in (first, other, first, first, other):
        assert await (one.hear() if one.member_id else one.join()) is Code.NONE
    had = await first.assigned()
    assert await second.join() is Code.UNRELEASED_INSTANCE_ID
    assert await first.go(GOES_AWAY) is Code.NONE
    assert await second.join() is Code.NONE
    assert await second.assigned() == had
    assert second.generation == other.generation
    assert await first.hear(instance_id="one") is Code.FENCED_INSTANCE_ID


async def test_topics_that_come_and_grow_are_shared(enter: Enter) -> None:
    client = await enter()
    client.topics = ("orders", "payments")
    assert await client.join() is Code.NONE
    await topic(client, "payments", 1)
    assert await client.hear() is Code.NONE
    assert await client.assigned() == {"orders": [0, 1, 2, 3], "payments": [0]}
    grown = [{"name": "payments", "count": 2, "assignments": None}]
    await client.ask(CREATE_PARTITIONS, 3, {"topics": grown, "timeout": milliseconds(5000), "validate_only": False})
    assert await client.hear() is Code.NONE
    assert (await client.assigned())["payments"] == [0, 1]


async def test_a_pattern_chooses_topics(enter: Enter) -> None:
    client = await enter()
    await topic(client, "payments", 1)
    names: dict[str, object] = {"subscribed_topic_names": None}
    assert await client.join(**names, subscribed_topic_regex="(order|item)s") is Code.NONE
    assert await client.assigned() == {"orders": [0, 1, 2, 3]}
    await topic(client, "items", 1)
    assert await client.hear() is Code.NONE
    assert await client.assigned() == {"items": [0], "orders": [0, 1, 2, 3]}
    other = await enter()
    assert await other.join(**names, subscribed_topic_regex=r"(a)\1") is Code.INVALID_REGULAR_EXPRESSION
    assert other.text == r"the regular expression '(a)\\1' is refused: \1 has no meaning here"
    assert await other.join(**names, subscribed_topic_regex=".*") is Code.NONE
    assert await client.hear() is await client.hear() is await other.hear() is Code.NONE
    everything = {**await client.assigned(), **await other.assigned()}
    assert sorted(everything) == ["items", "orders", "payments"], "and none that is the gateway's own"


async def test_older_members_are_given_ids_and_newer_ones_have_them(enter: Enter) -> None:
    client = await enter()
    assert await client.join(member_id="") is Code.INVALID_REQUEST
    full = {"subscribed_topic_names": ("orders",), "rebalance_timeout": milliseconds(30_000), "member_id": ""}
    assert await client.hear(version=0, **full) is Code.NONE
    assert client.member_id.startswith("member-")
    assert await client.hear(version=0) is Code.NONE
    assert await client.hear(server_assignor="mine") is Code.UNSUPPORTED_ASSIGNOR
    assert client.text == "there is no way of sharing 'mine'; there are uniform, range"


# --- two protocols ----------------------------------------------------------------------------------------------------


async def test_a_group_is_of_one_protocol_as_long_as_it_has_members(gateway: Gateway, enter: Enter) -> None:
    new = await enter()
    async with await GroupClient.of(gateway.port) as classic:
        assert await new.join() is Code.NONE
        assert await new.commit(5) is Code.NONE
        assert (await classic.join()).code is Code.INCONSISTENT_GROUP_PROTOCOL
        classic.member_id, classic.generation = new.member_id, new.generation
        assert await classic.heartbeat() is Code.UNKNOWN_MEMBER_ID
        assert await new.go() is Code.NONE
        classic.member_id, classic.generation = "", -1
        await classic.enter()
        assert classic.generation > 1, "epochs and generations are one sequence"
        assert await classic.committed() == 5
        assert await classic.commit(6) is Code.NONE
        assert await new.join() is Code.GROUP_ID_NOT_FOUND
        assert new.text == "the members of 'billing' use the classic protocol"
        assert await new.hear(member_epoch=3) is Code.UNKNOWN_MEMBER_ID
        assert await classic.leave() is Code.NONE
        assert await new.join() is Code.NONE
        assert new.generation > classic.generation
        assert await new.committed() == 6
        assert await classic.commit(7) is Code.UNKNOWN_MEMBER_ID


# --- looking after groups ---------------------------------------------------------------------------------------------


async def test_groups_are_described(enter: Enter) -> None:
    first, second = await pair(enter)
    described = await first.details()
    assert (described.group_state, described.assignor_name) == ("Stable", "uniform")
    assert described.group_epoch == described.assignment_epoch == first.generation
    rows = {one.member_id: one for one in described.members}
    assert rows.keys() == {first.member_id, second.member_id}
    row = rows[first.member_id]
    assert (row.client_id, row.client_host, row.rack_id, row.subscribed_topic_names, row.member_epoch) == (
        "test", "127.0.0.1", "here", ("orders",), first.generation
    )  # fmt: skip
    (found,) = row.assignment.topic_partitions
    assert ((found.topic_name, list(found.partitions)),) == tuple((await first.assigned()).items())
    assert row.target_assignment == row.assignment
    older = await first.describe()
    assert (older.group_state, older.protocol_type, older.protocol_data) == ("Stable", "consumer", "uniform")
    assignment = b"\0\0\0\0\0\1\0\6orders\0\0\0\2\0\0\0\0\0\0\0\1\xff\xff\xff\xff"
    assert {one.member_id: one.member_assignment for one in older.members}[first.member_id] == assignment
    assert (await first.details(version=0)).group_state == "Stable"


async def test_groups_are_listed_with_their_protocol_and_deleted(gateway: Gateway, enter: Enter) -> None:
    new = await enter()
    assert await new.join() is Code.NONE
    async with await GroupClient.of(gateway.port, "audit") as classic:
        await classic.commit(1)
        assert (await classic.ask(69, 1, {"group_ids": ("audit",), "include_authorized_operations": False})).groups[
            0
        ].error_code.value == Code.GROUP_ID_NOT_FOUND

        async def listed(kinds: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
            answer = await new.ask(LIST_GROUPS, 5, {"states_filter": (), "types_filter": kinds})
            return sorted((one.group_id, one.group_type, one.group_state) for one in answer.groups)

        assert await listed() == [("audit", "classic", "Empty"), ("billing", "consumer", "Stable")]
        assert await listed(("Consumer",)) == [("billing", "consumer", "Stable")]
        assert await new.delete_group() is Code.NON_EMPTY_GROUP
        assert await new.go() is Code.NONE
        assert await listed(("consumer",)) == [("billing", "consumer", "Empty")]
        assert (await new.details()).group_state == (await new.describe()).group_state == "Empty"
        assert await new.delete_group() is Code.NONE
        assert (await new.details()).error_code.value == Code.GROUP_ID_NOT_FOUND
        assert await listed() == [("audit", "classic", "Empty")]


async def test_topics_are_named_by_their_ids(enter: Enter) -> None:
    client = await enter()
    (named,) = (await client.ask(METADATA, 12, {
        "topics": [{"topic_id": None, "name": "orders"}], "include_topic_authorized_operations": False
    })).topics  # fmt: skip
    assert named.topic_id is not None
    for version in (10, 11, 12):
        flags = {"include_cluster_authorized_operations": False} if version < 11 else {}
        asked = {"topics": [{"topic_id": named.topic_id, "name": None if version == 12 else "orders"}]}
        (found,) = (
            await client.ask(METADATA, version, {**asked, "include_topic_authorized_operations": False, **flags})
        ).topics
        assert (found.name, found.topic_id, len(found.partitions)) == ("orders", named.topic_id, 4)
    (unknown,) = (await client.ask(METADATA, 12, {
        "topics": [{"topic_id": type(named.topic_id)(int=7), "name": None}],
        "include_topic_authorized_operations": False,
    })).topics  # fmt: skip
    assert (unknown.error_code.value, unknown.name) == (Code.UNKNOWN_TOPIC_ID, None)


# --- bounds, and another coordinator ----------------------------------------------------------------------------------


async def test_members_that_say_too_much_are_refused(cluster: GatewayCluster) -> None:
    gateway = await cluster.gateway(groups=GroupLimits(members_bytes_max=5000))
    async with await EpochClient.of(gateway.port) as client, await EpochClient.of(gateway.port, "audit") as other:
        client.topics = tuple(f"topic-{number}" for number in range(40))
        assert await client.join() is Code.NONE
        other.topics = client.topics
        other.group = "billing"
        assert await other.join() is Code.GROUP_MAX_SIZE_REACHED
        assert await client.join() is Code.NONE, "it says no more than before"
        assert await client.go() is Code.NONE
        assert await other.join() is Code.NONE


async def test_another_gateway_goes_on_with_the_same_owners(
    cluster: GatewayCluster, gateway: Gateway, enter: Enter
) -> None:
    first, second = await pair(enter)
    assert await first.commit(5) is Code.NONE
    shares, epoch = (first.has, second.has), first.generation
    other = await cluster.gateway()
    await gateway.close()
    moved = [await enter(port=other.port) for _ in range(2)]
    for one, before in zip(moved, (first, second), strict=True):
        one.member_id, one.generation, one.has = before.member_id, before.generation, before.has
    assert await moved[0].offset_as_member() == 5
    assert await moved[0].commit(6) is Code.NONE, "it still is a member, in its epoch"
    for one in moved:
        await eventually(partial(hears, one))
    assert (moved[0].has, moved[1].has) == shares, "nothing has moved"
    assert moved[0].generation == moved[1].generation > epoch
    assert await moved[0].commit(7) is Code.NONE
    assert await moved[0].committed() == 7
