"""Numbers of things in words."""

import pytest
from octavo.cli.output import counted


@pytest.mark.parametrize(
    ("count", "plural", "words"),
    [(0, None, "0 logs"), (1, None, "1 log"), (2, None, "2 logs"), (12345, None, "12,345 logs"), (1, "x", "1 log")],
)
def test_one_thing_is_named_in_the_singular(count: int, plural: str | None, words: str) -> None:
    assert counted(count, "log", plural) == words
    assert counted(2, "entry", "entries") == "2 entries"
