"""The settings of the model of a log, and the rules that are broken on purpose (rules L1 to L4, P1, P2, P5)."""

from dataclasses import dataclass, replace

from model.engine.explorer import Exploration, explore
from model.logs.world import LogModel


@dataclass(frozen=True)
class LogJob:
    """One setting, explored to its end."""

    name: str
    model: LogModel
    quick: bool = False
    """Whether `make test` runs it, too."""
    states_max: int = 5_000_000

    def run(self) -> Exploration:
        """Explore it."""
        return explore(self.model, states_max=self.states_max)


@dataclass(frozen=True)
class LogCanary:
    """A rule that is broken on purpose, in a setting in which that shows."""

    name: str
    promise: str
    """What the violation must begin with."""
    model: LogModel

    @property
    def broken(self) -> LogModel:
        """The setting with the rule broken."""
        return replace(self.model, broken=self.name)


LOG_JOBS = (
    LogJob("log: 2 candidates, an add each", LogModel(clients=2, adds=1), quick=True),
    LogJob("log: 2 candidates, an add each; 1 lost answer", LogModel(clients=2, adds=1, lost_answers=1)),
    LogJob(
        "log: 1 leader of 2 adds that rolls; 1 failure", LogModel(clients=1, adds=2, rolls=1, failures=1), quick=True
    ),
    LogJob("log: 2 leaders of an add that roll", LogModel(clients=2, adds=1, rolls=1)),
    LogJob("log: 2 leaders of 2 adds; 1 failure", LogModel(clients=2, adds=2, failures=1)),
    LogJob("log: 3 candidates, an add each", LogModel(clients=3, adds=1), states_max=600_000),
)

LOG_CANARIES = (
    LogCanary("fence only the last ledger", "rule", LogModel(clients=2, adds=1, rolls=1)),
    LogCanary("serve before the compare-and-set", "rule P1", LogModel(clients=1, adds=1)),
    LogCanary("compare-and-set without the version", "rule", LogModel(clients=2, adds=1)),
    LogCanary("send before the predecessor is acknowledged", "rule", LogModel(clients=1, adds=2, rolls=1, failures=1)),
    LogCanary("delete after a lost answer", "rule L3", LogModel(clients=1, adds=1, lost_answers=1)),
    LogCanary("send everything again", "rule P", LogModel(clients=1, adds=2, failures=1)),
)
