"""The answers to OffsetCommit, OffsetFetch and OffsetDelete (rule K10)."""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.coordinating.coordinator import Committing
from octavo.gateway.coordinating.coordinators import Coordinators
from octavo.gateway.groups.commits import GroupRecord
from octavo.gateway.groups.entries import METADATA_BYTES_MAX, OFFSET_MIN, Committed
from octavo.gateway.groups.places import Place
from octavo.gateway.service.needs import check_group, check_topic, may_see
from octavo.gateway.topics.catalogue import Catalogue
from octavo.gateway.wire.answers import answered
from octavo.gateway.wire.apis import Request
from octavo.gateway.wire.connection import Pieces
from octavo.gateway.wire.entities import Answer, decode_request, field_of

_NO_OFFSET: Final = -1
_NO_EPOCH: Final = -1
_NO_GENERATION: Final = -1


class CommitService:
    """See the module."""

    def __init__(self, coordinators: Coordinators, catalogue: Catalogue, clock_ms: Callable[[], int]) -> None:
        self._coordinators = coordinators
        self._catalogue = catalogue
        self._clock_ms = clock_ms

    # --- OffsetCommit -------------------------------------------------------------------------------------------------

    async def commit(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to OffsetCommit: all partitions that can have an offset are committed, or none of them."""
        asked = decode_request(request.api, request.version, request.body)
        sender = Committing(
            asked.member_id,
            field_of(asked, "group_instance_id", None),
            field_of(asked, "generation_id_or_member_epoch", _NO_GENERATION),
        )
        offsets: dict[Place, Committed] = {}
        codes = [
            [self._checked(request, topic.name, one, offsets) for one in topic.partitions] for topic in asked.topics
        ]
        try:
            check_group(request, asked.group_id)
            coordinator = await self._coordinators.get(asked.group_id)
            await coordinator.commit(asked.group_id, sender, offsets)
        except RefusedError as error:
            codes = [[error.code if code is Code.NONE else code for code in row] for row in codes]
        topics = [
            {"name": topic.name, "partitions": _with_codes(topic.partitions, row)}
            for topic, row in zip(asked.topics, codes, strict=True)
        ]
        return answered(request, {"throttle_time": 0, "topics": topics})

    def _checked(self, request: Request, name: str, asked: Any, offsets: dict[Place, Committed]) -> Code:
        """Put the offset to the others, if it can be committed."""
        metadata = asked.committed_metadata or ""
        try:
            check_topic(request, name)
            topic = self._catalogue.partition(name, asked.partition_index)
        except RefusedError as error:
            return error.code
        if len(metadata.encode()) > METADATA_BYTES_MAX:
            return Code.OFFSET_METADATA_TOO_LARGE
        if asked.committed_offset < OFFSET_MIN:
            return Code.INVALID_COMMIT_OFFSET_SIZE
        leader_epoch = max(_NO_EPOCH, field_of(asked, "committed_leader_epoch", _NO_EPOCH))
        place = Place(topic.topic_id, asked.partition_index)
        offsets[place] = Committed(asked.committed_offset, leader_epoch, metadata, self._clock_ms())
        return Code.NONE

    # --- OffsetFetch --------------------------------------------------------------------------------------------------

    async def fetch(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to OffsetFetch: of the partitions that are named, or of all."""
        asked = decode_request(request.api, request.version, request.body)
        groups = field_of(asked, "groups", None)
        fetched = [await self._of_group(request, one) for one in ([asked] if groups is None else groups)]
        return answered(request, {"throttle_time": 0, **(fetched[0] if groups is None else {"groups": fetched})})

    async def _of_group(self, request: Request, asked: Any) -> Answer:
        code, record = Code.NONE, None
        try:
            check_group(request, asked.group_id)
            coordinator = await self._coordinators.get(asked.group_id)
            record = coordinator.record(asked.group_id)
            member_id, epoch = field_of(asked, "member_id", ""), field_of(asked, "member_epoch", _NO_GENERATION)
            coordinator.check_reader(asked.group_id, member_id, epoch)
        except RefusedError as error:
            # Clients end at this code here, and ask again where the coordinator reads its log.
            is_absent = error.code is Code.COORDINATOR_NOT_AVAILABLE
            code = Code.COORDINATOR_LOAD_IN_PROGRESS if is_absent else error.code
        offsets: Mapping[Place, Committed] = {} if record is None else record.offsets
        if asked.topics is None:
            wanted = self._all_places(request, record)
        else:
            wanted = {one.name: list(one.partition_indexes) for one in asked.topics}
        topics = [
            {"name": name, "partitions": [self._fetched(request, name, number, offsets, code) for number in numbers]}
            for name, numbers in wanted.items()
        ]
        return {"group_id": asked.group_id, "topics": topics, "error_code": code}

    def _all_places(self, request: Request, record: GroupRecord | None) -> dict[str, list[int]]:
        names = self._catalogue.names_by_id()
        found: dict[str, list[int]] = {}
        for topic_id, partition in sorted(record.offsets if record is not None else ()):
            if topic_id in names and may_see(request, names[topic_id]):
                found.setdefault(names[topic_id], []).append(partition)
        return found

    def _fetched(
        self, request: Request, name: str, number: int, offsets: Mapping[Place, Committed], code: Code
    ) -> Answer:
        if code is Code.NONE:
            try:
                check_topic(request, name)
            except RefusedError as error:
                code, offsets = error.code, {}
        topic = self._catalogue.find(name)
        found = None if topic is None else offsets.get(Place(topic.topic_id, number))
        return {
            "partition_index": number,
            "committed_offset": _NO_OFFSET if found is None else found.offset,
            "committed_leader_epoch": _NO_EPOCH if found is None else found.leader_epoch,
            "metadata": "" if found is None else found.metadata,
            "error_code": code,
        }

    # --- OffsetDelete -------------------------------------------------------------------------------------------------

    async def delete(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to OffsetDelete."""
        asked = decode_request(request.api, request.version, request.body)
        places: list[Place] = []
        codes = [
            [self._deletable(request, topic.name, one, places) for one in topic.partitions] for topic in asked.topics
        ]
        code = Code.NONE
        try:
            check_group(request, asked.group_id)
            await (await self._coordinators.get(asked.group_id)).delete_offsets(asked.group_id, places)
        except RefusedError as error:
            code = error.code
        topics = [
            {"name": topic.name, "partitions": _with_codes(topic.partitions, row)}
            for topic, row in zip(asked.topics, codes, strict=True)
        ]
        answer = {"throttle_time": 0, "error_code": code, "topics": [] if code is not Code.NONE else topics}
        return answered(request, answer)

    def _deletable(self, request: Request, name: str, asked: Any, places: list[Place]) -> Code:
        try:
            check_topic(request, name)
            topic = self._catalogue.partition(name, asked.partition_index)
        except RefusedError as error:
            return error.code
        places.append(Place(topic.topic_id, asked.partition_index))
        return Code.NONE


def _with_codes(partitions: tuple[Any, ...], codes: list[Code]) -> list[Answer]:
    return [
        {"partition_index": one.partition_index, "error_code": code}
        for one, code in zip(partitions, codes, strict=True)
    ]
