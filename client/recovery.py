"""Finding and settling the end of a ledger whose writer is gone (PROTOCOL F1-F7): where that has its place."""

from octavo.metadata.model import LedgerMetadata
from octavo.metadata.store import Versioned
from octavo.protocol.errors import LedgerRecoveryError


async def recover_ledger(ledger: Versioned[LedgerMetadata]) -> Versioned[LedgerMetadata]:
    """The metadata of the ledger once it is closed; ``ledger`` is not closed when this is called.

    This version does not fence and recover: it always raises :class:`LedgerRecoveryError`, and changes nothing.
    """
    metadata = ledger.value
    raise LedgerRecoveryError(
        f"ledger {metadata.ledger_id} is {metadata.state.value}: somebody writes it, or its writer was lost before it "
        "closed it; this version cannot recover it. Open it with recover=False: that reads what is confirmed and does "
        "not disturb the writer"
    )
