"""The answers to ApiVersions and Metadata: one gateway, which leads every partition."""

from contextlib import AsyncExitStack

from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.service.facts import NODE_ID, Facts
from octavo.gateway.topics.catalogue import Catalogue
from octavo.gateway.topics.document import Topic
from octavo.gateway.wire.apis import Request, encode_versions
from octavo.gateway.wire.connection import Pieces
from octavo.gateway.wire.entities import Answer, decode_request, encode_answer, field_of
from octavo.protocol.errors import OctavoError


class ClusterService:
    """See the module."""

    def __init__(self, catalogue: Catalogue, facts: Facts) -> None:
        self._catalogue = catalogue
        self._facts = facts

    async def versions(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to ApiVersions."""
        return [encode_versions(request.version)]

    async def metadata(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to Metadata. A topic that is named and does not exist may be made."""
        asked = decode_request(request.api, request.version, request.body)
        names = None if asked.topics is None else [one.name for one in asked.topics]
        if not names and (names is None or request.version == 0):
            topics = [_topic(topic) for topic in self._catalogue.all()]
        else:
            may_create = self._facts.creates_topics and field_of(asked, "allow_auto_topic_creation", True)
            topics = [await self._named(name, may_create=may_create) for name in names]
        answer: Answer = {
            "throttle_time": 0,
            "brokers": [{"node_id": NODE_ID, "host": self._facts.host, "port": self._facts.port, "rack": None}],
            "cluster_id": self._facts.cluster_id,
            "controller_id": NODE_ID,
            "topics": topics,
        }
        return [encode_answer(request.api, request.version, answer)]

    async def _named(self, name: str, *, may_create: bool) -> Answer:
        topic = self._catalogue.find(name)
        if topic is not None:
            return _topic(topic)
        code = Code.UNKNOWN_TOPIC_OR_PARTITION
        if may_create:
            try:
                return _topic(await self._catalogue.create(name))
            except RefusedError as error:
                topic = self._catalogue.find(name)  # another request has made it meanwhile
                if topic is not None:
                    return _topic(topic)
                code = error.code
            except OctavoError:
                code = Code.LEADER_NOT_AVAILABLE
        return {"error_code": code, "name": name, "is_internal": False, "partitions": []}


def _topic(topic: Topic) -> Answer:
    return {
        "error_code": Code.NONE,
        "name": topic.name,
        "is_internal": topic.is_internal,
        "partitions": [
            {
                "error_code": Code.NONE,
                "partition_index": partition,
                "leader_id": NODE_ID,
                "replica_nodes": [NODE_ID],
                "isr_nodes": [NODE_ID],
                "offline_replicas": [],
            }
            for partition in range(topic.partitions)
        ],
    }
