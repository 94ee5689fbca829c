"""The plans that are under way, as the auditor sees them. Pure (rules A6 and A7).

A target's plan is its lease on the jobs in it: while the target reports, the jobs are its own. One that has been silent
for ``silent_seconds``, or is not registered, loses them, and they are planned elsewhere. If it works on nevertheless,
work is wasted and nothing else: names are taken by compare-and-set only (rule C5).

A job that was taken from a target may nevertheless be finished by it, at any later time: it may be paused just before
its compare-and-set. The auditor would not learn from any report that the ledger names this target now. Such ledgers are
kept here as *taken*, to be read in every round, until the target has reported on a later plan, or was started again:
then it has given the job up.
"""

from collections.abc import Collection, Iterable
from dataclasses import field

from octavo.protocol.ids import BookieId, LedgerId
from octavo.protocol.light_dataclass import dataclass
from octavo.repair.base.documents import Report, WorkPlan
from octavo.repair.base.planning import JOBS_MAX, Blocked, Job, Why

REFILL_SHARE = 4
"""A target gets its next jobs when no more than a fourth of its plan is left: it never runs dry, and few plans are
written."""

TAKEN_MAX = 64 * JOBS_MAX
"""Ledgers remembered as taken from one target; that many only if it was silent many times. The weekly look at every
ledger finds what the others name."""


@dataclass(slots=True)
class TargetPlan:
    """The plan of one target."""

    plan: WorkPlan
    heard_at: float
    """When the target reported last, or got its first plan."""
    done: frozenset[int] = frozenset()
    entries_copied: int = 0
    bytes_copied: int = 0

    @property
    def unfinished(self) -> tuple[Job, ...]:
        """Jobs that no report says are done."""
        return tuple(job for at, job in enumerate(self.plan.jobs) if at not in self.done)


@dataclass(frozen=True, slots=True)
class Ended:
    """Jobs that a report says are done, and those of them that could not be done."""

    jobs: tuple[Job, ...]
    failures: dict[LedgerId, Blocked] = field(default_factory=dict)
    given_up: frozenset[LedgerId] = frozenset()
    """Ledgers of jobs that were taken from the target and that it has given up, or finished, by now."""


@dataclass(slots=True)
class _Taken:
    """Jobs that were taken from one target."""

    number: int
    """The number of the last plan that had one of the jobs."""
    ledgers: set[LedgerId]


