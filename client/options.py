"""Every option of ``octavo.connect(uri, **options)``, each with its default and the reason for it.

Units stand last in the names. Defaults suit a cluster in one data centre.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.limits import E_MAX, ENTRIES_PER_FRAME_MAX, FRAME_BYTES_MAX, LONG_POLL_SECONDS_MAX

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Options of a client, its writers and its readers.

    Raises :class:`InvalidArgumentError` naming an option out of range.
    """

    # --- connections

    connect_timeout_seconds: float = 5.0
    """Time for one attempt to reach a bookie and exchange hellos: outlasts two lost SYNs (resent after 1 s and 3 s)."""

    reconnect_delay_seconds_min: float = 0.05
    """First pause between attempts to reach a bookie; doubles up to the maximum. Each is drawn from its upper half."""

    reconnect_delay_seconds_max: float = 3.0
    """Longest such pause: what a bookie that comes back waits at most for its writers."""

    outgoing_bytes_max: int = 64 * _MIB
    """Bytes a connection holds that its socket has not taken. Above it the bookie gets nothing more until a quarter is
    left. Twice the default window, so that one writer alone never reaches it."""

    request_timeout_seconds: float = 10.0
    """Time a bookie has to answer one request. Covers a slow disk's longest sync; one that takes longer is failing."""

    # --- placement

    racks_per_write_quorum_min: int = 1
    """Racks that the copies of each entry must span (or Qw, if that is less). Copies are spread over as many racks as
    there are in any case; above 1 a ledger is refused, and a failed bookie not replaced, rather than spread over fewer.
    """

    # --- writers

    window_entries: int = 10_000
    """Most unacknowledged adds of one ledger; ``add`` waits for room, ``add_nowait`` raises WouldBlock. A full window
    is some 30 ms of work: enough to keep three bookies syncing, little enough for latency."""

    window_bytes: int = 32 * _MIB
    """Most unacknowledged payload bytes of one ledger: bounds memory where entries are large. A larger add
    goes alone."""

    retained_bytes_max: int = 8 * _MIB
    """Sealed bytes of acknowledged entries that a writer keeps for bookies that have not confirmed them yet, so that a
    short break of one connection leaves no hole in that replica. The oldest go first."""

    add_quorum_timeout_seconds: float = 30.0
    """Time an add has to reach its ack quorum before the writer gives up for good (rules W6 and W8). Outlasts the
    restart of a bookie."""

    bookie_loss_seconds: float = 0.5
    """How long the connection to a bookie may be gone before a writer that waits for it replaces the bookie. Outlasts a
    connection that breaks and is made again; a bookie that restarts usually takes longer."""

    ensemble_change_delay_seconds: float = 0.0
    """Further patience with a failed bookie while every add can reach its ack quorum without it: above the time of a
    restart it keeps rolling restarts from moving ledgers about, at the price of fewer copies meanwhile."""

    bookie_quarantine_seconds: float = 30.0
    """How long at least a bookie that was replaced, or could not be reached as a spare, is not chosen again; up to half
    as much is added by chance. One that registers anew is well again at once."""

    resend_delay_seconds: float = 1.0
    """Pause before a bookie that refused or did not answer an add is tried again on the same connection."""

    explicit_lac_delay_seconds: float = 0.001
    """Time after which a writer looks whether adds have stopped coming, and if so tells its LAC by itself (rule
    W2): how far a tailing reader lags behind the last add of a burst. Well above the turn-around of a caller that adds
    one entry after another, whose next entry tells as much; so at most one LAC goes out in so long a time."""

    close_timeout_seconds: float = 10.0
    """Longest a ledger takes to close on the way out of an ``async with`` block or of the client: above it pending adds
    are given up."""

    # --- recovery

    recovery_timeout_seconds: float = 20.0
    """How long a bookie that cannot be reached is tried again before a recovery goes on, or gives up, without it.
    Outlasts the restart of a bookie. While the answers of others suffice nobody waits for it."""

    # --- readers

    read_ahead_bytes: int = 4 * _MIB
    """Bytes an iterating reader fetches before they are asked for."""

    read_ahead_requests: int = 4
    """Most requests an iterating reader has in flight."""

    read_slow_seconds: float = 1.0
    """Time after which a read asks the next replica too, and the slow one last for a while (rule R1). A healthy
    disk answers within a tenth of it."""

    replica_avoid_seconds: float = 10.0
    """How long a bookie that was slow or failed a read is asked last."""

    read_quorum_timeout_seconds: float = 10.0
    """Time an entry may be out of reach because bookies are, before a read gives up with QuorumLostError. Outlasts the
    restart of a bookie process."""

    long_poll_seconds: float = 30.0
    """How long a follower lets a bookie hold its question for a higher LAC: an idle follower asks this often."""

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise InvalidArgumentError(f"option {name} must be a number from {low} to {high}, not {value!r}")
        for field in fields(self):
            if field.type is int and type(getattr(self, field.name)) is not int:
                raise InvalidArgumentError(f"option {field.name} must be an integer, not {getattr(self, field.name)!r}")
        if self.reconnect_delay_seconds_min > self.reconnect_delay_seconds_max:
            raise InvalidArgumentError("option reconnect_delay_seconds_min is above reconnect_delay_seconds_max")

    @classmethod
    def from_keywords(cls, options: Mapping[str, Any]) -> "ClientOptions":
        """Options from the keywords of ``connect``. Raises :class:`InvalidArgumentError` naming an unknown one."""
        known = {field.name for field in fields(cls)}
        for name in options:
            if name not in known:
                raise InvalidArgumentError(f"unknown option {name!r}; known are {', '.join(sorted(known))}")
        return cls(**options)


_SECONDS = (0.001, 86_400.0)

_RANGES: dict[str, tuple[float, float]] = {
    "connect_timeout_seconds": _SECONDS,
    "reconnect_delay_seconds_min": _SECONDS,
    "reconnect_delay_seconds_max": _SECONDS,
    "outgoing_bytes_max": (FRAME_BYTES_MAX, 2**40),
    "request_timeout_seconds": _SECONDS,
    "racks_per_write_quorum_min": (1, E_MAX),
    "window_entries": (1, 1_000_000),
    "window_bytes": (1, 2**40),
    "retained_bytes_max": (0, 2**40),
    "add_quorum_timeout_seconds": _SECONDS,
    "bookie_loss_seconds": _SECONDS,
    "ensemble_change_delay_seconds": (0.0, 86_400.0),
    "bookie_quarantine_seconds": (0.0, 86_400.0),
    "resend_delay_seconds": _SECONDS,
    "explicit_lac_delay_seconds": _SECONDS,
    "close_timeout_seconds": _SECONDS,
    "recovery_timeout_seconds": _SECONDS,
    "read_ahead_bytes": (1, 2**40),
    "read_ahead_requests": (1, ENTRIES_PER_FRAME_MAX),
    "read_slow_seconds": _SECONDS,
    "replica_avoid_seconds": _SECONDS,
    "read_quorum_timeout_seconds": _SECONDS,
    "long_poll_seconds": (0.001, LONG_POLL_SECONDS_MAX),
}
