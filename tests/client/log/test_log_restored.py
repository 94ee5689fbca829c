"""A metadata file that is overwritten with an older copy while a log is led and followed."""

import asyncio
import sqlite3
from contextlib import aclosing, closing
from pathlib import Path

import pytest
from octavo.protocol.errors import MetadataError
from support.clusters.log_cluster import collect, open_log_cluster
from support.metadata.metadata_clusters import SqliteCluster
from support.waiting import WAIT_SECONDS

import octavo

PATIENCE_SECONDS = WAIT_SECONDS


async def _add_all_the_time(writer: octavo.LogWriter) -> None:
    while True:
        await writer.add(b"next")


@pytest.mark.parametrize("locked", [True, False])
async def test_a_leader_and_a_follower_end_when_the_metadata_go_back(tmp_path: Path, locked: bool) -> None:
    """The older list does not name the segment that the leader writes: what it went on to acknowledge would be lost,
    and without a fence no bookie would stop it."""
    metadata = SqliteCluster(tmp_path)
    async with open_log_cluster(metadata) as logs, asyncio.timeout(PATIENCE_SECONDS):
        log = await logs.log()
        reading = await (await logs.client()).open_log("orders")
        copy = tmp_path / "copy.db"
        with closing(sqlite3.connect(metadata.path)) as live, closing(sqlite3.connect(copy)) as older:
            live.backup(older)
            writer = await (log.lead() if locked else log.take_over())
            assert await writer.add(b"first") == 0
            async with aclosing(reading.follow()) as entries:
                assert (await anext(entries)).payload == b"first"
                older.backup(live)
                with pytest.raises(MetadataError, match="is older than what this process has already read"):
                    await anext(entries)
            with pytest.raises(MetadataError, match="is older than what this process has already read"):
                await _add_all_the_time(writer)
        assert writer.lost.is_set()
        await writer.close()


async def test_an_id_that_is_given_out_twice_mixes_no_ledgers_into_a_log(tmp_path: Path) -> None:
    """Everything was stopped, and started on an older copy of the metadata: the next segment gets the id of a ledger of
    which the bookies hold entries. Its leader stops, later ones refuse to lead, and followers see none of them."""
    metadata, older = SqliteCluster(tmp_path), SqliteCluster(tmp_path / "older")
    older.path.parent.mkdir(parents=True)
    async with open_log_cluster(metadata) as logs, asyncio.timeout(PATIENCE_SECONDS):
        log = await logs.log()
        async with log.lead() as writer:
            assert await writer.add(b"kept") == 0
            with closing(sqlite3.connect(metadata.path)) as live, closing(sqlite3.connect(older.path)) as copy:
                live.backup(copy)
            await writer.roll()
            assert await writer.add_many([b"unknown to the copy"] * 3) == range(1, 4)
            assert len(await collect(log, 0, 4)) == 4  # the bookies know how far the ledger goes

        logs.metadata = older
        client = await logs.client()
        log, reading = await client.open_log("orders"), await client.open_log("orders")
        # Not with lead(): time does not pass here, and so the copy's lock is never free.
        writer = await log.take_over()
        with pytest.raises(octavo.LogDamagedError, match=r"ledger 1 .* replaced by an older copy") as refused:
            await writer.add(b"new")
        assert refused.value.may_have_happened
        assert writer.lost.is_set()
        await writer.close()
        async with aclosing(reading.follow()) as entries:
            assert (await anext(entries)).payload == b"kept"
            with pytest.raises(octavo.LogDamagedError, match="was sealed before"):
                await anext(entries)
        with pytest.raises(octavo.LogDamagedError, match="replaced by an older copy"):
            await log.take_over()
        with pytest.raises(octavo.LogDamagedError, match="was sealed before"):
            await log.outcome(refused.value)
