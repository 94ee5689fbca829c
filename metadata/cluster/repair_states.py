"""The document ``repair/bookies``: the bookies on which the cluster cannot rely at present, and why. Pure.

The elected auditor of repair and operators change it, by compare-and-set; writers watch it, so that they replace
bookies that have left (rule O2). It names only bookies whose condition is not ordinary: in a healthy cluster it does
not exist, or is never written.

=========  ===========================================  ==========================  ====================================
condition  entered                                      left                        effect
=========  ===========================================  ==========================  ====================================
missing    the bookie is not registered                 it registers                none yet
held       an operator holds it                         release, or the time ends   never declared lost
lost       missing for too long, and it answers no      it registers                its copies are made again elsewhere
           hello
draining   an operator drains it                        undrain, retire             its copies are moved elsewhere
doubtful   it reports that it is in doubt (rule B4)     it no longer does           writers replace it; it is no target
retired    an operator retires it                       unretire, before rule O5    as lost; its id is never used again
                                                        makes it final
=========  ===========================================  ==========================  ====================================
"""

import enum
from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any, Final, Self

from octavo.metadata.encoding import FieldReader, decode_object, encode_object
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.ids import BookieId, is_bookie_id
from octavo.protocol.light_dataclass import dataclass

DOCUMENT: Final = "repair/bookies"
"""Name of the document."""

FORMAT: Final = 1

_BYTES_MAX: Final = 512 * 1024
"""What the store takes as a document."""

REASON_CHARACTERS_MAX: Final = 200
"""Longest reason of a condition: one line on a terminal."""


class Condition(enum.Enum):
    """Why a bookie cannot be relied on. See the module."""

    MISSING = "missing"
    HELD = "held"
    LOST = "lost"
    DRAINING = "draining"
    DOUBTFUL = "doubtful"
    RETIRED = "retired"


LEAVING: Final = frozenset({Condition.LOST, Condition.DRAINING, Condition.RETIRED})
"""Conditions in which the copies of a bookie are made again on other bookies."""

DEPARTED: Final = LEAVING | {Condition.DOUBTFUL}
"""Conditions in which writers replace a bookie (rule O2) and place nothing new on it."""


@dataclass(frozen=True, slots=True)
class BookieCondition:
    """The condition of one bookie. Times are milliseconds since 1970.

    Raises :class:`InvalidArgumentError` for a reason that is too long, and for an end where there can be none.
    """

    condition: Condition
    since_ms: int
    """When the condition began. Kept in the store, so that an election does not begin a grace time again (rule A1)."""
    until_ms: int | None = None
    """When a hold ends; None for other conditions."""
    reason: str = ""

    def __post_init__(self) -> None:
        if len(self.reason) > REASON_CHARACTERS_MAX:
            raise InvalidArgumentError(f"a reason has at most {REASON_CHARACTERS_MAX} characters")
        if (self.until_ms is not None) != (self.condition is Condition.HELD):
            raise InvalidArgumentError("a hold has an end, and no other condition has one")


@dataclass(frozen=True, slots=True)
class RepairStates:
    """The whole document. Immutable; changes return a new value."""

    bookies: Mapping[BookieId, BookieCondition] = field(default_factory=dict)
    paused: bool = False
    """An operator has paused repair: nothing is planned."""
    brake: bool = False
    """So many bookies are missing at once that none is declared lost (rule A2)."""
    brake_overridden: bool = False
    """An operator has released the brake. It is set again when the bookies are back."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bookies", MappingProxyType(dict(self.bookies)))

    def condition_of(self, bookie_id: BookieId) -> Condition | None:
        """The condition of a bookie; None when it is ordinary."""
        entry = self.bookies.get(bookie_id)
        return None if entry is None else entry.condition

    def in_condition(self, *conditions: Condition) -> frozenset[BookieId]:
        """The bookies in one of these conditions."""
        return frozenset(name for name, entry in self.bookies.items() if entry.condition in conditions)

    @property
    def leaving(self) -> frozenset[BookieId]:
        """Bookies whose copies are made again elsewhere."""
        return self.in_condition(*LEAVING)

    @property
    def departed(self) -> frozenset[BookieId]:
        """Bookies that writers replace."""
        return self.in_condition(*DEPARTED)

    def with_bookie(self, bookie_id: BookieId, condition: BookieCondition | None) -> Self:
        """The same with another condition of one bookie; None: it is ordinary again."""
        bookies = {name: entry for name, entry in self.bookies.items() if name != bookie_id}
        if condition is not None:
            bookies[bookie_id] = condition
        return replace(self, bookies=bookies)


def encode_states(states: RepairStates) -> bytes:
    """The stored form (:mod:`octavo.metadata.encoding`). Where the reasons do not fit into a document, which takes
    hundreds of holds, it has none: they are for people, and the conditions must be stored (rule A12)."""
    whole = _encode(states, with_reasons=True)
    return whole if len(whole) <= _BYTES_MAX else _encode(states, with_reasons=False)


def _encode(states: RepairStates, *, with_reasons: bool) -> bytes:
    return encode_object(
        {
            "bookies": {
                name: [entry.condition.value, entry.since_ms, entry.until_ms, entry.reason if with_reasons else ""]
                for name, entry in states.bookies.items()
            },
            "paused": states.paused,
            "brake": states.brake,
            "brake_overridden": states.brake_overridden,
        },
        format_number=FORMAT,
    )


def decode_states(value: bytes | None) -> RepairStates:
    """The document from its stored form; None when it does not exist. Raises :class:`MetadataError`."""
    if value is None:
        return RepairStates()
    what = f"document {DOCUMENT}"
    reader = FieldReader(decode_object(value, what=what, format_max=FORMAT), what)
    bookies: dict[BookieId, BookieCondition] = {}
    for name, entry in reader.get("bookies", dict).items():
        try:
            bookies[_bookie_id(name)] = _decode_condition(entry)
        except (ValueError, TypeError) as error:
            raise reader.damaged(f"bookie {name}: {error}") from error
    return RepairStates(
        bookies, reader.get("paused", bool), reader.get("brake", bool), reader.get("brake_overridden", bool)
    )


def _bookie_id(name: str) -> BookieId:
    if not is_bookie_id(name):
        raise ValueError("not a bookie id")
    return BookieId(name)


def _decode_condition(entry: Any) -> BookieCondition:
    condition, since_ms, until_ms, reason = entry
    if type(since_ms) is not int or since_ms < 0 or type(reason) is not str:
        raise ValueError("a condition is a name, a time, an end and a reason")
    if until_ms is not None and (type(until_ms) is not int or until_ms < 0):
        raise ValueError("the end of a hold is a time")
    return BookieCondition(Condition(condition), since_ms, until_ms, reason)
