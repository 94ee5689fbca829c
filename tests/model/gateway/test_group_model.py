"""A consumer group in every order of events: no stale commit lands, no partition has two owners (rule K11)."""

import pytest
from model.engine.explorer import explore, walk
from model.gateway.group_world import GroupWorld
from octavo.gateway.groups.group import Group, GroupState
from octavo.gateway.groups.member import Member, Syncing, Token

STATES_MAX = 3_000

CHANGES = GroupWorld("2 consumers, 2 of whom leave or begin again", (None, None), times=1, changes=2)
STATIC = GroupWorld("2 static consumers", ("a", "b"), times=1, changes=0)
COORDINATORS = GroupWorld("2 consumers, 2 coordinators", (None, None), times=1, changes=1, coordinators=1)
LARGE = GroupWorld("3 consumers", (None, "b", None), times=3, changes=3, coordinators=2)


class GenerationsNotCompared(Group):
    """Takes what a member sends for a request of the present generation."""

    def _checked(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        return super()._checked(member_id, instance_id, self.generation)


class SharesTwice(Group):
    """Takes a second SyncGroup of the leader for a better one."""

    def sync(self, asked: Syncing, token: Token, now_ms: int) -> None:
        if self.state is GroupState.STABLE and asked.assignments and asked.generation == self.generation:
            for member in self.members.values():
                member.assignment = asked.assignments.get(member.member_id, b"")
        super().sync(asked, token, now_ms)


class GivesOutEarly(Group):
    """Gives assignments out before the generation is durable."""

    def sync(self, asked: Syncing, token: Token, now_ms: int) -> None:
        super().sync(asked, token, now_ms)
        self.stored(self.generation, now_ms)


@pytest.mark.parametrize("world", [CHANGES, STATIC, COORDINATORS], ids=lambda world: world.name)
def test_no_stale_commit_lands_and_no_partition_has_two_owners(world: GroupWorld) -> None:
    found = explore(world, states_max=STATES_MAX)
    assert found.violation is None, str(found.violation)
    assert found.exhausted or found.states >= STATES_MAX


def test_long_ways_of_a_larger_group_break_no_promise() -> None:
    found = walk(LARGE, seed=1, walks=60, steps_max=60)
    assert found.violation is None, str(found.violation)
    assert found.states > 1_000


class TakesStrangers(Group):
    """Takes commits without a generation at once after it has begun."""

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> None:
        if generation >= 0 or self.members:
            super().check_commit(member_id, instance_id, generation, now_ms)


@pytest.mark.parametrize(
    ("world", "promise"),
    [
        (STATIC.broken(GenerationsNotCompared), "stale commit"),
        (CHANGES.broken(SharesTwice), "two owners"),
        (COORDINATORS.broken(GivesOutEarly), "two owners"),
        (COORDINATORS.broken(TakesStrangers), "stale commit"),
        (CHANGES.broken(hands_over_later=True), "stale commit"),
    ],
    ids=[
        "generations are not compared",
        "a leader shares twice",
        "assignments are given out early",
        "a new coordinator takes commits of strangers",
        "a commit is checked before, and handed over later",
    ],
)
def test_a_defect_breaks_a_promise(world: GroupWorld, promise: str) -> None:
    found = explore(world, states_max=15_000)
    assert found.violation is not None
    assert found.violation.what.startswith(promise), str(found.violation)
