"""A client with many locks on a metadata file: releases share transactions, and a renewal waits for nothing."""

import asyncio
import sqlite3
from collections.abc import Awaitable
from contextlib import closing
from pathlib import Path

import pytest
from octavo.metadata.sqlite.store import open_sqlite_store
from support.inside import handle_of
from support.metadata.write_ahead_log import commits_in_log
from support.waiting import WAIT_SECONDS, loop_turns


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


async def test_locks_released_at_the_same_time_share_transactions(path: Path) -> None:
    async with await open_sqlite_store(path, create=True) as store, await open_sqlite_store(path) as other:
        leases = await asyncio.gather(*(store.lock(f"log/{number}", "one") for number in range(100)))
        before = commits_in_log(path)
        await asyncio.gather(*(lease.release() for lease in leases))
        assert commits_in_log(path) - before <= 10
        assert await other.try_lock("log/99", "other") is not None


async def test_renewal_is_made_before_all_that_waits_for_its_turn(path: Path) -> None:
    """A client that creates thousands of logs keeps the locks that it has."""
    async with await open_sqlite_store(path, create=True) as store:
        records = handle_of(store).records()
        await records.begin_session("session", 10.0)
        order: list[str] = []

        async def noted(name: str, step: Awaitable[object]) -> None:
            await step
            order.append(name)

        with closing(sqlite3.connect(path, isolation_level=None)) as other_process:
            other_process.execute("BEGIN IMMEDIATE")
            steps = [asyncio.ensure_future(noted("change", records.allocate_ledger_id()))]
            await loop_turns(5)  # the thread waits for the file
            steps += [asyncio.ensure_future(noted("read", records.cluster_id())) for _ in range(5)]
            await loop_turns(5)
            steps.append(asyncio.ensure_future(noted("renewal", records.renew_session("session", 10.0))))
            await loop_turns(5)
            other_process.execute("ROLLBACK")
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.gather(*steps)
        assert set(order[: order.index("renewal")]) <= {"change"}
