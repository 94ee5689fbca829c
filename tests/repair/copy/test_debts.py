"""Repair pays the debts of ledgers with full copies (rules I9 and G6)."""

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
from octavo.client.options import ClientOptions
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata import Fragment, LedgerState, Versioned
from octavo.metadata.cluster.repair_states import Condition
from octavo.metadata.ledger.debts import NO_DEBT, Debt, FullCopies
from octavo.protocol.entries import Digest, Sealer, derive_secrets
from octavo.protocol.errors import BookieInDoubtError
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.messages import Op
from octavo.repair.base.census import Census, Round, Seen, at_once
from octavo.repair.copy.debts import DebtPayer
from octavo.repair.doubt.certainty import SURE_OF_ALL, first_unsure_id
from support.clusters.fake_bookie import FakeBookie
from support.clusters.local_bookie import MemoryBookie
from support.clusters.repair_cluster import RepairCluster, payload, repair_cluster
from support.clusters.writing import QUICK, fake_cluster
from support.metadata.ledger_metadata import bookie_ids, fragment, open_ledger
from support.waiting import eventually

import octavo


@pytest.fixture
async def cluster() -> AsyncIterator[RepairCluster]:
    async with repair_cluster("debts", 3, audit_seconds=0.05) as cluster:
        yield cluster


async def owing_ledger(cluster: RepairCluster, client: octavo.Client, entries: int = 20) -> int:
    """A closed ledger; b2 was down, and owes everything."""
    async with client.create_ledger(3, 3, 2, full_copies="recorded") as writer:
        await cluster.stop("b2")
        await writer.add_many([payload(writer.id, number, 100) for number in range(entries)])
    metadata = await cluster.metadata(writer.id)
    assert [debt for _, debt in metadata.debts] == [Debt(0, entries - 1)]
    return writer.id


async def is_paid(cluster: RepairCluster, ledger_id: int) -> bool:
    return not (await cluster.metadata(ledger_id)).debts


async def test_a_bookie_that_is_back_copies_and_the_debt_is_cleared(cluster: RepairCluster) -> None:
    client = await cluster.client(full_copies_patience_seconds=0.01, bookie_loss_seconds=60.0)
    ledger_id = await owing_ledger(cluster, client)
    await cluster.start("b2")
    await eventually(lambda: is_paid(cluster, ledger_id))
    assert await cluster.is_whole(ledger_id)
    assert cluster.copied("b2") == 20
    assert (await cluster.metadata(ledger_id)).last_fragment.debt == NO_DEBT


LEDGER = LedgerId(0)
STAYS: dict[str, Callable[[FakeBookie], None]] = {
    "does not answer": lambda bookie: bookie.drop(Op.MISSING),
    "is too old to know the question": lambda bookie: setattr(bookie, "capabilities", ()),
    "lacks an entry": lambda bookie: bookie.forget(LEDGER, 4),
    "refuses": lambda bookie: bookie.refuse(Op.MISSING, BookieInDoubtError("doubt")),
    "has everything": lambda bookie: None,
}


@pytest.mark.parametrize("name", STAYS)
async def test_a_debt_stays_unless_every_member_has_everything(name: str) -> None:
    async with fake_cluster(3) as cluster:
        sealed = Sealer(LEDGER, Digest.CRC32C, derive_secrets(b"", LEDGER)).seal(
            EntryId(0), [b"x"] * 10, last_add_confirmed=None, length=0, sealed_at_ms=0
        )
        for bookie in cluster.bookies:
            bookie.put(LEDGER, sealed)
        STAYS[name](cluster.bookies[1])
        base = replace(open_ledger(LEDGER), fragments=(Fragment(EntryId(0), bookie_ids("b0", "b1", "b2")),))
        owing = replace(base, full_copies=FullCopies.RECORDED).closed(EntryId(9), 10)
        assert await cluster.store.allocate_ledger_id() == LEDGER
        version = await cluster.store.create_ledger(owing)
        options = ClientOptions.from_keywords({**QUICK, "request_timeout_seconds": 0.05})
        pool = ConnectionPool(cluster.store, cluster_id=cluster.cluster_id, options=options, rng=random.Random(0))
        cluster.pools.append(pool)
        payer = DebtPayer(MemoryBookie("x", cluster.store, cluster.cluster_id), pool, timeout_seconds=0.05, token="t")
        paid = await payer.pay(Versioned(owing, version))
        stored = (await cluster.store.read_ledger(LEDGER)).value
        assert stored.debts == paid.debts
        assert (stored.debts == ()) is (name == "has everything")


async def test_the_debt_of_a_lost_bookie_is_paid_by_the_one_that_takes_its_place(cluster: RepairCluster) -> None:
    client = await cluster.client(full_copies_patience_seconds=0.01, bookie_loss_seconds=60.0)
    ledger_id = await owing_ledger(cluster, client)
    await cluster.start("b3")
    await cluster.set_condition("b2", Condition.LOST)
    await eventually(lambda: is_paid(cluster, ledger_id))
    assert await cluster.names(ledger_id) == {"b0", "b1", "b3"}
    assert await cluster.is_whole(ledger_id)


async def test_a_debt_of_which_nothing_is_missing_is_cleared_without_copies(cluster: RepairCluster) -> None:
    """What was given up, or came late, is there in the end."""
    client = await cluster.client()
    ledger_id = await cluster.ledger(client, 10)
    await eventually(lambda: cluster.is_whole(ledger_id))
    current = await cluster.store.read_ledger(LedgerId(ledger_id))
    owing = replace(current.value, full_copies=FullCopies.RECORDED).with_debt(EntryId(0), Debt(3, 5))
    await cluster.store.compare_and_set_ledger(owing, current.version)
    await restart_auditor(cluster)
    await eventually(lambda: is_paid(cluster, ledger_id))
    assert sum(cluster.copied(name) for name in cluster.members) == 0


async def restart_auditor(cluster: RepairCluster) -> None:
    """A new auditor takes its first round, which reads all metadata: a closed ledger changes by repair only."""
    for name in list(cluster.members):
        await cluster.stop(name)
    for name in list(cluster.members):
        await cluster.start(name)


def test_the_census_knows_the_ledgers_that_owe() -> None:
    owing = replace(open_ledger(7).closed(EntryId(9), 90), full_copies=FullCopies.RECORDED)
    paid = owing.with_debt(EntryId(0), NO_DEBT)
    census = Census()
    found = Round()
    found.list(LedgerId(7))
    found.note(LedgerId(7), Seen.of(owing))
    at_once(census.apply(found))
    assert census.owing == {7}
    census.update(LedgerId(7), Seen.of(paid))
    assert census.owing == set()
    census.update(LedgerId(7), Seen.of(owing))
    gone = Round()
    at_once(census.apply(gone))
    assert census.owing == set()


def test_a_bookie_that_may_have_joined_stays_in_doubt_where_copies_are_required() -> None:
    """A wiped joiner must not deny what it confirmed before the metadata named it (rule G3)."""
    ledger = open_ledger(7, fragment(0, "abc"), fragment(5, "abd", 50))
    assert ledger.state is LedgerState.OPEN
    for kept, unsure in ((None, SURE_OF_ALL), (FullCopies.RECORDED, SURE_OF_ALL), (FullCopies.REQUIRED, 5)):
        assert first_unsure_id(replace(ledger, full_copies=kept), BookieId("x"), holds_all=True) == unsure
    closed = replace(ledger, full_copies=FullCopies.REQUIRED).closed(EntryId(9), 90)
    assert first_unsure_id(closed, BookieId("x"), holds_all=True) is SURE_OF_ALL
