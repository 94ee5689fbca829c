"""The compare-and-set loop by which clients change a ledger's metadata (rules M1, W5, W9, F1 and F6)."""

from typing import Final

from octavo.metadata.changes import MetadataChange, Refuse, Settled
from octavo.metadata.model import LedgerMetadata
from octavo.metadata.store import MetadataStore, Versioned
from octavo.protocol.errors import MetadataConflictError
from octavo.protocol.ids import LedgerId

ATTEMPTS_MAX: Final = 100
"""Attempts of one update. Every lost attempt means that another client made progress, and a ledger has one writer and
few repair jobs: that many conflicts in a row mean that something writes the ledger in a loop."""


async def update_ledger(
    store: MetadataStore,
    ledger_id: LedgerId,
    change: MetadataChange,
    *,
    writer_token: str,
    known: Versioned[LedgerMetadata] | None = None,
) -> Versioned[LedgerMetadata]:
    """Make ``change``, or find that it has been made; returns what is then stored.

    ``known`` is what the caller believes to be stored. It saves a read and may be out of date. ``writer_token`` is
    written with the change.

    Raises the error with which the change refuses, :class:`NoSuchLedgerError` when the ledger has been deleted, and
    :class:`MetadataUnavailableError` when the store did not answer. In the last case the change may have been made;
    calling again settles it.
    """
    for _ in range(ATTEMPTS_MAX):
        current = known if known is not None else await store.read_ledger(ledger_id)
        decision = change.decide(current.value)
        if isinstance(decision, Settled | Refuse) and known is not None:
            known = None  # decide on what is stored, not on what the caller believes
            continue
        if isinstance(decision, Refuse):
            raise decision.error
        if isinstance(decision, Settled):
            return current
        wanted = decision.metadata.written_by(writer_token)
        try:
            return Versioned(wanted, await store.compare_and_set_ledger(wanted, current.version))
        except MetadataConflictError:
            known = None
    raise MetadataConflictError(
        f"ledger {ledger_id}: its metadata changed {ATTEMPTS_MAX} times while this client tried to change them",
        may_have_happened=False,
    )
