"""The settings of the models of the gateway, and rules that are broken on purpose (K2, K4, K5, K10, K11, K16)."""

from dataclasses import dataclass, replace
from typing import Any, Final

from model.engine.explorer import Exploration, explore, walk
from model.gateway.broken_machines import (
    AnswersEarly,
    BelievesEverySequence,
    BelievesOnAnyConnection,
    CommitsOfAll,
    EpochsNotCompared,
    ForgetsWhatIsUnderWay,
    ForgetsWhoSyncs,
    GenerationsNotCompared,
    GivesOutEarly,
    GivesToTwo,
    KeepsTheDead,
    RemembersTooMuch,
    RestatesWhatIsSeen,
    SharesTwice,
    ShowsEarly,
    TakesBackUnasked,
    TakesStrangers,
    WaitsForAll,
    WindowOfFour,
    WithoutEpochs,
)
from model.gateway.commit_world import CommitWorld
from model.gateway.epoch_world import EpochWorld
from model.gateway.group_world import GroupWorld
from model.gateway.world import ProduceWorld
from octavo.gateway.records.producers import WINDOW

type GatewayModel = ProduceWorld | CommitWorld | GroupWorld | EpochWorld

STATES_MAX: Final = 20_000
"""Of a setting that is not exhausted. Each state is a copy of a machine, so these are fewer than of other models."""


@dataclass(frozen=True)
class GatewayJob:
    """One setting: explored to its end, or as far as the bound, or on random ways."""

    model: GatewayModel
    quick: bool = False
    """Whether `make test` runs it, too."""
    quick_states_max: int | None = None
    """How far `make test` goes; None: to its end."""
    states_max: int = STATES_MAX
    walks: int | None = None
    """Random ways of :attr:`steps_max` steps; None: all states."""
    steps_max: int = 60

    @property
    def name(self) -> str:
        """As the tables show it."""
        return f"gateway: {self.model.name}"

    def run(self, seed: int) -> Exploration:
        """Explore it."""
        model: Any = self.model
        if self.walks is not None:
            return walk(model, seed=seed, walks=self.walks, steps_max=self.steps_max)
        return explore(model, states_max=self.states_max)

    def run_quickly(self) -> Exploration:
        """Explore what `make test` does."""
        model: Any = self.model
        return explore(model, states_max=self.quick_states_max)


@dataclass(frozen=True)
class GatewayCanary:
    """A rule that is broken on purpose, in a setting in which that shows."""

    name: str
    promise: str
    """What the violation must begin with."""
    model: GatewayModel

    def run(self) -> Exploration:
        """Explore it until a promise is broken."""
        model: Any = self.model
        return explore(model, states_max=STATES_MAX)


TAKEOVERS = ProduceWorld("a producer of 3 batches; a snapshot, 2 takeovers, a refusal", ((2, 1, 1),), 2, 1, 1)
EPOCHS = ProduceWorld("a producer of 2 epochs of 2 batches; a snapshot, a takeover", ((1, 2), (1, 1)), 1, 1)
WINDOWS = ProduceWorld("a producer of 6 batches in order; a takeover", ((1,) * (WINDOW + 1),), 1, in_order=True)
LONG = ProduceWorld("a producer of 4 batches; 2 snapshots, 3 takeovers, a refusal", ((2, 1, 1, 1),), 3, 2, 1)
THREE_EPOCHS = ProduceWorld("a producer of 3 epochs of 4 batches; a snapshot, 2 takeovers", ((1, 1), (1,), (1,)), 2, 1)

COMMITS = CommitWorld("3 commits of 2 groups, restated once; a new coordinator", 3, 1, 1)
MORE_COMMITS = CommitWorld("4 commits of 2 groups, restated twice; 2 new coordinators", 4, 2, 2)
MANY_COMMITS = CommitWorld("9 commits of 2 groups, restated 4 times; 3 new coordinators", 9, 4, 3)

CHANGES = GroupWorld("2 members; 2 leave or begin again, time passes once", (None, None), times=1, changes=2)
STATIC = GroupWorld("2 static members; time passes once", ("a", "b"), times=1)
COORDINATORS = GroupWorld(
    "2 members; one leaves or begins again, time passes once, a new coordinator",
    (None, None),
    times=1,
    changes=1,
    coordinators=1,
)
THREE = GroupWorld(
    "3 members, one of them static; 3 changes, 3 times, 2 new coordinators",
    (None, "b", None),
    times=3,
    changes=3,
    coordinators=2,
)

SHARED = EpochWorld(
    "2 members of the consumer protocol; one leaves or begins again, time passes twice", (None, None), 2, 1
)
SHARED_STATIC = EpochWorld(
    "2 members of the consumer protocol, one static; 2 changes, time passes once, the topic grows",
    ("a", None),
    times=1,
    changes=2,
    grows=1,
)
SHARED_ON = EpochWorld(
    "2 members of the consumer protocol; one leaves or begins again, 2 new coordinators",
    (None, None),
    changes=1,
    coordinators=2,
)
SHARED_LOSES = EpochWorld(
    "2 members of the consumer protocol; an answer is lost, the topic grows", (None, None), grows=1, losses=1
)
SHARED_GROWS = EpochWorld("2 members of the consumer protocol; the topic grows", (None, None), grows=1)
SHARED_ONE_LOSS = EpochWorld("2 members of the consumer protocol; an answer is lost", (None, None), losses=1)
SHARED_BY_THREE = EpochWorld(
    "3 members of the consumer protocol, one static; 3 changes, 3 times, 3 new coordinators, 3 losses, the topic grows",
    (None, "b", None),
    times=3,
    changes=3,
    coordinators=3,
    grows=1,
    losses=3,
    assignor="range",
)

