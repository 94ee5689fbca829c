"""Deferred adds and forces at a bookie (rule W10): what is answered before it is durable, and what is not."""

import asyncio
import errno
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.bookie.journal.journal import JournalFailedError, JournalSettings
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.metadata import MetadataStore
from octavo.protocol.errors import (
    BookieStorageError,
    DuplicateEntryError,
    LedgerFencedError,
    OctavoError,
    UnauthorizedError,
    UnsupportedOperationError,
)
from octavo.protocol.messages import (
    CAPABILITY_DEFERRED_SYNC,
    Add,
    Added,
    AddFlag,
    Force,
    Forced,
    Hello,
    ReadAnswer,
)
from support.clusters.ledgers import LedgerScript
from support.disks.held_disk import HeldDisk, syncs_below
from support.raw_client import RawClient, key_of, read, seal
from support.waiting import loop_turns

DATA, JOURNAL = Path("/bookie/data"), Path("/bookie/journal")
SETTINGS = StorageSettings(
    cache_bytes_max=20_000,
    entry_log_bytes=30_000,
    checkpoint_journal_bytes=400_000,
    checkpoint_seconds=3600,
    journal=JournalSettings(segment_bytes=64 * 1024, first_fill_bytes=0),
)
SCRIPT = LedgerScript(7)


def never(error: BaseException) -> None:
    raise AssertionError("the storage failed") from error


@pytest.fixture
def disk() -> HeldDisk:
    return syncs_below(JOURNAL)


async def opened(filesystem: HeldDisk, failures: list[BaseException] | None = None) -> Storage:
    return await Storage.open(
        filesystem,
        directory=DATA,
        journal_directory=JOURNAL,
        settings=SETTINGS,
        on_fatal=never if failures is None else failures.append,
    )


@pytest.fixture
async def storage(disk: HeldDisk) -> AsyncIterator[Storage]:
    storage = await opened(disk)
    yield storage
    disk.release()
    await storage.close()


def add(storage: Storage, *ids: int, deferred: bool = True, recovery: bool = False) -> asyncio.Future[None]:
    return storage.writer.add(SCRIPT.ledger_id, SCRIPT.key, SCRIPT.entries(ids), recovery=recovery, deferred=deferred)


async def held_ids(storage: Storage) -> list[tuple[int, int]]:
    return await storage.reader.list_entries(SCRIPT.ledger_id)


async def test_deferred_add_is_answered_at_once_and_a_force_when_the_disk_has_it(
    storage: Storage, disk: HeldDisk
) -> None:
    disk.hold()
    ordinary = add(storage, 0, deferred=False)
    assert add(storage, 1, 2).done()
    force = storage.writer.force(SCRIPT.ledger_id, SCRIPT.key)
    await disk.held.wait()
    await loop_turns(5)
    assert (ordinary.done(), force.done()) == (False, False)
    disk.release()
    await force
    assert ordinary.done()
    await storage.writer.force(SCRIPT.ledger_id, SCRIPT.key)
    assert storage.statistics().journal.pending_bytes == 0, "with nothing to force no record is written"


async def test_deferred_add_is_on_its_way_to_the_disk_without_a_force(storage: Storage, disk: HeldDisk) -> None:
    disk.hold()
    add(storage, 0)
    await disk.held.wait()


async def test_power_cut_loses_what_was_not_forced_and_nothing_else(disk: HeldDisk) -> None:
    storage = await opened(disk)
    add(storage, 0, 1)
    await storage.writer.force(SCRIPT.ledger_id, SCRIPT.key)
    disk.hold()
    add(storage, 2, 3)
    disk.crash()
    survived = disk.after_crash(1)
    again = await Storage.open(survived, directory=DATA, journal_directory=JOURNAL, settings=SETTINGS, on_fatal=never)
    assert (await again.reader.list_entries(SCRIPT.ledger_id))[0][0] == 0
    assert (await again.reader.list_entries(SCRIPT.ledger_id))[0][1] >= 1
    await again.close()


async def test_entry_held_already_is_answered_at_once_if_deferred_and_when_durable_if_not(
    storage: Storage, disk: HeldDisk
) -> None:
    disk.hold()
    add(storage, 0, 1)
    again = add(storage, 0, 1)
    durable = add(storage, 0, 1, deferred=False)
    await again
    await loop_turns(5)
    assert not durable.done(), "the held copy is in memory only (rule W11)"
    disk.release()
    await durable


async def test_part_of_a_deferred_frame_that_is_held_and_other_bytes(storage: Storage) -> None:
    await add(storage, 1)
    await add(storage, 0, 1, 2)
    assert await held_ids(storage) == [(0, 2)]
    with pytest.raises(DuplicateEntryError):
        await storage.writer.add(
            SCRIPT.ledger_id, SCRIPT.key, SCRIPT.entries([1], version=1), recovery=False, deferred=True
        )


