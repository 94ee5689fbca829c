"""The real ZooKeeper of a test run: one server, started when the first test needs it, and what is done to sessions.

Each test has a cluster of its own in it, under a root of its own.
"""

import asyncio
import atexit
import contextlib
import itertools
import struct
import tempfile
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from octavo.metadata import MetadataStore
from octavo.metadata.cluster.registration import split_address
from octavo.metadata.zookeeper.messages import close_session, handshake, parse_handshake
from octavo.metadata.zookeeper.store import ZooKeeperRecordStore
from support.inside import handle_of
from zookeeper_server import ServerGroup, Settings

QUICK = Settings(tick_milliseconds=200, sync=False)
"""Short sessions; no syncs, as nothing here cuts the power."""

type Opener = Callable[..., Awaitable[MetadataStore]]
"""Opens a handle at a URI, with options, that is closed at the end of the test."""

_numbers = itertools.count(1)


@cache
def shared_server() -> ServerGroup:
    """The server, running. Raises ``ZooKeeperError`` saying what is missing, without Java."""
    group = ServerGroup(Path(tempfile.mkdtemp(prefix="octavo-zookeeper-")), settings=QUICK, outlives=False)
    atexit.register(group.destroy)
    group.start()
    return group


def new_cluster_uri() -> str:
    """A URI at which there is no cluster yet."""
    return f"{shared_server().uri}/test-{next(_numbers)}"


def records_of(store: MetadataStore) -> ZooKeeperRecordStore:
    """The driver under a handle."""
    records = handle_of(store).records()
    assert isinstance(records, ZooKeeperRecordStore)
    return records


async def expire_session(records: ZooKeeperRecordStore) -> None:
    """End the session of a handle, as the servers do that have not heard it for its timeout."""
    session = records.session
    session_id, (host, port) = session.session_id, split_address(urlsplit(records.uri).netloc)
    hello = handshake(session_id, session._password, session.timeout_seconds, 0)
    ended = False
    while not ended:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(_framed(hello))
            ended = parse_handshake(await _frame(reader)).session_id != session_id
            if not ended:
                writer.write(_framed(close_session().payload(1)))
                await _frame(reader)
                ended = True
        except asyncio.IncompleteReadError:
            pass  # the handle has taken its session back before it was ended
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _framed(payload: bytes) -> bytes:
    return struct.pack("!i", len(payload)) + payload


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack("!i", await reader.readexactly(4))
    return await reader.readexactly(length)