class Outstanding:
    """All plans under way."""

    def __init__(self) -> None:
        self.plans: dict[BookieId, TargetPlan] = {}
        self._ledgers: dict[LedgerId, int] = {}
        self._moves: set[LedgerId] = set()
        self._taken: dict[BookieId, _Taken] = {}

    def __contains__(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._ledgers

    @property
    def ledgers(self) -> int:
        """Ledgers in unfinished jobs."""
        return len(self._ledgers)

    @property
    def repairs(self) -> int:
        """Those of them in which copies are to be made again: all but moves for the sake of balance."""
        return len(self._ledgers) - len(self._moves)

    def moves(self) -> dict[BookieId, int]:
        """Unfinished moves for the sake of balance, by target."""
        if not self._moves:
            return {}
        counts = {
            target: sum(job.why is Why.BALANCE for job in known.unfinished) for target, known in self.plans.items()
        }
        return {target: count for target, count in counts.items() if count}

    def changeable(self) -> set[LedgerId]:
        """Ledgers that a target may be changing: those in plans, and those taken from targets."""
        planned = {job.ledger_id for known in self.plans.values() for job in known.plan.jobs}
        return planned.union(*(taken.ledgers for taken in self._taken.values()))

    def adopt(self, target: BookieId, plan: WorkPlan, now: float) -> None:
        """A plan that an earlier auditor has written."""
        self.plans[target] = TargetPlan(plan, now)
        self._count(plan.jobs, 1)

    def room(self, target: BookieId) -> int:
        """How many jobs the target may be given now."""
        known = self.plans.get(target)
        if known is None:
            return JOBS_MAX
        left = len(known.unfinished)
        return JOBS_MAX - left if left <= len(known.plan.jobs) // REFILL_SHARE else 0

    def next_plan(
        self, target: BookieId, jobs: Iterable[Job], now: float, *, number_min: int, dropped: Collection[Job] = ()
    ) -> TargetPlan:
        """Give a target further jobs: its unfinished ones are carried over, but for those that are dropped. The caller
        writes the document.

        The number of a plan is at least ``number_min``, which rises with time, so that no two plans of a target have
        the same number, also if two auditors write them."""
        new = tuple(jobs)
        known = self.plans.get(target)
        unfinished = () if known is None else known.unfinished
        carried = tuple(job for job in unfinished if job not in dropped)
        self._count([job for job in unfinished if job in dropped], -1)
        if known is not None:
            self._take(target, known.plan.number, dropped)
        taken = self._taken.get(target)
        before = known.plan.number if known is not None else -1 if taken is None else taken.number
        number = max(before + 1, number_min)
        plan = TargetPlan(
            WorkPlan(number, (*carried, *new), len(carried)),
            now if known is None else known.heard_at,
        )  # fmt: skip
        if known is not None:
            plan.entries_copied, plan.bytes_copied = known.entries_copied, known.bytes_copied
        self.plans[target] = plan
        self._count(new, 1)
        return plan

    def on_report(self, target: BookieId, report: Report, now: float) -> Ended:
        """A report of a target has changed. Returns what is done now and was not before."""
        taken = self._taken.get(target)
        given_up = frozenset[LedgerId]()
        if taken is not None and report.plan > taken.number:
            given_up = self.on_restarted(target)
        known = self.plans.get(target)
        if known is None:
            return Ended((), given_up=given_up)
        known.heard_at = now
        known.entries_copied, known.bytes_copied = report.entries_copied, report.bytes_copied
        if report.plan != known.plan.number:
            # Of an earlier plan: what it says is contained in a report to come.
            return Ended((), given_up=given_up)
        new = sorted(at for at in report.done - known.done if at < len(known.plan.jobs))
        known.done |= frozenset(new)
        jobs = tuple(known.plan.jobs[at] for at in new)
        self._count(jobs, -1)
        ledgers = {job.ledger_id for job in jobs}
        failures = {blocked.ledger_id: blocked for blocked in report.failures if blocked.ledger_id in ledgers}
        return Ended(jobs, failures, given_up)

    def on_restarted(self, target: BookieId) -> frozenset[LedgerId]:
        """The process that had this target's jobs has ended. Returns the ledgers of the jobs that were taken from it
        before: nothing changes them any more."""
        taken = self._taken.pop(target, None)
        return frozenset() if taken is None else frozenset(taken.ledgers)

    def silent(self, registered: Iterable[BookieId], now: float, silent_seconds: float) -> list[BookieId]:
        """Targets with unfinished jobs that have been silent for too long, or are not registered."""
        there = set(registered)
        return sorted(
            target
            for target, known in self.plans.items()
            if known.unfinished and (target not in there or now - known.heard_at >= silent_seconds)
        )

    def finished(self) -> list[BookieId]:
        """Targets whose plans are done."""
        return sorted(target for target, known in self.plans.items() if not known.unfinished)

    def withdraw(self, target: BookieId) -> tuple[Job, ...]:
        """The target has no plan any more. Returns its unfinished jobs."""
        known = self.plans.pop(target)
        self._count(known.unfinished, -1)
        self._take(target, known.plan.number, known.unfinished)
        return known.unfinished

    def _take(self, target: BookieId, number: int, jobs: Iterable[Job]) -> None:
        ledgers = {job.ledger_id for job in jobs if job.old is not None}
        if ledgers:
            taken = self._taken.setdefault(target, _Taken(number, set()))
            taken.number = number
            if len(taken.ledgers) < TAKEN_MAX:
                taken.ledgers |= ledgers

    def _count(self, jobs: Iterable[Job], step: int) -> None:
        for job in jobs:
            count = self._ledgers.get(job.ledger_id, 0) + step
            if count:
                self._ledgers[job.ledger_id] = count
            else:
                self._ledgers.pop(job.ledger_id, None)
            if job.why is Why.BALANCE:
                (self._moves.add if step > 0 else self._moves.discard)(job.ledger_id)

    def check_invariants(self) -> None:
        """Raise AssertionError unless the state is one that can be."""
        counted: dict[LedgerId, int] = {}
        moves = {job.ledger_id for known in self.plans.values() for job in known.unfinished if job.why is Why.BALANCE}
        assert moves == self._moves
        for known in self.plans.values():
            assert len(known.plan.jobs) <= JOBS_MAX
            for job in known.unfinished:
                counted[job.ledger_id] = counted.get(job.ledger_id, 0) + 1
        assert counted == self._ledgers
