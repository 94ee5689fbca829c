"""A target works on the plan that the auditor has written last (rule A6)."""

import asyncio
import contextlib
import random

from octavo.client.wire.pool import ConnectionPool
from octavo.metadata import Versioned
from octavo.metadata.cluster.repair_states import BookieCondition, Condition, RepairStates
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.protocol.adaptive_rate import AdaptiveRate
from octavo.protocol.ids import BookieId, LedgerId
from octavo.repair.base.documents import WorkPlan, decode_report, done_name, encode_plan, work_name
from octavo.repair.base.planning import Job, Why
from octavo.repair.base.settings import RepairSettings
from octavo.repair.copy.batched_naming import Naming
from octavo.repair.copy.jobs import Jobs
from octavo.repair.copy.pacing import Pace
from octavo.repair.copy.puller import Puller
from octavo.repair.copy.target import Target
from support.clusters.local_bookie import MemoryBookie
from support.clusters.reading import cluster_of
from support.metadata.interposed_store import InterposedStore
from support.waiting import WAIT_SECONDS, eventually, loop_turns

ME, LOST = BookieId("b3"), BookieId("b0")


async def test_a_job_that_a_new_plan_leaves_out_is_given_up_and_its_place_is_free() -> None:
    """The auditor has planned it for another target, which takes the place in the ledger."""
    async with cluster_of(4) as cluster, contextlib.AsyncExitStack() as stack:
        ledgers = [await cluster.ledger(), await cluster.ledger()]
        for ledger in ledgers:
            ledger.add_numbered(5)
            await ledger.close()
        left_out, kept = ledgers
        store = InterposedStore(cluster.store)
        begun, may_go_on, given_up = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def read_either(ledger_id: LedgerId) -> Versioned[EitherMetadata]:
            if ledger_id == left_out.id:
                begun.set()
                try:
                    await may_go_on.wait()
                except asyncio.CancelledError:
                    given_up.set()
                    raise
            return await cluster.store.read_either(ledger_id)

        store.interpose("read_either", read_either)
        bookie = MemoryBookie(ME, store.face, await cluster.store.cluster_id())
        pool = ConnectionPool(
            cluster.store, cluster_id=bookie.cluster_id, options=cluster.options, rng=random.Random(5)
        )
        stack.push_async_callback(pool.close)
        pace = Pace(AdaptiveRate(per_second_min=1 << 40, per_second_max=1 << 40), lambda: 0.0)
        puller = Puller(bookie.copies, pool, pace, request_timeout_seconds=WAIT_SECONDS)
        naming = Naming(store.face)
        stack.push_async_callback(naming.close)
        states = RepairStates({LOST: BookieCondition(Condition.LOST, 0)})
        jobs = Jobs(bookie, pool, puller, naming, states=lambda: states, token="target")
        settings = RepairSettings(ledgers_at_once=1, report_seconds=0.001)
        target = Target(ME, store.face, jobs, puller.copied, settings)

        async def says_that_the_second_plan_is_done() -> bool:
            found = await cluster.store.read_document(done_name(ME))
            report = None if found is None else decode_report(found.value, done_name(ME))
            return report is not None and report.plan == 2 and report.done == {0}

        first = encode_plan(WorkPlan(1, (Job(left_out.id, LOST, Why.LOST),)))
        version = await cluster.store.put_document(work_name(ME), first, None)
        working = asyncio.create_task(target.run())
        async with asyncio.timeout(WAIT_SECONDS):
            await begun.wait()
        second = encode_plan(WorkPlan(2, (Job(kept.id, LOST, Why.LOST),)))
        await cluster.store.put_document(work_name(ME), second, version)
        await eventually(says_that_the_second_plan_is_done)
        may_go_on.set()
        await loop_turns()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

        async def members(ledger_id: LedgerId) -> set[BookieId]:
            return set((await cluster.store.read_ledger(ledger_id)).value.last_fragment.bookies)

        assert given_up.is_set()
        assert ME in await members(kept.id)
        assert ME not in await members(left_out.id)
        assert left_out.id not in bookie.copies.held
