"""One job of a target, with sources that lose, deny and damage entries (rules C1 to C6, C9 and O1)."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

import pytest
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata import (
    LedgerMetadata,
    LedgerState,
    MetadataStore,
    ReplaceMember,
    Version,
    Versioned,
    update_stream,
)
from octavo.metadata.cluster.repair_states import DOCUMENT, BookieCondition, Condition, RepairStates, encode_states
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.metadata.stream.changes import BeginTakeover, Truncate
from octavo.metadata.stream.model import StreamState
from octavo.protocol.adaptive_rate import AdaptiveRate
from octavo.protocol.entries import header_of
from octavo.protocol.errors import MetadataError, MetadataUnavailableError
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.messages import Op, Read, ReadFlag
from octavo.protocol.places import place
from octavo.repair.base.planning import BlockedClass, Job, Why
from octavo.repair.copy.batched_naming import Naming
from octavo.repair.copy.jobs import Jobs, Outcome
from octavo.repair.copy.pacing import Pace
from octavo.repair.copy.puller import Puller
from support.clusters.ledgers import LedgerScript
from support.clusters.local_bookie import MemoryBookie, MemoryCopies
from support.clusters.reading import Cluster, HandmadeLedger, cluster_of
from support.metadata.stream_metadata import open_stream, stream_fragment

ME, LOST = BookieId("b3"), BookieId("b0")


class ForgetfulStore:
    """The cluster's store. ``before_write`` is called before each batch of changes; ``lose_answers`` of them are made
    and then not answered."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.lose_answers = 0
        self.before_write: Callable[[], object] = lambda: None
        self.writes = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def compare_and_set_ledgers(self, changes: list[tuple[LedgerMetadata, Version]]) -> list[Version | None]:
        self.writes += 1
        waited = self.before_write()
        if hasattr(waited, "__await__"):
            await waited
        versions = await self._store.compare_and_set_ledgers(changes)
        if self.lose_answers:
            self.lose_answers -= 1
            raise MetadataUnavailableError("no answer", may_have_happened=True)
        return versions


@dataclass
class Workshop:
    """The target ``b3``, in memory, and sources ``b0``, ``b1``, ``b2`` that speak the real wire."""

    cluster: Cluster
    jobs: Jobs
    copies: MemoryCopies
    store: ForgetfulStore
    naming: Naming
    states: RepairStates

    async def take_place(self, ledger: HandmadeLedger, *, of: BookieId = LOST) -> Outcome:
        return await self.jobs.run(Job(ledger.id, of, Why.LOST))

    async def complete(self, ledger: HandmadeLedger) -> Outcome:
        return await self.jobs.run(Job(ledger.id, None, Why.HOLE))

    async def members(self, ledger: HandmadeLedger) -> list[str]:
        metadata = (await self.cluster.store.read_ledger(ledger.id)).value
        return ["".join(name[-1] for name in fragment.bookies) for fragment in metadata.fragments]

    def held(self, ledger: HandmadeLedger) -> dict[int, bytes]:
        return self.copies.held.get(ledger.id, {})


@pytest.fixture
async def workshop() -> AsyncIterator[Workshop]:
    async with cluster_of(4) as cluster, contextlib.AsyncExitStack() as stack:
        copies = MemoryCopies()
        store = ForgetfulStore(cluster.store)
        bookie = MemoryBookie(ME, store, await cluster.store.cluster_id(), copies=copies)  # type: ignore[arg-type]
        pool = ConnectionPool(
            cluster.store, cluster_id=bookie.cluster_id, options=replace(cluster.options), rng=random.Random(5)
        )
        stack.push_async_callback(pool.close)
        control = AdaptiveRate(per_second_min=1 << 40, per_second_max=1 << 40)
        puller = Puller(copies, pool, Pace(control, lambda: 0.0), request_timeout_seconds=0.5)
        naming = Naming(store)  # type: ignore[arg-type]
        stack.push_async_callback(naming.close)
        states = RepairStates({LOST: BookieCondition(Condition.LOST, 0)})
        jobs = Jobs(bookie, pool, puller, naming, states=lambda: made.states, token="target")
        made = Workshop(cluster, jobs, copies, store, naming, states)
        await cluster.bookie("b0").stop()
        for name in ("b1", "b2"):  # so that the pool knows who is registered
            await pool.get(BookieId(name)).wait_writable(timeout_seconds=5)
        yield made


