"""Rights by name and prefix (rule K14): the table, and what is no pattern."""

import pytest
from octavo.protocol.errors import InvalidArgumentError
from octavo.security.topic_rights import Grant, Grants, TopicRight, checked_pattern

DESCRIBE, READ, WRITE, CREATE, DELETE, GROUP = TopicRight
EVERY_TOPIC_RIGHT = {DESCRIBE, READ, WRITE, CREATE, DELETE}


def rights_of(grants: Grants, name: str) -> set[TopicRight]:
    return {right for right in TopicRight if grants.allow(right, name)}


@pytest.mark.parametrize(
    ("right", "pattern", "name", "given"),
    [
        (READ, "orders", "orders", {READ, DESCRIBE}),
        (READ, "orders", "orders.eu", set()),
        (READ, "orders", "order", set()),
        (READ, "orders", "Orders", set()),
        (READ, "orders.*", "orders.eu", {READ, DESCRIBE}),
        (READ, "orders.*", "orders.", {READ, DESCRIBE}),
        (READ, "orders.*", "orders", set()),
        (READ, "orders.*", "my.orders.eu", set()),
        (READ, "*", "anything", {READ, DESCRIBE}),
        (WRITE, "orders", "orders", {WRITE, DESCRIBE}),
        (CREATE, "orders", "orders", {CREATE, DESCRIBE}),
        (DELETE, "orders", "orders", {DELETE, DESCRIBE}),
        (DESCRIBE, "orders", "orders", {DESCRIBE}),
        (GROUP, "billing", "billing", {GROUP}),
        (GROUP, "*", "orders", {GROUP}),
    ],
)
def test_a_grant_gives_its_right_to_what_its_pattern_names(
    right: TopicRight, pattern: str, name: str, given: set[TopicRight]
) -> None:
    assert rights_of(Grants([Grant(right, pattern)]), name) == given


def test_without_grants_there_is_no_right() -> None:
    assert rights_of(Grants(), "orders") == set()
    assert not any(Grants().allow_some(right) for right in TopicRight)
    assert not Grants().is_everything


def test_everything_is_every_right_to_every_name() -> None:
    assert rights_of(Grants.everything(), "orders") == {*TopicRight}
    assert Grants.everything().is_everything
    assert all(Grants.everything().allow_some(right) for right in TopicRight)


def test_grants_add_up() -> None:
    grants = Grants([Grant(READ, "a.*"), Grant(WRITE, "a.b"), Grant(READ, "c"), Grant(GROUP, "g.*")])
    assert rights_of(grants, "a.b") == {READ, WRITE, DESCRIBE}
    assert rights_of(grants, "c") == {READ, DESCRIBE}
    assert rights_of(grants, "g.1") == {GROUP}
    assert [right for right in TopicRight if grants.allow_some(right)] == [DESCRIBE, READ, WRITE, GROUP]


@pytest.mark.parametrize("text", ["orders", "orders.*", "*", "a" * 255])
def test_a_pattern_is_a_name_or_the_beginning_of_names(text: str) -> None:
    assert checked_pattern(text) == text


@pytest.mark.parametrize("text", ["", "a*b", "**", "*a", "a" * 256, "a\n", "a\0"])
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a pattern"):
        checked_pattern(text)
