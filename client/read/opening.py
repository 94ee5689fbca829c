"""Opening a reader: it learns how far the ledger can be read."""

from collections.abc import Callable

from octavo.client.options import ClientOptions
from octavo.client.read.follow import ENTRY_WAIT_SECONDS
from octavo.client.read.range_read import BlameList
from octavo.client.read.reader import LedgerReader
from octavo.client.read.source import LedgerSource
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.store.values import Versioned
from octavo.protocol.entries import LedgerSecrets


async def open_reader(
    ledger: Versioned[LedgerMetadata],
    secrets: LedgerSecrets,
    *,
    source: LedgerSource,
    pool: ConnectionPool,
    options: ClientOptions,
    blame: BlameList,
    draw: Callable[[], float],
    entry_wait_seconds: float = ENTRY_WAIT_SECONDS,
    on_made: Callable[[LedgerReader], None] = lambda _reader: None,
    on_close: Callable[[LedgerReader], None] = lambda _reader: None,
) -> LedgerReader:
    """A reader that knows how far the ledger can be read. Asks no bookie of a closed ledger.

    ``on_made`` is called with the reader before it asks anything, ``on_close`` when it is closed. Raises
    :class:`QuorumLostError` if no bookie of an open ledger answers; the reader is closed then.
    """
    reader = LedgerReader(
        ledger, secrets, source=source, pool=pool, options=options, blame=blame, draw=draw, on_close=on_close,
        entry_wait_seconds=entry_wait_seconds,
    )  # fmt: skip
    on_made(reader)
    try:
        await reader._start()
    except BaseException:
        await reader.close()
        raise
    return reader
