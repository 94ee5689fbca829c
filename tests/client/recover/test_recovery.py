"""Recovery on bookies in memory that speak the real wire: several recoverers, hung bookies, spares, a living writer."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

import pytest
from octavo.client.choose.placer import Placer
from octavo.client.options import ClientOptions
from octavo.client.recover.ledger_recovery import WINDOW_ENTRIES, LedgerRecovery
from octavo.client.recover.recovery import Recoverer
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata import LedgerMetadata, LedgerState, MetadataStore, Versioned
from octavo.protocol.entries import Sealer, derive_secrets
from octavo.protocol.errors import (
    BookieReadOnlyError,
    BookieStorageError,
    ClientClosedError,
    InternalError,
    LedgerFencedError,
    LedgerRecoveryError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    OctavoError,
)
from octavo.protocol.ids import ID_MAX, BookieId, EntryId, LedgerId
from octavo.protocol.limits import FRAME_PAYLOAD_BYTES_TARGET
from octavo.protocol.messages import Add, AddFlag, Op, Pong, Read, ReadFlag, ReadLac
from support.clusters.writing import DIGEST, PASSWORD, QUICK, FakeCluster, fake_cluster
from support.waiting import WAIT_SECONDS, eventually

HASTY: dict[str, Any] = {"bookie_loss_seconds": 0.001}
IMPATIENT: dict[str, Any] = {"recovery_timeout_seconds": 0.3}
"""For a recovery that is to go on, or fail, without bookies that do not answer."""

LARGE = b"x" * (FRAME_PAYLOAD_BYTES_TARGET // 4 - 100)
"""Payload of which a few fill an answer to a recovery."""


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(5) as cluster:
        yield cluster


class SilentStore:
    """The cluster's store, which does not answer the next ``times`` changes of a ledger."""

    def __init__(self, store: MetadataStore, times: int) -> None:
        self._store = store
        self.times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def compare_and_set_ledger(self, *change: Any) -> Any:
        if self.times:
            self.times -= 1
            raise MetadataUnavailableError("no answer")
        return await self._store.compare_and_set_ledger(*change)


FENCED_AT = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)


async def recover(
    cluster: FakeCluster, ledger_id: LedgerId, store: SilentStore | None = None, **options: Any
) -> LedgerMetadata:
    """By a client of its own, with the cluster's ``store`` unless another one is given."""
    checked = ClientOptions.from_keywords(QUICK | HASTY | options)
    pool = ConnectionPool(cluster.store, cluster_id=cluster.cluster_id, options=checked, rng=random.Random(0))
    cluster.pools.append(pool)
    placer = Placer(cluster.store, rng=random.Random(0), quarantined=pool.quarantined)
    used = cast(MetadataStore, store or cluster.store)
    recoverer = Recoverer(
        store=used, pool=pool, placer=placer, options=checked, rng=random.Random(),
        wall_clock=lambda: FENCED_AT, client_name="standby 2",
    )  # fmt: skip
    ledger: Versioned[LedgerMetadata] = await cluster.store.read_ledger(ledger_id)
    return (await recoverer.recover(ledger, derive_secrets(PASSWORD, ledger_id))).value


async def test_what_was_acknowledged_is_in_it_and_the_writer_finds_out(cluster: FakeCluster) -> None:
    writer = await cluster.writer(3, 3, 2)
    await writer.add_many([b"abc"] * 10)
    metadata = await recover(cluster, writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == (LedgerState.CLOSED, 9, 30)
    assert (metadata.fenced_at, metadata.fenced_by) == (FENCED_AT, "standby 2")
    with pytest.raises(LedgerFencedError):
        await writer.add(b"too late")
    await writer.close()  # closed with the very end that this writer would have written (rule W9)
    asked = [len(bookie.requests) for bookie in cluster.bookies]
    assert await recover(cluster, writer.id) == metadata, "a closed ledger stays as it is"
    assert [len(bookie.requests) for bookie in cluster.bookies] == asked, "and no bookie is asked"


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (3, 3, 3), (3, 3, 1), (5, 3, 2), (1, 1, 1)], ids=str)
async def test_several_recoverers_at_once_agree(cluster: FakeCluster, quorums: tuple[int, int, int]) -> None:
    """Rule F7."""
    writer = await cluster.writer(*quorums)
    await writer.add_many([b"acknowledged"] * 20)
    cluster.bookies[0].refuse(Op.ADD, BookieStorageError("one copy less"))
    pending = [writer.add_nowait(b"in doubt") for _ in range(7)]
    recovered = await asyncio.gather(*(recover(cluster, writer.id) for _ in range(5)))
    assert len({(metadata.last_entry_id, metadata.length) for metadata in recovered}) == 1
    last = recovered[0].last_entry_id
    assert last is not None
    assert last >= 19
    for outcome, entry_id in zip(await asyncio.gather(*pending, return_exceptions=True), range(20, 27), strict=True):
        if isinstance(outcome, OctavoError):
            assert outcome.may_have_happened or entry_id > last
        else:
            assert entry_id <= last, "the old writer was told success for an entry that recovery dropped (rule I7)"
    for entry_id in range(last + 1):
        bookies = recovered[0].fragment_of(entry_id).bookies  # type: ignore[arg-type]
        copies = [cluster.held(int(bookie[1:]), writer.id).get(entry_id) for bookie in bookies]
        assert len([copy for copy in copies if copy is not None]) >= quorums[2], "committed is replicated (rule I5)"
        assert len({copy for copy in copies if copy is not None}) == 1, "one value (rule I3)"