async def closed_ledger(
    workshop: Workshop, entries: int = 10, sizes: tuple[int, int, int] = (3, 3, 2)
) -> HandmadeLedger:
    ledger = await workshop.cluster.ledger(sizes)
    ledger.add_numbered(entries)
    await ledger.close()
    return ledger


class NotedPace(Pace):
    """Notes whether each piece was urgent."""

    def __init__(self) -> None:
        super().__init__(AdaptiveRate(per_second_min=1 << 40, per_second_max=1 << 40), lambda: 0.0)
        self.urgent: list[bool] = []

    async def take(self, size_bytes: int, *, urgent: bool = False) -> None:
        self.urgent.append(urgent)
        await super().take(size_bytes, urgent=urgent)


@pytest.mark.parametrize(("lost", "urgent"), [(("b0",), False), (("b0", "b1"), True)])
async def test_the_rate_is_kept_unless_one_live_copy_is_left(
    workshop: Workshop, lost: Sequence[str], urgent: bool
) -> None:
    """Also before this bookie has connected to any other: it does not know then which ones are registered."""
    ledger = await closed_ledger(workshop)
    bookie = MemoryBookie(ME, workshop.store, await workshop.cluster.store.cluster_id(), copies=workshop.copies)  # type: ignore[arg-type]
    pool = ConnectionPool(
        workshop.cluster.store, cluster_id=bookie.cluster_id, options=workshop.cluster.options, rng=random.Random(6)
    )
    pace = NotedPace()
    states = RepairStates({BookieId(name): BookieCondition(Condition.LOST, 0) for name in lost})
    jobs = Jobs(
        bookie, pool, Puller(workshop.copies, pool, pace, request_timeout_seconds=5.0), workshop.naming,
        states=lambda: states, token="another",
    )  # fmt: skip
    assert pool.registrations() is None
    assert (await jobs.run(Job(ledger.id, LOST, Why.LOST))).blocked is None
    await pool.close()
    assert set(pace.urgent) == {urgent}


async def test_the_target_copies_verbatim_and_then_names_itself_under_its_lock(workshop: Workshop) -> None:
    ledger = await closed_ledger(workshop)
    held_when_named: list[tuple[bool, int]] = []
    workshop.store.before_write = lambda: held_when_named.append(
        (workshop.copies.is_locked(ledger.id), len(workshop.held(ledger)))
    )
    assert (await workshop.take_place(ledger)).blocked is None
    assert list(workshop.held(ledger).values()) == ledger.sealed
    assert await workshop.members(ledger) == ["312"]
    assert held_when_named == [(True, 10)]
    assert workshop.copies.unlocked == []  # a drop between the first look and the name could leave places of lost ids
    reads = [one for name in ("b1", "b2") for one in workshop.cluster.bookie(name).requests if isinstance(one, Read)]
    assert reads
    assert {one.flags for one in reads} == {ReadFlag.REPAIR}
    assert {one.ledger_key for one in reads} == {b""}


async def test_a_bookie_that_may_not_own_its_id_any_more_names_itself_nowhere(workshop: Workshop) -> None:
    """Rule B10: the copies are on these disks, and the id may have others."""
    ledger = await closed_ledger(workshop)
    before = await workshop.cluster.store.read_ledger(ledger.id)
    owns_id = False
    naming = Naming(workshop.cluster.store, lambda: owns_id)
    with pytest.raises(MetadataUnavailableError) as refused:
        await naming.compare_and_set(before.value, before.version)
    assert not refused.value.may_have_happened
    assert await workshop.cluster.store.read_ledger(ledger.id) == before
    owns_id = True
    assert await naming.compare_and_set(before.value, before.version) is not None
    await naming.close()


