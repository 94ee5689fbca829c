"""Decisions of changes about stored metadata: to write, that there is nothing to write, or to refuse. Pure.

In a module of its own: what carries changes out, and every client that reads, knows decisions and few changes.
"""

from typing import TYPE_CHECKING

from octavo.protocol.errors import OctavoError
from octavo.protocol.light_dataclass import dataclass

if TYPE_CHECKING:
    from octavo.metadata.ledger.stored import StoredLedger


@dataclass(frozen=True, slots=True)
class Write[M: "StoredLedger"]:
    """Compare-and-set to these metadata, expecting the version on which the decision was made."""

    metadata: M


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing to write: the stored metadata already hold what was wanted, or a final state that replaces it."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The change can no longer be made; raise this error."""

    error: OctavoError