async def test_an_empty_ledger_is_closed_empty(cluster: FakeCluster) -> None:
    writer = await cluster.writer(3, 2, 2)
    metadata = await recover(cluster, writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == (LedgerState.CLOSED, None, 0)
    with contextlib.suppress(OctavoError):
        await writer.close()


async def test_every_recovery_read_fences(cluster: FakeCluster) -> None:
    writer = await cluster.writer(3, 3, 2)
    await writer.add_many([b"x"] * 3)
    await cluster.abandon(writer)
    for bookie in cluster.bookies:
        bookie.requests.clear()
    await recover(cluster, writer.id)
    asked = [request for bookie in cluster.bookies for request in bookie.requests]
    for request in asked:
        if isinstance(request, Read | ReadLac):
            assert request.flags & ReadFlag.FENCE, "reads of a recovery fence too (#2614)"
        if isinstance(request, Add):
            assert request.flags & AddFlag.RECOVERY


async def test_a_hung_bookie_delays_no_recovery(cluster: FakeCluster) -> None:
    writer = await cluster.writer(3, 3, 2)
    await writer.add_many([b"x"] * 10)
    await cluster.abandon(writer)
    cluster.bookies[1].hang()
    async with asyncio.timeout(WAIT_SECONDS):
        metadata = await recover(cluster, writer.id, recovery_timeout_seconds=1000, request_timeout_seconds=1000)
    assert metadata.last_entry_id == 9
    cluster.bookies[1].unhang()


async def test_entries_are_written_back_to_spares_when_their_bookies_are_gone(cluster: FakeCluster) -> None:
    writer = await cluster.writer(3, 3, 2)
    await writer.add_many([b"x"] * 10)
    for bookie in cluster.bookies[1:3]:
        bookie.refuse(Op.ADD, BookieStorageError("only one has it"))
    pending = writer.add_nowait(b"on one bookie only")
    await cluster.until(lambda: 10 in cluster.held(0, writer.id))
    await cluster.abandon(writer)
    metadata = await recover(cluster, writer.id)
    assert metadata.last_entry_id in {9, 10}
    if metadata.last_entry_id == 10:
        # The writer may have replaced bookies, too, before it was gone.
        assert all(fragment.first_entry_id >= 10 for fragment in metadata.fragments[1:]), "rules F5 and F6"
        assert len(metadata.fragments) > 1
        bookies = metadata.last_fragment.bookies
        assert sum(10 in cluster.held(int(bookie[1:]), writer.id) for bookie in bookies) >= 2
    pending.cancel()


async def test_without_enough_bookies_it_names_them_and_the_ledger_can_be_recovered_later(cluster: FakeCluster) -> None:
    writer = await cluster.writer(3, 3, 2)
    await writer.add_many([b"x"] * 5)
    await cluster.abandon(writer)
    await cluster.bookies[0].stop()
    await cluster.bookies[2].stop()
    with pytest.raises(LedgerRecoveryError, match=r"could be fenced: bookie b0.*; bookie b2"):
        await recover(cluster, writer.id, **IMPATIENT)
    assert (await cluster.store.read_ledger(writer.id)).value.state is LedgerState.IN_RECOVERY
    await cluster.bookies[2].start()
    assert (await recover(cluster, writer.id)).last_entry_id == 4


async def test_a_blocked_recovery_adopts_the_end_that_another_client_has_written(cluster: FakeCluster) -> None:
    writer = await cluster.writer(3, 3, 2)
    await writer.add_many([b"x"] * 5)
    await cluster.abandon(writer)
    for bookie in cluster.bookies[:3]:
        bookie.hold(Op.READ_LAC)
    blocked = asyncio.ensure_future(recover(cluster, writer.id, **IMPATIENT))
    await cluster.bookies[0].received(Op.READ_LAC)
    ledger = await cluster.store.read_ledger(writer.id)
    closed = ledger.value.closed(EntryId(4), 5)
    await cluster.store.compare_and_set_ledger(closed, ledger.version)
    assert await blocked == closed


async def test_a_ledger_deleted_while_it_is_recovered_is_said_to_be(cluster: FakeCluster) -> None:
    writer = await cluster.writer(3, 3, 2)
    await cluster.abandon(writer)
    for bookie in cluster.bookies[:3]:
        bookie.refuse(Op.READ_LAC, NoSuchLedgerError("deleted"))
        bookie.hold(Op.READ_LAC)
    blocked = asyncio.ensure_future(recover(cluster, writer.id))
    await cluster.bookies[0].received(Op.READ_LAC)
    await cluster.store.delete_ledger(writer.id)
    for bookie in cluster.bookies[:3]:
        bookie.release(Op.READ_LAC)
    with pytest.raises(NoSuchLedgerError):
        await blocked


async def test_other_bytes_where_an_entry_is_to_be_written_back_are_told_and_never_overwritten(
    cluster: FakeCluster,
) -> None:
    writer = await cluster.writer(3, 3, 3)
    await writer.add(b"acknowledged")
    cluster.bookies[1].hold(Op.ADD)
    pending = writer.add_nowait(b"in doubt")
    await cluster.until(lambda: all(1 in cluster.held(at, writer.id) for at in range(3)))
    await cluster.abandon(writer)
    sealer = Sealer(writer.id, DIGEST, derive_secrets(PASSWORD, writer.id))
    other = sealer.seal(EntryId(1), [b"another"], last_add_confirmed=EntryId(0), length=12, sealed_at_ms=0)
    cluster.bookies[2].put(writer.id, other)
    with pytest.raises(LedgerRecoveryError, match=r"b[012].* other bytes"):
        await recover(cluster, writer.id)
    held = {cluster.held(at, writer.id)[1] for at in range(3)}
    assert held == {b"in doubt", b"another"}
    pending.cancel()


async def test_closing_the_client_ends_its_recovery(cluster: FakeCluster) -> None:
    writer = await cluster.writer(3, 3, 2)
    await cluster.abandon(writer)
    for bookie in cluster.bookies[:3]:
        bookie.hold(Op.READ_LAC)
    recovery = asyncio.ensure_future(recover(cluster, writer.id, recovery_timeout_seconds=1000))
    await cluster.bookies[0].received(Op.READ_LAC)
    await cluster.pools[-1].close()
    with pytest.raises(ClientClosedError):
        await recovery


async def test_a_bookie_that_cannot_tell_blocks_and_is_named(cluster: FakeCluster) -> None:
    writer = await cluster.writer(3, 3, 2)
    await writer.add_many([b"x"] * 2)
    await cluster.abandon(writer)
    for bookie in cluster.bookies[:3]:
        bookie.ledger(writer.id).unknown |= set(range(1, 5000))
    with pytest.raises(LedgerRecoveryError, match=r"unknown whether it has entry \d+: bookie b0: cannot tell of entry"):
        await recover(cluster, writer.id)
    for bookie in cluster.bookies[:3]:
        bookie.ledger(writer.id).unknown.clear()
    assert (await recover(cluster, writer.id)).last_entry_id == 1


async def test_a_damaged_copy_is_neither_an_entry_nor_an_absence(cluster: FakeCluster) -> None:
    writer = await cluster.writer(3, 3, 3)
    await writer.add_many([b"x"] * 2)
    await writer.add(b"y")
    await cluster.abandon(writer)
    cluster.bookies[0].damage(writer.id, 2)
    cluster.bookies[1].damage(writer.id, 2)
    assert (await recover(cluster, writer.id)).last_entry_id == 2, "the third copy is enough"


async def test_a_recovery_broken_off_in_the_middle_is_made_again(cluster: FakeCluster) -> None:
    writer = await cluster.writer(3, 3, 2)
    await writer.add_many([b"x"] * 4)
    await cluster.abandon(writer)
    for held in (Op.READ_LAC, Op.READ, Op.ADD):
        for bookie in cluster.bookies:
            bookie.hold(held)
        first = asyncio.ensure_future(recover(cluster, writer.id, recovery_timeout_seconds=100))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(first), 0.05)
        first.cancel()
        await asyncio.wait([first])
        for bookie in cluster.bookies:
            bookie.release(held)
    assert (await recover(cluster, writer.id)).last_entry_id == 3


