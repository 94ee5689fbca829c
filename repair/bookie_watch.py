"""What the auditor sees of the bookies: observes them, probes missing ones, keeps the document of their conditions.

The decisions are in :mod:`octavo.repair.bookie_states`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.registration import BookieRegistration
from octavo.metadata.repair_states import DOCUMENT, Condition, RepairStates, decode_states, encode_states
from octavo.metadata.store import MetadataStore, Versioned
from octavo.protocol.errors import MetadataConflictError
from octavo.protocol.ids import BookieId
from octavo.repair.asking import facts_of, serves
from octavo.repair.bookie_states import Observed, Step, declare_lost, observe
from octavo.repair.local import LocalBookie
from octavo.repair.settings import RepairSettings

log = structlog.get_logger("octavo.repair")

PROBES_AT_ONCE: Final = 64

ATTEMPTS_MAX: Final = 10
"""Conflicts over the document in one turn: operators change it too, but not in a loop."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at the bookies has brought."""

    returned: frozenset[BookieId]
    """Bookies that have registered since the last look, or again."""


class BookieWatch:
    """See the module."""

    document: Final = DOCUMENT

    def __init__(self, bookie: LocalBookie, pool: ConnectionPool, settings: RepairSettings) -> None:
        self._bookie = bookie
        self._store: MetadataStore = bookie.store
        self._pool = pool
        self._settings = settings
        self._boots: dict[BookieId, str] | None = None
        self._doubt: dict[BookieId, tuple[str, bool]] = {}
        """Boot id and whether the bookie is in doubt, as it said last."""
        self._asked_at: dict[BookieId, float] = {}
        self.states = RepairStates()
        self.registrations: Mapping[BookieId, BookieRegistration] = {}
        self.racks: dict[BookieId, str] = {}
        """Racks of all bookies seen so far, also of those that have gone."""

    async def observe(self) -> Seen:
        """Look at the bookies and write what has changed. Raises :class:`MetadataUnavailableError`."""
        for _ in range(ATTEMPTS_MAX):
            # Registrations after cookies: a bookie that registers in between is found registered, not missing.
            known = {cookie.value.bookie_id for cookie in await self._store.list_cookies()}
            self.registrations = registered = await self._store.list_bookies()
            stored = await self._store.read_document(DOCUMENT)
            before = decode_states(None if stored is None else stored.value)
            self.racks.update((name, one.rack) for name, one in registered.items())
            in_doubt, silent = await self._ask_doubt(before)
            observed = Observed(frozenset(registered), frozenset(known | registered.keys()), in_doubt, silent)
            now_ms = int(self._bookie.wall_clock() * 1000)
            step = observe(before, observed, now_ms=now_ms, lost_ms=int(self._settings.lost_seconds * 1000))
            states = await self._probed(step, observed, now_ms)
            if await self._write(states, before, stored):
                self.states = states
                return self._seen()
        raise MetadataConflictError(f"document {DOCUMENT} changed {ATTEMPTS_MAX} times while the auditor changed it")

    def next_at(self, now: float, now_ms: int) -> float | None:
        """When a condition may change although nothing else happens, as the loop's time; None: it will not."""
        moments = []
        for entry in self.states.bookies.values():
            if entry.condition is Condition.MISSING:
                late_at = entry.since_ms + int(self._settings.lost_seconds * 1000)
                moments.append(max(late_at - now_ms, int(self._settings.audit_seconds * 100)) / 1000)
            elif entry.until_ms is not None:
                moments.append(max(entry.until_ms - now_ms, 0) / 1000)
            elif entry.condition is Condition.DOUBTFUL:
                moments.append(self._settings.audit_seconds / 10)
        return now + min(moments) if moments else None

    async def _probed(self, step: Step, observed: Observed, now_ms: int) -> RepairStates:
        if not step.to_probe:
            return step.states
        answered = await self._ask_each(step.to_probe, self._serves)
        silent = [name for name in step.to_probe if not answered[name]]
        lost = declare_lost(step.states, silent, observed, now_ms=now_ms)
        for name in sorted(lost.in_condition(Condition.LOST) - step.states.in_condition(Condition.LOST)):
            log.warning("bookie is lost: its copies are made again on other bookies", bookie=name)
        return lost

    async def _write(self, states: RepairStates, before: RepairStates, stored: Versioned[bytes] | None) -> bool:
        if states == before:
            return True
        if states.brake != before.brake:
            log.warning("half of the bookies are missing: none is declared lost" if states.brake else "brake released")
        try:
            await self._store.put_document(DOCUMENT, encode_states(states), None if stored is None else stored.version)
        except MetadataConflictError:
            return False
        return True

    def _seen(self) -> Seen:
        boots = {name: one.boot_id for name, one in self.registrations.items()}
        before, self._boots = self._boots, boots
        if before is None:
            return Seen(frozenset())
        return Seen(frozenset(name for name, boot_id in boots.items() if before.get(name) != boot_id))

    # --- questions --------------------------------------------------------------------------------------------------

    async def _ask_doubt(self, states: RepairStates) -> tuple[frozenset[BookieId], frozenset[BookieId]]:
        """The bookies in doubt, and those that did not say. A bookie is asked when it has started again, while it is in
        doubt, and otherwise once per round: doubt may begin in a running bookie."""
        now = asyncio.get_running_loop().time()
        wanted = []
        for name, one in self.registrations.items():
            boot_id, in_doubt = self._doubt.get(name, ("", False))
            often = self._settings.audit_seconds / (10 if in_doubt or name in states.bookies else 1)
            if boot_id != one.boot_id or now - self._asked_at.get(name, 0.0) >= often:
                wanted.append(name)
        answers = await self._ask_each(wanted, self._in_doubt)
        for name, answer in answers.items():
            if answer is not None:
                self._asked_at[name] = now
                self._doubt[name] = (self.registrations[name].boot_id, answer)
        silent = frozenset(name for name in wanted if answers[name] is None)
        in_doubt_now = frozenset(
            name for name in self.registrations if name not in silent and self._doubt.get(name, ("", False))[1]
        )
        return in_doubt_now, silent

    async def _ask_each[T](
        self, names: Iterable[BookieId], ask: Callable[[BookieId], Awaitable[T]]
    ) -> dict[BookieId, T]:
        permits = asyncio.Semaphore(PROBES_AT_ONCE)

        async def one(name: BookieId) -> tuple[BookieId, T]:
            async with permits:
                return name, await ask(name)

        return dict(await asyncio.gather(*(one(name) for name in names)))

    async def _in_doubt(self, name: BookieId) -> bool | None:
        facts = await facts_of(self._pool, name)
        return None if facts is None else bool(facts.get("in_doubt", False))

    async def _serves(self, name: BookieId) -> bool:
        return await serves(self._pool, name)
