"""Clocks that are wrong: by hours, by a year, or never set since 1970; they step while processes run.

In a universe either those of clients and bookies are wrong, each as it pleases, or that of the metadata store is: when
all are, nothing tells how old anything is. What must not be lost because a clock says that it is old is judged by the
world's time: entries that retention keeps (rule P8), and bookies that an operator holds.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from octavo.metadata.cluster.repair_states import DOCUMENT, BookieCondition, Condition, decode_states
from octavo.protocol.ids import BookieId
from simulation.judges.history import Violation

if TYPE_CHECKING:
    from simulation.faults.nemesis import Nemesis
    from simulation.world import World

CLOCK_STEPS = ("clock steps",)
"""Faults of the nemesis in universes whose clocks step only."""

_HOUR, _YEAR = 3600.0, 365 * 86_400.0

_ROUNDING_SECONDS = 0.01
"""Times are stored in milliseconds, on several clocks."""


class _Hold(NamedTuple):
    """A bookie that an operator holds."""

    condition: BookieCondition
    until: float
    """By the world's time."""


class Clocks:
    """The wrong clocks of one universe."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = world.rng_for("clocks")
        self._ahead: dict[str, float] = {}
        self._held: dict[BookieId, _Hold] = {}
        self._released: set[BookieId] = set()

    def ahead(self, name: str) -> timedelta:
        """By how much the time of day of a process is ahead of what its clock for timers makes it."""
        if not self._world.plan.hardships.clocks_of_processes:
            return timedelta()
        name = name.partition(".")[0]
        if name not in self._ahead:
            self._ahead[name] = self._draw() if name not in ("world", "judge") and self._rng.random() < 0.5 else 0.0
        return timedelta(seconds=self._ahead[name])

    def _draw(self) -> float:
        rng = self._rng
        since_1970 = self._world.metadata.epoch.timestamp()
        steps = (0.0, _HOUR, -_HOUR, 5 * _HOUR, -24 * _HOUR, _YEAR, -_YEAR, -since_1970)
        return rng.choice(steps) * rng.uniform(0.9, 1)

    def strikes(self, nemesis: "Nemesis") -> dict[str, Callable[[], None]]:
        """The faults of :data:`CLOCK_STEPS`."""
        world, rng = self._world, self._rng

        def step() -> None:
            ahead = self._draw()
            if world.plan.hardships.clocks_of_processes:
                names = [host.name.partition(".")[0] for host in world.hosts if host.process.alive]
                name = rng.choice([*names, *names, *(machine.name for machine in world.machines)])
                self._ahead[name] = ahead
            else:
                name, world.metadata.clock_ahead_seconds = "metadata", ahead
            nemesis.count("clocks: stepped")
            world.note(name, "its clock is set %.0f s ahead of the right time", ahead)

        return dict.fromkeys(CLOCK_STEPS, step)

    # --- holds ------------------------------------------------------------------------------------------------------

    def releases(self, name: BookieId) -> None:
        """An operator is about to release a bookie."""
        self._released.add(name)

    def document_changed(self, key: str, value: bytes | None) -> None:
        """Check that no hold ends before its time."""
        if key != DOCUMENT or not self._world.plan.hardships.clocks:
            return
        now = self._world.loop.now
        states = decode_states(value).bookies
        held = {name: one for name, one in states.items() if one.condition is Condition.HELD}
        for name, one in held.items():
            known = self._held.get(name)
            if (known is None or known.condition != one) and one.until_ms is not None:
                self._held[name] = _Hold(one, now + (one.until_ms - one.since_ms) / 1000)
                self._released.discard(name)
        for name in self._held.keys() - held.keys():
            left = self._held.pop(name).until - now
            drains = name in states and states[name].condition is Condition.DRAINING  # as an operator wishes
            if left > _ROUNDING_SECONDS and name not in self._released and not drains:
                raise Violation("A13", f"bookie {name} was to be held for {left:.2f} s more")
            self._world.trace.count("clocks: hold ended")
