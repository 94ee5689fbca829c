"""Octavo: a replicated, append-only log store for asyncio Python.

A log is an endless sequence of entries under one name, which one client at a time leads and adds to:

    async with octavo.connect("sqlite:///octavo-data/metadata.db") as client:
        async with client.create_log("orders") as log, log.lead() as writer:
            position = await writer.add(b"payload")

Other clients read it, and follow it while it grows:

    async with client.open_log("orders") as log:
        async for entry in log.follow():
            print(entry.position, entry.payload)

In the order of a day's work: ``connect`` gives a ``Client``, which creates and opens a ``Log``. ``log.lead()`` gives a
``LogWriter``, ``log.cursor(name)`` a ``Cursor``. Entries come as ``LogEntry``; every error is an ``OctavoError``.
``octavo.testing`` has a cluster for the tests of programs.

This is the public face: what is not named here is not promised. Names are loaded when first used, so that importing the
package is quick and a bookie does not load the client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from octavo._version import __version__

if TYPE_CHECKING:
    from octavo.client.awaitable_context import Opening
    from octavo.client.bookie_status import BookieStatus
    from octavo.client.client import Client
    from octavo.client.connect import connect
    from octavo.client.log.cursors.cursors import Cursor
    from octavo.client.log.documents.chain import Retention
    from octavo.client.log.documents.cursors import CursorState
    from octavo.client.log.documents.key_window import KeyWindow
    from octavo.client.log.keys.form import Keyed, keyed_of
    from octavo.client.log.log import Log
    from octavo.client.log.seam.entries import Gap, LogEntry, LogExtent
    from octavo.client.log.seam.status import LogStatus, SegmentStatus
    from octavo.client.log.writer.writer import LogWriter
    from octavo.client.options import ClientOptions, ConnectOptions
    from octavo.client.read.reader import EntryBatch, LedgerReader
    from octavo.client.read.replica_read import ReplicaAnswer
    from octavo.client.statistics.clients import ClientStatistics, ConnectionStatistics
    from octavo.client.statistics.logs import LogStatistics
    from octavo.client.statistics.readers import ReaderStatistics
    from octavo.client.statistics.writers import (
        AddStatistics,
        LedgerWriterStatistics,
        LogWriterStatistics,
        ReplicationStatistics,
    )
    from octavo.client.write.explicit_writer import ExplicitIdWriter
    from octavo.client.write.writer import LedgerWriter
    from octavo.metadata.cluster.registration import BookieState
    from octavo.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
    from octavo.pipeline.base.errors import DataLossError
    from octavo.protocol.entries import Digest, Entry
    from octavo.protocol.errors import (
        BookieInDoubtError,
        BookieOverloadedError,
        BookieReadOnlyError,
        BookieShuttingDownError,
        BookieStorageError,
        BookieUnavailableError,
        ClientClosedError,
        CursorDeletedError,
        DigestMismatchError,
        DuplicateEntryError,
        EntryTooLargeError,
        ForkedError,
        InternalError,
        InvalidArgumentError,
        LeaseLostError,
        LedgerClosedError,
        LedgerExistsError,
        LedgerFencedError,
        LedgerKindError,
        LedgerRecoveryError,
        LogDamagedError,
        LogExistsError,
        LogSealedError,
        MetadataConflictError,
        MetadataError,
        MetadataUnavailableError,
        NoSuchEntryError,
        NoSuchLedgerError,
        NoSuchLogError,
        NotEnoughBookiesError,
        NotLeaderError,
        OctavoError,
        OctavoTimeoutError,
        PositionMismatchError,
        ProtocolError,
        QuorumLostError,
        TasksCancelledError,
        TermOverError,
        TruncatedError,
        UnauthorizedError,
        UnderReplicatedError,
        UnsupportedOperationError,
        UnsupportedVersionError,
        WouldBlock,
        WrongClusterError,
    )
    from octavo.protocol.quorums import Quorums
    from octavo.security.tls_options import Tls

    from octavo import metrics

__all__ = [
    "AddStatistics",
    "BookieInDoubtError",
    "BookieOverloadedError",
    "BookieReadOnlyError",
    "BookieShuttingDownError",
    "BookieState",
    "BookieStatus",
    "BookieStorageError",
    "BookieUnavailableError",
    "Client",
    "ClientClosedError",
    "ClientOptions",
    "ClientStatistics",
    "ConnectOptions",
    "ConnectionStatistics",
    "Cursor",
    "CursorDeletedError",
    "CursorState",
    "DataLossError",
    "Digest",
    "DigestMismatchError",
    "DuplicateEntryError",
    "Entry",
    "EntryBatch",
    "EntryTooLargeError",
    "ExplicitIdWriter",
    "ForkedError",
    "Fragment",
    "Gap",
    "InternalError",
    "InvalidArgumentError",
    "KeyWindow",
    "Keyed",
    "LeaseLostError",
    "LedgerClosedError",
    "LedgerExistsError",
    "LedgerFencedError",
    "LedgerKindError",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerRecoveryError",
    "LedgerState",
    "LedgerWriter",
    "LedgerWriterStatistics",
    "Log",
    "LogDamagedError",
    "LogEntry",
    "LogExistsError",
    "LogExtent",
    "LogSealedError",
    "LogStatistics",
    "LogStatus",
    "LogWriter",
    "LogWriterStatistics",
    "MetadataConflictError",
    "MetadataError",
    "MetadataUnavailableError",
    "NoSuchEntryError",
    "NoSuchLedgerError",
    "NoSuchLogError",
    "NotEnoughBookiesError",
    "NotLeaderError",
    "OctavoError",
    "OctavoTimeoutError",
    "Opening",
    "PositionMismatchError",
    "ProtocolError",
    "QuorumLostError",
    "Quorums",
    "ReaderStatistics",
    "ReplicaAnswer",
    "ReplicationStatistics",
    "Retention",
    "SegmentStatus",
    "TasksCancelledError",
    "TermOverError",
    "Tls",
    "TruncatedError",
    "UnauthorizedError",
    "UnderReplicatedError",
    "UnsupportedOperationError",
    "UnsupportedVersionError",
    "WouldBlock",
    "WrongClusterError",
    "__version__",
    "connect",
    "keyed_of",
    "metrics",
]

_HOMES = {
    "AddStatistics": "octavo.client.statistics.writers",
    "BookieState": "octavo.metadata.cluster.registration",
    "BookieStatus": "octavo.client.bookie_status",
    "Client": "octavo.client.client",
    "ClientOptions": "octavo.client.options",
    "ClientStatistics": "octavo.client.statistics.clients",
    "ConnectOptions": "octavo.client.options",
    "ConnectionStatistics": "octavo.client.statistics.clients",
    "Cursor": "octavo.client.log.cursors.cursors",
    "CursorState": "octavo.client.log.documents.cursors",
    "DataLossError": "octavo.pipeline.base.errors",
    "Digest": "octavo.protocol.entries",
    "Entry": "octavo.protocol.entries",
    "EntryBatch": "octavo.client.read.reader",
    "ExplicitIdWriter": "octavo.client.write.explicit_writer",
    "Fragment": "octavo.metadata.ledger.model",
    "Gap": "octavo.client.log.seam.entries",
    "KeyWindow": "octavo.client.log.documents.key_window",
    "Keyed": "octavo.client.log.keys.form",
    "LedgerMetadata": "octavo.metadata.ledger.model",
    "LedgerReader": "octavo.client.read.reader",
    "LedgerState": "octavo.metadata.ledger.model",
    "LedgerWriter": "octavo.client.write.writer",
    "LedgerWriterStatistics": "octavo.client.statistics.writers",
    "Log": "octavo.client.log.log",
    "LogEntry": "octavo.client.log.seam.entries",
    "LogExtent": "octavo.client.log.seam.entries",
    "LogStatistics": "octavo.client.statistics.logs",
    "LogStatus": "octavo.client.log.seam.status",
    "LogWriter": "octavo.client.log.writer.writer",
    "LogWriterStatistics": "octavo.client.statistics.writers",
    "Opening": "octavo.client.awaitable_context",
    "Quorums": "octavo.protocol.quorums",
    "ReaderStatistics": "octavo.client.statistics.readers",
    "ReplicaAnswer": "octavo.client.read.replica_read",
    "ReplicationStatistics": "octavo.client.statistics.writers",
    "Retention": "octavo.client.log.documents.chain",
    "SegmentStatus": "octavo.client.log.seam.status",
    "Tls": "octavo.security.tls_options",
    "connect": "octavo.client.connect",
    "keyed_of": "octavo.client.log.keys.form",
}
"""Where a public name lives; every other one is an error."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    if name == "metrics":
        return import_module("octavo.metrics")
    value = getattr(import_module(_HOMES.get(name, "octavo.protocol.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