async def test_copies_of_a_private_ledger_are_stored_as_those_of_a_private_ledger(workshop: Workshop) -> None:
    """Rule S3."""
    public, private = await closed_ledger(workshop), await closed_ledger(workshop)
    stored = await workshop.cluster.store.read_ledger(private.id)
    await workshop.cluster.store.compare_and_set_ledgers([(replace(stored.value, private=True), stored.version)])
    for ledger in (public, private):
        assert (await workshop.take_place(ledger)).blocked is None
    assert workshop.copies.private == {private.id}


async def test_earlier_fragments_of_an_open_ledger_are_repaired_and_its_last_one_is_not_touched(
    workshop: Workshop,
) -> None:
    ledger = await workshop.cluster.ledger()
    ledger.add_numbered(4)
    await ledger.change_ensemble("b0", "b2", "b1")
    ledger.add_numbered(3)
    assert (await workshop.take_place(ledger)).blocked is None
    assert await workshop.members(ledger) == ["312", "021"]
    assert sorted(workshop.held(ledger)) == [0, 1, 2, 3]
    metadata = (await workshop.cluster.store.read_ledger(ledger.id)).value
    assert metadata.state is LedgerState.OPEN


async def test_of_a_striped_ledger_only_the_ids_of_the_position_are_copied(workshop: Workshop) -> None:
    ledger = await closed_ledger(workshop, 12, (3, 2, 2))
    assert (await workshop.take_place(ledger)).blocked is None
    assert sorted(workshop.held(ledger)) == [one for one in range(12) if one % 3 != 1]  # position 0 holds residues 0, 2


async def test_what_one_source_denies_comes_from_the_other(workshop: Workshop) -> None:
    ledger = await closed_ledger(workshop)
    for entry_id in (2, 3, 7):
        workshop.cluster.bookie("b1").forget(ledger.id, entry_id)
    for entry_id in (0, 4):
        workshop.cluster.bookie("b2").damage(ledger.id, entry_id)
    assert (await workshop.take_place(ledger)).blocked is None
    assert list(dict(sorted(workshop.held(ledger).items())).values()) == ledger.sealed


async def test_without_a_sound_copy_of_one_id_no_name_changes_and_the_reason_names_the_bookies_asked(
    workshop: Workshop,
) -> None:
    ledger = await closed_ledger(workshop)
    workshop.cluster.bookie("b1").forget(ledger.id, 5)
    workshop.cluster.bookie("b2").damage(ledger.id, 5)
    outcome = await workshop.take_place(ledger)
    assert outcome.blocked is not None
    assert (outcome.blocked.kind, outcome.blocked.first, outcome.blocked.last) == (BlockedClass.SHORT, 5, 5)
    assert outcome.blocked.bookies == (LOST,)  # the lost bookie does not answer: it may have the last copy
    assert "b1: does not hold it; b2: cannot tell" in outcome.blocked.reason
    assert await workshop.members(ledger) == ["012"]
    assert workshop.store.writes == 0
    assert len(workshop.held(ledger)) == 9  # what could be copied stays


async def test_what_was_held_before_is_read_back_and_rot_is_replaced(workshop: Workshop) -> None:
    ledger = await closed_ledger(workshop)
    await workshop.copies.copy_in(ledger.id, ledger.sealed)
    workshop.copies.damage(ledger.id, 6)
    assert (await workshop.take_place(ledger)).blocked is None
    assert list(workshop.held(ledger).values()) == ledger.sealed
    assert workshop.copies.copied[1:] == [(ledger.id, (6,))]


