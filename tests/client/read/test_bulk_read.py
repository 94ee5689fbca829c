"""Reading in bulk: entries in the batches in which they arrive, and what one replica alone holds."""

import random

import pytest
from octavo.client.client import Client
from octavo.client.read.reader import EntryBatch, LedgerReader
from octavo.metadata import open_metadata_store
from octavo.protocol.entry_columns import EntryColumns
from octavo.protocol.errors import BookieStorageError, InvalidArgumentError, NoSuchEntryError, QuorumLostError
from octavo.protocol.messages import Op
from support.clusters.reading import QUICK, Cluster, HandmadeLedger, cluster_of


async def batches_of(reader: LedgerReader, first: int, last: int, *, confirmed: bool = False) -> list[EntryBatch]:
    return [batch async for batch in reader.batches(first, last, confirmed=confirmed)]


async def closed_ledger(cluster: Cluster, count: int, sizes: tuple[int, int, int] = (3, 3, 2)) -> HandmadeLedger:
    ledger = await cluster.ledger(sizes)
    ledger.add_numbered(count, size=1000)
    await ledger.close()
    return ledger


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 2, 2)])
async def test_batches_hold_every_entry_once_and_name_a_bookie_that_has_it(sizes: tuple[int, int, int]) -> None:
    async with cluster_of(4) as cluster:
        ledger = await closed_ledger(cluster, 2000, sizes)
        batches = await batches_of(await cluster.open(ledger), 5, 1998)
        assert len(batches) > 1
        columns = [batch.entries for batch in batches if isinstance(batch.entries, EntryColumns)]
        if sizes == (3, 3, 2):
            assert len(columns) == len(batches)
            assert any(one.prefix_bytes for one in columns), "large answers are left as they stood in their frames"
        entries = [entry for batch in batches for entry in batch.entries]
        assert [entry.payload for entry in entries] == ledger.payloads[5:1999]
        for entry, bookie_id in zip(entries, [b for batch in batches for b in batch.bookies()], strict=True):
            assert entry.entry_id in cluster.bookie(bookie_id).ledger(ledger.id).entries


async def test_entries_that_cannot_be_had_are_named_up_to_one_that_can() -> None:
    async with cluster_of() as cluster:
        ledger = await closed_ledger(cluster, 100)
        for bookie in cluster.bookies:
            for entry_id in (40, 41, 42, 44):
                bookie.forget(ledger.id, entry_id)
        reader = await cluster.open(ledger)
        with pytest.raises(QuorumLostError) as caught:
            await batches_of(reader, 10, 99)
        assert caught.value.missing == range(40, 43)
        (batch,) = await batches_of(reader, 43, 43)
        assert batch.entries[0].payload == ledger.payloads[43]


async def test_striped_entries_that_cannot_be_had_are_named_one_by_one() -> None:
    async with cluster_of(4) as cluster:
        ledger = await closed_ledger(cluster, 40, (4, 2, 2))
        for position in (1, 2):
            cluster.bookies[position].refuse(Op.READ, BookieStorageError("disk on fire"))
        with pytest.raises(QuorumLostError) as caught:
            await batches_of(await cluster.open(ledger), 1, 39)
        assert caught.value.missing == range(1, 2), "entry 2 is on bookies 2 and 3"


async def test_a_confirmed_entry_can_be_read_before_the_reader_has_heard_of_it() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add(b"a", b"b", b"c", confirmed=None)
        reader = await cluster.open(ledger)
        with pytest.raises(NoSuchEntryError):
            reader.batches(0, 2)
        (batch,) = await batches_of(reader, 0, 2, confirmed=True)
        assert [entry.payload for entry in batch.entries] == [b"a", b"b", b"c"]
        await ledger.close()
        with pytest.raises(NoSuchEntryError):
            (await cluster.open(ledger)).batches(0, 3, confirmed=True)


async def test_a_replica_is_read_by_itself_whatever_others_hold() -> None:
    async with cluster_of() as cluster:
        ledger = await closed_ledger(cluster, 10)
        cluster.bookies[1].forget(ledger.id, 3)
        cluster.bookies[1].damage(ledger.id, 4)
        store = await open_metadata_store(cluster.uri)
        async with Client(store, cluster_id=await store.cluster_id(), options=QUICK, rng=random.Random(1)) as client:
            whole = await client.read_replica("b0", ledger.id, 0, 20)
            assert (whole.last_covered, whole.sealed) == (20, ledger.sealed)
            lossy = await client.read_replica("b1", ledger.id, 0, 9, modulus=2, residues=(1,))
            assert lossy.sealed == [ledger.sealed[i] for i in (1, 5, 7, 9)]
            damaged = await client.read_replica("b1", ledger.id, 4, 4)
            assert damaged.sealed != [ledger.sealed[4]]
            with pytest.raises(InvalidArgumentError, match="no entries 5 to 4"):
                await client.read_replica("b0", ledger.id, 5, 4)
            cluster.bookies[2].refuse(Op.READ, BookieStorageError("disk on fire"))
            with pytest.raises(BookieStorageError):
                await client.read_replica("b2", ledger.id, 0, 9)
