"""What a cluster agrees on: ledgers, bookies, cookies, documents, locks; and the stores that keep it."""

from octavo.metadata.model import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.registration import BookieRegistration, BookieState, Cookie, KnownBookie
from octavo.metadata.store import (
    BookieLease,
    Lease,
    LockHolder,
    MetadataStore,
    Version,
    Versioned,
    Watch,
)

__all__ = [
    "BookieLease",
    "BookieRegistration",
    "BookieState",
    "Cookie",
    "Fragment",
    "KnownBookie",
    "Lease",
    "LedgerMetadata",
    "LedgerState",
    "LockHolder",
    "MetadataStore",
    "Version",
    "Versioned",
    "Watch",
]