async def test_an_end_with_another_length_is_divergent_and_nothing_is_overwritten(workshop: Workshop) -> None:
    ledger = await closed_ledger(workshop)
    (forged,) = ledger.sealer.seal(
        EntryId(9), [b"other bytes"], last_add_confirmed=EntryId(8), length=1000, sealed_at_ms=0
    )
    workshop.copies.held[ledger.id] = {9: forged}  # intact, so nothing asks for it again
    outcome = await workshop.take_place(ledger)
    assert outcome.blocked is not None
    assert outcome.blocked.kind is BlockedClass.DIVERGENT
    assert await workshop.members(ledger) == ["012"]
    assert workshop.held(ledger)[9] == forged


async def test_copies_that_are_gone_at_the_last_look_are_not_named(workshop: Workshop) -> None:
    ledger = await closed_ledger(workshop)
    losses = [3]

    def lose(ledger_id: int) -> None:
        for entry_id in losses:
            del workshop.copies.held[ledger_id][entry_id]
        losses.clear()

    workshop.copies.on_last_look = lose
    assert (await workshop.take_place(ledger)).blocked is None
    assert len(workshop.copies.locked) == 2
    assert list(dict(sorted(workshop.held(ledger).items())).values()) == ledger.sealed
    assert await workshop.members(ledger) == ["312"]


async def test_after_a_conflict_the_target_decides_anew_and_copies_nothing_twice(workshop: Workshop) -> None:
    ledger = await closed_ledger(workshop)

    async def another_target() -> None:
        workshop.store.before_write = lambda: None
        current = await workshop.cluster.store.read_ledger(ledger.id)
        decision = ReplaceMember(EntryId(0), EntryId(9), 0, LOST, BookieId("b9")).decide(current.value)
        await workshop.cluster.store.compare_and_set_ledger(decision.metadata, current.version)  # type: ignore[union-attr]

    workshop.store.before_write = another_target
    assert (await workshop.take_place(ledger)).blocked is None
    metadata = (await workshop.cluster.store.read_ledger(ledger.id)).value
    assert metadata.last_fragment.bookies == ("b9", "b1", "b2")
    assert len(workshop.copies.copied) == 1


async def test_a_lost_answer_is_settled_by_reading_while_the_lock_is_held(workshop: Workshop) -> None:
    ledger = await closed_ledger(workshop)
    workshop.store.lose_answers = 1
    assert (await workshop.take_place(ledger)).blocked is None
    assert workshop.copies.locked == [ledger.id]
    assert await workshop.members(ledger) == ["312"]


@pytest.mark.parametrize("answer_is_lost", [False, True])
async def test_a_cancelled_job_keeps_its_lock_until_its_change_is_made(
    workshop: Workshop, answer_is_lost: bool
) -> None:
    """Otherwise the copies could be dropped first, and the change would name a bookie without them (rule C1)."""
    ledger = await closed_ledger(workshop)
    writing, released = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        writing.set()
        await released.wait()

    workshop.store.before_write = hold
    workshop.store.lose_answers = int(answer_is_lost)
    job = asyncio.ensure_future(workshop.take_place(ledger))
    await writing.wait()
    job.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert workshop.copies.is_locked(ledger.id)
    assert await workshop.members(ledger) == ["012"]
    released.set()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert not workshop.copies.is_locked(ledger.id)
    assert await workshop.members(ledger) == ["312"]


async def test_a_cancelled_job_withdraws_a_change_that_has_not_been_sent(workshop: Workshop) -> None:
    one, two = await closed_ledger(workshop), await closed_ledger(workshop)
    writing, released = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        writing.set()
        await released.wait()

    workshop.store.before_write = hold
    first = asyncio.ensure_future(workshop.take_place(one))
    await writing.wait()
    second = asyncio.ensure_future(workshop.naming.compare_and_set(*await changed(workshop, two)))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    released.set()
    assert (await first).blocked is None
    assert await workshop.members(two) == ["012"]
    assert workshop.store.writes == 1


