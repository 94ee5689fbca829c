"""Draws what a universe has besides the faults of the nemesis: processes that are away for longer than their leases,
turns of the loop in which several things are due, callers that give up, clocks that step, handles that are kept.

Each hardship is drawn with a random stream of its own, for a share of the seeds that it suits; ``--set NAME=1`` and
``--set NAME=0`` decide it.
"""

import random
from collections.abc import Callable, Mapping
from typing import NamedTuple

from simulation.faults.absences import ABSENCES
from simulation.faults.clocks import CLOCK_STEPS
from simulation.faults.crowd_plan import crowd_in
from simulation.faults.host_faults import share_hosts
from simulation.faults.returns import RETURNS
from simulation.gateways.gateway_plan import serve_with_gateways
from simulation.plan import NEEDS_BUDGET, Plan, run_agents
from simulation.workload.audience_plan import follow_many
from simulation.workload.throng_plan import open_many


class Hardship(NamedTuple):
    """One of them."""

    share: float
    """Of the seeds that it suits; 0: only on request."""
    suits: Callable[[Plan], bool]
    endure: Callable[[Plan, random.Random], None]
    """Changes the plan."""


def endure(plan: Plan, seed: int, settings: Mapping[str, int], *, drawn: bool) -> None:
    """Change the plan of a seed. ``settings``: hardship -> whether it is wanted; ``drawn``: whether chance decides the
    others."""
    for name, hardship in HARDSHIPS.items():
        rng = random.Random(f"{seed} {name}")
        wanted = drawn and rng.random() < hardship.share and hardship.suits(plan)
        if name == "crowds" and (settings.get("packs") or settings.get("followers")):
            wanted = False  # that course of events has ledgers of its own
        if settings.get("followers") or settings.get("gateways"):
            wanted = False  # what is bounded in time allows for the faults of its own plan
        if settings.get(name, wanted):
            setattr(plan.hardships, name, True)
            hardship.endure(plan, rng)


def _has_logs(plan: Plan) -> bool:
    return bool(plan.logs) and not plan.aimed


def _be_absent(plan: Plan, rng: random.Random) -> None:
    """Leases are short, and the safety phase lasts for several of them."""
    plan.disturbances = {**plan.disturbances, **dict.fromkeys(ABSENCES, rng.choice((0.3, 1.0, 3.0)))}
    plan.hardships.candidate_absent_chance = rng.choice((0.1, 0.5, 1.0))
    plan.safety_seconds = max(plan.safety_seconds, 4.0)
    plan.disturbance_every_seconds = max(plan.disturbance_every_seconds, 0.5)
    plan.adds = max(plan.adds, 24)
    plan.options["lease_seconds"] = rng.choice((0.3, 0.5))
    plan.bookie["lease_seconds"] = 1.0


def _take_long_turns(plan: Plan, rng: random.Random) -> None:
    plan.hardships.turns = True
    plan.hardships.stall_chance = rng.choice((0.003, 0.01, 0.05))
    plan.hardships.stall_seconds = rng.choice((0.01, 0.1, 0.5))


def _be_impatient(plan: Plan, rng: random.Random) -> None:
    """Windows and segments are small, so that adds wait for room and for rolls; adds time out, also while the leader
    heals, and what ends a wait is often due in one turn with the time-out."""
    seconds = rng.choice((0.02, 0.1, 0.3))
    plan.options |= {
        "window_entries": rng.choice((1, 2, 5)),
        "log_add_timeout_seconds": rng.choice((None, seconds, seconds, seconds)),
        "log_segment_bytes": rng.choice((50, 300)),
    }
    plan.adds, plan.safety_seconds = max(plan.adds, 40), max(plan.safety_seconds, 1.0)
    _take_long_turns(plan, rng)
    plan.hardships.stall_seconds = seconds * rng.choice((0.5, 1.5))
    plan.hardships.stall_chance = rng.choice((0.02, 0.1))


def _give_keys(plan: Plan, rng: random.Random) -> None:
    """Logs have many leaders, each of which reads the window; adds time out now and then, and stay in doubt."""
    plan.log_streams = True
    plan.log_retain_bytes, plan.log_retain_seconds = 0, 0
    plan.adds, plan.safety_seconds = max(plan.adds, 60), max(plan.safety_seconds, 1.5)
    plan.options |= {
        "log_add_timeout_seconds": rng.choice((None, 0.1, 0.3)),
        "log_segment_bytes": rng.choice((50, 300)),
    }


