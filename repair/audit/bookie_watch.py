"""Watches the bookies for the auditor: observes them, probes missing ones, keeps the document of their conditions.

The decisions are in :mod:`octavo.repair.audit.bookie_states`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

import structlog
from octavo.client.choose.locations import Locations
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.clocks.boot_time import BootClock, boot_clock_of
from octavo.metadata.clocks.handed_over import HandedOver
from octavo.metadata.clocks.proven_time import SKEW_MS, Moment, ProvenTime
from octavo.metadata.cluster.registration import BookieRegistration
from octavo.metadata.cluster.repair_states import DOCUMENT, Condition, RepairStates, decode_states, encode_states
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version, Versioned
from octavo.protocol.errors import MetadataConflictError, MetadataError
from octavo.protocol.ids import BookieId
from octavo.protocol.light_dataclass import dataclass
from octavo.repair.audit.bookie_states import Observed, Step, declare_lost, observe
from octavo.repair.base.ask_bookie import facts_of, serves
from octavo.repair.base.local_bookie import LocalBookie
from octavo.repair.base.settings import RepairSettings
from octavo.repair.base.waits import DOCUMENT as CLOCK
from octavo.repair.base.waits import NOTHING_COUNTED, Waits, decode_waits, is_counted

log = structlog.get_logger("octavo.repair")

PROBES_AT_ONCE: Final = 64

ATTEMPTS_MAX: Final = 10
"""Conflicts over the document in one turn: operators change it too, but not in a loop."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of a look at the bookies."""

    returned: frozenset[BookieId]
    """Bookies that have registered since the last look, or again."""


class BookieWatch:
    """See the module."""

    document: Final = DOCUMENT

    def __init__(
        self,
        bookie: LocalBookie,
        pool: ConnectionPool,
        settings: RepairSettings,
        *,
        boot_clock: BootClock | None = None,
    ) -> None:
        """``boot_clock``: how long this host has been running."""
        self._bookie = bookie
        self._store: MetadataStore = bookie.store
        self._pool = pool
        self._settings = settings
        self._boots: dict[BookieId, str] | None = None
        self._doubt: dict[BookieId, tuple[str, bool]] = {}
        """Boot id and whether the bookie is in doubt, as it said last."""
        self._asked_at: dict[BookieId, float] = {}
        self._boot_clock = boot_clock or boot_clock_of(asyncio.get_running_loop(), bookie.rng)
        self._waits: Waits | None = None
        """How long bookies have been missing or held; None before any was."""
        self._stored: Waits | None = None
        """The same as it is stored, at :attr:`_version`."""
        self._version: Version | None = None
        self._handed_over = HandedOver()
        self.clock_ahead_ms = 0
        """By how much the clock of this host was ahead of the metadata store's when they were compared."""
        self.states = RepairStates()
        self.registrations: Mapping[BookieId, BookieRegistration] = {}
        self.locations = Locations()
        """Racks and hosts of all bookies seen so far, gone ones included."""

    async def observe(self) -> Seen:
        """Look at the bookies and write what has changed. Raises :class:`MetadataUnavailableError`."""
        for _ in range(ATTEMPTS_MAX):
            # Registrations after cookies: a bookie that registers in between is found registered, not missing.
            known = {cookie.value.bookie_id for cookie in await self._store.list_cookies()}
            self.registrations = registered = await self._store.list_bookies()
            stored = await self._store.read_document(DOCUMENT)
            before = decode_states(None if stored is None else stored.value)
            self.locations.note(registered.values())
            in_doubt, silent = await self._ask_doubt(before)
            observed = Observed(frozenset(registered), frozenset(known | registered.keys()), in_doubt, silent)
            now_ms = int(self._bookie.wall_clock() * 1000)
            counted = await self._count(before, observed)
            waits = NOTHING_COUNTED if counted is None else counted.of(before)
            step = observe(before, observed, waits=waits, now_ms=now_ms, lost_ms=self._lost_ms)
            states = await self._probed(step, observed, now_ms)
            if await self._write(states, before, stored):
                self.states = states
                if counted is not None:
                    await self._note(waits.of(states))
                return self._seen()
        raise MetadataConflictError(f"document {DOCUMENT} changed {ATTEMPTS_MAX} times while the auditor changed it")

    def next_at(self, now: float) -> float | None:
        """When a condition may change although nothing else happens, as the loop's time; None: it will not."""
        moments = []
        often = self._settings.audit_seconds / 10
        for name, entry in self.states.bookies.items():
            elapsed_ms = 0 if self._waits is None else self._waits.elapsed_ms(name, entry)
            if entry.condition is Condition.MISSING:
                moments.append(max((self._lost_ms - elapsed_ms) / 1000, often))
            elif entry.until_ms is not None:
                moments.append(max((entry.until_ms - entry.since_ms - elapsed_ms) / 1000, 0))
            elif entry.condition is Condition.DOUBTFUL:
                moments.append(often)
        return now + min(moments) if moments else None

    # --- clocks -----------------------------------------------------------------------------------------------------

    @property
    def _lost_ms(self) -> int:
        return int(self._settings.lost_seconds * 1000)

    async def compare_clocks(self) -> Moment:
        """Read the clocks, and note by how much this one is ahead (rule M5)."""
        now = Moment(int(self._bookie.wall_clock() * 1000), await self._store.time_ms(), self._boot_clock())
        if not now.clocks_agree and abs(self.clock_ahead_ms) <= SKEW_MS:
            log.warning(
                "the clock of this host and that of the metadata store disagree: holds and grace times end by the "
                "slowest clock",
                ahead_seconds=now.ahead_ms / 1000,
                remedy="docs/runbooks/clocks-disagree.md",
            )
        self.clock_ahead_ms = now.ahead_ms
        return now

    async def _count(self, states: RepairStates, observed: Observed) -> Waits | None:
        """The waits as counted by now. None while all bookies are there: then nothing is asked, and nothing noted
        (rule A4)."""
        if not any(map(is_counted, states.bookies.values())) and observed.known <= observed.registered:
            return None
        read_before_ms = self._handed_over.reads(self._boot_clock().ms)
        found = await self._store.read_document(CLOCK)
        version = None if found is None else found.version
        if self._waits is None or self._stored is None or version != self._version:
            self._version = version
            self._stored = self._waits = _decoded(None if found is None else found.value)
            self._handed_over.found(read_before_ms)
        now = await self.compare_clocks()
        before = self._waits
        if before is None:
            self._waits = waits = Waits(ProvenTime(now))
        else:
            at_most_ms = self._handed_over.at_most_ms(before.time.ms, now.boot.ms)
            self._waits = waits = before.advanced(now, at_most_ms=at_most_ms)
        self._handed_over.counted(waits.time.ms, now.boot.ms)
        return waits

    async def _note(self, waits: Waits) -> None:
        """Store the count if that is worth a write."""
        self._waits = waits
        if waits.begun if self._stored is None else waits.is_worth_writing(self._stored, self._lost_ms):
            self._version = await self._store.put_document(CLOCK, waits.encode(), self._version)
            self._stored = waits

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


def _decoded(value: bytes | None) -> Waits | None:
    """The count so far; None if that is nothing, or cannot be understood: then it is counted anew."""
    if value is None:
        return None
    try:
        return decode_waits(value)
    except MetadataError as error:
        log.warning("how long bookies have been missing or held is counted anew", reason=error.message)
        return None
