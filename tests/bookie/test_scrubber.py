"""The scrubber verifies what a storage holds while that changes under it."""

from pathlib import Path

from octavo.bookie.rate import RateLimiter
from octavo.bookie.storage import Storage
from support.faulty_filesystem import MemoryFileSystem
from support.ledgers import LedgerScript


class Distraction(RateLimiter):
    """Between two pieces of a scrub: adds and checkpoints, until the index has been merged."""

    def __init__(self, storage: Storage, script: LedgerScript) -> None:
        super().__init__(1e12)
        self._storage = storage
        self._script = script
        self._next = 0

    async def more(self) -> None:
        entries = self._script.entries(range(self._next, self._next + 5))
        self._next += 5
        await self._storage.add(self._script.ledger_id, self._script.key, entries, recovery=False)
        await self._storage.checkpoint()

    async def take(self, size: int) -> None:
        merges = self._storage.statistics().merges
        while self._storage.statistics().merges < merges + 2:
            await self.more()
            await super().take(size)


async def test_index_part_that_is_merged_away_during_a_scrub_is_no_damage() -> None:
    filesystem = MemoryFileSystem()
    storage = await Storage.open(
        filesystem, directory=Path("/data"), journal_directory=Path("/journal"), on_fatal=lambda _error: None
    )
    distraction = Distraction(storage, LedgerScript(1))
    await distraction.more()
    await distraction.more()
    assert len(storage._index.parts) > 1
    result = await storage._scrubber.round(distraction)
    assert result.damaged_places == 0
    assert storage.statistics().index_damage_seen == 0
    await storage.close()
