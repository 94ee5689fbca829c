"""The answers to ApiVersions and Metadata: which gateways there are, and which of them leads a partition (rule K9)."""

from contextlib import AsyncExitStack
from typing import Final

from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.leading.gateways import Gateways
from octavo.gateway.leading.leaders import Leaders
from octavo.gateway.service.facts import Facts
from octavo.gateway.service.needs import check_topic, may_see
from octavo.gateway.topics.catalogue import Catalogue
from octavo.gateway.topics.document import Topic
from octavo.gateway.wire.answers import answered
from octavo.gateway.wire.apis import Request, encode_versions
from octavo.gateway.wire.connection import Pieces
from octavo.gateway.wire.entities import Answer, decode_request, field_of
from octavo.protocol.errors import OctavoError
from octavo.security.topic_rights import TopicRight

_NO_GATEWAY: Final = -1


class ClusterService:
    """See the module."""

    def __init__(self, catalogue: Catalogue, leaders: Leaders, gateways: Gateways, facts: Facts) -> None:
        self._catalogue = catalogue
        self._leaders = leaders
        self._gateways = gateways
        self._facts = facts

    async def versions(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to ApiVersions."""
        return [encode_versions(request.version)]

    async def metadata(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to Metadata. A topic that is named and does not exist may be made."""
        asked = decode_request(request.api, request.version, request.body)
        named = asked.topics
        if not named and (named is None or request.version == 0):
            topics = [self._topic(topic) for topic in self._catalogue.all() if may_see(request, topic.name)]
        else:
            may_create = self._facts.creates_topics and field_of(asked, "allow_auto_topic_creation", True)
            topics = [
                await self._named(request, one.name, may_create=may_create)
                if one.name is not None
                else self._with_id(request, None if one.topic_id is None else one.topic_id.hex)
                for one in named
            ]
        answer: Answer = {
            "throttle_time": 0,
            "brokers": [
                {"node_id": node_id, "host": host, "port": port, "rack": None}
                for node_id, host, port in self._gateways.present.values()
            ],
            "cluster_id": self._facts.cluster_id,
            # Each gateway changes topics; clients ask one of them.
            "controller_id": min(self._gateways.present, default=_NO_GATEWAY),
            "topics": topics,
        }
        return answered(request, answer)

    async def _named(self, request: Request, name: str, *, may_create: bool) -> Answer:
        code = Code.UNKNOWN_TOPIC_OR_PARTITION
        try:
            check_topic(request, name)
            topic = await self._catalogue.look(name)
            if topic is None and may_create:
                request.gate.check(TopicRight.CREATE, name, request.api.name)
                topic = await self._create(name)
                request.gate.done("create_topic", topic=name)
            if topic is not None:
                return self._topic(topic)
        except RefusedError as error:
            code = error.code
        except OctavoError:
            code = Code.LEADER_NOT_AVAILABLE
        return {"error_code": code, "name": name, "topic_id": None, "is_internal": False, "partitions": []}

    def _with_id(self, request: Request, topic_id: str | None) -> Answer:
        """The topic with this id. One that the client may not see is not there for it."""
        found = next((one for one in self._catalogue.all() if one.topic_id == topic_id), None)
        if found is not None and may_see(request, found.name):
            return self._topic(found)
        return {
            "error_code": Code.UNKNOWN_TOPIC_ID,
            "name": None,
            "topic_id": topic_id,
            "is_internal": False,
            "partitions": [],
        }

    async def _create(self, name: str) -> Topic:
        try:
            return await self._catalogue.create(name)
        except RefusedError:
            made = self._catalogue.find(name)  # by another request, meanwhile
            if made is None:
                raise
            return made

    def _topic(self, topic: Topic) -> Answer:
        return {
            "error_code": Code.NONE,
            "name": topic.name,
            "topic_id": topic.topic_id,
            "is_internal": topic.is_internal,
            "partitions": [self._partition(topic, number) for number in range(topic.partitions)],
        }

    def _partition(self, topic: Topic, number: int) -> Answer:
        leader = self._leaders.leader_of(topic, number)
        nodes = [] if leader is None else [leader.node_id]
        return {
            "error_code": Code.LEADER_NOT_AVAILABLE if leader is None else Code.NONE,
            "partition_index": number,
            "leader_id": _NO_GATEWAY if leader is None else leader.node_id,
            "replica_nodes": nodes,
            "isr_nodes": nodes,
            "offline_replicas": [],
        }
