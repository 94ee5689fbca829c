"""Theseus universes: the cluster loses one bookie after another for good, until none of the first is left.

After the ordinary safety phase every ledger is recovered, or the log is taken over and read. Then, one after another, a
new machine joins and an old one is destroyed, while bookies are killed, paused and cut off, the auditor and targets
among them. Repair must make everything whole again before the next machine goes: every member that the metadata name
holds all that it should (rules C2 to C5). In the end everything that was acknowledged is on machines that did not exist
at the beginning.
"""

import asyncio
import random
from collections.abc import Awaitable

from simulation.faults.nemesis import Nemesis
from simulation.judges.wholeness import wait_until_whole
from simulation.plan import QUICK_REPAIR, Plan, draw_plan, run_agents
from simulation.universe import LIVENESS_SECONDS_MAX, START_SECONDS_MAX, Outcome, Universe, run_universe
from simulation.world import Machine

FAULTS = (
    "kill bookie", "kill bookie at a step", "restart bookie", "pause bookie", "cut power", "isolate machine",
    "one-way partition", "slow link", "reset connections", "metadata loses answers", "metadata loses requests",
    "late watches", "expire sessions", "metadata conflict",
)  # fmt: skip
"""Faults while copies are made again. None of them destroys synced data."""

QUORUMS = ((3, 3, 2), (3, 2, 2), (2, 2, 2), (4, 3, 2), (3, 3, 3), (2, 2, 1))


def draw_theseus_plan(seed: int) -> Plan:
    """A small universe with repair, one or two spare bookies, and faults that destroy nothing. Every third seed has,
    instead of ledgers, a log that is a stream."""
    plan = draw_plan(seed, "small")
    rng = random.Random(f"{seed} theseus")
    plan.quorums = rng.choice(QUORUMS)
    plan.bookies = max(plan.quorums[0] + 1, 4)
    plan.ledgers = rng.choice((1, 2, 3))
    plan.logs = 1 if seed % 3 == 0 else 0
    plan.log_streams = bool(plan.logs)
    plan.adds = rng.choice((10, 30, 60))
    plan.unlucky, plan.deletes, plan.clients_die, plan.rolling_restart = 0, False, False, False
    plan.bookie["lease_seconds"] = rng.choice((1.0, 3.0))
    plan.disturbances = dict.fromkeys(rng.sample(FAULTS, rng.choice((0, 2, 4))), 1.0)
    plan.disturbance_every_seconds = rng.choice((0.5, 1.5))
    run_agents(plan, rng)
    plan.repair, plan.drains = QUICK_REPAIR, False
    plan.copies_min = 2  # no bookie can copy what only the lost machine has had
    return plan


def run_theseus(seed: int, *, lines: bool = False) -> Outcome:
    """Run the Theseus universe of a seed."""
    return run_universe(seed, draw_theseus_plan(seed), lines=lines, course=Theseus)


class Theseus(Universe):
    """The course of events of a Theseus universe."""

    async def run(self) -> None:
        world = self.world
        for machine in world.machines:
            machine.start()
        await self._wait_for_bookies(START_SECONDS_MAX)
        applications = self._start_applications()
        await self._strike(asyncio.wait(applications, timeout=world.plan.safety_seconds))
        self._ended = True
        await self._live(applications)
        await self._judge()
        if not self._first_loss_is_early():
            await self._wait_until_whole("before the first loss")
        for number, machine in enumerate(list(world.machines)):
            newcomer = Machine(world, f"bookie-new-{number}")
            world.machines.append(newcomer)
            newcomer.start()
            await self._wait_for_bookies(START_SECONDS_MAX)
            self._destroy(machine)
            await self._strike(asyncio.sleep(self.rng.uniform(1.0, 6.0)))
            await self._wait_for_bookies(LIVENESS_SECONDS_MAX)
            await self._wait_until_whole(f"after the loss of {machine.name}")
        world.trace.count("theseus: every machine replaced")
        await self._judge()
        await self._stop()

    async def _strike(self, until: Awaitable[object]) -> None:
        """Inject faults until the awaitable is done, and heal."""
        nemesis = Nemesis(self.world)
        striking = asyncio.ensure_future(nemesis.run())
        await until
        striking.cancel()
        nemesis.heal()

    def _destroy(self, machine: Machine) -> None:
        """The machine and its disks are gone for ever."""
        self.world.note(machine.name, "is destroyed")
        self.world.trace.count("theseus: machine destroyed")
        machine.retired = True
        if self.rng.random() < 0.5:
            machine.kill()
        else:
            machine.cut_power()
        self.world.machines.remove(machine)

    def _first_loss_is_early(self) -> bool:
        """Whether the first machine is destroyed before repair has filled what adds left out (Qa < Qw), so that copies
        must be made from bookies that lack entries. Every acknowledged entry is on one more bookie then."""
        return self.world.plan.quorums[2] > 1 and self.world.rng_for("first loss").random() < 0.5

    async def _wait_until_whole(self, when: str) -> None:
        await wait_until_whole(self.world, when, LIVENESS_SECONDS_MAX)
