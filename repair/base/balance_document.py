"""The document ``repair/balance``: that copies are to be moved from full bookies to empty ones, and how far that
is. Pure.

Operators write it, and the auditor, each by compare-and-set. Versions that cannot balance do not read it. While it is
not *wanted*, no target takes a place for the sake of balance (rule A14).
"""

import enum
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from octavo.metadata.encoding import FieldReader, decode_object, encode_object
from octavo.protocol.ids import BookieId, is_bookie_id
from octavo.protocol.light_dataclass import dataclass

DOCUMENT: Final = "repair/balance"
"""Name of the document."""

FORMAT: Final = 1

REASON_CHARACTERS_MAX: Final = 500

_BOOKIES_MAX: Final = 2000
"""Bookies whose figures are stored: a document stays below the store's limit (rule A12). They are for people."""


class Phase(enum.Enum):
    """How far a balance is."""

    ASKED = "asked"
    """No auditor has seen it yet."""
    LOOKING = "looking"
    """The auditor reads the metadata of all ledgers."""
    MOVING = "moving"
    WAITING = "waiting"
    """Something goes first, or forbids it at present; the reason says what."""
    DONE = "done"
    STOPPED = "stopped"
    """By an operator."""

    @property
    def is_over(self) -> bool:
        """Whether nothing follows."""
        return self in {Phase.DONE, Phase.STOPPED}


class AskedBy(enum.Enum):
    """The one that wanted the balance."""

    OPERATOR = "operator"
    SETTING = "setting"
    """The auditor itself, by its setting ``repair_balance_seconds``."""


@dataclass(frozen=True, slots=True)
class BookieFill:
    """How full a bookie is."""

    held_bytes: int
    """Of the settled ranges that name it, moves that are under way included."""
    capacity_bytes: int
    """That it has for entries, used or free."""


@dataclass(frozen=True, slots=True)
class BalanceState:
    """The whole document."""

    asked_at_ms: int
    """Tells one balance from the next. Milliseconds since 1970."""
    asked_by: AskedBy = AskedBy.OPERATOR
    phase: Phase = Phase.ASKED
    reason: str = ""
    """Why it waits, or how it has ended."""
    moved: int = 0
    """Ledgers in which another bookie has taken a place."""
    moved_bytes: int = 0
    failed: int = 0
    """Moves that were begun and not made."""
    under_way: int = 0
    under_way_bytes: int = 0
    bookies: Mapping[BookieId, BookieFill] = field(default_factory=dict)

    @property
    def is_wanted(self) -> bool:
        """Whether copies are to be moved."""
        return not self.phase.is_over


def encode_balance(state: BalanceState) -> bytes:
    """The stored form."""
    figures = sorted(state.bookies.items())[:_BOOKIES_MAX]
    return encode_object(
        {
            "asked_at_ms": state.asked_at_ms,
            "asked_by": state.asked_by.value,
            "phase": state.phase.value,
            "reason": state.reason[:REASON_CHARACTERS_MAX],
            "moved": state.moved,
            "moved_bytes": state.moved_bytes,
            "failed": state.failed,
            "under_way": state.under_way,
            "under_way_bytes": state.under_way_bytes,
            "bookies": {name: [one.held_bytes, one.capacity_bytes] for name, one in figures},
        },
        format_number=FORMAT,
    )


def decode_balance(value: bytes) -> BalanceState:
    """From the stored form. Raises :class:`MetadataError`."""
    what = f"document {DOCUMENT}"
    reader = FieldReader(decode_object(value, what=what, format_max=FORMAT), what)
    try:
        return BalanceState(
            _number(reader, "asked_at_ms"),
            AskedBy(reader.get("asked_by", str)),
            Phase(reader.get("phase", str)),
            reader.get("reason", str),
            _number(reader, "moved"),
            _number(reader, "moved_bytes"),
            _number(reader, "failed"),
            _number(reader, "under_way"),
            _number(reader, "under_way_bytes"),
            dict(_decode_fill(name, pair) for name, pair in reader.get("bookies", dict).items()),
        )
    except ValueError as error:
        raise reader.damaged(str(error)) from error


def _decode_fill(name: str, pair: object) -> tuple[BookieId, BookieFill]:
    if not is_bookie_id(name) or not isinstance(pair, list) or len(pair) != 2:
        raise ValueError(f"the figures of bookie {name}")
    held, capacity = pair
    if type(held) is not int or type(capacity) is not int or held < 0 or capacity <= 0:
        raise ValueError(f"the figures of bookie {name}")
    return BookieId(name), BookieFill(held, capacity)


def _number(reader: FieldReader, name: str) -> int:
    number = reader.get(name, int)
    if number < 0:
        raise reader.damaged(f"{name} is negative")
    return number
