"""A failed sync is never tried again, even if the disk calls it full; what a full disk interrupts leaves nothing behind
(rule B1)."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from octavo.bookie.disk.filesystem import SyncFailedError, replace_file
from octavo.bookie.disk.full_disk import FullDiskRetry
from octavo.bookie.entrylog.logs import EntryLogWriter
from octavo.bookie.index.part import PartWriter
from octavo.bookie.journal.format import DATA_START
from octavo.bookie.journal.journal import Journal, JournalFailedError, JournalSettings, RecordKind
from octavo.bookie.storage.storage import Storage, StorageSettings
from support.clusters.ledgers import LedgerScript
from support.disks.faulty_filesystem import MemoryFileSystem
from support.waiting import WAIT_SECONDS, eventually

FOLDER = Path("/folder")


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Fails:
    """Makes operations of one kind fail for lack of space, on paths that contain ``part``, up to ``times`` times."""

    def __init__(self, filesystem: MemoryFileSystem, operation: str, part: str = "", *, times: int = 1000) -> None:
        self.operation, self.part, self.times = operation, part, times
        self.failed = 0
        filesystem.fault = self

    def __call__(self, name: str, path: Path) -> OSError | None:
        if name == self.operation and self.part in str(path) and self.failed < self.times:
            self.failed += 1
            return full()
        return None


async def write_part(filesystem: MemoryFileSystem) -> None:
    writer = await PartWriter.create(filesystem, FOLDER, 1)
    try:
        await writer.add_state(1, b"state")
        await (await writer.finish()).retire()
    except OSError:
        await writer.abandon()
        raise


async def create_log(filesystem: MemoryFileSystem) -> None:
    await (await EntryLogWriter.create(filesystem, FOLDER, 1)).close()


async def replace_small_file(filesystem: MemoryFileSystem) -> None:
    await replace_file(filesystem, FOLDER / "manifest", b"content")


@pytest.mark.parametrize("act", [replace_small_file, write_part, create_log])
@pytest.mark.parametrize("operation", ["sync", "sync_directory"])
async def test_sync_that_finds_the_disk_full_is_not_tried_again(
    operation: str, act: Callable[[MemoryFileSystem], Awaitable[None]]
) -> None:
    if (operation, act) == ("sync", create_log):
        return  # a new log is synced by the checkpoint that counts it
    filesystem = MemoryFileSystem()
    await filesystem.make_directory(FOLDER)
    fails = Fails(filesystem, operation, times=1)
    retry = FullDiskRetry(retry_seconds=0.001)
    with pytest.raises(SyncFailedError) as raised:
        await retry.retry_while_full(FOLDER, lambda: act(filesystem))
    assert raised.value.errno == errno.EIO
    assert (fails.failed, retry.times_full) == (1, 0)
    assert not filesystem.open_files


@pytest.mark.parametrize("act", [replace_small_file, write_part, create_log])
async def test_write_that_finds_the_disk_full_is_tried_again(
    act: Callable[[MemoryFileSystem], Awaitable[None]],
) -> None:
    filesystem = MemoryFileSystem()
    await filesystem.make_directory(FOLDER)
    fails = Fails(filesystem, "write", times=2)
    retry = FullDiskRetry(retry_seconds=0.001)
    await retry.retry_while_full(FOLDER, lambda: act(filesystem))
    assert (fails.failed, retry.times_full) == (2, 2)
    assert not filesystem.open_files


# --- the journal ---------------------------------------------------------------------------------------------------

TINY = JournalSettings(
    segment_bytes=3 * DATA_START,
    first_fill_bytes=0,
    spare_segments_max=2,
    fill_pause_seconds=0,
    full_retry_seconds=0.001,
)


async def started(filesystem: MemoryFileSystem, failures: list[BaseException]) -> Journal:
    journal = await Journal.open(filesystem, FOLDER, settings=TINY, start=None, on_failure=failures.append)
    assert [body async for _, body, _ in journal.replay()] == []
    await journal.start()
    return journal


@pytest.mark.parametrize(("operation", "part"), [("sync_directory", "folder"), ("sync", "spare-")])
async def test_journal_whose_next_segment_cannot_be_synced_fails_at_the_end_of_the_active_one(
    operation: str, part: str
) -> None:
    filesystem = MemoryFileSystem()
    failures: list[BaseException] = []
    journal = await started(filesystem, failures)
    fails = Fails(filesystem, operation, part, times=1)
    outcomes = [await asyncio.wait([journal.append(RecordKind.ADD, [bytes(3000)])]) for _ in range(20)]
    errors = [future.exception() for done, _ in outcomes for future in done]
    acknowledged = errors.index(next(filter(None, errors)))
    assert all(isinstance(error, JournalFailedError) for error in errors[acknowledged:])
    assert fails.failed == 1, "not tried again"
    assert [type(failure) for failure in failures] == [SyncFailedError]
    await journal.close()
    again = await Journal.open(filesystem, FOLDER, settings=TINY, start=None)
    assert len([body async for _, body, _ in again.replay()]) >= acknowledged
    await again.close()


async def test_spare_whose_header_finds_the_disk_full_is_removed_and_the_journal_goes_on_with_another() -> None:
    filesystem = MemoryFileSystem()
    failures: list[BaseException] = []
    journal = await started(filesystem, failures)
    fails = Fails(filesystem, "write", "spare-", times=3)
    adding = [journal.append(RecordKind.ADD, [bytes(3000)]) for _ in range(12)]
    await eventually(lambda: fails.failed == 3)
    await asyncio.gather(*adding)
    assert failures == []
    spares = [path for path in filesystem.files(FOLDER) if path.name.startswith("spare-")]
    assert len(spares) == journal.statistics().spare_segments, "no file that the journal has forgotten"
    await journal.close()
    assert not filesystem.open_files


# --- a stop on a full disk -----------------------------------------------------------------------------------------


async def test_stop_whose_manifest_finds_the_disk_full_leaves_no_file_open() -> None:
    filesystem = MemoryFileSystem()
    script = LedgerScript(1)
    settings = StorageSettings(
        checkpoint_seconds=3600, journal=JournalSettings(segment_bytes=64 * 1024, first_fill_bytes=0)
    )

    async def open_storage() -> Storage:
        return await Storage.open(
            filesystem, directory=Path("/d"), journal_directory=Path("/j"), settings=settings, on_fatal=lambda _: None
        )

    storage = await open_storage()
    await storage.writer.add(script.ledger_id, script.key, script.entries(range(10)), recovery=False)
    fails = Fails(filesystem, "write", "manifest.tmp")
    with pytest.raises(OSError, match="No space left"):
        await storage.close()
    assert fails.failed > 0
    assert not filesystem.open_files
    filesystem.fault = None
    again = await open_storage()
    held = await again.reader.read(script.ledger_id, 0, 100, entries_max=100, bytes_max=10**6)
    assert held.entries == script.entries(range(10))
    await again.close()


async def test_entries_are_not_written_while_free_space_is_kept_for_compaction() -> None:
    retry = FullDiskRetry(retry_seconds=0.001)
    done: list[str] = []

    async def write(what: str) -> None:
        done.append(what)

    async with retry.kept_for_urgent_writes():
        entries = asyncio.ensure_future(retry.retry_while_full(FOLDER, lambda: write("entries"), yields=True))
        await retry.retry_while_full(FOLDER, lambda: write("manifest"))
        await asyncio.sleep(0)
        assert done == ["manifest"]
    await entries
    assert done == ["manifest", "entries"]


async def test_free_space_is_kept_until_urgent_writes_have_had_it() -> None:
    retry = FullDiskRetry(retry_seconds=3600)
    free: list[str] = []

    async def manifest() -> None:
        if not free:
            raise full()
        free.pop()

    writing = asyncio.ensure_future(retry.retry_while_full(FOLDER, manifest))
    await eventually(lambda: retry.urgent_writes_wait)
    for _ in range(2):  # the first time it finds the disk full again
        retry.space_freed()
        await asyncio.wait_for(retry.urgent_writes_ended(), WAIT_SECONDS)
        free.append("a page")
    await writing
    assert (free, retry.urgent_writes_wait, retry.times_full) == (["a page"], False, 2)
