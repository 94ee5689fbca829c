"""The answers to requests of members of consumer groups, and of people who look after groups (rule K11)."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, Final

from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.coordinating.coordinator import Committing, Coordinator
from octavo.gateway.coordinating.coordinators import Coordinators
from octavo.gateway.groups.group import Group, GroupState, Joined, Synced
from octavo.gateway.groups.member import Joining, Protocol, Syncing
from octavo.gateway.service.epochs import EMPTY_STATE, GROUP_TYPE, PROTOCOL_TYPE, described_to_older_tools
from octavo.gateway.service.needs import check_group, may_see_group
from octavo.gateway.topics.catalogue import Catalogue
from octavo.gateway.wire.answers import answered
from octavo.gateway.wire.apis import Request
from octavo.gateway.wire.connection import Pieces
from octavo.gateway.wire.entities import Answer, decode_request, field_of

_GROUP: Final = 0
"""What FindCoordinator looks for; the other kind are transactions."""

_NEEDS_ID_FROM: Final = 4
"""The version of JoinGroup from which on a new member is given its id first (KIP-394)."""

_NO_GATEWAY: Final = (-1, "", -1)
"""The coordinator where there is an error."""

_GROUP_TYPE: Final = "classic"
"""The protocol of groups whose members share partitions themselves."""

_NO_SUCH_GROUP: Final = "Dead"
"""The state of a group that is not there."""


class GroupService:
    """See the module."""

    def __init__(self, coordinators: Coordinators, catalogue: Catalogue) -> None:
        self._coordinators = coordinators
        self._catalogue = catalogue

    async def find_coordinator(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to FindCoordinator."""
        asked = decode_request(request.api, request.version, request.body)
        keys = field_of(asked, "coordinator_keys", None)
        kind = field_of(asked, "key_type", _GROUP)
        found = [await self._found(request, key, kind) for key in ([asked.key] if keys is None else keys)]
        return _answer(request, found[0] if keys is None else {"coordinators": found})

    async def _found(self, request: Request, key: str, kind: int) -> Answer:
        code: Code = Code.NONE
        text: str | None = None
        node_id, host, port = _NO_GATEWAY
        if kind != _GROUP:
            code, text = Code.INVALID_REQUEST, "transactions are not supported"
        else:
            try:
                check_group(request, key)
                node_id, host, port = await self._coordinators.find(key)
            except RefusedError as error:
                code, text = error.code, error.text
        return {
            "key": key, "error_code": code, "error_message": text, "node_id": node_id, "host": host, "port": port,
        }  # fmt: skip

    # --- members ------------------------------------------------------------------------------------------------------

    async def join(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to JoinGroup."""
        asked = decode_request(request.api, request.version, request.body)
        session_ms = _milliseconds(asked.session_timeout)
        instance_id = field_of(asked, "group_instance_id", None)
        joining = Joining(
            member_id=asked.member_id,
            instance_id=instance_id,
            session_ms=session_ms,
            rebalance_ms=max(0, _milliseconds(field_of(asked, "rebalance_timeout", asked.session_timeout))),
            protocol_type=asked.protocol_type,
            protocols=tuple(Protocol(one.name, one.metadata) for one in asked.protocols),
            needs_id_first=request.version >= _NEEDS_ID_FROM,
            client=request.client,
            host=request.host,
        )
        try:
            check_group(request, asked.group_id)
            coordinator = await self._coordinators.get(asked.group_id)
            joined = await coordinator.join(asked.group_id, joining)
        except RefusedError as error:
            joined = Joined(error.code, asked.member_id)
        answer = {
            "error_code": joined.code,
            "generation_id": joined.generation,
            "protocol_type": asked.protocol_type if joined.code is Code.NONE else None,
            "protocol_name": joined.protocol,
            "leader": joined.leader_id,
            "skip_assignment": False,
            "member_id": joined.member_id,
            "members": [
                {"member_id": one.member_id, "group_instance_id": one.instance_id, "metadata": one.metadata}
                for one in joined.members
            ],
        }
        return _answer(request, answer)

    async def sync(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to SyncGroup."""
        asked = decode_request(request.api, request.version, request.body)
        syncing = Syncing(
            asked.member_id,
            field_of(asked, "group_instance_id", None),
            asked.generation_id,
            {one.member_id: one.assignment for one in asked.assignments},
        )
        try:
            check_group(request, asked.group_id)
            coordinator = await self._coordinators.get(asked.group_id)
            _check_protocol(coordinator.groups.get(asked.group_id), asked)
            synced = await coordinator.sync(asked.group_id, syncing)
        except RefusedError as error:
            # Of the rebalance nothing is left, and clients know no other code that tells them to join again.
            synced = Synced(
                Code.REBALANCE_IN_PROGRESS if error.code is Code.COORDINATOR_LOAD_IN_PROGRESS else error.code
            )
        answer = {
            "error_code": synced.code,
            "protocol_type": field_of(asked, "protocol_type", None) if synced.code is Code.NONE else None,
            "protocol_name": field_of(asked, "protocol_name", None) if synced.code is Code.NONE else None,
            "assignment": synced.assignment,
        }
        return _answer(request, answer)

    async def heartbeat(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to Heartbeat."""
        asked = decode_request(request.api, request.version, request.body)
        sender = Committing(asked.member_id, field_of(asked, "group_instance_id", None), asked.generation_id)
        code = await self._tried(request, asked.group_id, lambda one: one.heartbeat(asked.group_id, sender))
        if code is Code.COORDINATOR_LOAD_IN_PROGRESS:
            # As with Kafka. Some clients end at a code here that they do not expect; the member learns with the next
            # heartbeat whether it still is one, and commits nothing until then.
            code = Code.NONE
        return _answer(request, {"error_code": code})

    async def leave(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to LeaveGroup: of one member, or, in newer versions, of several."""
        asked = decode_request(request.api, request.version, request.body)
        several = field_of(asked, "members", None)
        code, members = Code.NONE, []
        try:
            check_group(request, asked.group_id)
            coordinator = await self._coordinators.get(asked.group_id)
            coordinator.log.check_leads()
            members = [_leave(coordinator, asked.group_id, one) for one in ([asked] if several is None else several)]
        except RefusedError as error:
            code = error.code
        if several is None and members:
            code = members[0]["error_code"]
        return _answer(request, {"error_code": code, "members": members})

    async def _tried(
        self, request: Request, group_id: str, act: Callable[[Coordinator], Awaitable[None] | None]
    ) -> Code:
        try:
            check_group(request, group_id)
            done = act(await self._coordinators.get(group_id))
            if done is not None:
                await done
        except RefusedError as error:
            return error.code
        return Code.NONE

    # --- looking after groups -----------------------------------------------------------------------------------------

    async def describe(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to DescribeGroups."""
        asked = decode_request(request.api, request.version, request.body)
        return _answer(request, {"groups": [await self._described(request, group_id) for group_id in asked.groups]})

    async def _described(self, request: Request, group_id: str) -> Answer:
        code, group = Code.NONE, None
        try:
            check_group(request, group_id)
            coordinator = await self._coordinators.get(group_id)
            coordinator.log.check_leads()
            if coordinator.is_of_epochs(group_id):
                facts = described_to_older_tools(coordinator, group_id, self._catalogue.names_by_id())
                return {"error_code": code, "group_id": group_id, **facts}
            group = coordinator.groups.get(group_id)
        except RefusedError as error:
            code = error.code
        members = [] if group is None else [_described_member(group, member_id) for member_id in group.members]
        return {
            "error_code": code,
            "group_id": group_id,
            "group_state": _NO_SUCH_GROUP if group is None else group.state.shown,
            "protocol_type": "" if group is None else group.protocol_type or "",
            "protocol_data": "" if group is None else group.protocol,
            "members": members,
        }

    async def list(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to ListGroups: those of this gateway; clients ask all."""
        asked = decode_request(request.api, request.version, request.body)
        states = {one.lower() for one in field_of(asked, "states_filter", ())}
        types = {one.lower() for one in field_of(asked, "types_filter", ())}
        code, groups = Code.NONE, []
        try:
            for coordinator in await self._coordinators.own():
                coordinator.log.check_leads()
                seen = [one for one in sorted(coordinator.groups) if may_see_group(request, one)]
                groups += [
                    one
                    for one in (_listed(coordinator, group_id) for group_id in seen)
                    if (not states or one["group_state"].lower() in states)
                    and (not types or one["group_type"] in types)
                ]
        except RefusedError as error:
            code, groups = error.code, []
        return _answer(request, {"error_code": code, "groups": groups})

    async def delete(self, request: Request, _held: AsyncExitStack) -> Pieces:
        """The answer to DeleteGroups."""
        asked = decode_request(request.api, request.version, request.body)
        results = [{"group_id": name, "error_code": await self._delete(request, name)} for name in asked.groups_names]
        return _answer(request, {"results": results})

    async def _delete(self, request: Request, group_id: str) -> Code:
        code = await self._tried(request, group_id, lambda one: one.delete(group_id))
        if code is Code.NONE:
            request.gate.done("delete_group", group=group_id)
        return code


def _listed(coordinator: Coordinator, group_id: str) -> Answer:
    group = coordinator.groups[group_id]
    if coordinator.is_of_epochs(group_id):
        epochs = coordinator.epoch_groups.get(group_id)
        state = EMPTY_STATE if epochs is None else epochs.state
        facts = {"protocol_type": PROTOCOL_TYPE, "group_state": state, "group_type": GROUP_TYPE}
    else:
        kind = group.protocol_type or ""
        facts = {"protocol_type": kind, "group_state": group.state.shown, "group_type": _GROUP_TYPE}
    return {"group_id": group_id, **facts}


def _check_protocol(group: Group | None, asked: Any) -> None:
    """A member that says what its generation has agreed on must be right."""
    if group is None or group.generation != asked.generation_id or not group.protocol:
        return
    for said, agreed in (("protocol_type", group.protocol_type), ("protocol_name", group.protocol)):
        if field_of(asked, said, agreed) != agreed:
            raise RefusedError(Code.INCONSISTENT_GROUP_PROTOCOL, f"the group has agreed on {agreed}")


def _leave(coordinator: Coordinator, group_id: str, asked: Any) -> Answer:
    code, instance_id = Code.NONE, field_of(asked, "group_instance_id", None)
    try:
        coordinator.leave(group_id, asked.member_id, instance_id)
    except RefusedError as error:
        code = error.code
    return {"member_id": asked.member_id, "group_instance_id": instance_id, "error_code": code}


def _answer(request: Request, answer: Answer) -> Pieces:
    return answered(request, {"throttle_time": 0, **answer})


def _milliseconds(time: timedelta) -> int:
    return time // timedelta(milliseconds=1)


def _described_member(group: Group, member_id: str) -> Answer:
    member = group.members[member_id]
    is_stable = group.state is GroupState.STABLE
    return {
        "member_id": member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client,
        "client_host": member.host,
        "member_metadata": member.metadata_for(group.protocol) if is_stable else b"",
        "member_assignment": member.assignment if is_stable else b"",
    }
