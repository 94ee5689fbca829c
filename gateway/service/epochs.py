"""The answers to requests of groups of the consumer protocol, KIP-848 (rule K16)."""

from contextlib import AsyncExitStack
from datetime import timedelta
from itertools import groupby
from struct import Struct
from typing import Any, Final

from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.coordinating.coordinator import Coordinator
from octavo.gateway.coordinating.coordinators import Coordinators
from octavo.gateway.groups.epoch_group import Heartbeat, Told
from octavo.gateway.groups.epoch_member import EpochMember, Places
from octavo.gateway.groups.patterns import Patterns
from octavo.gateway.groups.places import Place
from octavo.gateway.service.needs import check_group, check_topic, may_see
from octavo.gateway.topics.catalogue import Catalogue
from octavo.gateway.wire.answers import answered
from octavo.gateway.wire.apis import Request
from octavo.gateway.wire.connection import Pieces
from octavo.gateway.wire.entities import Answer, decode_request, field_of

GROUP_TYPE: Final = "consumer"
"""The protocol of these groups, as tools know it."""

PROTOCOL_TYPE: Final = "consumer"
"""The kind of members that they have: older tools know only this."""

EMPTY_STATE: Final = "Empty"

_OWN_ID_FROM: Final = 1
"""The version of ConsumerGroupHeartbeat from which on members make their ids (KIP-1082)."""

_MEMBER_OF_EPOCHS: Final = 1
"""The kind of member that ConsumerGroupDescribe names; 0 would be of the classic protocol."""

_SHORT, _INT = Struct(">h"), Struct(">i")


