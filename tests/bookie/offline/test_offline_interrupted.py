"""Operators' tools interrupted at every file operation: nothing acknowledged is lost, no doubt is forgotten, and the
next attempt succeeds."""

import contextlib
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from octavo.bookie.identity.cookie import IdentityRefusedError, claim_identity, note_served
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.offline.check import OfflineCheck
from octavo.bookie.offline.inspect_file import inspect_file
from octavo.bookie.offline.layout import Layout
from octavo.bookie.offline.rebuild_index import IndexRebuild
from octavo.bookie.offline.reset_identity import reset_identity
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.errors import BookieInDoubtError, BookieStorageError, LedgerFencedError
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.faulty_filesystem import MemoryFileSystem, run_until_crash

pytestmark = pytest.mark.usefixtures("logged")

DATA, JOURNAL = Path("/b"), Path("/b/journal")
LAYOUT = Layout.of(DATA)
SETTINGS = StorageSettings(
    cache_bytes_max=20_000,
    entry_log_bytes=4_000,
    checkpoint_seconds=3600,
    journal=JournalSettings(segment_bytes=64 * 1024, first_fill_bytes=0),
)
SCRIPTS = [LedgerScript(ledger_id, payload_bytes=60) for ledger_id in (1, 2)]
FENCED = LedgerScript(3)
COUNT = 40


async def open_storage(filesystem: MemoryFileSystem) -> Storage:
    return await Storage.open(
        filesystem, directory=DATA, journal_directory=JOURNAL, settings=SETTINGS, on_fatal=lambda _error: None
    )


def copy_of(filesystem: MemoryFileSystem) -> MemoryFileSystem:
    copy = MemoryFileSystem()
    for path in filesystem.files():
        copy.set_content(path, filesystem.content(path))
    return copy


async def used_disk(filesystem: MemoryFileSystem | None = None) -> MemoryFileSystem:
    """Two ledgers in several logs and parts, and a fenced one, after a clean stop."""
    filesystem = filesystem or MemoryFileSystem()
    storage = await open_storage(filesystem)
    await storage.writer.fence(FENCED.ledger_id, FENCED.key)
    for first in range(0, COUNT, 20):
        for script in SCRIPTS:
            entries = script.entries(range(first, first + 20))
            await storage.writer.add(script.ledger_id, script.key, entries, recovery=False)
        await storage.checkpoint()
    await storage.close()
    return filesystem


async def keeps_its_promises(filesystem: MemoryFileSystem) -> bool:
    """Whether the bookie starts. If it does, every acknowledged entry is found, none is absent, and the fence holds."""
    try:
        storage = await open_storage(copy_of(filesystem))
    except BookieStorageError:
        return False
    for script in SCRIPTS:
        result = await storage.reader.read(script.ledger_id, 0, COUNT - 1, entries_max=1000, bytes_max=10**6)
        assert ids_of(result.entries) == list(range(COUNT))
    with pytest.raises((LedgerFencedError, BookieInDoubtError)):
        storage.writer.add(FENCED.ledger_id, FENCED.key, [FENCED.entry(0)], recovery=False)
    await storage.close()
    return True


# --- rebuild-index -------------------------------------------------------------------------------------------------


async def rebuild(filesystem: MemoryFileSystem) -> None:
    await IndexRebuild(filesystem, LAYOUT).run()


def damage_an_index_part(filesystem: MemoryFileSystem) -> None:
    part = filesystem.files(DATA / "index")[0]
    filesystem.set_content(part, filesystem.content(part)[:-5])


@pytest.mark.parametrize("damage", [lambda _: None, damage_an_index_part], ids=["sound", "damaged"])
async def test_rebuild_that_loses_power_at_any_operation_leaves_the_old_state_or_the_new_one(
    damage: Callable[[MemoryFileSystem], None],
) -> None:
    before = await used_disk()
    damage(before)
    startable = await keeps_its_promises(before)
    whole = copy_of(before)
    await rebuild(whole)
    assert await keeps_its_promises(whole)
    assert whole.operations > 4
    started = 0
    for crash_at in range(1, whole.operations + 1):
        for seed in range(4):
            filesystem = copy_of(before)
            filesystem.crash_at = crash_at
            assert await run_until_crash(filesystem, lambda disk=filesystem: rebuild(disk))  # type: ignore[misc]
            survivor = filesystem.after_crash(seed)
            starts = await keeps_its_promises(survivor)
            assert starts or not startable
            started += starts
            await rebuild(survivor)
            assert await keeps_its_promises(survivor), "the next attempt succeeds"
    assert startable or started > 0


