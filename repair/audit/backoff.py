"""Ledgers that could not be repaired, and when each is tried again. Pure (rule A10)."""

from collections.abc import Iterator
from dataclasses import dataclass

from octavo.protocol.ids import LedgerId
from octavo.repair.base.planning import Blocked, BlockedClass


@dataclass(slots=True)
class _Entry:
    blocked: Blocked
    again_at: float
    pause_seconds: float


class BlockedLedgers:
    """The blocked ledgers of an auditor. Each is tried again after a pause that doubles from ``retry_seconds_min`` to
    ``retry_seconds_max``, and at once when a bookie registers: what cannot be done is not tried in a circle, and what
    waits for a bookie does not wait longer than the bookie.

    Pauses of open ledgers go from ``retry_seconds_open`` to ``retry_seconds_min``: their writers replace a bookie
    within seconds, and then there is work to do."""

    def __init__(self, *, retry_seconds_open: float, retry_seconds_min: float, retry_seconds_max: float) -> None:
        self._open, self._min, self._max = retry_seconds_open, retry_seconds_min, retry_seconds_max
        self._entries: dict[LedgerId, _Entry] = {}

    def __iter__(self) -> Iterator[Blocked]:
        for _, entry in sorted(self._entries.items()):
            yield entry.blocked

    def __contains__(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, blocked: Blocked, now: float) -> None:
        """Something could not be done."""
        known = self._entries.get(blocked.ledger_id)
        low, high = (self._open, self._min) if blocked.kind is BlockedClass.OPEN else (self._min, self._max)
        pause = low if known is None else min(max(2 * known.pause_seconds, low), high)
        self._entries[blocked.ledger_id] = _Entry(blocked, now + pause, pause)

    def clear(self, ledger_id: LedgerId) -> None:
        """The ledger is whole, or has been deleted."""
        self._entries.pop(ledger_id, None)

    def rests(self, ledger_id: LedgerId, now: float) -> bool:
        """Whether the ledger is blocked and its pause is not over."""
        entry = self._entries.get(ledger_id)
        return entry is not None and entry.again_at > now

    def due(self, now: float) -> list[LedgerId]:
        """Blocked ledgers whose pause is over."""
        return sorted(one for one, entry in self._entries.items() if entry.again_at <= now)

    def next_at(self) -> float | None:
        """When the next pause ends; None when nothing is blocked."""
        return min((entry.again_at for entry in self._entries.values()), default=None)

    def wake(self, now: float) -> None:
        """A bookie has registered: try everything again now."""
        for entry in self._entries.values():
            entry.again_at = now
            entry.pause_seconds = self._min

    def count(self, kind: BlockedClass) -> int:
        """How many ledgers are blocked for this reason."""
        return sum(1 for entry in self._entries.values() if entry.blocked.kind is kind)
