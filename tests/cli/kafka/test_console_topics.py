"""Topics, consumer groups and records as the console's server gives them."""

import gzip
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from octavo.bookie.admin.http_messages import HttpError
from octavo.cli.console.entries import SHOWN_BYTES_MAX
from octavo.cli.console.kafka_watch import LIST_SECONDS, ONE_SECONDS, PARTITIONS_MAX, KafkaWatch
from octavo.cli.console.records import HEADERS_MAX, records_as_json
from octavo.client.client import Client
from octavo.gateway.codes import Code
from octavo.gateway.gateway import Gateway
from octavo.metadata import MetadataStore
from octavo.protocol.errors import InvalidArgumentError, UnauthorizedError
from support.clusters.gateway_cluster import GatewayCluster, open_gateway_cluster
from support.kafka.batches import batch_of, number, record
from support.kafka.client import CREATE_TOPICS, DELETE_RECORDS, KafkaClient, milliseconds
from support.kafka.groups import GroupClient
from support.waiting import eventually


@dataclass
class Shown:
    """A cluster with a gateway, and what a console sees of it."""

    cluster: GatewayCluster
    gateway: Gateway
    client: Client
    store: MetadataStore
    kafka: KafkaClient
    watch: KafkaWatch
    now: float = 0.0

    async def records(self, topic: str = "orders", partition: int = 0, **asked: Any) -> Any:
        return await records_as_json(self.client, self.store, topic, partition, **asked)


@pytest.fixture
async def shown() -> AsyncIterator[Shown]:
    async with open_gateway_cluster() as cluster:
        gateway = await cluster.gateway()
        store = await cluster.logs.metadata.open()
        client = await cluster.logs.client_of(store)
        async with await KafkaClient.connect(gateway.port) as kafka:
            made: Shown
            watch = KafkaWatch(client, store, lambda: made.now)
            made = Shown(cluster, gateway, client, store, kafka, watch)
            await kafka.metadata("orders")
            yield made


async def produced(shown: Shown, *batches: bytes) -> None:
    """The batches are acknowledged, and other clients than the gateway's see them."""
    for batch in batches:
        (answer,) = await shown.kafka.produce("orders", batch)
        assert answer.error_code.value == Code.NONE
    await eventually(shown.cluster.logs.ends_are_known)


# --- topics ---------------------------------------------------------------------------------------------------------


async def test_topics_are_listed_and_a_look_answers_for_a_while(shown: Shown) -> None:
    (topic,) = (await shown.watch.topics())["items"]
    assert (topic["name"], topic["partitions"], topic["keeps"], topic["private"]) == ("orders", 1, "everything", False)
    await shown.kafka.metadata("sales")
    assert len((await shown.watch.topics())["items"]) == 1
    shown.now += LIST_SECONDS + 0.1
    assert [one["name"] for one in (await shown.watch.topics())["items"]] == ["orders", "sales"]


async def test_a_topic_has_its_partitions_with_leader_and_ends(shown: Shown) -> None:
    await produced(shown, batch_of(b"one", b"two"), batch_of(b"three"))
    seen = await shown.watch.topic("orders", 0)
    (partition,) = seen["partition_list"]
    assert (partition["gateway"], partition["begin"], partition["end"]) == (1, 0, 3)
    assert partition["leader"] == "gateway 0"
    assert seen["settings"]["retention.ms"] == "-1"
    shown.now += ONE_SECONDS + 0.1
    await produced(shown, batch_of(b"four"))
    assert (await shown.watch.topic("orders", 0))["partition_list"][0]["end"] == 4
    with pytest.raises(HttpError, match="there is no topic 'none'") as refused:
        await shown.watch.topic("none", 0)
    assert refused.value.status == 404


async def test_a_large_topic_is_shown_in_pages(shown: Shown) -> None:
    topic = {"name": "wide", "num_partitions": PARTITIONS_MAX + 3, "replication_factor": -1}
    topic |= {"assignments": [], "configs": []}
    asked = {"topics": [topic], "timeout": milliseconds(1000), "validate_only": False}
    assert (await shown.kafka.ask(CREATE_TOPICS, 4, asked)).topics[0].error_code.value == 0
    first = await shown.watch.topic("wide", 0)
    assert [one["partition"] for one in first["partition_list"]] == list(range(PARTITIONS_MAX))
    second = await shown.watch.topic("wide", PARTITIONS_MAX)
    assert [one["partition"] for one in second["partition_list"]] == [PARTITIONS_MAX + at for at in range(3)]
    assert (await shown.watch.topic("wide", 10**6))["partition_list"] == []


