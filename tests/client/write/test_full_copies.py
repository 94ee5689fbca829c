"""Ledgers with full copies (rules G1 to G5), on bookies in memory that speak the real wire. ``b0`` to
``b2`` form the first ensemble of every ledger here, the others are spares."""

import asyncio
import random
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from octavo.client.choose.placer import Placer
from octavo.client.options import ClientOptions
from octavo.client.recover.recovery import Recoverer
from octavo.client.wire.pool import ConnectionPool
from octavo.client.write.writer import LedgerWriter
from octavo.metadata import Versioned
from octavo.metadata.ledger.debts import NO_DEBT, Debt, FullCopies
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.protocol.entries import derive_secrets
from octavo.protocol.errors import (
    BookieReadOnlyError,
    LedgerClosedError,
    LedgerFencedError,
    LedgerRecoveryError,
    OctavoError,
    UnderReplicatedError,
    WouldBlock,
)
from octavo.protocol.ids import LedgerId
from octavo.protocol.messages import CAPABILITY_REPAIR, Op
from support.clusters.reading import cluster_of
from support.clusters.writing import PASSWORD, QUICK, FakeCluster, fake_cluster
from support.inside import core_of
from support.waiting import WAIT_SECONDS, loop_turns

import octavo

HASTY: dict[str, Any] = {"bookie_loss_seconds": 0.001}
PATIENT: dict[str, Any] = {"bookie_loss_seconds": 3600.0, "full_copies_patience_seconds": 0.01}


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(4) as cluster:
        yield cluster


async def metadata_of(cluster: FakeCluster, ledger: LedgerWriter) -> LedgerMetadata:
    return (await cluster.store.read_ledger(ledger.id)).value


def debts_of(metadata: LedgerMetadata) -> list[tuple[int, Debt]]:
    return [(int(fragment.first_entry_id), debt) for fragment, debt in metadata.debts]


def copies_of(cluster: FakeCluster, metadata: LedgerMetadata, entry_id: int) -> int:
    """On how many members of its fragment the entry is."""
    bookies = metadata.fragment_of(entry_id).bookies  # type: ignore[arg-type]
    return sum(entry_id in cluster.held(int(name[1:]), metadata.ledger_id) for name in bookies)


async def recover(
    cluster: FakeCluster,
    ledger_id: LedgerId,
    *,
    timeout_seconds: float = WAIT_SECONDS,
    patience_seconds: float = WAIT_SECONDS,
    **keywords: Any,
) -> LedgerMetadata:
    waits = {"recovery_timeout_seconds": timeout_seconds, "full_copies_patience_seconds": patience_seconds}
    checked = ClientOptions.from_keywords(QUICK | PATIENT | waits)
    pool = ConnectionPool(cluster.store, cluster_id=cluster.cluster_id, options=checked, rng=random.Random(1))
    cluster.pools.append(pool)
    recoverer = Recoverer(
        store=cluster.store,
        pool=pool,
        placer=Placer(cluster.store, rng=random.Random(0), quarantined=pool.quarantined),
        options=checked,
        rng=random.Random(0),
    )
    ledger: Versioned[LedgerMetadata] = await cluster.store.read_ledger(ledger_id)
    return (await recoverer.recover(ledger, derive_secrets(PASSWORD, ledger_id), **keywords)).value


# --- recorded -------------------------------------------------------------------------------------------------------


async def test_a_ledger_with_all_copies_is_closed_without_debt(cluster: FakeCluster) -> None:
    async with await cluster.writer(full_copies=FullCopies.RECORDED) as ledger:
        await ledger.add_many([b"x"] * 10)
    closed = await metadata_of(cluster, ledger)
    assert closed.last_fragment.debt == NO_DEBT
    assert [copies_of(cluster, closed, entry_id) for entry_id in range(10)] == [3] * 10


