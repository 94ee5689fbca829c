"""The history of topics and groups finds what must never happen, and takes what may."""

import contextlib
from typing import Any

import pytest
from support.kafka.history import (
    NO_OFFSET,
    BrokenHistoryError,
    CommitHistory,
    GroupHistory,
    Message,
    PartitionHistory,
    PartitionReader,
)

FIRST, SECOND, THIRD, OTHER = (Message("a", 0), Message("a", 1), Message("a", 2), Message("b", 0))


def breaks(rule: str, text: str) -> Any:
    return pytest.raises(BrokenHistoryError, match=rf"^{rule}: .*{text}")


@pytest.fixture
def partition() -> PartitionHistory:
    return PartitionHistory("partition 0")


def test_messages_of_several_producers_may_stand_in_any_order_beside_each_other(partition: PartitionHistory) -> None:
    partition.acknowledged(FIRST, 0)
    partition.read(SECOND, 2)
    partition.read(OTHER, 1)
    partition.acknowledged(OTHER, 1)
    assert (partition.end, partition.acknowledged_stop) == (3, 3)
    partition.check_whole({0: FIRST, 1: OTHER, 2: SECOND})


def test_offset_with_two_contents(partition: PartitionHistory) -> None:
    partition.acknowledged(FIRST, 0)
    with breaks("K2", "offset 0 has message 0 of b and message 0 of a"):
        partition.read(OTHER, 0)


def test_doubled_message(partition: PartitionHistory) -> None:
    partition.acknowledged(FIRST, 0)
    with breaks("K4", "message 0 of a has the offsets 0 and 1"):
        partition.read(FIRST, 1)


@pytest.mark.parametrize(("known", "told"), [((FIRST, 3), (SECOND, 1)), ((SECOND, 1), (FIRST, 3))])
def test_reordered_messages(partition: PartitionHistory, known: tuple[Message, int], told: tuple[Message, int]) -> None:
    partition.acknowledged(*known)
    with breaks("K4", "those beside it"):
        partition.acknowledged(*told)


def test_lost_message(partition: PartitionHistory) -> None:
    partition.acknowledged(FIRST, 0)
    partition.acknowledged(SECOND, 1)
    with breaks("K3", "message 1 of a had the offset 1 and is lost"):
        partition.check_whole({0: FIRST})


@pytest.mark.parametrize(
    ("found", "rule", "text"),
    [
        ({0: FIRST, 2: SECOND}, "K2", "offsets follow each other"),
        ({0: FIRST, 1: THIRD}, "K4", "message 2 of a is at 1 where message 1 of a must be"),
        ({0: SECOND}, "K4", "message 1 of a is at 0 where message 0 of a must be"),
        ({0: FIRST, 1: FIRST}, "K4", "message 0 of a is at 1 where message 1 of a must be"),
    ],
)
def test_whole_partition_is_a_prefix_of_what_each_producer_has_sent(
    partition: PartitionHistory, found: dict[int, Message], rule: str, text: str
) -> None:
    with breaks(rule, text):
        partition.check_whole(found)


@pytest.mark.parametrize(("end", "is_broken"), [(1, True), (2, False), (3, False)])
def test_end_that_lies_below_what_was_known(partition: PartitionHistory, end: int, is_broken: bool) -> None:
    partition.acknowledged(FIRST, 0)
    partition.read(SECOND, 1)
    with breaks("K3", "end at 1; 2 were known") if is_broken else contextlib.nullcontext():
        partition.told_end(end, partition.acknowledged_stop)


@pytest.mark.parametrize("offset", [0, 2])
def test_poll_that_skips_or_gives_a_message_again(partition: PartitionHistory, offset: int) -> None:
    reader = PartitionReader(partition)
    reader.polled(FIRST, 0)
    assert reader.position == 1
    with breaks("K7", f"got offset {offset} where 1 is next"):
        reader.polled(SECOND, offset)


def test_commit_that_goes_back_by_itself() -> None:
    commits = CommitHistory("group, partition 0")
    commits.told(NO_OFFSET, commits.known)
    commits.asked(3)
    commits.answered(3)
    commits.told(3, commits.known)
    with breaks("K10", "offset -1 is said to be committed; 3 was before"):
        commits.told(NO_OFFSET, commits.known)


def test_commit_without_an_answer_may_be_told_or_not_but_stays_once_it_was() -> None:
    commits = CommitHistory("group, partition 0")
    commits.asked(3)
    commits.told(NO_OFFSET, commits.known)
    commits.told(3, commits.known)
    with breaks("K10", "3 was before"):
        commits.told(NO_OFFSET, commits.known)


def test_answer_that_was_asked_for_before_a_commit_may_be_older() -> None:
    commits = CommitHistory("group, partition 0")
    known_when_asked = commits.known
    commits.asked(3)
    commits.answered(3)
    commits.told(NO_OFFSET, known_when_asked)
    assert commits.known == 3


def test_offset_that_no_member_has_committed() -> None:
    with breaks("K10", "no member has committed offset 5"):
        CommitHistory("group, partition 0").told(5, NO_OFFSET)


def test_two_owners_of_a_partition_in_one_generation() -> None:
    group = GroupHistory("g", 2)
    group.given("one", 1, [0])
    group.given("two", 1, [1])
    group.given("two", 2, [0])
    group.given("one", 1, [0])
    with breaks("K11", "generation 1: one and two own partition 0"):
        group.given("two", 1, [0])


@pytest.mark.parametrize(("sent_before", "is_broken"), [(True, False), (False, True)])
def test_commit_of_a_generation_that_is_over_must_not_land_unless_it_was_sent_before(
    sent_before: bool, is_broken: bool
) -> None:
    group = GroupHistory("g", 1)
    group.given("one", 1, [0])
    if sent_before:
        commit = group.commits_now("one", 1, {0: 4})
        group.given("two", 2, [0])
    else:
        group.given("two", 2, [0])
        commit = group.commits_now("one", 1, {0: 4})
    with breaks("K10", "generation 2 had been given out") if is_broken else contextlib.nullcontext():
        group.committed(commit)
        group.found(0, 4, 4)
