"""The auditor: one bookie of the cluster, elected by a lock, that finds entries with too few
copies and plans which bookies copy them.

It never copies and never changes the metadata of a ledger. All that it writes are hints
(:mod:`octavo.repair.base.documents`), by compare-and-set: an auditor that was paused and wakes after its lock has
passed to another one loses the next compare-and-set and steps down, and what it planned harms nothing (rule A4). In a
healthy cluster it writes nothing.

A turn has five steps: observe the bookies, take a census when a round is due, take in the reports of targets, plan, and
write the summary. Between turns it waits for a change of the registrations, of the conditions or of the operators'
wishes, for the next report, or for the next moment at which anything is due.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.cluster.repair_states import Condition, RepairStates
from octavo.metadata.ledger.stored import StoredLedger
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.errors import (
    ClientClosedError,
    MetadataConflictError,
    MetadataError,
    MetadataUnavailableError,
    OctavoError,
)
from octavo.protocol.ids import BookieId
from octavo.repair.audit.bookie_watch import BookieWatch
from octavo.repair.audit.dispatcher import Dispatcher
from octavo.repair.audit.rounds import Rounds
from octavo.repair.base.balance_document import DOCUMENT as BALANCE
from octavo.repair.base.documents import AUDITOR_LOCK, CHECKS
from octavo.repair.base.local_bookie import LocalBookie
from octavo.repair.base.planning import BlockedClass
from octavo.repair.base.settings import RepairSettings

log = structlog.get_logger("octavo.repair")

PAUSE_SECONDS: Final = 1.0
"""Pause after the metadata store has not answered, and before this bookie stands for election again."""

type Abandoned = Callable[[StoredLedger], Awaitable[bool]]
"""Recovers an abandoned ledger (rule O3); returns whether it is CLOSED now, or, if it is a stream, at rest."""


type Show = Callable[[Mapping[str, str | int | float | bool]], None]
"""Adds facts to those that the bookie shows."""


def figures(
    states: RepairStates,
    counts: Mapping[str, int],
    *,
    owing: int = 0,
    waiting_since_ms: int | None = None,
    clock_ahead_ms: int = 0,
    moves_under_way: int = 0,
    deviation: float = 0.0,
) -> dict[str, int | float]:
    """The facts from which the metrics of the cluster are made: all 0 for a bookie that is not the auditor. ``owing``:
    ledgers and streams with debts. ``clock_ahead_ms``: by how much the auditor's clock is ahead of the store's.
    ``deviation``: of the bookie furthest from its share (rule A15)."""
    conditions = {one.value: len(states.in_condition(one)) for one in Condition}
    ledgers = {name: counts.get(name, 0) for name in ("queued", "copying", *(kind.value for kind in BlockedClass))}
    suspended = {"brake": states.brake and not states.brake_overridden, "paused": states.paused}
    return {
        **{f"repair_bookies_{name}": number for name, number in conditions.items()},
        **{f"repair_ledgers_{name}": number for name, number in ledgers.items()},
        **{f"repair_suspended_{name}": int(is_so) for name, is_so in suspended.items()},
        "repair_ledgers_owing": owing,
        "repair_moves_under_way": moves_under_way,
        "repair_uneven_ratio": round(deviation, 4),
        "repair_waiting_since_ms": waiting_since_ms or 0,
        "repair_clock_ahead_ms": clock_ahead_ms,
    }


class Auditor:
    """Stands for election, and audits while elected. ``new_audit`` makes the work of one election."""

    def __init__(self, bookie: LocalBookie, new_audit: Callable[[], "Audit"], show: Show) -> None:
        self._name = str(bookie.bookie_id)
        self._store: MetadataStore = bookie.store
        self._new_audit = new_audit
        self._show = show

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            try:
                await self._stand_for_election()
            except (MetadataUnavailableError, MetadataConflictError) as error:
                log.warning("this bookie is not the auditor any more", reason=error.message)
            except MetadataError as error:
                log.warning("the auditor cannot understand a document of repair", reason=error.message)
            except OctavoError as error:
                log.warning("the auditor has failed", reason=error.message)
            self._show({"repair_auditor": False, **figures(RepairStates(), {})})
            await asyncio.sleep(PAUSE_SECONDS)

    async def _stand_for_election(self) -> None:
        lease = await self._store.lock(AUDITOR_LOCK, self._name)
        log.info("this bookie is the auditor")
        self._show({"repair_auditor": True})
        try:
            audit = asyncio.ensure_future(self._new_audit().run())
            lost = asyncio.ensure_future(lease.wait_lost())
            try:
                await asyncio.wait([audit, lost], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (audit, lost):
                    task.cancel()
                await asyncio.gather(audit, lost, return_exceptions=True)
            if audit.done() and not audit.cancelled():
                audit.result()
        finally:
            with contextlib.suppress(MetadataUnavailableError, ClientClosedError):
                await lease.release()


class Audit:
    """The work of one elected auditor, from its election on. ``recover``: None leaves abandoned ledgers alone."""

    def __init__(
        self,
        bookie: LocalBookie,
        pool: ConnectionPool,
        settings: RepairSettings,
        *,
        recover: Abandoned | None,
        show: Show,
    ) -> None:
        self._bookie = bookie
        self._store: MetadataStore = bookie.store
        self._settings = settings
        self._show = show
        self._woken = asyncio.Event()
        self._leaving: frozenset[BookieId] = frozenset()
        self.watch = BookieWatch(bookie, pool, settings)
        self.rounds = Rounds(bookie, pool, settings)
        self.dispatcher = Dispatcher(bookie, pool, settings, self.watch, self.rounds, recover=recover)

    async def run(self) -> None:
        """Audit until cancelled. Raises :class:`MetadataConflictError` when another auditor is at work."""
        loop = asyncio.get_running_loop()
        watchers = [
            loop.create_task(self._wake_at_changes(watch))
            for watch in (
                self._store.watch_bookies, lambda: self._store.watch_document(CHECKS),
                lambda: self._store.watch_document(self.watch.document),
                lambda: self._store.watch_document(BALANCE),
            )
        ]  # fmt: skip
        try:
            await self.dispatcher.adopt_plans(loop.time())
            while True:
                self._woken.clear()
                try:
                    await self._turn()
                except MetadataUnavailableError as error:
                    log.warning("the audit waits for the metadata store", reason=error.message)
                    await asyncio.sleep(PAUSE_SECONDS)
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._seconds_to_wait(loop.time())):
                        await self._woken.wait()
        finally:
            for task in watchers:
                task.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
            await self.dispatcher.balancer.close()

    async def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        seen = await self.watch.observe()
        if seen.returned:
            self.dispatcher.on_returned(seen.returned, loop.time())
        if self.watch.states.leaving - self._leaving:
            self.rounds.next_round_at = 0.0  # ledgers created since the last round name the bookie, too
        self._leaving = self.watch.states.leaving
        if self.rounds.round_is_due(loop.time()):
            await self.rounds.take_round(self.watch.states, self.dispatcher.outstanding_ledgers())
            await self.dispatcher.on_round()
            await self.watch.compare_clocks()
            self._show({"repair_round_at_ms": self.now_ms(), "repair_ledgers": self.rounds.census.ledgers})
        await self.dispatcher.take_reports(loop.time())
        await self.dispatcher.plan(loop.time())
        await self.dispatcher.write_summary(self.now_ms())
        since_ms = self.dispatcher.waiting_since_ms
        owing = len(self.rounds.census.owing)
        self._show(
            figures(
                self.watch.states,
                self.dispatcher.counts(),
                owing=owing,
                waiting_since_ms=since_ms,
                clock_ahead_ms=self.watch.clock_ahead_ms,
                moves_under_way=self.dispatcher.balancer.moves_under_way,
                deviation=self.dispatcher.balancer.deviation,
            )
        )

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return int(self._bookie.wall_clock() * 1000)

    def _seconds_to_wait(self, now: float) -> float:
        if self.dispatcher.busy:
            return self._settings.poll_seconds
        moments = [self.rounds.next_round_at, self.dispatcher.next_at(), self.watch.next_at(now)]
        # At least a moment: what is due and cannot be done yet must not keep the loop busy.
        return max(min(moment for moment in moments if moment is not None) - now, self._settings.poll_seconds / 10)

    async def _wake_at_changes(self, watch: Callable[[], Any]) -> None:
        while True:
            try:
                async with watch() as changes:
                    async for _ in changes:
                        self._woken.set()
            except OctavoError as error:
                log.debug("the auditor watches again", reason=error.message)
            await asyncio.sleep(PAUSE_SECONDS)
