"""Metadata of a ledger that is about to be created. Pure."""

from collections.abc import Mapping
from datetime import datetime

from octavo.client.arguments import LedgerKind, Protection
from octavo.metadata.ledger.model import Fragment, LedgerMetadata
from octavo.protocol.entries import LedgerSecrets, make_verifier
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.quorums import Quorums


def new_metadata(
    ledger_id: LedgerId,
    quorums: Quorums,
    protection: Protection,
    secrets: LedgerSecrets,
    kind: LedgerKind,
    *,
    ensemble: tuple[BookieId, ...],
    custom_metadata: Mapping[str, bytes],
    created_at: datetime,
    salt: bytes,
    writer_token: str,
) -> LedgerMetadata:
    """The metadata of an open ledger without entries, on this ensemble."""
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=quorums.ensemble_size,
        write_quorum=quorums.write_quorum,
        ack_quorum=quorums.ack_quorum,
        fragments=(Fragment(EntryId(0), ensemble),),
        digest=protection.digest,
        private=protection.private,
        sync=kind.sync,
        full_copies=kind.full_copies,
        custom_metadata=custom_metadata,
        created_at=created_at,
        verifier=make_verifier(secrets, protection.digest, salt),
        salt=salt,
        writer_token=writer_token,
    )
