"""Truncations are decided by the end of a log, and are not made where it has changed since. Pure."""

from octavo.metadata.ledger.decisions import Refuse
from octavo.protocol.errors import MetadataConflictError


class EndMovedError(MetadataConflictError):
    """The log has changed since its end was found, by which a truncation was decided: look again. Never leaves this
    package."""


def end_moved(name: str) -> Refuse:
    """Refuse a truncation that was decided by an end which may not hold any more."""
    return Refuse(EndMovedError(f"log {name} has changed since its end was looked for"))
