"""Which tests a run of everything leaves to ``make soak`` (docs/decisions/048)."""

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

from support.tree import ROOT

LIST: Final = ROOT / "tests" / "left_to_soak.txt"


def is_left_to_soak(node_id: str) -> bool:
    """Whether a line of the list names the test."""
    return any(pattern.fullmatch(node_id) for pattern in _patterns().get(_file_of(node_id), {}).values())


def lines_without(node_ids: Sequence[str]) -> list[str]:
    """Lines of the list that name none of these tests."""
    return [
        line
        for patterns in _patterns().values()
        for line, pattern in patterns.items()
        if not any(pattern.fullmatch(node_id) for node_id in node_ids)
    ]


@cache
def _patterns() -> dict[str, dict[str, re.Pattern[str]]]:
    """File -> line -> what it names."""
    found: dict[str, dict[str, re.Pattern[str]]] = {}
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            found.setdefault(_file_of(line), {})[line] = re.compile(re.escape(line).replace(r"\*", ".*"))
    return found


def _file_of(node_id: str) -> str:
    return node_id.partition("::")[0]