def _are_all_of(tasks: set[asyncio.Task[Any]]) -> bool:
    return asyncio.all_tasks() <= tasks


async def test_a_recovery_cancelled_at_any_turn_leaves_no_task_and_a_ledger_that_can_be_recovered(
    cluster: FakeCluster,
) -> None:
    """With an entry on one bookie only, which the recovery writes back, and a bookie that it replaces."""
    cancelled = finished = 0
    for turns in range(0, 120, 3):
        writer = await cluster.writer(3, 3, 2)
        await writer.add_many([b"x"] * 2)
        await cluster.abandon(writer)
        sealer = Sealer(writer.id, DIGEST, derive_secrets(PASSWORD, writer.id))
        cluster.bookies[0].put(
            writer.id, sealer.seal(EntryId(2), [b"y"], last_add_confirmed=EntryId(1), length=2, sealed_at_ms=0)
        )
        for bookie in cluster.bookies[1:3]:
            bookie.refuse(Op.ADD, BookieReadOnlyError("full", may_have_happened=False), times=1)
        tasks_before = asyncio.all_tasks()
        recovery = asyncio.ensure_future(recover(cluster, writer.id))
        for _ in range(turns):
            await asyncio.sleep(0)
        recovery.cancel()
        await asyncio.wait([recovery])
        cancelled += recovery.cancelled()
        finished += not recovery.cancelled()
        await cluster.pools[-1].close()
        await eventually(partial(_are_all_of, tasks_before))  # bookies accept what had begun to connect
        metadata = await recover(cluster, writer.id)
        assert metadata.is_closed
        assert metadata.last_entry_id in {1, 2}, "the last entry was on one bookie of three only"
        assert recovery.cancelled() or recovery.result() == metadata, "a closed ledger stays as it is"
        for bookie in cluster.bookies:
            bookie.accept(Op.ADD)
    assert cancelled > 5


