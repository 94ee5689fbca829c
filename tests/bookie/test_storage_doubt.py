"""A bookie whose journal was damaged may have lost what it acknowledged: it is in doubt from then on (rule B4)."""

import asyncio
from collections.abc import Iterator, MutableMapping
from pathlib import Path

import pytest
import structlog
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.server.answers import answer_read_lac
from octavo.bookie.storage.manifest import EMPTY, EVERY_LEDGER, encode_manifest
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.protocol.errors import BookieInDoubtError, LedgerFencedError
from octavo.protocol.messages import ReadFlag, ReadLac
from support.faulty_filesystem import MemoryFileSystem, run_until_crash
from support.ledgers import LedgerScript, ids_of

SETTINGS = StorageSettings(
    checkpoint_seconds=3600, journal=JournalSettings(segment_bytes=64 * 1024, first_fill_bytes=0)
)
DATA, JOURNAL = Path("/bookie/data"), Path("/bookie/journal")
SCRIPT, LOST, LATER = LedgerScript(7), LedgerScript(8), LedgerScript(50)


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[MutableMapping[str, object]]]:
    with structlog.testing.capture_logs() as events:
        yield events


async def open_storage(filesystem: MemoryFileSystem) -> Storage:
    return await Storage.open(
        filesystem, directory=DATA, journal_directory=JOURNAL, settings=SETTINGS, on_fatal=lambda _error: None
    )


def add(storage: Storage, script: LedgerScript, *ids: int, recovery: bool = False) -> asyncio.Future[None]:
    return storage.writer.add(script.ledger_id, script.key, script.entries(ids), recovery=recovery)


async def damaged_journal() -> MemoryFileSystem:
    """Entries 0, 1, 2 of ledger 7 were acknowledged, one after another, and ledger 8 was fenced; then the power was
    cut. The records of entry 1 and of the fence have rotted meanwhile."""
    filesystem = MemoryFileSystem()
    storage = await open_storage(filesystem)
    await add(storage, SCRIPT, 0)
    await add(storage, SCRIPT, 1)
    await storage.writer.fence(LOST.ledger_id, LOST.key)
    await add(storage, SCRIPT, 2)
    survivor = filesystem.after_crash(seed=1)
    for path in survivor.files(JOURNAL):
        content = survivor.content(path)
        at = content.find(SCRIPT.entry(1))
        if at >= 0:
            survivor.damage(path, at)
            fence = content.find((8).to_bytes(8, "big"), at + len(SCRIPT.entry(1)))
            survivor.damage(path, fence)
            return survivor
    raise AssertionError("the entry is not in the journal")


async def test_nothing_is_absent_after_the_journal_was_damaged() -> None:
    filesystem = await damaged_journal()
    for _ in range(2):  # it is kept over restarts
        storage = await open_storage(filesystem)
        result = await storage.reader.read(SCRIPT.ledger_id, 0, 9, entries_max=10, bytes_max=10_000)
        assert (ids_of(result.entries), result.unknown, result.last_covered) == ([0, 2], [(1, 1), (3, 9)], 9)
        result = await storage.reader.read(LOST.ledger_id, 0, 9, entries_max=10, bytes_max=10_000)
        assert (result.entries, result.unknown, result.last_covered) == ([], [(0, 9)], 9)
        striped = await storage.reader.read(
            SCRIPT.ledger_id, 0, 5, stripe=(3, (0, 2)), entries_max=10, bytes_max=10_000
        )
        assert (ids_of(striped.entries), striped.unknown) == ([0, 2], [(3, 5)])
        with pytest.raises(BookieInDoubtError):
            await storage.reader.list_entries(SCRIPT.ledger_id)
        await storage.close()


async def test_a_limited_answer_speaks_only_of_what_it_covers_in_doubt_too() -> None:
    storage = await open_storage(await damaged_journal())
    result = await storage.reader.read(SCRIPT.ledger_id, 0, 9, entries_max=1, bytes_max=10_000)
    assert (ids_of(result.entries), result.unknown, result.last_covered) == ([0], [], 0)
    await storage.close()


async def test_bookie_in_doubt_refuses_plain_adds_and_takes_fences_and_recovery_adds() -> None:
    filesystem = await damaged_journal()
    for _ in range(2):
        storage = await open_storage(filesystem)
        # Ledger 8 was fenced, and the fence is lost: no key counts, known or not.
        for script in (SCRIPT, LOST, LATER):
            with pytest.raises(BookieInDoubtError) as refused:
                add(storage, script, 3)
            assert not refused.value.may_have_happened
        await storage.close()
    storage = await open_storage(filesystem)
    await add(storage, SCRIPT, 1, recovery=True)
    await storage.writer.fence(LOST.ledger_id, LOST.key)
    with pytest.raises(LedgerFencedError):
        add(storage, LOST, 0)
    result = await storage.reader.read(SCRIPT.ledger_id, 0, 3, entries_max=10, bytes_max=10_000)
    assert (ids_of(result.entries), result.unknown) == ([0, 1, 2], [(3, 3)])
    await storage.close()


