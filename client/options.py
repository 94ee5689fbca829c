"""Every option of ``octavo.connect(uri, **options)``, each with its meaning, its default and the reason for it.

The unit is the last word of an option's name. The defaults suit a cluster within one data centre.
"""

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, TypedDict

from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.limits import E_MAX, ENTRIES_PER_FRAME_MAX, FRAME_BYTES_MAX, LONG_POLL_SECONDS_MAX
from octavo.security.tls_options import Tls

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Options of a client, its writers and its readers: each with its default, and checked.

    ``octavo.connect`` takes them as keywords. Made by itself, it tells the defaults, and whether values are allowed
    before anything is connected. docs/reference/options.md says when to touch each; many are rare.

    Examples:
        >>> octavo.ClientOptions().lease_seconds
        10.0
        >>> octavo.ClientOptions(lease_seconds=5).window_entries
        10000

    Raises:
        InvalidArgumentError: An option is out of range; the error names it.
    """

    # --- connections

    connect_timeout_seconds: float = 5.0
    """Time for one attempt to reach a bookie and exchange hellos: outlasts two lost SYNs (resent after 1 s and 3 s)."""

    reconnect_delay_seconds_min: float = 0.05
    """First pause between attempts to reach a bookie. It doubles with every attempt, up to the maximum; the actual
    pause is drawn at random from its upper half."""

    reconnect_delay_seconds_max: float = 3.0
    """Longest such pause: a bookie that comes back waits at most this long for its clients."""

    outgoing_bytes_max: int = 64 * _MIB
    """Most bytes waiting for the socket of a connection. Above it the bookie is sent nothing more until a quarter is
    left. Twice the default window, so that one writer alone never reaches it."""

    request_timeout_seconds: float = 10.0
    """Time a bookie has to answer one request. Covers the longest sync of a slow disk; a disk that takes longer is
    failing."""

    tls: Tls | bool | None = None
    """Speak TLS with the bookies: True with the certificate authorities of the system, or a
    :class:`octavo.security.tls_options.Tls` with files. False: never; None: as the environment (``OCTAVO_TLS``...)
    says."""

    key_file: str | None = None
    """File with the key of the principal that the client is, one line ``NAME:SECRET`` (``octavo access key`` prints
    it). None: as the environment (``OCTAVO_KEY_FILE``) says. A key is used over TLS or within this host only."""

    # --- placement

    racks_per_write_quorum_min: int = 1
    """Fewest racks that the copies of each entry span (or Qw, if that is less). Copies are spread over as many racks as
    there are in any case. With a value above 1, creating a ledger fails, and a failed bookie is not replaced, if the
    copies would span fewer racks."""

    hosts_per_write_quorum_min: int = 1
    """Fewest hosts that the copies of each entry span (or Qw, if that is less). Copies are spread over as many hosts as
    there are in any case, and never all put on one if there is another. With a value above 1, creating a ledger fails,
    and a failed bookie is not replaced, if the copies would span fewer hosts. A bookie of which the host is not known
    counts as a host of its own."""

    # --- writers

    window_entries: int = 10_000
    """Most unacknowledged adds of one ledger. Above it ``add`` waits and ``add_nowait`` raises WouldBlock. A full
    window is some 30 ms of work: enough to keep three bookies busy, and little enough for latency."""

    window_bytes: int = 32 * _MIB
    """Most unacknowledged payload bytes of one ledger; bounds memory if entries are large. An add larger than this is
    accepted when no other is unacknowledged."""

    frame_interval_seconds: float = 0.0
    """Shortest time between a frame with several adds and the next frame with few. 0: adds wait for each other only
    while a frame is under way, and in a flow of adds until 2 ms after the frame before. At steady rates, more than
    that, as 0.004, saves processor time of the client and of the bookies; an add waits at most this time longer
    (decision 017). A caller that adds one entry after another is never held back."""

    retained_bytes_max: int = 8 * _MIB
    """Sealed bytes of acknowledged entries that a writer keeps for bookies that have not confirmed them yet, so that a
    short break of one connection leaves no hole in that replica. The oldest go first."""

    unforced_bytes_max: int = 32 * _MIB
    """Sealed bytes of one ledger with deferred sync that may be accepted and not forced: the writer keeps them. Beyond
    it adds wait. At half of it the writer forces by itself, so that adds seldom wait."""

    force_interval_seconds: float = 1.0
    """How long after the first unforced entry a writer with deferred sync forces by itself. Bounds what a crash of the
    writer and of all bookies can lose, and how far readers are behind, if the application never forces."""

    add_quorum_timeout_seconds: float = 30.0
    """Time an add has to reach its ack quorum; after that the writer fails for good (rules W6 and W8). Outlasts the
    restart of a bookie."""

    bookie_loss_seconds: float = 0.5
    """How long the connection to a bookie may be lost before a writer that waits for the bookie replaces it. Outlasts a
    connection that breaks and is made again; a bookie that restarts usually takes longer."""

    ensemble_change_delay_seconds: float = 0.0
    """How much longer a writer waits for a failed bookie while every add can reach its ack quorum without it. If it is
    longer than a restart, rolling restarts replace no bookies; the price is fewer copies of new entries meanwhile."""

    bookie_quarantine_seconds: float = 30.0
    """How long a bookie that was replaced, or could not be reached as a spare, is not chosen again; a random part of up
    to half as much is added. A bookie that registers again may be chosen at once."""

    resend_delay_seconds: float = 1.0
    """Pause before a bookie that refused or did not answer an add is tried again on the same connection."""

    explicit_lac_delay_seconds: float = 0.001
    """How long after the last acknowledged add an idle writer sends its LAC to the bookies as a message of its own
    (rule W2). A tailing reader sees the last entry of a burst this much later. It is well above the time that a
    caller takes to add one entry after another, where the next entry carries the LAC."""

    close_timeout_seconds: float = 10.0
    """Longest time that closing a ledger takes, by ``close()``, at the end of an ``async with`` block, or when the
    client is closed. Adds still pending after three quarters of it fail."""

    full_copies_patience_seconds: float = 5.0
    """How long closing and recovering a ledger with ``full_copies="recorded"`` wait for copies that are missing; what
    is missing then is recorded, and repair makes it. Outlasts a slow sync, not a dead bookie. Within the time that
    closing takes."""

    # --- recovery

    recovery_timeout_seconds: float = 20.0
    """How long a recovery tries to reach a bookie before it goes on, or fails, without it. Outlasts the restart of a
    bookie. If the answers of the other bookies suffice, the recovery does not wait."""

    # --- readers

    read_ahead_bytes: int = 4 * _MIB
    """Bytes that an iterating reader fetches ahead."""

    read_ahead_requests: int = 4
    """Most requests an iterating reader has in flight."""

    read_slow_seconds: float = 1.0
    """Time after which a read asks the next replica too. The slow bookie is then asked last for a while (rule R1). A
    healthy disk answers within a tenth of this time."""

    replica_avoid_seconds: float = 10.0
    """How long a bookie that was slow, or failed a read, is asked last."""

    read_quorum_timeout_seconds: float = 10.0
    """How long a read waits for bookies that cannot be reached before it raises QuorumLostError. Outlasts the restart
    of a bookie."""

    long_poll_seconds: float = 30.0
    """How long a bookie holds a follower's request for a higher LAC. An idle follower sends a request this often."""

    # --- logs

    lease_seconds: float = 10.0
    """How long the lock of a log's leader outlives a client that died or lost the metadata store: a standby takes over
    at most this time later. ZooKeeper grants at least two, at most twenty of its ticks."""

    log_segment_bytes: int = 1024 * _MIB
    """Payload bytes after which the leader of a log begins a new segment. Retention drops whole segments: smaller ones
    are dropped sooner, larger ones make a shorter list."""

    log_segment_seconds: float = 3600.0
    """Time after which the leader begins a new segment, if the present one holds anything."""

    log_page_segments: int = 100
    """Segments of one page of a log's list. The list itself keeps up to ten times as many, and at most 2,000
    or 192 KiB. Above ten times as many pages, or 1,000, pages are merged."""

    log_retention_seconds: float = 60.0
    """How often the leader of a log applies its retention and deletes what was dropped."""

    log_cursor_idle_seconds: float = 7 * 86_400.0
    """A cursor that is behind the end and was not advanced for so long holds nothing back any more."""

    log_truncation_seconds: float = 1.0
    """A reader of a log relies for at most so long on what it knows of where the log begins; then it asks the metadata
    store before it gives another entry. One small request a second costs a store little, also for many readers."""

    cursor_flush_seconds: float = 1.0
    """Positions of cursors are stored at most this often, all of a log in one write."""

    log_add_timeout_seconds: float | None = None
    """Time after which an add to a log fails, in doubt if it was sent; None: an add waits until the log is healed or
    another client leads."""

    log_duel_pause_seconds: float = 0.25
    """Usual time of a takeover. A leader that was fenced waits for one to eight of them, by chance, before it looks
    whether another client leads, so that two clients do not fence each other in turn."""

    @property
    def spread_min(self) -> tuple[int, int]:
        """Racks and hosts that the copies of each entry span at least. Used only inside this package."""
        return (self.racks_per_write_quorum_min, self.hosts_per_write_quorum_min)

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is None and name == "log_add_timeout_seconds":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise InvalidArgumentError(f"option {name} must be a number from {low} to {high}, not {value!r}")
        if not isinstance(self.tls, Tls | bool | None):
            raise InvalidArgumentError(f"option tls must be True, False, None or an octavo.Tls, not {self.tls!r}")
        if self.key_file is not None:
            object.__setattr__(self, "key_file", str(self.key_file))  # a Path will do
        for field in fields(self):
            if field.type is int and type(getattr(self, field.name)) is not int:
                raise InvalidArgumentError(f"option {field.name} must be an integer, not {getattr(self, field.name)!r}")
        if self.reconnect_delay_seconds_min > self.reconnect_delay_seconds_max:
            raise InvalidArgumentError("option reconnect_delay_seconds_min is above reconnect_delay_seconds_max")

    @classmethod
    def from_keywords(cls, options: Mapping[str, Any]) -> "ClientOptions":
        """Options from the keywords of ``connect``. Used only inside this package.

        Raises:
            InvalidArgumentError: An option is unknown or out of range; the error names it.
        """
        known = {field.name for field in fields(cls)}
        for name in options:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                meant = f"did you mean {close[0]!r}?" if close else f"the options are {', '.join(sorted(known))}"
                raise InvalidArgumentError(f"unknown option {name!r}; {meant}")
        return cls(**options)


