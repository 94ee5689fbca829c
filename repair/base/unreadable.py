"""Logs what agents of repair cannot understand, and go on without."""

import structlog
from octavo.protocol.errors import MetadataError
from octavo.protocol.ids import LedgerId

log = structlog.get_logger("octavo.repair")


def log_unreadable(ledger_id: LedgerId, error: MetadataError) -> None:
    """A ledger or a stream is left out."""
    log.warning("the metadata of a ledger cannot be understood", ledger=int(ledger_id), reason=error.message)
