"""``octavo topic``: topics of Kafka clients from the command line.

The commands work on the metadata and the logs, as a gateway does, and need none that runs. Gateways that run learn of
each change at once.
"""

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from octavo.cli.asking import agreed
from octavo.cli.kafka.refusals import told
from octavo.cli.output import print_json, print_line, print_table
from octavo.cli.session import CommandError, Session, command, read_password
from octavo.protocol.errors import InvalidArgumentError, OctavoError, UnauthorizedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from octavo.client.client import Client
    from octavo.client.log.overview import LogOverview
    from octavo.gateway.leading.beginning import Extent
    from octavo.gateway.leading.gateways import GatewayAddress
    from octavo.gateway.topics.catalogue import Catalogue
    from octavo.gateway.topics.document import Topic
    from octavo.metadata import MetadataStore

# ruff: noqa: PLC0415 - `octavo --help` needs no gateway

app = typer.Typer(name="topic", help="Create, inspect, change and delete Kafka topics.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the topic.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SETTING=VALUE",
        help="A setting by its name in Kafka: retention.ms, retention.bytes, max.message.bytes, or "
        "min.insync.replicas of a new topic. Can be repeated.",
    ),
]


class PartitionView(NamedTuple):
    """A partition as people see it. None: it could not be found out."""

    partition: int
    gateway: int | None
    """The number of the gateway that leads it."""
    leader: str | None
    """Who holds the lock of its log."""
    begin: int | None
    end: int | None
    bytes: int | None
    """Of the closed segments of its log."""
    trouble: str = ""
    """Why the offsets are not known."""


@command(app, "list", logs=False, brief=True)
async def list_topics(session: Session) -> None:
    """List all topics with partitions, copies, size and retention.

    The command reads metadata and asks neither bookies nor gateways. The size is that of closed segments.
    """
    from octavo.gateway.topics.reading import read_topics

    async with await session.open_metadata() as store:
        rows = []
        for topic in await read_topics(store):
            size = sum(one.bytes for one in (await overviews_of(store, topic)).values())
            if session.as_json:
                print_json(topic_as_json(topic) | {"bytes": size})
            rows.append([topic.name, topic.partitions, topic.write_quorum, _size(size), kept(topic)])
    if rows and not session.as_json:
        print_table(["topic", "partitions", "copies", "size", "keeps"], rows)


@command(app, logs=False, brief=True)
async def show(session: Session, name: NameArgument) -> None:
    """Show a topic with its settings and partitions.

    The table of partitions has leader, beginning, end and size. The beginning and the end are offsets of records. The
    end is that which the bookies tell, and may be a moment behind what the leader has acknowledged.
    """
    from octavo.gateway.topics.reading import read_topic

    async with await session.connect() as client, await session.open_metadata() as store:
        with told():
            topic = await read_topic(store, name)
        partitions = await partitions_of(client, store, topic, read_password(None))
    if session.as_json:
        print_json(topic_as_json(topic) | {"partition_list": [one._asdict() for one in partitions]})
        return
    print_line(f"topic {topic.name}, {topic.state.value}, id {topic.topic_id}")
    print_line(f"{topic.write_quorum} copies of each batch, acknowledged by {topic.ack_quorum}; keeps {kept(topic)}")
    print_table(["partition", "gateway", "begin", "end", "size"], [_cells(one) for one in partitions])
    for one in partitions:
        if one.trouble:
            print_line(f"partition {one.partition}: {one.trouble}")


@command(app, logs=False, brief=True)
async def create(
    session: Session,
    name: NameArgument,
    partitions: Annotated[int, typer.Option("--partitions", metavar="N", help="Number of partitions.")] = 1,
    copies: Annotated[int, typer.Option("--copies", metavar="N", help="Copies of each batch.")] = 3,
    settings: SetOption = None,
) -> None:
    """Create a topic."""
    wanted = _pairs(settings)
    async with _catalogue(session, makes_logs=True) as catalogue:
        topic = await catalogue.create(name, partitions, copies, wanted)
    if session.as_json:
        print_json(topic_as_json(topic))
    else:
        print_line(f"topic {name} created")


@command(app, logs=False, brief=True)
async def alter(
    session: Session,
    name: NameArgument,
    settings: SetOption = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="SETTING", help="A setting that gets its default. Can be repeated."),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", metavar="N", help="Give the topic more partitions, up to N.")
    ] = None,
) -> None:
    """Change settings of a topic, or give it more partitions."""
    from octavo.gateway.topics.settings import Change

    changes: list[tuple[str, Change, str | None]] = [
        (one, Change.SET, value) for one, value in _pairs(settings).items()
    ]
    changes += [(one, Change.UNSET, None) for one in unset or []]
    if not changes and partitions is None:
        raise InvalidArgumentError("give --set, --unset or --partitions: there is nothing to change")
    async with _catalogue(session, makes_logs=partitions is not None) as catalogue:
        if changes:
            await catalogue.alter(name, changes, anew=False, validate_only=False)
        if partitions is not None:
            await catalogue.grow(name, partitions)
        topic = catalogue.find(name)
    if session.as_json:
        print_json(None if topic is None else topic_as_json(topic))
    else:
        print_line(f"topic {name} changed")


