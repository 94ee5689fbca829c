"""The summary that the auditor stores for ``octavo repair status``: only while it tells anything (rule A4)."""

from collections.abc import Collection
from itertools import islice
from typing import Any, Final

from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version
from octavo.protocol.errors import MetadataConflictError
from octavo.protocol.ids import BookieId
from octavo.repair.audit.backoff import BlockedLedgers
from octavo.repair.audit.rounds import in_turns
from octavo.repair.base.census import Census
from octavo.repair.base.documents import BLOCKED_MAX, SUMMARY, BookieFigures, Summary, encode_summary
from octavo.repair.base.planning import BlockedClass

SECONDS_BETWEEN: Final = 5.0
"""Shortest time between two summaries that differ in their figures only."""

COUNT_SECONDS: Final = 60.0
"""Time for which the figures of bookies are used again: with a million ledgers they take a second to be counted."""

RATE_SECONDS: Final = 30.0
"""Time over which rates are averaged."""


class Progress:
    """The amounts that targets have copied, from their reports. Times are the loop's."""

    def __init__(self) -> None:
        self.entries = 0
        self.bytes = 0
        self._last: dict[BookieId, tuple[int, int]] = {}
        self._history: list[tuple[float, int, int]] = []

    def copied(self, target: BookieId, entries: int, size_bytes: int, now: float) -> None:
        """A report says so, counted since the target's process began."""
        before_entries, before_bytes = self._last.get(target, (0, 0))
        if entries < before_entries or size_bytes < before_bytes:
            before_entries = before_bytes = 0  # the process has been started again
        self._last[target] = (entries, size_bytes)
        self.entries += entries - before_entries
        self.bytes += size_bytes - before_bytes
        self._history.append((now, size_bytes - before_bytes, 0))

    def ended(self, jobs: int, now: float) -> None:
        """``jobs`` jobs have ended."""
        self._history.append((now, 0, jobs))

    def rates(self, now: float) -> tuple[float, float]:
        """Bytes and ledgers per second, lately."""
        self._history = [one for one in self._history if one[0] > now - RATE_SECONDS]
        if not self._history:
            return 0.0, 0.0
        seconds = max(now - self._history[0][0], 1.0)
        return sum(one[1] for one in self._history) / seconds, sum(one[2] for one in self._history) / seconds


class SummaryWriter:
    """Stores the summary of one auditor."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._version: Version | None = None
        self._known = False
        self._told: Any = None
        self._figures: Any = None
        self._written_at = float("-inf")
        self._waiting_since_ms: int | None = None
        self._bookies: dict[BookieId, BookieFigures] = {}
        self._counted: Any = None
        self._counted_at = float("-inf")

    @property
    def waiting_since_ms(self) -> int | None:
        """Since when ledgers have been waiting without a break, in milliseconds since 1970; None while none waits."""
        return self._waiting_since_ms

    async def write(
        self,
        census: Census,
        blocked: BlockedLedgers,
        progress: Progress,
        *,
        queued: int,
        copying: int,
        unavailable: Collection[BookieId],
        now: float,
        now_ms: int,
    ) -> None:
        """Store the summary if it differs from what is stored. A quiet cluster that was quiet before costs nothing."""
        counts = {kind.value: blocked.count(kind) for kind in BlockedClass}
        quiet = not (queued or copying or len(blocked))
        told = (quiet, counts, tuple(sorted(unavailable)))
        figures = (queued, copying, progress.entries, progress.bytes)
        if not self._known:
            found = await self._store.read_document(SUMMARY)
            self._version = None if found is None else found.version
            self._known = True
            if found is None and quiet and not unavailable:
                self._told, self._figures = told, figures
        if told == self._told and (figures == self._figures or now < self._written_at + SECONDS_BETWEEN):
            return
        if quiet:
            self._waiting_since_ms = None
        elif self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        if (quiet, unavailable) != self._counted or now >= self._counted_at + COUNT_SECONDS:
            numbers = await in_turns(census.counts(unavailable))
            self._bookies = {name: BookieFigures(*pair) for name, pair in numbers.items()}
            self._counted, self._counted_at = (quiet, unavailable), now
        bytes_per_second, ledgers_per_second = progress.rates(now)
        summary = Summary(
            round_at_ms=now_ms,
            ledgers=census.ledgers,
            queued=queued,
            copying=copying,
            blocked_counts=counts,
            bookies=self._bookies,
            entries_copied=progress.entries,
            bytes_copied=progress.bytes,
            bytes_per_second=bytes_per_second,
            ledgers_per_second=ledgers_per_second,
            queued_since_ms=self._waiting_since_ms,
            blocked=tuple(islice(blocked, BLOCKED_MAX)),
        )
        try:
            self._version = await self._store.put_document(SUMMARY, encode_summary(summary), self._version)
        except MetadataConflictError:
            self._known = False
            raise
        self._told, self._figures, self._written_at = told, figures, now
