"""A group of the consumer protocol: heartbeats, epochs, partitions that are given back, and commits (rule K16)."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.groups.epoch_group import (
    GOES_AWAY,
    HEARTBEAT_MS,
    LEAVES,
    PLACES_MAX,
    SESSION_MS,
    TOPICS_MAX,
    WAITING_HEARTBEAT_MS,
    EpochBegun,
    EpochGroup,
    Heartbeat,
    MemberChanged,
    MemberRemoved,
    Told,
)
from octavo.gateway.groups.epoch_member import NO_PLACES, Places
from octavo.gateway.groups.group import MEMBERS_MAX
from octavo.gateway.groups.places import Place
from octavo.gateway.groups.sharing import TopicShape

REBALANCE_MS = 10_000


def at(*numbers: int, topic: str = "id-orders") -> Places:
    return frozenset(Place(topic, one) for one in numbers)


class Members:
    """A group, its topics and its clock. Each member is a letter, and says at each heartbeat what it was told last."""

    def __init__(self, **settings: Any) -> None:
        self.ids: Iterator[int] = count(1)
        self.group = EpochGroup("billing", lambda: f"made-{next(self.ids)}", **settings)
        self.topics = {"orders": TopicShape("id-orders", 4)}
        self.now_ms = 0
        self.told: dict[str, Told] = {}
        self.has: dict[str, Places] = {}

    def heartbeat(self, member_id: str, epoch: int, **fields: Any) -> Told:
        told = self.group.heartbeat(Heartbeat(member_id, epoch, **fields), self.topics.get, self.now_ms)
        self.group.check_invariants()
        if epoch >= 0:
            self.told[member_id] = told
            if told.assigned is not None:
                self.has[member_id] = told.assigned
        return told

    def join(self, member_id: str, **fields: Any) -> Told:
        asked = {"rebalance_ms": REBALANCE_MS, "topics": ("orders",), "owned": frozenset()}
        return self.heartbeat(member_id, 0, **asked | fields)

    def hear(self, member_id: str, **fields: Any) -> Told:
        asked = {"owned": self.has[member_id]}
        return self.heartbeat(member_id, self.told[member_id].epoch, **asked | fields)

    def later(self, ms: int) -> None:
        self.now_ms += ms
        self.group.pass_time(self.topics.get, self.now_ms)
        self.group.check_invariants()

    def refuses(self, code: Code, member_id: str, epoch: int, **fields: Any) -> None:
        before = self.group.epoch, dict(self.group.members)
        with pytest.raises(RefusedError) as refused:
            self.heartbeat(member_id, epoch, **fields)
        assert refused.value.code is code
        assert (self.group.epoch, dict(self.group.members)) == before

    def commits(self, member_id: str, epoch: int, instance_id: str | None = None, places: Places = NO_PLACES) -> Code:
        try:
            self.group.check_sender(member_id, instance_id, epoch, places)
        except RefusedError as error:
            return error.code
        return Code.NONE


@pytest.fixture
def members() -> Members:
    return Members()


def pair(members: Members) -> None:
    """Two members that have their shares: a has 0 and 1 or so, b the others."""
    members.join("a")
    members.join("b")
    members.hear("a")
    members.hear("a")
    members.hear("b")
    assert members.group.state == "Stable"


# --- epochs and partitions --------------------------------------------------------------------------------------------


def test_the_first_member_gets_everything_in_the_first_epoch(members: Members) -> None:
    assert members.group.state == "Empty"
    assert members.join("a") == Told("a", 1, HEARTBEAT_MS, at(0, 1, 2, 3))
    assert members.group.state == "Stable"
    (member,) = members.group.members.values()
    assert members.group.take_changes() == (EpochBegun(1), MemberChanged(member))
    assert members.hear("a") == Told("a", 1, HEARTBEAT_MS)
    assert members.group.take_changes() == (), "nothing has changed"


def test_a_partition_is_given_back_before_another_member_gets_it(members: Members) -> None:
    members.join("a")
    assert members.join("b") == Told("b", 2, WAITING_HEARTBEAT_MS, at())
    told = members.hear("a")
    assert (told.epoch, told.assigned) == (1, at(0, 1)), "in its epoch it can still commit"
    assert members.commits("a", 1) is Code.NONE
    assert members.group.state == "Reconciling"
    assert members.hear("a", owned=at(0, 1, 2)) == Told("a", 1, HEARTBEAT_MS), "it has not given back all"
    assert members.hear("a", owned=None) == Told("a", 1, HEARTBEAT_MS)
    assert members.hear("b").assigned is None
    assert members.hear("a") == Told("a", 2, HEARTBEAT_MS)
    assert members.hear("b") == Told("b", 2, HEARTBEAT_MS, at(2, 3))
    assert members.group.state == "Stable"


def test_a_member_keeps_its_partitions_while_others_come_and_go(members: Members) -> None:
    pair(members)
    members.heartbeat("b", LEAVES)
    assert members.hear("a").assigned == at(0, 1, 2, 3)
    members.join("c")
    assert members.hear("a").assigned == at(0, 1)


def test_a_member_that_is_told_to_give_back_gets_it_again_only_after_that(members: Members) -> None:
    members.join("a")
    members.join("b")
    members.hear("a")
    members.heartbeat("b", LEAVES)
    assert members.hear("a", owned=at(0, 1, 2, 3)) == Told("a", 1, HEARTBEAT_MS), "it may have begun to give back"
    assert members.hear("a", owned=at(0, 1)).assigned == at(0, 1, 2, 3)


def test_an_answer_that_was_lost_is_given_again(members: Members) -> None:
    pair(members)
    members.heartbeat("b", LEAVES)
    assert members.hear("a").epoch == 3
    again = {"rebalance_ms": REBALANCE_MS, "topics": ("orders",)}
    assert members.heartbeat("a", 2, owned=at(0, 1), **again) == Told("a", 3, HEARTBEAT_MS, at(0, 1, 2, 3))
    assert members.heartbeat("a", 2, owned=at(0, 1)).assigned == at(0, 1, 2, 3)
    members.refuses(Code.FENCED_MEMBER_EPOCH, "a", 2, owned=None)
    members.refuses(Code.FENCED_MEMBER_EPOCH, "a", 2, owned=at(9))
    members.refuses(Code.FENCED_MEMBER_EPOCH, "a", 1, owned=at(0, 1))
    members.refuses(Code.FENCED_MEMBER_EPOCH, "a", 4, owned=at(0, 1))


def test_a_member_that_says_everything_is_told_everything(members: Members) -> None:
    members.join("a")
    full = {"rebalance_ms": REBALANCE_MS, "topics": ("orders",)}
    assert members.hear("a", **full).assigned == at(0, 1, 2, 3)
    assert members.group.epoch == 1, "nothing has changed"


def test_a_join_whose_answer_was_lost_is_repeated(members: Members) -> None:
    members.join("a")
    assert members.join("a") == Told("a", 1, HEARTBEAT_MS, at(0, 1, 2, 3))
    assert list(members.group.members) == ["a"]


def test_a_member_that_joins_again_has_nothing(members: Members) -> None:
    members.join("a")
    members.join("b")
    members.hear("a")
    assert members.join("a").assigned == at(0, 1)
    assert members.hear("b").assigned == at(2, 3), "they were free at once"


def test_members_without_an_id_are_given_one(members: Members) -> None:
    assert members.join("").member_id == "made-1"


def test_a_member_that_may_not_have_heard_gives_nothing_back(members: Members) -> None:
    """It may be about to take what it was told before: what it says counts behind an answer on its connection."""
    members.join("a", way="first")
    members.join("b")
    assert members.hear("a", owned=at(), way="first").assigned == at(0, 1), "it has not taken anything yet"
    assert members.hear("b").assigned is None
    members.hear("a", owned=at(0, 1, 2), way="second")
    assert members.hear("b").assigned is None
    members.hear("a", owned=at(0, 1), way="second")
    assert members.hear("b").assigned == at(2, 3)


@pytest.mark.parametrize("owned", [None, at(), at(0, 1)])
def test_a_member_that_gives_back_and_comes_on_another_connection_without_them_begins_again(
    members: Members, owned: Places | None
) -> None:
    """Whether it has given them back, or is about to take them, it would say the same."""
    members.join("a", way="first")
    members.join("b")
    assert members.hear("a", way="first").assigned == at(0, 1)
    members.refuses(Code.FENCED_MEMBER_EPOCH, "a", 1, owned=owned, way="second")
    assert members.hear("b").assigned is None
    assert members.join("a", way="second").assigned == at(0, 1)
    assert members.hear("b").assigned == at(2, 3)


def test_a_member_that_says_nothing_new_has_what_it_said_last(members: Members) -> None:
    members.join("a")
    members.join("b")
    assert members.hear("a").assigned == at(0, 1)
    members.hear("a", owned=at(0, 1, 2))
    assert members.hear("a", owned=None).epoch == 1
    assert members.hear("b").assigned is None
    assert members.hear("a", owned=at(0, 1)).epoch == 2
    assert members.hear("b").assigned == at(2, 3)


def test_what_a_member_said_before_it_was_told_to_give_back_gives_nothing_back(members: Members) -> None:
    """Its consumer may take long to begin, and has said truthfully that it has nothing yet."""
    members.join("a")
    members.hear("a", owned=at())
    members.join("b")
    assert members.hear("a", owned=None).assigned == at(0, 1)
    for _ in range(3):
        assert members.hear("a", owned=None).epoch == 1
        assert members.hear("b").assigned is None, "a may take 2 and 3 at any time, and commit"
    members.hear("a", owned=at(0, 1, 2, 3))
    assert members.hear("b").assigned is None
    members.hear("a", owned=at(0, 1))
    assert members.hear("b").assigned == at(2, 3)


def test_what_comes_late_on_an_older_connection_gives_nothing_back(members: Members) -> None:
    members.join("a", way="older")
    members.hear("a", way="newer")
    members.join("b")
    assert members.hear("a", way="newer").assigned == at(0, 1)
    # It was sent before the member had anything.
    members.refuses(Code.FENCED_MEMBER_EPOCH, "a", 1, owned=at(), way="older")
    assert members.hear("a", owned=None, way="newer").epoch == 1
    assert members.hear("b").assigned is None
    members.hear("a", owned=at(0, 1), way="newer")
    assert members.hear("b").assigned == at(2, 3)


def test_a_member_that_is_heard_of_elsewhere_is_told_what_it_may_have(members: Members) -> None:
    members.join("a", way="first")
    assert members.hear("a", way="first").assigned is None
    assert members.hear("a", owned=None, way="second").assigned == at(0, 1, 2, 3)


def test_a_member_does_not_take_the_place_of_another_one_besides_its_own(members: Members) -> None:
    members.join("y", instance_id="one")
    members.heartbeat("y", GOES_AWAY, instance_id="one")
    members.join("x")
    for instance_id in ("one", "two"):
        asked = {"rebalance_ms": REBALANCE_MS, "topics": ("orders",), "owned": at()}
        members.refuses(Code.FENCED_INSTANCE_ID, "x", 0, instance_id=instance_id, **asked)
    members.later(SESSION_MS - 1)
    members.hear("x")
    members.later(1)
    assert list(members.group.members) == ["x"]
    assert members.hear("x").assigned == at(0, 1, 2, 3)


def test_a_heartbeat_for_which_there_is_no_memory_changes_nothing(members: Members) -> None:
    asked: list[int] = []

    def refuse(more: int) -> None:
        asked.append(more)
        raise RefusedError(Code.GROUP_MAX_SIZE_REACHED, "no memory")

    def heartbeat(epoch: int, **fields: Any) -> Told:
        said = Heartbeat("a", epoch, rebalance_ms=REBALANCE_MS, owned=at(), **fields)
        return members.group.heartbeat(said, members.topics.get, 0, refuse)

    for fields in ({"topics": ()}, {"topics": (), "pattern": ".*", "matching": lambda _: ("orders",) * 1000}):
        with pytest.raises(RefusedError):
            heartbeat(0, **fields)
        assert (dict(members.group.members), members.group.epoch) == ({}, 0)
    assert asked[0] >= 1000, "a member that says nothing of itself takes memory, too"
    assert asked[1] > asked[0] + 60_000, "and so do the names that its pattern matches"
    epoch = members.join("a").epoch
    assert heartbeat(epoch, topics=("orders",)).epoch == epoch, "it takes no more than it did"
    with pytest.raises(RefusedError):
        heartbeat(epoch, topics=("orders", "payments"))
    assert members.group.members["a"].topics == ("orders",)


# --- members that go --------------------------------------------------------------------------------------------------


def test_a_member_that_is_not_heard_of_is_removed_and_told_so(members: Members) -> None:
    pair(members)
    members.later(SESSION_MS - 1)
    members.hear("b")
    members.group.take_changes()
    members.later(1)
    assert members.group.take_changes() == (EpochBegun(3), MemberRemoved("a"))
    assert members.commits("a", 2) is Code.UNKNOWN_MEMBER_ID
    members.refuses(Code.UNKNOWN_MEMBER_ID, "a", 2, owned=at(0, 1))
    members.refuses(Code.UNKNOWN_MEMBER_ID, "a", LEAVES)
    assert members.hear("b").assigned == at(0, 1, 2, 3)


def test_a_member_that_gives_nothing_back_is_removed(members: Members) -> None:
    members.join("a")
    members.join("b")
    for _ in range(2):
        members.hear("a", owned=at(0, 1, 2, 3))
        members.hear("b")
        members.later(REBALANCE_MS // 2)
    assert list(members.group.members) == ["b"]
    assert members.hear("b").assigned == at(0, 1, 2, 3)


def test_a_member_that_gives_back_in_time_stays(members: Members) -> None:
    members.join("a")
    members.join("b")
    members.hear("a")
    members.later(REBALANCE_MS - 1)
    members.hear("a")
    members.later(1)
    assert sorted(members.group.members) == ["a", "b"]


def test_a_group_that_all_have_left_is_empty_and_goes_on_in_a_later_epoch(members: Members) -> None:
    pair(members)
    members.heartbeat("a", LEAVES)
    members.heartbeat("b", LEAVES)
    assert (members.group.state, members.group.epoch, members.group.bytes_held) == ("Empty", 4, 0)
    assert members.group.next_deadline_ms() is None
    assert members.join("a").epoch == 5


# --- static members ---------------------------------------------------------------------------------------------------


def test_a_static_member_keeps_its_partitions_when_its_process_begins_again(members: Members) -> None:
    members.join("a", instance_id="one")
    members.join("b")
    members.hear("a")
    members.hear("a")
    members.hear("b")
    epoch = members.group.epoch
    assert members.heartbeat("a", GOES_AWAY, instance_id="one") == Told("a", GOES_AWAY)
    assert members.commits("a", epoch) is Code.STALE_MEMBER_EPOCH
    members.refuses(Code.FENCED_MEMBER_EPOCH, "a", epoch, owned=at(0, 1))
    assert members.hear("b").epoch == epoch, "nothing is shared anew"
    members.group.take_changes()
    assert members.join("c", instance_id="one") == Told("c", epoch, HEARTBEAT_MS, at(0, 1))
    assert members.group.take_changes() == (MemberRemoved("a"), MemberChanged(members.group.members["c"]))
    members.refuses(Code.FENCED_INSTANCE_ID, "a", epoch, instance_id="one")
    assert members.commits("a", epoch, "one") is Code.FENCED_INSTANCE_ID
    members.refuses(Code.UNKNOWN_MEMBER_ID, "a", epoch)


def test_a_static_member_that_stays_away_is_removed(members: Members) -> None:
    members.join("a", instance_id="one")
    members.join("b")
    members.hear("a")
    members.heartbeat("a", GOES_AWAY, instance_id="one")
    members.later(SESSION_MS - 1)
    members.hear("b")
    assert sorted(members.group.members) == ["a", "b"]
    members.later(1)
    assert list(members.group.members) == ["b"]


def test_two_members_do_not_have_one_instance_id(members: Members) -> None:
    members.join("a", instance_id="one")
    asked = {"rebalance_ms": 1, "topics": ("orders",)}
    members.refuses(Code.UNRELEASED_INSTANCE_ID, "b", 0, instance_id="one", **asked)
    members.refuses(Code.FENCED_INSTANCE_ID, "a", 0, instance_id="two", **asked)
    members.join("b")
    members.refuses(Code.INVALID_REQUEST, "b", GOES_AWAY)


# --- topics and ways of sharing ---------------------------------------------------------------------------------------


def test_topics_that_grow_come_and_go_are_shared_anew(members: Members) -> None:
    members.join("a", topics=("orders", "payments"))
    members.topics["orders"] = TopicShape("id-orders", 5)
    members.later(1)
    assert members.hear("a").assigned == at(0, 1, 2, 3, 4)
    members.topics["payments"] = TopicShape("id-payments", 1)
    assert members.hear("a").assigned == at(0, 1, 2, 3, 4) | at(0, topic="id-payments")
    del members.topics["orders"]
    assert members.hear("a").assigned == at(0, topic="id-payments")
    members.topics["orders"] = TopicShape("id-newer", 1)
    assert members.hear("a").assigned == at(0, topic="id-newer") | at(0, topic="id-payments")


def test_a_member_that_subscribes_to_something_else_gives_the_rest_back(members: Members) -> None:
    members.topics["payments"] = TopicShape("id-payments", 1)
    members.join("a")
    assert members.hear("a", topics=("payments",)).assigned == at()
    assert members.hear("a").assigned == at(0, topic="id-payments")
    assert members.group.epoch == 2


def test_a_pattern_stands_for_the_topics_that_it_matches_now(members: Members) -> None:
    members.topics = {"orders": TopicShape("id-orders", 1), "other": TopicShape("id-other", 1)}

    def matching(pattern: str) -> tuple[str, ...]:
        assert pattern == "o.*"
        return tuple(sorted(members.topics))

    members.join("a", topics=None, pattern="o.*", matching=matching)
    assert members.has["a"] == at(0) | at(0, topic="id-other")
    members.topics["office"] = TopicShape("id-office", 1)
    assert members.hear("a", matching=matching).assigned == at(0) | at(0, topic="id-other") | at(0, topic="id-office")
    assert members.hear("a", pattern="", topics=("orders",)).assigned == at(0)


def test_the_way_of_sharing_is_that_for_which_most_members_ask(members: Members) -> None:
    members.join("a", assignor="range")
    assert members.group.assignor == "range"
    members.join("b")
    assert members.group.assignor == "range"
    members.join("c", assignor="uniform")
    members.join("d", assignor="uniform")
    assert members.group.assignor == "uniform"
    members.refuses(Code.UNSUPPORTED_ASSIGNOR, "a", 1, assignor="mine")


# --- a new coordinator ------------------------------------------------------------------------------------------------


def test_a_new_coordinator_goes_on_with_the_same_owners_in_a_later_epoch(members: Members) -> None:
    pair(members)
    members.join("c")
    members.hear("a")
    after = Members(epoch=members.group.epoch, members=members.group.members.values(), now_ms=members.now_ms)
    after.told, after.has = members.told, members.has
    assert after.group.take_changes() == ()
    after.later(0)
    assert after.group.epoch == members.group.epoch + 1
    assert after.hear("a").epoch == after.group.epoch
    assert after.has["a"] == members.has["a"], "what stays with it goes on"
    assert after.commits("b", members.told["b"].epoch) is Code.NONE
    after.later(SESSION_MS)
    assert not after.group.members


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (Code.INVALID_REQUEST, {"epoch": -3}),
        (Code.INVALID_REQUEST, {"epoch": 0}),
        (Code.INVALID_REQUEST, {"epoch": 0, "rebalance_ms": 1}),
        (Code.INVALID_REQUEST, {"epoch": 0, "rebalance_ms": 1, "topics": (), "owned": at(0)}),
        (Code.INVALID_REQUEST, {"epoch": 1, "member_id": ""}),
        (Code.INVALID_REQUEST, {"epoch": 0, "member_id": "m" * 256}),
        (Code.INVALID_REQUEST, {"epoch": 0, "instance_id": ""}),
        (Code.INVALID_REQUEST, {"epoch": 0, "pattern": "p" * 256}),
        (Code.INVALID_REQUEST, {"epoch": 0, "topics": ("t",) * (TOPICS_MAX + 1)}),
        (Code.INVALID_REQUEST, {"epoch": 1, "owned": at(*range(PLACES_MAX + 1))}),
        (Code.INVALID_TOPIC_EXCEPTION, {"epoch": 0, "topics": ("ä",)}),
        (Code.INVALID_TOPIC_EXCEPTION, {"epoch": 0, "topics": ("t" * 256,)}),
        (Code.UNKNOWN_MEMBER_ID, {"epoch": 1}),
    ],
)
def test_what_no_member_may_say_is_refused(members: Members, code: Code, fields: dict[str, Any]) -> None:
    members.refuses(code, **{"member_id": "a", **fields})


def test_a_group_has_so_many_members_and_no_more(members: Members) -> None:
    for number in range(MEMBERS_MAX):
        members.group.heartbeat(Heartbeat(f"m{number}", 0, rebalance_ms=1, topics=()), members.topics.get, 0)
    asked = {"rebalance_ms": 1, "topics": ()}
    members.refuses(Code.GROUP_MAX_SIZE_REACHED, "one more", 0, **asked)
    assert members.heartbeat("m7", 0, **asked).interval_ms == 5 * MEMBERS_MAX


def test_a_member_commits_no_partition_of_another_one(members: Members) -> None:
    """It may have begun slowly, and read what was another member's by then."""
    pair(members)
    assert members.commits("a", 2, places=at(0, 1)) is Code.NONE
    assert members.commits("a", 2, places=at(0, 1, topic="id-others")) is Code.NONE, "of no member"
    assert members.commits("a", 2, places=at(1, 2)) is Code.STALE_MEMBER_EPOCH
    members.heartbeat("b", LEAVES)
    assert members.commits("a", 2, places=at(1, 2)) is Code.NONE, "it may be handed on"


def test_commits_of_others_are_refused(members: Members) -> None:
    pair(members)
    assert members.commits("a", 2) is Code.NONE
    assert members.commits("a", 1) is Code.STALE_MEMBER_EPOCH
    assert members.commits("a", 3) is Code.STALE_MEMBER_EPOCH
    assert members.commits("", -1) is Code.UNKNOWN_MEMBER_ID
    assert members.commits("c", 2) is Code.UNKNOWN_MEMBER_ID
