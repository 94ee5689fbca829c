"""What newer versions of requests about groups and topics say and ask, beside what older ones do."""

from uuid import UUID

import pytest
from octavo.gateway.codes import Code
from octavo.gateway.gateway import Gateway
from support.kafka.client import CREATE_TOPICS, DELETE_TOPICS, METADATA, milliseconds
from support.kafka.coordinated import Connect
from support.kafka.groups import FIND_COORDINATOR, LIST_GROUPS, OFFSET_FETCH, OLDER

SECOND = milliseconds(1000)


async def test_members_of_older_and_newer_versions_share_a_group(connect: Connect) -> None:
    old = await connect()
    old.versions = OLDER
    await old.enter()
    assert await old.commit(5) is Code.NONE
    assert await old.fetch_commits(None) == [("orders", 0, 5, -1, "")]
    new = await connect()
    assert await new.committed() == 5
    assert (await old.describe()).group_state == (await new.describe()).group_state == "Stable"
    assert await old.listed() == await new.listed() == ["billing"]
    assert await old.heartbeat() is Code.NONE
    assert await old.leave() is Code.NONE
    await new.enter()
    assert await new.commit(6) is Code.NONE
    assert await old.committed() == 6


async def test_coordinators_of_several_groups_are_found_at_once(gateway: Gateway, connect: Connect) -> None:
    client = await connect()
    answer = await client.ask(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ("billing", "", "audit")})
    found = [(one.key, one.node_id, one.port, Code(one.error_code.value)) for one in answer.coordinators]
    assert found == [
        ("billing", 1, gateway.port, Code.NONE), ("", -1, -1, Code.INVALID_GROUP_ID),
        ("audit", 1, gateway.port, Code.NONE),
    ]  # fmt: skip
    refused = await client.ask(FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": ("mine",)})
    assert [Code(one.error_code.value) for one in refused.coordinators] == [Code.INVALID_REQUEST]


async def test_offsets_of_several_groups_are_fetched_at_once(connect: Connect) -> None:
    billing, audit = await connect(), await connect("audit")
    assert await billing.commit(5) is Code.NONE
    assert await audit.commit(7) is Code.NONE
    wanted = [{"name": "orders", "partition_indexes": (0,)}]
    groups = [
        {"group_id": "audit", "topics": wanted}, {"group_id": "", "topics": wanted},
        {"group_id": "billing", "topics": None},
    ]  # fmt: skip
    answer = await billing.ask(OFFSET_FETCH, 8, {"groups": groups, "require_stable": True})
    found = [
        (one.group_id, Code(one.error_code.value), [row.committed_offset for row in one.topics[0].partitions])
        for one in answer.groups
    ]
    assert found == [("audit", Code.NONE, [7]), ("", Code.INVALID_GROUP_ID, [-1]), ("billing", Code.NONE, [5])]


async def test_groups_are_listed_by_state_and_kind(connect: Connect) -> None:
    stable, empty = await connect(), await connect("audit")
    await stable.enter()
    assert await empty.commit(1) is Code.NONE

    async def listed(states: tuple[str, ...], kinds: tuple[str, ...]) -> list[tuple[str, str, str]]:
        answer = await stable.ask(LIST_GROUPS, 5, {"states_filter": states, "types_filter": kinds})
        return sorted((one.group_id, one.group_state, one.group_type) for one in answer.groups)

    audit, billing = ("audit", "Empty", "classic"), ("billing", "Stable", "classic")
    assert await listed((), ()) == [audit, billing]
    assert await listed(("stable", "Dead"), ("Classic",)) == [billing]
    assert await listed(("Empty",), ()) == [audit]
    assert await listed((), ("consumer",)) == []


async def test_a_member_that_is_wrong_about_what_the_group_agreed_on_gets_no_assignment(connect: Connect) -> None:
    client = await connect()
    await client.join()
    shares = {client.member_id: b"mine"}
    wrong = (Code.INCONSISTENT_GROUP_PROTOCOL, b"")
    assert await client.sync(shares, protocol_type="consumer", protocol_name="roundrobin") == wrong
    assert await client.sync(shares, protocol_type="connect", protocol_name="range") == wrong
    assert await client.sync(shares, protocol_type="consumer", protocol_name="range") == (Code.NONE, b"mine")


@pytest.mark.parametrize("by_id", [False, True])
async def test_a_topic_is_made_with_an_id_and_deleted_by_name_or_id(connect: Connect, by_id: bool) -> None:
    client = await connect()
    new = {"name": "payments", "num_partitions": 2, "replication_factor": -1, "assignments": [], "configs": []}
    asked = {"topics": [new], "timeout": SECOND, "validate_only": False}
    (made,) = (await client.ask(CREATE_TOPICS, 7, asked)).topics
    assert (Code(made.error_code.value), made.num_partitions, made.configs) == (Code.NONE, 2, ())
    (again,) = (await client.ask(CREATE_TOPICS, 7, asked)).topics
    assert (Code(again.error_code.value), again.topic_id) == (Code.TOPIC_ALREADY_EXISTS, made.topic_id)
    named = {"name": None, "topic_id": made.topic_id} if by_id else {"name": "payments", "topic_id": None}
    wanted = [{"name": None, "topic_id": UUID(int=77)}, named]
    unknown, deleted = (await client.ask(DELETE_TOPICS, 6, {"topics": wanted, "timeout": SECOND})).responses
    assert (Code(unknown.error_code.value), unknown.name, unknown.topic_id) == (
        Code.UNKNOWN_TOPIC_ID, None, UUID(int=77)
    )  # fmt: skip
    assert (Code(deleted.error_code.value), deleted.name) == (Code.NONE, "payments")
    flags = {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": False}
    answer = await client.ask(METADATA, 9, {"topics": None, **flags})
    assert [one.name for one in answer.topics if not one.is_internal] == ["orders"]
