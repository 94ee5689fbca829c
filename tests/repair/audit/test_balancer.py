"""When the auditor moves copies from full bookies to empty ones, and how many at a time (rules A14 and A15)."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from octavo.client.options import ClientOptions
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata import BookieState, MetadataStore, ReplaceMember
from octavo.metadata.cluster.repair_states import BookieCondition, Condition, RepairStates
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.metadata.updates.garbage_hold import GarbageHold, set_hold
from octavo.protocol.errors import MetadataUnavailableError
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.repair.audit.balancer import FAILURES_OF_TARGET_MAX, MOVES_AT_ONCE, MOVES_OF_TARGET, Balancer
from octavo.repair.audit.bookie_watch import BookieWatch
from octavo.repair.audit.dispatcher import Dispatcher
from octavo.repair.audit.rounds import Rounds
from octavo.repair.base.balance_document import DOCUMENT, AskedBy, BalanceState, Phase
from octavo.repair.base.documents import Report, WorkPlan, decode_plan, done_name, encode_report, work_name
from octavo.repair.base.planning import Blocked, BlockedClass, Job, Why
from octavo.repair.base.settings import RepairSettings
from octavo.repair.operate.balance_status import read_balance
from octavo.repair.operate.balancing import ask_for_balance, stop_balance
from support.clusters.local_bookie import MemoryBookie
from support.metadata.interposed_store import InterposedStore
from support.metadata.ledger_metadata import fragment, open_ledger
from support.metadata.metadata_clusters import registration

SETTINGS = RepairSettings(request_timeout_seconds=0.01, audit_seconds=1e-9, poll_seconds=0.0, retry_seconds_min=60.0)
CAPACITY = 10_000_000
ABLE = {"log_bytes": 0, "free_bytes": CAPACITY, "repair_entries_copied": 0, "repair_balance": True}
A, B, C, D, T = (BookieId(name) for name in "abcdt")


@dataclass
class Desk:
    """An auditor's dispatcher; the test does the work of its targets."""

    store: MetadataStore
    watch: BookieWatch
    rounds: Rounds
    bookie: MemoryBookie
    pool: ConnectionPool
    dispatcher: Dispatcher
    facts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    now: float = 0.0

    def new_dispatcher(self, settings: RepairSettings = SETTINGS) -> None:
        """Another bookie is elected."""
        self.dispatcher = Dispatcher(self.bookie, self.pool, settings, self.watch, self.rounds, recover=None)
        self.dispatcher.balancer = Balancer(self.bookie, self.facts_of, settings, self.watch)

    async def facts_of(self, name: BookieId) -> Mapping[str, Any] | None:
        return self.facts.get(name)

    async def ledger(self, names: str, size: int = 100_000) -> LedgerId:
        ledger_id = await self.store.allocate_ledger_id()
        await self.store.create_ledger(open_ledger(ledger_id, fragment(0, names)).closed(EntryId(9), size))
        return ledger_id

    async def turn(self) -> None:
        """What the auditor does in a turn."""
        self.now += 10.0
        await self.rounds.take_round(self.watch.states, self.dispatcher.outstanding_ledgers())
        await self.dispatcher.on_round()
        await self.dispatcher.take_reports(self.now)
        await self.dispatcher.plan(self.now)

    async def look(self) -> None:
        """Turns until all ledgers have been looked at."""
        await self.turn()
        while (state := await self.state()).phase in {Phase.ASKED, Phase.LOOKING}:
            await asyncio.sleep(0)
            await self.turn()
            assert self.now < 10_000, state

    async def state(self) -> BalanceState:
        found = await read_balance(self.store)
        assert found is not None
        return found

    async def ask(self) -> None:
        await ask_for_balance(self.store, None, {}, now_ms=1)

    async def plan_of(self, target: BookieId) -> WorkPlan | None:
        found = await self.store.read_document(work_name(target))
        return None if found is None else decode_plan(found.value, "x")

    async def moves_of(self, target: BookieId) -> list[Job]:
        plan = await self.plan_of(target)
        return [] if plan is None else [job for job in plan.jobs if job.why is Why.BALANCE]

    async def work(self, target: BookieId, *, failing: bool = False, moving: bool = True) -> int:
        """The target does what its plan says, and reports; how many jobs that were."""
        plan = await self.plan_of(target)
        if plan is None:
            return 0
        failures = []
        for job in plan.jobs:
            if failing:
                failures.append(Blocked(job.ledger_id, 0, None, BlockedClass.NO_TARGET, (), "the disk is full"))
            elif moving and job.old is not None:
                await self.replace(job.ledger_id, job.old, target)
        report = Report(plan.number, frozenset(range(len(plan.jobs))), failures=tuple(failures))
        found = await self.store.read_document(done_name(target))
        await self.store.put_document(
            done_name(target), encode_report(report), None if found is None else found.version
        )
        return len(plan.jobs)

    async def replace(self, ledger_id: LedgerId, old: BookieId, new: BookieId) -> None:
        current = await self.store.read_ledger(ledger_id)
        if old not in current.value.members:
            return  # done before
        position = current.value.last_fragment.bookies.index(old)
        decision = ReplaceMember(EntryId(0), EntryId(9), position, old, new).decide(current.value)
        await self.store.compare_and_set_ledger(decision.metadata, current.version)  # type: ignore[union-attr]

    async def until_done(self, *targets: BookieId) -> BalanceState:
        while (await self.state()).is_wanted:
            for target in targets:
                await self.work(target)
            await asyncio.sleep(0)
            await self.turn()
            assert self.now < 10_000
        return await self.state()

    async def named(self) -> Counter[str]:
        ids = [one async for one in self.store.list_ledgers()]
        members = [(await self.store.read_ledger(one)).value.members for one in ids]
        return Counter(str(name) for some in members for name in some)

    def register(self, name: BookieId, state: BookieState = BookieState.WRITABLE, facts: object = ABLE) -> None:
        self.watch.registrations = {**self.watch.registrations, name: replace(registration(name), state=state)}
        self.watch.locations.note(self.watch.registrations.values())
        self.facts[name] = facts  # type: ignore[assignment]

    def put_in_condition(self, **conditions: Condition) -> None:
        entries = {BookieId(name): BookieCondition(one, 0) for name, one in conditions.items()}
        self.watch.states = replace(self.watch.states, bookies=entries)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with open_memory_store(MemoryServer()) as opened, contextlib.AsyncExitStack() as stack:
        store = InterposedStore(opened)
        bookie = MemoryBookie("z", store, await store.cluster_id())  # type: ignore[arg-type]
        pool = ConnectionPool(opened, cluster_id=bookie.cluster_id, options=ClientOptions(), rng=random.Random(5))
        stack.push_async_callback(pool.close)
        watch = BookieWatch(bookie, pool, SETTINGS)
        rounds = Rounds(bookie, pool, SETTINGS)
        made = Desk(store, watch, rounds, bookie, pool, Dispatcher(bookie, pool, SETTINGS, watch, rounds, recover=None))  # type: ignore[arg-type]
        for name in (A, B, C, T):
            made.register(name)

        made.new_dispatcher()
        yield made
        await made.dispatcher.balancer.close()


