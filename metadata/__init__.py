"""The metadata of a cluster (ledgers, bookies, cookies, documents, locks) and the stores that hold them.

Names are loaded when first used: a command that reads one document loads no models of ledgers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "BeginRecovery": "octavo.metadata.ledger.changes",
    "BookieLease": "octavo.metadata.store.values",
    "BookieRegistration": "octavo.metadata.cluster.registration",
    "BookieState": "octavo.metadata.cluster.registration",
    "ChangeEnsemble": "octavo.metadata.ledger.changes",
    "CloseLedger": "octavo.metadata.ledger.changes",
    "Cookie": "octavo.metadata.cluster.registration",
    "FinishRecovery": "octavo.metadata.ledger.changes",
    "Fragment": "octavo.metadata.ledger.model",
    "KnownBookie": "octavo.metadata.cluster.registration",
    "Lease": "octavo.metadata.store.values",
    "LedgerMetadata": "octavo.metadata.ledger.model",
    "LedgerState": "octavo.metadata.ledger.model",
    "LockHolder": "octavo.metadata.store.values",
    "MetadataChange": "octavo.metadata.ledger.changes",
    "MetadataStore": "octavo.metadata.store.store",
    "ReplaceMember": "octavo.metadata.ledger.changes",
    "Version": "octavo.metadata.store.values",
    "Versioned": "octavo.metadata.store.values",
    "Watch": "octavo.metadata.store.values",
    "check_rack": "octavo.metadata.cluster.registration",
    "open_metadata_store": "octavo.metadata.connect",
    "split_address": "octavo.metadata.cluster.registration",
    "update_ledger": "octavo.metadata.updates.update",
    "update_stream": "octavo.metadata.updates.update",
}
"""Where a name lives."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'octavo.metadata' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
