"""Operators' tools that are told of some of a bookie's directories only, or that meet a lost data disk: what they have
not seen is still there after the next start (rule B8)."""

import random
from pathlib import Path

import pytest
from octavo.bookie.identity.cookie import claim_identity, note_served
from octavo.bookie.identity.errors import DataWrongError
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.offline.layout import Layout
from octavo.bookie.offline.rebuild_index import IndexRebuild
from octavo.bookie.offline.reset_identity import reset_identity
from octavo.bookie.storage.ledger_state import LedgerState
from octavo.bookie.storage.manifest_keeper import MANIFEST_NAME
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.metadata import MetadataStore
from octavo.metadata.memory import MemoryServer, open_memory_store
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.faulty_filesystem import MemoryFileSystem

pytestmark = pytest.mark.usefixtures("logged")

DATA, JOURNAL, SECOND = Path("/disk1/data"), Path("/disk1/data/journal"), Path("/disk2/more")
WHOLE = Layout.of(DATA, JOURNAL, (SECOND,))
PART = Layout.of(DATA)
SETTINGS = StorageSettings(
    cache_bytes_max=6_000,
    entry_log_bytes=4_000,
    checkpoint_seconds=3600,
    journal=JournalSettings(segment_bytes=64 * 1024, first_fill_bytes=0),
)
SCRIPT = LedgerScript(1, payload_bytes=60)
COUNT = 100


async def open_storage(filesystem: MemoryFileSystem) -> Storage:
    return await Storage.open(
        filesystem,
        directory=DATA,
        journal_directory=JOURNAL,
        entry_directories=(SECOND,),
        settings=SETTINGS,
        on_fatal=lambda _error: None,
    )


async def used_disks(filesystem: MemoryFileSystem, store: MetadataStore) -> None:
    """A bookie with entry logs on two disks, after a clean stop."""
    identity = await claim_identity(filesystem, WHOLE.directories, store, address="host:1", rng=random.Random(1))
    storage = await open_storage(filesystem)
    await note_served(filesystem, WHOLE.directories, identity)
    for first in range(0, COUNT, 20):
        await storage.writer.add(SCRIPT.ledger_id, SCRIPT.key, SCRIPT.entries(range(first, first + 20)), recovery=False)
        await storage.checkpoint()
    await storage.close()
    for folder in WHOLE.entries:
        assert logs(filesystem, folder), "both disks have entries"


def logs(filesystem: MemoryFileSystem, folder: Path) -> list[Path]:
    return [path for path in filesystem.files(folder) if path.suffix == ".log"]


async def held(filesystem: MemoryFileSystem) -> list[int]:
    """The entries that the bookie can read after a start."""
    storage = await open_storage(filesystem)
    result = await storage.reader.read(SCRIPT.ledger_id, 0, COUNT - 1, entries_max=1000, bytes_max=10**6)
    await storage.close()
    return ids_of(result.entries)


async def test_rebuild_that_is_not_told_of_a_further_disk_is_refused_and_loses_none_of_its_entries() -> None:
    async with open_memory_store(MemoryServer(rng=random.Random(1)), rng=random.Random(2)) as store:
        filesystem = MemoryFileSystem()
        await used_disks(filesystem, store)
        before = {path: filesystem.content(path) for path in filesystem.files()}
        with pytest.raises(DataWrongError, match=r"data, journal, entries-1, but data, journal are named.*--entry-dir"):
            await IndexRebuild(filesystem, PART).run()
        assert {path: filesystem.content(path) for path in filesystem.files()} == before
        assert (await IndexRebuild(filesystem, WHOLE).run()).in_doubt_because == ()
        assert await held(filesystem) == list(range(COUNT))


async def test_rebuild_without_a_disk_that_is_not_mounted_is_refused_unless_it_is_said_to_be_lost() -> None:
    async with open_memory_store(MemoryServer(rng=random.Random(1)), rng=random.Random(2)) as store:
        filesystem = MemoryFileSystem()
        await used_disks(filesystem, store)
        for path in [path for path in filesystem.files() if path.is_relative_to(SECOND)]:
            await filesystem.remove(path)
        with pytest.raises(DataWrongError, match=f"{SECOND}: no cookie.*mount the disk.*--lost-dir {SECOND}"):
            await IndexRebuild(filesystem, WHOLE).run()
        with pytest.raises(DataWrongError, match="elsewhere is not one of the directories"):
            await IndexRebuild(filesystem, WHOLE, lost=[Path("/elsewhere")]).run()
        rebuilt = await IndexRebuild(filesystem, WHOLE, lost=[SECOND]).run()
        assert rebuilt.in_doubt_because
        assert await held(filesystem)