# --- groups ---------------------------------------------------------------------------------------------------------


async def test_groups_are_shown_with_members_and_lag(shown: Shown) -> None:
    await produced(shown, batch_of(b"one", b"two", b"three"))
    async with await GroupClient.of(shown.gateway.port) as member:
        await member.enter()
        assert await member.commit(1) is Code.NONE
        seen = await shown.watch.groups()
        assert seen["items"] == [{"group": "billing", "protocol": "classic", "state": "Stable", "members": 1, "lag": 2}]
        assert seen["trouble"] is None
        group = await shown.watch.group("billing")
        assert [one["member"] for one in group["members"]] == [member.member_id]
        (offset,) = group["offsets"]
        assert (offset["topic"], offset["partition"], offset["offset"], offset["end"], offset["lag"]) == (
            "orders", 0, 1, 3, 2,
        )  # fmt: skip
    with pytest.raises(HttpError, match="there is no group 'none'") as refused:
        await shown.watch.group("none")
    assert refused.value.status == 404


async def test_an_offset_beyond_the_end_hides_no_lag_of_other_partitions(shown: Shown) -> None:
    await shown.kafka.metadata("sales")
    await produced(shown, batch_of(b"one", b"two", b"three"))
    async with await GroupClient.of(shown.gateway.port) as consumer:
        assert await consumer.commit(1) is Code.NONE
        assert await consumer.commit(99, topic="sales") is Code.NONE
    assert [one["lag"] for one in (await shown.watch.groups())["items"]] == [2]


async def test_without_a_gateway_the_list_says_so(shown: Shown) -> None:
    await shown.gateway.close()
    seen = await shown.watch.groups()
    assert (seen["items"], "no gateway runs" in seen["trouble"]) == ([], True)
    with pytest.raises(HttpError, match="no gateway runs"):
        await shown.watch.group("billing")
    assert len((await shown.watch.topics())["items"]) == 1, "topics need none"


