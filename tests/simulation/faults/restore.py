"""The metadata are restored to an older state, and later to the newest one, while only bookies run (rule B5).

An operator puts a backup in the place of the metadata, starts the bookies, finds out that it is too old, and puts the
newest state back. In between the bookies do their upkeep, garbage collection and compaction included: nothing that the
newest state knows may be gone afterwards, and no bookie may have lost a fence, not even of a ledger that it deleted.
The judge cannot notice a lost fence: every writer has ended by then.

One case is left out: a ledger whose id had been allocated when the copy was made, and which was created later. Nothing
tells a bookie that was restarted that the metadata are older than such a ledger (docs/backups.md).
"""

import asyncio
import random

from octavo.metadata.store.driver import Kind
from simulation.engine.metadata import MetadataCopy
from simulation.judges.history import Violation
from simulation.world import Machine, World

START_SECONDS_MAX = 60.0
"""Virtual time within which every bookie must be up on restored metadata."""

UPKEEP_SECONDS = (3.0, 6.0)
"""Range of the virtual time for which the bookies run with the older metadata: several rounds of upkeep."""


class MetadataRestore:
    """See the module. Every client must have ended before :meth:`run`."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._copy: MetadataCopy | None = None

    async def copy_later(self, seconds: float) -> None:
        """Make the copy that is restored later, at some time within ``seconds``."""
        await asyncio.sleep(self._rng.uniform(0.05, 0.9) * seconds)
        self._copy = self._world.metadata.copy()
        self._world.note("operator", "copies the metadata")

    async def run(self) -> None:
        """Restore the older copy, let the bookies run, and restore the newest state. Raises :class:`Violation`."""
        older = self._copy
        if older is None:
            return
        await self._settle()  # what clients asked for before they ended is in the newest state, too
        newest = self._world.metadata.copy()
        if self._creates_what_the_copy_had_allocated(older, newest):
            return
        missing = len(newest.records[Kind.LEDGER].keys() - older.records[Kind.LEDGER].keys())
        self._world.trace.count("metadata: restored to an older state")
        self._world.trace.count("metadata: ledgers missing from a restored state", missing)
        fences = self._fences()
        self._world.trace.count("metadata: fences during restores", len(fences))
        await self._restore(older, "an older copy")
        await asyncio.sleep(self._rng.uniform(*UPKEEP_SECONDS))
        await self._restore(newest, "the newest state")
        if lost := fences - self._fences():
            raise Violation("B2", f"fences are lost after the metadata were restored (bookie, ledger): {sorted(lost)}")

    async def _settle(self) -> None:
        """Wait until every bookie serves, and has on its disk what it has taken: a fence under way may be lost with a
        kill."""
        while not all(map(_has_settled, self._world.machines)):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)

    def _fences(self) -> set[tuple[str, int]]:
        """Every fence that a bookie knows: the name of its machine, and the ledger."""
        found = set()
        for machine in self._world.machines:
            assert machine.bookie is not None
            ledgers = machine.bookie.service.storage.ledgers
            found |= {(machine.name, ledger_id) for ledger_id in ledgers.known_ids() if ledgers.get(ledger_id).fenced}
        return found

    def _creates_what_the_copy_had_allocated(self, older: MetadataCopy, newest: MetadataCopy) -> bool:
        created = newest.records[Kind.LEDGER].keys() - older.records[Kind.LEDGER].keys()
        return any(int(key) < older.ledger_ids_stop for key in created)

    async def _restore(self, copy: MetadataCopy, what: str) -> None:
        """Replace the metadata while nothing uses them, and wait until every bookie serves."""
        world = self._world
        for machine in world.machines:
            machine.kill()
        world.metadata.restore(copy)
        world.note("operator", "restores %s of the metadata", what)
        for machine in world.machines:
            machine.start()
        deadline = world.loop.now + START_SECONDS_MAX
        while not all(machine.serving for machine in world.machines):
            if world.loop.now > deadline:
                raise Violation("I8", f"a bookie does not come up on {what} of the metadata")
            await asyncio.sleep(0.05)


def _has_settled(machine: Machine) -> bool:
    bookie = machine.bookie
    return bookie is not None and machine.serving and not bookie.service.storage.statistics().journal.pending_bytes
