"""What clients may do at a gateway that serves principals only (rule K14)."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import fields, is_dataclass
from typing import Any
from uuid import UUID

import pytest
from octavo.client.client import Client
from octavo.gateway.access.access import GatewayAccess
from octavo.gateway.codes import Code
from octavo.gateway.gateway import Gateway
from octavo.gateway.service.needs import NEEDS
from octavo.gateway.wire.apis import VERSIONS, Api
from octavo.protocol.errors import InvalidArgumentError, UnauthorizedError
from octavo.security.roles import Role
from support.clusters.gateway_cluster import GatewayCluster
from support.kafka.batches import batch_of
from support.kafka.client import KafkaClient, fetch_request, milliseconds, produce_request
from support.kafka.groups import GroupClient
from support.kafka.sasl import authenticate, connected_as, principal, principals
from support.waiting import eventually

SECRET = b"the secret record"
PASSWORD = b"of the topics"
OWNER = principal(
    "owner", "read private", "write private", "create private", "delete private", "group owners", "write public.*",
    "create public.*",
)  # fmt: skip
GUEST = principal("guest", "read public.*", "group guests", "create made", "write public.*")
NOBODY = principal("nobody", "describe nothing")
BOSS = principal("boss", roles=frozenset({Role.ADMIN}))

TOPIC_REFUSED, GROUP_REFUSED, CLUSTER_REFUSED = (
    Code.TOPIC_AUTHORIZATION_FAILED, Code.GROUP_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED
)  # fmt: skip


@pytest.fixture
def access() -> GatewayAccess:
    made = GatewayAccess(required=True)
    made.update(principals(OWNER, GUEST, NOBODY, BOSS))
    return made


@pytest.fixture
async def gateway(cluster: GatewayCluster, access: GatewayAccess) -> Gateway:
    return await cluster.gateway(access=access, password=PASSWORD)


@pytest.fixture
async def owner(gateway: Gateway) -> AsyncIterator[KafkaClient]:
    """Its topics are there, with a record and a committed offset."""
    async with await connected_as(gateway.port, "owner") as client:
        made = await client.metadata("private", "public.news")
        assert codes_in(made) == {Code.NONE}
        for topic in ("private", "public.news"):
            (answer,) = await client.produce(topic, batch_of(SECRET))
            assert answer.error_code.value == 0
        async with await GroupClient.of(gateway.port, "owners") as member:
            assert await authenticate(member, "owner") == (Code.NONE, None)
            await member.enter()
            assert await member.commit(1, topic="private", metadata="of the owner") is Code.NONE
            yield client


def codes_in(answer: Any) -> set[Code]:
    """All codes of an answer, wherever they are."""
    return set(_codes(answer))


def _codes(answer: Any) -> Iterator[Code]:
    if isinstance(answer, tuple | list):
        for one in answer:
            yield from _codes(one)
    elif is_dataclass(answer):
        for field in fields(answer):
            value = getattr(answer, field.name)
            if field.name == "error_code":
                yield Code(value.value)
            else:
                yield from _codes(value)


def partition(**more: Any) -> list[Any]:
    return [{"name": "private", "partitions": [{"partition_index": 0, **more}]}]


MEMBER = {"group_id": "owners", "member_id": "m", "group_instance_id": None, "generation_id": 1}

ASKED: dict[Api, tuple[int, dict[str, Any], Code]] = {
    Api.PRODUCE: (8, produce_request("private", batch_of(b"x")), TOPIC_REFUSED),
    Api.FETCH: (11, fetch_request("private", 0), TOPIC_REFUSED),
    Api.LIST_OFFSETS: (
        5,
        {
            "replica_id": -1, "isolation_level": 0, "topics": partition(current_leader_epoch=-1, timestamp=-1),
        },
        TOPIC_REFUSED,
    ),
    Api.METADATA: (
        8,
        {
            "topics": [{"name": "private"}], "allow_auto_topic_creation": True,
            "include_cluster_authorized_operations": False, "include_topic_authorized_operations": False,
        },
        TOPIC_REFUSED,
    ),
    Api.OFFSET_COMMIT: (
        7,
        {
            "group_id": "guests", "member_id": "", "group_instance_id": None, "generation_id_or_member_epoch": -1,
            "topics": partition(committed_offset=5, committed_leader_epoch=-1, committed_metadata=""),
        },
        TOPIC_REFUSED,
    ),
    Api.OFFSET_FETCH: (
        5, {"group_id": "owners", "topics": [{"name": "private", "partition_indexes": (0,)}]}, GROUP_REFUSED
    ),
    Api.OFFSET_DELETE: (0, {"group_id": "owners", "topics": partition()}, GROUP_REFUSED),
    Api.FIND_COORDINATOR: (2, {"key": "owners", "key_type": 0}, GROUP_REFUSED),
    Api.JOIN_GROUP: (
        5,
        {
            "group_id": "owners", "member_id": "", "group_instance_id": None, "protocol_type": "consumer",
            "session_timeout": milliseconds(10_000), "rebalance_timeout": milliseconds(10_000),
            "protocols": [{"name": "range", "metadata": b""}],
        },
        GROUP_REFUSED,
    ),
    Api.SYNC_GROUP: (3, {**MEMBER, "assignments": []}, GROUP_REFUSED),
    Api.HEARTBEAT: (3, MEMBER, GROUP_REFUSED),
    Api.LEAVE_GROUP: (
        3, {"group_id": "owners", "members": [{"member_id": "m", "group_instance_id": None}]}, GROUP_REFUSED
    ),
    Api.DESCRIBE_GROUPS: (4, {"groups": ("owners",), "include_authorized_operations": False}, GROUP_REFUSED),
    Api.LIST_GROUPS: (2, {}, Code.NONE),
    Api.DELETE_GROUPS: (1, {"groups_names": ("owners",)}, GROUP_REFUSED),
    Api.CREATE_TOPICS: (
        4,
        {
            "topics": [
                {"name": "private", "num_partitions": 1, "replication_factor": -1, "assignments": [], "configs": []}
            ],
            "timeout": milliseconds(1000), "validate_only": False,
        },
        TOPIC_REFUSED,
    ),
    Api.CREATE_PARTITIONS: (
        1,
        {
            "topics": [{"name": "private", "count": 2, "assignments": None}], "timeout": milliseconds(1000),
            "validate_only": False,
        },
        TOPIC_REFUSED,
    ),
    Api.DELETE_TOPICS: (3, {"topic_names": ("private",), "timeout": milliseconds(1000)}, TOPIC_REFUSED),
    Api.DELETE_RECORDS: (1, {"topics": partition(offset=1), "timeout": milliseconds(1000)}, TOPIC_REFUSED),
    Api.DESCRIBE_CONFIGS: (
        3,
        {
            "resources": [{"resource_type": 2, "resource_name": "private", "configuration_keys": None}],
            "include_synonyms": False, "include_documentation": False,
        },
        TOPIC_REFUSED,
    ),
    Api.ALTER_CONFIGS: (
        1,
        {
            "resources": [
                {
                    "resource_type": 2, "resource_name": "private",
                    "configs": [{"name": "retention.ms", "value": "1"}],
                }
            ],
            "validate_only": False,
        },
        TOPIC_REFUSED,
    ),
    Api.INCREMENTAL_ALTER_CONFIGS: (
        0,
        {
            "resources": [
                {
                    "resource_type": 2, "resource_name": "private",
                    "configs": [{"name": "retention.ms", "config_operation": 0, "value": "1"}],
                }
            ],
            "validate_only": False,
        },
        TOPIC_REFUSED,
    ),
    Api.CONSUMER_GROUP_HEARTBEAT: (
        1,
        {
            "group_id": "owners", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ("private",),
            "rebalance_timeout": milliseconds(1000), "topic_partitions": [],
        },
        GROUP_REFUSED,
    ),
    Api.CONSUMER_GROUP_DESCRIBE: (
        1, {"group_ids": ("owners",), "include_authorized_operations": False}, GROUP_REFUSED
    ),
    Api.INIT_PRODUCER_ID: (
        1, {"transactional_id": None, "transaction_timeout": milliseconds(1000)}, CLUSTER_REFUSED
    ),
}  # fmt: skip
"""Each request that needs a right, and the code for one who has none."""


def test_every_request_says_which_right_it_needs() -> None:
    assert NEEDS.keys() == VERSIONS.keys()
    assert ASKED.keys() == {api for api, need in NEEDS.items() if any(need)}


@pytest.mark.parametrize("api", ASKED)
async def test_a_client_without_the_right_is_refused_and_told_nothing(
    gateway: Gateway, owner: KafkaClient, api: Api
) -> None:
    version, values, code = ASKED[api]
    async with await connected_as(gateway.port, "nobody") as client:
        if api is Api.OFFSET_COMMIT:
            values = values | {"group_id": "owners"}
            code = TOPIC_REFUSED  # the partition lacks the right to the topic, too
        answer = await client.ask(api, version, values)
    assert codes_in(answer) - {Code.NONE} == {code} - {Code.NONE}
    told = repr(answer)
    for hidden in ("secret", "of the owner", "mine"):
        assert hidden not in told
    assert api is not Api.LIST_GROUPS or answer.groups == ()
    got = await owner.fetch("private", 0)
    assert SECRET in got.records
    assert (await owner.offset_at("private", -1)).offset == 1, "nothing was changed"


NEWER: tuple[tuple[Api, int, dict[str, Any], Code], ...] = (
    (
        Api.OFFSET_FETCH,
        8,
        {"groups": [{"group_id": "owners", "topics": None}], "require_stable": False},
        GROUP_REFUSED,
    ),
    (Api.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ("owners",)}, GROUP_REFUSED),
    (
        Api.DELETE_TOPICS,
        6,
        {"topics": [{"name": "private", "topic_id": None}], "timeout": milliseconds(1000)},
        TOPIC_REFUSED,
    ),
)
"""Newer forms of some of them."""


@pytest.mark.parametrize("form", NEWER, ids=lambda form: str(form[0].name))
async def test_newer_forms_of_a_request_need_the_same_right(
    gateway: Gateway, owner: KafkaClient, form: tuple[Api, int, dict[str, Any], Code]
) -> None:
    api, version, values, code = form
    async with await connected_as(gateway.port, "nobody") as client:
        answer = await client.ask(api, version, values)
    assert codes_in(answer) - {Code.NONE} == {code}
    assert "of the owner" not in repr(answer)
    assert (await owner.offset_at("private", -1)).offset == 1


async def test_to_a_client_without_the_right_no_topic_has_the_id(gateway: Gateway, owner: KafkaClient) -> None:
    found = {one.name: UUID(one.topic_id) for one in gateway.catalogue.all()}
    asked = {"topics": [{"name": None, "topic_id": found["private"]}], "timeout": milliseconds(1000)}
    async with await connected_as(gateway.port, "nobody") as client:
        (answer,) = (await client.ask(Api.DELETE_TOPICS, 6, asked)).responses
    assert (Code(answer.error_code.value), answer.name) == (Code.UNKNOWN_TOPIC_ID, None)
    assert "private" not in answer.error_message
    assert (await owner.offset_at("private", -1)).offset == 1
    async with await connected_as(gateway.port, "boss") as client:
        (answer,) = (await client.ask(Api.DELETE_TOPICS, 6, asked)).responses
    assert (Code(answer.error_code.value), answer.name) == (Code.NONE, "private")


async def test_a_client_is_told_of_topics_and_groups_that_it_may_use(gateway: Gateway, owner: KafkaClient) -> None:
    for name, topics, groups in (
        ("owner", ["private", "public.news"], ["owners"]),
        ("guest", ["public.news"], []),
        ("nobody", [], []),
        ("boss", ["__consumer_offsets", "private", "public.news"], ["owners"]),
    ):
        async with await connected_as(gateway.port, name) as client:
            flags = {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": False}
            seen = await client.ask(Api.METADATA, 8, {"topics": None, "allow_auto_topic_creation": True, **flags})
            assert [one.name for one in seen.topics] == topics
            listed = await client.ask(Api.LIST_GROUPS, 2, {})
            assert [one.group_id for one in listed.groups] == groups
    assert owner is not None


async def test_a_topic_is_made_only_for_a_client_that_may_create_it(gateway: Gateway, owner: KafkaClient) -> None:
    async with await connected_as(gateway.port, "guest") as client:
        assert codes_in(await client.metadata("public.new")) == {TOPIC_REFUSED}, "it may write, and not create"
        assert codes_in(await client.metadata("public.new", create=False)) == {Code.UNKNOWN_TOPIC_OR_PARTITION}
        assert codes_in(await client.metadata("made")) == {Code.NONE}
    assert codes_in(await owner.metadata("public.new", create=False)) == {Code.UNKNOWN_TOPIC_OR_PARTITION}


async def test_what_a_client_may_read_is_answered_beside_what_it_may_not(gateway: Gateway, owner: KafkaClient) -> None:
    async with await connected_as(gateway.port, "guest") as client:
        asked = fetch_request("private", 0)
        asked["topics"] += fetch_request("public.news", 0)["topics"]
        answer = await client.ask(Api.FETCH, 11, asked)
        found = {one.topic: one.partitions[0] for one in answer.responses}
        assert found["private"].error_code.value == TOPIC_REFUSED
        assert not found["private"].records
        assert found["private"].high_watermark == -1
        assert SECRET in found["public.news"].records

        rows = produce_request("private", batch_of(b"x"))
        rows["topic_data"] += produce_request("public.news", batch_of(b"x"))["topic_data"]
        answer = await client.ask(Api.PRODUCE, 8, rows)
        codes = {one.name: one.partition_responses[0].error_code.value for one in answer.responses}
        assert codes == {"private": TOPIC_REFUSED, "public.news": Code.NONE}
    assert (await owner.offset_at("private", -1)).offset == 1


async def test_offsets_of_a_group_show_topics_only_that_a_client_may_see(
    gateway: Gateway, owner: KafkaClient, access: GatewayAccess
) -> None:
    access.update(access.principals.with_principal(principal("guest", "read public.*", "group *")))
    async with await connected_as(gateway.port, "guest") as client:
        everything = await client.ask(Api.OFFSET_FETCH, 5, {"group_id": "owners", "topics": None})
        assert (codes_in(everything), everything.topics) == ({Code.NONE}, ())
        named = await client.ask(
            Api.OFFSET_FETCH, 5, {"group_id": "owners", "topics": [{"name": "private", "partition_indexes": (0,)}]}
        )
        (row,) = named.topics[0].partitions
        assert (row.error_code.value, row.committed_offset, row.metadata) == (TOPIC_REFUSED, -1, "")
    assert owner is not None


async def test_settings_of_gateways_are_for_the_role_admin(gateway: Gateway) -> None:
    asked = {
        "resources": [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}],
        "include_synonyms": False, "include_documentation": False,
    }  # fmt: skip
    for name, code in (("guest", CLUSTER_REFUSED), ("boss", Code.NONE)):
        async with await connected_as(gateway.port, name) as client:
            assert codes_in(await client.ask(Api.DESCRIBE_CONFIGS, 3, asked)) == {code}


async def test_a_principal_loses_its_connections_with_its_rights(
    gateway: Gateway, owner: KafkaClient, access: GatewayAccess
) -> None:
    async with await connected_as(gateway.port, "guest") as guest:
        assert SECRET in (await guest.fetch("public.news", 0)).records
        access.update(access.principals.with_principal(principal("guest", "group guests")))
        assert await guest.reader.read(1) == b""
    async with await connected_as(gateway.port, "guest") as guest:
        assert (await guest.fetch("public.news", 0)).error_code.value == TOPIC_REFUSED
        access.update(access.principals.without("guest"))
        assert await guest.reader.read(1) == b""
    async with await KafkaClient.connect(gateway.port) as refused:
        assert (await authenticate(refused, "guest"))[0] is Code.SASL_AUTHENTICATION_FAILED
        assert await refused.reader.read(1) == b""
    assert SECRET in (await owner.fetch("private", 0)).records


async def test_a_client_that_is_not_authenticated_gets_nothing(gateway: Gateway, owner: KafkaClient) -> None:
    async with await KafkaClient.connect(gateway.port) as client:
        await client.send(Api.FETCH, 11, fetch_request("private", 0))
        assert await client.reader.read(1) == b""
    assert owner is not None


async def test_topics_are_private_logs(cluster: GatewayCluster, gateway: Gateway, owner: KafkaClient) -> None:
    other: Client = await cluster.logs.client()
    for name in ("kafka/private/0", "kafka/__consumer_offsets/0"):
        with pytest.raises(UnauthorizedError):
            await other.open_log(name)
        async with other.open_log(name, password=PASSWORD) as log:
            assert log.first_position == 0
    store = await cluster.logs.metadata.open()
    private = [(await store.read_stream(ledger_id)).value.private async for ledger_id in other.list_ledgers()]
    assert private
    assert all(private)
    assert gateway is not None
    assert owner is not None


async def test_a_gateway_with_another_password_does_not_start(cluster: GatewayCluster, owner: KafkaClient) -> None:
    assert owner is not None
    for password in (b"", b"another"):
        with pytest.raises(InvalidArgumentError, match=r"is private, and the password of this gateway is not that"):
            await cluster.gateway(password=password)
    second = await cluster.gateway(password=PASSWORD)
    async with await KafkaClient.connect(second.port) as client:
        assert codes_in(await client.metadata("private")) == {Code.NONE}


async def test_topics_from_before_stay_as_they_are(cluster: GatewayCluster) -> None:
    first = await cluster.gateway()
    async with await KafkaClient.connect(first.port) as client:
        await client.metadata("old")
        await client.produce("old", batch_of(b"x"))
    await first.close()
    second = await cluster.gateway(password=PASSWORD)
    async with await KafkaClient.connect(second.port) as client:

        async def reads() -> bool:
            return b"x" in ((await client.fetch("old", 0)).records or b"")

        await eventually(reads)
    async with (await cluster.logs.client()).open_log("kafka/old/0") as log:
        assert log.first_position == 0
