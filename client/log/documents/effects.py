"""What is to be done with the document of a log, as the pure changes of each layout decide it."""

from dataclasses import dataclass
from typing import Protocol


class Encodable(Protocol):
    """A document that has a stored form."""

    def encode(self) -> bytes:
        """The stored form."""


@dataclass(frozen=True, slots=True)
class WriteDocument[D: Encodable]:
    """Compare-and-set to this document, expecting the version decided upon."""

    document: D
