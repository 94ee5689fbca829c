"""Run many universes on several processes, sum up their counters, and shrink a failing one."""

import gc
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace

from simulation.canaries.catalogue import CANARIES
from simulation.engine.limits import LIMITS, TORN_TAILS
from simulation.faults.crowd import Crowd
from simulation.faults.endurance import HARDSHIPS, endure
from simulation.faults.names import calm, leave_only, settings_for
from simulation.faults.theseus import Theseus, draw_theseus_plan
from simulation.gateways.course import GatewayUniverse
from simulation.plan import (
    Plan,
    besiege,
    defer,
    draw_plan,
    guard,
    keep_books,
    lose_data,
    restore_metadata,
    run_agents,
)
from simulation.universe import Course, Outcome, collect_garbage, run_universe
from simulation.workload.balance_plan import balance
from simulation.workload.log_books import keep_books_of_logs

COVERAGE = {
    "ensemble change": "ensemble changes",
    "concurrent recovery": "concurrent recoveries",
    "replay after a torn tail": TORN_TAILS,
}
"""Events that a campaign should contain in at least a fifth of its seeds -> the counter of each."""


@dataclass(slots=True)
class Order:
    """A universe to run: a seed, and the changes to its plan."""

    seed: int
    canary: str | None = None
    size: str | None = None
    """``quick``, ``small`` or ``large``; None: the size that the seed draws."""
    siege: str | None = None
    """The kind of siege that is to be the only fault; None: the faults that the seed draws."""
    settings: dict[str, int] = field(default_factory=dict)
    """Field of the plan -> value."""
    without: tuple[str, ...] = ()
    """Faults to leave out."""
    theseus: bool = False
    """Whether one machine after another is destroyed and replaced."""
    only: tuple[str, ...] = ()
    """Faults that strike, besides the siege and the losses of machines that are asked for; empty: all that are
    drawn."""

    def plan(self) -> Plan:
        """The plan to run. Raises :class:`ValueError` for an unknown setting, and for faults and settings that
        contradict each other."""
        plan = draw_theseus_plan(self.seed) if self.theseus else draw_plan(self.seed, self.size)
        if self.siege is not None:
            plan = besiege(plan, self.siege, random.Random(f"{self.seed} siege {self.siege}"))
        if self.only:
            calm(plan, () if self.theseus else self.only)
        plan = self._settled(plan, settings_for(self.only, self.settings))
        if self.only:
            leave_only(plan, self.only, besieged=self.siege is not None, theseus=self.theseus)
        plan.disturbances = {name: weight for name, weight in plan.disturbances.items() if name not in self.without}
        return plan

    def is_possible(self) -> bool:
        """Whether there is such a universe: its faults and settings do not contradict each other."""
        try:
            self.plan()
        except ValueError:
            return False
        return True

    def _settled(self, plan: Plan, settings: dict[str, int]) -> Plan:
        known = {known.name for known in fields(Plan)} | HARDSHIPS.keys()
        for name in settings:
            if name not in known:
                raise ValueError(f"a plan has no {name!r}; it has {', '.join(sorted(known))}")
        changes = {name: value for name, value in settings.items() if name not in HARDSHIPS}
        plan = replace(plan, **changes)  # type: ignore[arg-type]
        if settings.get("restores_metadata"):
            restore_metadata(plan)  # with what it needs
        if settings.get("repairs_die"):
            lose_data(plan)
        if settings.get("agents"):
            run_agents(plan, random.Random(f"{self.seed} agents"))
        if settings.get("balances"):
            if not plan.agents:
                run_agents(plan, random.Random(f"{self.seed} agents"))
            plan.logs = settings.get("logs", 0)
            balance(plan, random.Random(f"{self.seed} balance"))
        if settings.get("deferred"):
            defer(plan, random.Random(f"{self.seed} deferred"))
        if settings.get("full_copies"):
            keep_books(plan, random.Random(f"{self.seed} full copies"))
        if settings.get("log_copies"):
            keep_books_of_logs(plan, random.Random(f"{self.seed} log copies"))
        if settings.get("guarded"):
            guard(plan, random.Random(f"{self.seed} guarded"))
        endure(plan, self.seed, settings, drawn=self.siege is None and not self.theseus and not self.only)
        return plan

    def command(self) -> str:
        """The command that runs it again."""
        words = [f"make simulate SEED={self.seed}"]
        extra = self.options()
        return " ".join([*words, *([f'OPTIONS="{" ".join(extra)}"'] if extra else [])])

    def options(self) -> list[str]:
        """The options of the command: all but the seed."""
        return [*(f"--set {name}={value}" for name, value in self.settings.items()), *self.other_options()]

    def other_options(self) -> list[str]:
        """The options of the command without settings."""
        extra = [f"--only '{name}'" for name in self.only]
        extra += [f"--without '{name}'" for name in self.without]
        extra += ["--theseus"] if self.theseus else []
        extra += [f"--size {self.size}"] if self.size else []
        extra += [f"--siege '{self.siege}'"] if self.siege else []
        extra += [f"--canary {self.canary}"] if self.canary else []
        return extra


def run_order(order: Order, *, lines: bool = False) -> Outcome:
    """Run one universe."""
    plan = order.plan()
    course = _course_of(order, plan)
    if order.canary is None:
        return run_universe(order.seed, plan, lines=lines, course=course)
    with CANARIES[order.canary].applied():
        return run_universe(order.seed, plan, lines=lines, course=course)


def _course_of(order: Order, plan: Plan) -> Course | None:
    """The course of events; None: the ordinary one."""
    if order.theseus:
        return Theseus
    if plan.hardships.gateways:
        return GatewayUniverse
    return Crowd if plan.hardships.crowds else None


