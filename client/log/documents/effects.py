"""The effect of a change of a log's document, whatever the layout that decides it. Pure."""

from typing import Protocol

from octavo.protocol.light_dataclass import dataclass


class Encodable(Protocol):
    """A document that has a stored form."""

    def encode(self) -> bytes:
        """The stored form."""


@dataclass(frozen=True, slots=True)
class WriteDocument[D: Encodable]:
    """Compare-and-set to this document, expecting the version decided upon."""

    document: D
