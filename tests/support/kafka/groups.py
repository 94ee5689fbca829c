"""Requests of consumer groups for tests: one connection, one member."""

from typing import Any, NamedTuple, Self

from octavo.gateway.codes import Code
from support.kafka.client import KafkaClient, milliseconds

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 8, 9, 10, 11, 12, 13, 14
DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS, OFFSET_DELETE = 15, 16, 42, 47
CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE = 68, 69

SESSION_MS, REBALANCE_MS = 10_000, 30_000

NEWEST = {
    OFFSET_COMMIT: 9, OFFSET_FETCH: 9, JOIN_GROUP: 9, HEARTBEAT: 4, LEAVE_GROUP: 5, SYNC_GROUP: 5, DESCRIBE_GROUPS: 5,
    LIST_GROUPS: 5, DELETE_GROUPS: 2,
}  # fmt: skip
OLDER = {
    OFFSET_COMMIT: 7, OFFSET_FETCH: 5, JOIN_GROUP: 5, HEARTBEAT: 3, LEAVE_GROUP: 3, SYNC_GROUP: 3, DESCRIBE_GROUPS: 4,
    LIST_GROUPS: 2, DELETE_GROUPS: 1,
}  # fmt: skip
"""The last versions without tagged fields."""


class JoinedGroup(NamedTuple):
    """The answer to JoinGroup, as far as tests look at it."""

    code: Code
    generation: int
    member_id: str
    leader_id: str
    members: tuple[str, ...]