async def test_rebuild_does_not_leave_out_a_log_that_is_there_and_cannot_be_opened() -> None:
    """Its disk may be read again tomorrow, and the next start removes what the manifest does not name."""
    async with open_memory_store(MemoryServer(rng=random.Random(1)), rng=random.Random(2)) as store:
        filesystem = MemoryFileSystem()
        await used_disks(filesystem, store)
        (unreadable, *_) = logs(filesystem, WHOLE.entries[1])

        def fault(name: str, path: Path) -> OSError | None:
            return OSError(5, "Input/output error", str(path)) if (name, path) == ("open", unreadable) else None

        filesystem.fault = fault
        with pytest.raises(OSError, match="Input/output error"):
            await IndexRebuild(filesystem, WHOLE).run()
        filesystem.fault = None
        assert await held(filesystem) == list(range(COUNT))


@pytest.mark.parametrize("reset_before", [False, True])
async def test_a_lost_data_disk_does_not_take_the_entries_of_the_other_disks_with_it(reset_before: bool) -> None:
    """What the refused start advises is a reset. It must not make an empty manifest, by which the next start would
    remove every entry log as left over from a crash. ``reset_before``: an older version's did."""
    async with open_memory_store(MemoryServer(rng=random.Random(1)), rng=random.Random(2)) as store:
        filesystem = MemoryFileSystem()
        await used_disks(filesystem, store)
        for path in [path for path in filesystem.files() if path.is_relative_to(DATA)]:
            await filesystem.remove(path)
        if reset_before:
            await reset_identity(filesystem, PART, store, bookie_id=(await only_bookie(store)), rng=random.Random(5))
        left = logs(filesystem, WHOLE.entries[1])
        with pytest.raises(DataWrongError, match="no manifest names this entry log; run `octavo bookie rebuild-index"):
            await reset_identity(filesystem, WHOLE, store, bookie_id=None, rng=random.Random(3))
        lost = [] if reset_before else [DATA, JOURNAL]
        rebuilt = await IndexRebuild(filesystem, WHOLE, lost=lost).run()
        assert rebuilt.in_doubt_because
        await reset_identity(filesystem, WHOLE, store, bookie_id=None, rng=random.Random(4))
        await claim_identity(filesystem, WHOLE.directories, store, address="host:1", rng=random.Random(5))
        assert await held(filesystem)
        assert set(left) <= set(logs(filesystem, WHOLE.entries[1]))


async def only_bookie(store: MetadataStore) -> str:
    (known,) = await store.list_cookies()
    return known.value.bookie_id


async def test_a_reset_with_a_lost_manifest_is_refused_for_a_part_of_the_directories() -> None:
    async with open_memory_store(MemoryServer(rng=random.Random(1)), rng=random.Random(2)) as store:
        filesystem = MemoryFileSystem()
        await used_disks(filesystem, store)
        for path in [DATA / MANIFEST_NAME, *filesystem.files(WHOLE.index), *filesystem.files(WHOLE.entries[0])]:
            await filesystem.remove(path)
        with pytest.raises(DataWrongError, match=r"entries-1.*name all of them"):
            await reset_identity(filesystem, PART, store, bookie_id=None, rng=random.Random(3))
        assert not await filesystem.exists(DATA / MANIFEST_NAME)


def test_two_states_of_unknown_order_keep_what_either_says_and_are_gone_only_if_both_are() -> None:
    """After a merge the part with the higher number may have the older state."""
    fenced, dropped = LedgerState(7), LedgerState(7)
    fenced.fenced, fenced.highest_plus_one, fenced.ledger_key = True, 5, b"key"
    dropped.dropped = dropped.deleted = dropped.private = True
    dropped.lac_plus_one = 9
    for state, other in ((fenced, dropped), (dropped, fenced)):
        together = LedgerState.decode(7, state.encode())
        together.absorb(other)
        assert (together.fenced, together.private, together.ledger_key) == (True, True, b"key")
        assert (together.deleted, together.dropped) == (False, False)
        assert (together.highest_plus_one, together.lac_plus_one) == (5, 9)
