"""Ports of commands that answer over HTTP on this host: their addresses, and which requests mean them. Pure."""

import ipaddress
from typing import NamedTuple


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """As browsers want it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"


def is_own_host(host: str | None, address: Address) -> bool:
    """Whether the header ``Host`` names this server by an address or as ``localhost``. A web page can let a name of its
    own point to this host (DNS rebinding), but no address."""
    if host is None:
        return False
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == address.host