async def test_recovery_write_back_of_what_is_only_in_memory_waits_for_the_disk(
    storage: Storage, disk: HeldDisk
) -> None:
    """The interleaving that would show two recoveries different ends: this bookie answers one of them and loses what it
    said (rules F2 and F5)."""
    disk.hold()
    add(storage, 0)
    fence = storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key)
    write_back = add(storage, 0, deferred=False, recovery=True)
    found = await storage.reader.read(SCRIPT.ledger_id, 0, 9, entries_max=10, bytes_max=10_000)
    assert found.entries == SCRIPT.entries([0])
    await loop_turns(5)
    assert (fence.done(), write_back.done()) == (False, False), "answers of a recovery leave after these"
    disk.release()
    await asyncio.gather(fence, write_back)


async def test_fenced_ledger_takes_neither_deferred_adds_nor_forces(storage: Storage) -> None:
    await add(storage, 0)
    await storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key)
    with pytest.raises(LedgerFencedError):
        await add(storage, 1)
    with pytest.raises(LedgerFencedError):
        storage.writer.force(SCRIPT.ledger_id, SCRIPT.key)
    with pytest.raises(UnauthorizedError):
        storage.writer.force(SCRIPT.ledger_id, b"another key")


async def test_sync_that_fails_after_the_answer_ends_the_bookie_and_no_force_is_answered(disk: HeldDisk) -> None:
    failures: list[BaseException] = []
    storage = await opened(disk, failures)
    disk.hold()
    add(storage, 0)
    force = storage.writer.force(SCRIPT.ledger_id, SCRIPT.key)
    await disk.held.wait()
    disk.fault = lambda name, _path: OSError(errno.EIO, "failed") if name == "sync" else None
    disk.release()
    with pytest.raises(JournalFailedError):
        await force
    assert len(failures) == 1, "as for any failed sync (rule B1)"
    with pytest.raises(BookieStorageError):
        add(storage, 1)
    with pytest.raises(BookieStorageError):
        storage.writer.force(SCRIPT.ledger_id, SCRIPT.key)
    await storage.close()


async def test_unwaited_record_of_a_failed_journal_is_refused(disk: HeldDisk) -> None:
    storage = await opened(disk, [])
    await storage.close()
    with pytest.raises(OctavoError):
        await add(storage, 0)


# --- over a socket ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def client(tmp_path: Path, store: MetadataStore) -> AsyncIterator[RawClient]:
    config = load_config(None, {}, {"data_dir": tmp_path, "port": 0, "journal_segment_bytes": 16 << 20})
    disk = syncs_below(JOURNAL)
    bookie = await Bookie.start(
        config, filesystem=disk, store=store, rng=random.Random(1), software="0-test", wall_clock=lambda: 1.0
    )
    host, _, port = bookie.address.rpartition(":")
    async with RawClient(host, int(port)) as connected:
        hello = await connected.greet()
        assert isinstance(hello, Hello)
        assert CAPABILITY_DEFERRED_SYNC in hello.capabilities
        yield connected
    await bookie.stop()


def deferred(first: int, *payloads: bytes, flags: AddFlag = AddFlag.DEFERRED_SYNC) -> Add:
    return Add(7, key_of(7), flags, 0, seal(7, first, list(payloads)))


async def test_bookie_serves_deferred_adds_and_forces(client: RawClient) -> None:
    assert await client.ask(deferred(0, b"a", b"b")) == Added()
    assert await client.ask(Force(7, key_of(7), 0, ((0, 1),))) == Forced()
    answer = await client.ask(read(7, 0, 1))
    assert isinstance(answer, ReadAnswer)
    assert list(answer.entries) == seal(7, 0, [b"a", b"b"])


async def test_recovery_cannot_be_deferred_and_a_force_needs_the_key(client: RawClient) -> None:
    both = deferred(0, b"a", flags=AddFlag.DEFERRED_SYNC | AddFlag.RECOVERY)
    assert isinstance(await client.ask(both), UnsupportedOperationError)
    assert await client.ask(deferred(0, b"a")) == Added()
    assert isinstance(await client.ask(Force(7, b"wrong", 0, ((0, 0),))), UnauthorizedError)
    await client.ask(read(7, 0, 0, fence=True))
    assert isinstance(await client.ask(Force(7, key_of(7), 0, ((0, 0),))), LedgerFencedError)


async def test_pipelined_adds_and_force_are_answered_in_full(client: RawClient) -> None:
    sent = [client.send(deferred(entry_id, b"x")) for entry_id in range(50)]
    sent.append(client.send(Force(7, key_of(7), 0, ((0, 49),))))
    answers = dict([await client.receive_reply() for _ in sent])
    assert [answers[request_id] for request_id in sent] == [Added()] * 50 + [Forced()]
