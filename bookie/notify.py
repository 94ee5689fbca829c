"""Readiness for a supervisor: systemd's notification protocol, one datagram to a socket named in the environment."""

import socket
from collections.abc import Mapping

ADDRESS_KEY = "X_OCTAVO_ADDRESS"
"""Beside ``READY=1``: the address under which the bookie is registered."""


def notify_supervisor(state: str, environment: Mapping[str, str], *, wait: bool = True) -> bool:
    """Send ``state`` (``READY=1``, ``STOPPING=1``, ``STATUS=...``) to the supervisor. Returns whether there is one.

    A supervisor that does not listen is no reason to fail: its own time-out reports it. Without ``wait``, a message for
    which its socket has no room is dropped.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.setblocking(wait)
            channel.connect(address)
            channel.sendall(state.encode())
    except OSError:
        return False
    return True
