"""What a checkpoint waits for, and what it lets go (rule B7), one held-up step at a time."""

import asyncio
import errno
from pathlib import Path

import pytest
from octavo.bookie.entrylog.logs import scan_log
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.storage.manifest import decode_manifest
from octavo.bookie.storage.storage import Storage, StorageSettings
from support.clusters.ledgers import LedgerScript
from support.disks.faulty_filesystem import MemoryFileSystem
from support.disks.held_disk import HeldDisk
from support.waiting import loop_turns

pytestmark = pytest.mark.usefixtures("logged")

DATA, JOURNAL = Path("/bookie/data"), Path("/bookie/journal")
SETTINGS = StorageSettings(
    cache_bytes_max=1 << 20,
    checkpoint_journal_bytes=1 << 40,
    checkpoint_seconds=3600,
    journal=JournalSettings(segment_bytes=16 * 1024, first_fill_bytes=0),
)


async def open_storage(filesystem: MemoryFileSystem) -> Storage:
    return await Storage.open(
        filesystem, directory=DATA, journal_directory=JOURNAL, settings=SETTINGS, on_fatal=lambda _error: None
    )


def manifest_of(filesystem: MemoryFileSystem) -> tuple[int, int] | None:
    return decode_manifest(filesystem.content(DATA / "manifest")).mark


async def read_back(filesystem: MemoryFileSystem, script: LedgerScript, count: int) -> None:
    storage = await open_storage(filesystem)
    assert storage.doubted_ids_stop is None
    result = await storage.reader.read(script.ledger_id, 0, count - 1, entries_max=10_000, bytes_max=1 << 24)
    assert result.entries == script.entries(range(count))
    await storage.close()


async def test_no_manifest_has_a_mark_that_the_journal_is_not_synced_up_to() -> None:
    """It would point beyond the end of the journal that a crash leaves, perhaps into a segment that is not there."""
    filesystem = HeldDisk(lambda _name, path: "/journal-" in str(path))
    storage, script = await open_storage(filesystem), LedgerScript(1)
    await storage.writer.add(script.ledger_id, script.key, [script.entry(0)], recovery=False)
    before = manifest_of(filesystem)
    filesystem.hold()
    add = storage.writer.add(script.ledger_id, script.key, [script.entry(1)], recovery=False)
    checkpoint = asyncio.ensure_future(storage.checkpoint())
    await loop_turns()
    assert not checkpoint.done()
    assert manifest_of(filesystem) == before
    filesystem.release()
    await asyncio.gather(add, checkpoint)
    after = manifest_of(filesystem)
    assert before is not None
    assert after is not None
    assert after > before
    await storage.close()


@pytest.mark.parametrize("held", ["/index/", "/entries/", "/manifest"])
async def test_adds_that_fill_segments_during_a_checkpoint_keep_them(held: str) -> None:
    """Whatever came after the mark stands in the journal alone, however many segments ago it was."""
    filesystem = HeldDisk(lambda _name, path: held in str(path))
    storage, script, count = await open_storage(filesystem), LedgerScript(1, payload_bytes=1000), 60
    await storage.writer.add(script.ledger_id, script.key, [script.entry(0)], recovery=False)
    filesystem.hold()
    checkpoint = asyncio.ensure_future(storage.checkpoint())
    await loop_turns()
    assert not checkpoint.done(), "held up behind its mark"
    for entry_id in range(1, count):
        await storage.writer.add(script.ledger_id, script.key, [script.entry(entry_id)], recovery=False)
    filesystem.release()
    await checkpoint
    mark = manifest_of(filesystem)
    assert mark is not None
    segments = [path.name for path in filesystem.files(JOURNAL) if path.name.startswith("journal-")]
    assert len(segments) > 3
    filesystem.crash()
    await read_back(filesystem.after_crash(seed=1), script, count)


@pytest.mark.parametrize("held", ["/index/", "/manifest"])
async def test_entries_are_found_while_a_checkpoint_commits_them(held: str) -> None:
    """They have left the cache and are in no index part yet."""
    filesystem = HeldDisk(lambda _name, path: held in str(path))
    storage, script = await open_storage(filesystem), LedgerScript(1)
    await storage.writer.add(script.ledger_id, script.key, script.entries(range(5)), recovery=False)
    filesystem.hold()
    checkpoint = asyncio.ensure_future(storage.checkpoint())
    await loop_turns()
    assert not checkpoint.done()
    found = await storage.reader.read(script.ledger_id, 0, 4, entries_max=10, bytes_max=1 << 20)
    assert found.entries == script.entries(range(5))
    filesystem.release()
    await checkpoint
    await storage.close()


async def test_a_log_whose_last_page_cannot_be_filled_is_not_written_on() -> None:
    """A full disk: the next flush must not share a page with what the manifest counts (rule B3)."""
    filesystem = MemoryFileSystem()
    storage, script = await open_storage(filesystem), LedgerScript(1)
    await storage.writer.add(script.ledger_id, script.key, script.entries(range(3)), recovery=False)
    writes = 0

    def full(operation: str, path: Path) -> OSError | None:
        nonlocal writes
        if operation != "write" or path.suffix != ".log":
            return None
        writes += 1  # the header, the flush, and then the filler
        return OSError(errno.ENOSPC, "no space left") if writes == 3 else None

    filesystem.fault = full
    await storage.checkpoint()
    assert writes == 3
    filesystem.fault = None
    await storage.writer.add(script.ledger_id, script.key, script.entries(range(3, 6)), recovery=False)
    await storage.checkpoint()
    logs = [path for path in filesystem.files(DATA / "entries") if path.suffix == ".log"]
    assert len(logs) == 2
    assert [await log_entries(filesystem, path) for path in logs] == [3, 3]
    await storage.close()
    await read_back(filesystem, script, 6)


async def log_entries(filesystem: MemoryFileSystem, path: Path) -> int:
    return len([found async for found in scan_log(filesystem, path)])