class GroupClient(KafkaClient):
    """A consumer of the group :attr:`group`."""

    versions = NEWEST
    group = "billing"
    member_id = ""
    generation = -1
    instance_id: str | None = None

    @classmethod
    async def of(cls, port: int, group: str = "billing", instance_id: str | None = None) -> Self:
        client = await cls.connect(port)
        client.group, client.instance_id = group, instance_id
        return client

    @property
    def me(self) -> dict[str, Any]:
        """The fields by which a request says who sends it."""
        return {"group_id": self.group, "member_id": self.member_id, "group_instance_id": self.instance_id}

    async def join(self, *, version: int | None = None, metadata: bytes = b"m", **changes: Any) -> JoinedGroup:
        """Join with JoinGroup; a first answer that only gives an id is followed."""
        version = self.versions[JOIN_GROUP] if version is None else version
        asked = self.join_request(metadata)
        answer = await self.ask(JOIN_GROUP, version, _known(version, asked | changes))
        code = Code(answer.error_code.value)
        if code is Code.MEMBER_ID_REQUIRED:
            assert version >= 4, "older clients do not know this answer"
            self.member_id = answer.member_id
            return await self.join(version=version, metadata=metadata, **changes)
        if code is Code.NONE:
            self.member_id, self.generation = answer.member_id, answer.generation_id
        members = tuple(one.member_id for one in answer.members)
        return JoinedGroup(code, answer.generation_id, answer.member_id, answer.leader, members)

    def join_request(self, metadata: bytes = b"m") -> dict[str, Any]:
        """The fields of JoinGroup."""
        return self.me | {
            "session_timeout": milliseconds(SESSION_MS), "rebalance_timeout": milliseconds(REBALANCE_MS),
            "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": metadata}],
        }  # fmt: skip

    async def sync(self, assignments: dict[str, bytes] | None = None, **agreed: str) -> tuple[Code, bytes]:
        """Sync; ``agreed`` is what the member says that the group has agreed on."""
        rows = [{"member_id": name, "assignment": value} for name, value in (assignments or {}).items()]
        asked = self.me | {"generation_id": self.generation, "assignments": rows, **agreed}
        answer = await self.ask(SYNC_GROUP, self.versions[SYNC_GROUP], asked)
        return Code(answer.error_code.value), answer.assignment

    async def enter(self) -> None:
        """Become the only member."""
        assert (await self.join()).code is Code.NONE
        assert await self.sync({self.member_id: b"mine"}) == (Code.NONE, b"mine")

    async def heartbeat(self) -> Code:
        answer = await self.ask(HEARTBEAT, self.versions[HEARTBEAT], self.me | {"generation_id": self.generation})
        return Code(answer.error_code.value)

    async def leave(self) -> Code:
        member = {"member_id": self.member_id, "group_instance_id": self.instance_id}
        answer = await self.ask(LEAVE_GROUP, self.versions[LEAVE_GROUP], {"group_id": self.group, "members": [member]})
        assert answer.error_code.value == 0 or not answer.members
        return Code((answer.members[0] if answer.members else answer).error_code.value)

    async def commit(
        self, offset: int, *, topic: str = "orders", partition: int = 0, metadata: str | None = "", epoch: int = -1
    ) -> Code:
        codes = await self.commit_many({(topic, partition): offset}, metadata=metadata, epoch=epoch)
        return codes[topic, partition]

    async def commit_many(
        self, offsets: dict[tuple[str, int], int], *, metadata: str | None = "", epoch: int = -1
    ) -> dict[tuple[str, int], Code]:
        asked = self.commit_request(offsets, metadata=metadata, epoch=epoch)
        answer = await self.ask(OFFSET_COMMIT, self.versions[OFFSET_COMMIT], asked)
        return {
            (topic.name, one.partition_index): Code(one.error_code.value)
            for topic in answer.topics
            for one in topic.partitions
        }

    def commit_request(
        self, offsets: dict[tuple[str, int], int], *, metadata: str | None = "", epoch: int = -1
    ) -> dict[str, Any]:
        """The fields of OffsetCommit."""
        topics: dict[str, list[Any]] = {}
        for (topic, partition), offset in offsets.items():
            row = {
                "partition_index": partition, "committed_offset": offset, "committed_leader_epoch": epoch,
                "committed_metadata": metadata,
            }  # fmt: skip
            topics.setdefault(topic, []).append(row)
        rows = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
        return self.me | {"generation_id_or_member_epoch": self.generation, "topics": rows}

    async def committed(self, topic: str = "orders", partition: int = 0) -> int:
        """The committed offset; -1: there is none."""
        (row,) = await self.fetch_commits({topic: [partition]})
        return row[2]

    async def fetch_commits(self, topics: dict[str, list[int]] | None) -> list[tuple[str, int, int, int, str]]:
        """Topic, partition, offset, epoch and metadata of partitions; None: of all that have an offset."""
        named = None if topics is None else [
            {"name": name, "partition_indexes": tuple(numbers)} for name, numbers in topics.items()
        ]  # fmt: skip
        version = self.versions[OFFSET_FETCH]
        asked: dict[str, Any] = {"group_id": self.group, "topics": named}
        if version >= 8:
            (answer,) = (await self.ask(OFFSET_FETCH, version, {"groups": [asked]})).groups
            assert answer.group_id == self.group
        else:
            answer = await self.ask(OFFSET_FETCH, version, asked)
        code = Code(answer.error_code.value)
        if code is not Code.NONE:
            raise AnswerError(code)
        return [
            (topic.name, one.partition_index, one.committed_offset, one.committed_leader_epoch, one.metadata)
            for topic in answer.topics
            for one in topic.partitions
        ]

    async def describe(self) -> Any:
        asked = {"groups": (self.group,), "include_authorized_operations": False}
        return (await self.ask(DESCRIBE_GROUPS, self.versions[DESCRIBE_GROUPS], asked)).groups[0]

    async def listed(self) -> list[str]:
        answer = await self.ask(LIST_GROUPS, self.versions[LIST_GROUPS], {})
        assert answer.error_code.value == 0
        return sorted(one.group_id for one in answer.groups)

    async def delete_group(self) -> Code:
        answer = await self.ask(DELETE_GROUPS, self.versions[DELETE_GROUPS], {"groups_names": (self.group,)})
        return Code(answer.results[0].error_code.value)


class AnswerError(Exception):
    """The gateway has answered with an error."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code


def _known(version: int, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that a version of JoinGroup has."""
    missing = {"group_instance_id"} if version < 5 else set()
    missing |= {"rebalance_timeout"} if version < 1 else set()
    return {name: value for name, value in fields.items() if name not in missing}
