"""The stored form of the cursors of a log: all of them in one document. Pure.

Beside the cursors it has the *floor*: the highest position below which retention has let entries go with regard to
cursors (rule P20). It is in the same document so that of a cursor that is stored and a retention that passes it one
comes first, and the other sees it.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Self

from octavo.metadata.encoding import FieldReader, decode_object, encode_object
from octavo.protocol.entries import EPOCH
from octavo.protocol.light_dataclass import dataclass

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class CursorState:
    """A cursor as it is stored.

    Examples:
        >>> cursor = await log.cursor("billing")
        >>> await cursor.advance(2)
        >>> await cursor.flush()
        >>> (await log.cursors())["billing"].position
        2
    """

    position: int
    """The first position that the consumer has not handled."""
    touched_at_ms: int
    """When the consumer was last heard of, in milliseconds since 1970."""

    @property
    def touched_at(self) -> datetime:
        """When the consumer was last heard of."""
        return EPOCH + timedelta(milliseconds=self.touched_at_ms)

    def raised_to(self, other: "CursorState") -> "CursorState":
        """The state once both were asked for: neither number falls (rule P11). Used only inside this package."""
        return CursorState(max(self.position, other.position), max(self.touched_at_ms, other.touched_at_ms))


@dataclass(frozen=True, slots=True)
class CursorsDocument:
    """See the module."""

    cursors: Mapping[str, CursorState] = field(default_factory=dict)
    """By name."""
    floor: int = 0
    """A cursor that is made stands at it or above. Never falls."""
    unknown: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Fields of a newer version, kept as they are."""

    def with_cursors(self, cursors: Mapping[str, CursorState]) -> Self:
        """The same with other cursors."""
        return replace(self, cursors=cursors)

    def with_floor(self, floor: int) -> Self:
        """The same, in which retention goes up to ``floor``."""
        return replace(self, floor=max(self.floor, floor))


def encode_cursors(document: CursorsDocument) -> bytes:
    """The stored form (:mod:`octavo.metadata.encoding`)."""
    cursors = {name: [cursor.position, cursor.touched_at_ms] for name, cursor in document.cursors.items()}
    fields: dict[str, Any] = {**document.unknown, "cursors": cursors}
    if document.floor:
        fields["floor"] = document.floor  # versions that do not know it ignore it
    return encode_object(fields, format_number=FORMAT)


def decode_cursors(value: bytes, what: str) -> CursorsDocument:
    """The document from its stored form. Raises :class:`MetadataError`."""
    reader = FieldReader(decode_object(value, what=what, format_max=FORMAT), what)
    cursors: dict[str, CursorState] = {}
    for name, numbers in reader.get("cursors", dict).items():
        if not (isinstance(numbers, list) and len(numbers) == 2 and all(type(n) is int and n >= 0 for n in numbers)):
            raise reader.damaged(f"cursor {name} is not two numbers")
        cursors[name] = CursorState(*numbers)
    floor = reader.added_later("floor", int, 0)
    if floor < 0:
        raise reader.damaged("its floor is below 0")
    return CursorsDocument(cursors, floor, reader.unknown_fields())