async def test_nothing_moves_unless_an_operator_asks(desk: Desk) -> None:
    for _ in range(20):
        await desk.ledger("abc")
    for _ in range(3):
        await desk.turn()
    assert await desk.plan_of(T) is None
    assert await desk.store.read_document(DOCUMENT) is None
    assert not desk.dispatcher.busy


async def test_moves_come_a_few_at_a_time_and_end_when_all_hold_their_shares(desk: Desk) -> None:
    for _ in range(20):
        await desk.ledger("abc")
    await desk.ask()
    await desk.look()
    assert len(await desk.moves_of(T)) == MOVES_OF_TARGET
    assert desk.dispatcher.busy
    assert desk.dispatcher.counts()["copying"] == 0, "nothing is missing"
    await desk.turn()
    assert len(await desk.moves_of(T)) == MOVES_OF_TARGET, "and no more before these are made"
    ended = await desk.until_done(T)
    assert ended.phase is Phase.DONE
    assert (ended.moved, ended.failed, ended.under_way) == (15, 0, 0)
    assert await desk.named() == {"a": 15, "b": 15, "c": 15, "t": 15}
    assert "holds its share" in ended.reason
    assert ended.bookies[T].held_bytes == ended.bookies[A].held_bytes
    assert await desk.plan_of(T) is None


