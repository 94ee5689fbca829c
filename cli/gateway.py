"""``octavo gateway``: serves clients of Kafka's protocol, in the foreground."""

# ruff: noqa: PLR0917 - the parameters of a command are its options, given by name

import ipaddress
from typing import Annotated

import typer
from octavo.cli.session import Session, command
from octavo.protocol.errors import InvalidArgumentError


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    command(app)(gateway)


async def gateway(
    session: Session,
    listen: Annotated[
        str,
        typer.Option("--listen", metavar="HOST:PORT", help="Loopback address to listen on; port 0: any free one."),
    ] = "127.0.0.1:9092",
    write_quorum: Annotated[
        int, typer.Option("--write-quorum", metavar="N", min=1, max=64, help="Copies of each batch of a new topic.")
    ] = 3,
    ack_quorum: Annotated[
        int,
        typer.Option(
            "--ack-quorum",
            metavar="N",
            min=1,
            max=64,
            help="Copies on disk that acknowledge a batch of a new topic.",
        ),
    ] = 2,
    partitions: Annotated[
        int, typer.Option("--partitions", metavar="N", min=1, max=1000, help="Partitions of a new topic.")
    ] = 1,
    create_topics: Annotated[
        bool,
        typer.Option("--create-topics/--no-create-topics", help="Make a topic that a client names, if there is none."),
    ] = True,
    admin_listen: Annotated[
        str | None,
        typer.Option(
            "--admin-listen",
            metavar="HOST:PORT",
            help="Answer /metrics, /healthz and /readyz over HTTP on this loopback address.",
        ),
    ] = None,
) -> None:
    """Serve clients that speak Kafka's protocol.

    Any number of gateways serve a cluster; each leads its share of the partitions, and the others take them over when
    it ends. There is no access control yet, so a gateway listens on a loopback address only. Ctrl-C ends it.
    """
    from octavo.gateway.gateway import GatewaySettings  # noqa: PLC0415 - `octavo --help` needs no gateway

    if ack_quorum > write_quorum:
        raise InvalidArgumentError(f"--ack-quorum {ack_quorum} is above --write-quorum, {write_quorum}")
    host, port = loopback_address(listen)
    settings = GatewaySettings(
        host=host, port=port, write_quorum=write_quorum, ack_quorum=ack_quorum, partitions=partitions,
        creates_topics=create_topics,
    )  # fmt: skip
    from octavo.cli.kafka.observing import observing_address  # noqa: PLC0415
    from octavo.cli.kafka.serving import serve  # noqa: PLC0415

    await serve(session, settings, None if admin_listen is None else observing_address(admin_listen))


def loopback_address(text: str) -> tuple[str, int]:
    """Host and port of a loopback address.

    Raises:
        InvalidArgumentError: It is none.
    """
    host, _, port = text.rpartition(":")
    bare = host.strip("[]")
    try:
        is_loopback = bare == "localhost" or ipaddress.ip_address(bare).is_loopback
    except ValueError:
        is_loopback = False
    if not (port.isascii() and port.isdecimal() and int(port) < 65536 and bare):
        raise InvalidArgumentError(f"{text!r} is no address like 127.0.0.1:9092")
    if not is_loopback:
        raise InvalidArgumentError(f"{bare} is no loopback address, and a gateway has no access control yet")
    return bare, int(port)
