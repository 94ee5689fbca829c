"""The settings of unbounded ledgers as they were published: each defect alone, and none of them with every mend.

A *defect* is found with every other mend in place, so that its trace has one cause. The letters are those of
docs/model.md.
"""

from dataclasses import dataclass, replace

from model.engine.explorer import Exploration, explore
from model.published.machines import MENDED, PUBLISHED
from model.published.world import Published


@dataclass(frozen=True)
class Defect:
    """Something that the article, its specification or its first version gets wrong."""

    name: str
    promise: str
    """What the violation begins with."""
    setting: Published
    mend: Published | None
    """The same with the defect mended; None if nothing mends it."""
    quick: bool = True
    """Whether `make test` looks for it. The trace in docs/model.md is played there in any case."""

    def find(self) -> Exploration:
        """The shortest way to it."""
        return explore(self.setting)


def _defect(name: str, promise: str, setting: Published, *, quick: bool = True, **without: bool) -> Defect:
    """The defect of the mended protocol without some of its rules."""
    broken = replace(setting, name=name, rules=replace(MENDED, **without))
    return Defect(name, promise, broken, setting if without else None, quick)


def _setting(values: tuple[tuple[str, ...], ...], **given: object) -> Published:
    return Published("", MENDED, values, **given)  # type: ignore[arg-type]  # passed on as it is


DEFECTS: tuple[Defect, ...] = (
    _defect(
        "X1: ids shared, and no truncate",
        "log divergence",
        _setting((("A",), ("P", "Q")), losses=1),
        truncates=False,
    ),
    _defect(
        "truncate on the ack quorum only",
        "log divergence",
        _setting((("A", "B"), ("P", "Q")), losses=2, left_behind=((2,), (2,))),
        truncates_everywhere=False,
    ),
    _defect("X2: the truncate blocks when a bookie hangs", "no progress", _setting(((), ()), hung=1)),
    _defect(
        "a: a recovery that starts above 0 never ends",
        "no progress",
        _setting((("A", "B"), ()), left_behind=((0, 1, 2), (0, 1, 2)), left_lafr=0),
        prefix_from_start=False,
    ),
    _defect("b: the LAFR jumps to the LAC", "write quorum", _setting((("A", "B"),)), lafr_from_lafr=False),
    _defect(
        "f: a pinned bookie stops the LAFR", "no progress", _setting((("A", "B"),), losses=1, spares=1), retries=False
    ),
    _defect(
        "live LAC in recovery writes",
        "dirty read",
        _setting((("A",), ()), spares=1, losses=1, left_behind=((2,),)),
        recovery_lac_is_frozen=False,
    ),
    _defect(
        "l: a truncate that comes late",
        "acknowledged entry lost",
        _setting(((), ("P",)), repeats=1),
        truncates_once=False,
    ),
    _defect(
        "l, once more: a truncate that comes after a join",
        "acknowledged entry lost",
        _setting(((), ("P",)), spares=1, losses=2, repeats=1),
        joined_has_truncated=False,
    ),
    _defect(
        "j: a bookie is swapped in with entries of an old term",
        "log divergence",
        _setting((("A", "B", "C"), ("P", "Q")), spares=1, losses=2, left_behind=((2,), (2,), (2,))),
        quick=False,
        joins=False,
    ),
)


@dataclass(frozen=True)
class PublishedJob:
    """The protocol with every mend, in one setting."""

    name: str
    setting: Published
    quick: bool = False
    states_max: int = 500_000

    def run(self) -> Exploration:
        """Explore it."""
        return explore(self.setting, states_max=self.states_max)


def _job(name: str, setting: Published, *, quick: bool = False) -> PublishedJob:
    return PublishedJob(f"published, mended: {name}", replace(setting, name=name), quick)


PUBLISHED_JOBS: tuple[PublishedJob, ...] = (
    _job("writer of 1 entry, 1 takeover of 1; 1 loss", _setting((("A",), ("P",)), losses=1), quick=True),
    _job(
        "writer of 1 entry, 1 takeover of 1; 1 spare, 1 loss",
        _setting((("A",), ("P",)), losses=1, spares=1),
        quick=True,
    ),
    _job("writer of 1 entry, 2 takeovers of 1", _setting((("A",), ("P",), ("X",)))),
    _job(
        "writer of 2 entries, 1 takeover of 2; 1 loss, 1 repeat",
        _setting((("A", "B"), ("P", "Q")), losses=1, repeats=1),
    ),
    _job(
        "1 takeover of 2 after a writer of 1; 1 spare, 2 losses, 1 repeat",
        _setting((("A",), ("P", "Q")), losses=2, repeats=1, spares=1, left_behind=((2,),)),
    ),
    _job(
        "1 takeover of 2 after a writer of 3; 1 spare, 2 losses",
        _setting((("A", "B", "C"), ("P", "Q")), spares=1, losses=2, left_behind=((2,), (2,), (2,))),
    ),
)

AS_PUBLISHED = Published("as published", PUBLISHED, (("A",), ("P", "Q")), losses=1)
"""Nothing mended: the first promise that breaks is that of defect (b), in a recovery."""