async def test_many_targets_share_a_bound(desk: Desk) -> None:
    targets = [BookieId(f"t{number}") for number in range(8)]
    for name in targets:
        desk.register(name)
    for _ in range(100):
        await desk.ledger("abc")
    await desk.ask()
    await desk.look()
    counts = [len(await desk.moves_of(name)) for name in (T, *targets)]
    assert sum(counts) == MOVES_AT_ONCE
    assert max(counts) <= MOVES_OF_TARGET


async def test_what_is_to_be_repaired_comes_first_and_takes_the_plans_over(desk: Desk) -> None:
    ids = [await desk.ledger("abc") for _ in range(20)]
    await desk.ask()
    await desk.look()
    assert len(await desk.moves_of(T)) == MOVES_OF_TARGET
    desk.put_in_condition(a=Condition.DRAINING)
    await desk.turn()
    await desk.turn()
    plan = await desk.plan_of(T)
    assert plan is not None
    assert {job.why for job in plan.jobs} == {Why.DRAINING}
    assert len(plan.jobs) == len(ids)
    state = await desk.state()
    assert (state.phase, state.reason) == (Phase.WAITING, "copies are made again first")
    desk.register(D)
    ended = await desk.until_done(T, D)
    assert (await desk.named())["a"] == 0
    assert ended.phase is Phase.DONE
    assert (await desk.named())["d"] == 15


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        (RepairStates(paused=True), "repair is paused"),
        (RepairStates(brake=True), "half of the bookies are missing"),
    ],
)
async def test_pause_and_brake_take_the_moves_back(desk: Desk, states: RepairStates, reason: str) -> None:
    for _ in range(20):
        await desk.ledger("abc")
    await desk.ask()
    await desk.look()
    assert await desk.moves_of(T)
    desk.watch.states = states
    await desk.turn()
    assert await desk.moves_of(T) == []
    assert ((await desk.state()).phase, (await desk.state()).reason) == (Phase.WAITING, reason)
    desk.watch.states = RepairStates()
    await desk.until_done(T)
    assert (await desk.named())["t"] == 15


async def test_a_hold_on_garbage_collection_keeps_everything_where_it_is(desk: Desk) -> None:
    for _ in range(8):
        await desk.ledger("abc")
    await set_hold(desk.store, GarbageHold("restored", datetime(2026, 1, 1, tzinfo=UTC)))
    await desk.ask()
    await desk.turn()
    await desk.turn()
    state = await desk.state()
    assert state.phase is Phase.WAITING
    assert "restored" in state.reason
    assert await desk.plan_of(T) is None


@pytest.mark.parametrize("condition", Condition)
async def test_bookies_with_a_condition_are_neither_sources_nor_targets(desk: Desk, condition: Condition) -> None:
    for _ in range(12):
        await desk.ledger("abc")
    desk.register(D)
    until = 9 if condition is Condition.HELD else None
    desk.watch.states = RepairStates({T: BookieCondition(condition, 0, until)})
    await desk.ask()
    await desk.until_done(T, D)
    named = await desk.named()
    assert named["t"] == 0
    assert named["d"] == 9
    # A ledger with such a member is not moved at all.
    desk.watch.states = RepairStates({A: BookieCondition(condition, 0, until)})
    if condition in {Condition.LOST, Condition.DRAINING, Condition.RETIRED}:
        return  # it is repaired
    desk.register(BookieId("e"))
    await ask_for_balance(desk.store, None, {}, now_ms=2)
    before = {one: (await desk.store.read_ledger(one)).value for one in [i async for i in desk.store.list_ledgers()]}
    await desk.until_done(T, D, BookieId("e"))
    for ledger_id, metadata in before.items():
        if A in metadata.members:
            assert (await desk.store.read_ledger(ledger_id)).value == metadata