class ConnectOptions(TypedDict, total=False):
    """The keywords of ``octavo.connect``, for type checkers.

    ``ClientOptions`` has meaning, unit and default of each.

    Examples:
        >>> options: octavo.ConnectOptions = {"lease_seconds": 5.0}
        >>> octavo.ClientOptions(**options).lease_seconds
        5.0
    """

    connect_timeout_seconds: float
    reconnect_delay_seconds_min: float
    reconnect_delay_seconds_max: float
    outgoing_bytes_max: int
    request_timeout_seconds: float
    tls: Tls | bool | None
    key_file: str | None
    racks_per_write_quorum_min: int
    hosts_per_write_quorum_min: int
    window_entries: int
    window_bytes: int
    frame_interval_seconds: float
    retained_bytes_max: int
    unforced_bytes_max: int
    force_interval_seconds: float
    add_quorum_timeout_seconds: float
    bookie_loss_seconds: float
    ensemble_change_delay_seconds: float
    bookie_quarantine_seconds: float
    resend_delay_seconds: float
    explicit_lac_delay_seconds: float
    close_timeout_seconds: float
    full_copies_patience_seconds: float
    recovery_timeout_seconds: float
    read_ahead_bytes: int
    read_ahead_requests: int
    read_slow_seconds: float
    replica_avoid_seconds: float
    read_quorum_timeout_seconds: float
    long_poll_seconds: float
    lease_seconds: float
    log_segment_bytes: int
    log_segment_seconds: float
    log_page_segments: int
    log_retention_seconds: float
    log_cursor_idle_seconds: float
    log_truncation_seconds: float
    cursor_flush_seconds: float
    log_add_timeout_seconds: float | None
    log_duel_pause_seconds: float


