"""Counts how often a universe reaches a limit that few universes reach, so that a campaign shows that some do."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from octavo.bookie.journal.journal import Journal
from octavo.bookie.storage.ledgers import LedgerTable
from simulation.engine.patches import patch
from simulation.world import World

TORN_TAILS = "replays after a torn tail"
EVICTED = "ledger states evicted"
CHANGED_OFTEN = "recoveries with several ensemble changes"

LIMITS: dict[str, str] = {
    EVICTED: "more ledgers are in use than a bookie keeps as objects",
    CHANGED_OFTEN: "a recovery replaces bookies at several entries",
    "disk: wiped": "a bookie loses a directory",
    "process: repair killed": "an operator's offline tool is killed",
    "process: power cut during a repair": "a machine loses power while an offline tool runs",
}
"""Counter -> what it counts. Every campaign of several hundred universes reaches each (docs/simulator.md)."""


@contextmanager
def limits_counted(world: World) -> Iterator[None]:
    """Count replays that dropped a torn tail, also those of a start that fails later, and evicted ledger states."""

    @patch(Journal, "start")
    async def start(original: Any, journal: Any) -> None:
        if journal.torn_tail is not None:
            world.trace.count(TORN_TAILS)
        await original(journal)

    @patch(LedgerTable, "_evict")
    def evict(original: Any, table: Any) -> None:
        before = table.hot_count
        original(table)
        world.trace.count(EVICTED, before - table.hot_count)

    start.apply()
    evict.apply()
    try:
        yield
    finally:
        evict.undo()
        start.undo()
