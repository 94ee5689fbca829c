"""The parts of public objects that a few tests need: to let a part fail, or to send what no public method sends.

What a writer, a reader, a log or a client is doing, their ``statistics()`` say; a test that only looks needs no part.
"""

from octavo.client.log.seam.access import LedgerAccess
from octavo.client.log.seam.active_segment import ActiveSegment
from octavo.client.log.seam.view import LogView
from octavo.client.log.writer.leader import Leader
from octavo.client.wire.pool import ConnectionPool
from octavo.client.write.core import Core
from octavo.client.write.writer import LedgerWriter
from octavo.metadata import MetadataStore
from octavo.metadata.store.handle import Handle
from octavo.metadata.store.lock_line import LockLine

import octavo


def core_of(writer: LedgerWriter) -> Core:
    """What seals, sends and closes for the writer."""
    return writer._core


def leader_of(writer: octavo.LogWriter) -> Leader:
    """What rolls, heals, keeps the lead and ends for the writer."""
    return writer._leader


def active_of(writer: octavo.LogWriter) -> ActiveSegment:
    """The segment that the leader writes."""
    return leader_of(writer).adds.segment


def view_of(log: octavo.Log) -> LogView:
    """The metadata of the log as the handle knows them."""
    return log._view


def connections_of(client: octavo.Client) -> ConnectionPool:
    """The client's connections to bookies."""
    return client._pool


def access_of(client: octavo.Client) -> LedgerAccess:
    """What the client's logs ask of it."""
    return client._logs._access


def line_of(store: MetadataStore) -> LockLine:
    """The lines of clients that wait for locks."""
    return store._locks.line


def handle_of(store: MetadataStore) -> Handle:
    """What a handle's records have in common."""
    return store._handle