@pytest.mark.parametrize(
    "facts",
    [
        {name: value for name, value in ABLE.items() if name != "repair_balance"},  # of an older version
        {name: value for name, value in ABLE.items() if name in {"log_bytes", "free_bytes"}},  # repair = false
    ],
)
async def test_a_bookie_that_does_not_know_balance_gets_no_plan_and_gives_up_ledgers(
    desk: Desk, facts: dict[str, Any]
) -> None:
    for _ in range(12):
        await desk.ledger("abc")
    desk.facts[T] = facts
    desk.register(D)
    desk.facts[A] = facts
    await desk.ask()
    await desk.look()
    assert await desk.plan_of(T) is None
    await desk.until_done(D)
    named = await desk.named()
    assert named["t"] == 0
    assert named["a"] < 12
    assert named["d"] > 0


async def test_a_bookie_that_becomes_full_gets_no_further_ledgers(desk: Desk) -> None:
    for _ in range(20):
        await desk.ledger("abc")
    await desk.ask()
    await desk.look()
    desk.register(T, BookieState.READ_ONLY)
    await desk.work(T)
    ended = await desk.until_done(T)
    assert (await desk.named())["t"] == MOVES_OF_TARGET
    assert ended.phase is Phase.DONE
    assert "no other closed ledger can be moved" in ended.reason


async def test_a_target_that_is_away_for_a_while_is_waited_for(desk: Desk) -> None:
    for _ in range(20):
        await desk.ledger("abc")
    await desk.ask()
    await desk.look()
    there = desk.watch.registrations
    desk.watch.registrations = {name: one for name, one in there.items() if name != T}
    desk.put_in_condition(t=Condition.MISSING)
    await desk.turn()
    await desk.turn()
    assert ((await desk.state()).phase, (await desk.state()).reason) == (Phase.WAITING, "missing: t")
    desk.watch.registrations, desk.watch.states = there, RepairStates()
    ended = await desk.until_done(T)
    assert await desk.named() == {"a": 15, "b": 15, "c": 15, "t": 15}
    assert ended.phase is Phase.DONE


async def test_a_target_whose_moves_fail_gets_no_further_ones_and_the_reason_is_shown(desk: Desk) -> None:
    for _ in range(30):
        await desk.ledger("abc")
    await desk.ask()
    await desk.look()
    assert FAILURES_OF_TARGET_MAX <= MOVES_OF_TARGET
    await desk.work(T, failing=True)
    await desk.turn()
    ended = await desk.state()
    assert (ended.phase, ended.failed, ended.moved) == (Phase.DONE, MOVES_OF_TARGET, 0)
    assert "the disk is full" in ended.reason
    assert sum(desk.dispatcher.counts().values()) == 0, "the ledgers are as whole as they were: none is blocked"


async def test_a_target_that_has_not_taken_the_place_has_not_moved_anything(desk: Desk) -> None:
    for _ in range(30):
        await desk.ledger("abc")
    await desk.ask()
    await desk.look()
    await desk.work(T, moving=False)
    await desk.turn()
    ended = await desk.state()
    assert (ended.failed, ended.moved) == (MOVES_OF_TARGET, 0)
    assert ended.bookies[T].held_bytes == 0


async def test_ledgers_that_change_or_go_between_the_look_and_the_plan_are_left_out(desk: Desk) -> None:
    """The largest are planned first: these have changed since."""
    changed, gone, kept = [await desk.ledger("abc", size) for size in (300_000, 200_000, 100_000)]
    desk.register(D)
    await desk.ask()
    await desk.turn()
    for _ in range(200):
        await asyncio.sleep(0)  # the look ends
    await desk.replace(changed, A, D)
    await desk.store.delete_ledger(gone)
    await desk.turn()
    jobs = [*await desk.moves_of(T), *await desk.moves_of(D)]
    assert {job.ledger_id for job in jobs} <= {kept}