async def test_a_defect_in_a_recovery_ends_it_and_closes_nothing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await cluster.writer(3, 3, 2)
    await writer.add_many([b"x"] * 2)
    await cluster.abandon(writer)

    def broken(*_arguments: Any) -> Any:
        raise ZeroDivisionError("a defect")

    for step in ("on_fenced", "wanted_read", "on_read", "take_recovered", "on_written_back"):
        with monkeypatch.context() as patched:
            patched.setattr(LedgerRecovery, step, broken)
            with pytest.raises(InternalError, match="ZeroDivisionError: a defect"):
                await asyncio.wait_for(recover(cluster, writer.id), WAIT_SECONDS)
        assert (await cluster.store.read_ledger(writer.id)).value.state is LedgerState.IN_RECOVERY
    assert (await recover(cluster, writer.id)).last_entry_id == 1


async def test_many_entries_are_recovered_in_order(cluster: FakeCluster) -> None:
    writer = await cluster.writer(3, 2, 2, window_entries=20_000)
    for bookie in cluster.bookies:
        bookie.hold(Op.ADD)  # stored, and never confirmed: all of them are to be recovered
    pending = asyncio.ensure_future(writer.add_many([b"%d" % number for number in range(10_000)]))
    await cluster.until(lambda: all(len(cluster.bookies[at].ledger(writer.id).entries) > 6600 for at in range(3)))
    await cluster.abandon(writer)
    for bookie in cluster.bookies:
        bookie.release(Op.ADD)
    metadata = await recover(cluster, writer.id)
    assert metadata.last_entry_id == 9999
    assert metadata.length == sum(len(b"%d" % number) for number in range(10_000))
    pending.cancel()
    await asyncio.wait([pending])


