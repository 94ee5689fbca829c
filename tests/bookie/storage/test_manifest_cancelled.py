"""A compaction or merge that is cancelled while the manifest is being replaced. The operating system finishes a rename
that it has begun, whatever becomes of the task that waits for it: the manifest in memory may then be behind the one on
disk, and files that only the latter names must not be removed (rule B8)."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.storage.manifest_keeper import MANIFEST_NAME
from octavo.bookie.storage.storage import Storage, StorageSettings
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.faulty_filesystem import MemoryFileSystem

pytestmark = pytest.mark.usefixtures("logged")

DATA, JOURNAL = Path("/bookie/data"), Path("/bookie/journal")
SETTINGS = StorageSettings(
    cache_bytes_max=200_000,
    cache_spread=0.0,
    checkpoint_seconds=3600,
    journal=JournalSettings(segment_bytes=1024 * 1024, first_fill_bytes=0),
)
FAST = RateLimiter(1e12)
KEPT, GONE = LedgerScript(1), LedgerScript(2)
COUNT = 50


class LaneDisk(MemoryFileSystem):
    """As real files: an operation that has begun goes on in its thread though its caller is cancelled. The next rename
    of a manifest waits from :meth:`hold` until :meth:`release`."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()
        self._released: asyncio.Event | None = None
        self.renaming: asyncio.Task[None] | None = None

    def hold(self) -> None:
        self._released = asyncio.Event()

    def release(self) -> None:
        assert self._released is not None
        self._released.set()

    async def rename(self, source: Path, target: Path) -> None:
        released = self._released if target.name == MANIFEST_NAME else None
        if released is None:
            await super().rename(source, target)
            return
        self.begun.set()
        self.renaming = asyncio.ensure_future(self._rename_later(released, source, target))
        await asyncio.shield(self.renaming)

    async def _rename_later(self, released: asyncio.Event, source: Path, target: Path) -> None:
        await released.wait()
        self._released = None
        await super().rename(source, target)


async def open_storage(filesystem: MemoryFileSystem, failures: list[BaseException] | None = None) -> Storage:
    return await Storage.open(
        filesystem,
        directory=DATA,
        journal_directory=JOURNAL,
        settings=SETTINGS,
        on_fatal=(failures if failures is not None else []).append,
    )


def killed(filesystem: MemoryFileSystem) -> MemoryFileSystem:
    """What a new process finds after kill -9."""
    copy = MemoryFileSystem()
    for path in filesystem.files():
        copy.set_content(path, filesystem.content(path))
    return copy


async def half_dead_log(storage: Storage) -> None:
    """A finished log half of which belongs to a deleted ledger."""
    for script in (KEPT, GONE):
        await storage.writer.add(script.ledger_id, script.key, script.entries(range(COUNT)), recovery=False)
    await storage.checkpoint()
    await storage.writer.delete(GONE.ledger_id)
    await storage.compact(1.1, FAST)  # lets go of the log
    await storage.checkpoint()


async def cancelled_at_the_rename(filesystem: LaneDisk, work: Callable[[], Awaitable[object]]) -> BaseException | None:
    """Begin ``work``, cancel it while the manifest is being renamed, and let the rename be done: what it ended with."""
    filesystem.hold()
    task = asyncio.ensure_future(work())
    await filesystem.begun.wait()
    task.cancel()
    await asyncio.wait([task])
    filesystem.release()
    assert filesystem.renaming is not None
    await filesystem.renaming
    return asyncio.CancelledError() if task.cancelled() else task.exception()


@pytest.mark.parametrize("cancels", [1, 2])
async def test_cancelled_removal_of_ranges_is_over_only_when_the_manifests_agree(cancels: int) -> None:
    """Otherwise a repair here would find copies that a power cut takes away (rule C11)."""
    filesystem = LaneDisk()
    storage = await open_storage(filesystem)
    await storage.writer.add(KEPT.ledger_id, KEPT.key, KEPT.entries(range(COUNT)), recovery=False)
    await storage.checkpoint()
    await storage.relief.mark(KEPT.ledger_id, 10)
    filesystem.hold()
    removing = asyncio.ensure_future(storage.relief.remove({KEPT.ledger_id: [(0, 9)]}))
    await filesystem.begun.wait()
    for _ in range(cancels):
        removing.cancel()
        await asyncio.wait([removing], timeout=0)
        assert not removing.done()
    filesystem.release()
    await asyncio.wait([removing])
    assert removing.cancelled()
    assert storage.ledgers.relieving == {}
    after = await open_storage(killed(filesystem))
    for one in (storage, after):
        result = await one.reader.read(KEPT.ledger_id, 0, COUNT - 1, entries_max=COUNT, bytes_max=10**6)
        assert (ids_of(result.entries), result.unknown) == (list(range(10, COUNT)), [(0, 9)])
        await one.close()


async def test_log_that_a_cancelled_compaction_wrote_is_not_removed_once_the_manifest_names_it() -> None:
    filesystem = LaneDisk()
    storage = await open_storage(filesystem)
    await half_dead_log(storage)
    ended = await cancelled_at_the_rename(filesystem, lambda: storage.compact(0.9, FAST))
    assert isinstance(ended, asyncio.CancelledError)
    # A compaction with nothing to do removes logs of compaction's own that no manifest names.
    await storage.compact(0.0, FAST)
    after = await open_storage(killed(filesystem))
    result = await after.reader.read(KEPT.ledger_id, 0, COUNT - 1, entries_max=COUNT, bytes_max=10**6)
    assert ids_of(result.entries) == list(range(COUNT))
    assert not result.unknown
    await after.close()
    await storage.close()
    again = await open_storage(filesystem)
    result = await again.reader.read(KEPT.ledger_id, 0, COUNT - 1, entries_max=COUNT, bytes_max=10**6)
    assert ids_of(result.entries) == list(range(COUNT))
    await again.close()
