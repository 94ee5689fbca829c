"""The plan of a universe in which repair has more to say than fits (``crowd.py``)."""

import random

from simulation.plan import QUICK_REPAIR, Plan, run_agents

LIMITS_SHARE = 64

LIMITS = {
    "octavo.metadata.store.documents:DOCUMENT_BYTES_MAX": 512 * 1024 // LIMITS_SHARE,
    "octavo.repair.base.documents:LIST_BYTES_MAX": 256 * 1024 // LIMITS_SHARE,
    **{
        f"octavo.repair.{module}:JOBS_MAX": 1024 // LIMITS_SHARE
        for module in ("base.planning", "base.documents", "audit.plans_under_way")
    },
}
"""Limit of the code under test -> a smaller one. 8 KiB have room for about thirty blocked ledgers."""

_FAULTS = ("kill bookie", "restart bookie", "expire sessions", "metadata loses answers", "metadata conflict")


def crowd_in(plan: Plan, rng: random.Random) -> None:
    """Change the plan so that all bookies are in every ledger, and there are several dozen ledgers."""
    plan.quorums = rng.choice(((3, 3, 2), (4, 3, 2), (5, 3, 2)))
    plan.bookies, plan.unlucky, plan.logs, plan.clients, plan.recoverers = plan.quorums[0], 0, 0, 1, 0
    plan.ledgers = rng.choice((25, 40))
    plan.adds, plan.safety_seconds = 2 * plan.ledgers, 0.1
    plan.deletes = plan.clients_die = plan.rolling_restart = plan.judge_hindered = False
    plan.disturbances, plan.disturbance_every_seconds = dict.fromkeys(_FAULTS, 1.0), 1.0
    plan.bookie["lease_seconds"] = 1.0
    run_agents(plan, rng)
    plan.network.spike_chance = plan.network.split_chance = plan.disk.spike_chance = 0.0
    plan.repair, plan.drains = QUICK_REPAIR, False
    plan.knobs |= LIMITS