async def test_a_bookie_that_claims_to_cover_what_it_was_not_asked_for_hides_no_entry(cluster: FakeCluster) -> None:
    writer = await cluster.writer(3, 3, 2, window_entries=20_000)
    await writer.add_many([b"x"] * (WINDOW_ENTRIES + 100))
    for bookie in cluster.bookies[:3]:
        # As if the LAC had been lost on its way: recovery has everything to read.
        bookie.alter(Op.READ_LAC, lambda answer: replace(answer, explicit=None, entry=None))
        bookie.alter(Op.READ, lambda answer: replace(answer, last_covered=2 * WINDOW_ENTRIES))
    await cluster.abandon(writer)
    assert (await recover(cluster, writer.id)).last_entry_id == WINDOW_ENTRIES + 99


async def test_an_absurd_claim_of_coverage_holds_up_no_recovery(cluster: FakeCluster) -> None:
    writer = await cluster.writer(3, 3, 2)
    await writer.add_many([b"x"] * 3)
    await cluster.abandon(writer)
    cluster.bookies[1].damage(writer.id, 2)
    cluster.bookies[1].alter(Op.READ, lambda answer: replace(answer, last_covered=ID_MAX))
    assert (await recover(cluster, writer.id)).last_entry_id == 2


async def test_a_bookie_that_answers_nothing_of_what_it_is_asked_is_given_up(cluster: FakeCluster) -> None:
    writer = await cluster.writer(3, 3, 2)
    await writer.add_many([b"x"] * 3)
    await cluster.abandon(writer)
    for bookie in cluster.bookies[:2]:
        bookie.alter(Op.READ, lambda answer: replace(answer, last_covered=0, entries=[]))
    with pytest.raises(
        LedgerRecoveryError, match=r"b0: answered nothing of entries \d to 4095; bookie b1: answered noth"
    ):
        await recover(cluster, writer.id)


async def test_two_bookies_in_doubt_are_named_with_the_way_out(cluster: FakeCluster) -> None:
    writer = await cluster.writer(3, 3, 2)
    await writer.add_many([b"x"] * 3)
    await cluster.abandon(writer)
    for bookie in cluster.bookies[1:3]:
        bookie.in_doubt = True
    way_out = r"In doubt, because .*: b1, b2\. If .* octavo repair accept-loss 0 --without b1 --without b2,"
    with pytest.raises(LedgerRecoveryError, match=way_out):
        await recover(cluster, writer.id)
    cluster.bookies[1].in_doubt = False
    assert (await recover(cluster, writer.id)).last_entry_id == 2, "one bookie in doubt does not block"


async def test_a_damaged_entry_is_no_absence(cluster: FakeCluster) -> None:
    """Were the copies that cannot be read taken for absent, the ledger would end below an acknowledged entry."""
    writer = await cluster.writer(3, 3, 2)
    await writer.add_many([b"x"] * 2)
    cluster.bookies[2].hold(Op.ADD)
    await writer.add(b"acknowledged by two")
    await cluster.abandon(writer)
    cluster.bookies[2].forget(writer.id, 2)
    cluster.bookies[0].damage(writer.id, 2)
    cluster.bookies[1].damage(writer.id, 2)
    with pytest.raises(LedgerRecoveryError, match=r"unknown whether it has entry 2: bookie b0: sent a damaged entry"):
        await recover(cluster, writer.id)
    assert (await cluster.store.read_ledger(writer.id)).value.state is LedgerState.IN_RECOVERY


async def test_every_change_of_the_ensemble_in_a_recovery_is_written(cluster: FakeCluster) -> None:
    """Two bookies fail one after the other while entries are written back: each change is a fragment of its own."""
    # The first answer begins with entry 1, for the length at the LAC, and is as large as an answer may be.
    first_part = 1 + 2 * FRAME_PAYLOAD_BYTES_TARGET // len(LARGE)
    for bookie in cluster.bookies:
        bookie.drop(Op.WRITE_LAC)
    writer = await cluster.writer(3, 3, 3, window_bytes=1 << 30)
    await writer.add_many([LARGE] * 2)
    for bookie in cluster.bookies[:3]:
        bookie.hold(Op.ADD)  # stored and never confirmed: to be recovered
    pending = asyncio.ensure_future(writer.add_many([LARGE] * 30))
    await cluster.until(lambda: all(len(bookie.ledger(writer.id).entries) == 32 for bookie in cluster.bookies[:3]))
    await cluster.abandon(writer)
    pending.cancel()
    await asyncio.wait([pending])
    for bookie in cluster.bookies[:3]:
        bookie.release(Op.ADD)
        bookie.hold(Op.READ)
    cluster.bookies[0].refuse(Op.ADD, BookieStorageError("disk gone"))
    recovery = asyncio.ensure_future(recover(cluster, writer.id, recovery_timeout_seconds=100))
    for bookie in cluster.bookies[:3]:
        await bookie.received(Op.READ)
        bookie.release(Op.READ, 1)
    await cluster.until(
        lambda: any(first_part - 1 in bookie.ledger(writer.id).entries for bookie in cluster.bookies[3:])
    )
    cluster.bookies[1].refuse(Op.ADD, BookieStorageError("disk gone, too"))
    for bookie in cluster.bookies[:3]:
        bookie.release(Op.READ)
    metadata = await recovery
    assert metadata.last_entry_id == 31
    assert [fragment.first_entry_id for fragment in metadata.fragments] == [0, 2, first_part]
    for entry_id in range(32):
        for bookie_id in metadata.fragment_of(EntryId(entry_id)).bookies:
            assert entry_id in cluster.bookies[int(bookie_id[1:])].ledger(writer.id).entries, (entry_id, bookie_id)


