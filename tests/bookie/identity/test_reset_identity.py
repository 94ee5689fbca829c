"""`octavo bookie reset-identity` is broken off at every operation: the bookie never starts without doubt (rule B4)."""

import random
from pathlib import Path

import pytest
from octavo.bookie.identity.cookie import IdentityRefusedError, claim_identity, note_served
from octavo.bookie.offline.layout import Layout
from octavo.bookie.offline.reset_identity import reset_identity
from octavo.bookie.storage.manifest import DOUBT_OF_EVERY_LEDGER
from octavo.bookie.storage.manifest_keeper import read_manifest
from octavo.metadata import Cookie, MetadataStore
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.metadata.updates.garbage_hold import read_hold
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.held_entries import Doubt
from support.disks.faulty_filesystem import MemoryFileSystem, run_until_crash

LAYOUT = Layout.of(Path("/disk1/data"), Path("/disk2/journal"))
OPERATIONS_MAX = 40
"""More than a reset takes."""


async def start(filesystem: MemoryFileSystem, store: MetadataStore, seed: int) -> Doubt | None:
    """Take the identity as a start does; the bookie's doubt. Raises
    :class:`IdentityRefusedError`."""
    await claim_identity(filesystem, LAYOUT.directories, store, address="127.0.0.1:3181", rng=random.Random(seed))
    await filesystem.make_directory(LAYOUT.index)
    return (await read_manifest(filesystem, LAYOUT.data, must_exist=False)).doubt


async def restored_copy(store: MetadataStore, seed: int) -> MemoryFileSystem:
    """The disks of a bookie as they were before its latest start, which then refuse to start."""
    filesystem = MemoryFileSystem(seed=seed)
    assert await start(filesystem, store, 1) is None
    copy = MemoryFileSystem(seed=seed)
    for path in filesystem.files():
        copy.set_content(path, filesystem.content(path))
    assert await start(filesystem, store, 2) is None
    return copy


async def reset(filesystem: MemoryFileSystem, store: MetadataStore, seed: int) -> None:
    await reset_identity(filesystem, LAYOUT, store, bookie_id=None, rng=random.Random(seed))


async def test_a_reset_that_is_broken_off_leaves_a_bookie_that_refuses_or_doubts() -> None:
    refused = 0
    for crash_at in range(1, OPERATIONS_MAX):
        for seed in range(3):
            async with open_memory_store(MemoryServer(rng=random.Random(1)), rng=random.Random(2)) as store:
                filesystem = await restored_copy(store, seed)
                filesystem.crash_at = filesystem.operations + crash_at

                async def attempt(disk: MemoryFileSystem = filesystem, metadata: MetadataStore = store) -> None:
                    await reset(disk, metadata, 3)

                crashed = await run_until_crash(filesystem, attempt)
                filesystem.crash_at = None
                after = filesystem.after_crash(seed) if crashed else filesystem
                try:
                    doubt = await start(after, store, 4)
                except IdentityRefusedError:
                    refused += 1
                    await reset(after, store, 5)
                    doubt = await start(after, store, 6)
                assert doubt == DOUBT_OF_EVERY_LEDGER, f"crash at operation {crash_at}, seed {seed}"
    assert not crashed, "the last resets are not broken off"
    assert refused, "the first ones are"


async def test_a_reset_raises_the_generation_over_that_of_the_metadata() -> None:
    async with open_memory_store(MemoryServer(rng=random.Random(1)), rng=random.Random(2)) as store:
        filesystem = await restored_copy(store, 0)
        (before,) = await store.list_cookies()
        await reset(filesystem, store, 3)
        (after,) = await store.list_cookies()
        assert after.value.generation > before.value.generation
        assert after.value.body != before.value.body


@pytest.mark.parametrize("given", [True, False])
async def test_a_reset_for_a_bookie_that_the_metadata_do_not_know_is_refused_and_changes_nothing(given: bool) -> None:
    """The metadata were restored from a backup that is older than the bookie: they hold no address for it either."""
    async with open_memory_store(MemoryServer(rng=random.Random(1)), rng=random.Random(2)) as store:
        filesystem = await restored_copy(store, 0)
        before = {path: filesystem.content(path) for path in filesystem.files()}
        (known,) = await store.list_cookies()
        bookie_id = known.value.bookie_id
        await store.delete_cookie(bookie_id, known.version)
        with pytest.raises(InvalidArgumentError, match=f"no bookie {bookie_id}: .*check the metadata URI"):
            await reset_identity(
                filesystem, LAYOUT, store, bookie_id=bookie_id if given else None, rng=random.Random(3)
            )
        assert {path: filesystem.content(path) for path in filesystem.files()} == before
        assert await store.list_cookies() == []


async def test_a_reset_on_an_older_copy_of_the_metadata_holds_garbage_collection() -> None:
    """Afterwards nothing shows that the metadata were older."""
    async with open_memory_store(MemoryServer(rng=random.Random(1)), rng=random.Random(2)) as store:
        filesystem = MemoryFileSystem()
        older: Cookie | None = None
        for seed in (1, 2):
            identity = await claim_identity(
                filesystem, LAYOUT.directories, store, address="127.0.0.1:3181", rng=random.Random(seed)
            )
            await note_served(filesystem, LAYOUT.directories, identity)
            (known,) = await store.list_cookies()
            older = older or known.value
        assert older is not None
        await filesystem.make_directory(LAYOUT.index)
        await read_manifest(filesystem, LAYOUT.data, must_exist=False)
        await store.compare_and_set_cookie(older, known.version)
        await reset(filesystem, store, 3)
        assert await read_hold(store) is not None
