"""The ports of the bookies that ``octavo up`` runs: chosen, checked before a bookie starts, kept for the next start.

``ports.json`` in the data directory holds the port of each bookie when the cluster was last ready. Without
``--base-port`` the bookies take the same ports again, so that addresses in logs, dashboards and firewalls stay right.
"""

import contextlib
import errno
import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from octavo.cli.session import CommandError
from octavo.protocol.errors import InvalidArgumentError

PORTS_NAME = "ports.json"
BASE_PORT_DEFAULT = 3181
HOST = "127.0.0.1"
"""Where the bookies of ``octavo up`` listen: the default of ``octavo bookie``."""

PORT_MAX = 65535


def choose_ports(names: Sequence[str], base_port: int | None, remembered: Mapping[str, int]) -> dict[str, int]:
    """The port for each bookie; 0 for any free one.

    With a base port the bookies take the ports from there on, in order. Without one each takes the port that it had,
    and further ones the ports after the highest of those. Raises :class:`InvalidArgumentError` when the ports do not
    suffice.
    """
    if base_port == 0:
        return dict.fromkeys(names, 0)
    kept = {} if base_port is not None else {name: remembered[name] for name in names if name in remembered}
    following = max(kept.values(), default=(base_port or BASE_PORT_DEFAULT) - 1) + 1
    ports = dict(kept)
    for name in names:
        if name not in ports:
            ports[name] = following
            following += 1
    if following - 1 > PORT_MAX:
        source = f"--base-port {base_port}" if base_port else f"the ports from {min(kept.values(), default=0)} on"
        raise InvalidArgumentError(f"{source}: {len(names)} bookies would need ports above {PORT_MAX}")
    return ports


def check_free(ports: Mapping[str, int]) -> None:
    """Raise :class:`CommandError` that names every bookie whose port another process has."""
    taken = {name: port for name, port in ports.items() if port and _is_taken(port)}
    if not taken:
        return
    listed = ", ".join(f"{port} ({name})" for name, port in taken.items())
    which = f"port {listed} is" if len(taken) == 1 else f"ports {listed} are"
    raise CommandError(
        f"{which} in use by another process: stop it, or choose other ports with --base-port (0: any free ones)"
    )


def remember_ports(directory: Path, ports: Mapping[str, int]) -> None:
    """Keep the ports for the next start, with those of bookies that do not run now. Raises :class:`OSError`."""
    kept = {**read_ports(directory), **ports}
    new = directory / f"{PORTS_NAME}.new"
    new.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    new.replace(directory / PORTS_NAME)


def read_ports(directory: Path) -> dict[str, int]:
    """The ports that were kept; none when there is no such file, or something else in it."""
    try:
        kept = json.loads((directory / PORTS_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(kept, dict):
        return {}
    return {name: port for name, port in kept.items() if type(port) is int and 0 < port <= PORT_MAX}


def _is_taken(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        # As the bookie listens: connections of an earlier bookie that are still closing do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen()
        except OSError as error:
            return error.errno == errno.EADDRINUSE  # of anything else the bookie says it better
    return False
