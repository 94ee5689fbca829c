"""What is explored, and how far: the list behind `make model` and the tests."""

from collections.abc import Callable
from dataclasses import dataclass, field

from model.bookie import BookieState
from model.explorer import Exploration, explore, walk
from model.sealing import PAYLOADS, metadata
from model.setting import Placement, Setting
from model.world import World
from model.writer import Writer
from octavo.protocol.quorums import Quorums


@dataclass(frozen=True)
class Job:
    """A setting, and how it is explored: exhaustively unless bounds or walks are given."""

    name: str
    make: Callable[[], Setting]
    quick: bool = False
    """Whether it is part of ``make test``."""
    depth_max: int | None = None
    walks: int = 0
    steps_max: int = field(default=0)

    def run(self, seed: int = 0) -> Exploration:
        """Explore. ``seed`` is that of the walks."""
        world = World(self.make())
        if self.walks:
            return walk(world, seed=seed, walks=self.walks, steps_max=self.steps_max)
        return explore(world, depth_max=self.depth_max)

    def extent(self, exploration: Exploration) -> str:
        """How much of the setting was seen, in words."""
        if exploration.violation is not None:
            return "ended at a violation"
        if exploration.exhausted:
            return "exhausted"
        return f"{exploration.walks} walks" if self.walks else f"all up to depth {exploration.depth}"


def _three_entries() -> Setting:
    quorums = Quorums(3, 3, 2)
    return Setting(
        "a writer alone",
        quorums,
        3,
        lambda: [Placement(metadata(quorums), (BookieState(),) * 3)],
        lambda placement: [Writer(placement.metadata, entries=2, tells_lac=True)],
        PAYLOADS,
        budget={"breaks": 1, "lost settlements": 1},
    )


JOBS: tuple[Job, ...] = (Job("a writer alone, two entries, one broken connection", _three_entries, quick=True),)
