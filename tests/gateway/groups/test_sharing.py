"""How a coordinator shares partitions among members: evenly, completely, and with few moves (rule K16)."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from octavo.gateway.groups.epoch_member import NO_PLACES, Places
from octavo.gateway.groups.places import Place
from octavo.gateway.groups.sharing import ASSIGNORS, Assignor, Target, TopicShape, Wants, share_ranges, share_uniformly

NAMES = ("a", "b", "c")


def shapes(**partitions: int) -> dict[str, TopicShape]:
    return {name: TopicShape(f"id-{name}", count) for name, count in partitions.items()}


def wants(**members: str) -> list[Wants]:
    """By member: the letters of the topics that it wants."""
    return [Wants(name, name, frozenset(topics), NO_PLACES) for name, topics in members.items()]


def with_shares(members: list[Wants], target: Target) -> list[Wants]:
    return [one._replace(has=target.get(one.member_id, NO_PLACES)) for one in members]


def sizes(target: Target) -> dict[str, int]:
    return {member_id: len(places) for member_id, places in target.items()}


def numbers(places: Places, topic: str) -> list[int]:
    return sorted(one.partition for one in places if one.topic_id == f"id-{topic}")


def test_uniform_gives_each_member_as_many_as_any_other() -> None:
    target = share_uniformly(wants(x="ab", y="ab", z="ab"), shapes(a=4, b=4))
    assert sorted(sizes(target).values()) == [2, 3, 3]


def test_uniform_moves_what_it_must() -> None:
    topics = shapes(a=6)
    members = wants(x="a", y="a")
    before = share_uniformly(members, topics)
    after = share_uniformly(with_shares(wants(w="a", x="a", y="a"), before), topics)
    assert sizes(after) == {"w": 2, "x": 2, "y": 2}
    assert after["x"] < before["x"]
    assert after["y"] < before["y"]
    assert share_uniformly(with_shares(wants(w="a", x="a", y="a"), after), topics) == after
    assert share_uniformly(with_shares(members, after), topics)["x"] > after["x"]


def test_a_member_keeps_the_odd_partition() -> None:
    topics = shapes(a=3)
    target = share_uniformly([one._replace(has=frozenset(topics["a"].places[1:])) for one in wants(y="a")], topics)
    assert sizes(target) == {"y": 3}
    members = [wants(x="a")[0], wants(y="a")[0]._replace(has=frozenset(topics["a"].places[1:]))]
    assert share_uniformly(members, topics) == {
        "x": frozenset(topics["a"].places[:1]), "y": frozenset(topics["a"].places[1:])
    }  # fmt: skip


def test_uniform_evens_out_what_members_have_of_topics_that_not_all_want() -> None:
    target = share_uniformly(wants(x="a", y="ab", z="ab"), shapes(a=6, b=4))
    assert sizes(target) == {"x": 4, "y": 3, "z": 3}


def test_range_gives_members_consecutive_partitions_and_the_same_ones_of_each_topic() -> None:
    target = share_ranges(wants(x="ab", y="ab"), shapes(a=5, b=5))
    for topic in "ab":
        assert [numbers(target[one], topic) for one in "xy"] == [[0, 1, 2], [3, 4]]
    assert sizes(share_ranges(wants(x="a", y="a", z="a"), shapes(a=2, b=2))) == {"x": 1, "y": 1, "z": 0}


def test_the_order_of_a_static_member_stays_when_its_id_changes() -> None:
    members = [Wants("zz", "1", frozenset("a"), NO_PLACES), Wants("aa", "2", frozenset("a"), NO_PLACES)]
    assert numbers(share_ranges(members, shapes(a=2))["zz"], "a") == [0]


subscriptions = st.dictionaries(
    st.sampled_from("uvwxyz"), st.sets(st.sampled_from(NAMES)).map(lambda names: "".join(sorted(names))), max_size=6
)
partitions = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 9))


@given(subscriptions, subscriptions, partitions, st.sampled_from(sorted(ASSIGNORS)))
def test_each_partition_that_a_member_wants_has_one_member_that_wants_it(
    before: Mapping[str, str], after: Mapping[str, str], counts: Mapping[str, int], name: str
) -> None:
    share: Assignor = ASSIGNORS[name]
    topics = shapes(**counts)
    members = with_shares(wants(**after), share(wants(**before), topics))
    target = share(members, topics)
    assert target.keys() == after.keys()
    given_out = [place for places in target.values() for place in places]
    wanted = {
        place for topic in topics if any(topic in one for one in after.values()) for place in topics[topic].places
    }
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == wanted
    for member_id, places in target.items():
        assert {one.topic_id for one in places} <= {f"id-{topic}" for topic in after[member_id]}
    assert share(with_shares(members, target), topics) == target, "nothing moves without a reason"


@given(st.integers(1, 6), st.integers(0, 20), st.integers(1, 6))
def test_uniform_shares_differ_by_one_at_most_and_only_what_must_moves(count: int, size: int, left: int) -> None:
    topics = shapes(a=size)
    before = share_uniformly(wants(**{f"m{one}": "a" for one in range(count)}), topics)
    members = with_shares(wants(**{f"m{one}": "a" for one in range(left)}), before)
    after = share_uniformly(members, topics)
    found = sizes(after).values()
    assert max(found) - min(found) <= 1
    for member_id in after.keys() & before.keys():
        assert len(after[member_id] & before[member_id]) == min(len(after[member_id]), len(before[member_id]))


def test_a_partition_is_shown_with_its_topic() -> None:
    assert shapes(a=2)["a"].places == [Place("id-a", 0), Place("id-a", 1)]
