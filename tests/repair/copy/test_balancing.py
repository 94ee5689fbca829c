"""A target takes a fuller bookie's place for the sake of balance (rule A14)."""

import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata import BookieRegistration, MetadataStore
from octavo.metadata.cluster.repair_states import DOCUMENT as STATES
from octavo.metadata.cluster.repair_states import BookieCondition, Condition, RepairStates, encode_states
from octavo.metadata.updates.garbage_hold import GarbageHold, set_hold
from octavo.protocol.adaptive_rate import AdaptiveRate
from octavo.protocol.ids import BookieId, LedgerId
from octavo.repair.base.balance_document import DOCUMENT, BalanceState, Phase, encode_balance
from octavo.repair.base.planning import Job, Why
from octavo.repair.copy.batched_naming import Naming
from octavo.repair.copy.jobs import Jobs, Outcome
from octavo.repair.copy.pacing import Pace
from octavo.repair.copy.puller import Puller
from support.clusters.local_bookie import MemoryBookie, MemoryCopies
from support.clusters.reading import Cluster, HandmadeLedger, cluster_of
from support.metadata.interposed_store import InterposedStore

ME, SOURCE = BookieId("b3"), BookieId("b0")


class NotedPace(Pace):
    """Notes whether any piece was urgent."""

    def __init__(self) -> None:
        super().__init__(AdaptiveRate(per_second_min=1 << 40, per_second_max=1 << 40), lambda: 0.0)
        self.urgent = False

    async def take(self, size_bytes: int, *, urgent: bool = False) -> None:
        self.urgent |= urgent
        await super().take(size_bytes, urgent=urgent)


@dataclass
class Move:
    """The target ``b3`` in memory, the source ``b0``, and two other members; a balance is wanted."""

    cluster: Cluster
    jobs: Jobs
    copies: MemoryCopies
    pace: NotedPace
    interposed: InterposedStore
    states: RepairStates = field(default_factory=RepairStates)

    @property
    def store(self) -> MetadataStore:
        return self.cluster.store

    async def ledger(self, sizes: tuple[int, int, int] = (3, 3, 2), *, close: bool = True) -> HandmadeLedger:
        ledger = await self.cluster.ledger(sizes)
        ledger.add_numbered(10)
        if close:
            await ledger.close()
        return ledger

    async def run(self, ledger: HandmadeLedger) -> Outcome:
        return await self.jobs.run(Job(ledger.id, SOURCE, Why.BALANCE))

    async def members(self, ledger: HandmadeLedger) -> list[str]:
        metadata = (await self.store.read_ledger(ledger.id)).value
        return ["".join(name[-1] for name in fragment.bookies) for fragment in metadata.fragments]

    async def want(self, phase: Phase) -> None:
        found = await self.store.read_document(DOCUMENT)
        value = encode_balance(BalanceState(1, phase=phase))
        await self.store.put_document(DOCUMENT, value, None if found is None else found.version)

    async def change_states(self, states: RepairStates) -> None:
        self.states = states
        found = await self.store.read_document(STATES)
        await self.store.put_document(STATES, encode_states(states), None if found is None else found.version)

    async def put_on_host(self, name: str, host: str) -> None:
        registration = (await self.store.list_bookies())[BookieId(name)]
        await self.store.register_bookie(replace(registration, host_id=host))


@pytest.fixture
async def move() -> AsyncIterator[Move]:
    async with cluster_of(4) as cluster, contextlib.AsyncExitStack() as stack:
        copies, pace = MemoryCopies(), NotedPace()
        interposed = InterposedStore(cluster.store)
        bookie = MemoryBookie(ME, interposed.face, await cluster.store.cluster_id(), copies=copies)
        pool = ConnectionPool(
            cluster.store, cluster_id=bookie.cluster_id, options=replace(cluster.options), rng=random.Random(5)
        )
        stack.push_async_callback(pool.close)
        naming = Naming(cluster.store)
        stack.push_async_callback(naming.close)
        puller = Puller(copies, pool, pace, request_timeout_seconds=0.5)
        jobs = Jobs(bookie, pool, puller, naming, states=lambda: made.states, token="target")
        made = Move(cluster, jobs, copies, pace, interposed)
        await made.want(Phase.MOVING)
        yield made


async def test_the_target_holds_everything_before_it_takes_the_place(move: Move) -> None:
    ledger = await move.ledger()
    assert (await move.run(ledger)).blocked is None
    assert await move.members(ledger) == ["312"]
    assert list(move.copies.held[ledger.id].values()) == ledger.sealed
    assert move.copies.unlocked == []
    assert move.jobs.balancing.moved == 1


async def test_a_copy_that_is_the_only_one_is_moved_at_the_ordinary_rate(move: Move) -> None:
    """It is not missing: rule A9 is urgent for what one more loss would destroy, and here nothing was lost."""
    ledger = await move.ledger((1, 1, 1))
    assert (await move.run(ledger)).blocked is None
    assert await move.members(ledger) == ["3"]
    assert not move.pace.urgent