def run_orders(orders: Iterable[Order], *, jobs: int) -> Iterator[tuple[Order, Outcome]]:
    """Run universes on ``jobs`` processes, in any order of completion."""
    if jobs == 1:
        _begin()
        try:
            for order in orders:
                yield order, run_order(order)
        finally:
            collect_garbage()
        return
    with multiprocessing.get_context("fork").Pool(jobs, initializer=_begin, maxtasksperchild=500) as pool:
        yield from pool.imap_unordered(_run, orders, chunksize=4)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of searching a range of seeds for one that finds a canary."""

    canary: str
    seed: int | None
    """The first seed that fails with the canary, or None."""
    tried: int
    """Number of seeds run with the canary."""
    rule: str
    passes_without: bool
    """Whether that seed passes without the canary."""

    @property
    def sound(self) -> bool:
        """Whether a seed finds the canary and passes without it."""
        return self.seed is not None and self.passes_without


def find(canaries: Iterable[str], seeds: range, *, size: str | None, jobs: int) -> Iterator[Finding]:
    """Search the seeds in order for each canary, ``jobs`` canaries at a time. Results come in any order."""
    searches = [(canary, seeds, size) for canary in canaries]
    if jobs == 1:
        _begin()
        yield from map(_find, searches)
        collect_garbage()
        return
    with multiprocessing.get_context("fork").Pool(jobs, initializer=_begin, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(_find, searches)


def _find(search: tuple[str, range, str | None]) -> Finding:
    canary, seeds, size = search
    for seed in seeds:
        outcome = run_order(Order(seed, canary, size))
        if not outcome.ok:
            return Finding(canary, seed, seed - seeds.start + 1, outcome.rule, run_order(Order(seed, size=size)).ok)
    return Finding(canary, None, len(seeds), "", False)


def _begin() -> None:
    """Prepare a process that runs many universes: garbage is collected between universes, every now and then."""
    gc.disable()
    gc.freeze()


def _run(order: Order) -> tuple[Order, Outcome]:
    return order, run_order(order)


@dataclass(slots=True)
class Report:
    """Sums over a campaign."""

    started_at: float = field(default_factory=time.monotonic)
    seeds: int = 0
    seeds_before: int = 0
    """Number of these that an earlier run of the campaign ran; they do not count for the rate."""
    virtual_seconds: float = 0.0
    counters: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    """Counter -> seeds in which it counted."""
    failures: list[tuple[Order, Outcome]] = field(default_factory=list)

    def add(self, order: Order, outcome: Outcome) -> None:
        """Add the result of a universe."""
        self.seeds += 1
        self.virtual_seconds += outcome.virtual_seconds
        self.counters.update(outcome.counters)
        self.seen.update(name for name, number in outcome.counters.items() if number)
        if not outcome.ok:
            self.failures.append((order, outcome))

    def share(self, counter: str) -> float:
        """Share of the seeds in which a counter is not zero."""
        return self.seen[counter] / self.seeds if self.seeds else 0.0

    def text(self) -> str:
        """The report as text."""
        seconds = time.monotonic() - self.started_at
        lines = [
            f"{self.seeds} seeds in {seconds:.1f} s, {(self.seeds - self.seeds_before) / seconds:.1f} seeds/s; "
            f"{self.virtual_seconds / 3600:.2f} virtual hours; {len(self.failures)} failed",
            *(
                f"  {number:9d} in {self.share(name):4.0%} of seeds  {name}"
                for name, number in sorted(self.counters.items())
            ),
            *(f"  {self.share(counter):4.0%} of the seeds had: {what}" for what, counter in COVERAGE.items()),
            *(f"  {self.seen[counter]:4d} seeds in which {what}" for counter, what in LIMITS.items()),
        ]
        return "\n".join(lines)


def broken_rule(order: Order) -> str:
    """The rule that a universe breaks; empty: none."""
    return run_order(order).rule


def smaller(order: Order, *, tell: Callable[[str], None], rule_of: Callable[[Order], str] = broken_rule) -> Order:
    """Shrink a failing order greedily, as long as it breaks the same rule. ``tell`` receives each smaller command."""
    rule = rule_of(order)
    tried = {order.command()}
    shrinking = True
    while shrinking:
        shrinking = False
        for candidate in _simpler(order):
            if candidate.command() in tried:
                continue
            tried.add(candidate.command())
            if candidate.is_possible() and rule_of(candidate) == rule:
                order, shrinking = candidate, True
                tell(candidate.command())
                break
    return order


def _simpler(order: Order) -> Iterator[Order]:
    """Orders of smaller universes: those with one of the faults, then those without one, then those with less work."""
    plan = order.plan()
    names = [name for name in plan.disturbances if order.siege is None or name != "siege"]
    if len(order.only) != 1:
        for name in names:
            yield replace(order, only=(name,), without=())
    for name in names:
        if not order.only:
            yield replace(order, without=(*order.without, name))
        elif len(order.only) > 2:
            yield replace(order, only=tuple(other for other in order.only if other != name))
    for name, value in (
        ("ledgers", 1), ("clients", 1), ("recoverers", 0), ("recoverers", 1), ("deletes", 0), ("rolling_restart", 0),
        ("clock_drift", 0), ("adds", 20), ("adds", 60), ("entry_bytes_max", 20), ("safety_seconds", 3),
    ):  # fmt: skip
        if getattr(plan, name) > value:
            yield replace(order, settings={**order.settings, name: value})


def processors() -> int:
    """Number of processors that this process may use."""
    return len(os.sched_getaffinity(0))
