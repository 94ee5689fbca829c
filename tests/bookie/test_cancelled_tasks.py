"""Code that cancels all tasks of the event loop: the bookie says that it has failed (rules H2 and B1)."""

import asyncio
import random
from pathlib import Path

from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.bookie.disk.filesystem import RealFileSystem
from octavo.metadata import MetadataStore
from support.waiting import WAIT_SECONDS


async def test_bookie_whose_tasks_are_cancelled_has_failed_and_stops(tmp_path: Path, store: MetadataStore) -> None:
    others = asyncio.all_tasks()
    config = load_config(None, {}, {"data_dir": tmp_path, "port": 0, "journal_segment_bytes": 16 << 20})
    filesystem = RealFileSystem()
    bookie = await Bookie.start(config, filesystem=filesystem, store=store, rng=random.Random(1), software="0-test")
    assert bookie.failure is None

    for task in asyncio.all_tasks() - others:
        task.cancel()

    async with asyncio.timeout(WAIT_SECONDS):
        assert isinstance(await bookie.broken(), asyncio.CancelledError)
        await bookie.stop()
        await filesystem.close()