def test_a_console_without_the_extra_of_gateways_says_what_groups_need() -> None:
    program = """
import asyncio, sys
sys.modules["kio"] = None
from octavo.cli.console.kafka_watch import KafkaWatch
import octavo.cli.console.records, octavo.cli.kafka.topics
print(asyncio.run(KafkaWatch(None, None, lambda: 0.0).groups())["trouble"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "install Octavo with its extra `kafka`" in done.stdout


# --- records --------------------------------------------------------------------------------------------------------


def keyed(offset: int, value: bytes | None, key: bytes | None, headers: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    """A record with headers."""

    def field(content: bytes | None) -> bytes:
        return number(-1) if content is None else number(len(content)) + content

    body = b"\0" + number(0) + number(offset) + field(key) + field(value) + number(len(headers))
    body += b"".join(field(name) + field(content) for name, content in headers)
    return number(len(body)) + body


async def test_the_newest_records_are_shown_and_those_from_an_offset_on(shown: Shown) -> None:
    await produced(shown, *(batch_of(b"%d" % at, b"%d" % (at + 1), b"%d" % (at + 2)) for at in range(0, 30, 3)))
    page = await shown.records(count=4)
    assert ([one["value"] for one in page["items"]], page["next"]) == (["26", "27", "28", "29"], None)
    for offset in range(31):
        page = await shown.records(offset=offset, count=4)
        expected = [str(at) for at in range(offset, min(30, offset + 4))]
        assert [one["value"] for one in page["items"]] == expected
        assert [one["offset"] for one in page["items"]] == [int(one) for one in expected]
        assert page["next"] == (offset + 4 if offset + 4 < 30 else None), offset
    assert (page["start_offset"], page["end"], page["partitions"]) == (0, 30, 1)
    assert (await shown.records(offset=99))["items"] == []


async def test_records_from_a_time_on_are_those_that_were_added_then_or_later(shown: Shown) -> None:
    await produced(shown, batch_of(b"one"))
    page = await shown.records(at="1h")
    assert [one["value"] for one in page["items"]] == ["one"]
    assert page["items"][0]["timestamp_ms"] == 1000
    assert (await shown.records(at="2999-01-01T00:00:00"))["items"] == []
    with pytest.raises(InvalidArgumentError, match="is no time"):
        await shown.records(at="soon")


async def test_keys_headers_and_values_of_all_kinds(shown: Shown) -> None:
    records = keyed(0, None, None, []) + keyed(1, b"\xff", b"k\xc3\xa9y", [(b"trace", b"1"), (b"none", None)])
    await produced(shown, batch_of(records=records, count=2))
    deleted, raw = (await shown.records())["items"]
    assert (deleted["key"], deleted["value"], deleted["headers"]) == (None, None, [])
    assert (raw["key"], raw["value"], raw["bytes"]) == ("kéy", {"base64": "/w=="}, 1)
    assert raw["headers"] == [{"name": "trace", "value": "1"}, {"name": "none", "value": None}]


async def test_what_is_long_is_cut(shown: Shown) -> None:
    headers = [(b"h", b"x")] * (HEADERS_MAX + 2)
    records = keyed(0, b"v" * (SHOWN_BYTES_MAX + 1), b"k" * (SHOWN_BYTES_MAX + 2), headers)
    await produced(shown, batch_of(records=records, count=1))
    (one,) = (await shown.records())["items"]
    assert (len(one["value"]), one["bytes"]) == (SHOWN_BYTES_MAX, SHOWN_BYTES_MAX + 1)
    assert (len(one["key"]), one["key_bytes"]) == (SHOWN_BYTES_MAX, SHOWN_BYTES_MAX + 2)
    assert (len(one["headers"]), one["headers_left_out"]) == (HEADERS_MAX, 2)


async def test_compressed_records_are_shown_and_damaged_ones_named(shown: Shown) -> None:
    packed = gzip.compress(record(0, b"one") + record(1, b"two"))
    await produced(shown, batch_of(records=packed, count=2, attributes=1))
    await produced(shown, batch_of(records=b"no gzip", count=2, attributes=1), batch_of(b"after"))
    items = (await shown.records(offset=0))["items"]
    assert [one.get("value") for one in items] == ["one", "two", None, "after"]
    assert (items[2]["offset"], items[2]["position"]) == (2, 1)
    assert "cannot be unpacked with gzip" in items[2]["trouble"]


async def test_deleted_records_are_not_shown(shown: Shown) -> None:
    await produced(shown, batch_of(b"one", b"two", b"three"))
    asked = {
        "topics": [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 2}]}],
        "timeout": milliseconds(1000),
    }
    answer = await shown.kafka.ask(DELETE_RECORDS, 1, asked)
    assert answer.topics[0].partitions[0].error_code.value == 0
    for asked_for in ({}, {"offset": 0}, {"at": "1h"}):
        page = await shown.records(**asked_for)
        assert [one["value"] for one in page["items"]] == ["three"]
    assert page["start_offset"] == 2


async def test_a_partition_that_is_not_there_is_refused(shown: Shown) -> None:
    with pytest.raises(InvalidArgumentError, match="has the partitions 0 to 0"):
        await shown.records(partition=1)
    with pytest.raises(HttpError, match="there is no topic"):
        await shown.records("none")
    assert (await shown.records())["items"] == []


async def test_records_of_a_private_topic_are_never_shown(shown: Shown) -> None:
    await shown.gateway.close()
    secret = await shown.cluster.gateway(password=b"secret words")
    async with await KafkaClient.connect(secret.port) as kafka:

        async def is_done() -> bool:
            await kafka.metadata("hush")
            (answer,) = await kafka.produce("hush", batch_of(b"hush hush"))
            return bool(answer.error_code.value == Code.NONE)

        await eventually(is_done)
    with pytest.raises(UnauthorizedError):
        await shown.records("hush")
    seen = await shown.watch.topic("hush", 0)
    assert seen["private"]
    (partition,) = seen["partition_list"]
    assert (partition["begin"], partition["end"]) == (None, None)
    assert partition["trouble"]
    assert "hush hush" not in json.dumps(seen)
