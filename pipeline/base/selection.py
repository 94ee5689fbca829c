"""The syntax of the option ``ledgers``, which selects ledgers. Pure.

A selection is a list of alternatives, joined by commas; a ledger is selected if one of them holds:

==================  ==================================================================================================
``7``               ledger 7, which must exist
``7-12``            those of ledgers 7 to 12 (both included) that exist
``all``             every ledger
``app=orders``      every ledger whose custom metadata ``app`` is ``orders`` (UTF-8)
``app=ord*``        ... begins with ``ord``; ``app=*``: has the key at all
``app=a&region=b``  both hold
==================  ==================================================================================================

Special characters in keys and values are escaped as in URLs: ``%2C`` for a comma, ``%26`` for ``&``, ``%3D`` for ``=``,
``%2A`` for ``*``, ``%25`` for ``%``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from octavo.pipeline.base.ranges import IdRanges
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.ids import ID_MAX

_IDS = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")

HELP = "ids and ranges (3,7-12), all, or custom metadata (app=orders, app=ord*, app=a&region=b), joined by commas"


@dataclass(frozen=True, slots=True)
class Condition:
    """The custom metadata ``key`` is ``value``, or begins with it."""

    key: str
    value: bytes
    is_prefix: bool

    def holds(self, custom_metadata: Mapping[str, bytes]) -> bool:
        """Whether it holds for a ledger with these custom metadata."""
        value = custom_metadata.get(self.key)
        if value is None:
            return False
        return value.startswith(self.value) if self.is_prefix else value == self.value


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of ledgers."""

    required: frozenset[int]
    """Ledgers that are named by a single id and must exist."""
    ranges: IdRanges
    """Ledgers that are selected by their ids, including :attr:`required`."""
    conditions: tuple[tuple[Condition, ...], ...] = ()
    """Alternatives; in each, all conditions must hold."""

    @property
    def scope(self) -> IdRanges:
        """The ids that can be selected."""
        return IdRanges.everything() if self.conditions else self.ranges

    def matches(self, ledger_id: int, custom_metadata: Mapping[str, bytes]) -> bool:
        """Whether the ledger is selected."""
        return ledger_id in self.ranges or any(
            all(condition.holds(custom_metadata) for condition in alternative) for alternative in self.conditions
        )


def parse_selection(text: str) -> Selection:
    """Parse a selection. Raises :class:`InvalidArgumentError`."""
    required: set[int] = set()
    ranges: list[tuple[int, int]] = []
    conditions: list[tuple[Condition, ...]] = []
    for term in (part.strip() for part in text.split(",")):
        if term == "all":
            ranges.append((0, ID_MAX))
        elif ids := _IDS.fullmatch(term):
            first = int(ids[1])
            last = first if ids[2] is None else int(ids[2])
            if not first <= last <= ID_MAX:
                raise InvalidArgumentError(f"ledgers: {term!r} is not a range of ids from 0 to {ID_MAX}")
            ranges.append((first, last))
            if ids[2] is None:
                required.add(first)
        elif "=" in term:
            conditions.append(tuple(_condition(part, term) for part in term.split("&")))
        else:
            raise InvalidArgumentError(f"ledgers: {term!r} selects nothing; give {HELP}")
    return Selection(frozenset(required), IdRanges.of(ranges), tuple(conditions))


def _condition(text: str, term: str) -> Condition:
    key, separator, value = text.strip().partition("=")
    if not key or not separator or "=" in value or "*" in value[:-1] or "*" in key:
        raise InvalidArgumentError(
            f"ledgers: {term!r} is not a condition on custom metadata; write key=value or key=val*"
        )
    is_prefix = value.endswith("*")
    return Condition(
        unquote_to_bytes(key).decode(errors="replace"), unquote_to_bytes(value.removesuffix("*")), is_prefix
    )
