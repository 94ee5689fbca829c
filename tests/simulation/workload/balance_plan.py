"""The plan of a universe in which copies are moved for the sake of balance."""

import random
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.plan import Plan


BALANCES_SHARE = 0.5
"""Share of the universes with repair agents in which copies are moved for the sake of balance."""

HOSTS_SHARE = 0.4
"""Share of these universes in which two bookies share a host."""


def balance_some(plan: "Plan", seed: int) -> None:
    """Change the plans of some seeds as :func:`balance` does."""
    if random.Random(f"{seed} balances").random() < BALANCES_SHARE:
        balance(plan, random.Random(f"{seed} balance"))


def balance(plan: "Plan", rng: random.Random) -> None:
    """Change the plan so that copies are moved for the sake of balance. There are bookies to move them to, ledgers of
    which some are closed early, and bookies that drop what they gave up soon: sooner than a change of the metadata that
    is made slowly, which the day of rule C8 allows for."""
    plan.balances = True
    plan.bookies += rng.choice((1, 1, 2))
    plan.ledgers = max(plan.ledgers, 3)
    plan.adds = max(plan.adds, 24)
    plan.repair = replace(plan.repair, balance_seconds=rng.choice((0.0, 0.2, 1.0)), balance_fill_min=0.0)
    plan.disturbances = {
        name: weight for name, weight in plan.disturbances.items() if name != "metadata changes slowly"
    }
    plan.bookie |= {
        "replaced_copies_seconds": rng.choice((3.0, 8.0)), "garbage_seconds": rng.choice((0.2, 1.0)),
    }  # fmt: skip