GATEWAY_JOBS = (
    GatewayJob(TAKEOVERS, quick=True),
    GatewayJob(EPOCHS, quick=True),
    GatewayJob(WINDOWS, quick=True),
    GatewayJob(LONG),
    GatewayJob(THREE_EPOCHS),
    GatewayJob(COMMITS, quick=True, quick_states_max=4_000),
    GatewayJob(MORE_COMMITS, states_max=200_000),
    GatewayJob(MANY_COMMITS, walks=500),
    GatewayJob(CHANGES, quick=True, quick_states_max=2_000),
    GatewayJob(STATIC, quick=True, quick_states_max=2_000),
    GatewayJob(COORDINATORS, quick=True, quick_states_max=2_000),
    GatewayJob(THREE, walks=200),
    GatewayJob(SHARED, quick=True, quick_states_max=150),
    GatewayJob(SHARED_STATIC, quick=True, quick_states_max=150),
    GatewayJob(SHARED_ON, quick=True, quick_states_max=150),
    GatewayJob(SHARED_LOSES, quick=True, quick_states_max=150),
    GatewayJob(SHARED_BY_THREE, walks=200),
)

GATEWAY_CANARIES = (
    GatewayCanary("a snapshot that is too old", "producers", TAKEOVERS.with_defects(skips_after_snapshot=1)),
    GatewayCanary(
        "a repeat is answered before the first is durable", "lost", TAKEOVERS.with_defects(appends=AnswersEarly)
    ),
    GatewayCanary("epochs are not compared", "invariant", EPOCHS.with_defects(producers=WithoutEpochs)),
    GatewayCanary("a window of four", "refused", WINDOWS.with_defects(producers=WindowOfFour)),
    GatewayCanary(
        "state is kept of a batch that was refused", "producers", TAKEOVERS.with_defects(keeps_what_was_refused=True)
    ),
    GatewayCanary(
        "state is taken from a batch that is not in the log",
        "producers",
        TAKEOVERS.with_defects(snapshot_has_what_is_under_way=True),
    ),
    GatewayCanary("any first sequence is believed", "order", TAKEOVERS.with_defects(producers=BelievesEverySequence)),
    GatewayCanary(
        "offsets go on behind what the old leader handed over",
        "offsets",
        TAKEOVERS.with_defects(goes_on_behind_what_was_handed_over=True),
    ),
    GatewayCanary("an older offset is restated behind a newer one", "gone back", COMMITS.broken(RestatesWhatIsSeen)),
    GatewayCanary("a group under way is not restated", "gone back", COMMITS.broken(ForgetsWhatIsUnderWay)),
    GatewayCanary("a commit is shown before it is durable", "gone back", COMMITS.broken(ShowsEarly)),
    GatewayCanary("the log is truncated before all is restated", "gone back", COMMITS.broken(truncates_early=True)),
    GatewayCanary("generations are not compared", "stale commit", STATIC.broken(GenerationsNotCompared)),
    GatewayCanary("a leader shares twice", "two owners", CHANGES.broken(SharesTwice)),
    GatewayCanary("assignments are given out early", "two owners", COORDINATORS.broken(GivesOutEarly)),
    GatewayCanary("a new coordinator takes commits of strangers", "stale commit", COORDINATORS.broken(TakesStrangers)),
    GatewayCanary(
        "a commit is checked before, and handed over later", "stale commit", CHANGES.broken(hands_over_later=True)
    ),
    GatewayCanary("a group waits for members that do not join again", "waits for ever", CHANGES.broken(WaitsForAll)),
    GatewayCanary("a member's SyncGroup is forgotten", "waits for ever", CHANGES.broken(ForgetsWhoSyncs)),
    GatewayCanary("the epoch of a commit is not compared", "stale commit", SHARED.broken(EpochsNotCompared)),
    GatewayCanary("a partition is given to two members", "invariant", SHARED.broken(GivesToTwo)),
    GatewayCanary("a partition is taken back before it is given back", "two owners", SHARED.broken(TakesBackUnasked)),
    GatewayCanary(
        "what a member said before it was told counts afterwards", "two owners", SHARED_GROWS.broken(RemembersTooMuch)
    ),
    GatewayCanary(
        "what a member says on another connection counts", "two owners", SHARED_ONE_LOSS.broken(BelievesOnAnyConnection)
    ),
    GatewayCanary(
        "what is another member's may be committed",
        "stale commit",
        replace(SHARED_GROWS, slowly=2).broken(CommitsOfAll),
    ),
    GatewayCanary("a new coordinator knows the epoch alone", "stale commit", SHARED_ON.broken(forgets_members=True)),
    GatewayCanary("an epoch is told before it is durable", "epoch gone back", SHARED_ON.broken(answers_early=True)),
    GatewayCanary("members that are not heard of stay", "never shared", SHARED.broken(KeepsTheDead)),
)
