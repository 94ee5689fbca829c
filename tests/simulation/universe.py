"""Run one universe from its seed: build the world, inject faults, heal them, and check every guarantee."""

import asyncio
import gc
import importlib
import itertools
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from octavo.bookie import part_settings
from octavo.bookie.storage.settings import StorageSettings
from octavo.protocol.errors import OctavoError
from simulation.engine.limits import CHANGED_OFTEN, limits_counted
from simulation.engine.logs import LogJudge
from simulation.engine.old_peers import old_peers
from simulation.engine.patches import Patch
from simulation.faults.endurance import endure
from simulation.faults.guarding import Intruding, end_a_principal, guards
from simulation.faults.nemesis import Nemesis
from simulation.faults.repair_operator import Operating, end_drains
from simulation.faults.restore import MetadataRestore
from simulation.judges.history import Violation
from simulation.judges.judge import Judge
from simulation.judges.judge_of_logs import JudgeOfLogs
from simulation.judges.judge_of_many import JudgeOfMany
from simulation.judges.wholeness import wait_until_whole
from simulation.plan import Plan, draw_plan
from simulation.workload.audience import Audience, Interrupting, Staging, Watching
from simulation.workload.balance_operator import BalanceOperating, balance_all
from simulation.workload.log_keepsakes import Standby
from simulation.workload.log_workload import PASSWORD, Following, Leading, Tidying
from simulation.workload.throng import Fencing, Throng
from simulation.workload.workload import Deleting, Reading, Work, Writing
from simulation.world import REPAIRS_MAX, Application, ClientHost, Machine, World

START_SECONDS_MAX = 60.0
"""Virtual time within which every bookie must be up at the beginning, before any fault."""

LIVENESS_SECONDS_MAX = 180.0
"""Virtual time after healing within which everything must finish (rule I8). It exceeds several of the plans' longest
time-outs in a row."""


_RUNS_PER_COLLECTION = 20
"""Universes between two garbage collections. Collecting after each would take a tenth of the time."""


