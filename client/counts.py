"""The counts of a client: its adds, its reads, its troubles. Counted once for each frame or event.

One object for each client, which the pool of connections carries to everything that counts.
"""

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from octavo.metrics.clock import precise_seconds
from octavo.metrics.histogram import Histogram
from octavo.protocol.errors import OctavoError

REASON_LOST = "Disconnected"
"""Of a bookie that was replaced or is connected to again because its connection was lost, without an error of its
own."""


class ClientCounts:
    """See the module. Every attribute is a counter since the client was made."""

    __slots__ = (
        "add_seconds",
        "added_bytes",
        "adds_acknowledged",
        "adds_failed",
        "adds_pending",
        "clock_ahead_seconds",
        "cursor_stores_failed",
        "digest_mismatches",
        "ensemble_changes",
        "entries_read",
        "leads_lost",
        "locks_got_again",
        "reconnects",
        "recoveries",
        "speculative_reads",
    )

    def __init__(self) -> None:
        self.adds_acknowledged = 0
        self.adds_failed = 0
        self.adds_pending = 0
        """A gauge: adds that were sent and are neither acknowledged nor failed."""
        self.added_bytes = 0
        self.add_seconds = Histogram()
        self.ensemble_changes: Counter[str] = Counter()
        self.entries_read = 0
        self.speculative_reads = 0
        self.digest_mismatches = 0
        self.recoveries: Counter[str] = Counter({"closed": 0, "failed": 0})
        self.reconnects: Counter[str] = Counter()
        self.cursor_stores_failed = 0
        self.leads_lost: Counter[str] = Counter()
        self.locks_got_again = 0
        self.clock_ahead_seconds = 0.0
        """A gauge: by how much this client's clock was ahead of the metadata store's when both were read last."""

    def note_cursors_not_stored(self) -> None:
        """An attempt to store positions of cursors has failed."""
        self.cursor_stores_failed += 1

    def clocks_read(self, ahead_ms: int) -> None:
        """This client's clock was found to be ahead of the metadata store's by ``ahead_ms``."""
        self.clock_ahead_seconds = ahead_ms / 1000

    def snapshot(self, metadata_seconds: Mapping[str, Histogram]) -> dict[str, Any]:
        """Every metric of ``CLIENT_METRICS`` by name, as :meth:`octavo.Client.metrics` describes."""
        from octavo.metrics import table  # noqa: PLC0415 - most programs do not ask

        values: dict[table.Metric, Any] = {
            table.CLIENT_ADDS: {"acknowledged": self.adds_acknowledged, "failed": self.adds_failed},
            table.CLIENT_ADDED_BYTES: self.added_bytes,
            table.CLIENT_ADD_SECONDS: _as_json(self.add_seconds),
            table.CLIENT_WINDOW_ENTRIES: self.adds_pending,
            table.CLIENT_ENSEMBLE_CHANGES: dict(self.ensemble_changes),
            table.CLIENT_ENTRIES_READ: self.entries_read,
            table.CLIENT_SPECULATIVE_READS: self.speculative_reads,
            table.CLIENT_DIGEST_MISMATCHES: self.digest_mismatches,
            table.CLIENT_RECOVERIES: dict(self.recoveries),
            table.CLIENT_RECONNECTS: dict(self.reconnects),
            table.CLIENT_CURSOR_STORES_FAILED: self.cursor_stores_failed,
            table.CLIENT_LEADS_LOST: dict(self.leads_lost),
            table.CLIENT_LOCKS_GOT_AGAIN: self.locks_got_again,
            table.CLIENT_CLOCK_AHEAD_SECONDS: self.clock_ahead_seconds,
            table.CLIENT_METADATA_SECONDS: {op: _as_json(seconds) for op, seconds in metadata_seconds.items()},
        }
        return {metric.name: values[metric] for metrics in table.CLIENT_METRICS.values() for metric in metrics}


class AddCounts:
    """The adds of one writer in the counts of its client."""

    __slots__ = ("_counts", "_sent")

    def __init__(self, counts: ClientCounts) -> None:
        self._counts = counts
        self._sent: deque[tuple[int, float]] = deque()
        """Of each frame that is not acknowledged as a whole: its last id, and when it was pushed."""

    def pushed(self, entries: int, last: int) -> None:
        """A frame of this number of entries was sent; ``last`` is the id of its last one."""
        self._counts.adds_pending += entries
        self._sent.append((last, precise_seconds()))

    def acknowledged(self, first: int, last: int, payload_bytes: int) -> None:
        """These entries are acknowledged, and all below them."""
        counts, sent = self._counts, self._sent
        entries = last + 1 - first
        counts.adds_acknowledged += entries
        counts.adds_pending -= entries
        counts.added_bytes += payload_bytes
        now = precise_seconds()
        while sent and sent[0][0] <= last:
            counts.add_seconds.observe(now - sent.popleft()[1])

    def failed(self, entries: int) -> None:
        """This number of entries that were sent will not be acknowledged."""
        self._counts.adds_pending -= entries
        self._counts.adds_failed += entries


def reason_of(error: OctavoError | None) -> str:
    """A label for an error: its class without the suffix."""
    return REASON_LOST if error is None else type(error).__name__.removesuffix("Error")


def _as_json(histogram: Histogram) -> dict[str, Any]:
    return {"count": histogram.count, "sum": histogram.sum_seconds, "buckets": list(histogram.counts)}
