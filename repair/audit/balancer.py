"""The auditor's part in a balance: looks at all ledgers, has moves planned, and keeps the document of the balance.

What moves is decided in :mod:`octavo.repair.base.balance`. Here is when (rule A14): while a balance is wanted, nothing
is to be repaired, repair is neither paused nor braked, and nothing says that the metadata may be older than the data.
When that ends, the moves that are under way are taken from their targets, and begin again later: what has been copied
by then is not copied twice.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final

import structlog
from octavo.metadata.cluster.registration import BookieState
from octavo.metadata.cluster.repair_states import Condition
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version
from octavo.protocol.errors import MetadataConflictError, MetadataError, MetadataUnavailableError, NoSuchLedgerError
from octavo.protocol.ids import BookieId, LedgerId
from octavo.repair.audit.bookie_watch import BookieWatch
from octavo.repair.base.balance import TOLERANCE, Move, ensembles_of
from octavo.repair.base.balance_document import (
    DOCUMENT,
    AskedBy,
    BalanceState,
    BookieFill,
    Phase,
    decode_balance,
    encode_balance,
)
from octavo.repair.base.balance_survey import Survey, may_move, parts_read, survey
from octavo.repair.base.local_bookie import LocalBookie
from octavo.repair.base.planning import Blocked, Job, Planned, Why
from octavo.repair.base.settings import RepairSettings

log = structlog.get_logger("octavo.repair")

MOVES_AT_ONCE: Final = 16
"""Ledgers that are moved at a time in the whole cluster."""

MOVES_OF_TARGET: Final = 4
"""Ledgers that one target takes over at a time: it copies them beside the repairs and adds that it has."""

FAILURES_OF_TARGET_MAX: Final = 3
"""Moves onto one bookie that fail before it gets no further ones in the same balance."""

QUESTIONS_MAX: Final = 5
"""How often a bookie is asked that does not answer, or says nothing of repair: one that was started a moment ago
does so soon."""

SAYS_REPAIR: Final = "repair_entries_copied"
"""A fact that every bookie shows that takes part in repair."""

NOTE_SECONDS: Final = 5.0
"""Shortest time between two notes of the progress."""

BEGIN_DEVIATION: Final = 2 * TOLERANCE
"""How far a bookie must be from its share before the auditor begins a balance by itself: farther than where a balance
ends, so that none begins again at once (rule A15)."""


type Ask = Callable[[BookieId], Awaitable[Mapping[str, Any] | None]]
"""Asks a bookie for the facts that it shows; None: it does not answer."""


class Balancer:
    """See the module."""

    def __init__(self, bookie: LocalBookie, ask: Ask, settings: RepairSettings, watch: BookieWatch) -> None:
        self._store: MetadataStore = bookie.store
        self._check_metadata = bookie.check_metadata
        self._wall_clock = bookie.wall_clock
        self._ask = ask
        self._settings = settings
        self._watch = watch
        self._state: BalanceState | None = None
        """As it is known here: its figures may be newer than those that are stored."""
        self._stored: BalanceState | None = None
        self._version: Version | None = None
        self._looking: asyncio.Task[Survey] | None = None
        self._survey: Survey | None = None
        self._under_way: dict[LedgerId, Move] = {}
        self._failures: dict[BookieId, int] = {}
        self._waits_for = False
        """Whether a bookie that takes part is missing."""
        self._silent: frozenset[BookieId] = frozenset()
        """Bookies for which another look was taken: once each."""
        self._last_failure = ""
        self._hindrance: str | None = None
        self._noted_at = float("-inf")
        self._look_at: float | None = None
        """The loop's time at which the auditor looks by itself whether a balance is due."""
        self.deviation = 0.0
        """How far the bookie furthest from its share was away from it, as a part of that, at the last look."""

    @property
    def is_wanted(self) -> bool:
        """Whether a balance is under way, or waits."""
        return self._state is not None and self._state.is_wanted

    @property
    def moves_under_way(self) -> int:
        """Ledgers that are being moved, as far as this auditor has planned it."""
        return len(self._under_way)

    @property
    def is_busy(self) -> bool:
        """Whether the auditor should come back soon."""
        return self.is_wanted or self._looking is not None

    def next_at(self) -> float | None:
        """When the auditor looks by itself, as the loop's time."""
        return self._look_at

    async def close(self) -> None:
        """Stop looking."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    # --- planning ---------------------------------------------------------------------------------------------------

    def wants(self, job: Job, target: BookieId) -> bool:
        """Whether a move that is under way goes on."""
        return self.is_wanted and self._hindrance is None and not {job.old, target} & self._watch.states.bookies.keys()

    async def next_moves(
        self, *, repairing: bool, jobs: Mapping[BookieId, int], leave: Collection[LedgerId], now: float
    ) -> list[Planned]:
        """The moves to be begun now. ``repairing``: something is to be repaired. ``jobs``: unfinished moves by target.
        ``leave``: ledgers that wait for a repair. Raises :class:`MetadataUnavailableError`."""
        await self._read()
        self._look_by_itself(now, repairing=repairing)
        if not self.is_wanted and self._looking is None:
            self._forget()
            return []
        before, self._hindrance = self._hindrance, await self._find_hindrance(repairing=repairing)
        if self._hindrance is not None:
            await self.close()
            self._survey = None
            if self.is_wanted:
                await self._note(Phase.WAITING, self._hindrance, now, at_once=before != self._hindrance)
            return []
        found = await self._look(under_way=sum(jobs.values()), now=now)
        return [] if found is None or not self.is_wanted else await self._moves(found, jobs, leave, now)

    async def _find_hindrance(self, *, repairing: bool) -> str | None:
        states = self._watch.states
        if states.paused:
            return "repair is paused"
        if states.brake:
            return "half of the bookies are missing"
        if repairing:
            return "copies are made again first"
        try:
            await self._check_metadata()
        except MetadataUnavailableError:
            raise
        except MetadataError as error:
            return error.message
        return None

    def _look_by_itself(self, now: float, *, repairing: bool) -> None:
        """Begin to look if the setting says so and it is time."""
        seconds = self._settings.balance_seconds
        if not seconds or self.is_wanted:
            self._look_at = None
        elif self._look_at is None:
            asked_at = 0.0 if self._state is None else self._wall_clock() - self._state.asked_at_ms / 1000
            # An auditor that was elected just now goes on with the pause of the one before.
            self._look_at = now if self._state is None else now + min(max(seconds - asked_at, 0.0), seconds)
        elif now >= self._look_at and not repairing and self._looking is None:
            self._look_at = now + seconds
            self._looking = asyncio.ensure_future(self._take_survey())

    async def _look(self, *, under_way: int, now: float) -> Survey | None:
        """The survey, once there is one. None is begun while moves are under way that an earlier auditor has planned:
        it would count them wrong."""
        if self._survey is not None:
            return self._survey
        if self._looking is None:
            if under_way:
                return None
            self._looking = asyncio.ensure_future(self._take_survey())
            await self._note(Phase.LOOKING, "", now, at_once=True)
            return None
        if not self._looking.done():
            return None
        looking, self._looking = self._looking, None
        found = looking.result()
        self.deviation = found.balance.deviation
        if self.is_wanted:
            self._survey = found
        elif self.deviation > BEGIN_DEVIATION and _fullest(found) >= self._settings.balance_fill_min:
            log.info("bookies are unevenly full: a balance begins", deviation=round(self.deviation, 3))
            self._survey = found
            # Later than the one before also where another auditor's clock was ahead.
            after = 0 if self._state is None else self._state.asked_at_ms + 1
            asked_at_ms = max(int(self._wall_clock() * 1000), after)
            await self._write(BalanceState(asked_at_ms, AskedBy.SETTING, Phase.MOVING))
        return self._survey

    async def _take_survey(self) -> Survey:
        registrations, states = self._watch.registrations, self._watch.states
        facts: dict[BookieId, Mapping[str, Any]] = {}
        for attempt in range(QUESTIONS_MAX):
            names = [
                name for name in registrations if name not in states.bookies and SAYS_REPAIR not in facts.get(name, {})
            ]
            if attempt and names:
                await asyncio.sleep(self._settings.poll_seconds)
            answers = await asyncio.gather(*(self._ask(name) for name in names))
            facts |= {name: answer for name, answer in zip(names, answers, strict=True) if answer is not None}
        return await survey(self._store, registrations, states, facts)

    async def _moves(
        self, found: Survey, jobs: Mapping[BookieId, int], leave: Collection[LedgerId], now: float
    ) -> list[Planned]:
        planned: list[Planned] = []
        counts = {name: MOVES_OF_TARGET - number for name, number in jobs.items()}
        # A target gets further moves when it has made all that it had: so it is asked to make few plans.
        busy = {name for name, number in jobs.items() if number}
        while len(self._under_way) < MOVES_AT_ONCE:
            full = {name for name, room in counts.items() if room <= 0}
            move = found.balance.next_move(
                found.movables, self._watch.locations.known,
                no_sources=self._no_sources(found), no_targets=self._no_targets(found) | busy | full, leave=leave,
            )  # fmt: skip
            if move is None:
                break
            found.balance.begin(move)
            if not await self._still_holds(move, found):
                found.balance.take_back(move.ledger_id)
                continue
            counts[move.target] = counts.get(move.target, MOVES_OF_TARGET) - 1
            self._under_way[move.ledger_id] = move
            planned.append(Planned(move.target, Job(move.ledger_id, move.source, Why.BALANCE)))
        self.deviation = found.balance.deviation
        if self._under_way or busy:
            await self._note(Phase.MOVING, "", now)
        else:
            await self._end(found, now)
        return planned

    def _no_sources(self, found: Survey) -> frozenset[BookieId]:
        there, states = self._watch.registrations, self._watch.states
        return frozenset(name for name in found.balance.capacities if name not in there or name in states.bookies)

    def _no_targets(self, found: Survey) -> frozenset[BookieId]:
        there = self._watch.registrations
        full = {
            name for name in found.balance.capacities
            if name not in there or there[name].state is not BookieState.WRITABLE
        }  # fmt: skip
        failing = {name for name, number in self._failures.items() if number >= FAILURES_OF_TARGET_MAX}
        return self._no_sources(found) | found.no_targets | full | failing

    async def _still_holds(self, move: Move, found: Survey) -> bool:
        """Whether the ledger is as it was at the look."""
        try:
            metadata = (await self._store.read_either(move.ledger_id)).value
        except NoSuchLedgerError:
            return False
        parts = await parts_read(self._store, metadata)
        ordinary = found.balance.capacities.keys() - self._no_sources(found)
        if not may_move(metadata, parts, ordinary):
            return False
        known = next((one for one in found.movables.of(move.source) if one.ledger_id == move.ledger_id), None)
        return known is not None and known.ensembles == ensembles_of(parts)

    # --- results ----------------------------------------------------------------------------------------------------

    async def ended(
        self, target: BookieId, job: Job, members: Collection[BookieId] | None, failure: Blocked | None
    ) -> None:
        """A target says that it has done a move, or could not. ``members``: those of the ledger now; None: it has been
        deleted."""
        move = self._under_way.pop(job.ledger_id, None)
        state = self._state
        if state is None:
            return
        if failure is None and members is not None and job.old not in members:
            size = 0 if move is None else move.bytes  # of a move that an earlier auditor has planned it is not known
            self._state = replace(state, moved=state.moved + 1, moved_bytes=state.moved_bytes + size)
            return
        if move is None or self._survey is None:
            return
        self._survey.balance.take_back(job.ledger_id)
        if members is not None:
            self._state = replace(state, failed=state.failed + 1)
            self._failures[target] = self._failures.get(target, 0) + 1
            self._last_failure = (
                f"ledger {job.ledger_id} stays on {job.old}: "
                f"{failure.reason if failure is not None else f'{target} has not taken its place'}"
            )

    def given_up(self, job: Job) -> None:
        """This move was taken from its target: it may be begun again after the next look."""
        if self._under_way.pop(job.ledger_id, None) is not None and self._survey is not None:
            self._survey.balance.take_back(job.ledger_id)

    async def _end(self, found: Survey, now: float) -> None:
        there, states = self._watch.registrations, self._watch.states
        away = [
            name
            for name in sorted(found.balance.capacities)
            if states.condition_of(name) is Condition.MISSING or (name not in there and name not in states.bookies)
        ]
        if away and not found.balance.is_even:
            self._waits_for = True
            await self._note(Phase.WAITING, f"missing: {', '.join(away)}", now)
            return
        if self._waits_for:  # all are back, or lost: look again
            self._waits_for, self._survey = False, None
            return
        new = there.keys() - states.bookies.keys() - found.balance.capacities.keys() - self._silent
        if new:  # they have come since the look, or did not answer
            self._silent |= new
            self._survey = None
            return
        if found.movables.left_out and any(move.bytes for move in found.balance.moved.values()):
            self._survey = None  # there was no room for all ledgers: look again
            return
        reason = f"every bookie holds its share, within {TOLERANCE:.0%}"
        if not found.balance.is_even:
            reason = (
                "no other closed ledger can be moved, by its size, its racks and hosts, or the state of its bookies; "
                f"{found.fixed_bytes:,} bytes lie in ledgers and streams that do not move"
            )
        if self._last_failure:
            reason += f"; {self._last_failure}"
        await self._note(Phase.DONE, reason, now, at_once=True)
        log.info("the balance has ended", reason=reason)
        self._forget()

    def _forget(self) -> None:
        self._survey, self._under_way, self._failures, self._last_failure = None, {}, {}, ""
        self._silent, self._waits_for = frozenset(), False
        self._hindrance = None

    # --- the document -----------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        found = await self._store.read_document(DOCUMENT)
        if found is not None and found.version == self._version:
            return
        before, self._version = self._state, None if found is None else found.version
        try:
            self._state = self._stored = None if found is None else decode_balance(found.value)
        except MetadataError as error:
            log.warning("the document of the balance cannot be understood", reason=error.message)
            self._state = self._stored = None
        if before is None or self._state is None or before.asked_at_ms != self._state.asked_at_ms:
            self._forget()

    async def _note(self, phase: Phase, reason: str, now: float, *, at_once: bool = False) -> None:
        """Store how far the balance is, if that is new."""
        state = self._state
        if state is None or not state.is_wanted or (now < self._noted_at + NOTE_SECONDS and not at_once):
            return
        self._noted_at = now
        found = self._survey
        fills = state.bookies
        if found is not None:
            fills = {
                name: BookieFill(found.balance.held.get(name, 0), capacity)
                for name, capacity in found.balance.capacities.items()
            }
        await self._write(
            replace(
                state,
                phase=phase,
                reason=reason,
                under_way=len(self._under_way),
                under_way_bytes=sum(move.bytes for move in self._under_way.values()),
                bookies=fills,
            )
        )

    async def _write(self, state: BalanceState) -> None:
        if state == self._stored:
            return
        try:
            self._version = await self._store.put_document(DOCUMENT, encode_balance(state), self._version)
            self._state = self._stored = state
        except MetadataConflictError:
            self._version = None  # an operator has changed it: what it says now is read in the next turn
            await self._read()


def _fullest(found: Survey) -> float:
    return max((found.balance.fill(name) for name in found.balance.capacities), default=0.0)
