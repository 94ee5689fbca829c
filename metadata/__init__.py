"""The metadata of a cluster (ledgers, bookies, cookies, documents, locks) and the stores that hold them."""

from octavo.metadata.cluster.registration import (
    BookieRegistration,
    BookieState,
    Cookie,
    KnownBookie,
    check_rack,
    split_address,
)
from octavo.metadata.connect import open_metadata_store
from octavo.metadata.ledger.changes import (
    BeginRecovery,
    ChangeEnsemble,
    CloseLedger,
    FinishRecovery,
    MetadataChange,
    ReplaceMember,
)
from octavo.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import BookieLease, Lease, LockHolder, Version, Versioned, Watch
from octavo.metadata.updates.update import update_ledger, update_stream

__all__ = [
    "BeginRecovery",
    "BookieLease",
    "BookieRegistration",
    "BookieState",
    "ChangeEnsemble",
    "CloseLedger",
    "Cookie",
    "FinishRecovery",
    "Fragment",
    "KnownBookie",
    "Lease",
    "LedgerMetadata",
    "LedgerState",
    "LockHolder",
    "MetadataChange",
    "MetadataStore",
    "ReplaceMember",
    "Version",
    "Versioned",
    "Watch",
    "check_rack",
    "open_metadata_store",
    "split_address",
    "update_ledger",
    "update_stream",
]