async def test_a_recovery_waits_for_a_metadata_store_that_does_not_answer(cluster: FakeCluster) -> None:
    writer = await cluster.writer(3, 3, 2)
    await writer.add_many([b"x"] * 3)
    await cluster.abandon(writer)
    store = SilentStore(cluster.store, times=3)
    assert (await recover(cluster, writer.id, store)).last_entry_id == 2
    assert store.times == 0


async def test_a_recovery_gives_up_on_a_metadata_store_in_time(cluster: FakeCluster) -> None:
    writer = await cluster.writer(3, 3, 2)
    await cluster.abandon(writer)
    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(MetadataUnavailableError):
            await recover(cluster, writer.id, SilentStore(cluster.store, times=10**9), **IMPATIENT)


async def test_a_recovery_begins_again_with_a_last_fragment_that_changed_meanwhile(cluster: FakeCluster) -> None:
    writer = await cluster.writer(3, 3, 2)
    await writer.add_many([b"x"] * 3)
    await cluster.abandon(writer)
    for bookie in cluster.bookies[:3]:
        bookie.hold(Op.READ_LAC)
    recovery = asyncio.ensure_future(recover(cluster, writer.id))
    await cluster.bookies[0].received(Op.READ_LAC)
    ledger = await cluster.store.read_ledger(writer.id)
    (fragment,) = ledger.value.fragments
    ensemble = (*fragment.bookies[:2], BookieId("b3"))
    await cluster.store.compare_and_set_ledger(
        replace(ledger.value, fragments=(replace(fragment, bookies=ensemble),)), ledger.version
    )
    for bookie in cluster.bookies[:3]:
        bookie.release(Op.READ_LAC)
    metadata = await recovery
    assert (metadata.last_entry_id, metadata.last_fragment.bookies) == (2, ensemble)
    asked = [bookie.count(Op.READ_LAC) for bookie in cluster.bookies[:2]]
    assert max(asked) == 2, "a second attempt was made"


@pytest.mark.parametrize("op", [Op.READ_LAC, Op.READ])
async def test_an_answer_of_another_kind_gives_the_bookie_up(cluster: FakeCluster, op: Op) -> None:
    writer = await cluster.writer(3, 3, 2)
    await writer.add_many([b"x"] * 3)
    await cluster.abandon(writer)
    for bookie in cluster.bookies[:2]:
        bookie.alter(op, lambda _answer: Pong())
    kind = "ReadLac" if op is Op.READ_LAC else "Read"
    with pytest.raises(LedgerRecoveryError, match=rf"b0: answered Pong to {kind}; bookie b1: answered Pong to {kind}"):
        await recover(cluster, writer.id)


async def test_the_highest_lac_counts_in_whichever_order_it_comes(cluster: FakeCluster) -> None:
    """Recovery begins behind the highest LAC: what lies below it was acknowledged, and is not read again."""
    writer = await cluster.writer(3, 3, 3)
    await writer.add_many([b"x"] * 5)
    await cluster.until(lambda: all(bookie.ledger(writer.id).explicit for bookie in cluster.bookies[:3]))
    await cluster.abandon(writer)
    assert (await recover(cluster, writer.id)).last_entry_id == 4
    reads = [request for bookie in cluster.bookies for request in bookie.requests if isinstance(request, Read)]
    assert {request.first for request in reads} == {5}, "the explicit LAC is 4, the last entry carries less"
