"""Logs that are streams with full copies: the universes that have them, and what is judged (rule I9)."""

import random
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from octavo.metadata.ledger.debts import Debt, debt_in_range
from octavo.metadata.stream.model import StreamMetadata
from simulation.engine.trace import Trace
from simulation.judges.history import Violation
from simulation.judges.stream_roots import Extent
from simulation.plan import NEEDS_BUDGET, Plan

KINDS: Final[tuple[Literal["recorded", "required"], ...]] = ("recorded", "required")


def keep_books_of_logs(plan: Plan, rng: random.Random) -> None:
    """Change the plan so that its logs are streams with books of their copies, not all bookies are needed to
    acknowledge, and connections and bookies fail. No disk loses synced data: what it takes away is no debt."""
    plan.log_copies, plan.log_streams, plan.logs = True, True, max(plan.logs, 2)
    plan.restores_metadata, plan.unlucky = False, 0
    if plan.quorums[1] == plan.quorums[2]:
        plan.quorums = rng.choice(((3, 3, 2), (2, 2, 1), (3, 2, 1)))
    plan.bookies = plan.quorums[0] + rng.choice((0, 1, 2))
    kept = {name: weight for name, weight in plan.disturbances.items() if name not in NEEDS_BUDGET}
    plan.disturbances = {**kept, "kill bookie": 2.0, "restart bookie": 1.0}
    plan.options |= {
        "full_copies_patience_seconds": rng.choice((0.01, 0.3, 2.0)),
        "retained_bytes_max": rng.choice((0, 300, 100_000)),
        "bookie_loss_seconds": rng.choice((0.05, 0.5)),
        "window_entries": rng.choice((2, 10, 100)),
    }


def full_copies_of(plan: Plan, name: str) -> Literal["recorded", "required"] | None:
    """What a log of this name promises, whichever client makes it."""
    return KINDS[sum(name.encode()) % len(KINDS)] if plan.log_copies else None


class OwedByStream:
    """The settled fragments of a stream and what they owe, as they were before their copies are counted: repair makes
    copies first, and clears debts then."""

    def __init__(self, root: StreamMetadata, extents: Sequence[Extent]) -> None:
        self._kept = root.full_copies
        self._fragments: list[tuple[range, int, Debt]] = []
        for extent in extents:
            places, fragment = extent.places(root.start), extent.fragment
            if places:
                debt = debt_in_range(self._kept, fragment.debt, places[0], places[-1])
                self._fragments.append((places, fragment.write_quorum, debt))

    def check(self, name: str, count: Mapping[int, int], trace: Trace) -> None:
        """Check that what no debt names is on its whole write quorum. ``count``: the copies found, by place."""
        if self._kept is None:
            return
        for places, write_quorum, debt in self._fragments:
            for place in places:
                if count.get(place, 0) < write_quorum and not debt.first <= place <= debt.last:
                    raise Violation("I9", f"log {name}: place {place} has {count.get(place, 0)} copies, not owed")
        trace.count(f"log: with full copies {self._kept.value} judged")
        trace.count("log: debts judged", sum(not debt.is_empty for _, _, debt in self._fragments))
