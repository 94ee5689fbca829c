"""``octavo console``: serves the web page until it is interrupted."""

# ruff: noqa: PLC0415 - no other command needs the page's server

import asyncio
import secrets
import time
from pathlib import Path
from typing import Annotated

import typer
from octavo.cli.console.access import check_token, parse_listen
from octavo.cli.own_host import Address
from octavo.cli.session import CommandError, Session, command, directory_of_cluster
from octavo.protocol.errors import InvalidArgumentError

TOKEN_BYTES = 24


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    command(app)(console)


async def console(
    session: Session,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Loopback address to listen on; port 0 takes any.")
    ] = "127.0.0.1:3190",
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with the token that browsers must present. The default is a new token at each start.",
        ),
    ] = None,
    entries: Annotated[
        bool, typer.Option("--entries", help="Show entries of logs, too. All who have the token can read them.")
    ] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="Offer no changes such as draining a bookie.")] = False,
) -> None:
    """Serve a web page that shows the cluster, live.

    The page shows bookies, ledgers with their fragments, logs with leader and cursors, and repair with its progress.
    The command prints the address to open; the part after # is a token, so give the address only to people who may see
    the cluster. Ctrl-C ends the command.
    """
    from octavo.bookie.admin.server import AdminServer
    from octavo.bookie.log_output import use_log_outputs
    from octavo.cli.bookie.admin_client import bookies_here
    from octavo.cli.console.answers import Answerer, Cluster
    from octavo.cli.console.kafka_watch import KafkaWatch
    from octavo.cli.console.logs_watch import LogsWatch
    from octavo.cli.console.observer import Observer
    from octavo.cli.console.switches import Switches
    from octavo.cli.output import print_json, print_line

    use_log_outputs()
    address = parse_listen(listen)
    token = secrets.token_urlsafe(TOKEN_BYTES) if token_file is None else _read_token(token_file)
    async with await session.connect() as client, await session.open_metadata() as store:
        directory = directory_of_cluster(session.metadata_uri)
        switches = Switches(await store.cluster_id(), lambda: bookies_here(directory))
        observer = Observer(client, store, switches, time.time)
        logs = LogsWatch(client, store, time.monotonic)
        kafka = KafkaWatch(client, store, time.monotonic)
        cluster = Cluster(client, store, observer, switches, logs, kafka, shows_entries=entries)
        answerer = Answerer(cluster, address, token, changes=not read_only)
        server = AdminServer(answerer.answer)
        try:
            port = await server.listen_on(address.host, address.port)
        except OSError as error:
            raise CommandError(f"cannot listen on {listen}: {error.strerror or error}") from error
        url = Address(address.host, port).url
        if session.as_json:
            print_json({"url": url, "token": token})
        elif token_file is None:
            print_line(f"console: {url}#token={token}")
        else:
            print_line(f"console: {url} with the token in {token_file}")
        try:
            await observer.run()
        finally:
            await server.stop()
            await logs.close()
            await asyncio.sleep(0)


def _read_token(file: Path) -> str:
    from octavo.security.secret_files import read_secret

    try:
        return check_token(read_secret(file, "token file").decode().strip())
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"token file {file}: it is not text") from error