@command(app, logs=False, brief=True)
async def delete(
    session: Session,
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a topic with all of its records.

    The offsets that consumer groups have committed for it go, too.
    """
    from octavo.gateway.topics.reading import read_topic

    async with await session.open_metadata() as store:
        with told():
            topic = await read_topic(store, name)
        if not yes:
            size = _size(sum(one.bytes for one in (await overviews_of(store, topic)).values()))
            question = f"topic {name} has {topic.partitions} partitions with {size} or more. Delete it?"
            if not await agreed(question, without_terminal=f"deleting topic {name} loses its records"):
                raise CommandError("nothing has been deleted")
    async with _catalogue(session) as catalogue:
        await catalogue.delete(name)
    if session.as_json:
        print_json({"deleted": name})
    else:
        print_line(f"topic {name} deleted")


# --- what commands and the console share ------------------------------------------------------------------------------


async def partitions_of(
    client: "Client", store: "MetadataStore", topic: "Topic", password: bytes, numbers: "Iterable[int] | None" = None
) -> list[PartitionView]:
    """The partitions of a topic with these numbers, in order; None: all. ``password``: of the logs of private topics.

    Raises :class:`OctavoError` where the metadata store does not answer.
    """
    from octavo.gateway.leading.gateways import registered

    gateways = {one.name: one.address for one in await registered(store)}
    overviews = await overviews_of(store, topic)
    found = []
    for number in range(topic.partitions) if numbers is None else numbers:
        overview = overviews.get(topic.log_name(number))
        extent, trouble = await _extent(client, store, topic.log_name(number), topic.password_of_logs(password))
        found.append(_view(number, overview, gateways, extent, trouble))
    return found


def _view(
    number: int,
    overview: "LogOverview | None",
    gateways: "dict[str, GatewayAddress]",
    extent: "Extent | None",
    trouble: str,
) -> PartitionView:
    leader = None if overview is None else overview.leader
    address = None if leader is None else gateways.get(leader)
    return PartitionView(
        partition=number,
        gateway=None if address is None else address.node_id,
        leader=leader,
        begin=None if extent is None else extent.start_offset,
        end=None if extent is None else extent.next_offset,
        bytes=None if overview is None else overview.bytes,
        trouble=trouble,
    )


async def _extent(
    client: "Client", store: "MetadataStore", log_name: str, password: bytes
) -> "tuple[Extent | None, str]":
    from octavo.gateway.leading.anchors import Anchors
    from octavo.gateway.leading.beginning import extent_of

    try:
        async with client.open_log(log_name, password=password) as log:
            return await extent_of(log, Anchors(store, log.log_id), await log.refresh()), ""
    except OctavoError as error:
        return None, error.message


async def overviews_of(store: "MetadataStore", topic: "Topic") -> "dict[str, LogOverview]":
    """The logs of a topic by their names, as far as they can be understood."""
    from octavo.client.log.overview import LogOverview, log_overviews

    return {one.name: one async for one in log_overviews(store, topic.logs_prefix) if isinstance(one, LogOverview)}


@asynccontextmanager
async def _catalogue(session: Session, *, makes_logs: bool = False) -> "AsyncIterator[Catalogue]":
    """The topics of the cluster, to be changed within the block; refusals are told. ``makes_logs``: logs of topics are
    made, so the password must be that of the gateways."""
    from octavo.client.client_name import default_client_name
    from octavo.gateway.leading.leaders import delete_documents
    from octavo.gateway.topics.catalogue import Catalogue

    async with await session.connect() as client, await session.open_metadata() as store:
        password = read_password(None)
        if makes_logs:
            await _check_password(client, store, password)
        with told():
            yield Catalogue(
                client,
                store,
                random.Random(),
                name=default_client_name(),
                write_quorum=3,
                ack_quorum=2,
                partitions=1,
                before_deletion=lambda topic: delete_documents(store, topic),
                on_gone=lambda _topic: None,
                password=password,
            )


async def _check_password(client: "Client", store: "MetadataStore", password: bytes) -> None:
    """Raise :class:`CommandError` unless the password is that of the private topics: new ones get the same."""
    from octavo.gateway.topics.document import TopicState
    from octavo.gateway.topics.reading import read_topics

    for topic in await read_topics(store):
        if topic.is_private and topic.state is TopicState.ACTIVE:
            try:
                await (await client.open_log(topic.log_name(0), password=password)).close()
            except UnauthorizedError as error:
                raise CommandError(
                    f"topic {topic.name} is private: set OCTAVO_PASSWORD to the password that the gateways have"
                ) from error
            return


def _pairs(settings: list[str] | None) -> dict[str, str | None]:
    pairs: dict[str, str | None] = {}
    for one in settings or []:
        name, separator, value = one.partition("=")
        if not separator or not name:
            raise InvalidArgumentError(f"--set {one}: write SETTING=VALUE, for example retention.ms=604800000")
        if name in pairs:
            raise InvalidArgumentError(f"--set {one}: {name} is given twice")
        pairs[name] = value
    return pairs


def topic_as_json(topic: "Topic") -> dict[str, Any]:
    """Everything that is stored of a topic."""
    from octavo.gateway.topics.settings import shown

    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "state": topic.state.value,
        "partitions": topic.partitions,
        "write_quorum": topic.write_quorum,
        "ack_quorum": topic.ack_quorum,
        "settings": {one.name: one.value for one in shown(topic.settings, ack_quorum=topic.ack_quorum)},
    }


def kept(topic: "Topic") -> str:
    """The retention in words."""
    retention = topic.settings.retention
    parts = [] if retention.ms is None else [f"{retention.ms:,} ms"]
    parts += [] if retention.bytes is None else [f"{_size(retention.bytes)} a partition"]
    return " or ".join(parts) or "everything"


def _cells(one: PartitionView) -> list[object]:
    leader = one.gateway if one.gateway is not None else one.leader or "-"
    return [one.partition, leader, one.begin, one.end, None if one.bytes is None else _size(one.bytes)]


def _size(size: int) -> str:
    from octavo.cli.log.overview import size_in_words

    return size_in_words(size)
