"""A client with many ledgers open at once, one or two adds under way in each, and another one that fences some of them.

What the first has for a bookie in a turn of its loop travels in packs (:mod:`octavo.protocol.packs`): adds, explicit
LACs and forces of many ledgers.
"""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from octavo.client.client import Client
from octavo.client.write.writer import LedgerWriter
from octavo.metadata.ledger.model import LedgerState
from octavo.protocol.errors import InternalError, LedgerFencedError, OctavoError, WouldBlock
from octavo.protocol.ids import EntryId
from simulation.engine.metadata import ADDRESS
from simulation.judges.history import LedgerHistory, Violation
from simulation.workload.workload import Reading, close_ledger, create_ledger, judged, note_answer
from simulation.world import ClientHost, World

FENCINGS = 4
"""How often ledgers are fenced at most."""


class Member(NamedTuple):
    """One of the ledgers."""

    writer: LedgerWriter
    ledger: LedgerHistory


class Cast:
    """Ledgers of one client, to which it adds in the same turns. ``deferred_share``: how many have deferred sync."""

    def __init__(self, world: World, rng: random.Random, deferred_share: float) -> None:
        self.world = world
        self.rng = rng
        self._deferred_share = deferred_share
        self._under_way = 0
        self._answered = asyncio.Event()
        """Set while no add is under way."""
        self._answered.set()

    async def wait_answered(self) -> None:
        """Return when no add is under way."""
        await self._answered.wait()

    async def open(self, host: ClientHost, client: Client) -> Member | None:
        """Create one more ledger. None if that has failed again and again."""
        deferred = self.rng.random() < self._deferred_share
        made = await create_ledger(self.world, self.rng, host, client, deferred=deferred)
        if made is None:
            return None
        member = Member(*made)
        member.ledger.adding = True
        return member

    def add_to_all(self, host: ClientHost, members: list[Member]) -> None:
        """Make one or two adds to each ledger, in one turn; force those with deferred sync."""
        for member in members:
            for _ in range(self.rng.choice((1, 1, 2))):
                self._add(host, member)
            if member.ledger.deferred:
                asyncio.ensure_future(self._force(host, member))  # noqa: RUF006 - the loop keeps it

    def _add(self, host: ClientHost, member: Member) -> None:
        rng, (writer, ledger) = self.rng, member
        index = len(ledger.payloads)
        payload = b"%d:%d:" % (writer.id, index) + rng.randbytes(rng.randrange(self.world.plan.entry_bytes_max + 1))
        ledger.payloads.append(payload)
        try:
            future = writer.add_nowait(payload)
        except WouldBlock:
            ledger.payloads.pop()
            return
        except OctavoError as error:
            ledger.payloads.pop()
            ledger.adding = False
            note_answer(self.world, host.name, f"add to {writer.id}", error)
            return
        ledger.begun += 1
        self._under_way += 1
        self._answered.clear()
        future.add_done_callback(partial(self._added, host, member, index))

    def _added(self, host: ClientHost, member: Member, index: int, future: asyncio.Future[EntryId]) -> None:
        world, ledger = self.world, member.ledger
        self._under_way -= 1
        if not self._under_way:
            self._answered.set()
        error: Any = future.exception()
        if error is None:
            world.trace.count("adds acknowledged")
            judged(world, partial(world.history.acknowledged, ledger, index, future.result()))
            return
        if not isinstance(error, OctavoError) or isinstance(error, InternalError):
            world.violate(Violation("no defects", f"add {index} to {ledger.ledger_id}: {error}"))
            return
        if isinstance(error, LedgerFencedError) and not ledger.deleted and ledger.current.state is LedgerState.OPEN:
            world.violate(Violation("F1", f"ledger {ledger.ledger_id} is open, and its writer is told of a fence"))
        if index == ledger.acknowledged + 1:
            note_answer(world, host.name, f"add {index} to {ledger.ledger_id}", error)
        judged(world, partial(world.history.add_failed, ledger, index, may_have_happened=error.may_have_happened))

    async def _force(self, host: ClientHost, member: Member) -> None:
        covered = member.ledger.begun - 1
        try:
            await member.writer.force()
        except OctavoError as error:
            note_answer(self.world, host.name, f"force of {member.writer.id}", error)
        else:
            self.world.trace.count("forces")
            judged(self.world, partial(self.world.history.confirmed, member.ledger, covered))

    async def close(self, host: ClientHost, member: Member) -> None:
        """Close a ledger, and check where it ends."""
        member.ledger.adding = False
        try:
            await close_ledger(self.world, host, *member)
        except Violation as violation:
            self.world.violate(violation)


