"""The auditor's rounds: takes the census, and asks members what they lack of settled fragments (rule A11).

A round lists all ledgers and reads the metadata of a few (:mod:`octavo.repair.base.census`). The first round of an
auditor reads all of them. Members are asked about a ledger when it is first seen CLOSED, and about every ledger once in
``check_days``, about streams only then, and about a ledger that owes copies in every round; members that do not answer
are asked again when they return.
"""

import asyncio
from collections.abc import Collection, Iterable
from typing import Final, cast

import structlog
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.cluster.repair_states import RepairStates
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.metadata.updates.paging import sweep_all
from octavo.protocol.errors import MetadataError
from octavo.protocol.ids import BookieId, LedgerId
from octavo.repair.audit.holes import Holes, ask_members
from octavo.repair.base.census import Census, Round, Steps
from octavo.repair.base.local_bookie import LocalBookie
from octavo.repair.base.read_metadata import read_ledgers
from octavo.repair.base.settings import RepairSettings
from octavo.repair.base.stream_parts import StreamParts
from octavo.repair.base.unreadable import log_unreadable

log = structlog.get_logger("octavo.repair")

READ_PAGE: Final = 4096
"""Ledgers read before what was read is condensed for the census: bounds the memory of a round."""

QUESTIONS_AT_ONCE: Final = 32
"""Ledgers whose members are asked at a time."""

UNASKED_MAX: Final = 100_000
"""Questions remembered for members that are away; more are found by the checks of every ledger."""

_DAY_SECONDS = 86_400


