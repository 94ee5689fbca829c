"""``octavo group``: consumer groups of Kafka clients from the command line.

Members and offsets are the coordinators' to tell, so the commands ask the gateways.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from octavo.cli.asking import agreed
from octavo.cli.kafka.refusals import told
from octavo.cli.output import print_json, print_line, print_table
from octavo.cli.session import CommandError, Session, command
from octavo.protocol.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from octavo.cli.kafka.asking import Gateways

# ruff: noqa: PLC0415 - `octavo --help` needs no gateway

app = typer.Typer(name="group", help="Inspect, reset and delete consumer groups.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Id of the group.")]

BEGINNING, END = -2, -1
"""Times that stand for the two ends of a partition."""

_NO_GROUP = "Dead"
"""The state of a group that is not there."""


class GroupOffset(NamedTuple):
    """An offset that a group has committed."""

    topic: str
    partition: int
    offset: int
    end: int
    lag: int
    """Records that the group has not handled."""
    metadata: str


@command(app, "list", logs=False, brief=True)
async def list_groups(session: Session) -> None:
    """List all groups with protocol, state, members and lag."""
    from octavo.cli.kafka.asking import asking

    async with asking(session) as gateways:
        rows = []
        with told():
            for group in await described_groups(gateways, await group_ids(gateways)):
                lag = sum(one.lag for one in await offsets_of(gateways, group.group_id))
                row = {
                    "group": group.group_id,
                    "protocol": await protocol_of(gateways, group.group_id),
                    "state": group.group_state,
                    "members": len(group.members),
                    "lag": lag,
                }
                if session.as_json:
                    print_json(row)
                rows.append(list(row.values()))
    if rows and not session.as_json:
        print_table(["group", "protocol", "state", "members", "lag"], rows)


@command(app, logs=False, brief=True)
async def show(session: Session, name: NameArgument) -> None:
    """Show a group: protocol, members, and offsets with their lag.

    The lag of a partition is the number of records that the group has not handled.
    """
    from octavo.cli.kafka.asking import asking

    async with asking(session) as gateways:
        with told():
            group = await described(gateways, name)
            offsets = await offsets_of(gateways, name)
            protocol = await protocol_of(gateways, name)
    members = [member_as_json(one) for one in group.members]
    if session.as_json:
        facts = {"group": name, "protocol": protocol, "state": group.group_state}
        facts |= {"assignor": group.protocol_data or None}
        print_json(facts | {"members": members, "offsets": [one._asdict() for one in offsets]})
        return
    print_line(f"group {name}, {group.group_state}, {len(members)} members, protocol {protocol}")
    if members:
        print_table(
            ["member", "client", "host", "partitions"],
            [[one["member"], one["client"], one["host"], _in_words(one["partitions"])] for one in members],
        )
    if offsets:
        print_table(
            ["topic", "partition", "offset", "end", "lag"],
            [[one.topic, one.partition, one.offset, one.end, one.lag] for one in offsets],
        )


@command(app, logs=False, brief=True)
async def reset(
    session: Session,
    name: NameArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="Where: beginning, end, a time such as 2026-03-01T12:00:00+00:00, or an offset.",
        ),
    ],
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="NAME", help="The default is every partition with a committed offset."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition of the topic.")
    ] = None,
) -> None:
    """Let a group that has no members go on at another place.

    An offset beyond an end of a partition becomes that end. A time stands for the first record with it, or a later one.
    """
    from octavo.cli.kafka.asking import asking
    from octavo.gateway.wire.apis import Api

    time_ms, offset = place(to)
    if partition is not None and topic is None:
        raise InvalidArgumentError("--partition needs --topic")
    async with asking(session) as gateways:
        with told():
            if topic is None:
                group = await described(gateways, name)
                _check_no_members(group)
                wanted = [(one.topic, one.partition) for one in await offsets_of(gateways, name)]
            else:
                _check_no_members(await _group(gateways, name))
                wanted = [(topic, one) for one in await _partitions(gateways, topic, partition)]
            found = [(*one, await _offset(gateways, *one, time_ms, offset)) for one in wanted]
            topics = [
                {"name": one, "partitions": [_committed(row) for row in found if row[0] == one]}
                for one in _names(found)
            ]
            fields = {
                "group_id": name,
                "generation_id_or_member_epoch": -1,
                "member_id": "",
                "group_instance_id": None,
                "topics": topics,
            }
            if topics:
                await gateways.ask_coordinator(name, Api.OFFSET_COMMIT, fields)
    if session.as_json:
        print_json([{"topic": one, "partition": number, "offset": at} for one, number, at in found])
    elif found:
        print_table(["topic", "partition", "offset"], found)
    else:
        print_line(f"group {name} has no offsets")


@command(app, logs=False, brief=True)
async def delete(
    session: Session,
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a group that has no members, with its offsets."""
    from octavo.cli.kafka.asking import asking
    from octavo.gateway.wire.apis import Api

    async with asking(session) as gateways:
        with told():
            group = await described(gateways, name)
            _check_no_members(group)
            offsets = len(await offsets_of(gateways, name))
            question = f"group {name} has {offsets} offsets. Delete it?"
            if not yes and not await agreed(question, without_terminal=f"deleting group {name} loses its offsets"):
                raise CommandError("nothing has been deleted")
            await gateways.ask_coordinator(name, Api.DELETE_GROUPS, {"groups_names": [name]})
    if session.as_json:
        print_json({"deleted": name})
    else:
        print_line(f"group {name} deleted")


