"""The statistics of a ledger's reader."""

from collections.abc import Mapping

from octavo.protocol.ids import BookieId, LedgerId
from octavo.protocol.light_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderStatistics:
    """Statistics of a ledger's reader. Made by ``LedgerReader.statistics()``.

    Examples:
        >>> entries = await reader.read(0, 2)
        >>> statistics = reader.statistics()
        >>> statistics.entries_read, sum(statistics.entries_by_bookie.values()), statistics.waiting_seconds
        (3, 3, None)
    """

    ledger_id: LedgerId
    is_closed: bool
    """Whether the reader has been closed."""
    is_ledger_closed: bool
    """Whether the ledger has its final end, as far as the reader has heard."""
    last_add_confirmed: int | None
    """The highest id that can be read, as far as the reader has heard; None when there is none."""
    entries_read: int
    """Entries that bookies gave and that verified. One that two bookies gave counts twice."""
    entries_by_bookie: Mapping[BookieId, int]
    """The same by the bookies that gave them."""
    requests_under_way: int
    """Ranges of entries that bookies are being asked for; most of them are read ahead."""
    waiting_seconds: float | None
    """How long the oldest caller has waited for the entries that it needs next; None if no caller waits. It fails at
    ``read_quorum_timeout_seconds``, or soon after."""
    waiting_for_more: int
    """Callers that wait for the ledger to grow: followers that have read all of it."""
    retries: int
    """How often all replicas had answered, an entry was missing, and the reader asked again."""
    speculative_reads: int
    """How often a further bookie was asked because those asked before took long."""
