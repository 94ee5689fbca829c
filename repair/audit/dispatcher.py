"""The auditor's plans: writes them, takes in the reports of targets, and keeps what is blocked (rules A5 to A7, A10).

Ledgers are planned in the order of :meth:`octavo.repair.base.census.Census.candidates`: fewest live copies first, lost
bookies before holes, holes before bookies that are drained.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Final

import structlog
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.cluster.repair_states import RepairStates
from octavo.metadata.ledger.stored import StoredLedger
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.protocol.errors import MetadataError
from octavo.protocol.ids import BookieId, LedgerId
from octavo.repair.audit.abandoned import AbandonedLedgers
from octavo.repair.audit.backoff import BlockedLedgers
from octavo.repair.audit.balancer import Balancer
from octavo.repair.audit.bookie_watch import BookieWatch
from octavo.repair.audit.checks import OperatorChecks
from octavo.repair.audit.ledger_queue import LedgerQueue
from octavo.repair.audit.plans_under_way import Ended, Outstanding, TargetPlan
from octavo.repair.audit.rounds import Rounds, in_turns
from octavo.repair.audit.summaries import Progress, SummaryWriter
from octavo.repair.base.ask_bookie import facts_of
from octavo.repair.base.documents import (
    WORK_PREFIX,
    decode_plan,
    decode_report,
    done_name,
    encode_plan,
    target_of_work,
    work_name,
)
from octavo.repair.base.local_bookie import LocalBookie
from octavo.repair.base.planning import (
    RANKS,
    SELF_RANK,
    Blocked,
    BlockedClass,
    Job,
    Planned,
    TargetsFullError,
    Why,
    plan_ledger,
)
from octavo.repair.base.settings import RepairSettings
from octavo.repair.base.settled import ranges_of_member, replaceable

log = structlog.get_logger("octavo.repair")

PAGE: Final = 64
"""Ledgers whose metadata are read together for planning."""


class Dispatcher:
    """See the module. ``recover``: recovers an abandoned ledger (rule O3), or None."""

    def __init__(
        self,
        bookie: LocalBookie,
        pool: ConnectionPool,
        settings: RepairSettings,
        watch: BookieWatch,
        rounds: Rounds,
        *,
        recover: Callable[[StoredLedger], Awaitable[bool]] | None,
    ) -> None:
        self._store: MetadataStore = bookie.store
        self._rng = bookie.rng
        self._wall_clock = bookie.wall_clock
        self._settings = settings
        self._watch = watch
        self._rounds = rounds
        self._outstanding = Outstanding()
        self._blocked = BlockedLedgers(
            retry_seconds_open=settings.retry_seconds_open,
            retry_seconds_min=settings.retry_seconds_min,
            retry_seconds_max=settings.retry_seconds_max,
        )
        self._urgent = LedgerQueue()
        self._later = LedgerQueue()
        self._own: dict[tuple[BookieId, Job], None] = {}
        """The jobs in which members complete their own copies, in the order in which they came."""
        self._leaving: frozenset[BookieId] = frozenset()
        self._paused = False
        self._reports: dict[BookieId, Version] = {}
        """Versions of the reports that have been taken in."""
        self._written: dict[BookieId, Version] = {}
        """Versions of the plans under way."""
        self._boots: dict[BookieId, str] = {}
        """Boot ids of the processes that have had plans."""
        self._checks = OperatorChecks(bookie.store, rounds.parts)
        self._abandoned = AbandonedLedgers(settings, watch, recover)
        self.balancer = Balancer(bookie, partial(facts_of, pool), settings, watch)
        self._progress = Progress()
        self._summary = SummaryWriter(bookie.store)

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether targets are at work, or something waits for a target with room."""
        work = self._outstanding.ledgers or self._queued or self._own or self._checks.pending
        return bool(work) or self.balancer.is_busy

    @property
    def _queued(self) -> int:
        return len(self._urgent) + len(self._later)

    def next_at(self) -> float | None:
        """When something blocked is due, or a look at how full bookies are, as the loop's time."""
        moments = [at for at in (self._blocked.next_at(), self.balancer.next_at()) if at is not None]
        return min(moments, default=None)

    def outstanding_ledgers(self) -> Collection[LedgerId]:
        """Ledgers that targets may be changing."""
        return self._outstanding.changeable()

    # --- events -----------------------------------------------------------------------------------------------------

    async def adopt_plans(self, now: float) -> None:
        """Take over the plans of an earlier auditor."""
        async for name in self._store.list_documents(WORK_PREFIX):
            target = target_of_work(name)
            found = await self._store.read_document(name)
            if target is None or found is None:
                continue
            try:
                self._outstanding.adopt(target, decode_plan(found.value, name), now)
                self._written[target] = found.version
            except MetadataError as error:
                log.warning("a plan cannot be understood and is deleted", reason=error.message)
                await self._store.delete_document(name, found.version)

    def on_returned(self, names: Iterable[BookieId], now: float) -> None:
        """Bookies have registered: what waits for a bookie is tried again (rule A10)."""
        for name in sorted(names):
            self._rounds.on_returned(name)
            registration = self._watch.registrations.get(name)
            if registration is not None and self._boots.get(name, registration.boot_id) != registration.boot_id:
                del self._boots[name]
                self._rounds.census.mark(self._outstanding.on_restarted(name))
        self._blocked.wake(now)

    async def on_round(self) -> None:
        """A round was taken: the queue is made again, and holes are to be filled. Streams with a damaged page are
        blocked, whatever bookies they name: those of the page are not known."""
        await self._make_queue()
        now = asyncio.get_running_loop().time()
        for ledger_id in sorted(self._rounds.parts.damaged):
            if ledger_id not in self._blocked:
                self._blocked.add(self._damaged(ledger_id), now)
        for ledger_id, member in self._rounds.take_holes():
            self._own[member, Job(ledger_id, None, Why.HOLE)] = None

    # --- reports ----------------------------------------------------------------------------------------------------

    async def take_reports(self, now: float) -> None:
        """Read what targets have reported since the last time."""
        for target in sorted(self._outstanding.plans):
            name = done_name(target)
            found = await self._store.read_document(name)
            if found is None or self._reports.get(target) == found.version:
                continue
            try:
                report = decode_report(found.value, name)
            except MetadataError as error:
                log.warning("a report cannot be understood", reason=error.message)
                continue
            self._reports[target] = found.version
            self._progress.copied(target, report.entries_copied, report.bytes_copied, now)
            ended = self._outstanding.on_report(target, report, now)
            self._progress.ended(len(ended.jobs), now)
            for job in ended.jobs:
                self._job_ended(target, job, ended.failures.get(job.ledger_id), now)
            self._rounds.census.mark(ended.given_up)
            await self._look_again(target, ended, now)
        await self._checks.store_results()

    def _job_ended(self, target: BookieId, job: Job, failure: Blocked | None, now: float) -> None:
        if job.why is Why.BALANCE:
            return  # the ledger is as whole as it was
        if failure is not None:
            self._blocked.add(failure, now)
        else:
            self._blocked.clear(job.ledger_id)
        if job.why is Why.CHECK:
            self._checks.ended(job.ledger_id, target, short=failure is not None)

    async def _look_again(self, target: BookieId, ended: Ended, now: float) -> None:
        """Ledgers that repair has changed: other leaving bookies may be left in them. A job that could not be done may
        have changed some fragments nevertheless."""
        ledgers = await self._rounds.read(dict.fromkeys(job.ledger_id for job in ended.jobs))
        for job in ended.jobs:
            metadata = ledgers.get(job.ledger_id)
            if job.why is Why.BALANCE:
                members = None if metadata is None else await self._rounds.parts.members(metadata)
                await self.balancer.ended(target, job, members, ended.failures.get(job.ledger_id))
            if metadata is None or job.ledger_id in ended.failures:
                continue
            if self._leaving.isdisjoint(await self._rounds.parts.members(metadata)):
                continue
            unchanged = await self._unchanged(metadata, job, target)
            if unchanged is not None:
                # Planned again at once, it would go on like that without a pause.
                self._blocked.add(unchanged, now)
            else:
                self._enqueue(job.ledger_id, urgent=True)

    async def _unchanged(self, metadata: EitherMetadata, job: Job, target: BookieId) -> Blocked | None:
        """The work that the target should have done, and has not, in the first part in which there is anything."""
        if job.old is not None and job.old in self._leaving:
            async for part in self._rounds.parts.naming(metadata, [job.old]):
                if replaceable(part, job.old, target):
                    return _nothing_changed(part, job.old, target)
        return None

    # --- planning ---------------------------------------------------------------------------------------------------

    async def plan(self, now: float) -> None:
        """Withdraw the plans of silent targets, and give jobs to those that have room. Raises
        :class:`MetadataConflictError` when another auditor has changed a plan."""
        states = self._watch.states
        if (states.leaving, states.paused) != (self._leaving, self._paused):
            self._paused = states.paused
            await self._make_queue()
        for target in self._outstanding.silent(self._watch.registrations, now, self._settings.silent_seconds):
            await self._withdraw(target)
        for target in self._outstanding.plans.keys() & self._watch.registrations.keys():
            self._boots.setdefault(target, self._watch.registrations[target].boot_id)
        await self._begin_checks()
        for ledger_id in self._blocked.due(now):
            self._enqueue(ledger_id, urgent=False)
        jobs: dict[BookieId, list[Job]] = {}
        if not states.paused and self._rounds.census.complete:
            await self._fill(self._urgent, jobs, now)
            self._place_own_jobs(jobs)
            await self._fill(self._later, jobs, now)
        await self._plan_moves(jobs, now)
        await self._write_plans(jobs, states, now)
        for ledger_id in self._abandoned.take_closed():
            self._rounds.ask_about([ledger_id])
            self._enqueue(ledger_id, urgent=True)

    async def _plan_moves(self, jobs: dict[BookieId, list[Job]], now: float) -> None:
        """Moves for the sake of balance, once nothing is to be repaired (rule A14)."""
        repairing = bool(jobs or self._queued or self._own or self._outstanding.repairs)
        leave = {*self._rounds.census.owing, *(one.ledger_id for one in self._blocked)}
        moves = await self.balancer.next_moves(
            repairing=repairing or not self._rounds.census.complete,
            jobs=self._outstanding.moves(),
            leave=leave,
            now=now,
        )
        for move in moves:
            jobs.setdefault(move.target, []).append(move.job)

    async def _make_queue(self) -> None:
        states = self._watch.states
        self._leaving = states.leaving
        ranks = {name: RANKS[states.bookies[name].condition] for name in self._leaving}
        urgent = {name: rank for name, rank in ranks.items() if rank < SELF_RANK}
        later = {name: rank for name, rank in ranks.items() if rank > SELF_RANK}
        self._urgent.replace(await in_turns(self._rounds.census.candidates(urgent)))
        self._later.replace(await in_turns(self._rounds.census.candidates(later)))

    def _enqueue(self, ledger_id: LedgerId, *, urgent: bool) -> None:
        if ledger_id not in self._outstanding and ledger_id not in self._urgent and ledger_id not in self._later:
            (self._urgent if urgent else self._later).add(ledger_id)

    async def _fill(self, queue: LedgerQueue, jobs: dict[BookieId, list[Job]], now: float) -> None:
        """Plan from the front of a queue until it is empty or no target has room."""
        while queue:
            page = queue.take(PAGE)
            wanted = [one for one in page if one not in self._outstanding and not self._blocked.rests(one, now)]
            ledgers = await self._rounds.read(wanted)
            left: list[LedgerId] = []
            for ledger_id, metadata in ledgers.items():
                if metadata is None:
                    self._blocked.clear(ledger_id)
                elif not await self._plan_one(metadata, jobs, now):
                    left.append(ledger_id)
            if left:
                queue.put_back(left)
                return

    async def _plan_one(self, metadata: EitherMetadata, jobs: dict[BookieId, list[Job]], now: float) -> bool:
        """False: it must wait until a target has room."""
        ledger_id = metadata.ledger_id
        try:
            result = await self._plan_of(metadata, jobs)
        except TargetsFullError:
            return False
        match result:
            case Planned(target, job):
                jobs.setdefault(target, []).append(job)
            case Blocked():
                self._blocked.add(result, now)
                if result.kind is BlockedClass.OPEN:
                    self._abandoned.consider(metadata, now)
            case None if ledger_id in self._blocked:
                # It was blocked for another reason than a leaving bookie: a hole, perhaps.
                self._blocked.clear(ledger_id)
                self._rounds.ask_about([ledger_id])
        return True

    async def _plan_of(self, metadata: EitherMetadata, jobs: dict[BookieId, list[Job]]) -> Planned | Blocked | None:
        """The plan of the first part of a ledger for which there is one; else why there is none."""
        full = [name for name in self._watch.registrations if self._room(name, jobs) <= 0]
        blocked: Blocked | None = None
        async for part in self._rounds.parts.naming(metadata, self._watch.states.leaving):
            result = plan_ledger(
                part, self._watch.states, self._watch.registrations,
                full=full, locations=self._watch.locations.known, rng=self._rng,
            )  # fmt: skip
            if isinstance(result, Planned):
                return result
            blocked = blocked or result
        return self._damaged(metadata.ledger_id) if metadata.ledger_id in self._rounds.parts.damaged else blocked

    def _damaged(self, ledger_id: LedgerId) -> Blocked:
        reason = f"{self._rounds.parts.damaged[ledger_id]}; restore the page, because it may name any bookie"
        return Blocked(ledger_id, 0, None, BlockedClass.SHORT, (), reason)

    def _room(self, target: BookieId, jobs: dict[BookieId, list[Job]]) -> int:
        return self._outstanding.room(target) - len(jobs.get(target, ()))

    def _place_own_jobs(self, jobs: dict[BookieId, list[Job]]) -> None:
        """Give members the jobs that complete their own copies; those of members that are away are dropped, and found
        again when they return."""
        for member, job in list(self._own):
            if member in self._watch.registrations and self._room(member, jobs) <= 0:
                continue
            del self._own[member, job]
            known = self._outstanding.plans.get(member)
            if member in self._watch.registrations and (known is None or job not in known.unfinished):
                jobs.setdefault(member, []).append(job)

    async def _write_plans(self, jobs: dict[BookieId, list[Job]], states: RepairStates, now: float) -> None:
        for target in sorted({*jobs, *self._outstanding.plans}):
            known = self._outstanding.plans.get(target)
            # Rule A3: the copies of a bookie that is back are not made again.
            unfinished = () if known is None else known.unfinished
            dropped = [job for job in unfinished if not self._is_wanted(job, target, states)]
            new = list(dict.fromkeys(jobs.get(target, ())))
            if new or dropped:
                plan = self._outstanding.next_plan(
                    target, new, now, number_min=int(self._wall_clock() * 1000), dropped=dropped
                )
                await self._write_plan(target, plan)
                self._plan_again(target, dropped)
        for target in self._outstanding.finished():
            await self._withdraw(target)

    def _is_wanted(self, job: Job, target: BookieId, states: RepairStates) -> bool:
        if states.paused:
            return False
        if job.why is Why.BALANCE:
            return self.balancer.wants(job, target)
        return job.old is None or job.old in states.leaving

    async def _write_plan(self, target: BookieId, plan: TargetPlan) -> None:
        self._written[target] = await self._store.put_document(
            work_name(target), encode_plan(plan.plan), self._written.get(target)
        )

    async def _withdraw(self, target: BookieId) -> None:
        """Delete the plan and the report of a target: it is done, or silent."""
        unfinished = self._outstanding.withdraw(target)
        if unfinished:
            log.warning("a target is silent or gone; its work is planned again", target=target, jobs=len(unfinished))
        self._plan_again(target, unfinished)
        self._reports.pop(target, None)
        version = self._written.pop(target, None)
        if version is not None:
            await self._store.delete_document(work_name(target), version)
        await self._store.delete_document(done_name(target))

    def _plan_again(self, target: BookieId, jobs: Iterable[Job]) -> None:
        """These jobs were taken from a target before they were done."""
        for job in jobs:
            if job.why is Why.BALANCE:
                self.balancer.given_up(job)
            elif job.old is not None and job.old in self._leaving:
                self._enqueue(job.ledger_id, urgent=True)
            elif job.why is Why.CHECK:
                self._checks.ended(job.ledger_id, target, short=True)
            elif job.old is None:
                self._rounds.ask_about([job.ledger_id])

    async def _begin_checks(self) -> None:
        for ledger_id, members in await self._checks.new_ones(self._watch.registrations):
            for member in members:
                self._own[member, Job(ledger_id, None, Why.CHECK)] = None

    # --- what operators see -----------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Ledgers that are not whole, by state: queued, being copied, or blocked for the reason of a class."""
        return {
            "queued": self._queued + len(self._own),
            "copying": self._outstanding.repairs,
            **{kind.value: self._blocked.count(kind) for kind in BlockedClass},
        }

    @property
    def waiting_since_ms(self) -> int | None:
        """Since when ledgers have been waiting without a break, as the last summary has it."""
        return self._summary.waiting_since_ms

    async def write_summary(self, now_ms: int) -> None:
        """Store the summary if it tells anything new."""
        unavailable = frozenset(self._watch.states.bookies) - frozenset(self._watch.registrations) | self._leaving
        await self._summary.write(
            self._rounds.census, self._blocked, self._progress,
            queued=self._queued + len(self._own), copying=self._outstanding.repairs,
            unavailable=unavailable, now=asyncio.get_running_loop().time(), now_ms=now_ms,
        )  # fmt: skip


def _nothing_changed(metadata: StoredLedger, old: BookieId, target: BookieId) -> Blocked:
    ranges = ranges_of_member(metadata, old)
    return Blocked(
        metadata.ledger_id, ranges[0].first, ranges[-1].last, BlockedClass.NO_TARGET, (target,),
        f"{target} has ended its job and has not taken the place of {old}",
    )  # fmt: skip
