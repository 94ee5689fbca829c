"""The power is cut during every single operation on the disk: what was acknowledged is there, what was fenced is
fenced.

The workload crosses flushes, checkpoints, rolled logs, merges of the index and trimmed journals. OCTAVO_CRASH_SEEDS
(default 1) multiplies the fates drawn for the unsynced pages of each crash.
"""

import asyncio
import os
from functools import partial
from pathlib import Path

import pytest
from octavo.bookie.journal.format import DATA_START, Record, SegmentHeader, encode_record, examine
from octavo.bookie.journal.journal import JournalPosition, JournalSettings
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.protocol.errors import LedgerFencedError
from octavo.protocol.ids import EntryId
from support.clusters.ledgers import LedgerScript, ids_of
from support.disks.faulty_filesystem import MemoryFileSystem, run_until_crash

pytestmark = pytest.mark.usefixtures("logged")

SETTINGS = StorageSettings(
    cache_bytes_max=2_500,
    entry_log_bytes=5_000,
    checkpoint_journal_bytes=2_500,
    checkpoint_seconds=3600,
    journal=JournalSettings(segment_bytes=16 * 1024, first_fill_bytes=0),
)
SEEDS = int(os.environ.get("OCTAVO_CRASH_SEEDS", "1"))


class Witness:
    """What the storage has promised so far."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, set[int]] = {1: set(), 2: set(), 3: set()}
        self.sent: dict[int, set[int]] = {1: set(), 2: set(), 3: set()}
        self.fenced: set[int] = set()
        self.failures: list[BaseException] = []


SCRIPTS = {ledger_id: LedgerScript(ledger_id, payload_bytes=30) for ledger_id in (1, 2, 3)}


async def open_storage(filesystem: MemoryFileSystem, witness: Witness) -> Storage:
    def failed(error: BaseException) -> None:
        if not filesystem.crashed.is_set():  # afterwards it is the test that cancels everything
            witness.failures.append(error)

    return await Storage.open(
        filesystem,
        directory=Path("/d"),
        journal_directory=Path("/j"),
        settings=SETTINGS,
        on_fatal=failed,
    )


async def work(filesystem: MemoryFileSystem, witness: Witness, rounds: int, start: int = 0) -> None:
    storage = await open_storage(filesystem, witness)

    def add(ledger_id: int, ids: range, *, recovery: bool = False) -> asyncio.Future[None]:
        script = SCRIPTS[ledger_id]
        witness.sent[ledger_id].update(ids)
        future = storage.writer.add(script.ledger_id, script.key, script.entries(ids), recovery=recovery)

        def acknowledged(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and done.exception() is None:
                witness.acknowledged[ledger_id].update(ids)

        future.add_done_callback(acknowledged)
        return future

    for round_number in range(start, start + rounds):
        first = round_number * 20
        adds = [
            add(1, range(first, first + 10)),
            add(1, range(first + 10, first + 20)),
            add(2, range(first, first + 20, 2)),
        ]
        if round_number == 1 and start == 0:
            await adds[-1]
            await storage.writer.fence(SCRIPTS[3].ledger_id, SCRIPTS[3].key)
            witness.fenced.add(3)
            adds.append(add(3, range(5), recovery=True))
        if round_number % 2:
            adds.append(add(2, range(first - 20, first, 2)))  # resent
            adds.append(add(2, range(first - 19, first, 2)))  # the gaps between, later
        storage.writer.write_lac(SCRIPTS[1].ledger_id, SCRIPTS[1].key, SCRIPTS[1].explicit_lac(first), EntryId(first))
        if round_number % 3 == 1:
            await storage.checkpoint()
        await asyncio.gather(*adds)
    await storage.close()


async def verify(filesystem: MemoryFileSystem, witness: Witness) -> None:
    storage = await open_storage(filesystem, witness)
    for ledger_id, script in SCRIPTS.items():
        held: list[bytes] = []
        first = 0
        while first < 1000:
            result = await storage.reader.read(script.ledger_id, first, 1000, entries_max=64, bytes_max=5_000)
            assert not result.unknown, "a crash is no damage"
            held += result.entries
            first = result.last_covered + 1
        ids = ids_of(held)
        assert witness.acknowledged[ledger_id] <= set(ids) <= witness.sent[ledger_id]
        assert held == script.entries(ids)
        assert [
            i for low, high in await storage.reader.list_entries(script.ledger_id) for i in range(low, high + 1)
        ] == ids
        if ledger_id in witness.fenced:
            with pytest.raises(LedgerFencedError):
                storage.writer.add(script.ledger_id, script.key, [script.entry(999)], recovery=False)
    assert not storage.corruption
    await storage.close()


async def operations_of(rounds: int) -> MemoryFileSystem:
    filesystem, witness = MemoryFileSystem(), Witness()
    assert not await run_until_crash(filesystem, lambda: work(filesystem, witness, rounds))
    await verify(filesystem, witness)
    assert witness.acknowledged == witness.sent
    return filesystem


async def test_workload_crosses_everything_a_crash_should_meet() -> None:
    filesystem = await operations_of(8)
    history = {(name, path.parent.name, path.suffix) for name, path in filesystem.history}
    assert {
        ("sync", "entries", ".log"), ("create", "entries", ".log"), ("sync", "index", ".runs"), ("remove", "index",
        ".runs"), ("rename", "d", ""), ("rename", "entries", ".totals"), ("sync", "j", ".segment"),
    } <= history  # fmt: skip


@pytest.mark.parametrize("part", range(4))
async def test_crash_at_every_operation_loses_nothing_that_was_acknowledged(part: int) -> None:
    total = (await operations_of(8)).operations
    assert total > 100
    for crash_at in range(1 + part, total + 1, 4):
        for seed in range(SEEDS):
            filesystem, witness = MemoryFileSystem(crash_at=crash_at, seed=seed), Witness()
            crashed = await run_until_crash(filesystem, partial(work, filesystem, witness, 8))
            assert crashed or crash_at > 0.8 * total, "the number of operations varies a little"
            survivor = filesystem.after_crash(crash_at * 1000 + seed)
            await verify(survivor, witness)
            assert not witness.failures


@pytest.mark.parametrize("seed", range(12 * SEEDS))
async def test_crashes_upon_crashes_lose_nothing(seed: int) -> None:
    witness = Witness()
    filesystem = MemoryFileSystem(seed=seed)
    for life in range(6):
        filesystem.crash_at = 17 + (seed * 31 + life * 47) % 110
        await run_until_crash(filesystem, partial(work, filesystem, witness, 3, start=3 * life))
        filesystem = filesystem.after_crash(seed * 100 + life)
    await verify(filesystem, witness)
    await verify(filesystem, witness)


def test_journal_record_in_which_an_intact_entry_stands_for_another_does_not_verify() -> None:
    """A torn write over a recycled segment can leave entries of the old record in the new: whole ones, with good
    CRC32Cs."""
    header = SegmentHeader(segment=1, seed=7, segment_bytes=65536, incarnation=1, cut=None)
    synced = JournalPosition(1, DATA_START)
    entries = SCRIPTS[2].entries(range(81, 100, 2))
    body = b"".join(entries)
    mixture = b"".join([SCRIPTS[2].entry(201), *entries[1:]])
    assert len(mixture) == len(body)
    head, padding = encode_record(header, DATA_START, 1, [body], body_bytes=len(body), synced=synced)
    for content, good in ((body, True), (mixture, False)):
        stored = head + content + padding
        found = examine(stored, DATA_START, DATA_START, header, DATA_START + len(stored))
        assert isinstance(found, Record) is good
