"""A bookie that was down while others filled its disk starts all the same, and collects garbage."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.bookie.identity.errors import BookieStartError
from octavo.metadata import MetadataStore, open_metadata_store
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.faulty_filesystem import MemoryFileSystem
from support.metadata.ledger_metadata import open_ledger
from support.waiting import eventually

COUNT = 200


@asynccontextmanager
async def running(filesystem: MemoryFileSystem, store: MetadataStore) -> AsyncIterator[Bookie]:
    settings = {
        "data_dir": Path("/bookie"), "port": 0, "cache_bytes": 64 * 1024, "journal_segment_bytes": 16 << 20,
        "entry_log_bytes": 64 * 1024, "garbage_seconds": 0.1, "disk_check_seconds": 0.01, "disk_warn_bytes": 0,
        "disk_writable_bytes": 0, "disk_read_only_bytes": 0, "scrub_bytes_per_second": 0,
    }  # fmt: skip
    bookie = await Bookie.start(
        load_config(None, {}, settings), filesystem=filesystem, store=store, rng=random.Random(1), software="0"
    )
    try:
        yield bookie
    finally:
        await bookie.stop()


async def filled(filesystem: MemoryFileSystem, store: MetadataStore) -> tuple[LedgerScript, LedgerScript]:
    """Two ledgers of a bookie that has stopped, most of each in entry logs of its own."""
    scripts = []
    for _ in range(2):
        ledger_id = await store.allocate_ledger_id()
        await store.create_ledger(open_ledger(ledger_id))
        scripts.append(LedgerScript(ledger_id, payload_bytes=1_000))
    async with running(filesystem, store) as bookie:
        storage = bookie.service.storage
        for script in scripts:
            for first in range(0, COUNT, 20):
                await storage.writer.add(
                    script.ledger_id, script.key, script.entries(range(first, first + 20)), recovery=False
                )
            await storage.checkpoint()
    return scripts[0], scripts[1]


async def test_a_bookie_starts_on_a_disk_without_any_room_and_gets_some_back() -> None:
    filesystem = MemoryFileSystem()
    async with await open_metadata_store("memory://", create=True) as store:
        doomed, kept = await filled(filesystem, store)
        filesystem.capacity_bytes = filesystem.used_bytes
        full = sum(len(filesystem.content(path)) for path in filesystem.files(Path("/bookie/entries")))
        async with running(filesystem, store) as bookie:
            storage = bookie.service.storage
            result = await storage.reader.read(kept.ledger_id, 0, COUNT - 1, entries_max=COUNT, bytes_max=1 << 30)
            assert ids_of(result.entries) == list(range(COUNT))
            await store.delete_ledger(doomed.ledger_id)
            await eventually(lambda: storage.statistics().log_bytes <= full * 0.6, "upkeep frees space")
            result = await storage.reader.read(kept.ledger_id, 0, COUNT - 1, entries_max=COUNT, bytes_max=1 << 30)
            assert ids_of(result.entries) == list(range(COUNT))
        async with running(filesystem, store) as bookie:
            result = await bookie.service.storage.reader.read(kept.ledger_id, 0, 0, entries_max=1, bytes_max=1 << 20)
            assert result.entries == kept.entries(range(1))


async def test_where_nothing_can_be_given_up_the_start_says_what_it_needs() -> None:
    filesystem = MemoryFileSystem()
    async with await open_metadata_store("memory://", create=True) as store:
        await filled(filesystem, store)
        await filesystem.remove(Path("/bookie/reserve"))
        for path in filesystem.files(Path("/bookie/journal")):
            if path.name.startswith("spare-"):
                await filesystem.remove(path)
        filesystem.capacity_bytes = filesystem.used_bytes
        with pytest.raises(BookieStartError, match="free some space"):
            async with running(filesystem, store):
                pass
        filesystem.capacity_bytes = None
        async with running(filesystem, store):
            pass