async def test_closing_waits_for_a_slow_bookie(cluster: FakeCluster) -> None:
    ledger = await cluster.writer(full_copies=FullCopies.RECORDED, full_copies_patience_seconds=WAIT_SECONDS)
    cluster.bookies[2].hold(Op.ADD)
    await ledger.add_many([b"x"] * 10)
    closing = asyncio.ensure_future(ledger.close())
    await loop_turns(20)
    assert not closing.done()
    cluster.bookies[2].release(Op.ADD)
    await closing
    assert (await metadata_of(cluster, ledger)).last_fragment.debt == NO_DEBT


async def test_what_lacks_copies_after_the_patience_is_the_debt_of_the_last_fragment(cluster: FakeCluster) -> None:
    async with await cluster.writer(full_copies=FullCopies.RECORDED, **PATIENT) as ledger:
        await ledger.add_many([b"x"] * 10)
        await cluster.until(lambda: not ledger.statistics().replication.short_entries)
        await cluster.bookies[2].stop()
        await ledger.add_many([b"y"] * 5)
    closed = await metadata_of(cluster, ledger)
    assert closed.last_entry_id == 14
    assert debts_of(closed) == [(0, Debt(10, 14))]


async def test_what_a_change_of_the_ensemble_leaves_behind_is_the_debt_of_the_fragment(cluster: FakeCluster) -> None:
    """Also what a member that stays has not confirmed (rule G3)."""
    async with await cluster.writer(full_copies=FullCopies.RECORDED, **HASTY) as ledger:
        cluster.bookies[1].hold(Op.ADD)
        await ledger.add_many([b"x"] * 10)
        cluster.bookies[1].release(Op.ADD)
        await cluster.until(lambda: not ledger.statistics().replication.short_entries)
        cluster.bookies[1].hold(Op.ADD)
        await ledger.add_many([b"late"] * 4)  # on b0 and b2 only
        await cluster.bookies[2].stop()
        adding = asyncio.ensure_future(ledger.add(b"y"))
        await cluster.until(lambda: len(ledger.metadata.fragments) == 2)
        cluster.bookies[1].release(Op.ADD)
        await adding
    closed = await metadata_of(cluster, ledger)
    assert debts_of(closed) == [(0, Debt(10, 13))]
    assert closed.last_fragment.debt == NO_DEBT


async def test_what_the_bound_gives_up_is_owed(cluster: FakeCluster) -> None:
    async with await cluster.writer(full_copies=FullCopies.RECORDED, retained_bytes_max=1000, **PATIENT) as ledger:
        cluster.bookies[2].hold(Op.ADD)
        for _ in range(8):
            await ledger.add(b"x" * 400)
        assert ledger.statistics().replication.short_entries == range(8)
        cluster.bookies[2].release(Op.ADD)
        await cluster.until(lambda: cluster.held(2, ledger.id).keys() == set(range(8)))
    # Given up is given up: the writer does not know any more what became of those.
    ((_, debt),) = debts_of(await metadata_of(cluster, ledger))
    assert debt.first == 0
    assert debt.last < 7


async def test_a_ledger_without_books_records_nothing(cluster: FakeCluster) -> None:
    async with await cluster.writer(**PATIENT) as ledger:
        await cluster.bookies[2].stop()
        await ledger.add_many([b"x"] * 10)
    closed = await metadata_of(cluster, ledger)
    assert closed.last_fragment.debt is None
    assert closed.debts == ()


# --- required -------------------------------------------------------------------------------------------------------


async def test_entries_take_room_until_they_have_all_copies(cluster: FakeCluster) -> None:
    """Rule G2."""
    async with await cluster.writer(full_copies=FullCopies.REQUIRED, window_entries=4, **PATIENT) as ledger:
        cluster.bookies[2].hold(Op.ADD)
        assert [await ledger.add(b"x") for _ in range(4)] == [0, 1, 2, 3]
        with pytest.raises(WouldBlock):
            ledger.add_nowait(b"y")
        blocked = asyncio.ensure_future(ledger.add(b"y"))
        await loop_turns(20)
        assert not blocked.done()
        cluster.bookies[2].release(Op.ADD)
        assert await blocked == 4
    closed = await metadata_of(cluster, ledger)
    assert [copies_of(cluster, closed, entry_id) for entry_id in range(5)] == [3] * 5


