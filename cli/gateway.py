"""``octavo gateway``: serves clients of Kafka's protocol, in the foreground."""

# ruff: noqa: PLR0917 - the parameters of a command are its options, given by name

import os
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from octavo.cli.session import Session, command, number, read_password
from octavo.protocol.errors import InvalidArgumentError

_UNSPECIFIED_HOSTS: Final = frozenset({"0.0.0.0", "::", "0:0:0:0:0:0:0:0"})


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    command(app)(gateway)


def _option(name: str, metavar: str, text: str) -> Any:
    """An option of the port for clients; ``--tls-ca`` and the others without ``listen`` are those of the way to
    bookies."""
    variable = f"OCTAVO_GATEWAY_{name.upper().replace('-', '_')}"
    return typer.Option(f"--listen-{name}", envvar=variable, metavar=metavar, help=text)


async def gateway(
    session: Session,
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Address to listen on; port 0: any free one. Beyond loopback, clients must be principals, over TLS.",
        ),
    ] = "127.0.0.1:9092",
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise", metavar="HOST:PORT", help="Where clients reach the gateway. The default is --listen."
        ),
    ] = None,
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
    listen_tls: Annotated[
        str,
        _option("tls", "off|optional|required", "Whether clients speak TLS: off, optional (they choose), or required."),
    ] = "off",
    listen_tls_certificate: Annotated[
        Path | None, _option("tls-certificate", "FILE", "Certificate for clients. The default is --tls-certificate.")
    ] = None,
    listen_tls_key: Annotated[
        Path | None, _option("tls-key", "FILE", "Key of that certificate. The default is --tls-key.")
    ] = None,
    listen_tls_ca: Annotated[
        Path | None,
        _option("tls-ca", "FILE", "Authorities that sign the certificates of clients. Without it they need none."),
    ] = None,
    listen_tls_minimum: Annotated[str, _option("tls-minimum", "1.2|1.3", "Lowest version of TLS.")] = "1.3",
    listen_tls_reload_seconds: Annotated[
        float,
        typer.Option(
            "--listen-tls-reload-seconds",
            envvar="OCTAVO_GATEWAY_TLS_RELOAD_SECONDS",
            metavar="SECONDS",
            min=0.01,
            callback=number,
            help="Time between two looks at the files of TLS.",
        ),
    ] = 60.0,
    auth: Annotated[
        str,
        typer.Option(
            "--auth",
            envvar="OCTAVO_GATEWAY_AUTH",
            metavar="auto|required|none",
            help="Whether clients must be principals. auto: if the gateway listens beyond loopback.",
        ),
    ] = "auto",
    audit_file: Annotated[
        Path | None,
        typer.Option(
            "--audit-file",
            envvar="OCTAVO_GATEWAY_AUDIT_FILE",
            metavar="FILE",
            help="Audit log: who was authenticated and refused, and changed what.",
        ),
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            "--password-file",
            metavar="FILE",
            help="File with the password of the logs of topics, which are private then. All gateways have the same one."
            " The default is the value of the environment variable OCTAVO_PASSWORD.",
        ),
    ] = None,
) -> None:
    """Serve clients that speak Kafka's protocol.

    Any number of gateways serve a cluster; each leads its share of the partitions, and the others take them over when
    it ends. A gateway that other hosts can reach serves principals only, over TLS, unless --auth is none. SIGHUP reads
    the files of TLS and opens the audit log again. Ctrl-C ends it.
    """
    from octavo.gateway.gateway import GatewaySettings  # noqa: PLC0415 - `octavo --help` needs no gateway
    from octavo.gateway.security_settings import SecuritySettings  # noqa: PLC0415
    from octavo.security.tls_options import Tls  # noqa: PLC0415

    if ack_quorum > write_quorum:
        raise InvalidArgumentError(f"--ack-quorum {ack_quorum} is above --write-quorum, {write_quorum}")
    host, port = address_of(listen)
    if advertise is None and host in _UNSPECIFIED_HOSTS:
        raise InvalidArgumentError(
            f"{host} listens on every interface, but clients cannot connect to that address: give --advertise HOST:PORT"
        )
    advertised_host, advertised_port = (None, None) if advertise is None else address_of(advertise)
    settings = GatewaySettings(
        host=host, port=port, advertised_host=advertised_host, advertised_port=advertised_port or None,
        write_quorum=write_quorum, ack_quorum=ack_quorum, partitions=partitions, creates_topics=create_topics,
        password=read_password(password_file),
    )  # fmt: skip
    own = Tls.from_environment(os.environ)
    security = SecuritySettings(
        tls=listen_tls,
        tls_certificate=listen_tls_certificate or _path(None if own is None else own.certificate),
        tls_key=listen_tls_key or _path(None if own is None else own.key),
        tls_ca=listen_tls_ca,
        tls_minimum=listen_tls_minimum,
        tls_reload_seconds=listen_tls_reload_seconds,
        auth=auth,
        audit_file=audit_file,
    )
    from octavo.cli.kafka.observing import observing_address  # noqa: PLC0415
    from octavo.cli.kafka.serving import serve  # noqa: PLC0415

    await serve(session, settings, security, None if admin_listen is None else observing_address(admin_listen))


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def address_of(text: str) -> tuple[str, int]:
    """Host and port of an address.

    Raises:
        InvalidArgumentError: It is none.
    """
    host, _, port = text.rpartition(":")
    bare = host.strip("[]")
    if not (port.isascii() and port.isdecimal() and int(port) < 65536 and bare):
        raise InvalidArgumentError(f"{text!r} is no address like 127.0.0.1:9092")
    return bare, int(port)
