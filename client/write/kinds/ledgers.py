"""Makes the writer of a ledger, or its core alone: with the policies that the metadata call for."""

from collections.abc import Callable

from octavo.client.options import ClientOptions
from octavo.client.write.copies.policy import RecordedCopies, RequiredCopies
from octavo.client.write.core import Core, CoreFront, WriterTools
from octavo.client.write.deferred.policy import DeferredSync
from octavo.client.write.own_metadata import OwnLedger
from octavo.client.write.policies import NO_COPIES, Copies
from octavo.client.write.writer import LedgerWriter
from octavo.metadata.ledger.debts import FullCopies
from octavo.metadata.ledger.model import LedgerMetadata, SyncMode
from octavo.metadata.store.values import Versioned
from octavo.protocol.entries import LedgerSecrets
from octavo.protocol.errors import OctavoError


def copies_of(full_copies: FullCopies | None, options: ClientOptions) -> Copies:
    """The policy of a ledger or a stream, for one writer."""
    match full_copies:
        case None:
            return NO_COPIES
        case FullCopies.RECORDED:
            return RecordedCopies(options)
        case FullCopies.REQUIRED:
            return RequiredCopies()


def ledger_core(
    ledger: Versioned[LedgerMetadata], secrets: LedgerSecrets, tools: WriterTools, front: CoreFront
) -> Core:
    """The core of the writer of a ledger. ``ledger``: as just created, empty and OPEN."""
    metadata = ledger.value
    own = OwnLedger(ledger, store=tools.store, retry_seconds=tools.options.resend_delay_seconds)
    return Core(
        own,
        secrets,
        tools,
        front,
        not_closed=f"ledger {metadata.ledger_id} is not closed",
        copies=copies_of(metadata.full_copies, tools.options),
        deferred=DeferredSync() if metadata.sync is SyncMode.DEFERRED else None,
    )


def write_ledger(
    ledger: Versioned[LedgerMetadata],
    secrets: LedgerSecrets,
    tools: WriterTools,
    *,
    on_close: Callable[[LedgerWriter], object] | None = None,
    on_failure: Callable[[OctavoError], object] | None = None,
) -> LedgerWriter:
    """The writer of a ledger. ``ledger``: as just created, empty and OPEN. The others as in :class:`LedgerWriter`."""
    return LedgerWriter(
        tools, lambda front: ledger_core(ledger, secrets, tools, front), on_close=on_close, on_failure=on_failure
    )
