"""A deletion forgets nothing that protects the ledger, and is reversed into doubt (rule B5)."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.journal.journal import JournalSettings
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.metadata import MetadataStore
from octavo.protocol.errors import (
    BookieInDoubtError,
    LedgerFencedError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from octavo.protocol.messages import Added, LacAnswer, ListEntries, ReadAnswer, ReadFlag, ReadLac, Request
from support.clusters.ledgers import LedgerScript
from support.disks.faulty_filesystem import MemoryFileSystem
from support.metadata.ledger_metadata import open_ledger
from support.raw_client import RawClient, add, key_of, read, seal

pytestmark = pytest.mark.usefixtures("logged")

SETTINGS = StorageSettings(
    checkpoint_seconds=3600, journal=JournalSettings(segment_bytes=64 * 1024, first_fill_bytes=0)
)
SCRIPT = LedgerScript(7)


async def open_storage(filesystem: MemoryFileSystem) -> Storage:
    return await Storage.open(
        filesystem,
        directory=Path("/d"),
        journal_directory=Path("/j"),
        settings=SETTINGS,
        on_fatal=lambda _error: None,
    )


def check_revived(storage: Storage, *, fenced: bool) -> None:
    assert SCRIPT.ledger_id in storage.ledgers.live_ids()
    view = storage.reader.last_add_confirmed(SCRIPT.ledger_id)
    assert (view.known, view.fenced, view.in_doubt) == (True, fenced, True)
    with pytest.raises(LedgerFencedError if fenced else BookieInDoubtError):
        storage.writer.add(SCRIPT.ledger_id, SCRIPT.key, [SCRIPT.entry(9)], recovery=False)
    with pytest.raises(UnauthorizedError):
        storage.writer.add(SCRIPT.ledger_id, b"another key", [SCRIPT.entry(9)], recovery=True)


@pytest.mark.parametrize("fenced", [True, False])
@pytest.mark.parametrize("checkpoints", ["none", "after the deletion", "after the revival"])
async def test_key_and_fence_outlive_deletion_and_revival_over_crashes(checkpoints: str, fenced: bool) -> None:
    filesystem = MemoryFileSystem()
    storage = await open_storage(filesystem)
    await storage.writer.add(SCRIPT.ledger_id, SCRIPT.key, SCRIPT.entries(range(3)), recovery=False)
    if fenced:
        await storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key)
    await storage.writer.delete(SCRIPT.ledger_id)
    if checkpoints == "after the deletion":
        await storage.checkpoint()
    filesystem = filesystem.after_crash(seed=1)
    storage = await open_storage(filesystem)
    with pytest.raises(NoSuchLedgerError):
        storage.writer.fence(SCRIPT.ledger_id, SCRIPT.key)
    await storage.writer.revive(SCRIPT.ledger_id)
    check_revived(storage, fenced=fenced)
    if checkpoints == "after the revival":
        await storage.checkpoint()
    filesystem = filesystem.after_crash(seed=2)
    storage = await open_storage(filesystem)
    check_revived(storage, fenced=fenced)
    await storage.close()


async def test_nothing_of_a_revived_ledger_is_absent_though_its_entries_have_been_removed() -> None:
    storage = await open_storage(MemoryFileSystem())
    await storage.writer.add(SCRIPT.ledger_id, SCRIPT.key, SCRIPT.entries(range(3)), recovery=False)
    await storage.checkpoint()
    await storage.writer.delete(SCRIPT.ledger_id)
    for _ in range(2):
        await storage.compact(0.9, RateLimiter(1e12))
        await storage.checkpoint()
    await storage.writer.revive(SCRIPT.ledger_id)
    result = await storage.reader.read(SCRIPT.ledger_id, 0, 9, entries_max=10, bytes_max=10_000)
    assert (result.entries, result.unknown) == ([], [(0, 9)])
    await storage.writer.add(SCRIPT.ledger_id, SCRIPT.key, SCRIPT.entries(range(3)), recovery=True)
    result = await storage.reader.read(SCRIPT.ledger_id, 0, 9, entries_max=10, bytes_max=10_000)
    assert (result.entries, result.unknown) == (SCRIPT.entries(range(3)), [(3, 9)])
    await storage.close()


# --- over the wire ---------------------------------------------------------------------------------------------------


async def test_a_fence_and_adds_that_reach_a_deleted_ledger_find_it_alive(store: MetadataStore) -> None:
    """The ledger's id was allocated and fenced before the ledger was created, and collected as garbage."""
    settings = {"data_dir": Path("/bookie"), "port": 0, "journal_segment_bytes": 16 << 20}
    bookie = await Bookie.start(
        load_config(None, {}, settings), filesystem=MemoryFileSystem(), store=store, rng=random.Random(1), software="0"
    )
    host, _, port = bookie.address.rpartition(":")
    async with RawClient(host, int(port)) as client:
        await client.greet()
        alive, dead = await store.allocate_ledger_id(), await store.allocate_ledger_id()
        for ledger_id in (alive, dead):
            assert await client.ask(add(ledger_id, seal(ledger_id, 0, [b"a"]))) == Added()
            await bookie.service.storage.writer.delete(ledger_id)
        await store.create_ledger(open_ledger(alive))
        first = [client.send(add(alive, seal(alive, at, [b"a"]), recovery=True)) for at in range(3)]
        last = client.send(ReadLac(alive, key_of(alive), ReadFlag.FENCE, 0, None, 0, 0, 0))
        answers = dict([await client.receive_reply() for _ in range(4)])
        assert [answers[request_id] for request_id in first] == [Added()] * 3
        view = answers[last]
        assert isinstance(view, LacAnswer)
        assert (view.fenced, view.in_doubt) == (True, True)
        assert isinstance(await client.ask(add(dead, seal(dead, 1, [b"late"]))), NoSuchLedgerError)
        assert isinstance(await client.ask(read(dead, 0, 1, fence=True)), NoSuchLedgerError)
        assert bookie.service.storage.admission.waiting_bytes == 0
    await bookie.stop()


