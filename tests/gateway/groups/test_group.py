"""A consumer group of the classic protocol, request by request (rule K11)."""

from collections.abc import Iterator
from itertools import count

import pytest
from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.groups.group import (
    MEMBERS_MAX,
    NO_GENERATION,
    SESSION_MS_MAX,
    SESSION_MS_MIN,
    Generation,
    Group,
    GroupState,
    Joined,
    Synced,
)
from octavo.gateway.groups.member import Joining, Protocol, Syncing, Token

SESSION_MS, REBALANCE_MS = 10_000, 30_000
RANGE, ROUND = Protocol("range", b"r"), Protocol("roundrobin", b"o")


class Members:
    """A group, and requests of its members by short names."""

    def __init__(self, *, generation: int = 0, strangers_from_ms: int = 0) -> None:
        ids: Iterator[int] = count(1)
        self.group = Group("group", lambda: f"m{next(ids)}", generation=generation, strangers_from_ms=strangers_from_ms)
        self.now_ms = 0
        self.answers: dict[int, Joined | Synced] = {}
        self.stored: list[Generation] = []
        self._tokens = count(1)

    def take(self) -> None:
        output = self.group.take_output()
        self.answers |= {answer.token: answer.content for answer in output.answers}
        if output.generation is not None:
            self.stored.append(output.generation)
        self.group.check_invariants()

    def join(
        self, member_id: str = "", *, instance: str | None = None, protocols: tuple[Protocol, ...] = (RANGE,),
        session_ms: int = SESSION_MS, kind: str = "consumer", needs_id: bool = False,
    ) -> int:  # fmt: skip
        token = next(self._tokens)
        asked = Joining(member_id, instance, session_ms, REBALANCE_MS, kind, protocols, needs_id)
        self.group.join(asked, Token(token), self.now_ms)
        self.take()
        return token

    def sync(self, member_id: str, generation: int, *, instance: str | None = None, **assignments: bytes) -> int:
        token = next(self._tokens)
        self.group.sync(Syncing(member_id, instance, generation, assignments), Token(token), self.now_ms)
        self.take()
        return token

    def store(self) -> None:
        self.group.stored(self.stored[-1].number, self.now_ms)
        self.take()

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.group.pass_time(self.now_ms)
        self.take()

    def joined(self, token: int) -> Joined:
        answer = self.answers[token]
        assert isinstance(answer, Joined)
        return answer

    def synced(self, token: int) -> Synced:
        answer = self.answers[token]
        assert isinstance(answer, Synced)
        return answer

    def pair(self) -> None:
        """Members m1, the leader, and m2, in the stable generation 2."""
        self.join()
        self.join()
        self.join("m1")
        self.sync("m1", 2, m1=b"one", m2=b"two")
        self.store()


def refusal(act: object, *arguments: object) -> Code:
    with pytest.raises(RefusedError) as refused:
        act(*arguments)  # type: ignore[operator]
    return refused.value.code


def test_a_lone_member_leads_the_first_generation() -> None:
    one = Members()
    answer = one.joined(one.join())
    assert (answer.code, answer.generation, answer.protocol, answer.leader_id) == (Code.NONE, 1, "range", "m1")
    assert [(facts.member_id, facts.metadata) for facts in answer.members] == [("m1", b"r")]
    token = one.sync("m1", 1, m1=b"all")
    assert token not in one.answers, "not before the generation is durable"
    assert one.stored == [Generation(1, SESSION_MS)]
    one.store()
    assert one.synced(token) == Synced(Code.NONE, b"all")
    assert one.group.state is GroupState.STABLE


def test_a_member_that_asks_while_a_generation_is_being_stored_waits_for_that() -> None:
    one = Members()
    one.join()
    one.join()
    one.join("m1")
    one.sync("m1", 2, m1=b"one", m2=b"two")
    token = one.sync("m2", 2)
    assert token not in one.answers, "the next coordinator may not know of the generation"
    one.store()
    assert one.synced(token) == Synced(Code.NONE, b"two")


def test_a_second_member_begins_a_generation_that_waits_for_the_first() -> None:
    one = Members()
    one.join()
    one.sync("m1", 1, m1=b"all")
    one.store()
    second = one.join()
    assert second not in one.answers
    assert refusal(one.group.heartbeat, "m1", None, 1, one.now_ms) is Code.REBALANCE_IN_PROGRESS
    first = one.join("m1")
    assert one.joined(first).generation == one.joined(second).generation == 2
    assert {facts.member_id for facts in one.joined(first).members} == {"m1", "m2"}
    assert one.joined(second).members == (), "only the leader is told of all"
    waiting = one.sync("m2", 2)
    leading = one.sync("m1", 2, m1=b"one", m2=b"two")
    one.store()
    assert (one.synced(leading).assignment, one.synced(waiting).assignment) == (b"one", b"two")
    assert one.synced(one.sync("m2", 2)).assignment == b"two", "asked once more"