async def test_closing_without_all_copies_is_refused_loses_nothing_and_can_be_tried_again(cluster: FakeCluster) -> None:
    """Rule G4."""
    ledger = await cluster.writer(full_copies=FullCopies.REQUIRED, close_timeout_seconds=0.05, **PATIENT)
    cluster.bookies[2].hold(Op.ADD)
    await ledger.add_many([b"x"] * 10)
    for _ in range(2):
        with pytest.raises(UnderReplicatedError, match=r"entries 0 to 9 .*: bookie b2: ") as raised:
            await ledger.close()
        assert raised.value.retryable
        assert not ledger.closed
        assert not (await metadata_of(cluster, ledger)).is_closed
    with pytest.raises(LedgerClosedError):
        await ledger.add(b"y")
    cluster.bookies[2].release(Op.ADD)
    await cluster.until(lambda: not ledger.statistics().replication.short_entries)
    await ledger.close()
    closed = await metadata_of(cluster, ledger)
    assert (closed.last_entry_id, closed.last_fragment.debt) == (9, NO_DEBT)


async def test_a_bookie_that_is_gone_is_replaced_once_the_spare_has_the_copies(cluster: FakeCluster) -> None:
    """Rule G3: the fragment begins at LAFR + 1, and the spare has what lies above before it stands."""
    held_at_change: list[set[int]] = []
    ledger = await cluster.writer(full_copies=FullCopies.REQUIRED, **HASTY)
    await ledger.add_many([b"full"] * 6)
    await cluster.until(lambda: not ledger.statistics().replication.short_entries)

    async def look(*arguments: Any) -> Any:
        held_at_change.append(set(cluster.held(3, ledger.id)))
        return await cluster.interposed.real.compare_and_set_ledger(*arguments)

    cluster.bookies[1].hold(Op.ADD)
    await ledger.add_many([b"short"] * 4)  # acknowledged by b0 and b2
    cluster.interposed.interpose("compare_and_set_ledger", look)
    await cluster.bookies[2].stop()
    adding = asyncio.ensure_future(ledger.add(b"after"))
    await cluster.until(lambda: len(ledger.metadata.fragments) == 2)
    assert held_at_change[0] >= {6, 7, 8, 9}, "with b0 they make Qa"
    cluster.bookies[1].release(Op.ADD)
    assert await adding == 10
    await ledger.close()
    closed = await metadata_of(cluster, ledger)
    assert [(one.first_entry_id, one.bookies) for one in closed.fragments] == [
        (0, ("b0", "b1", "b2")),
        (6, ("b0", "b1", "b3")),
    ]
    assert closed.debts == ()
    assert [copies_of(cluster, closed, entry_id) for entry_id in range(11)] == [3] * 11


async def test_a_joiner_that_fails_changes_nothing_and_another_one_is_taken() -> None:
    async with fake_cluster(5) as cluster:
        ledger = await cluster.writer(full_copies=FullCopies.REQUIRED, **HASTY)
        await ledger.add(b"x")
        await cluster.until(lambda: not ledger.statistics().replication.short_entries)
        for spare in (3, 4):
            cluster.bookies[spare].refuse(Op.ADD, BookieReadOnlyError("full"), times=1)
        await cluster.bookies[2].stop()
        await ledger.add_many([b"y"] * 3)
        await cluster.until(lambda: ledger.metadata.last_fragment.first_entry_id == 1)
        await ledger.close()
        closed = await metadata_of(cluster, ledger)
        assert closed.debts == ()
        assert [copies_of(cluster, closed, entry_id) for entry_id in range(4)] == [3] * 4


