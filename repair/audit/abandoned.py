"""Ledgers whose writer has gone: recovered before one more loss would block that for ever (rule O3).

Fencing a ledger ends its writer, so a ledger is not recovered because it is idle. All of this must hold: a member of
the last fragment is leaving; the metadata have not changed for ``open_seconds``, although a living writer replaces
such a member within seconds (rule O2); a spare bookie was there for it to do so; and no more than Qw - Qa + 1 members
of some write set are left, so that one more loss would make the end of the ledger unknowable.

A stream is put at rest: its term gets its end, and any client may open the next one. Of its metadata only the term,
its state and the last fragment count: truncation, paging out and repair of older fragments are no work of a writer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from octavo.client.choose.placement import sort_out
from octavo.metadata.ledger.stored import StoredLedger
from octavo.protocol.ids import BookieId, LedgerId
from octavo.repair.audit.bookie_watch import BookieWatch
from octavo.repair.base.planning import is_at_margin
from octavo.repair.base.settings import RepairSettings

log = structlog.get_logger("octavo.repair")

RECOVERIES_AT_ONCE: Final = 4

SEEN_MAX: Final = 100_000
"""Ledgers whose idleness is remembered; others are remembered when these are closed."""


class AbandonedLedgers:
    """See the module. ``recover`` returns whether the ledger is CLOSED now, or the stream at rest; None: nothing is
    recovered."""

    def __init__(
        self, settings: RepairSettings, watch: BookieWatch, recover: Callable[[StoredLedger], Awaitable[bool]] | None
    ) -> None:
        self._settings = settings
        self._watch = watch
        self._recover = recover if settings.recover_abandoned else None
        self._since: dict[LedgerId, tuple[StoredLedger, float]] = {}
        self._tasks: dict[LedgerId, asyncio.Task[None]] = {}
        self._closed: list[LedgerId] = []

    def consider(self, metadata: StoredLedger, now: float) -> None:
        """A ledger that is not CLOSED has a leaving bookie in its last fragment. Recover it if the rule allows."""
        ledger_id = metadata.ledger_id
        known = self._since.get(ledger_id)
        if known is None or known[0].written_part != metadata.written_part or not self._spare_is_there(metadata):
            if known is not None or len(self._since) < SEEN_MAX:
                self._since[ledger_id] = (metadata, now)
            return
        if (
            self._recover is None
            or now - known[1] < self._settings.open_seconds
            or ledger_id in self._tasks
            or len(self._tasks) >= RECOVERIES_AT_ONCE
            or not is_at_margin(metadata, self._unavailable())
        ):
            return
        self._tasks[ledger_id] = asyncio.get_running_loop().create_task(self._run(metadata, self._recover))

    def take_closed(self) -> list[LedgerId]:
        """Ledgers that have been recovered since the last call."""
        closed, self._closed = self._closed, []
        return closed

    async def _run(self, metadata: StoredLedger, recover: Callable[[StoredLedger], Awaitable[bool]]) -> None:
        ledger_id = metadata.ledger_id
        log.warning("ledger is abandoned and at its margin: it is recovered", ledger=int(ledger_id))
        try:
            if await recover(metadata):
                self._closed.append(ledger_id)
                self._since.pop(ledger_id, None)
        finally:
            del self._tasks[ledger_id]

    def _unavailable(self) -> frozenset[BookieId]:
        named = frozenset(name for known, _ in self._since.values() for name in known.last_fragment.bookies)
        return (named - self._watch.registrations.keys()) | self._watch.states.leaving

    def _spare_is_there(self, metadata: StoredLedger) -> bool:
        spares = sort_out(
            self._watch.registrations.values(), self._watch.states.bookies.keys(),
            members=metadata.last_fragment.bookies,
        )  # fmt: skip
        return bool(spares.usable)