async def in_turns[T](steps: Steps[T]) -> T:
    """Do work of the census, and let other tasks run after each step; its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("T", end.value)
        await asyncio.sleep(0)


class Rounds:
    """See the module."""

    def __init__(self, bookie: LocalBookie, pool: ConnectionPool, settings: RepairSettings) -> None:
        self._store: MetadataStore = bookie.store
        self._check_metadata = bookie.check_metadata
        self._pool = pool
        self._settings = settings
        self._to_ask: dict[LedgerId, None] = {}
        self._unasked: dict[BookieId, dict[LedgerId, None]] = {}
        self._check_from = 0
        self._holes: list[tuple[LedgerId, BookieId]] = []
        self.parts = StreamParts(bookie.store)
        self.census = Census()
        self.next_round_at = 0.0
        """The loop's time at which the next round is due."""

    async def read(self, ledger_ids: Iterable[LedgerId]) -> dict[LedgerId, EitherMetadata | None]:
        """As :func:`read_ledgers`; the census learns what was read."""
        ledgers = await read_ledgers(self._store, ledger_ids, log_unreadable)
        if self.census.complete:
            for ledger_id, metadata in ledgers.items():
                seen = None if metadata is None else await self.parts.seen(metadata)
                self.census.update(ledger_id, seen)
                if seen is None:
                    self.parts.forget([ledger_id])
        return ledgers

    def round_is_due(self, now: float) -> bool:
        """Whether a round is due, or members are to be asked."""
        return now >= self.next_round_at or bool(self._to_ask)

    def take_holes(self) -> list[tuple[LedgerId, BookieId]]:
        """Ledgers and members that lack something of them, as found since the last call."""
        holes, self._holes = self._holes, []
        return holes

    def ask_about(self, ledger_ids: Iterable[LedgerId]) -> None:
        """Ask the members of these ledgers soon."""
        self._to_ask.update(dict.fromkeys(ledger_ids))

    def on_returned(self, bookie_id: BookieId) -> None:
        """A member that was away is back: ask what it could not answer."""
        self.ask_about(self._unasked.pop(bookie_id, ()))

    async def take_round(self, states: RepairStates, changed: Collection[LedgerId]) -> None:
        """Take a round if one is due, and ask members. ``changed``: ledgers that repair may be changing. A round that
        fails changes nothing. Raises :class:`MetadataUnavailableError`."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self.next_round_at:
            self.census.mark(changed)
            first = not self.census.complete
            found = await self._list()
            applied = await in_turns(self.census.apply(found))
            self.next_round_at = loop.time() + self._settings.audit_seconds
            if not first:  # the first one finds every closed ledger; those are asked about in turn, below
                self.ask_about(map(LedgerId, applied.newly_closed))
            self.ask_about(self._in_turn())
            await self._sweep_pages()
            self.ask_about(sorted(self.census.owing))
            if self.census.memory_bytes > self._settings.census_bytes:
                log.error(
                    "the index of ledgers is larger than repair_census_bytes; raise that limit",
                    bytes=self.census.memory_bytes, limit=self._settings.census_bytes,
                )  # fmt: skip
        await self._ask_members(states)

    async def _sweep_pages(self) -> None:
        """Delete the pages of streams that no metadata name (rules U2 and U8). Not while the metadata may be older than
        the data: those that are missing may still be restored."""
        try:
            await self._check_metadata()
            swept = await sweep_all(self._store)
        except MetadataError as error:
            log.warning("pages of streams that may be left over are kept", reason=error.message)
            return
        if swept:
            log.info("pages of streams deleted that no metadata name", pages=swept)

    async def _list(self) -> Round:
        found = Round()
        page: list[LedgerId] = []
        async for ledger_id in self._store.list_ledgers():
            found.list(ledger_id)
            if self.census.must_read(ledger_id):
                page.append(ledger_id)
            if len(page) >= READ_PAGE:
                await self._read(page, found)
                page = []
        await self._read(page, found)
        return found

    async def _read(self, page: list[LedgerId], found: Round) -> None:
        for ledger_id, metadata in sorted((await read_ledgers(self._store, page, log_unreadable)).items()):
            seen = None if metadata is None else await self.parts.seen(metadata)
            if seen is not None:
                found.note(ledger_id, seen)

    def _in_turn(self) -> list[LedgerId]:
        """The next ledgers to be asked about, so that every one has its turn within ``check_days``."""
        rounds = max(self._settings.check_days * _DAY_SECONDS / self._settings.audit_seconds, 1.0)
        some = self.census.some_from(self._check_from, int(self.census.ledgers / rounds) + 1)
        self._check_from = some[-1] + 1 if some else 0
        return some

    async def _ask_members(self, states: RepairStates) -> None:
        while self._to_ask:
            page = list(self._to_ask)[:QUESTIONS_AT_ONCE]
            ledgers = await self.read(page)
            existing = {ledger_id: metadata for ledger_id, metadata in ledgers.items() if metadata is not None}
            results = await asyncio.gather(*(self._ask_about_one(one, states) for one in existing.values()))
            for (ledger_id, metadata), holes in zip(existing.items(), results, strict=True):
                short = sorted(holes.short)
                if not short and ledger_id in self.census.owing:
                    # All of its members may have what was owed: one of them makes sure, and clears the debt (rule G6).
                    short = sorted(metadata.members - states.bookies.keys() - holes.silent)[:1]
                self._holes += [(ledger_id, name) for name in short]
                for name in holes.silent:
                    self._remember(name, ledger_id)
            for ledger_id in page:
                self._to_ask.pop(ledger_id, None)

    async def _ask_about_one(self, metadata: EitherMetadata, states: RepairStates) -> Holes:
        """The answers of the members of a ledger, part by part; those with a condition count as silent."""
        short: set[BookieId] = set()
        silent: set[BookieId] = set()
        members = await self.parts.members(metadata)
        async for part in self.parts.naming(metadata, members):
            asked = part.members - states.bookies.keys() - short - silent
            holes = await ask_members(self._pool, part, asked, timeout_seconds=self._settings.request_timeout_seconds)
            short |= holes.short
            silent |= holes.silent | (part.members & states.bookies.keys())
        return Holes(frozenset(short), frozenset(silent))

    def _remember(self, bookie_id: BookieId, ledger_id: LedgerId) -> None:
        unasked = self._unasked.setdefault(bookie_id, {})
        if len(unasked) < UNASKED_MAX:
            unasked[ledger_id] = None
