"""Searches for a field of JSON payloads, as people write it: ``customer.id = 17``. Pure.

The words between dots are names of fields. In a list a number is the place of an item, and any other word is looked for
in every item. Behind ``=`` stands a JSON value, or a text without quotes; without ``=`` any value will do. A number
without quotes finds a text of these digits too: ids are numbers in one program and texts in another.
"""

import json
from typing import Any, NamedTuple

from octavo.protocol.errors import InvalidArgumentError


class FieldWanted(NamedTuple):
    """One search."""

    path: tuple[str, ...]
    values: tuple[Any, ...] | None
    """Any of these; None: whatever it is."""

    def fits(self, payload: bytes) -> bool:
        """Whether the payload is JSON and has the field, with one of the values."""
        try:
            whole = json.loads(payload)
        except (ValueError, RecursionError):
            return False
        return self._is_in(whole, 0)

    def _is_in(self, value: Any, depth: int) -> bool:
        if depth == len(self.path):
            return self.values is None or any(_same(value, wanted) for wanted in self.values)
        word = self.path[depth]
        if isinstance(value, dict):
            return word in value and self._is_in(value[word], depth + 1)
        if not isinstance(value, list):
            return False
        if word.isdecimal():
            return int(word) < len(value) and self._is_in(value[int(word)], depth + 1)
        return any(isinstance(item, dict) and self._is_in(item, depth) for item in value)


def parse_field(text: str) -> FieldWanted:
    """The search in ``text``. Raises :class:`InvalidArgumentError`."""
    name, equals, value = text.partition("=")
    path = tuple(word.strip() for word in name.split("."))
    if not all(path):
        raise InvalidArgumentError(f"{text!r} is not a field: write customer.id = 17, or customer.id for any value")
    return FieldWanted(path, _values(value.strip()) if equals else None)


def _values(text: str) -> tuple[Any, ...]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return (text,)
    return (value,) if isinstance(value, str) else (value, text)


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal. To Python ``true`` is 1, too."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