def test_a_new_dynamic_member_gets_its_id_first() -> None:
    one = Members()
    told = one.joined(one.join(needs_id=True))
    assert (told.code, told.member_id) == (Code.MEMBER_ID_REQUIRED, "m1")
    assert one.joined(one.join("m1", needs_id=True)).code is Code.NONE
    assert one.joined(one.join("m1x")).code is Code.UNKNOWN_MEMBER_ID
    late = one.joined(one.join(needs_id=True)).member_id
    one.wait(SESSION_MS)
    assert one.joined(one.join(late)).code is Code.UNKNOWN_MEMBER_ID, "the id has expired"


def test_requests_of_older_generations_and_of_strangers_change_nothing() -> None:
    one = Members()
    one.pair()
    for generation, member, code in ((1, "m1", Code.ILLEGAL_GENERATION), (3, "m1", Code.ILLEGAL_GENERATION),
                                     (2, "m9", Code.UNKNOWN_MEMBER_ID)):  # fmt: skip
        assert refusal(one.group.heartbeat, member, None, generation, 0) is code
        assert refusal(one.group.check_commit, member, None, generation, 0) is code
        assert one.synced(one.sync(member, generation)).code is code
    one.group.check_commit("m2", None, 2, 0)
    one.group.heartbeat("m2", None, 2, 0)
    assert refusal(one.group.check_commit, "", None, NO_GENERATION, 0) is Code.UNKNOWN_MEMBER_ID
    assert refusal(one.group.leave, "m9", None, 0) is Code.UNKNOWN_MEMBER_ID


def test_commits_are_taken_in_generations_that_are_durable() -> None:
    one = Members()
    one.group.check_commit("", None, NO_GENERATION, 0)
    one.pair()
    third = one.join()
    one.group.check_commit("m1", None, 2, 0)  # before it joins again
    one.join("m1")
    one.join("m2")
    assert one.joined(third).generation == 3
    assert refusal(one.group.check_commit, "m1", None, 3, 0) is Code.REBALANCE_IN_PROGRESS
    one.sync("m1", 3, m1=b"", m2=b"", m3=b"")
    assert refusal(one.group.check_commit, "m1", None, 3, 0) is Code.REBALANCE_IN_PROGRESS
    one.store()
    one.group.check_commit("m1", None, 3, 0)


def test_a_member_that_is_not_heard_of_is_removed() -> None:
    one = Members()
    one.pair()
    one.wait(SESSION_MS - 1)
    one.group.heartbeat("m1", None, 2, one.now_ms)
    assert one.group.next_deadline_ms() == SESSION_MS
    one.wait(1)
    assert list(one.group.members) == ["m1"]
    assert refusal(one.group.heartbeat, "m2", None, 2, one.now_ms) is Code.UNKNOWN_MEMBER_ID
    assert one.joined(one.join("m1")).generation == 3
    one.wait(REBALANCE_MS)
    assert one.group.state is GroupState.EMPTY
    assert (one.group.generation, one.group.next_deadline_ms()) == (4, None)