@pytest.mark.parametrize("damage", [lambda _: None, damage_an_index_part], ids=["sound", "damaged"])
async def test_rebuild_that_fails_at_any_operation_leaves_the_old_state_or_doubt(
    damage: Callable[[MemoryFileSystem], None],
) -> None:
    """A place that cannot be read may hold what was acknowledged: what the rebuild left out, it doubts."""
    before = await used_disk()
    damage(before)
    startable = await keeps_its_promises(before)
    fails_at = 0
    failed = True
    while failed:
        fails_at += 1
        filesystem = copy_of(before)
        failed = await fails(filesystem, fails_at, rebuild)
        assert not filesystem.open_files, "nothing is left open"
        filesystem.fault = None
        try:
            storage = await open_storage(filesystem)
        except BookieStorageError:
            assert not startable
            continue
        for script in SCRIPTS:
            result = await storage.reader.read(script.ledger_id, 0, COUNT - 1, entries_max=1000, bytes_max=10**6)
            unknown = {entry_id for low, high in result.unknown for entry_id in range(low, high + 1)}
            assert set(ids_of(result.entries)) | unknown == set(range(COUNT)), f"absent, operation {fails_at}"
        with pytest.raises((LedgerFencedError, BookieInDoubtError)):
            storage.writer.add(FENCED.ledger_id, FENCED.key, [FENCED.entry(0)], recovery=False)
        await storage.close()
    assert fails_at > 20


async def fails(
    filesystem: MemoryFileSystem, fails_at: int, act: Callable[[MemoryFileSystem], Awaitable[object]]
) -> bool:
    """Run a tool whose n-th file operation fails with EIO, and from then on every one like it on the same file. False
    when it makes fewer operations."""
    count = 0
    failing: set[tuple[str, Path]] = set()

    def fault(name: str, path: Path) -> OSError | None:
        nonlocal count
        count += 1
        if count == fails_at:
            failing.add((name, path))
        return OSError(5, "Input/output error", str(path)) if (name, path) in failing else None

    filesystem.fault = fault
    with contextlib.suppress(OSError, BookieStorageError):
        await act(filesystem)
    return count >= fails_at


# --- reset-identity ------------------------------------------------------------------------------------------------


async def start(filesystem: MemoryFileSystem, store: MetadataStore, seed: int) -> None:
    """Take the identity and note that the bookie has served, as a start does."""
    places = {"data": DATA, "journal": JOURNAL}
    identity = await claim_identity(filesystem, places, store, address="h:1", rng=random.Random(seed))
    await note_served(filesystem, places, identity)


async def reset(filesystem: MemoryFileSystem, store: MetadataStore) -> None:
    await reset_identity(filesystem, LAYOUT, store, bookie_id=None, rng=random.Random(5))


async def test_reset_identity_that_loses_power_at_any_operation_never_lets_a_start_forget_the_doubt() -> None:
    """The disks were restored from an old copy: only in doubt may the bookie start on them."""
    crash_at, crashed = 0, True
    outcomes = set()
    while crashed:
        crash_at += 1
        for seed in range(3):
            async with open_memory_store(MemoryServer(rng=random.Random(1)), rng=random.Random(2)) as store:
                filesystem = MemoryFileSystem()
                await start(filesystem, store, 1)
                await used_disk(filesystem)
                old_copy = copy_of(filesystem)
                await start(filesystem, store, 2)
                with pytest.raises(IdentityRefusedError, match="old copy"):
                    await start(old_copy, store, 3)
                old_copy.crash_at = old_copy.operations + crash_at
                crashed = await run_until_crash(old_copy, lambda disk=old_copy, to=store: reset(disk, to))  # type: ignore[misc]
                old_copy.crash_at = None
                survivor = old_copy.after_crash(seed) if crashed else old_copy
                try:
                    await start(survivor, store, 4)
                except IdentityRefusedError:
                    outcomes.add("refused")
                    await reset(survivor, store)
                    await start(survivor, store, 5)
                storage = await open_storage(survivor)
                assert storage.doubted_ids_stop is not None, (
                    f"started without doubt, interrupted at operation {crash_at}"
                )
                outcomes.add("in doubt")
                await storage.close()
    assert crash_at > 5
    assert outcomes == {"refused", "in doubt"}


# --- check and inspect ---------------------------------------------------------------------------------------------


async def check(filesystem: MemoryFileSystem) -> list[str]:
    return [str(finding) async for finding in OfflineCheck(filesystem, LAYOUT).findings()]


async def inspect_every_file(filesystem: MemoryFileSystem) -> list[str]:
    lines = []
    for path in filesystem.files():
        if not path.name.startswith(("spare-", "fresh", "lock")):
            lines += [line async for line in inspect_file(filesystem, path)]
    return lines


@pytest.mark.parametrize("tool", [check, inspect_every_file])
async def test_tool_that_looks_changes_nothing_and_reports_what_it_cannot_read(
    tool: Callable[[MemoryFileSystem], Awaitable[list[str]]],
) -> None:
    used = await used_disk()
    sound = await tool(copy_of(used))
    fails_at, failed = 0, True
    while failed:
        fails_at += 1
        filesystem = copy_of(used)
        told: list[list[str]] = []

        async def act(disk: MemoryFileSystem, into: list[list[str]] = told) -> None:
            into.append(await tool(disk))

        failed = await fails(filesystem, fails_at, act)
        assert filesystem.operations == 0, "it changed something"
        assert not filesystem.open_files
        if failed and told:
            assert told[0] != sound, f"the failure of operation {fails_at} goes unmentioned"
    assert fails_at > 20