async def test_lac_of_a_bookie_in_doubt_says_so() -> None:
    storage = await open_storage(await damaged_journal())
    request = ReadLac(SCRIPT.ledger_id, b"", ReadFlag.NONE, 0, None, 0, 0, 0)
    assert (await answer_read_lac(storage.reader, request, 1 << 20)).in_doubt
    await storage.limit_doubt(SCRIPT.ledger_id)
    assert not (await answer_read_lac(storage.reader, request, 1 << 20)).in_doubt
    await storage.close()


async def test_ledgers_made_after_doubt_began_are_not_in_doubt() -> None:
    filesystem = await damaged_journal()
    storage = await open_storage(filesystem)
    assert storage.doubts_every_ledger
    await storage.limit_doubt(LATER.ledger_id)
    for _ in range(2):
        assert storage.doubt_stop == LATER.ledger_id
        assert not storage.doubts_every_ledger
        with pytest.raises(BookieInDoubtError):
            add(storage, LOST, 0)
        await add(storage, LATER, 0)
        result = await storage.reader.read(LATER.ledger_id, 0, 9, entries_max=10, bytes_max=10_000)
        assert (ids_of(result.entries), result.unknown) == ([0], [])
        await storage.checkpoint()  # keeps it, too
        await storage.close()
        storage = await open_storage(filesystem)
    await storage.close()


async def test_doubt_is_durable_before_the_damaged_journal_goes() -> None:
    crashed, crash_at = True, 0
    while crashed:
        crash_at += 1
        filesystem = await damaged_journal()
        filesystem.crash_at = crash_at

        async def start_and_stop(filesystem: MemoryFileSystem = filesystem) -> None:
            await (await open_storage(filesystem)).close()

        crashed = await run_until_crash(filesystem, start_and_stop)
        storage = await open_storage(filesystem.after_crash(seed=crash_at))
        assert storage.doubts_every_ledger, crash_at
        result = await storage.reader.read(SCRIPT.ledger_id, 0, 2, entries_max=10, bytes_max=10_000)
        assert (ids_of(result.entries), result.unknown) == ([0, 2], [(1, 1)])
        await storage.close()
    assert crash_at > 20, "the start was cut at every operation"


async def test_torn_tail_is_no_doubt() -> None:
    filesystem = MemoryFileSystem()
    storage = await open_storage(filesystem)
    await add(storage, SCRIPT, 0)
    unsynced = add(storage, SCRIPT, 1)
    await asyncio.sleep(0)
    storage = await open_storage(filesystem.after_crash(seed=3))
    assert not unsynced.done()
    assert storage.doubt_stop is None
    await storage.close()


async def test_a_wiped_bookie_doubts_ledgers_that_it_does_not_know_any_more() -> None:
    """What it held is lost, and with it every trace of the ledger: that must not look like absence."""
    filesystem = MemoryFileSystem()
    filesystem.set_content(DATA / "manifest", encode_manifest(EMPTY._replace(doubt_stop=EVERY_LEDGER)))
    storage = await open_storage(filesystem)
    await storage.limit_doubt(LATER.ledger_id)
    result = await storage.reader.read(SCRIPT.ledger_id, 0, 9, entries_max=10, bytes_max=10_000)
    assert (result.entries, result.unknown) == ([], [(0, 9)])
    assert storage.reader.last_add_confirmed(SCRIPT.ledger_id).in_doubt
    with pytest.raises(BookieInDoubtError):
        add(storage, SCRIPT, 0)
    with pytest.raises(BookieInDoubtError):
        await storage.reader.list_entries(SCRIPT.ledger_id)
    await add(storage, SCRIPT, 0, recovery=True)
    await add(storage, LATER, 0)
    result = await storage.reader.read(LATER.ledger_id, 0, 9, entries_max=10, bytes_max=10_000)
    assert (ids_of(result.entries), result.unknown) == ([0], [])
    await storage.close()


class HeldSyncs(MemoryFileSystem):
    """Syncs of the journal wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.held = asyncio.Event()
        self.released = asyncio.Event()
        self.released.set()

    async def step(self, name: str, path: Path) -> None:
        if name == "sync" and path.parent == JOURNAL and not self.released.is_set():
            self.held.set()
            await self.released.wait()
        await super().step(name, path)


async def test_a_second_fence_is_answered_only_once_the_first_is_durable() -> None:
    """Rule F2: what the second recovering client reads may be answered only by a bookie that stays fenced."""
    filesystem = HeldSyncs()
    storage = await open_storage(filesystem)
    await add(storage, SCRIPT, 0)
    filesystem.released.clear()
    first = storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key)
    await filesystem.held.wait()
    second = storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not first.done()
    assert not second.done()
    filesystem.released.set()
    await first
    await second
    await storage.close()