async def test_an_operator_stops_it(desk: Desk) -> None:
    for _ in range(20):
        await desk.ledger("abc")
    await desk.ask()
    await desk.look()
    await stop_balance(desk.store)
    await desk.turn()
    assert await desk.plan_of(T) is None
    assert (await desk.state()).phase is Phase.STOPPED
    await desk.turn()
    assert not desk.dispatcher.busy


async def test_another_auditor_goes_on_and_counts_nothing_twice(desk: Desk) -> None:
    for _ in range(20):
        await desk.ledger("abc")
    await desk.ask()
    await desk.look()
    first = await desk.moves_of(T)
    desk.new_dispatcher()
    await desk.dispatcher.adopt_plans(desk.now)
    await desk.turn()
    assert await desk.moves_of(T) == first, "they go on; nothing is looked at before they are made"
    assert (await desk.state()).phase is not Phase.LOOKING
    ended = await desk.until_done(T)
    assert await desk.named() == {"a": 15, "b": 15, "c": 15, "t": 15}
    assert ended.moved == 15


async def test_the_auditor_balances_by_itself_when_bookies_are_uneven_enough(desk: Desk) -> None:
    for _ in range(20):
        await desk.ledger("abc")
    desk.new_dispatcher(replace(SETTINGS, balance_seconds=3600.0))
    for _ in range(6):
        await desk.turn()
        await asyncio.sleep(0)
    state = await desk.state()
    assert (state.asked_by, state.phase) == (AskedBy.SETTING, Phase.MOVING)
    await desk.until_done(T)
    assert (await desk.named())["t"] == 15
    for _ in range(5):
        await desk.turn()
    assert (await desk.state()).phase is Phase.DONE, "not again before the time"
    assert desk.dispatcher.next_at() is not None


@pytest.mark.parametrize(("uneven", "begins"), [(27, False), (31, True)])
async def test_by_itself_it_begins_only_where_they_are_further_apart_than_where_it_ends(
    desk: Desk, uneven: int, begins: bool
) -> None:
    """t holds 60 ledgers, and its share is 65.25 or 68.25: 8 % or 12 % more."""
    for names, number in (("abc", uneven), ("abt", 20), ("act", 20), ("bct", 20)):
        for _ in range(number):
            await desk.ledger(names)
    desk.new_dispatcher(replace(SETTINGS, balance_seconds=3600.0))
    while not desk.dispatcher.balancer.deviation:
        await desk.turn()
        await asyncio.sleep(0)
    assert 0.05 < desk.dispatcher.balancer.deviation < 0.13
    assert desk.dispatcher.balancer.is_wanted is begins
    assert (await desk.store.read_document(DOCUMENT) is not None) is begins


async def test_as_good_as_empty_bookies_are_not_balanced_unless_an_operator_asks(desk: Desk) -> None:
    for _ in range(4):
        await desk.ledger("abc", 10_000)
    desk.new_dispatcher(replace(SETTINGS, balance_seconds=3600.0))
    while not desk.dispatcher.balancer.deviation:
        await desk.turn()
        await asyncio.sleep(0)
    assert not desk.dispatcher.balancer.is_wanted
    await desk.ask()
    await desk.until_done(T)
    assert (await desk.named())["t"] == 3


async def test_the_document_of_a_newer_version_is_left_alone(desk: Desk) -> None:
    for _ in range(20):
        await desk.ledger("abc")
    await desk.store.create_document(DOCUMENT, b'{"format":99}')
    for _ in range(3):
        await desk.turn()
    assert await desk.plan_of(T) is None


async def test_while_the_metadata_do_not_answer_it_waits_and_then_goes_on(desk: Desk) -> None:
    for _ in range(20):
        await desk.ledger("abc")
    await desk.ask()
    await desk.look()
    assert isinstance(desk.store, InterposedStore)
    desk.store.make_unavailable("read_document")
    with pytest.raises(MetadataUnavailableError):
        await desk.turn()
    desk.store.restore()
    await desk.until_done(T)
    assert await desk.named() == {"a": 15, "b": 15, "c": 15, "t": 15}
