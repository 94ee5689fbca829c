"""Where a reader has the metadata of its ledger from."""

from typing import Protocol

from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.store.values import Versioned, Watch
from octavo.protocol.ids import LedgerId


class LedgerSource(Protocol):
    """A metadata store; or a stream, of which one part is given as the ledger that it is to bookies
    (:mod:`octavo.client.terms.pieces`)."""

    async def read_ledger(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        """The metadata as they stand now. Raises :class:`NoSuchLedgerError`, also a part that is not there any more as
        it was; :class:`MetadataUnavailableError`."""

    def watch_ledger(self, ledger_id: LedgerId) -> Watch[Versioned[LedgerMetadata] | None]:
        """Follow the metadata; None when the ledger does not exist or has been deleted."""
