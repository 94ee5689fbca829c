"""The auditor's plans against targets that are silent, late or do nothing (rules A3, A5 to A7 and A10)."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
from octavo.client.options import ClientOptions
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata import MetadataStore, ReplaceMember
from octavo.metadata.cluster.repair_states import BookieCondition, Condition, RepairStates
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.metadata.stream.pages import page_document
from octavo.protocol.errors import MetadataError
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.repair.audit.bookie_watch import BookieWatch
from octavo.repair.audit.dispatcher import Dispatcher
from octavo.repair.audit.rounds import Rounds
from octavo.repair.base.documents import Report, WorkPlan, decode_plan, done_name, encode_report, work_name
from octavo.repair.base.planning import Blocked, BlockedClass, Job, Why
from octavo.repair.base.settings import RepairSettings
from octavo.repair.operate import operators
from support.clusters.local_bookie import MemoryBookie
from support.metadata.ledger_metadata import fragment, open_ledger
from support.metadata.metadata_clusters import registration
from support.metadata.paged_streams import paged_stream

A, B, C, T = (BookieId(name) for name in "abct")
LOST = RepairStates({A: BookieCondition(Condition.LOST, 0)})
SETTINGS = RepairSettings(request_timeout_seconds=0.01, audit_seconds=1e-9, retry_seconds_min=60.0)


@dataclass
class Desk:
    """An auditor's dispatcher and census, without the bookies of which they are told."""

    store: MetadataStore
    watch: BookieWatch
    rounds: Rounds
    dispatcher: Dispatcher

    async def round(self) -> None:
        await self.rounds.take_round(self.watch.states, self.dispatcher.outstanding_ledgers())
        await self.dispatcher.on_round()

    async def plan_of(self, target: BookieId = T) -> WorkPlan | None:
        found = await self.store.read_document(work_name(target))
        return None if found is None else decode_plan(found.value, "x")

    async def report(self, now: float, *, failures: tuple[Blocked, ...] = ()) -> None:
        """The target says that it has ended its first job."""
        plan = await self.plan_of()
        assert plan is not None
        found = await self.store.read_document(done_name(T))
        value = encode_report(Report(plan.number, frozenset({0}), failures=failures))
        await self.store.put_document(done_name(T), value, None if found is None else found.version)
        await self.dispatcher.take_reports(now)

    async def name_target(self, ledger_id: LedgerId, first: int, last: int) -> None:
        """The target takes the place of the lost bookie in one range, as a job does."""
        current = await self.store.read_ledger(ledger_id)
        decision = ReplaceMember(EntryId(first), EntryId(last), 0, A, T).decide(current.value)
        await self.store.compare_and_set_ledger(decision.metadata, current.version)  # type: ignore[union-attr]

    async def ledger(self, *ensembles: str) -> LedgerId:
        ledger_id = await self.store.allocate_ledger_id()
        fragments = [fragment(5 * at, names, 50 * at) for at, names in enumerate(ensembles)]
        await self.store.create_ledger(open_ledger(ledger_id, *fragments).closed(EntryId(9), 100))
        return ledger_id


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with open_memory_store(MemoryServer()) as store, contextlib.AsyncExitStack() as stack:
        bookie = MemoryBookie("z", store, await store.cluster_id())
        pool = ConnectionPool(store, cluster_id=bookie.cluster_id, options=ClientOptions(), rng=random.Random(5))
        stack.push_async_callback(pool.close)
        watch = BookieWatch(bookie, pool, SETTINGS)
        watch.states = LOST
        watch.registrations = {one: registration(one) for one in (B, C, T)}
        rounds = Rounds(bookie, pool, SETTINGS)
        desk = Desk(store, watch, rounds, Dispatcher(bookie, pool, SETTINGS, watch, rounds, recover=None))
        for _ in range(9):
            await desk.ledger("xyz")  # each round asks the members of one ledger: of these first
        yield desk


async def test_a_ledger_in_which_a_target_names_itself_after_its_job_was_taken_is_known_to_name_it(desk: Desk) -> None:
    """Otherwise the ledger would not be repaired when that target is lost."""
    ledger_id = await desk.ledger("abc")
    await desk.round()
    await desk.dispatcher.plan(0.0)
    plan = await desk.plan_of()
    assert plan is not None
    assert plan.jobs == (Job(ledger_id, A, Why.LOST),)
    desk.watch.states = RepairStates()  # the bookie is back, so the job is dropped; the target is paused just now
    await desk.dispatcher.plan(1.0)
    await desk.round()
    assert list(desk.rounds.census.names(A)) == [ledger_id]
    await desk.name_target(ledger_id, 0, 9)
    await desk.round()
    assert list(desk.rounds.census.names(T)) == [ledger_id]
    assert list(desk.rounds.census.names(A)) == []
    # Until the target's process ends, or it reports on a later plan: it holds nothing back then.
    assert desk.dispatcher.outstanding_ledgers() == {ledger_id}
    desk.dispatcher.on_returned([T], 2.0)
    assert desk.dispatcher.outstanding_ledgers() == {ledger_id}, "it only has a new session"
    desk.watch.registrations = {**desk.watch.registrations, T: replace(registration(T), boot_id="another")}
    desk.dispatcher.on_returned([T], 2.0)
    assert desk.dispatcher.outstanding_ledgers() == set()
    assert desk.rounds.census.must_read(ledger_id), "once more"


