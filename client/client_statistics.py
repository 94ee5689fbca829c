"""Makes the statistics of a client from its parts, when they are asked for."""

from collections.abc import Iterable
from types import MappingProxyType

from octavo.client.log.logs import Logs
from octavo.client.read.reader import LedgerReader
from octavo.client.statistics.clients import ClientStatistics
from octavo.client.wire.pool import ConnectionPool
from octavo.client.write.explicit_writer import ExplicitIdWriter
from octavo.client.write.writer import LedgerWriter
from octavo.metadata.store.store import MetadataStore


def client_statistics(
    store: MetadataStore,
    pool: ConnectionPool,
    cluster_id: str,
    *,
    writers: Iterable[LedgerWriter | ExplicitIdWriter],
    readers: Iterable[LedgerReader],
    logs: Logs,
    is_closed: bool,
) -> ClientStatistics:
    """The statistics of the client with these parts. The counts are those of its metrics."""
    counts = pool.counts
    return ClientStatistics(
        cluster_id=cluster_id,
        is_closed=is_closed,
        metadata_uri=store.uri,
        is_metadata_answering=store.answers,
        bookies=MappingProxyType(pool.statistics()),
        adds_acknowledged=counts.adds_acknowledged,
        adds_failed=counts.adds_failed,
        adds_pending=counts.adds_pending,
        added_bytes=counts.added_bytes,
        entries_read=counts.entries_read,
        speculative_reads=counts.speculative_reads,
        ensemble_changes=MappingProxyType(dict(counts.ensemble_changes)),
        reconnects=MappingProxyType(dict(counts.reconnects)),
        ledger_writers=tuple(writer.statistics() for writer in writers),
        ledger_readers=tuple(reader.statistics() for reader in readers),
        logs=tuple(handle.statistics() for handle in logs.handles),
        log_writers=tuple(writer.statistics() for writer in logs.writers),
    )