def _set_clocks(plan: Plan, rng: random.Random) -> None:
    """Retention by age, and often cursors, or an operator who holds bookies. Clocks for timers run at the right rate:
    what is true about ages is known to a millisecond."""
    plan.hardships.clocks_of_processes = rng.random() < 0.7
    plan.disturbances = {**plan.disturbances, **dict.fromkeys(CLOCK_STEPS, rng.choice((1.0, 4.0)))}
    plan.clock_drift, plan.safety_seconds = 0.0, max(plan.safety_seconds, 2.0)
    plan.disturbance_every_seconds = min(plan.disturbance_every_seconds, 0.3)
    plan.adds = max(plan.adds, 40)
    plan.log_retain_seconds, plan.log_retain_cursors = rng.choice((0.5, 1.0)), rng.random() < 0.4
    plan.log_retain_bytes = 0
    plan.options |= {
        "log_segment_bytes": rng.choice((50, 300)),
        "log_segment_seconds": rng.choice((0.2, 60.0)),
        "log_retention_seconds": rng.choice((0.1, 0.3)),
    }
    if rng.random() < 0.3 and not plan.restores_metadata:
        run_agents(plan, rng)
        plan.drains = True


def _come_back(plan: Plan, rng: random.Random) -> None:
    """One machine may lose its disks, once. The registration of a bookie that is away ends soon."""
    if plan.quorums[2] == 1:
        plan.quorums = (3, 3, 2)
    plan.unlucky, plan.operator, plan.repairs_die = 1, True, False
    plan.bookies = max(plan.bookies, plan.quorums[0] + (plan.quorums[1] == plan.quorums[2]))
    kept = {name: weight for name, weight in plan.disturbances.items() if name not in NEEDS_BUDGET}
    plan.disturbances = {**kept, **dict.fromkeys(RETURNS, rng.choice((1.0, 3.0)))}
    plan.bookie["lease_seconds"] = 1.0
    plan.safety_seconds, plan.adds = max(plan.safety_seconds, rng.choice((4.0, 8.0))), max(plan.adds, 40)
    plan.disturbance_every_seconds = max(plan.disturbance_every_seconds, 0.3)


def _may_lose_disks(plan: Plan) -> bool:
    return not (plan.aimed or plan.restores_metadata or plan.agents or plan.full_copies)


def _keep_handles(plan: Plan, rng: random.Random) -> None:
    """Logs roll often, are truncated, and what was truncated is removed soon: old handles name what is gone."""
    plan.options |= {
        "log_segment_bytes": rng.choice((50, 300)),
        "log_page_segments": 1,
        "log_truncation_seconds": rng.choice((0.1, 1.0)),
    }
    plan.adds, plan.safety_seconds = max(plan.adds, 40), max(plan.safety_seconds, 1.5)
    plan.bookie |= {"garbage_seconds": 0.3}


def _may_share_hosts(plan: Plan) -> bool:
    kinds = plan.hardships.returns or plan.hardships.crowds or plan.hardships.turns or plan.hardships.absences
    return _may_lose_disks(plan) and not kinds


def _is_plain(plan: Plan) -> bool:
    return not (plan.logs or plan.aimed or plan.restores_metadata or plan.guarded or plan.deferred or plan.full_copies)


def _may_have_many(plan: Plan) -> bool:
    """Large universes have several clients, and stay what they are."""
    others = plan.hardships.crowds or plan.hardships.hosts or plan.hardships.returns or plan.hardships.absences
    kinds = plan.aimed or plan.restores_metadata or plan.guarded or plan.deferred or plan.full_copies
    return plan.clients == 1 and not (kinds or others or plan.repairs_die or plan.agents)


HARDSHIPS: dict[str, Hardship] = {
    "absences": Hardship(0.1, _has_logs, _be_absent),
    "clocks": Hardship(0.1, _has_logs, _set_clocks),
    "keepsakes": Hardship(0.1, _has_logs, _keep_handles),
    "crowds": Hardship(0.005, _is_plain, crowd_in),
    "returns": Hardship(0.05, _may_lose_disks, _come_back),
    "turns": Hardship(0.1, lambda plan: not plan.aimed, _take_long_turns),
    "impatience": Hardship(0.15, _has_logs, _be_impatient),
    "keyed": Hardship(0.0, _has_logs, _give_keys),
    "hosts": Hardship(0.03, _may_share_hosts, share_hosts),
    "packs": Hardship(0.04, _may_have_many, open_many),
    "followers": Hardship(0.0, _may_have_many, follow_many),
    "gateways": Hardship(0.0, _may_have_many, serve_with_gateways),
}
"""Field of :class:`simulation.faults.hardships.Hardships` -> what it means."""