_SECONDS = (0.001, 86_400.0)

_RANGES: dict[str, tuple[float, float]] = {
    "connect_timeout_seconds": _SECONDS,
    "reconnect_delay_seconds_min": _SECONDS,
    "reconnect_delay_seconds_max": _SECONDS,
    "outgoing_bytes_max": (FRAME_BYTES_MAX, 2**40),
    "request_timeout_seconds": _SECONDS,
    "racks_per_write_quorum_min": (1, E_MAX),
    "hosts_per_write_quorum_min": (1, E_MAX),
    "window_entries": (1, 1_000_000),
    "window_bytes": (1, 2**40),
    "frame_interval_seconds": (0.0, 1.0),
    "retained_bytes_max": (0, 2**40),
    "unforced_bytes_max": (1, 2**40),
    "force_interval_seconds": _SECONDS,
    "add_quorum_timeout_seconds": _SECONDS,
    "bookie_loss_seconds": _SECONDS,
    "ensemble_change_delay_seconds": (0.0, 86_400.0),
    "bookie_quarantine_seconds": (0.0, 86_400.0),
    "resend_delay_seconds": _SECONDS,
    "explicit_lac_delay_seconds": _SECONDS,
    "close_timeout_seconds": _SECONDS,
    "full_copies_patience_seconds": (0.0, 86_400.0),
    "recovery_timeout_seconds": _SECONDS,
    "read_ahead_bytes": (1, 2**40),
    "read_ahead_requests": (1, ENTRIES_PER_FRAME_MAX),
    "read_slow_seconds": _SECONDS,
    "replica_avoid_seconds": _SECONDS,
    "read_quorum_timeout_seconds": _SECONDS,
    "long_poll_seconds": (0.001, LONG_POLL_SECONDS_MAX),
    "lease_seconds": (0.1, 86_400.0),
    "log_segment_bytes": (1, 2**50),
    "log_segment_seconds": (0.001, 10 * 365 * 86_400.0),
    "log_page_segments": (1, 1000),
    "log_retention_seconds": _SECONDS,
    "log_cursor_idle_seconds": (0.001, 10 * 365 * 86_400.0),
    "log_truncation_seconds": _SECONDS,
    "cursor_flush_seconds": (0.0, 86_400.0),
    "log_add_timeout_seconds": _SECONDS,
    "log_duel_pause_seconds": (0.0, 86_400.0),
}
