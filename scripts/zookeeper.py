"""A real ZooKeeper on this machine, for development: ``scripts/zookeeper.py start`` prints its URI, ``stop`` ends it.

It comes out of PySpark's jars (`make setup` installs them) and needs Java 17 or newer, nothing else. Data and logs are
in a folder; started again there, it has them still and listens on the same port.
"""

import argparse
import sys
from pathlib import Path

from zookeeper_server import ServerGroup, Settings, ZooKeeperError, class_path, find_java, mode_of

FOLDER = Path("zookeeper-data")


def start(arguments: argparse.Namespace) -> None:
    """Start, or find it started; the URI on standard output."""
    if arguments.ensemble < 1 or arguments.ensemble % 2 == 0:
        raise ZooKeeperError(f"an ensemble of {arguments.ensemble} makes no sense: 1, 3 or 5 servers do")
    group = ServerGroup(
        arguments.data_dir,
        size=arguments.ensemble,
        port=arguments.port,
        settings=Settings(tick_milliseconds=arguments.tick_milliseconds),
    )
    if len(group.servers) != arguments.ensemble:
        raise ZooKeeperError(f"{arguments.data_dir} holds {len(group.servers)} servers; name another --data-dir")
    group.start()
    print(group.uri)


def stop(arguments: argparse.Namespace) -> None:
    """Stop; nothing happens when it does not run."""
    if (arguments.data_dir / "servers.json").exists():
        ServerGroup(arguments.data_dir).stop()


def status(arguments: argparse.Namespace) -> None:
    """Tell of each server."""
    if not (arguments.data_dir / "servers.json").exists():
        raise ZooKeeperError(f"no ZooKeeper has been started in {arguments.data_dir}")
    group = ServerGroup(arguments.data_dir)
    for server in group.servers:
        mode = mode_of(server.client_port) if server.is_running() else "stopped"
        print(f"server {server.number}, port {server.client_port}: {mode or 'not serving'}")


def check(_arguments: argparse.Namespace) -> None:
    """Fail, saying what to install, where no ZooKeeper could be started."""
    find_java()
    class_path()


def main() -> int:
    """Run the command line; the exit status."""
    parser = argparse.ArgumentParser(prog="zookeeper.py", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="start|stop|status|check")
    for does in (start, stop, status, check):
        command = commands.add_parser(does.__name__, help=does.__doc__)
        command.set_defaults(does=does)
        command.add_argument("--data-dir", type=Path, default=FOLDER, help=f"where it has its files ({FOLDER})")
        if does is start:
            command.add_argument("--ensemble", type=int, default=1, metavar="N", help="so many servers (1)")
            command.add_argument("--port", type=int, default=0, help="of the first server (any free one)")
            command.add_argument(
                "--tick-milliseconds", type=int, default=1000, help="sessions last 2 ticks or more (1000)"
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