async def test_a_joiner_that_comes_back_as_another_process_is_sent_everything_again(cluster: FakeCluster) -> None:
    """It may have been wiped, and would not know that it ought to be in doubt (rule G3)."""
    ledger = await cluster.writer(full_copies=FullCopies.REQUIRED, bookie_quarantine_seconds=0.0, **HASTY)
    joiner = cluster.bookies[3]
    cluster.bookies[1].hold(Op.ADD)
    await ledger.add(b"short")  # acknowledged by b0 and b2
    await ledger.add(b"short")
    joiner.hold(Op.ADD)
    await cluster.bookies[2].stop()
    adding = asyncio.ensure_future(ledger.add(b"after"))
    await joiner.received(Op.ADD, 3)
    joiner.release(Op.ADD, 1)
    await loop_turns(20)
    assert "b3" not in ledger.metadata.last_fragment.bookies, "entry 1 is on b0 only, of the new members"
    await joiner.stop()
    joiner.restarted()
    joiner.ledgers.clear()
    joiner.accept(Op.ADD)
    joiner.release(Op.ADD)
    await joiner.start()
    await cluster.until(lambda: "b3" in ledger.metadata.last_fragment.bookies)
    cluster.bookies[1].release(Op.ADD)
    assert await adding == 2
    await ledger.close()
    closed = await metadata_of(cluster, ledger)
    assert closed.debts == ()
    assert [copies_of(cluster, closed, entry_id) for entry_id in range(3)] == [3, 3, 3]


async def test_a_client_that_is_closed_leaves_a_ledger_without_its_copies_open() -> None:
    async with cluster_of(3) as cluster:
        options: dict[str, Any] = {"close_timeout_seconds": 0.05, "bookie_loss_seconds": 60.0}
        client = await octavo.connect(cluster.uri, **options)
        writer = await client.create_ledger(full_copies="required")
        name = writer.metadata.last_fragment.bookies[2]
        slow = next(bookie for bookie in cluster.bookies if bookie.bookie_id == name)
        slow.hold(Op.ADD)
        await writer.add(b"x")
        with pytest.raises(UnderReplicatedError):
            await client.close()
        assert not (await cluster.store.read_ledger(writer.id)).value.is_closed
        assert [task for task in asyncio.all_tasks() if f"ledger {writer.id}" in task.get_name()] == []


@pytest.mark.parametrize("ids", ["sequential", "explicit"])
async def test_a_client_that_is_closed_tells_adds_that_are_still_under_way(ids: str) -> None:
    """The closing of the writer left them pending, because a copy of an earlier entry is missing."""
    async with cluster_of(3) as cluster:
        options: dict[str, Any] = {"close_timeout_seconds": 0.05, "bookie_loss_seconds": 60.0}
        client = await octavo.connect(cluster.uri, **options)
        if ids == "explicit":
            explicit = await client.create_ledger(full_copies="required", ids="explicit")
            adds: list[Any] = [partial(explicit.add_nowait, entry_id=number) for number in range(2)]
            metadata = explicit.metadata
        else:
            writer = await client.create_ledger(full_copies="required")
            adds, metadata = [writer.add_nowait] * 2, writer.metadata
        members = {bookie.bookie_id: bookie for bookie in cluster.bookies}
        first, second, slow = (members[name] for name in metadata.last_fragment.bookies)
        slow.hold(Op.ADD)
        await adds[0](b"x")
        first.hold(Op.ADD)
        pending = adds[1](b"y")
        await second.received(Op.ADD, 2)
        with pytest.raises(UnderReplicatedError):
            await client.close()
        with pytest.raises(octavo.ClientClosedError) as caught:
            await asyncio.wait_for(pending, WAIT_SECONDS)
        assert caught.value.may_have_happened, "a recovery may find it at the second bookie"


@pytest.mark.parametrize(
    "wrong", [{"full_copies": "all"}, {"full_copies": 1}, {"full_copies": "recorded", "sync": "deferred"}], ids=str
)
async def test_wrong_kinds_are_refused(wrong: dict[str, Any]) -> None:
    async with cluster_of(3) as cluster, octavo.connect(cluster.uri) as client:
        with pytest.raises(octavo.InvalidArgumentError, match="full_copies"):
            await client.create_ledger(**wrong)


