"""One whole bookie on a disk in memory, and connections to it."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.metadata import open_metadata_store
from support.disks.faulty_filesystem import MemoryFileSystem
from support.raw_client import RawClient

CACHE_BYTES = 512 * 1024


@asynccontextmanager
async def bookie_on(filesystem: MemoryFileSystem, **more: object) -> AsyncIterator[Bookie]:
    settings = {
        "data_dir": Path("/bookie"), "port": 0, "cache_bytes": CACHE_BYTES, "journal_segment_bytes": 16 << 20,
        "checkpoint_journal_bytes": 4 << 20, "entry_log_bytes": 8 << 20, "scrub_bytes_per_second": 0,
        **more,
    }  # fmt: skip
    async with await open_metadata_store("memory://", create=True) as store:
        bookie = await Bookie.start(
            load_config(None, {}, settings), filesystem=filesystem, store=store, rng=random.Random(1), software="0"
        )
        try:
            yield bookie
        finally:
            await bookie.stop()


@asynccontextmanager
async def connected(bookie: Bookie) -> AsyncIterator[RawClient]:
    host, _, port = bookie.address.rpartition(":")
    async with RawClient(host, int(port)) as client:
        await client.greet()
        yield client
