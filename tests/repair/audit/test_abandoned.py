"""When the auditor takes a writer for gone (rule O3)."""

import asyncio
import random

import pytest
from octavo.client.options import ClientOptions
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.ledger.stored import StoredLedger
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.protocol.ids import BookieId, EntryId
from octavo.protocol.places import place
from octavo.repair.audit.abandoned import AbandonedLedgers
from octavo.repair.audit.bookie_watch import BookieWatch
from octavo.repair.base.settings import RepairSettings
from support.clusters.local_bookie import MemoryBookie
from support.metadata.ledger_metadata import bookie_ids, fragment, open_ledger
from support.metadata.metadata_clusters import registration
from support.metadata.stream_metadata import open_stream, stream_fragment

LEDGER = open_ledger(7, fragment(0, "abc"))
CHANGED_LEDGER = LEDGER.with_ensemble_change(EntryId(5), bookie_ids(*"abd"), 50)
STREAM = open_stream(stream_fragment(1, 0, 0, "xyz"), stream_fragment(1, 4, 4, "abc", 40))
CHANGED_STREAM = STREAM.with_fragment(stream_fragment(1, 9, 9, "abd", 90))


async def begun(*looks: tuple[StoredLedger, float]) -> list[StoredLedger]:
    """What is recovered when the auditor has seen these metadata at these seconds. Of a, b, c and d only a is there."""
    async with open_memory_store(MemoryServer()) as store:
        bookie = MemoryBookie("z", store, await store.cluster_id())
        pool = ConnectionPool(store, cluster_id=bookie.cluster_id, options=ClientOptions(), rng=random.Random(1))
        settings = RepairSettings(open_seconds=10.0)
        watch = BookieWatch(bookie, pool, settings)
        watch.registrations = {name: registration(name) for name in bookie_ids(*"ats")}
        found: list[StoredLedger] = []

        async def recover(metadata: StoredLedger) -> bool:
            found.append(metadata)
            return True

        abandoned = AbandonedLedgers(settings, watch, recover)
        for metadata, now in looks:
            abandoned.consider(metadata, now)
        await asyncio.sleep(0)
        await pool.close()
        return found


@pytest.mark.parametrize(("before", "after"), [(LEDGER, CHANGED_LEDGER), (STREAM, CHANGED_STREAM)])
async def test_a_writer_that_has_changed_its_last_fragment_is_not_gone(
    before: StoredLedger, after: StoredLedger
) -> None:
    assert await begun((before, 0.0), (before, 9.0)) == []
    assert await begun((before, 0.0), (before, 11.0)) == [before]
    assert await begun((before, 0.0), (after, 11.0)) == []
    assert await begun((before, 0.0), (after, 9.0), (after, 18.0)) == []
    assert await begun((before, 0.0), (after, 9.0), (after, 20.0)) == [after]


async def test_what_other_clients_change_of_a_stream_says_nothing_of_its_writer() -> None:
    repaired = STREAM.with_member(place(1, 0), 0, BookieId("w"))
    for same in (STREAM.truncated(2), repaired):
        assert await begun((STREAM, 0.0), (same, 11.0)) == [same]
