"""The rights of principals at gateways: which topics and consumer groups they may use, by name or prefix. Pure.

A *pattern* is a name, or a prefix with ``*`` behind it; ``*`` alone stands for every name. A principal without grants
may do nothing. Its roles (:mod:`octavo.security.roles`) say what it may do at bookies, and do not matter here, but for
admin, which may do everything.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Self

from octavo.protocol.errors import InvalidArgumentError

ANY: Final = "*"
"""Ends the pattern that is a prefix."""

PATTERN_CHARACTERS_MAX: Final = 255
GRANTS_MAX: Final = 100
"""Of a principal: all principals are in one document."""


class TopicRight(enum.StrEnum):
    """A right, and the name of the option that grants it."""

    DESCRIBE = "describe"
    """See that a topic is there, its partitions, their ends and its settings. Each other right to a topic includes
    it."""
    READ = "read"
    """Consume, and commit offsets."""
    WRITE = "write"
    """Produce."""
    CREATE = "create"
    """Create topics, and partitions of topics."""
    DELETE = "delete"
    """Delete topics and records, and change settings by which records are deleted."""
    GROUP = "group"
    """Use a consumer group: be a member, commit, see, and delete it."""


class Grant(NamedTuple):
    """A right to what has names of this pattern."""

    right: TopicRight
    pattern: str


def checked_pattern(text: str) -> str:
    """The pattern, if it is one.

    Raises:
        InvalidArgumentError: It is empty or too long, has an asterisk before its end, or what cannot be shown.
    """
    if not 0 < len(text) <= PATTERN_CHARACTERS_MAX or ANY in text[:-1] or not text.isprintable():
        raise InvalidArgumentError(
            f"{text[:50]!r} is not a pattern: a name, or the beginning of names with one * at its end"
        )
    return text


class Grants:
    """The grants of one principal, to be asked for each request."""

    __slots__ = ("_all", "_names", "_prefixes", "grants")

    def __init__(self, grants: Iterable[Grant] = (), *, everything: bool = False) -> None:
        """``everything``: all rights to all names."""
        self.grants = frozenset(grants)
        self._all = everything
        self._names: Mapping[TopicRight, frozenset[str]] = {
            right: frozenset(one.pattern for one in self._of(right) if not one.pattern.endswith(ANY))
            for right in TopicRight
        }
        self._prefixes: Mapping[TopicRight, tuple[str, ...]] = {
            right: tuple(sorted(one.pattern[:-1] for one in self._of(right) if one.pattern.endswith(ANY)))
            for right in TopicRight
        }

    @classmethod
    def everything(cls) -> Self:
        """All rights to all names."""
        return cls(everything=True)

    def _of(self, right: TopicRight) -> list[Grant]:
        includes = right is TopicRight.DESCRIBE
        return [one for one in self.grants if one.right is right or (includes and one.right is not TopicRight.GROUP)]

    @property
    def is_everything(self) -> bool:
        """Whether they are all rights to all names."""
        return self._all

    def allow(self, right: TopicRight, name: str) -> bool:
        """Whether they give this right to the topic or group with this name."""
        return self._all or name in self._names[right] or name.startswith(self._prefixes[right])

    def allow_some(self, right: TopicRight) -> bool:
        """Whether they give this right to any name."""
        return self._all or bool(self._names[right] or self._prefixes[right])
