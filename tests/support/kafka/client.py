"""A client of Kafka's protocol for tests: one connection, one request at a time, encoded and decoded by ``kio``."""

import asyncio
import struct
from collections.abc import Mapping
from dataclasses import fields
from io import BytesIO
from typing import Any, Self, get_args, get_type_hints

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 0, 1, 2, 3, 18
CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID, DESCRIBE_CONFIGS = 19, 20, 21, 22, 32
ALTER_CONFIGS, CREATE_PARTITIONS, INCREMENTAL_ALTER_CONFIGS = 33, 37, 44


def entity(schema: type[Any], values: Mapping[str, Any]) -> Any:
    """An object of a class of ``kio``, from mappings and lists."""
    hints = get_type_hints(schema)
    made = {}
    for field in fields(schema):
        if field.name in values:
            inner = [one for one in get_args(hints[field.name]) if hasattr(one, "__api_key__")]
            for one in get_args(hints[field.name]):
                inner += [two for two in get_args(one) if hasattr(two, "__api_key__")]
            value = values[field.name]
            if isinstance(value, list):
                value = tuple(entity(inner[0], one) if inner else one for one in value)
            made[field.name] = value
    return schema(**made)


def encoded(schema: type[Any], values: Mapping[str, Any]) -> bytes:
    """The bytes of an object of a class of ``kio``."""
    buffer = BytesIO()
    entity_writer(schema)(buffer, entity(schema, values))
    return buffer.getvalue()


def request_body(key: int, version: int, values: Mapping[str, Any]) -> bytes:
    """A request without its header."""
    return encoded(load_request_schema(key, version), values)


def decoded_answer(key: int, version: int, body: bytes) -> Any:
    """An answer without its header."""
    answer, size = entity_reader(load_response_schema(key, version))(body, 0)
    assert size == len(body)
    return answer


def frame(key: int, version: int, number: int, body: bytes) -> bytes:
    """A request as it is sent, from the client "test"."""
    tags = b"\0" if load_request_schema(key, version).__flexible__ else b""
    whole = struct.pack(">hhih", key, version, number, 4) + b"test" + tags + body
    return struct.pack(">i", len(whole)) + whole


class KafkaClient:
    """See the module."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._number = 0

    @classmethod
    async def connect(cls, port: int) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.writer.close()

    async def send(self, key: int, version: int, values: Mapping[str, Any]) -> None:
        """Send a request without reading the answer."""
        self._number += 1
        self.writer.write(frame(key, version, self._number, request_body(key, version, values)))
        await self.writer.drain()

    async def receive(self, key: int, version: int) -> Any:
        """The next answer, to a request of this kind."""
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        whole = await self.reader.readexactly(size)
        (number,) = struct.unpack_from(">i", whole)
        assert number == self._number
        tags = 1 if load_response_schema(key, version).__flexible__ and key != API_VERSIONS else 0
        return decoded_answer(key, version, whole[4 + tags :])

    async def ask(self, key: int, version: int, values: Mapping[str, Any]) -> Any:
        """The answer to a request."""
        await self.send(key, version, values)
        return await self.receive(key, version)

    # --- the requests that tests ask most ---------------------------------------------------------------------------

    async def produce(self, topic: str, *batches: bytes | None, acks: int = -1, version: int = 8) -> list[Any]:
        """Send a batch to partition 0, 1, ... of a topic; the answers of the partitions."""
        answer = await self.ask(PRODUCE, version, produce_request(topic, *batches, acks=acks))
        return [one for response in answer.responses for one in response.partition_responses]

    async def produce_at(self, topic: str, partition: int, batch: bytes) -> list[Any]:
        """Send a batch to one partition; its answer."""
        asked = produce_request(topic)
        asked["topic_data"][0]["partition_data"] = [{"index": partition, "records": batch}]
        answer = await self.ask(PRODUCE, 8, asked)
        return [one for response in answer.responses for one in response.partition_responses]

    async def fetch(self, topic: str, offset: int, *, version: int = 11, partition: int = 0, **settings: Any) -> Any:
        """The answer of one partition."""
        answer = await self.ask(FETCH, version, fetch_request(topic, offset, partition=partition, **settings))
        return answer.responses[0].partitions[0]

    async def offset_at(self, topic: str, time: int, *, partition: int = 0) -> Any:
        """The answer of ListOffsets for one partition: -1 for its end, -2 for its beginning."""
        wanted = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": time}
        topics = [{"name": topic, "partitions": [wanted]}]
        answer = await self.ask(LIST_OFFSETS, 5, {"replica_id": -1, "isolation_level": 0, "topics": topics})
        return answer.topics[0].partitions[0]

    async def metadata(self, *topics: str, create: bool = True) -> Any:
        """The answer to Metadata."""
        asked = {"topics": [{"name": name} for name in topics], "allow_auto_topic_creation": create}
        flags = {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": False}
        return await self.ask(METADATA, 8, asked | flags)


def produce_request(topic: str, *batches: bytes | None, acks: int = -1, transactional_id: str | None = None) -> Any:
    """The fields of a request that sends a batch to each of the first partitions of a topic."""
    partitions = [{"index": index, "records": batch} for index, batch in enumerate(batches)]
    topics = [{"name": topic, "partition_data": partitions}]
    return {
        "transactional_id": transactional_id, "acks": acks, "timeout": milliseconds(10_000), "topic_data": topics
    }  # fmt: skip


def fetch_request(
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    wait_ms: int = 0,
    bytes_min: int = 1,
    bytes_max: int = 1 << 20,
    partition_bytes_max: int = 1 << 20,
    leader_epoch: int = -1,
    session_id: int = 0,
) -> Any:
    """The fields of a request for one partition."""
    wanted = {
        "partition": partition, "current_leader_epoch": leader_epoch, "fetch_offset": offset,
        "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": partition_bytes_max,
    }  # fmt: skip
    return {
        "replica_id": -1, "max_wait": milliseconds(wait_ms), "min_bytes": bytes_min, "max_bytes": bytes_max,
        "isolation_level": 0, "session_id": session_id, "session_epoch": -1, "forgotten_topics_data": [],
        "topics": [{"topic": topic, "partitions": [wanted]}], "rack_id": "",
    }  # fmt: skip


def milliseconds(value: int) -> Any:
    """A time as ``kio`` wants it."""
    from datetime import timedelta  # noqa: PLC0415

    return timedelta(milliseconds=value)
