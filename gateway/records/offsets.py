"""The anchor of a partition: an offset that is known without any entry. Pure.

The next offset follows from the last batch in the log. A log may lose all of its entries to retention, though, and its
offsets must not begin again at 0. So before a gateway truncates a partition's log at a position, it stores the
*anchor*: the position, the offset that the first record behind it has or will have, and the offset at which the
partition begins for consumers (rule K2). An anchor only rises, in each of its three numbers.

The anchor is a document of its own for each partition, named by the id of the partition's log: leaders change it at
each truncation, and the document of the topic would be changed by all of them.
"""

from typing import Final, Self

from octavo.metadata.encoding import FieldReader, decode_object, encode_object
from octavo.protocol.light_dataclass import dataclass

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Anchor:
    """See the module."""

    position: int = 0
    """Entries below it may be gone."""
    base_offset: int = 0
    """Of the first record at or above :attr:`position`."""
    start_offset: int = 0
    """Consumers get nothing below it. It may lie above :attr:`base_offset`, in the middle of the log."""

    def __post_init__(self) -> None:
        if min(self.position, self.base_offset, self.start_offset) < 0:
            raise ValueError(f"a number of an anchor is below 0: {self}")

    def raised(self, *, position: int, base_offset: int, start_offset: int) -> Self:
        """The anchor after a truncation: no number falls.

        ``base_offset`` is that of ``position``. A truncation below the anchor leaves position and offset as they are.
        """
        higher = position > self.position
        return type(self)(
            position if higher else self.position,
            max(base_offset, self.base_offset) if higher else self.base_offset,
            max(start_offset, self.start_offset),
        )


NO_ANCHOR: Final = Anchor()
"""Of a partition that was never truncated."""


def encode_anchor(anchor: Anchor, log_id: str) -> bytes:
    """The stored form."""
    fields = {
        "log_id": log_id,
        "position": anchor.position,
        "base_offset": anchor.base_offset,
        "start_offset": anchor.start_offset,
    }
    return encode_object(fields, format_number=_FORMAT)


def decode_anchor(value: bytes, log_id: str) -> Anchor:
    """The anchor of the log with this id, from its stored form.

    Raises:
        MetadataError: The value is damaged, or of another log.
    """
    what = f"anchor of the log {log_id}"
    reader = FieldReader(decode_object(value, what=what, format_max=_FORMAT), what)
    if reader.get("log_id", str) != log_id:
        raise reader.damaged("it is of another log")
    try:
        return Anchor(reader.get("position", int), reader.get("base_offset", int), reader.get("start_offset", int))
    except ValueError as error:
        raise reader.damaged(str(error)) from error
