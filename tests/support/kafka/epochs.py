"""Members of the consumer protocol for tests: one connection, one member, which says and has what it was told."""

from typing import Any
from uuid import UUID

from octavo.gateway.codes import Code
from support.kafka.client import METADATA, milliseconds
from support.kafka.groups import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    OFFSET_FETCH,
    AnswerError,
    GroupClient,
)

type Assigned = dict[str, list[int]]
"""Partitions by the names of topics."""


class EpochClient(GroupClient):
    """A consumer of the group :attr:`group`. Its :attr:`generation` is its epoch."""

    topics: tuple[str, ...] = ("orders",)
    has: dict[UUID, list[int]]
    interval_ms = 0

    async def join(self, **fields: Any) -> Code:  # type: ignore[override]
        """Join, with an id of its own unless it has one."""
        self.generation, self.has = 0, {}
        self.member_id = self.member_id or f"member of {id(self)}"
        full = {
            "subscribed_topic_names": self.topics, "rebalance_timeout": milliseconds(30_000),
            "instance_id": self.instance_id, "rack_id": "here",
        }  # fmt: skip
        return await self.hear(**full | fields)

    async def hear(self, version: int = 1, **fields: Any) -> Code:
        """Send a heartbeat, and do what the answer says: give partitions back, and take others."""
        asked: dict[str, Any] = {
            "group_id": self.group, "member_id": self.member_id, "member_epoch": self.generation,
            "topic_partitions": [{"topic_id": one, "partitions": tuple(two)} for one, two in self.has.items()],
        }  # fmt: skip
        answer = await self.ask(CONSUMER_GROUP_HEARTBEAT, version, asked | fields)
        code = Code(answer.error_code.value)
        self.text = answer.error_message
        if code is Code.NONE:
            self.member_id, self.generation = answer.member_id, answer.member_epoch
            self.interval_ms = answer.heartbeat_interval // milliseconds(1)
            if answer.assignment is not None:
                self.has = {one.topic_id: list(one.partitions) for one in answer.assignment.topic_partitions}
        return code

    async def go(self, epoch: int = -1) -> Code:
        """Leave, or go away."""
        self.generation = epoch
        return await self.hear(topic_partitions=None, instance_id=self.instance_id)

    async def assigned(self) -> Assigned:
        """The partitions that it has, by the names that Metadata gives to the ids."""
        wanted = [{"topic_id": one, "name": None} for one in self.has]
        answer = await self.ask(METADATA, 12, {"topics": wanted, "include_topic_authorized_operations": False})
        names = {one.topic_id: one.name for one in answer.topics}
        return {names[one]: numbers for one, numbers in self.has.items()}

    async def offset_as_member(self, epoch: int | None = None) -> int:
        """The committed offset of the first partition, as a member asks for it."""
        wanted = [{"name": "orders", "partition_indexes": (0,)}]
        epoch = self.generation if epoch is None else epoch
        group = {"group_id": self.group, "member_id": self.member_id, "member_epoch": epoch, "topics": wanted}
        (answer,) = (await self.ask(OFFSET_FETCH, 9, {"groups": [group], "require_stable": True})).groups
        if answer.error_code.value:
            raise AnswerError(Code(answer.error_code.value))
        return int(answer.topics[0].partitions[0].committed_offset)

    async def details(self, version: int = 1) -> Any:
        """The answer of ConsumerGroupDescribe."""
        asked = {"group_ids": (self.group,), "include_authorized_operations": False}
        return (await self.ask(CONSUMER_GROUP_DESCRIBE, version, asked)).groups[0]