@dataclass(slots=True)
class Outcome:
    """The result of one universe."""

    seed: int
    hash: int
    failure: str | None
    """The failure; None if the universe passed."""
    virtual_seconds: float
    steps: int
    counters: Counter[str] = field(default_factory=Counter)
    rule: str = ""
    """The broken rule of docs/rules.md or the class of the error, if the universe failed."""
    explanation: str = ""
    """The traceback, if the universe failed."""
    lines: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the universe passed."""
        return self.failure is None


def run_universe(
    seed: int, plan: Plan | None = None, *, lines: bool = False, course: "Course | None" = None
) -> Outcome:
    """Run a seed's universe. An error inside the universe is not raised; it becomes the outcome's ``failure``.
    ``course``: another course of events than the ordinary one."""
    LogJudge.install()
    with _quiet_end():
        return _run(seed, plan, lines, course)


def _run(seed: int, plan: Plan | None, lines: bool, course: "Course | None" = None) -> Outcome:
    if plan is None:
        plan = draw_plan(seed)
        endure(plan, seed, {"crowds": 0}, drawn=True)  # these have a course of their own
    world = World(seed, plan)
    failure: BaseException | None = None
    with world.logs, _turned(plan.knobs, plan.storage), limits_counted(world), guards(world), old_peers(world):
        try:
            world.loop.run_until_complete((course or Universe)(world).run())
        except Exception as error:
            failure = error
        if failure is None:
            failure = _complaint(world)
    trace = world.trace
    told = None if failure is None else f"{type(failure).__name__} {failure}"
    outcome = Outcome(seed, trace.hash, told, world.loop.now, world.loop.steps, trace.counters.copy())
    outcome.counters["ensemble changes"] = world.history.ensemble_changes
    outcome.counters["recoveries"] = world.history.recoveries
    outcome.counters[CHANGED_OFTEN] = world.history.recoveries_changing_often
    if failure is not None:
        outcome.rule = failure.rule if isinstance(failure, Violation) else type(failure).__name__
        outcome.explanation = "".join(traceback.format_exception(failure))
    if lines or failure is not None:
        outcome.lines = trace.lines()
    world.loop.close()
    return outcome


_SETTINGS = Patch(part_settings, "StorageSettings")
"""Made when this module is imported: a change that moves the name is noticed before any universe runs."""


@contextmanager
def _turned(knobs: dict[str, int], storage: dict[str, int]) -> Iterator[None]:
    """Change constants (``module:NAME``) and default settings of the storage inside the block."""
    _SETTINGS.replacement = partial(StorageSettings, **storage)  # type: ignore[arg-type]
    turned = [_SETTINGS]
    for name, value in knobs.items():
        module, _, constant = name.partition(":")
        turned.append(Patch(importlib.import_module(module), constant, value))
    for knob in turned:
        knob.apply()
    try:
        yield
    finally:
        for knob in turned:
            knob.undo()


_runs = itertools.count(1)


def collect_garbage() -> None:
    """Collect what earlier universes have left, without warnings."""
    with _quiet_end():
        gc.collect()


@contextmanager
def _quiet_end() -> Iterator[None]:
    """Suspend garbage collection during a run, because finalizers would run at different steps in different runs.
    Silence the warnings about coroutines of killed processes, which never finish."""
    collecting, hook = gc.isenabled(), sys.unraisablehook
    gc.disable()
    sys.unraisablehook = lambda _what: None
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            yield
            if collecting or next(_runs) % _RUNS_PER_COLLECTION == 0:
                gc.collect()
    finally:
        sys.unraisablehook = hook
        if collecting:
            gc.enable()


def _complaint(world: World) -> BaseException | None:
    for process, context in world.loop.complaints:
        error = context.get("exception")
        violation = Violation("no defects", f"{process.name}: {context.get('message')}: {error!r}")
        if isinstance(error, BaseException):
            violation.__cause__ = error
        return violation
    return None


class Universe:
    """The course of events, as the world's main coroutine."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng_for("universe")
        self._ended = False
        self._standbys: list[Standby] = []
        self._audience: Audience | None = None
        if world.plan.hardships.followers:
            self._audience = Audience(world, world.rng_for("audience"), ended=self.ended, whole=self._is_whole)

    def ended(self) -> bool:
        """Whether the safety phase is over."""
        return self._ended

    async def run(self) -> None:
        """Run the phases one after another (docs/simulator.md)."""
        world = self.world
        for machine in world.machines:
            machine.start()
        await self._wait_for_bookies(START_SECONDS_MAX)
        nemesis = Nemesis(world)
        await nemesis.prepare()
        applications = self._start_applications()
        striking = asyncio.ensure_future(nemesis.run())
        # A log's list that goes back breaks promises that only ledgers and bookies keep through that.
        restores = world.plan.restores_metadata and not world.plan.logs
        restore = MetadataRestore(world, world.rng_for("restore")) if restores else None
        copying = asyncio.ensure_future(restore.copy_later(world.plan.safety_seconds)) if restore is not None else None
        rolling = asyncio.ensure_future(self._roll()) if world.plan.rolling_restart else None
        intruding = self._intrude()
        await asyncio.wait(applications, timeout=world.plan.safety_seconds)
        for task in (striking, rolling, copying):
            if task is not None:
                task.cancel()
        self._ended = True
        if world.plan.clients_die:
            world.trace.count("process: every client killed")
            for host in world.hosts:
                host.process.kill()
        nemesis.heal()
        if restore is not None:
            await self._wait_for_bookies(LIVENESS_SECONDS_MAX)
            await restore.run()
        if self._has_operator:
            await self._live(applications[-1:])
            await end_drains(world, LIVENESS_SECONDS_MAX)  # a leader may need the bookie that is drained
        await self._live([*applications, *intruding])
        await nemesis.check_returns()
        if world.plan.guarded:
            await self._end_a_principal()
        await self._judge()
        if world.plan.agents and not any(map(self._given_up, world.machines)):
            await wait_until_whole(world, "after the judge", LIVENESS_SECONDS_MAX)
            if world.plan.balances:
                await balance_all(world, LIVENESS_SECONDS_MAX)
            if world.trace.counters["repair: bookie took a place"]:
                await self._judge()
        await self._check_standbys()
        await self._stop()

    # --- phases -----------------------------------------------------------------------------------------------------

    @property
    def _has_operator(self) -> bool:
        """Whether an operator of repair is the last of the applications."""
        return self.world.plan.agents and self.world.plan.drains

    def _start_applications(self) -> list[asyncio.Future[None]]:
        world, plan, rng = self.world, self.world.plan, self.rng
        if self._audience is not None:
            return self._run_all(self._works_with_followers(self._audience))
        if plan.hardships.packs:
            return self._run_all(self._works_with_many())
        if plan.logs:
            return self._run_all(self._works_with_logs())
        works: list[list[Work]] = [[] for _ in range(plan.clients)]
        for number in range(plan.ledgers):
            writing = Writing(world, world.rng_for(f"writer {number}"), plan.adds // plan.ledgers, self.ended)
            works[number % plan.clients].append(writing.run)
        for number in range(plan.clients):
            reading = Reading(world, world.rng_for(f"reader {number}"), recovers=False, ended=self.ended)
            works[number].append(reading.run)
        for number in range(plan.recoverers):
            reading = Reading(world, world.rng_for(f"recoverer {number}"), recovers=True, ended=self.ended)
            if plan.recoverers_apart:
                works.append([reading.run])
            else:
                works[rng.randrange(plan.clients)].append(reading.run)
        if plan.deletes:
            works[rng.randrange(plan.clients)].append(Deleting(world, world.rng_for("deleter"), self.ended).run)
        return self._run_all(works)

    def _works_with_many(self) -> list[list[Work]]:
        """One client with many ledgers, one that fences some of them, and the logs of the seed in both."""
        world, plan = self.world, self.world.plan
        works = self._works_with_logs() if plan.logs else [[], []]
        works[0].append(Throng(world, world.rng_for("throng"), plan.ledgers, self.ended).run)
        reading = Reading(world, world.rng_for("reader"), recovers=False, ended=self.ended)
        works[1] += [Fencing(world, world.rng_for("fencing"), self.ended).run, reading.run]
        if plan.deletes:
            works[1].append(Deleting(world, world.rng_for("deleter"), self.ended).run)
        return works

    def _works_with_followers(self, audience: Audience) -> list[list[Work]]:
        """One client that writes many ledgers, one that fences some of them, one that follows them all, and the logs of
        the seed, which the first two lead in turn."""
        world, plan = self.world, self.world.plan
        logs = [f"log-{log}" for log in range(plan.logs)]
        works: list[list[Work]] = [[], []]
        for name in logs:
            for number, work in enumerate(works):
                rng = world.rng_for(f"{name} leader {number}")
                work.append(Leading(world, rng, name, plan.adds // plan.logs // 2, self.ended).run)
        works[0].append(Staging(audience, plan.ledgers, logs).run)
        works[1].append(Fencing(world, world.rng_for("fencing"), self.ended).run)
        works[1].append(Interrupting(audience).run)
        return [*works, [Watching(audience, logs).run]]

    def _is_whole(self) -> bool:
        return self._ended and all(machine.serving for machine in self.world.machines)

    def _is_over(self) -> bool:
        """Whether no application is started again."""
        return self._ended if self._audience is None else self._audience.over

    def _works_with_logs(self) -> list[list[Work]]:
        """Clients that lead, follow and tidy the same logs. They stand in for the clients that use ledgers."""
        world, plan = self.world, self.world.plan
        works: list[list[Work]] = [[] for _ in range(plan.log_clients)]
        for log in range(plan.logs):
            name = f"log-{log}"
            for number, work in enumerate(works):
                adds = plan.adds // plan.logs // plan.log_clients
                work.append(Leading(world, world.rng_for(f"{name} leader {number}"), name, adds, self.ended).run)
            works[-1].append(Following(world, world.rng_for(f"{name} follower"), name, self.ended).run)
            works[0].append(Following(world, world.rng_for(f"{name} other follower"), name, self.ended).run)
            if plan.hardships.keepsakes:
                self._keep_standbys(name)
            operator = Tidying(world, world.rng_for(f"{name} operator"), name, self.ended)
            works[log % plan.log_clients].append(operator.run)
        return works

    def _keep_standbys(self, name: str) -> None:
        """Start processes that keep handles of a log to the end, and are no applications that end."""
        for number in range(2):
            rng = self.world.rng_for(f"{name} standby {number}")
            standby = Standby(self.world, rng, name, PASSWORD, self.ended)
            self._standbys.append(standby)
            self.world.host(f"standby-{number}").run(standby.run, "standby")

    async def _check_standbys(self) -> None:
        for standby in self._standbys:
            host = standby.host
            if host is not None:
                _, late = await asyncio.wait([host.run(standby.check, "leading")], timeout=LIVENESS_SECONDS_MAX)
                if late:
                    raise Violation("I8", f"{host.name} does not lead with the handle that it has kept")

    def _run_all(self, works: list[list[Work]]) -> list[asyncio.Future[None]]:
        if self.world.plan.balances:
            works.append([BalanceOperating(self.world, self.world.rng_for("balance operator"), self.ended).run])
        if self._has_operator:
            works.append([Operating(self.world, self.world.rng_for("repair operator"), self.ended).run])
        return [
            asyncio.ensure_future(self._keep_running(f"client-{number}", work)) for number, work in enumerate(works)
        ]

    async def _keep_running(self, name: str, works: list[Work]) -> None:
        """Run an application; restart it in a new process whenever it is killed before the end."""
        for number in itertools.count():
            host = self.world.host(f"{name}.{number}" if number else name)
            await host.run(_together(works), "application")
            if host.process.alive or self._is_over():
                return
            await asyncio.sleep(self.rng.uniform(0.05, 0.5))
            if self._is_over():
                return

    async def _wait_for_bookies(self, seconds: float) -> None:
        """Wait until every machine serves, except those of the fault budget that cannot be repaired."""
        world = self.world
        deadline = world.loop.now + seconds
        while not all(machine.serving or self._given_up(machine) for machine in world.machines):
            if world.loop.now > deadline:
                down = [machine.name for machine in world.machines if not machine.serving]
                raise Violation("I8", f"{down} do not come up")
            await asyncio.sleep(0.05)
        for machine in world.machines:
            if machine.refused is not None and machine not in world.unlucky:
                raise Violation("I8", f"{machine.name} {machine.refused}")

    def _given_up(self, machine: Machine) -> bool:
        """Whether a bookie refuses its disks for good. Has it repaired if that is still possible."""
        if machine.refused is None or machine.process is not None:
            return False
        if machine not in self.world.unlucky or machine.repairs >= REPAIRS_MAX:
            return True
        if self._ended:
            machine.repair()
        return not self._ended

    async def _roll(self) -> None:
        """Restart one machine after another, each once the one before is ready again or five seconds have passed."""
        world = self.world
        for machine in world.machines:
            if machine.ready:
                world.trace.count("process: rolling restart")
                machine.stop()
                for _ in range(50):
                    await asyncio.sleep(0.1)
                    if machine.ready or machine.refused is not None:
                        break

    async def _live(self, applications: list[asyncio.Future[None]]) -> None:
        """Check that every machine comes up and every application ends after healing (rule I8)."""
        await self._wait_for_bookies(LIVENESS_SECONDS_MAX)
        _, late = await asyncio.wait(applications, timeout=LIVENESS_SECONDS_MAX)
        if late:
            raise Violation("I8", f"{len(late)} applications have not ended {LIVENESS_SECONDS_MAX} s after healing")

    async def _judge(self) -> None:
        """Have a new client recover and read every ledger and compare all replicas."""
        if self.world.plan.judge_hindered:
            self._hold_up_machine()
        judge: JudgeOfMany | JudgeOfLogs | Judge
        if self.world.plan.hardships.many:
            judge = JudgeOfMany(self.world)
        else:
            judge = JudgeOfLogs(self.world) if self.world.plan.logs else Judge(self.world)
        judging = self.world.host("judge").run(judge.run, "judge")
        _, late = await asyncio.wait([judging], timeout=LIVENESS_SECONDS_MAX)
        if late:
            raise Violation("I8", "the judge could not read everything in time")

    def _hold_up_machine(self) -> None:
        """Pause a machine: recovery must decide correctly whichever bookies answer last."""
        machine = self.rng.choice(self.world.machines)
        if machine.process is not None:
            world, process = self.world, machine.process
            world.trace.count("process: bookie stands still before the judge")
            world.note(machine.name, "stands still")
            process.pause()
            world.loop.call_process(world.loop.world, world.loop.now + self.rng.uniform(0.3, 6.0), process.resume)

    def _intrude(self) -> list[asyncio.Future[None]]:
        world = self.world
        if not world.plan.guarded:
            return []
        return [world.host("intruder").run(Intruding(world, world.rng_for("intruder"), self.ended).run, "intruder")]

    async def _end_a_principal(self) -> None:
        ending = self.world.host("leaver").run(partial(end_a_principal, self.world), "leaver")
        _, late = await asyncio.wait([ending], timeout=LIVENESS_SECONDS_MAX)
        if late:
            raise Violation("I8", "a client whose principal was disabled does not end")

    async def _stop(self) -> None:
        """Stop every bookie cleanly; each stop checks for leaks."""
        world = self.world
        for machine in world.machines:
            machine.retired = True
            machine.stop()
        deadline = world.loop.now + LIVENESS_SECONDS_MAX
        while any(machine.process is not None for machine in world.machines):
            if world.loop.now > deadline:
                left = [machine.name for machine in world.machines if machine.process is not None]
                raise Violation("I8", f"{left} did not stop")
            await asyncio.sleep(0.1)


type Course = Callable[[World], Universe]


def _together(works: list[Work]) -> Application:
    async def run(host: ClientHost) -> None:
        client = await host.connect()
        tasks = [asyncio.ensure_future(work(host, client)) for work in works]
        try:
            await asyncio.gather(*tasks)
        finally:
            try:
                await client.close()
            except OctavoError as error:
                host.world.note(host.name, "close: %s", f"{type(error).__name__} {error.message}")

    return run
