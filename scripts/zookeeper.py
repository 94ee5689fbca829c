"""A ZooKeeper on this machine, for development: ``scripts/zookeeper.py start`` prints its URI, ``stop`` stops it.

It runs from the jars of PySpark (`make setup` installs them) and needs Java 17 or newer. Data and logs are in a folder.
When it is started again in the same folder, it keeps its data and its port.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from octavo.security.authority import issue, make_authority
from zookeeper_server import HOST, ServerGroup, Settings, ZooKeeperError, class_path, find_java, mode_of

FOLDER = Path("zookeeper-data")


def start(arguments: argparse.Namespace) -> None:
    """Start the servers unless they run, and print their URI."""
    if arguments.ensemble < 1 or arguments.ensemble % 2 == 0:
        raise ZooKeeperError(f"--ensemble must be odd (1, 3 or 5), not {arguments.ensemble}")
    files: dict[str, Any] = make_certificates(arguments.data_dir / "tls") if arguments.tls else {}
    group = ServerGroup(
        arguments.data_dir,
        size=arguments.ensemble,
        port=arguments.port,
        settings=Settings(
            tick_milliseconds=arguments.tick_milliseconds,
            heap_megabytes=arguments.heap_megabytes,
            **files,
        ),
    )
    if len(group.servers) != arguments.ensemble:
        raise ZooKeeperError(f"{arguments.data_dir} holds {len(group.servers)} servers; name another --data-dir")
    group.start()
    if arguments.tls:
        print(secure_uri(group, arguments.data_dir / "tls"))
    else:
        print(group.uri)


def secure_uri(group: ServerGroup, folder: Path) -> str:
    """The URI of a client with the certificates that :func:`make_certificates` has made in the folder."""
    tls = folder.absolute()
    return f"{group.secure_uri}/octavo?tls_ca={tls}/ca.crt&tls_certificate={tls}/client.crt&tls_key={tls}/client.key"


def make_certificates(folder: Path) -> dict[str, Any]:
    """Settings with a server's certificate for this host. Files that exist are kept. Those of a client are in the
    same folder."""
    if not (folder / "server.pem").exists():
        authority = make_authority("ZooKeeper on this host")
        folder.mkdir(parents=True, exist_ok=True)
        server = issue(authority, "server", hosts=("localhost", HOST))
        client = issue(authority, "client", uris=("octavo:zookeeper-client",))
        for name, content in {
            "ca.crt": authority.certificate,
            "client.crt": client.certificate,
            "client.key": client.key,
            "server.pem": server.key + server.certificate,
        }.items():
            path = folder / name
            path.touch(0o600)
            path.write_bytes(content)
    return {"tls_pair": str((folder / "server.pem").absolute()), "tls_ca": str((folder / "ca.crt").absolute())}


def stop(arguments: argparse.Namespace) -> None:
    """Stop the servers; does nothing if they do not run."""
    if (arguments.data_dir / "servers.json").exists():
        ServerGroup(arguments.data_dir).stop()


def status(arguments: argparse.Namespace) -> None:
    """Print the state of each server."""
    if not (arguments.data_dir / "servers.json").exists():
        raise ZooKeeperError(f"no ZooKeeper has been started in {arguments.data_dir}")
    group = ServerGroup(arguments.data_dir)
    for server in group.servers:
        mode = mode_of(server.client_port) if server.is_running() else "stopped"
        print(f"server {server.number}, port {server.client_port}: {mode or 'not serving'}")


def check(_arguments: argparse.Namespace) -> None:
    """Fail with a message that says what to install, if ZooKeeper cannot be started here."""
    find_java()
    class_path()


def main() -> int:
    """Run the command. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="zookeeper.py", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="start|stop|status|check")
    for does in (start, stop, status, check):
        command = commands.add_parser(does.__name__, help=does.__doc__)
        command.set_defaults(does=does)
        command.add_argument("--data-dir", type=Path, default=FOLDER, help=f"folder (default: {FOLDER})")
        if does is start:
            command.add_argument("--ensemble", type=int, default=1, metavar="N", help="number of servers (default: 1)")
            command.add_argument("--tls", action="store_true", help="listen with TLS, with certificates made for this")
            command.add_argument("--port", type=int, default=0, help="port of the first server (default: a free port)")
            command.add_argument(
                "--tick-milliseconds",
                type=int,
                default=1000,
                help="sessions last 2 ticks or more (default: 1000)",
            )
            command.add_argument(
                "--heap-megabytes", type=int, default=256, help="memory of each server for its nodes (default: 256)"
            )
    arguments = parser.parse_args()
    try:
        arguments.does(arguments)
    except ZooKeeperError as error:
        print(f"zookeeper.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