# --- what commands and the console share ------------------------------------------------------------------------------


async def group_ids(gateways: "Gateways") -> list[str]:
    """The ids of all groups, in order. Raises :class:`RefusedError`."""
    from octavo.gateway.wire.apis import Api

    names: set[str] = set()
    for node_id in sorted(gateways.addresses):
        names |= {one.group_id for one in (await gateways.ask(node_id, Api.LIST_GROUPS, {})).groups}
    return sorted(names)


async def described_groups(gateways: "Gateways", names: "Iterable[str]") -> list[Any]:
    """The groups with these ids that are there. Raises :class:`RefusedError`."""
    found = [await _group(gateways, name) for name in names]
    return [group for group in found if group.group_state != _NO_GROUP]


async def protocol_of(gateways: "Gateways", name: str) -> str:
    """By which protocol the members of a group share partitions: `classic` or `consumer`. Raises
    :class:`RefusedError`."""
    from octavo.gateway.codes import Code, RefusedError
    from octavo.gateway.wire.apis import Api

    fields = {"group_ids": [name], "include_authorized_operations": False}
    try:
        await gateways.ask_coordinator(name, Api.CONSUMER_GROUP_DESCRIBE, fields)
    except RefusedError as error:
        if error.code is not Code.GROUP_ID_NOT_FOUND:
            raise
        return "classic"
    return "consumer"


async def offsets_of(gateways: "Gateways", name: str) -> list[GroupOffset]:
    """The committed offsets of a group, with their lag. Raises :class:`RefusedError`."""
    from octavo.gateway.wire.apis import Api

    answer = await gateways.ask_coordinator(name, Api.OFFSET_FETCH, {"group_id": name, "topics": None})
    committed = {(topic.name, one.partition_index): one for topic in answer.topics for one in topic.partitions}
    ends = await gateways.ends(committed)
    return [
        GroupOffset(
            *place, one.committed_offset, ends[place], max(0, ends[place] - one.committed_offset), one.metadata or ""
        )
        for place, one in sorted(committed.items())
    ]


async def _group(gateways: "Gateways", name: str) -> Any:
    from octavo.gateway.wire.apis import Api

    fields = {"groups": [name], "include_authorized_operations": False}
    return (await gateways.ask_coordinator(name, Api.DESCRIBE_GROUPS, fields)).groups[0]


async def described(gateways: "Gateways", name: str) -> Any:
    """The group with this id. Raises :class:`RefusedError`, and :class:`CommandError` if there is none."""
    group = await _group(gateways, name)
    if group.group_state == _NO_GROUP:
        raise CommandError(f"there is no group {name!r}")
    return group


def _check_no_members(group: Any) -> None:
    if group.members:
        raise CommandError(f"group {group.group_id} has {len(group.members)} members; end them first")


async def _partitions(gateways: "Gateways", topic: str, partition: int | None) -> list[int]:
    from octavo.gateway.wire.apis import Api

    if partition is not None:
        return [partition]
    described = (
        await gateways.ask_any(
            Api.METADATA,
            {
                "topics": [{"name": topic}],
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            },
        )
    ).topics[0]
    if described.error_code.value:
        raise CommandError(f"there is no topic {topic!r}")
    return sorted(one.partition_index for one in described.partitions)


async def _offset(gateways: "Gateways", topic: str, partition: int, time_ms: int | None, offset: int) -> int:
    if time_ms is not None:
        return await gateways.offset_at(topic, partition, time_ms)
    begin = await gateways.offset_at(topic, partition, BEGINNING)
    end = await gateways.offset_at(topic, partition, END)
    return min(max(offset, begin), end)


def place(text: str) -> tuple[int | None, int]:
    """The time in milliseconds, or one of the two ends, and an offset, which counts where the time is None. Raises
    :class:`InvalidArgumentError`."""
    if text in {"beginning", "end"}:
        return (BEGINNING if text == "beginning" else END), 0
    if text.isascii() and text.isdecimal():
        if int(text) >= 2**63:
            raise InvalidArgumentError(f"--to {text[:30]}: an offset is below 2**63")
        return None, int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or moment.timestamp() < 0:
        raise InvalidArgumentError(
            f"--to {text[:50]}: write beginning, end, an offset, or a time with its zone, for example "
            "2026-03-01T12:00:00+00:00"
        )
    return int(moment.timestamp() * 1000), 0


def _names(rows: list[tuple[str, int, int]]) -> list[str]:
    return list(dict.fromkeys(topic for topic, _, _ in rows))


def _committed(row: tuple[str, int, int]) -> dict[str, Any]:
    return {
        "partition_index": row[1],
        "committed_offset": row[2],
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }


def member_as_json(member: Any) -> dict[str, Any]:
    """A member with its partitions; None: they are not in the form of consumers."""
    from octavo.cli.kafka.assignment import assigned_partitions

    partitions = assigned_partitions(member.member_assignment)
    return {
        "member": member.member_id,
        "instance": member.group_instance_id,
        "client": member.client_id,
        "host": member.client_host,
        "partitions": None if partitions is None else [list(one) for one in partitions],
    }


def _in_words(partitions: list[Any] | None) -> str:
    return "-" if partitions is None else ", ".join(f"{topic}/{number}" for topic, number in partitions)
