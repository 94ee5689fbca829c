"""The names of all faults, and what a universe is like in which only some of them strike (``--only``)."""

import difflib
from collections.abc import Mapping, Sequence

from simulation.faults.absences import ABSENCES
from simulation.faults.clocks import CLOCK_STEPS
from simulation.faults.host_faults import HOST_FAULTS, WIPES_HOST
from simulation.faults.returns import RETURNS
from simulation.gateways.gateway_plan import GATEWAY_FAULTS
from simulation.plan import DISTURBANCES, GUARDED_DISTURBANCES, NEEDS_BUDGET, Plan

FAULTS = (*DISTURBANCES, *GUARDED_DISTURBANCES, *ABSENCES, *CLOCK_STEPS, *RETURNS, *HOST_FAULTS, *GATEWAY_FAULTS)
"""Every fault of the nemesis. docs/simulator.md describes each."""

NEEDED: dict[str, Mapping[str, int]] = {
    **{name: {"guarded": 1} for name in GUARDED_DISTURBANCES},
    **{name: {"absences": 1, "logs": 1} for name in ABSENCES},
    **{name: {"clocks": 1, "logs": 1} for name in CLOCK_STEPS},
    **{name: {"returns": 1, "agents": 0} for name in RETURNS},
    **{name: {"hosts": 1, "agents": 0} for name in HOST_FAULTS},
    **{name: {"gateways": 1} for name in GATEWAY_FAULTS},
}
"""Fault -> settings of the universes that it strikes in."""

LOSES_DATA = NEEDS_BUDGET | frozenset(RETURNS) | {WIPES_HOST}
"""Faults that need a machine that may lose synced data."""


def known_fault(name: str) -> str:
    """The name of a fault. Raises :class:`ValueError` for any other text."""
    if name in FAULTS:
        return name
    near = difflib.get_close_matches(name, FAULTS, 1)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"there is no fault {name!r}{meant}; the faults are:\n  " + "\n  ".join(FAULTS))


def settings_for(only: Sequence[str], settings: Mapping[str, int]) -> dict[str, int]:
    """The settings of a plan with those that the named faults need. Raises :class:`ValueError` for a contradiction."""
    merged = dict(settings)
    for name in only:
        for setting, value in NEEDED.get(name, {}).items():
            if merged.setdefault(setting, value) != value:
                raise ValueError(
                    f"the fault {name!r} needs --set {setting}={value}: leave out --set {setting}={merged[setting]}"
                )
    return merged


def calm(plan: Plan, only: Sequence[str]) -> None:
    """Change a plan as it was drawn so that nothing goes wrong but what is named, and what is named can strike."""
    plan.network.spike_chance = plan.disk.spike_chance = plan.clock_drift = 0.0
    plan.rolling_restart = plan.clients_die = plan.judge_hindered = plan.repairs_die = plan.restores_metadata = False
    if LOSES_DATA.intersection(only):
        if plan.quorums[2] == 1:
            plan.quorums = (3, 3, 2)
        plan.unlucky = 1
        plan.bookies = max(plan.bookies, plan.quorums[0] + (plan.quorums[1] == plan.quorums[2]))
    if "metadata lists are empty" in only:  # bookies must look at the list, and have something to delete
        plan.deletes, plan.ledgers = True, max(plan.ledgers, 2)
        plan.bookie |= {"garbage_seconds": 0.3, "compaction_major_seconds": 0.5}
    if "pause client, restart bookies" in only:
        plan.recoverers = max(plan.recoverers, 1)


def leave_only(plan: Plan, only: Sequence[str], *, besieged: bool, theseus: bool) -> None:
    """Remove all other faults from a plan that is otherwise complete. ``besieged``: sieges stay, too; ``theseus``: the
    machines that are destroyed are the only ones that lose data. Raises :class:`ValueError` for a fault that needs a
    machine that may lose data where there is none."""
    names = (*only, "siege") if besieged and "siege" not in only else only
    plan.disturbances = {name: plan.disturbances.get(name, 1.0) for name in names}
    for name in names:
        if name in LOSES_DATA and (theseus or not plan.unlucky):
            raise ValueError(
                f"the fault {name!r} destroys synced data, and these universes allow that to no machine: leave out "
                f"{'--theseus' if theseus else 'the --set that rules it out'} (docs/simulator.md, The fault budget)"
            )