async def test_ids_chosen_by_the_caller_can_have_all_copies() -> None:
    async with cluster_of(3) as cluster, octavo.connect(cluster.uri) as client:
        async with client.create_ledger(ids="explicit", full_copies="required") as writer:
            await asyncio.gather(writer.add(b"b", entry_id=1), writer.add(b"a", entry_id=0))
        metadata = await client.ledger_metadata(writer.id)
        assert (metadata.last_entry_id, metadata.full_copies, metadata.debts) == (1, FullCopies.REQUIRED, ())


async def test_a_writer_that_has_failed_leaves_a_ledger_without_all_copies_open(cluster: FakeCluster) -> None:
    ledger = await cluster.writer(full_copies=FullCopies.REQUIRED, **PATIENT)
    cluster.bookies[2].hold(Op.ADD)
    await ledger.add(b"x")
    core_of(ledger).fail(LedgerFencedError("fenced"))
    with pytest.raises(OctavoError):
        await ledger.close()
    assert ledger.closed
    assert not (await metadata_of(cluster, ledger)).is_closed


# --- recovery -------------------------------------------------------------------------------------------------------


async def abandoned(cluster: FakeCluster, kind: FullCopies) -> LedgerWriter:
    """Ten entries of which b2 has the first five, and a writer that is gone."""
    ledger = await cluster.writer(full_copies=kind, **PATIENT)
    await ledger.add_many([b"x"] * 5)
    await cluster.until(lambda: not ledger.statistics().replication.short_entries)
    cluster.bookies[2].drop(Op.ADD)
    await ledger.add_many([b"y"] * 5)
    await cluster.abandon(ledger)
    return ledger


@pytest.mark.parametrize("kind", FullCopies)
async def test_recovery_makes_the_copies_that_are_missing(cluster: FakeCluster, kind: FullCopies) -> None:
    """Rule G5."""
    ledger = await abandoned(cluster, kind)
    cluster.bookies[2].accept(Op.ADD)
    closed = await recover(cluster, ledger.id)
    assert (closed.last_entry_id, closed.debts) == (9, ())
    assert closed.last_fragment.debt == NO_DEBT
    assert [copies_of(cluster, closed, entry_id) for entry_id in range(10)] == [3] * 10


async def test_recovery_records_what_it_cannot_copy(cluster: FakeCluster) -> None:
    ledger = await abandoned(cluster, FullCopies.RECORDED)
    closed = await recover(cluster, ledger.id, patience_seconds=0.01)
    assert debts_of(closed)[-1][1].last == 9
    for entry_id in range(10):
        owed = any(debt.first <= entry_id <= debt.last for _, debt in closed.debts)
        assert owed or copies_of(cluster, closed, entry_id) == 3


async def test_recovery_of_a_ledger_that_requires_copies_names_the_bookie_without_them(cluster: FakeCluster) -> None:
    ledger = await abandoned(cluster, FullCopies.REQUIRED)
    await cluster.bookies[2].stop()
    await cluster.bookies[3].stop()
    with pytest.raises(LedgerRecoveryError, match=r"requires all copies.*b2"):
        await recover(cluster, ledger.id, timeout_seconds=0.5)
    assert not (await metadata_of(cluster, ledger)).is_closed
    await cluster.bookies[2].start()
    cluster.bookies[2].accept(Op.ADD)
    assert (await recover(cluster, ledger.id)).debts == ()


async def test_the_clusters_own_recovery_records_what_is_required(cluster: FakeCluster) -> None:
    ledger = await abandoned(cluster, FullCopies.REQUIRED)
    await cluster.bookies[2].stop()
    await cluster.bookies[3].stop()
    closed = await recover(cluster, ledger.id, may_owe=True, patience_seconds=0.01)
    assert debts_of(closed) == [(0, Debt(0, 9))]


async def test_a_bookie_that_cannot_tell_what_it_lacks_may_lack_everything(cluster: FakeCluster) -> None:
    ledger = await abandoned(cluster, FullCopies.RECORDED)
    cluster.bookies[2].accept(Op.ADD)
    cluster.bookies[2].capabilities = tuple(set(cluster.bookies[2].capabilities) - {CAPABILITY_REPAIR})
    closed = await recover(cluster, ledger.id)
    assert debts_of(closed) == [(0, Debt(0, 9))]
