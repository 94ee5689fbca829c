"""Opening a reader: it learns how far the ledger can be read."""

from collections.abc import Callable

from octavo.client.options import ClientOptions
from octavo.client.read.feeds import Feeds
from octavo.client.read.follow import ENTRY_WAIT_SECONDS
from octavo.client.read.range_read import BlameList
from octavo.client.read.reader import LedgerReader
from octavo.client.read.source import TermSource
from octavo.client.wire.pool import ConnectionPool
from octavo.protocol.entries import LedgerSecrets


async def open_reader(
    source: TermSource,
    secrets: LedgerSecrets,
    *,
    pool: ConnectionPool,
    options: ClientOptions,
    blame: BlameList,
    draw: Callable[[], float],
    feeds: Feeds | None = None,
    entry_wait_seconds: float = ENTRY_WAIT_SECONDS,
    on_made: Callable[[LedgerReader], None] = lambda _reader: None,
    on_close: Callable[[LedgerReader], None] = lambda _reader: None,
) -> LedgerReader:
    """A reader of this term that knows how far it can be read. Asks no bookie of a closed ledger.

    ``on_made`` is called with the reader before it asks anything, ``on_close`` when it is closed. ``feeds``:
    of the client; None: the reader has some of its own. Raises :class:`QuorumLostError` if no bookie of an open ledger
    answers; the reader is closed then.
    """
    reader = LedgerReader(
        source, secrets, pool=pool, options=options, blame=blame, draw=draw, on_close=on_close,
        feeds=feeds or Feeds(pool, options, blame, draw), entry_wait_seconds=entry_wait_seconds,
    )  # fmt: skip
    on_made(reader)
    try:
        await reader._start()
    except BaseException:
        await reader.close()
        raise
    return reader
