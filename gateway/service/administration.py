"""The answers to requests that make, enlarge and delete topics and records, and to InitProducerId."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final

from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.leading.leaders import Leaders
from octavo.gateway.service.needs import check_some, check_topic, may_see
from octavo.gateway.service.tried import tried
from octavo.gateway.topics.catalogue import Catalogue
from octavo.gateway.topics.producer_ids import ProducerIds
from octavo.gateway.wire.answers import answered
from octavo.gateway.wire.apis import Request
from octavo.gateway.wire.connection import Pieces
from octavo.gateway.wire.entities import Answer, decode_request, field_of
from octavo.protocol.errors import OctavoError

_NO_PRODUCER: Final = -1
_NO_OFFSET: Final = -1


class AdministrationService:
    """See the module."""

    def __init__(
        self,
        catalogue: Catalogue,
        leaders: Leaders,
        producer_ids: ProducerIds,
        count_bookies: Callable[[], Awaitable[int]],
    ) -> None:
        self._catalogue = catalogue
        self._leaders = leaders
        self._producer_ids = producer_ids
        self._count_bookies = count_bookies

    async def create_topics(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to CreateTopics."""
        asked = decode_request(request.api, request.version, request.body)
        topics = []
        for one in asked.topics:
            code, text = await tried(self._create(request, one, validate_only=asked.validate_only))
            topics.append(
                {"name": one.name, "error_code": code, "error_message": text, **self._made(request, one.name)}
            )
        return answered(request, {"throttle_time": 0, "topics": topics})

    def _made(self, request: Request, name: str) -> Answer:
        topic = self._catalogue.find(name)
        if topic is None or not may_see(request, name):
            return {"num_partitions": -1, "replication_factor": -1, "configs": [], "topic_id": None}
        return {
            "num_partitions": topic.partitions,
            "replication_factor": topic.write_quorum,
            "configs": [],
            "topic_id": topic.topic_id,
        }

    async def _create(self, request: Request, asked: Any, *, validate_only: bool) -> None:
        check_topic(request, asked.name)
        if asked.assignments:
            raise RefusedError(Code.INVALID_REQUEST, "gateways choose where partitions are; assignments are refused")
        settings = {one.name: one.value for one in asked.configs}
        wanted = asked.name, asked.num_partitions, asked.replication_factor, settings
        if validate_only:
            self._catalogue.check_new(*wanted, bookies=await self._count_bookies())
        else:
            await self._catalogue.create(*wanted)
            request.gate.done("create_topic", topic=asked.name)

    async def delete_topics(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to DeleteTopics."""
        asked = decode_request(request.api, request.version, request.body)
        named = field_of(asked, "topics", None)
        if named is None:
            answers = [await self._deleted(request, name, None) for name in asked.topic_names]
        else:
            answers = [await self._deleted(request, one.name, _hex(one.topic_id)) for one in named]
        return answered(request, {"throttle_time": 0, "responses": answers})

    async def _deleted(self, request: Request, name: str | None, topic_id: str | None) -> Answer:
        """Of a topic that is named, or whose id is given: to one who may not see it, there is none with this id."""
        if topic_id is not None:
            name = self._catalogue.names_by_id().get(topic_id)
            if name is None or not may_see(request, name):
                unknown = f"there is no topic with the id {topic_id}"
                return {
                    "name": None,
                    "topic_id": topic_id,
                    "error_code": Code.UNKNOWN_TOPIC_ID,
                    "error_message": unknown,
                }
        code, text = await tried(self._delete(request, name or ""))
        return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": text}

    async def _delete(self, request: Request, name: str) -> None:
        check_topic(request, name)
        await self._catalogue.delete(name)
        request.gate.done("delete_topic", topic=name)

    async def create_partitions(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to CreatePartitions."""
        asked = decode_request(request.api, request.version, request.body)
        results = []
        for one in asked.topics:
            code, text = await tried(self._grow(request, one, validate_only=asked.validate_only))
            results.append({"name": one.name, "error_code": code, "error_message": text})
        return answered(request, {"throttle_time": 0, "results": results})

    async def _grow(self, request: Request, asked: Any, *, validate_only: bool) -> None:
        check_topic(request, asked.name)
        if asked.assignments:
            raise RefusedError(Code.INVALID_REQUEST, "gateways choose where partitions are; assignments are refused")
        await self._catalogue.grow(asked.name, asked.count, validate_only=validate_only)
        if not validate_only:
            request.gate.done("create_partitions", topic=asked.name, partitions=asked.count)

    async def delete_records(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to DeleteRecords."""
        asked = decode_request(request.api, request.version, request.body)
        topics = [
            {"name": topic.name, "partitions": [await self._cut(request, topic.name, one) for one in topic.partitions]}
            for topic in asked.topics
        ]
        return answered(request, {"throttle_time": 0, "topics": topics})

    async def _cut(self, request: Request, name: str, asked: Any) -> Answer:
        code, start_offset, number = Code.NONE, _NO_OFFSET, asked.partition_index
        try:
            check_topic(request, name)
            partition = await self._leaders.get(self._catalogue.partition(name, number), number)
            start_offset = await partition.delete_below(asked.offset)
            request.gate.done("delete_records", topic=name, partition=number, start_offset=start_offset)
        except RefusedError as error:
            code = error.code
        except OctavoError:
            code = Code.REQUEST_TIMED_OUT
        return {"partition_index": number, "low_watermark": start_offset, "error_code": code}

    async def init_producer_id(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to InitProducerId. Transactions are refused: the protocol has no place for a text here."""
        asked = decode_request(request.api, request.version, request.body)
        code, producer_id = Code.UNSUPPORTED_VERSION, _NO_PRODUCER
        if asked.transactional_id is None:
            try:
                check_some(request)
                code, producer_id = Code.NONE, await self._producer_ids.take()
            except RefusedError as error:
                code = error.code
            except OctavoError:
                code = Code.REQUEST_TIMED_OUT
        answer = {
            "throttle_time": 0,
            "error_code": code,
            "producer_id": producer_id,
            "producer_epoch": 0 if code is Code.NONE else -1,
        }
        return answered(request, answer)


def _hex(topic_id: Any) -> str | None:
    return None if topic_id is None else str(topic_id.hex)