def test_members_that_do_not_join_again_in_time_are_removed() -> None:
    one = Members()
    one.pair()
    third = one.join()
    for _ in range(4):
        one.group.pass_time(one.now_ms)
        for member in ("m1", "m2"):
            assert refusal(one.group.heartbeat, member, None, 2, one.now_ms) is Code.REBALANCE_IN_PROGRESS
        one.wait(REBALANCE_MS // 4)
    assert list(one.group.members) == ["m3"]
    assert one.joined(third).leader_id == "m3"


def test_a_leader_that_does_not_share_the_partitions_is_removed() -> None:
    one = Members()
    one.join()
    one.join()
    one.join("m1")
    waiting = one.sync("m2", 2)
    one.group.heartbeat("m1", None, 2, one.now_ms)
    for _ in range(6):
        one.wait(REBALANCE_MS // 6)
        if "m1" in one.group.members:
            one.group.heartbeat("m1", None, 2, one.now_ms)
    assert one.synced(waiting).code is Code.REBALANCE_IN_PROGRESS
    assert list(one.group.members) == ["m2"]


def test_a_member_that_leaves_begins_a_generation() -> None:
    one = Members()
    one.pair()
    one.group.leave("m1", None, 0)
    one.take()
    answer = one.joined(one.join("m2"))
    assert (answer.generation, answer.leader_id) == (3, "m2")
    one.group.leave("m2", None, 0)
    one.take()
    assert one.group.state is GroupState.EMPTY
    one.group.check_commit("", None, NO_GENERATION, 0)


def test_a_generation_that_is_over_when_it_is_durable_gives_nothing_out() -> None:
    one = Members()
    one.join()
    token = one.sync("m1", 1, m1=b"all")
    one.join()
    assert one.synced(token).code is Code.REBALANCE_IN_PROGRESS
    one.store()
    assert one.group.state is GroupState.PREPARING
    assert one.joined(one.join("m1")).generation == 2


def test_a_member_that_lost_its_answer_gets_it_again() -> None:
    one = Members()
    one.pair()
    assert one.joined(one.join("m2")).generation == 2, "nothing has changed"
    assert one.group.state is GroupState.STABLE
    first = one.join("m1")
    assert first not in one.answers, "the leader wants to share anew"
    again = one.join("m1")
    assert one.joined(first).code is Code.UNKNOWN_MEMBER_ID, "its newer request takes its place"
    one.join("m2")
    assert one.joined(again).generation == 3
    assert one.joined(one.join("m1")).members == one.joined(again).members, "the generation is not shared yet"


def test_a_member_that_changes_what_it_says_begins_a_generation() -> None:
    one = Members()
    one.pair()
    token = one.join("m2", protocols=(Protocol("range", b"other topics"),))
    assert token not in one.answers
    facts = one.joined(one.join("m1")).members
    assert [fact.metadata for fact in facts] == [b"r", b"other topics"]


def test_the_protocol_is_one_that_all_know() -> None:
    one = Members()
    one.join(protocols=(RANGE, ROUND))
    assert one.joined(one.join(protocols=(Protocol("sticky", b""),))).code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert one.joined(one.join(kind="connect")).code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert one.joined(one.join(protocols=())).code is Code.INCONSISTENT_GROUP_PROTOCOL
    one.join(protocols=(ROUND,))
    assert one.joined(one.join("m1", protocols=(RANGE, ROUND))).protocol == "roundrobin"


def test_sessions_and_members_have_bounds() -> None:
    one = Members()
    for session_ms in (SESSION_MS_MIN - 1, SESSION_MS_MAX + 1):
        assert one.joined(one.join(session_ms=session_ms)).code is Code.INVALID_SESSION_TIMEOUT
    for _ in range(MEMBERS_MAX):
        one.join(needs_id=True)
    assert one.joined(one.join()).code is Code.GROUP_MAX_SIZE_REACHED


def test_a_static_member_that_begins_again_keeps_its_place() -> None:
    one = Members()
    one.join(instance="a")
    one.join(instance="b")
    one.join("m1", instance="a")
    one.sync("m1", 2, instance="a", m1=b"one", m2=b"two")
    one.store()
    answer = one.joined(one.join(instance="b"))
    assert (answer.code, answer.generation, answer.member_id) == (Code.NONE, 2, "m3")
    assert one.synced(one.sync("m3", 2, instance="b")).assignment == b"two"
    assert refusal(one.group.heartbeat, "m2", "b", 2, 0) is Code.FENCED_INSTANCE_ID
    assert refusal(one.group.check_commit, "m2", "b", 2, 0) is Code.FENCED_INSTANCE_ID
    assert one.synced(one.sync("m2", 2, instance="b")).code is Code.FENCED_INSTANCE_ID
    assert one.joined(one.join("m2", instance="b")).code is Code.FENCED_INSTANCE_ID
    assert refusal(one.group.leave, "m2", "b", 0) is Code.FENCED_INSTANCE_ID
    one.group.leave("", "b", 0)
    one.take()
    assert list(one.group.members) == ["m1"]


def test_a_static_member_that_begins_again_before_the_partitions_are_shared_begins_a_generation() -> None:
    """The leader was told of its older id, and would share nothing with the new one."""
    one = Members()
    one.join(instance="a")
    one.join(instance="b")
    one.join("m1", instance="a")
    token = one.join(instance="b")
    assert token not in one.answers
    assert one.joined(one.join("m1", instance="a")).generation == one.joined(token).generation == 3


def test_a_static_leader_that_begins_again_leads_on() -> None:
    one = Members()
    one.join(instance="a")
    one.sync("m1", 1, instance="a", m1=b"all")
    one.store()
    answer = one.joined(one.join(instance="a"))
    assert (answer.generation, answer.leader_id, answer.member_id) == (2, "m2", "m2")


def test_a_new_coordinator_goes_on_behind_the_durable_generation() -> None:
    one = Members(generation=7, strangers_from_ms=SESSION_MS)
    assert refusal(one.group.check_commit, "", None, NO_GENERATION, SESSION_MS - 1) is Code.UNKNOWN_MEMBER_ID
    one.group.check_commit("", None, NO_GENERATION, SESSION_MS)
    assert refusal(one.group.check_commit, "m1", None, 7, 0) is Code.UNKNOWN_MEMBER_ID
    assert one.joined(one.join()).generation == 8