async def test_a_target_that_reports_on_a_later_plan_has_given_up_what_was_taken_from_it(desk: Desk) -> None:
    taken, kept = await desk.ledger("abc"), await desk.ledger("abc")
    await desk.round()
    await desk.dispatcher.plan(0.0)
    await desk.store.delete_ledger(kept)
    desk.watch.states = RepairStates()
    await desk.dispatcher.plan(1.0)
    assert await desk.plan_of() is None
    assert desk.dispatcher.outstanding_ledgers() == {taken, kept}
    desk.watch.states = LOST
    await desk.round()
    await desk.dispatcher.plan(2.0)
    await desk.name_target(taken, 0, 9)
    await desk.report(3.0)
    await desk.dispatcher.plan(3.0)
    assert desk.dispatcher.outstanding_ledgers() == set()


async def test_what_a_job_has_changed_before_it_failed_is_known(desk: Desk) -> None:
    ledger_id = await desk.ledger("abc", "abc")
    await desk.round()
    await desk.dispatcher.plan(0.0)
    await desk.name_target(ledger_id, 0, 4)
    short = Blocked(ledger_id, 5, 5, BlockedClass.SHORT, (A,), "no sound copy")
    await desk.report(1.0, failures=(short,))
    assert list(desk.rounds.census.names(T)) == list(desk.rounds.census.names(A)) == [ledger_id]


async def test_a_target_that_says_it_is_done_and_has_changed_nothing_is_not_asked_again_at_once(desk: Desk) -> None:
    ledger_id = await desk.ledger("abc")
    await desk.round()
    await desk.dispatcher.plan(0.0)
    await desk.report(1.0)
    for moment in (1.0, 30.0, 60.0):
        await desk.dispatcher.plan(moment)
        assert await desk.plan_of() is None
        assert desk.dispatcher.counts()["no_target"] == 1
    await desk.dispatcher.plan(61.0)
    assert await desk.plan_of() is not None
    await desk.name_target(ledger_id, 0, 9)
    await desk.report(62.0)
    await desk.dispatcher.plan(62.0)
    assert set(desk.dispatcher.counts().values()) == {0}


async def test_what_is_read_for_another_reason_is_learnt_by_the_census(desk: Desk) -> None:
    ledger_id = await desk.ledger("abc")
    await desk.round()
    await desk.name_target(ledger_id, 0, 9)  # by a target of which this auditor knows nothing
    desk.rounds.ask_about([ledger_id])
    await desk.round()
    assert list(desk.rounds.census.names(T)) == [ledger_id]


async def test_a_stream_with_a_damaged_page_is_shown_until_the_page_can_be_read(desk: Desk) -> None:
    """It may name a bookie that is drained, or lost: neither of them counts as empty meanwhile."""
    ledger_id = await desk.store.allocate_ledger_id()
    root, (page,) = paged_stream(20, 10, ledger_id=ledger_id)
    document = page_document(ledger_id, page.reference)
    await desk.store.create_document(document, b"{}")
    tail = tuple(replace(one, bookies=(B, C, BookieId("x"))) for one in root.fragments)
    await desk.store.create_stream(replace(root, fragments=tail))
    now = asyncio.get_running_loop().time()
    for _ in range(2):
        await desk.round()
        await desk.dispatcher.plan(now + 1.0)
        assert desk.dispatcher.counts()["short"] == 1
    await desk.dispatcher.write_summary(0)
    (blocked,) = (await operators.read_status(desk.store)).blocked
    assert blocked.ledger_id == ledger_id
    assert "restore the page" in blocked.reason
    states = await operators.read_states(desk.store)
    with pytest.raises(MetadataError, match="damaged"):
        await operators.find_unfinished(desk.store, states.with_bookie(A, BookieCondition(Condition.LOST, 0)))
    with pytest.raises(MetadataError, match="damaged"):
        [one async for one in operators.ledgers_naming(desk.store, A, count=1)]
    found = await desk.store.read_document(document)
    assert found is not None
    await desk.store.compare_and_set_document(document, page.value, found.version)
    await desk.round()
    assert ledger_id in desk.rounds.census.names(A)
    desk.watch.states = RepairStates()
    await desk.dispatcher.plan(now + 1000.0)
    assert desk.dispatcher.counts()["short"] == 0