async def changed(workshop: Workshop, ledger: HandmadeLedger) -> tuple[LedgerMetadata, Version]:
    found = await workshop.cluster.store.read_ledger(ledger.id)
    return found.value.with_member(EntryId(0), 0, ME), found.version


async def test_one_range_that_is_short_does_not_keep_the_others_from_being_made_whole(workshop: Workshop) -> None:
    ledger = await workshop.cluster.ledger(fragments=[(0, ["b1", "b2", "b3"], 0)])
    ledger.add_numbered(4)
    await ledger.change_ensemble("b2", "b3", "b1")
    ledger.add_numbered(3)
    await ledger.change_ensemble("b3", "b1", "b2")
    ledger.add_numbered(3)
    workshop.cluster.bookie("b3").ledgers.clear()  # the target's storage is the one in memory
    for name in ("b1", "b2"):
        workshop.cluster.bookie(name).forget(ledger.id, 2)
    for mend in (True, False):
        if mend:
            metadata = (await workshop.cluster.store.read_ledger(ledger.id)).value
            blocked = await workshop.jobs.mend(metadata, 0, 2**63 - 1)
        else:
            blocked = (await workshop.complete(ledger)).blocked
        assert blocked is not None
        assert (blocked.kind, blocked.first, blocked.last) == (BlockedClass.SHORT, 2, 2)
        assert sorted(workshop.held(ledger)) == [0, 1, 3, 4, 5, 6, 7, 8]  # up to the LAC
        workshop.held(ledger).clear()


async def test_a_bookie_that_is_back_keeps_its_place(workshop: Workshop) -> None:
    ledger = await closed_ledger(workshop)
    workshop.states = RepairStates()
    assert (await workshop.take_place(ledger)).blocked is None
    assert await workshop.members(ledger) == ["012"]
    assert workshop.store.writes == 0


async def test_a_target_that_has_not_heard_of_the_loss_reads_the_conditions_itself(workshop: Workshop) -> None:
    """Otherwise it would end the job at once, and get it again at once."""
    ledger = await closed_ledger(workshop)
    lost, workshop.states = workshop.states, RepairStates()
    version = await workshop.cluster.store.create_document(DOCUMENT, b"of a newer version")
    with pytest.raises(MetadataError):  # the target reports it as a reason, and the auditor waits
        await workshop.take_place(ledger)
    assert await workshop.members(ledger) == ["012"]
    await workshop.cluster.store.compare_and_set_document(DOCUMENT, encode_states(lost), version)
    assert (await workshop.take_place(ledger)).blocked is None
    assert await workshop.members(ledger) == ["312"]


async def test_a_deleted_ledger_needs_no_repair(workshop: Workshop) -> None:
    ledger = await closed_ledger(workshop)
    await workshop.cluster.store.delete_ledger(ledger.id)
    assert await workshop.take_place(ledger) == Outcome()


async def test_a_ledger_that_was_never_written_only_changes_its_name(workshop: Workshop) -> None:
    ledger = await closed_ledger(workshop, 0)
    assert (await workshop.take_place(ledger)).blocked is None
    assert await workshop.members(ledger) == ["312"]
    assert workshop.cluster.bookie("b1").count(Op.READ) == 0


async def test_a_member_of_an_open_ledger_completes_itself_up_to_the_lac_and_no_further(workshop: Workshop) -> None:
    ledger = await workshop.cluster.ledger(fragments=[(0, ["b1", "b2", "b3"], 0)])
    ledger.add_numbered(6)
    ledger.add(b"above the LAC", confirmed=4)
    workshop.cluster.bookie("b3").ledgers.clear()  # the target's storage is the one in memory
    assert (await workshop.complete(ledger)).blocked is None
    assert sorted(workshop.held(ledger)) == [0, 1, 2, 3, 4]
    assert workshop.store.writes == 0


