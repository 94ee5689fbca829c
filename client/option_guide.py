"""When to touch each option of ``octavo.connect``. Pure; read by the page docs/reference/options.md and its tests.

An option is *common* if programs are expected to choose it, *sometimes* if a known situation asks for another value,
and *rare* if it exists for tests, measurements, and clusters far from the usual: its default is right elsewhere, and a
change may do harm in ways that are found late.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class Use(StrEnum):
    """How often an option is touched."""

    COMMON = "common"
    SOMETIMES = "sometimes"
    RARE = "rare"


class Guide(NamedTuple):
    """The advice on one option."""

    use: Use
    when: str
    """When to touch it, and what for: a sentence or two."""


def _common(when: str) -> Guide:
    return Guide(Use.COMMON, when)


def _sometimes(when: str) -> Guide:
    return Guide(Use.SOMETIMES, when)


def _rare(when: str) -> Guide:
    return Guide(Use.RARE, when)


GUIDES: Final[dict[str, Guide]] = {
    # connections
    "connect_timeout_seconds": _rare("Bookies are reached over a network that loses many packets."),
    "reconnect_delay_seconds_min": _rare("Tests want a bookie to be back at once."),
    "reconnect_delay_seconds_max": _rare("Thousands of clients come back at the same time, and overload a bookie."),
    "outgoing_bytes_max": _rare("Raise it with `window_bytes`, to twice as much."),
    "request_timeout_seconds": _rare("Disks are known to stand still for longer, as some network disks do."),
    "tls": _common("The cluster speaks TLS. Usually the environment says so, for all programs of a host."),
    "key_file": _common("The cluster knows its clients by keys. Usually the environment names the file."),
    # placement
    "racks_per_write_quorum_min": _sometimes("An entry must survive the loss of a rack, or must not be added at all."),
    "hosts_per_write_quorum_min": _sometimes("An entry must survive the loss of a host, or must not be added at all."),
    # writers
    "window_entries": _sometimes("Many small adds over a long distance: more may be under way than 10,000."),
    "window_bytes": _sometimes(
        "Memory is short, and a client has many busy writers; or entries of megabytes go over a long distance."
    ),
    "frame_interval_seconds": _sometimes(
        "Adds come steadily, and processor time matters more than 4 ms of latency: 0.004."
    ),
    "retained_bytes_max": _rare("Copies have holes after short breaks of connections that carry more than this."),
    "unforced_bytes_max": _rare("Ledgers with deferred sync force more often than their program does."),
    "force_interval_seconds": _sometimes("Ledgers with deferred sync: how much a crash of everything may cost."),
    "add_quorum_timeout_seconds": _rare("A ledger writer should fail earlier, or outlast longer restarts of bookies."),
    "bookie_loss_seconds": _rare("The network breaks connections often, and writers replace bookies that are well."),
    "ensemble_change_delay_seconds": _sometimes(
        "Rolling restarts should replace no bookies: longer than a restart takes."
    ),
    "bookie_quarantine_seconds": _rare("Failed bookies are chosen again too early, or too late, in a small cluster."),
    "resend_delay_seconds": _rare("Tests want a refused add to be sent again at once."),
    "explicit_lac_delay_seconds": _rare("Followers should see the last entry of a burst later, for fewer messages."),
    "close_timeout_seconds": _sometimes("A program must end within less, as on a signal; adds may then fail."),
    "full_copies_patience_seconds": _sometimes('With `full_copies="recorded"`: closing should wait longer or not.'),
    # recovery
    "recovery_timeout_seconds": _rare("Takeovers should give up sooner while too few bookies answer."),
    # readers
    "read_ahead_bytes": _sometimes("Reads go over a long distance: as much as the line carries in a round trip."),
    "read_ahead_requests": _rare("As `read_ahead_bytes`, with many small entries."),
    "read_slow_seconds": _sometimes("Reads must not wait for a slow disk: 0.1, at the price of some double reads."),
    "replica_avoid_seconds": _rare("A bookie is slow again and again, and should be asked last for longer."),
    "read_quorum_timeout_seconds": _sometimes("A read should fail sooner while bookies are away."),
    "long_poll_seconds": _rare("Something between client and bookies cuts connections that are silent for less."),
    # logs
    "lease_seconds": _common(
        "How soon a standby takes over from a leader that died: 2 to 10. Shorter than the pauses of a leader, it loses "
        "its lead needlessly."
    ),
    "log_segment_bytes": _sometimes("Retention should drop less at a time: well below what is kept."),
    "log_segment_seconds": _sometimes("Retention by age should drop less at a time: well below the age."),
    "log_page_segments": _rare("Tests want pages of few segments."),
    "log_retention_seconds": _rare("Retention should be applied sooner than once a minute, as in tests."),
    "log_cursor_idle_seconds": _sometimes(
        "Logs with `Retention(cursors=True)`: how long a consumer that is away holds entries back."
    ),
    "log_truncation_seconds": _rare("Readers must learn of a truncation sooner than within a second."),
    "cursor_flush_seconds": _sometimes("A consumer that crashes should see fewer entries again: 0 stores every move."),
    "log_add_timeout_seconds": _common(
        "A program must answer within a time, also while the log heals. Without it an add waits."
    ),
    "log_duel_pause_seconds": _rare("Takeovers take much longer than a quarter of a second, as over a long distance."),
}
"""The advice on every option, in the order of :class:`octavo.client.options.ClientOptions`."""
