"""Writers replace members that have departed, also in idle and never-written ledgers (rule O2)."""

import asyncio

import pytest
from octavo.client.write.ensemble_changes import Commit, EnsembleChanges, FindSpares, Phase
from octavo.client.write.pipeline import Acknowledge, Pipeline, Send
from octavo.metadata import LedgerMetadata
from octavo.metadata.cluster.repair_states import DOCUMENT, BookieCondition, Condition, RepairStates, encode_states
from octavo.protocol.ids import BookieId, LedgerId
from octavo.protocol.quorums import Quorums
from support.clusters.reading import Cluster, cluster_of
from support.clusters.writing import QUICK
from support.waiting import WAIT_SECONDS, eventually

import octavo

THREE = Quorums(3, 3, 2)
ABC = tuple(map(BookieId, "abc"))


def idle_changes() -> EnsembleChanges:
    changes = EnsembleChanges(
        Pipeline(THREE, retained_bytes_max=0), THREE, ABC,
        now=0.0, loss_seconds=0.5, delay_seconds=0.0, retry_seconds=1.0,
    )  # fmt: skip
    for position in range(3):
        changes.on_connected(position)
    return changes


def test_an_idle_writer_replaces_a_departed_member_and_nothing_else() -> None:
    changes = idle_changes()
    assert changes.poll(1.0) is None
    changes.on_departed(1, 1.0)
    changes.check_invariants()
    assert changes.wake_at() == 1.0
    assert changes.poll(1.0) == FindSpares((1,))
    assert changes.on_spares({1: BookieId("d")}, 1.0) == Commit(0, tuple(map(BookieId, "adc")), 0)  # type: ignore[arg-type]
    changes.on_committed(1.1)
    changes.check_invariants()
    assert changes.phase is Phase.IDLE
    changes.on_connected(1)
    assert not changes.troubled_since


def test_a_departed_member_that_confirms_and_reconnects_is_replaced_all_the_same() -> None:
    changes = idle_changes()
    changes.on_departed(1, 1.0)
    changes.on_confirmed(1)
    changes.on_lost(1, 1.5)
    changes.on_connected(1)
    changes.check_invariants()
    assert changes.poll(2.0) == FindSpares((1,))


def test_a_member_that_stays_after_all_is_left_alone() -> None:
    changes = idle_changes()
    changes.on_departed(1, 1.0)
    changes.on_stays(1)
    changes.on_stays(0)
    changes.check_invariants()
    assert (changes.poll(1.0), changes.troubled_since, changes.wake_at()) == (None, {}, None)
    changes.on_departed(1, 1.0)
    assert changes.poll(1.0) == FindSpares((1,))
    changes.on_stays(1)
    assert changes.on_spares({1: BookieId("d")}, 1.0) is None


def test_without_a_spare_a_departed_member_serves_on_and_is_not_sought_for_all_the_time() -> None:
    changes = idle_changes()
    changes.on_departed(1, 1.0)
    assert changes.poll(1.0) == FindSpares((1,))
    assert changes.on_spares({}, 1.0) is None
    assert changes.wake_at() == 11.0
    assert changes.poll(10.0) is None
    assert changes.poll(11.0) == FindSpares((1,))


def test_pending_entries_reach_the_new_member() -> None:
    pipeline = Pipeline(THREE, retained_bytes_max=0)
    changes = EnsembleChanges(pipeline, THREE, ABC, now=0.0, loss_seconds=0.5, delay_seconds=0.0, retry_seconds=1.0)
    for position in range(3):
        changes.on_connected(position)
        pipeline.on_ready(position)
    sends = [one for one in pipeline.push([b""], sealed_bytes=0, length_after=0, now=1.0) if isinstance(one, Send)]
    assert len(sends) == 3
    changes.on_departed(2, 1.0)
    changes.poll(1.0)
    assert changes.on_spares({2: BookieId("d")}, 1.0) is not None
    changes.on_committed(1.0)
    effects = [*pipeline.on_ready(2)]
    assert [one.position for one in effects if isinstance(one, Send)] == [2]
    for send in sends[:2]:
        effects += pipeline.on_confirmed(send.position, send.run.number, send.tenure)
    assert any(isinstance(one, Acknowledge) for one in effects)


async def next_metadata(cluster: Cluster, ledger_id: LedgerId, *, without: str) -> LedgerMetadata:
    """The ledger's metadata once its last fragment does not name the bookie."""
    async with asyncio.timeout(WAIT_SECONDS), cluster.store.watch_ledger(ledger_id) as watch:
        async for found in watch:
            assert found is not None
            if without not in found.value.last_fragment.bookies:
                return found.value
    raise AssertionError("a watch does not end by itself")


@pytest.mark.parametrize("written", [True, False])
async def test_an_idle_or_never_written_ledger_gets_another_member_and_new_ones_avoid_it(written: bool) -> None:
    async with cluster_of(4) as cluster, octavo.connect(cluster.uri, **QUICK) as client:  # noqa: SIM117
        async with client.create_ledger() as ledger:
            if written:
                await ledger.add(b"one")
            departed = ledger.metadata.last_fragment.bookies[1]
            states = RepairStates({departed: BookieCondition(Condition.DRAINING, 0)})
            version = await cluster.store.create_document(DOCUMENT, encode_states(states))
            changed = await next_metadata(cluster, ledger.id, without=departed)
            assert changed.last_fragment.first_entry_id == int(written)
            assert await ledger.add(b"next") == int(written)
            for _ in range(5):
                async with client.create_ledger() as other:
                    assert departed not in other.metadata.last_fragment.bookies
            # The cluster takes it back: it may be chosen again.
            await cluster.store.compare_and_set_document(DOCUMENT, encode_states(RepairStates()), version)
            await eventually(lambda: _takes(client, departed))


async def _takes(client: octavo.Client, bookie_id: str) -> bool:
    async with client.create_ledger(4, 4, 4) as ledger:
        return bookie_id in ledger.metadata.last_fragment.bookies


async def test_where_no_other_bookie_is_left_a_departed_one_serves_on() -> None:
    async with cluster_of(3) as cluster, octavo.connect(cluster.uri, **QUICK) as client:
        states = RepairStates({BookieId("b0"): BookieCondition(Condition.DRAINING, 0)})
        await cluster.store.create_document(DOCUMENT, encode_states(states))
        async with client.create_ledger() as ledger:
            assert "b0" in ledger.metadata.last_fragment.bookies
            assert await ledger.add(b"one") == 0
