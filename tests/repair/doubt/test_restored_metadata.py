"""Metadata that are restored from a dump name bookies that have dropped their copies since. What was acknowledged
before the dump is not lost by that while one bookie has it. While the metadata may be older than the data, repair does
nothing by them that cannot be taken back (rule D5)."""

import asyncio
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any

import pytest
from octavo.metadata import MetadataStore, open_metadata_store
from octavo.metadata.updates.garbage_hold import DOCUMENT, GarbageHold, set_hold
from octavo.protocol.ids import LedgerId
from octavo.repair.base.settings import RepairSettings
from octavo.repair.doubt.refill import Refill
from support.clusters.local_bookie import MemoryBookie
from support.clusters.repair_cluster import payload, repair_cluster
from support.waiting import eventually

import octavo

ENTRIES = 20


async def hold(store: MetadataStore) -> None:
    """As every restore of a dump does."""
    await set_hold(store, GarbageHold("restored from a dump", datetime(2026, 1, 1, tzinfo=UTC)))


async def release(store: MetadataStore) -> None:
    found = await store.read_document(DOCUMENT)
    assert found is not None
    await store.delete_document(DOCUMENT, found.version)


async def test_recovery_on_restored_metadata_does_not_believe_bookies_that_have_dropped_the_ledger() -> None:
    """The ledger was open when the dump was made. Then it was closed, two of its bookies were drained and dropped their
    copies; with the third one down, their word must not be the end of it."""
    async with repair_cluster("dropped-and-restored", 3, lost_seconds=600.0, recover_abandoned=False) as cluster:
        client = await cluster.client(recovery_timeout_seconds=0.5)
        async with client.create_ledger(3, 3, 2) as writer:
            dumped = await cluster.metadata(writer.id)
            await writer.add_many([f"{writer.id}/{number}/".encode().ljust(100, b".") for number in range(ENTRIES)])
        ledger_id = LedgerId(writer.id)
        for name in ("b0", "b1"):
            storage = cluster.bookie(name).service.storage
            # Two of three acknowledged: an add that comes after the drop would bring the ledger back.
            await eventually(lambda: storage.ledgers.get(ledger_id).highest == ENTRIES - 1)  # noqa: B023
            await storage.writer.drop(ledger_id)
        closed = await cluster.store.read_ledger(ledger_id)
        await cluster.store.compare_and_set_ledger(dumped, closed.version)
        await cluster.stop("b2")
        with pytest.raises(octavo.LedgerRecoveryError):
            await client.open_ledger(ledger_id)
        assert not (await cluster.metadata(ledger_id)).is_closed
        await cluster.start("b2")
        again = await cluster.client()
        async with again.open_ledger(ledger_id) as reader:
            assert reader.last_add_confirmed == ENTRIES - 1
        await cluster.check_entries(again, ledger_id, ENTRIES)


async def test_a_bookie_in_doubt_does_not_believe_older_metadata_that_a_ledger_was_deleted() -> None:
    """The older metadata lack a ledger that the newest ones have: a bookie that has become sure of it would deny its
    entries when the newest metadata are back."""
    async with repair_cluster("doubt-and-older-metadata", 3, recover_abandoned=False) as cluster:
        client = await cluster.client()
        ledger_id = LedgerId(await cluster.ledger(client, 10))
        await cluster.stop("b2")
        newest = await cluster.store.read_ledger(ledger_id)
        await hold(cluster.store)
        await cluster.store.delete_ledger(ledger_id, newest.version)
        await cluster.replace_disks("b2")
        agent = cluster.members["b2"].agents

        async def waits() -> bool:
            done = cluster.bookie("b2").service.storage.doubt is None
            return bool(agent) and (done or agent[-1].waits_because is not None)

        await eventually(waits)
        assert "restored from a dump" in (agent[-1].waits_because or "")
        doubt = cluster.bookie("b2").service.storage.doubt
        assert doubt is not None
        assert (doubt.sure_below, dict(doubt.exceptions)) == (0, {})
        await cluster.store.create_ledger(newest.value)
        await release(cluster.store)

        async def sure() -> bool:
            return cluster.bookie("b2").service.storage.doubt is None and agent[-1].waits_because is None

        await eventually(sure)
        assert await cluster.is_whole(ledger_id)


async def test_nothing_becomes_sure_by_metadata_that_were_put_on_hold_after_they_were_read() -> None:
    class Jobs:
        """Another bookie finds out that the metadata are older, while this one copies what they say."""

        async def complete(self, metadata: object) -> None:
            await hold(store)

        async def complete_open(self, metadata: object) -> None:
            """Nothing is open."""

    async with await open_metadata_store("memory://", create=True) as store:
        async with repair_cluster("hold-in-time", 3, recover_abandoned=False) as cluster:
            ledger = await cluster.metadata(await cluster.ledger(await cluster.client(), 3))
        while await store.allocate_ledger_id() < ledger.ledger_id:
            pass
        await store.create_ledger(ledger)
        bookie = MemoryBookie("elsewhere", store, await store.cluster_id())
        bookie.copies.begin_doubt(int(ledger.ledger_id) + 1)
        jobs: Any = Jobs()
        refill = Refill(bookie, jobs, RepairSettings())
        working = asyncio.ensure_future(refill.work_off_doubt())
        try:

            async def waits() -> bool:
                return working.done() or refill.waits_because is not None or bookie.copies.doubt is None

            await eventually(waits)
            assert bookie.copies.doubt is not None
            assert bookie.copies.doubt.sure_below == 0
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


async def test_an_abandoned_ledger_is_not_recovered_by_older_metadata(
    logged: list[MutableMapping[str, object]],
) -> None:
    """They may name bookies that were replaced since, and lack what was acknowledged since."""
    async with repair_cluster("abandoned-and-older-metadata", 4, open_seconds=0.3) as cluster:
        gone = await cluster.client()
        writer = await gone.create_ledger()
        await writer.add_many([payload(writer.id, number, 100) for number in range(5)])
        await cluster.kill_client(gone)
        metadata = await cluster.metadata(writer.id)
        await hold(cluster.store)
        await cluster.stop(metadata.last_fragment.bookies[0])
        await eventually(lambda: any(one["event"] == "abandoned ledger is not recovered now" for one in logged))
        assert await cluster.metadata(writer.id) == metadata
        await release(cluster.store)

        async def is_closed() -> bool:
            return (await cluster.metadata(writer.id)).is_closed

        await eventually(is_closed)
