"""A bookie whose disk fills up in the middle of a ledger: its writer goes elsewhere, and no add fails."""

import asyncio
import contextlib
import random
from pathlib import Path

import pytest
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.bookie.disk.filesystem import DiskSpace, RealFileSystem
from octavo.metadata import open_metadata_store
from support.metadata.memory_stores import memory_uri
from support.waiting import WAIT_SECONDS, eventually

import octavo

pytestmark = pytest.mark.usefixtures("logged")

MEBIBYTE = 1024 * 1024


class Disk(RealFileSystem):
    """Real files on a disk that has as much room as the test says."""

    free_bytes = 1024 * MEBIBYTE

    async def disk_space(self, path: Path) -> DiskSpace:
        return DiskSpace(1024 * MEBIBYTE, self.free_bytes)


async def test_writer_leaves_a_bookie_that_turned_read_only_and_no_add_fails(tmp_path: Path) -> None:
    uri = memory_uri("read-only-in-cluster")
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(await open_metadata_store(uri, create=True))
        disks: dict[str, Disk] = {}
        for number in range(4):
            filesystem = Disk()
            stack.push_async_callback(filesystem.close)
            settings = {
                "data_dir": tmp_path / f"bookie-{number}", "port": 0, "metadata": uri, "journal_segment_bytes": 16 *
                MEBIBYTE, "entry_log_bytes": MEBIBYTE, "disk_check_seconds": 0.01, "disk_read_only_bytes": MEBIBYTE,
                "disk_writable_bytes": 2 * MEBIBYTE, "disk_warn_bytes": 3 * MEBIBYTE,
            }  # fmt: skip
            bookie = await Bookie.start(
                load_config(None, {}, settings),
                filesystem=filesystem,
                store=store,
                rng=random.Random(number),
                software="0",
            )
            stack.push_async_callback(bookie.stop)
            disks[bookie.bookie_id] = filesystem
        client = await stack.enter_async_context(octavo.connect(uri))
        ledger = await stack.enter_async_context(client.create_ledger())
        for entry in range(100):
            await ledger.add(b"%d" % entry)
        full = ledger.metadata.fragments[0].bookies[0]
        disks[full].free_bytes = MEBIBYTE // 4 * 3
        added = 100
        async with asyncio.timeout(WAIT_SECONDS):
            while full in ledger.metadata.fragments[-1].bookies:
                await ledger.add(b"%d" % added)
                added += 1
        for _ in range(100):
            await ledger.add(b"%d" % added)
            added += 1
        states = {bookie.bookie_id: bookie.state.value for bookie in await client.bookies()}
        assert [bookie_id for bookie_id, state in states.items() if state == "read-only"] == [full]
        shown = {bookie.bookie_id: bookie.facts for bookie in await client.bookies(details=True)}
        low = [bookie_id for bookie_id, facts in shown.items() if facts is not None and facts["disk_space_low"]]
        assert low == [full]
        short = {
            bookie_id: (facts["disk_short_free_bytes"], facts["disk_short_wanted_bytes"])
            for bookie_id, facts in shown.items()
            if facts is not None
        }
        assert short.pop(full) == (MEBIBYTE // 4 * 3, 2 * MEBIBYTE)
        assert set(short.values()) == {(0, 0)}
        disks[full].free_bytes = 4 * MEBIBYTE

        async def all_writable() -> bool:
            return {bookie.state.value for bookie in await client.bookies()} == {"writable"}

        await eventually(all_writable)
        await ledger.close()
        async with client.open_ledger(ledger.id) as reader:
            assert [entry.payload async for entry in reader] == [b"%d" % entry for entry in range(added)]
