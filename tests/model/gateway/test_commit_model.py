"""The log of a coordinator in every order of events: no commit that was answered goes back by itself (rule K10)."""

import pytest
from model.engine.explorer import explore, walk
from model.gateway.commit_world import CommitWorld
from octavo.gateway.groups.commits import Commits, GroupRecord, Restating
from octavo.gateway.groups.entries import GroupEntry

STATES_MAX = 4_000

SMALL = CommitWorld("3 commits of 2 groups", commits=3, restatings=1, coordinators=1)
LARGE = CommitWorld("9 commits of 2 groups", commits=9, restatings=4, coordinators=3)


def test_no_commit_that_was_answered_goes_back() -> None:
    found = explore(SMALL, states_max=STATES_MAX)
    assert found.violation is None, str(found.violation)
    assert found.exhausted or found.states >= STATES_MAX


def test_long_ways_of_many_commits_break_no_promise() -> None:
    found = walk(LARGE, seed=1, walks=100, steps_max=60)
    assert found.violation is None, str(found.violation)
    assert found.states > 1_000


class RestatesWhatIsSeen(Commits):
    """Adds the acknowledged offsets of a group once more, behind newer ones that are under way."""

    def projected(self, group_id: str) -> GroupRecord | None:
        return self.find(group_id)


class ForgetsWhatIsUnderWay(Commits):
    """Restates the groups that can be seen, and no group whose first commit is under way."""

    def begin_restating(self) -> Restating:
        begun = super().begin_restating()
        return begun._replace(group_ids=tuple(self.records))


class ShowsEarly(Commits):
    """Shows, and so answers, what was handed over."""

    def hand_over(self, entry: GroupEntry, size: int) -> int:
        position = super().hand_over(entry, size)
        self._apply(entry)
        return position


@pytest.mark.parametrize(
    "world",
    [
        SMALL.broken(RestatesWhatIsSeen),
        SMALL.broken(ForgetsWhatIsUnderWay),
        SMALL.broken(ShowsEarly),
        SMALL.broken(truncates_early=True),
    ],
    ids=[
        "an older offset is restated behind a newer one",
        "a group under way is not restated",
        "a commit is shown before it is durable",
        "the log is truncated before all is restated",
    ],
)
def test_a_defect_breaks_a_promise(world: CommitWorld) -> None:
    found = explore(world, states_max=15_000)
    assert found.violation is not None
    assert found.violation.what.startswith("gone back"), str(found.violation)
