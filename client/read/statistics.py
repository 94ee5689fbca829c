"""Makes the statistics of a reader, when they are asked for."""

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING

from octavo.client.read.follow import LedgerTail
from octavo.client.read.ledger_view import LedgerView
from octavo.client.read.range_read import RangeRead, ReplicaReader

if TYPE_CHECKING:
    from octavo.client.statistics.readers import ReaderStatistics


class Waits:
    """The reads that callers wait for, and how often a reader has asked again."""

    def __init__(self) -> None:
        self.since: dict[RangeRead, float] = {}
        """Since when a caller has waited for what each of these reads was begun for, on the loop's clock."""
        self.retries = 0


def reader_statistics(
    view: LedgerView, replicas: ReplicaReader, tail: LedgerTail, waits: Waits, *, is_closed: bool
) -> "ReaderStatistics":
    """The statistics of the reader with these parts."""
    from octavo.client.statistics.readers import ReaderStatistics  # noqa: PLC0415 - short commands do not ask

    since = min(waits.since.values(), default=None)
    return ReaderStatistics(
        ledger_id=view.term.ledger_id,
        is_closed=is_closed,
        is_ledger_closed=view.closed,
        last_add_confirmed=view.last_add_confirmed,
        entries_read=replicas.entries_by_bookie.total(),
        entries_by_bookie=MappingProxyType(dict(replicas.entries_by_bookie)),
        requests_under_way=replicas.requests_under_way,
        waiting_seconds=None if since is None else asyncio.get_running_loop().time() - since,
        waiting_for_more=tail.waiting,
        retries=waits.retries,
        speculative_reads=replicas.speculative_reads,
    )
