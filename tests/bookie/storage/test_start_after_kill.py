"""A killed process leaves its files as they stand in the page cache; the next one may act on nothing that a power cut
could still take back (rule B1)."""

import asyncio
from pathlib import Path

import pytest
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.protocol.ids import EntryId
from support.clusters.ledgers import LedgerScript
from support.disks.faulty_filesystem import MemoryFileSystem, run_until_crash

pytestmark = pytest.mark.usefixtures("logged")

SETTINGS = StorageSettings(
    checkpoint_seconds=3600, journal=JournalSettings(segment_bytes=1024 * 1024, first_fill_bytes=0)
)
DATA, JOURNAL = Path("/bookie/data"), Path("/bookie/journal")
MANIFEST = DATA / "manifest"
DELETED, KEPT = LedgerScript(1), LedgerScript(2)
KEPT_IDS = range(5)


async def open_storage(filesystem: MemoryFileSystem) -> Storage:
    def failed(error: BaseException) -> None:
        assert filesystem.crashed.is_set() or isinstance(error, asyncio.CancelledError), error

    return await Storage.open(filesystem, directory=DATA, journal_directory=JOURNAL, settings=SETTINGS, on_fatal=failed)


class KilledAtRename(MemoryFileSystem):
    """Once armed, the process dies as it renames the manifest. Other operations run beside it, so that their number
    does not tell when."""

    armed = False

    def _count(self, name: str, path: Path) -> bool:
        if self.armed and (name, path) == ("rename", MANIFEST):
            self.crash_at = self.operations + 1
        return super()._count(name, path)


async def compact_one_log(filesystem: KilledAtRename) -> None:
    """Up to the manifest that names the copy and not the log; at its rename the process dies."""
    storage = await open_storage(filesystem)
    for script, ids in ((DELETED, range(100)), (KEPT, KEPT_IDS)):
        await storage.writer.add(script.ledger_id, script.key, script.entries(ids), recovery=False)
    await storage.checkpoint()
    await storage.writer.delete(DELETED.ledger_id)
    await storage.compact(0.9, RateLimiter(1e12))  # closes the active log
    await storage.checkpoint()
    filesystem.armed = True
    await storage.compact(0.9, RateLimiter(1e12))


async def killed_while_compacting() -> MemoryFileSystem:
    filesystem = KilledAtRename()
    assert await run_until_crash(filesystem, lambda: compact_one_log(filesystem))
    filesystem.armed, filesystem.crash_at = False, None
    filesystem.crashed.clear()  # the process was killed, the machine goes on: what it wrote can be read
    return filesystem


async def test_a_manifest_found_is_durable_before_anything_it_does_not_name_goes() -> None:
    operation = 0
    while True:
        operation += 1
        filesystem = await killed_while_compacting()
        filesystem.crash_at = filesystem.operations + operation
        filesystem.history.clear()

        async def start(filesystem: MemoryFileSystem = filesystem) -> None:
            await (await open_storage(filesystem)).close()

        power_was_cut = await run_until_crash(filesystem, start)
        for seed in range(3):
            storage = await open_storage(filesystem.after_crash(seed))
            result = await storage.reader.read(
                KEPT.ledger_id, 0, EntryId(KEPT_IDS.stop - 1), entries_max=100, bytes_max=100_000
            )
            assert (result.entries, result.unknown) == (KEPT.entries(KEPT_IDS), []), filesystem.history
            await storage.close()
        if not power_was_cut:
            return
