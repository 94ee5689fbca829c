"""The answer to ListOffsets: where a partition begins and ends, and the first record of a time."""

from contextlib import AsyncExitStack
from typing import Any, Final

from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.leading.leaders import Leaders
from octavo.gateway.service.needs import check_topic
from octavo.gateway.topics.catalogue import Catalogue
from octavo.gateway.wire.answers import answered
from octavo.gateway.wire.apis import Request
from octavo.gateway.wire.connection import Pieces
from octavo.gateway.wire.entities import Answer, decode_request
from octavo.protocol.errors import OctavoError

_LATEST: Final = -1
_EARLIEST: Final = -2
_NONE: Final = -1


class OffsetsService:
    """See the module."""

    def __init__(self, catalogue: Catalogue, leaders: Leaders) -> None:
        self._catalogue = catalogue
        self._leaders = leaders

    async def list(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to ListOffsets."""
        asked = decode_request(request.api, request.version, request.body)
        topics = [
            {
                "name": topic.name,
                "partitions": [await self._partition(request, topic.name, one) for one in topic.partitions],
            }
            for topic in asked.topics
        ]
        return answered(request, {"throttle_time": 0, "topics": topics})

    async def _partition(self, request: Request, name: str, asked: Any) -> Answer:
        code, offset, time_ms = Code.NONE, _NONE, _NONE
        try:
            check_topic(request, name)
            offset, time_ms = await self._find(name, asked.partition_index, asked.timestamp)
        except RefusedError as error:
            code = error.code
        except OctavoError:
            code = Code.KAFKA_STORAGE_ERROR
        return {
            "partition_index": asked.partition_index,
            "error_code": code,
            "timestamp": time_ms,
            "offset": offset,
            "leader_epoch": _NONE,
        }

    async def _find(self, name: str, number: int, time_ms: int) -> tuple[int, int]:
        topic = self._catalogue.partition(name, number)
        partition = await self._leaders.get(topic, number)
        if time_ms == _LATEST:
            return partition.high_watermark, _NONE
        if time_ms == _EARLIEST:
            return partition.start_offset, _NONE
        if time_ms < 0:
            raise RefusedError(Code.INVALID_REQUEST, f"the time {time_ms} is not supported")
        found = await partition.first_at(time_ms)
        partition.check_leads()
        return (_NONE, _NONE) if found is None else found