class EpochService:
    """See the module."""

    def __init__(self, coordinators: Coordinators, catalogue: Catalogue) -> None:
        self._coordinators = coordinators
        self._catalogue = catalogue
        self._patterns = Patterns()

    # --- members ------------------------------------------------------------------------------------------------------

    async def heartbeat(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to ConsumerGroupHeartbeat."""
        asked = decode_request(request.api, request.version, request.body)
        code: Code = Code.NONE
        text: str | None = None
        told = Told(asked.member_id, 0)
        try:
            check_group(request, asked.group_id)
            for name in asked.subscribed_topic_names or ():
                check_topic(request, name)
            coordinator = await self._coordinators.get(asked.group_id)
            told = await coordinator.epoch_heartbeat(asked.group_id, self._said(request, asked))
        except RefusedError as error:
            code, text = error.code, error.text
        answer = {
            "throttle_time": 0,
            "error_code": code,
            "error_message": text,
            "member_id": told.member_id,
            "member_epoch": told.epoch,
            "heartbeat_interval": told.interval_ms,
            "assignment": None if told.assigned is None else {"topic_partitions": _by_id(told.assigned)},
        }
        return answered(request, answer)

    def _said(self, request: Request, asked: Any) -> Heartbeat:
        """The heartbeat, as the machine takes it. Raises :class:`RefusedError` if the member's id lacks."""
        if request.version >= _OWN_ID_FROM and not asked.member_id:
            raise RefusedError(Code.INVALID_REQUEST, "a member says its id")
        rebalance_ms = asked.rebalance_timeout // timedelta(milliseconds=1)
        owned = asked.topic_partitions
        return Heartbeat(
            member_id=asked.member_id,
            epoch=asked.member_epoch,
            instance_id=asked.instance_id,
            rack=asked.rack_id,
            rebalance_ms=None if rebalance_ms < 0 else rebalance_ms,
            topics=asked.subscribed_topic_names,
            pattern=field_of(asked, "subscribed_topic_regex", None),
            assignor=asked.server_assignor,
            owned=None if owned is None else _places_in(owned),
            client=request.client,
            host=request.host,
            way=request.gate,
            matching=lambda pattern: self._matching(request, pattern),
        )

    def _matching(self, request: Request, pattern: str) -> tuple[str, ...]:
        names = tuple(topic.name for topic in self._catalogue.all() if not topic.is_internal)
        return tuple(name for name in self._patterns.matching(pattern, names) if may_see(request, name))

    # --- looking after groups -----------------------------------------------------------------------------------------

    async def describe(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to ConsumerGroupDescribe."""
        asked = decode_request(request.api, request.version, request.body)
        groups = [await self._described(request, group_id) for group_id in asked.group_ids]
        return answered(request, {"throttle_time": 0, "groups": groups})

    async def _described(self, request: Request, group_id: str) -> Answer:
        found: Answer = {
            "group_state": "", "group_epoch": 0, "assignment_epoch": 0, "assignor_name": "", "members": ()
        }  # fmt: skip
        code, text = Code.NONE, None
        try:
            check_group(request, group_id)
            found = self._facts(await self._coordinators.get(group_id), group_id)
        except RefusedError as error:
            code, text = error.code, error.text
        return {"error_code": code, "error_message": text, "group_id": group_id, **found}

    def _facts(self, coordinator: Coordinator, group_id: str) -> Answer:
        """The durable facts of a group. Raises :class:`RefusedError` if it is of the other protocol, or not there."""
        record = coordinator.record(group_id)
        if record is None or not coordinator.is_of_epochs(group_id):
            raise RefusedError(Code.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r} of the consumer protocol")
        group = coordinator.epoch_groups.get(group_id)
        names = self._catalogue.names_by_id()
        members = [
            {
                "member_id": one.member_id,
                "instance_id": one.instance_id,
                "rack_id": one.rack or None,
                "member_epoch": one.epoch,
                "client_id": one.client,
                "client_host": one.host,
                "subscribed_topic_names": one.topics,
                "subscribed_topic_regex": one.pattern or None,
                "assignment": {"topic_partitions": _with_names(one.assigned, names)},
                "target_assignment": {
                    "topic_partitions": _with_names(
                        one.assigned if group is None else group.target_of(one.member_id), names
                    )
                },
                "member_type": _MEMBER_OF_EPOCHS,
            }
            for one in record.members.values()
        ]
        return {
            "group_state": EMPTY_STATE if group is None else group.state,
            "group_epoch": record.generation,
            "assignment_epoch": record.generation,
            "assignor_name": "" if group is None else group.assignor,
            "members": members,
        }


def described_to_older_tools(coordinator: Coordinator, group_id: str, names: dict[str, str]) -> Answer:
    """The fields of DescribeGroups of a group of the consumer protocol. ``names``: of topics, by their ids."""
    group = coordinator.epoch_groups.get(group_id)
    return {
        "group_state": EMPTY_STATE if group is None else group.state,
        "protocol_type": PROTOCOL_TYPE,
        "protocol_data": "" if group is None else group.assignor,
        "members": [] if group is None else [_older_member(one, names) for one in group.members.values()],
    }


def _older_member(member: EpochMember, names: dict[str, str]) -> Answer:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client,
        "client_host": member.host,
        "member_metadata": b"",
        "member_assignment": _as_consumers_say(member.assigned, names),
    }


def _as_consumers_say(places: Places, names: dict[str, str]) -> bytes:
    """Partitions in the form in which members of classic groups exchange them."""
    rows = _with_names(places, names)
    pieces = [_SHORT.pack(0), _INT.pack(len(rows))]
    for row in rows:
        name = row["topic_name"].encode()
        pieces += [_SHORT.pack(len(name)), name, _INT.pack(len(row["partitions"]))]
        pieces += [_INT.pack(one) for one in row["partitions"]]
    return b"".join([*pieces, _INT.pack(-1)])


def _places_in(rows: Any) -> Places:
    """The partitions that a member says it has. An id of zeros is no topic's."""
    return frozenset(
        Place("" if row.topic_id is None else row.topic_id.hex, number) for row in rows for number in row.partitions
    )


def _by_id(places: Places) -> list[Answer]:
    return [
        {"topic_id": topic_id, "partitions": [one.partition for one in found]}
        for topic_id, found in groupby(sorted(places), key=lambda one: one.topic_id)
    ]


def _with_names(places: Places, names: dict[str, str]) -> list[Answer]:
    """Partitions of topics that are there."""
    return [{**row, "topic_name": names[row["topic_id"]]} for row in _by_id(places) if row["topic_id"] in names]
