"""The statistics of a client: its connections, and everything that it has made and that is open."""

from collections.abc import Mapping
from typing import Literal

from octavo.client.statistics.logs import LogStatistics
from octavo.client.statistics.readers import ReaderStatistics
from octavo.client.statistics.writers import LedgerWriterStatistics, LogWriterStatistics
from octavo.protocol.ids import BookieId
from octavo.protocol.light_dataclass import dataclass

type ConnectionState = Literal["idle", "connected", "busy", "down"]
"""``idle``: not connected, and no attempt has failed. ``busy``: connected, and it takes no further request until the
bookie has answered some. ``down``: the last attempt failed, or the connection was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionStatistics:
    """A client's connection to one bookie.

    Examples:
        >>> async with client.create_ledger() as ledger:
        ...     entry_id = await ledger.add(b"payload")
        ...     connection = client.statistics().bookies["b0"]
        >>> connection.state, connection.error, connection.quarantined_seconds
        ('connected', None, None)
    """

    state: ConnectionState
    requests_under_way: int
    """Requests without an answer."""
    error: str | None
    """Why there is no connection; None while there is one, and before the first attempt."""
    quarantined_seconds: float | None
    """For how long this client chooses the bookie for no ledger, unless it registers again; None if it may be
    chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatistics:
    """Statistics of a client: its connections, and everything that is open. Made by ``Client.statistics()``.

    The counts are those of ``Client.metrics()``.

    Examples:
        >>> async with client.create_log("orders") as log, log.lead() as writer:
        ...     position = await writer.add(b"payload")
        ...     statistics = client.statistics()
        >>> statistics.adds_acknowledged, [one.end for one in statistics.log_writers]
        (1, [1])
    """

    cluster_id: str
    is_closed: bool
    """Whether ``close()`` has been called."""
    metadata_uri: str
    is_metadata_answering: bool
    """Whether the metadata store answered when this client last renewed its lease. A client that holds no lock renews
    none; then it is true."""
    bookies: Mapping[BookieId, ConnectionStatistics]
    """The connections that were used, by bookie."""
    adds_acknowledged: int
    """Entries."""
    adds_failed: int
    """Entries."""
    adds_pending: int
    """Entries that were sent, and are neither acknowledged nor failed."""
    added_bytes: int
    """Payload bytes of the entries that were acknowledged."""
    entries_read: int
    speculative_reads: int
    ensemble_changes: Mapping[str, int]
    """Bookies that were replaced, by the reason."""
    reconnects: Mapping[str, int]
    """Attempts to connect that failed, and connections that were lost, by the reason."""
    ledger_writers: tuple[LedgerWriterStatistics, ...]
    """Those that are not closed."""
    ledger_readers: tuple[ReaderStatistics, ...]
    """Those that are not closed, also those that logs read with."""
    logs: tuple[LogStatistics, ...]
    """Handles that are not closed."""
    log_writers: tuple[LogWriterStatistics, ...]
    """Those that are not closed."""