PLAIN_REQUESTS: dict[str, Callable[[int], Request]] = {
    "read": lambda ledger_id: read(ledger_id, 0, 1),
    "LAC": lambda ledger_id: ReadLac(ledger_id, b"", ReadFlag(0), 0, None, 0, 0, 0),
    "long poll": lambda ledger_id: ReadLac(ledger_id, b"", ReadFlag(0), 50, 7, 0, 0, 0),
    "list": lambda ledger_id: ListEntries(ledger_id, 0, 9),
}


@pytest.mark.parametrize("kind", PLAIN_REQUESTS)
async def test_a_plain_lookup_that_reaches_a_deleted_ledger_finds_it_alive(store: MetadataStore, kind: str) -> None:
    """The ledger was deleted because the metadata were older than the ledger. Its reader must not be told that the
    ledger is gone for as long as no writer comes."""
    settings = {"data_dir": Path("/bookie"), "port": 0, "journal_segment_bytes": 16 << 20}
    bookie = await Bookie.start(
        load_config(None, {}, settings), filesystem=MemoryFileSystem(), store=store, rng=random.Random(1), software="0"
    )
    host, _, port = bookie.address.rpartition(":")
    async with RawClient(host, int(port)) as client:
        await client.greet()
        alive, dead = await store.allocate_ledger_id(), await store.allocate_ledger_id()
        for ledger_id in (alive, dead):
            assert await client.ask(add(ledger_id, seal(ledger_id, 0, [b"a"]))) == Added()
            await bookie.service.storage.writer.delete(ledger_id)
        await store.create_ledger(open_ledger(alive))
        answer = await client.ask(PLAIN_REQUESTS[kind](alive))
        if kind == "read":
            assert isinstance(answer, ReadAnswer)
            assert answer.unknown, "nothing of a revived ledger is absent"
        elif kind == "list":
            assert isinstance(answer, BookieInDoubtError)
        else:
            assert isinstance(answer, LacAnswer)
            assert (answer.known, answer.in_doubt) == (True, True)
        assert isinstance(await client.ask(PLAIN_REQUESTS[kind](dead)), NoSuchLedgerError)
    await bookie.stop()
