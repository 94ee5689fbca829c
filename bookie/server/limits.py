"""The limits of a bookie's server: over all connections, and for each client. Pure."""

from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.limits import HELLO_TIMEOUT_SECONDS

STRANGER_FRAME_BYTES_MAX = 64 * 1024
"""Largest frame of a client that has not been authenticated where that is required: it has nothing to say but its hello
and who it is."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds over all connections of a bookie. Seconds, bytes."""

    connections_max: int = 4096
    hello_timeout_seconds: float = HELLO_TIMEOUT_SECONDS
    frame_timeout_seconds: float = 60.0
    """A frame must be completed within this time."""
    unfinished_frame_bytes: int = 128 * 1024 * 1024
    """Memory for frames that have arrived in part."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """The limits of one client; 0 is no limit."""

    connections_max: int = 256
    bytes_per_second: int = 0
    requests_per_second: int = 0
    new_ledgers_per_second: int = 1000
