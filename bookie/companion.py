"""A companion: a task that runs inside a bookie, next to its own work. Repair's agent is one.

The bookie knows nothing of what a companion does. It hands it a :class:`CompanionView`, starts it after it has
registered, cancels it before anything else when it stops, and runs it again when it has failed: a companion never ends
the bookie.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping

import structlog
from octavo.bookie.copies.local_storage import LedgerCopies
from octavo.bookie.server.service import BookieService
from octavo.metadata import BookieRegistration, MetadataStore
from octavo.protocol.ids import BookieId

log = structlog.get_logger("octavo.bookie")

RESTART_SECONDS_FIRST = 1.0
RESTART_SECONDS_MAX = 60.0
"""Pause before a companion that failed is run again, doubled each time, with jitter."""


class CompanionView:
    """The view that a companion has of its bookie. Used from the bookie's event loop."""

    def __init__(
        self,
        registration: BookieRegistration,
        service: BookieService,
        copies: LedgerCopies,
        *,
        store: MetadataStore,
        rng: random.Random,
        wall_clock: Callable[[], float],
        free_bytes: Callable[[], int | None],
        announce: Callable[[], Awaitable[None]],
        check_metadata: Callable[[], Awaitable[object]],
    ) -> None:
        """``registration`` is the bookie's at its start; ``announce`` registers what has changed since;
        ``check_metadata`` raises :class:`MetadataError` while the metadata may be older than the bookies' data."""
        self.bookie_id: BookieId = registration.bookie_id
        self.cluster_id = service.identity.cluster_id
        self.boot_id = registration.boot_id
        self.address = registration.address
        self.rack = registration.rack
        self.store = store
        """The bookie's own handle: its leases and locks end with the bookie."""
        self.copies = copies
        self.rng = rng
        self.wall_clock = wall_clock
        """Seconds since 1970."""
        self._service = service
        self._free_bytes = free_bytes
        self._announce = announce
        self._check_metadata = check_metadata
        self._add_delay = service.mean_add_delay()

    @property
    def free_bytes(self) -> int | None:
        """Free space for entries, as the bookie announces it; None while it cannot be read."""
        return self._free_bytes()

    async def check_metadata(self) -> None:
        """Raises :class:`MetadataError` while the metadata may be older than what bookies have on their disks, by what
        garbage collection goes by (rules B5 and D5), and what the store raises."""
        await self._check_metadata()

    def owns_id(self) -> bool:
        """Whether the bookie's id is certainly its own (rule B10)."""
        return self._service.standing.may_deny()

    def take_add_delay_seconds(self) -> float:
        """Mean time that this bookie took for the adds of clients that it has answered since the last call; 0.0 when
        there were none. What repair copies in is no add."""
        return self._add_delay()

    @property
    def draining(self) -> bool:
        """Whether the bookie is registered as read-only although it takes adds: placement avoids it, and no add fails
        where there is no other bookie."""
        return self._service.avoid_placement

    async def set_draining(self, draining: bool) -> None:
        """Begin or end :attr:`draining`, and register accordingly. Not kept over restarts. Raises
        :class:`MetadataUnavailableError`: call it again then."""
        self._service.avoid_placement = draining
        await self._announce()

    def publish(self, facts: Mapping[str, str | int | float | bool]) -> None:
        """Show these facts in INFO beside the bookie's own, in place of those published before."""
        self._service.companion_facts = dict(facts)


type Companion = Callable[[CompanionView], Awaitable[None]]
"""Runs until it is cancelled. If it returns, it is done for good; if it raises, it is run again after a pause."""


class CompanionTask:
    """Runs a companion until :meth:`stop`."""

    def __init__(
        self, companion: Companion, view: CompanionView, *, restart_seconds: float = RESTART_SECONDS_FIRST
    ) -> None:
        """``restart_seconds``: the first pause before it is run again."""
        self._restart_seconds = restart_seconds
        self._companion = companion
        self._view = view
        self._task = asyncio.get_running_loop().create_task(self._run(), name="octavo-companion")
        self.restarts = 0

    async def stop(self) -> None:
        """Cancel it and wait until it has ended."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        delay = self._restart_seconds
        while True:
            try:
                await self._companion(self._view)
            except Exception:
                log.exception("companion failed: it is run again", restarts=self.restarts, pause_seconds=delay)
            else:
                return
            self.restarts += 1
            await asyncio.sleep(delay * self._view.rng.uniform(0.5, 1.0))
            delay = min(2 * delay, RESTART_SECONDS_MAX)
