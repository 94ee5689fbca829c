"""The scrubber verifies what a storage holds while that changes under it."""

from pathlib import Path

import structlog
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.storage.damage import ID_LAST
from octavo.bookie.storage.storage import Storage, StorageSettings
from support.clusters.ledgers import LedgerScript
from support.disks.faulty_filesystem import MemoryFileSystem


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
    assert storage.statistics().index_parts > 1
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


async def test_scrubber_reports_the_entries_that_lie_in_damaged_bytes_and_no_others() -> None:
    filesystem = MemoryFileSystem()
    scripts = [LedgerScript(ledger_id, payload_bytes=100) for ledger_id in (1, 2, 3)]
    storage = await open_storage(filesystem)
    for first in range(0, 40, 20):
        for script in scripts:
            ids = range(first, first + 20)
            await storage.writer.add(script.ledger_id, script.key, script.entries(ids), recovery=False)
        await storage.checkpoint()
    await storage.close()
    (path,) = [path for path in filesystem.files() if path.suffix == ".log"]
    content = filesystem.content(path)
    rotten = [(1, 5), (1, 6), (2, 0), (2, 39), (3, 19), (3, 20)]
    for ledger_id, entry_id in rotten:
        filesystem.damage(path, content.index(scripts[ledger_id - 1].entry(entry_id)) + 70)
    storage = await open_storage(filesystem)
    before = await storage.scrubber.round(RateLimiter(1e12))
    assert before.damaged_places >= 4
    heard: list[tuple[int, int, int]] = []
    storage.damage.listen(lambda *report: heard.append(report))
    assert _covered(heard) == set(rotten), "what was found before there was a listener"
    heard.clear()
    await storage.scrubber.round(RateLimiter(1e12))
    assert _covered(heard) == set(rotten), "again in every round, until it has been repaired"
    await storage.close()


async def test_scrubber_reports_every_ledger_that_a_damaged_block_of_the_index_may_hide() -> None:
    filesystem = MemoryFileSystem()
    scripts = [LedgerScript(ledger_id) for ledger_id in (4, 6, 9)]
    storage = await open_storage(filesystem)
    for script in scripts[:2]:
        await storage.writer.add(script.ledger_id, script.key, script.entries(range(3, 8)), recovery=False)
    await storage.checkpoint()
    await storage.writer.add(scripts[2].ledger_id, scripts[2].key, scripts[2].entries([0]), recovery=False)
    await storage.close()
    (first_part, _) = sorted(filesystem.files(Path("/data/index")))
    filesystem.damage(first_part, 40)
    storage = await open_storage(filesystem)
    heard: list[tuple[int, int, int]] = []
    storage.damage.listen(lambda *report: heard.append(report))
    await storage.scrubber.round(RateLimiter(1e12))
    assert heard == [(4, 3, ID_LAST), (6, 0, 7)]
    await storage.close()


async def test_reads_report_damage_that_they_meet_once() -> None:
    filesystem = MemoryFileSystem()
    script = LedgerScript(4)
    storage = await open_storage(filesystem)
    await storage.writer.add(script.ledger_id, script.key, script.entries(range(10)), recovery=False)
    await storage.checkpoint()
    await storage.close()
    (path,) = [path for path in filesystem.files() if path.suffix == ".log"]
    filesystem.damage(path, filesystem.content(path).index(script.entry(6)) + 60)
    storage = await open_storage(filesystem)
    heard: list[tuple[int, int, int]] = []
    storage.damage.listen(lambda *report: heard.append(report))
    for _ in range(2):
        await storage.reader.read(script.ledger_id, 0, 9, entries_max=100, bytes_max=1 << 20)
    assert heard == [(4, 6, 6)]
    await storage.close()
    (part,) = filesystem.files(Path("/data/index"))
    filesystem.damage(part, 40)
    storage = await open_storage(filesystem)
    heard.clear()
    storage.damage.listen(lambda *report: heard.append(report))
    for _ in range(2):
        await storage.reader.read(script.ledger_id, 2, 20, entries_max=100, bytes_max=1 << 20)
    assert heard == [(4, 2, 9)]
    await storage.close()


def _covered(reports: list[tuple[int, int, int]]) -> set[tuple[int, int]]:
    return {(ledger_id, entry_id) for ledger_id, first, last in reports for entry_id in range(first, last + 1)}


async def open_storage(filesystem: MemoryFileSystem) -> Storage:
    return await Storage.open(
        filesystem, directory=Path("/data"), journal_directory=Path("/journal"), on_fatal=lambda _error: None
    )