class Throng:
    """Opens the ledgers, adds to all of them in the same turns, and closes some of them meanwhile."""

    def __init__(self, world: World, rng: random.Random, ledgers: int, ended: Callable[[], bool]) -> None:
        self.world = world
        self.rng = rng
        self.ended = ended
        self._ledgers = ledgers
        """How many the next life of the client opens."""
        self._opened_at_once = rng.choice((20, 100, 500))
        self._rounds = rng.choice((2, 3, 4))
        self._pause = 1.2 * world.plan.safety_seconds / self._rounds
        self._deferred_share = rng.choice((0.0, 0.2, 0.2))
        self._closed_share = rng.choice((0.0, 0.1, 0.3))
        self._closes_all = rng.random() < 0.3

    async def run(self, host: ClientHost, client: Client) -> None:
        """Run one life of the client."""
        rng = self.rng
        count, self._ledgers = self._ledgers, max(self._ledgers // 3, 2)
        cast = Cast(self.world, rng, self._deferred_share)
        members: list[Member] = []
        while len(members) < count and not self.ended():
            wanted = min(self._opened_at_once, count - len(members))
            opened = await asyncio.gather(*(cast.open(host, client) for _ in range(wanted)))
            new = [member for member in opened if member is not None]
            cast.add_to_all(host, new)
            members += new
            if len(new) < wanted:
                break
        closing: list[asyncio.Task[None]] = []
        for _ in range(self._rounds):
            cast.add_to_all(host, members)
            closed = rng.sample(members, int(self._closed_share * len(members)))
            closing += (asyncio.ensure_future(cast.close(host, member)) for member in closed)
            members = [member for member in members if member not in closed]
            if rng.random() < 0.5:
                await cast.wait_answered()
            await asyncio.sleep(self._pause * rng.random())
            if self.ended():
                break
        await cast.wait_answered()
        if self._closes_all:
            closing += (asyncio.ensure_future(cast.close(host, member)) for member in members)
        await asyncio.gather(*closing)
        for member in members:
            member.ledger.adding = False  # closing the client closes those that are open


class Fencing:
    """Recovers some of the ledgers that are being written, several at once."""

    def __init__(self, world: World, rng: random.Random, ended: Callable[[], bool]) -> None:
        self.world = world
        self.rng = rng
        self.ended = ended
        self._reading = Reading(world, rng, recovers=True, ended=ended)
        self._at_once = rng.choice((2, 5, 12))
        self._deafens = rng.choice((0.0, 0.7, 0.7))

    async def run(self, host: ClientHost, client: Client) -> None:
        """Do so a few times, while ledgers have acknowledged entries and are written, until the safety phase ends."""
        world, rng = self.world, self.rng
        for _ in range(FENCINGS):
            await asyncio.sleep(world.plan.safety_seconds * rng.uniform(0.05, 0.3))
            written = [one for one in world.history.ledgers.values() if one.adding and one.acknowledged >= 0]
            written = [one for one in written if one.end is None and not one.delete_asked]
            if self.ended():
                return
            if not written:
                continue
            chosen = rng.sample(written, min(self._at_once, len(written)))
            world.trace.count("packs: ledgers fenced while they are written", len(chosen))
            if rng.random() < self._deafens:
                self._deafen(chosen[0].writer)
            await asyncio.gather(*(self._reading.visit(host, client, ledger) for ledger in chosen))

    def _deafen(self, writer: str) -> None:
        """Let the writer hear nothing from the metadata store for a while: bookies tell it of the fences."""
        world = self.world
        world.trace.count("packs: writer does not hear of fences")
        world.network.set_blocked(ADDRESS, writer, True)
        until = world.loop.now + self.rng.uniform(0.2, 0.8)
        world.loop.call_process(world.loop.world, until, world.network.set_blocked, ADDRESS, writer, False)
