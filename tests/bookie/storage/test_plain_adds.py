"""Adds of many ledgers that are accepted together are as durable as others, and as few of them are lost."""

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.bookie.storage.writes import Done
from octavo.protocol.entries import verify_lone_entries
from octavo.protocol.packs import PlainAdds
from support.clusters.ledgers import LedgerScript
from support.disks.faulty_filesystem import MemoryFileSystem
from support.waiting import WAIT_SECONDS

pytestmark = pytest.mark.usefixtures("logged")

LEDGERS = [LedgerScript(ledger_id) for ledger_id in range(0, 3000, 100)]


async def opened(filesystem: MemoryFileSystem, failures: list[BaseException] | None = None) -> Storage:
    """Groups of few records, and room for the states of four ledgers."""
    journal = JournalSettings(segment_bytes=64 * 1024, first_fill_bytes=0, group_records_max=7)
    return await Storage.open(
        filesystem,
        directory=Path("/bookie/data"),
        journal_directory=Path("/bookie/journal"),
        settings=StorageSettings(
            cache_bytes_max=20_000, ledgers_hot_max=4, checkpoint_seconds=3600, entry_log_bytes=30_000, journal=journal
        ),
        on_fatal=(failures if failures is not None else []).append,
    )


class Outcome:
    """What becomes of adds that are taken together."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.failure: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def __call__(self, taken: Sequence[int]) -> Done:
        self.taken = list(taken)
        return self.failure.set_result

    async def wait(self) -> BaseException | None:
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.failure


def add(storage: Storage, entry_id: int, outcome: Outcome) -> list[int]:
    """Add an entry to each ledger. Returns the indexes of those that were left out."""
    entries = [ledger.entry(entry_id) for ledger in LEDGERS]
    ids = [ledger.ledger_id for ledger in LEDGERS]
    adds = PlainAdds(ids, [ledger.key for ledger in LEDGERS], [0] * len(LEDGERS), entries)
    verified = verify_lone_entries(ids, entries)
    assert verified is not None
    return storage.writer.add_plain_then(adds, verified, outcome)


async def begun(storage: Storage) -> None:
    """Each ledger has an entry 0."""
    for ledger in LEDGERS:
        await storage.writer.add(ledger.ledger_id, ledger.key, [ledger.entry(0)], recovery=False)


async def held(storage: Storage) -> list[list[bytes]]:
    return [
        list((await storage.reader.read(ledger.ledger_id, 0, 99, entries_max=500, bytes_max=100_000)).entries)
        for ledger in LEDGERS
    ]


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_what_was_reported_durable_survives_a_crash(checkpoint: bool) -> None:
    filesystem = MemoryFileSystem()
    storage = await opened(filesystem)
    await begun(storage)
    for entry_id in range(1, 6):
        outcome = Outcome()
        assert add(storage, entry_id, outcome) == []
        assert outcome.taken == list(range(len(LEDGERS)))
        assert not outcome.failure.done()
        assert await outcome.wait() is None
        if checkpoint and entry_id == 3:
            await storage.checkpoint()
    storage = await opened(filesystem.after_crash(1))
    assert await held(storage) == [ledger.entries(range(6)) for ledger in LEDGERS]
    assert [storage.ledgers.get(ledger.ledger_id).highest_plus_one for ledger in LEDGERS] == [6] * len(LEDGERS)
    await storage.close()


async def test_ledgers_that_are_not_as_usual_are_left_out() -> None:
    storage = await opened(MemoryFileSystem())
    await begun(storage)
    await storage.writer.fence(LEDGERS[2].ledger_id, LEDGERS[2].key)
    await storage.writer.add(LEDGERS[4].ledger_id, LEDGERS[4].key, [LEDGERS[4].entry(1)], recovery=False)
    outcome = Outcome()
    assert add(storage, 1, outcome) == [2, 4]
    assert outcome.taken == [index for index in range(len(LEDGERS)) if index not in {2, 4}]
    assert await outcome.wait() is None
    assert [len(entries) for entries in await held(storage)] == [
        1 if index == 2 else 2 for index in range(len(LEDGERS))
    ]
    await storage.close()


async def test_a_journal_that_fails_fails_all_that_were_taken_and_takes_no_more() -> None:
    filesystem = MemoryFileSystem()
    failures: list[BaseException] = []
    storage = await opened(filesystem, failures)
    await begun(storage)

    def fault(name: str, path: Path) -> OSError | None:
        return OSError(errno.EIO, os.strerror(errno.EIO)) if name == "sync" and "journal" in str(path) else None

    filesystem.fault = fault
    outcome = Outcome()
    assert add(storage, 1, outcome) == []
    assert await outcome.wait() is not None
    assert failures
    again = Outcome()
    assert add(storage, 2, again) == list(range(len(LEDGERS)))
    assert not again.failure.done()
    await storage.close()