async def test_damage_is_mended_in_settled_and_in_open_fragments(workshop: Workshop) -> None:
    ledger = await workshop.cluster.ledger(fragments=[(0, ["b1", "b2", "b3"], 0)])
    ledger.add_numbered(8)
    await workshop.copies.copy_in(LedgerId(ledger.id), ledger.sealed)
    for entry_id in (2, 5):
        workshop.copies.damage(ledger.id, entry_id)
    metadata = (await workshop.cluster.store.read_ledger(ledger.id)).value
    assert await workshop.jobs.mend(metadata, 2, 2) is None
    assert workshop.held(ledger)[2] == ledger.sealed[2]
    assert workshop.held(ledger)[5] != ledger.sealed[5]
    await ledger.close()
    metadata = (await workshop.cluster.store.read_ledger(ledger.id)).value
    assert await workshop.jobs.mend(metadata, 0, 2**63 - 1) is None
    assert list(workshop.held(ledger).values()) == ledger.sealed


# --- streams ---------------------------------------------------------------------------------------------------------


async def stream_of_two_terms(workshop: Workshop, *held: int) -> LedgerId:
    """A stream on ``b0``, ``b1`` and ``b2``. Of its first term, with the positions 0 to 4, these are held."""
    store = workshop.cluster.store
    ledger_id = await store.allocate_ledger_id()
    script = LedgerScript(ledger_id)
    names = tuple(map(BookieId, ("b0", "b1", "b2")))
    length = header_of(script.entry(place(1, 4))).length
    fragments = (stream_fragment(1, 0, 0), stream_fragment(2, 0, 5, length_before=length))
    named = tuple(replace(fragment, bookies=names) for fragment in fragments)
    await store.create_stream(replace(open_stream(*named), ledger_id=ledger_id))
    for name in names[1:]:
        workshop.cluster.bookie(name).put(ledger_id, script.entries([place(1, position) for position in held]))
    return ledger_id


async def test_what_is_lost_of_a_stream_is_short_unless_it_has_been_truncated_meanwhile(workshop: Workshop) -> None:
    """Rule C2: bookies need not hold what was truncated, so the root is read again before anything is called short."""
    store = workshop.cluster.store
    stream = await stream_of_two_terms(workshop, 3, 4)
    blocked = (await workshop.jobs.run(Job(stream, LOST, Why.LOST))).blocked
    assert blocked is not None
    assert (blocked.kind, blocked.first, blocked.last) == (BlockedClass.SHORT, place(1, 0), place(1, 2))
    reads = 0

    async def read_either(ledger_id: LedgerId) -> Versioned[EitherMetadata]:
        nonlocal reads
        reads += 1
        found = await store.read_either(ledger_id)
        if reads == 1:
            await update_stream(store, ledger_id, Truncate(3), writer_token="another")
        return found

    workshop.store.read_either = read_either  # type: ignore[attr-defined]
    assert (await workshop.jobs.run(Job(stream, LOST, Why.LOST))).blocked is None
    found = (await store.read_stream(stream)).value
    assert [tuple(one.bookies) for one in found.fragments] == [("b3", "b1", "b2"), ("b0", "b1", "b2")]
    assert sorted(workshop.copies.held[stream]) == [place(1, 3), place(1, 4)]


async def test_after_a_conflict_with_the_writer_of_a_stream_repair_decides_anew(workshop: Workshop) -> None:
    """Rule C5: the writer's change stands, and the copies are not made again."""
    store = workshop.cluster.store
    stream = await stream_of_two_terms(workshop, 0, 1, 2, 3, 4)

    async def change_first() -> None:
        if workshop.store.writes == 1:
            await update_stream(store, stream, BeginTakeover(2), writer_token="writer")

    workshop.store.before_write = change_first
    assert (await workshop.jobs.run(Job(stream, LOST, Why.LOST))).blocked is None
    found = (await store.read_stream(stream)).value
    assert found.state is StreamState.IN_RECOVERY
    assert [one.bookies[0] for one in found.fragments] == ["b3", "b0"]
    assert (workshop.store.writes, workshop.jobs.ledgers_named) == (2, 1)
