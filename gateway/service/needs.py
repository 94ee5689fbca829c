"""The right that each request needs to the topics and to the group that it names (rule K14): one table.

An answer that lists topics or groups lists those only to which the client has the right.
"""

from typing import Final, NamedTuple

from octavo.gateway.wire.apis import Api, Request
from octavo.security.topic_rights import TopicRight


class Need(NamedTuple):
    """The rights that a request needs; None: none of that kind."""

    topic: TopicRight | None = None
    """To each topic that it names. What lacks it is refused; other parts of the request are answered."""
    group: TopicRight | None = None
    """To the group."""
    any_topic: TopicRight | None = None
    """To one topic at least, whichever."""


NEEDS: Final[dict[Api, Need]] = {
    Api.PRODUCE: Need(topic=TopicRight.WRITE),
    Api.FETCH: Need(topic=TopicRight.READ),
    Api.LIST_OFFSETS: Need(topic=TopicRight.DESCRIBE),
    Api.METADATA: Need(topic=TopicRight.DESCRIBE),
    Api.OFFSET_COMMIT: Need(topic=TopicRight.READ, group=TopicRight.GROUP),
    Api.OFFSET_FETCH: Need(topic=TopicRight.DESCRIBE, group=TopicRight.GROUP),
    Api.OFFSET_DELETE: Need(topic=TopicRight.READ, group=TopicRight.GROUP),
    Api.FIND_COORDINATOR: Need(group=TopicRight.GROUP),
    Api.JOIN_GROUP: Need(group=TopicRight.GROUP),
    Api.SYNC_GROUP: Need(group=TopicRight.GROUP),
    Api.HEARTBEAT: Need(group=TopicRight.GROUP),
    Api.LEAVE_GROUP: Need(group=TopicRight.GROUP),
    Api.CONSUMER_GROUP_HEARTBEAT: Need(topic=TopicRight.READ, group=TopicRight.GROUP),
    Api.CONSUMER_GROUP_DESCRIBE: Need(group=TopicRight.GROUP),
    Api.DESCRIBE_GROUPS: Need(group=TopicRight.GROUP),
    Api.LIST_GROUPS: Need(group=TopicRight.GROUP),
    Api.DELETE_GROUPS: Need(group=TopicRight.GROUP),
    Api.CREATE_TOPICS: Need(topic=TopicRight.CREATE),
    Api.CREATE_PARTITIONS: Need(topic=TopicRight.CREATE),
    Api.DELETE_TOPICS: Need(topic=TopicRight.DELETE),
    Api.DELETE_RECORDS: Need(topic=TopicRight.DELETE),
    Api.ALTER_CONFIGS: Need(topic=TopicRight.DELETE),
    Api.INCREMENTAL_ALTER_CONFIGS: Need(topic=TopicRight.DELETE),
    Api.DESCRIBE_CONFIGS: Need(topic=TopicRight.DESCRIBE),
    Api.INIT_PRODUCER_ID: Need(any_topic=TopicRight.WRITE),
    Api.API_VERSIONS: Need(),
    Api.SASL_HANDSHAKE: Need(),
    Api.SASL_AUTHENTICATE: Need(),
}


def check_topic(request: Request, name: str) -> None:
    """Raise :class:`~octavo.gateway.codes.RefusedError` unless the client may ask this of a topic."""
    request.gate.check(_topic_right(request), name, request.api.name)


def may_see(request: Request, name: str) -> bool:
    """Whether a topic is listed in the answer."""
    return request.gate.may(_topic_right(request), name)


def _topic_right(request: Request) -> TopicRight:
    right = NEEDS[request.api].topic
    assert right is not None, f"{request.api.name} names no topic"
    return right


def check_group(request: Request, group_id: str) -> None:
    """Raise :class:`~octavo.gateway.codes.RefusedError` unless the client may ask this of a group."""
    request.gate.check(_group_right(request), group_id, request.api.name)


def may_see_group(request: Request, group_id: str) -> bool:
    """Whether a group is listed in the answer."""
    return request.gate.may(_group_right(request), group_id)


def _group_right(request: Request) -> TopicRight:
    right = NEEDS[request.api].group
    assert right is not None, f"{request.api.name} names no group"
    return right


def check_some(request: Request) -> None:
    """Raise :class:`~octavo.gateway.codes.RefusedError` unless the client may do something for which it asks this."""
    right = NEEDS[request.api].any_topic
    assert right is not None, f"{request.api.name} needs no right to any topic"
    request.gate.check_some(right, request.api.name)
