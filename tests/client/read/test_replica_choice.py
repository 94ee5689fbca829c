"""Which replica a reader turns to when one is slow, and what it does when it cannot ask the metadata."""

import asyncio
from dataclasses import replace

import pytest
from octavo.client.read.range_read import BlameList
from octavo.protocol.errors import BookieStorageError, MetadataUnavailableError, QuorumLostError
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import Op
from support.clusters.reading import QUICK, HandmadeLedger, TroubledStore, cluster_of
from support.waiting import WAIT_SECONDS


def reads(ledger: HandmadeLedger) -> dict[str, int]:
    """READ requests that each bookie got."""
    return {bookie.bookie_id: bookie.count(Op.READ) for bookie in ledger.cluster.bookies}


async def test_slow_replica_is_raced_by_the_next() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(5)
        await ledger.close()
        reader = await cluster.open(ledger, options=replace(QUICK, read_slow_seconds=0.01))
        cluster.bookies[0].drop(Op.READ)
        async with asyncio.timeout(WAIT_SECONDS):
            assert [entry.payload for entry in await reader.read(0, 4)] == ledger.payloads
            before = reads(ledger)
            assert (before["b0"], before["b1"]) == (1, 1)
            # A patient reader: on a busy machine the other one could find a replica slow that is not.
            patient = await cluster.open(ledger)
            assert [entry.payload for entry in await patient.read(0, 4)] == ledger.payloads
        after = reads(ledger)
        assert after["b0"] == 1, "the slow one is asked last for a while"
        assert sum(after.values()) == sum(before.values()) + 1


async def test_when_the_second_replica_is_slow_too_the_third_is_asked() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(5)
        await ledger.close()
        reader = await cluster.open(ledger, options=replace(QUICK, read_slow_seconds=0.01))
        cluster.bookies[0].drop(Op.READ)
        cluster.bookies[1].drop(Op.READ)
        async with asyncio.timeout(WAIT_SECONDS):
            assert [entry.payload for entry in await reader.read(0, 4)] == ledger.payloads
        assert reads(ledger) == {"b0": 1, "b1": 1, "b2": 1}


async def test_a_replica_asked_for_the_failed_one_is_raced_as_well() -> None:
    async with cluster_of() as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(5)
        await ledger.close()
        reader = await cluster.open(ledger, options=replace(QUICK, read_slow_seconds=0.01))
        cluster.bookies[0].refuse(Op.READ, BookieStorageError("disk on fire"))
        cluster.bookies[1].drop(Op.READ)
        async with asyncio.timeout(WAIT_SECONDS):
            assert [entry.payload for entry in await reader.read(0, 4)] == ledger.payloads


@pytest.mark.parametrize(
    ("blamed_at", "asked_last_until"),
    [
        ([0], 10),
        ([0, 5], 15),
        ([0, 12], 32),  # again soon after: twice as long
        ([0, 12, 35], 75),
        ([0, 20], 30),  # long after: as if for the first time
        ([0, 10, 30, 70, 150, 310, 630, 1270, 1910], 1910 + 640),
    ],
)
def test_replica_blamed_again_and_again_is_asked_last_for_longer(
    blamed_at: list[float], asked_last_until: float
) -> None:
    clock = [0.0]
    blame = BlameList(blame_seconds=10, now=lambda: clock[0])
    bookie = BookieId("b0")
    for clock[0] in blamed_at:
        blame.blame(bookie)
        assert blame.blamed() == {bookie}
    clock[0] = asked_last_until - 0.1
    assert blame.blamed() == {bookie}
    clock[0] = asked_last_until
    assert not blame.blamed()


async def test_nothing_is_called_missing_while_the_metadata_cannot_be_read_again() -> None:
    """Rule R5: the entry may be on an ensemble that this reader has not heard of."""
    async with cluster_of(6) as cluster:
        ledger = await cluster.ledger()
        ledger.add_numbered(3)
        store = TroubledStore(cluster.store)
        reader = await cluster.open(ledger, store=store)
        store.down = True
        for bookie in cluster.bookies[:3]:
            bookie.forget(ledger.id, 1)
        with pytest.raises(MetadataUnavailableError, match=r"does not answer; ledger \d+ entry 1 cannot be had"):
            await reader.read(1, 1)
        reading = asyncio.create_task(reader.read(1, 1))
        before = store.reads
        while store.reads == before:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
        store.down = False
        with pytest.raises(QuorumLostError, match="has no such entry"):
            await reading