async def stopped(move: Move) -> None:
    await move.want(Phase.STOPPED)


async def never_asked(move: Move) -> None:
    found = await move.store.read_document(DOCUMENT)
    assert found is not None
    await move.store.delete_document(DOCUMENT, found.version)


async def paused(move: Move) -> None:
    await move.change_states(RepairStates(paused=True))


async def brake(move: Move) -> None:
    await move.change_states(RepairStates(brake=True))


def with_condition(name: str, condition: Condition) -> Callable[[Move], Awaitable[None]]:
    async def change(move: Move) -> None:
        until = 5 if condition is Condition.HELD else None
        await move.change_states(RepairStates({BookieId(name): BookieCondition(condition, 0, until)}))

    return change


async def on_hold(move: Move) -> None:
    await set_hold(move.store, GarbageHold("restored", datetime(2026, 1, 1, tzinfo=UTC)))


async def beside_another_copy(move: Move) -> None:
    """The target is on the host of b1."""
    await move.put_on_host("b1", "x")
    await move.put_on_host("b3", "x")


async def source_unregistered(move: Move) -> None:
    others = {name: one for name, one in (await move.store.list_bookies()).items() if name != SOURCE}

    async def list_bookies() -> Mapping[BookieId, BookieRegistration]:
        return others

    move.interposed.interpose("list_bookies", list_bookies)


HINDRANCES = [
    stopped, never_asked, paused, brake, on_hold, beside_another_copy, source_unregistered,
    with_condition("b0", Condition.MISSING), with_condition("b0", Condition.DRAINING),
    with_condition("b0", Condition.LOST), with_condition("b1", Condition.DOUBTFUL),
    with_condition("b2", Condition.HELD), with_condition("b3", Condition.DRAINING),
]  # fmt: skip


@pytest.mark.parametrize("hinder", HINDRANCES)
async def test_nothing_is_copied_where_no_move_may_be_made(
    move: Move, hinder: Callable[[Move], Awaitable[None]]
) -> None:
    ledger = await move.ledger()
    await hinder(move)
    assert (await move.run(ledger)).blocked is None
    assert await move.members(ledger) == ["012"]
    assert move.copies.copied == []


@pytest.mark.parametrize("hinder", HINDRANCES)
async def test_what_comes_while_the_copies_are_made_ends_the_move_before_the_name(
    move: Move, hinder: Callable[[Move], Awaitable[None]]
) -> None:
    ledger = await move.ledger()
    original, begun = move.copies.copy_in, False

    async def copy_in(ledger_id: LedgerId, entries: Sequence[bytes], *, private: bool = False) -> None:
        nonlocal begun
        await original(ledger_id, entries, private=private)
        if not begun:
            begun = True
            await hinder(move)

    move.copies.copy_in = copy_in  # type: ignore[method-assign]
    assert (await move.run(ledger)).blocked is None
    assert move.copies.copied, "it was begun"
    assert await move.members(ledger) == ["012"]


async def test_an_open_ledger_stays_where_it_is(move: Move) -> None:
    """Its bookies would give nothing back."""
    ledger = await move.ledger(close=False)
    assert (await move.run(ledger)).blocked is None
    assert await move.members(ledger) == ["012"]
    assert move.copies.copied == []


async def test_a_ledger_of_which_an_entry_has_no_sound_copy_stays_where_it_is(move: Move) -> None:
    """It is repaired, and not moved."""
    ledger = await move.ledger()
    for name in ("b0", "b1", "b2"):
        del move.cluster.bookie(name).ledgers[ledger.id].entries[4]
    outcome = await move.run(ledger)
    assert outcome.blocked is not None
    assert outcome.blocked.first == 4
    assert await move.members(ledger) == ["012"]


async def test_no_fragment_moves_of_a_ledger_that_is_short_in_another_one(move: Move) -> None:
    members = ["b0", "b1", "b2"]
    ledger = await move.cluster.ledger((3, 3, 2), fragments=[(0, members, 0), (5, members[::-1], 50)])
    ledger.add_numbered(10)
    await ledger.close()
    for name in members:
        del move.cluster.bookie(name).ledgers[ledger.id].entries[7]
    outcome = await move.run(ledger)
    assert outcome.blocked is not None
    assert (outcome.blocked.first, await move.members(ledger)) == (7, ["012", "210"])


async def test_a_ledger_that_was_deleted_needs_no_move(move: Move) -> None:
    ledger = await move.ledger()
    await move.store.delete_ledger(ledger.id)
    assert await move.run(ledger) == Outcome()


async def test_a_bookie_that_is_a_member_takes_no_second_slot(move: Move) -> None:
    ledger = await move.ledger()
    await move.run(ledger)
    outcome = await move.jobs.run(Job(ledger.id, BookieId("b1"), Why.BALANCE))
    assert outcome.blocked is None
    assert await move.members(ledger) == ["312"]
