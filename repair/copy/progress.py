"""A target's progress with its plans. Pure (rule A6).

A target gets its plan in a document and reports in another which jobs are done. A new plan may come before the old one
is finished: jobs that it carries over go on, jobs that it leaves out are given up, and jobs that it adds begin. After a
restart the target finds its last report in the store, and goes on with what is not done.
"""

from collections.abc import Collection
from dataclasses import replace

from octavo.protocol.light_dataclass import dataclass
from octavo.repair.base.documents import Report, WorkPlan
from octavo.repair.base.planning import Blocked, Job


@dataclass(frozen=True, slots=True)
class Adopted:
    """The changes that a new plan makes."""

    given_up: frozenset[Job]
    """Jobs under way that the plan leaves out."""


class Progress:
    """See the module."""

    def __init__(self, report: Report | None = None) -> None:
        """``report``: what this target stored last, before a restart."""
        self._plan = WorkPlan(0, ())
        self._report = report if report is not None else Report(0)
        self._finished: dict[Job, Blocked | None] = {}
        self._running: set[Job] = set()

    @property
    def plan(self) -> WorkPlan:
        """The plan in force."""
        return self._plan

    @property
    def left(self) -> int:
        """Jobs of the plan that are not done."""
        return len(self._plan.jobs) - len(self._report.done) if self._plan.number else 0

    def adopt(self, plan: WorkPlan | None) -> Adopted:
        """A plan was read; None: there is none. Reading the same plan again changes nothing."""
        plan = plan if plan is not None else WorkPlan(0, ())
        if plan.number == self._plan.number:
            return Adopted(frozenset())
        restarted = self._plan.number == 0 and self._report.plan == plan.number and plan.number != 0
        wanted = set(plan.jobs)
        given_up = frozenset(self._running - wanted)
        self._running -= given_up
        if not restarted:
            carried = plan.jobs[: plan.carried]
            kept = {job: self._finished[job] for job in carried if job in self._finished}
            self._finished = kept
            done = frozenset(at for at, job in enumerate(plan.jobs) if job in kept)
            failures = tuple(blocked for blocked in kept.values() if blocked is not None)
            self._report = replace(self._report, plan=plan.number, done=done, failures=failures)
        self._plan = plan
        return Adopted(given_up)

    def next_job(self) -> Job | None:
        """The first job that is neither done nor under way, which is under way from now on; None: there is none."""
        for at, job in enumerate(self._plan.jobs):
            if at not in self._report.done and job not in self._running:
                self._running.add(job)
                return job
        return None

    def ended(self, job: Job, blocked: Blocked | None) -> None:
        """A job that was under way is done, or could not be done."""
        self._running.discard(job)
        at = next((at for at, one in enumerate(self._plan.jobs) if one == job), None)
        if at is None:
            return
        self._finished[job] = blocked
        failures = self._report.failures if blocked is None else (*self._report.failures, blocked)
        self._report = replace(self._report, done=self._report.done | {at}, failures=failures)

    def put_back(self, job: Job) -> None:
        """A job ended without an outcome: it is to be begun again."""
        self._running.discard(job)

    def report(self, *, entries_copied: int, bytes_copied: int) -> Report:
        """The report to be stored now."""
        return replace(self._report, entries_copied=entries_copied, bytes_copied=bytes_copied)

    @property
    def running(self) -> Collection[Job]:
        """Jobs under way."""
        return frozenset(self._running)

    def check_invariants(self) -> None:
        """Raise AssertionError unless the state is one that can be."""
        if not self._plan.number:
            return  # the report may be one from before a restart, of a plan that has not been read yet
        assert len(set(self._plan.jobs)) == len(self._plan.jobs)
        assert all(0 <= at < len(self._plan.jobs) for at in self._report.done)
        assert all(self._plan.jobs[at] not in self._running for at in self._report.done)
        assert self._running <= set(self._plan.jobs)
