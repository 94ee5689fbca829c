"""The scrubber verifies what a storage holds while that changes under it."""

from pathlib import Path

import structlog
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.storage.storage import Storage, StorageSettings
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
        await self._storage.writer.add(self._script.ledger_id, self._script.key, entries, recovery=False)
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
    result = await storage.scrubber.round(distraction)
    assert result.damaged_places == 0
    assert storage.statistics().index_damage_seen == 0
    await storage.close()


async def test_one_round_finds_every_fault_of_every_log_and_part_and_tells_each_once() -> None:
    filesystem = MemoryFileSystem()
    settings = StorageSettings(entry_log_bytes=20_000)
    script = LedgerScript(1, payload_bytes=500)

    async def opened() -> Storage:
        return await Storage.open(
            filesystem,
            directory=Path("/data"),
            journal_directory=Path("/journal"),
            settings=settings,
            on_fatal=lambda _error: None,
        )

    storage = await opened()
    for first in range(0, 180, 60):
        await storage.writer.add(script.ledger_id, script.key, script.entries(range(first, first + 60)), recovery=False)
        await storage.checkpoint()
    await storage.close()
    logs = [path for path in filesystem.files() if path.suffix == ".log"]
    parts = filesystem.files(Path("/data/index"))
    assert (len(logs) >= 3, len(parts)) == (True, 3)
    for path in logs[:3]:
        for offset in (600, 5_000, 9_000):
            filesystem.damage(path, offset)
    for path in parts:
        filesystem.damage(path, 40)
    with structlog.testing.capture_logs() as events:
        storage = await opened()
        result = await storage.scrubber.round(RateLimiter(1e12))
        again = await storage.scrubber.round(RateLimiter(1e12))
    assert result.damaged_places == again.damaged_places == 3 * 3 + 3
    told = [event["path"] for event in events if event["log_level"] == "error"]
    assert sorted(told) == sorted([str(path) for path in logs[:3]] * 3 + [str(path) for path in parts])
    await storage.close()
