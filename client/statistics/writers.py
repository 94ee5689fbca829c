"""The statistics of writers: where their adds are, and how far the bookies have them.

Every value is a copy: it does not change afterwards. Making one sends no request, and nothing is counted for it while
entries are added: it is computed from what a writer needs anyway.
"""

from typing import Literal

from octavo.protocol.ids import BookieId, LedgerId
from octavo.protocol.light_dataclass import dataclass

type LedgerWriterState = Literal["open", "failed", "closing", "unclosed", "closed"]
"""``failed``: it takes no adds, and is not closed yet. ``unclosed``: the last close was refused, because copies are
missing that the ledger requires."""

type LogWriterState = Literal["writing", "healing", "lost", "ended"]
"""``healing``: its segment failed, and it takes the log over from itself; adds wait. ``lost``: it takes no adds, and
some that were sent may still be acknowledged. ``ended``: nothing is added any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddStatistics:
    """The adds of a writer that take room in its window, or wait for it.

    Examples:
        >>> adds = writer.statistics().adds
        >>> adds.queued_entries, adds.unacknowledged_entries, adds.free_entries > 0
        (0, 0, True)
    """

    queued_entries: int
    """They wait for room in the window, or for a writer that rolls or heals. Rising: the program adds faster than the
    bookies confirm."""
    queued_bytes: int
    """Their payload bytes."""
    collected_entries: int
    """They have room, and wait to be sent with others."""
    collected_bytes: int
    """Their payload bytes."""
    unacknowledged_entries: int
    """They were sent, and their callers wait. Those in doubt are among them."""
    unacknowledged_bytes: int
    """Their payload bytes."""
    in_doubt_entries: int
    """They were sent to a segment that failed. Healing finds out which of them are in the log, and sends the others
    again. Always 0 of a ledger's writer."""
    held_entries: int
    """They are acknowledged and take room all the same: they lack copies that are required, or too many are not forced
    yet."""
    held_bytes: int
    """Their payload bytes."""
    free_entries: int
    """Adds that find room now."""
    free_bytes: int
    """Payload bytes that find room now. Negative while one payload is larger than the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationStatistics:
    """How far the bookies have what a writer has sent to one ledger, or to one term of a log.

    Examples:
        >>> replication = ledger.statistics().replication
        >>> sorted(replication.ensemble), replication.last_add_confirmed, replication.pending_entries
        (['b0', 'b1', 'b2'], None, 0)
    """

    ledger_id: LedgerId
    """The ledger, or the stream of the log."""
    term: int
    """The term of the log; 0 of a ledger."""
    ensemble: tuple[BookieId, ...]
    """The bookies of the last fragment."""
    last_add_confirmed: int | None
    """The highest id such that its entry and all lower ones are acknowledged, and durable; None before the first."""
    length: int
    """Payload bytes up to the last add confirmed."""
    pending_entries: int
    """Entries that were sent, and are not confirmed. With deferred sync also those that are not forced yet."""
    pending_bytes: int
    """Their payload bytes."""
    pending_frames: int
    """The frames that hold them."""
    pending_seconds: float | None
    """How long the oldest add, or request to force, has waited; None if none waits. The writer fails at
    ``add_quorum_timeout_seconds``."""
    unforced_entries: int
    """Entries that bookies have accepted, and that are not durable yet. Only with deferred sync."""
    short_entries: range
    """The acknowledged entries of the last fragment that may have fewer than Qw copies, as far as is known now, lie in
    this range of ids."""
    retained_bytes: int
    """Sealed bytes of acknowledged entries that are kept for bookies which lack them."""
    troubled_bookies: tuple[BookieId, ...]
    """Bookies of the ensemble that are not connected, or refuse adds."""
    is_changing_ensemble: bool
    """Whether a bookie is being replaced now, or the writer rolls."""
    replaced_bookies: int
    """Bookies that were replaced since the first entry of the ledger, or the last renewal of the term."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerWriterStatistics:
    """Statistics of a ledger's writer. Made by ``LedgerWriter.statistics()`` and ``ExplicitIdWriter.statistics()``.

    Examples:
        >>> await ledger.add(b"payload")
        0
        >>> statistics = ledger.statistics()
        >>> statistics.state, statistics.failure, statistics.replication.last_add_confirmed
        ('open', None, 0)
    """

    ledger_id: LedgerId
    state: LedgerWriterState
    failure: str | None
    """Why it cannot go on; None while it can."""
    adds: AddStatistics
    replication: ReplicationStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWriterStatistics:
    """Statistics of a log's writer. Made by ``LogWriter.statistics()``.

    Examples:
        >>> await writer.add(b"payload")
        0
        >>> statistics = writer.statistics()
        >>> statistics.state, statistics.term, statistics.end, statistics.rolls
        ('writing', 1, 1, 0)
    """

    log: str
    """The name of the log."""
    term: int
    state: LogWriterState
    state_seconds: float
    """How long it has been in this state: while healing, how long adds have waited at most."""
    failure: str | None
    """Why it heals, or takes no adds any more; None while it writes."""
    next_position: int
    """The position of the next add that is sent."""
    end: int
    """The position after the last acknowledged add."""
    adds: AddStatistics
    heals: int
    """How often it has taken the log over from itself since it leads."""
    rolls: int
    """How often it has begun a new segment since it leads, without those after healing."""
    is_rolling: bool
    """Whether it is beginning a new segment now."""
    segment_bytes_left: int
    """Payload bytes that the segment which is written now takes before the log rolls."""
    segment_seconds: float
    """How long ago it was begun; the log rolls after ``log_segment_seconds``."""
    replication: ReplicationStatistics
    """Of the segment that is written now."""
