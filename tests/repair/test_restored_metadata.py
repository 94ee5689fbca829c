"""Metadata that are restored from a dump name bookies that have dropped their copies since. What was acknowledged
before the dump is not lost by that while one bookie has it."""

import pytest
from octavo.protocol.ids import LedgerId
from support.repair_cluster import repair_cluster
from support.waiting import eventually

import octavo

ENTRIES = 20


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
