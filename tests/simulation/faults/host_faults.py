"""Hosts with several bookies, which fail together.

The machines of a universe are dealt to hosts in their order, so the machines of the fault budget are those of the first
host. Where each write set must span as many hosts as it has members (``hosts_per_write_quorum_min``), all of them may
lose their disks: no write set has two of them (rule M6), so no acknowledged entry may be lost (rule I1).
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from simulation.plan import NEEDS_BUDGET, Plan

if TYPE_CHECKING:
    from simulation.faults.nemesis import Nemesis

WIPES_HOST = "wipe a host"

HOST_FAULTS = ("cut power of a host", WIPES_HOST)
"""Faults of the nemesis in universes in which bookies share hosts only."""

BOOKIES_PER_HOST = 2


def host_of(number: int) -> str:
    """The host of the machine with this number."""
    return f"host-{number // BOOKIES_PER_HOST}"


def share_hosts(plan: Plan, rng: random.Random) -> None:
    """Change the plan so that every host has two bookies, and whole hosts fail. In half of the universes the copies of
    an entry must be on different hosts, and one host may lose its disks. Repair accepts less, so its agents, and what
    needs other bookies, are not there."""
    plan.agents = plan.restores_metadata = False
    plan.operator, plan.repairs_die, plan.clock_drift = True, False, 0.0
    plan.network.spike_chance = plan.disk.spike_chance = 0.0
    plan.options["bookie_quarantine_seconds"] = 0.1
    plan.safety_seconds, plan.adds = max(plan.safety_seconds, 1.5), max(plan.adds, 16)
    plan.disturbances = {**plan.disturbances, "cut power of a host": rng.choice((0.5, 2.0))}
    strict = rng.random() < 0.5
    if strict:
        plan.quorums = (3, 3, 2)
        plan.bookies = BOOKIES_PER_HOST * rng.choice((3, 4))
        plan.unlucky = BOOKIES_PER_HOST
        plan.options["hosts_per_write_quorum_min"] = plan.quorums[1]
        plan.disturbances |= {WIPES_HOST: rng.choice((0.5, 1.0)), "wipe": 0.5}
        return
    if plan.quorums[0] > 4:
        plan.quorums = (4, 3, 2)
    plan.bookies = BOOKIES_PER_HOST * rng.choice((2, 3))
    plan.unlucky = min(plan.unlucky, 1)
    if plan.quorums[2] == 1:
        plan.unlucky = 0
    if not plan.unlucky:
        plan.disturbances = {name: weight for name, weight in plan.disturbances.items() if name not in NEEDS_BUDGET}


def strikes(nemesis: "Nemesis") -> dict[str, Callable[[], None]]:
    """The faults of :data:`HOST_FAULTS`."""
    world, rng = nemesis.world, nemesis.rng

    def cut_power() -> None:
        host = rng.choice(world.machines).host
        nemesis.count("process: power of a host cut")
        for machine in world.machines:
            if machine.host == host:
                machine.cut_power()
                machine.start_later(rng.uniform(0.05, 2.0))

    def wipe() -> None:
        """Every machine of the fault budget loses its disks at the same time."""
        for machine in world.unlucky:
            nemesis.wipe(machine)

    return dict(zip(HOST_FAULTS, (cut_power, wipe), strict=True))
