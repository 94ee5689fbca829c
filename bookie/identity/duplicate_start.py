"""Detects a start on a copy of a running bookie's directories.

The generations of the cookies (``cookie``) distinguish a copy from the original once one of them has been started after
the copy was made. Before that, the bookie that runs is the original: this module connects to its registered address. An
address that does not answer proves nothing, because its host may be down; then the generations decide.
"""

import asyncio

from octavo.metadata.registration import split_address
from octavo.metadata.store import MetadataStore
from octavo.protocol.errors import OctavoError
from octavo.protocol.frames import FrameDecoder, frame_of, unpack_body
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import MAGIC, PROTOCOL_VERSION, Hello, decode_hello, encode_hello

ANSWER_SECONDS = 2.0
"""Default time for an address to accept a connection and answer. A start takes this long when a host drops packets."""


async def find_running_original(
    store: MetadataStore,
    bookie_id: BookieId,
    cluster_id: str,
    software: str,
    *,
    answer_seconds: float = ANSWER_SECONDS,
) -> str | None:
    """The registered address at which a bookie with this id answers; None when no such bookie answers within
    ``answer_seconds``. Call it before the calling process listens. Raises the errors of the metadata store."""
    registration = (await store.list_bookies()).get(bookie_id)
    if registration is None:
        return None
    wanted = Hello(MAGIC, PROTOCOL_VERSION, PROTOCOL_VERSION, software, cluster_id, bookie_id, "", ())
    try:
        async with asyncio.timeout(answer_seconds):
            answer = await _greet(registration.address, wanted)
    except (OSError, OctavoError):  # TimeoutError is an OSError
        return None
    same = isinstance(answer, Hello) and (answer.bookie_id, answer.cluster_id) == (bookie_id, cluster_id)
    return registration.address if same else None


async def _greet(address: str, hello: Hello) -> Hello | OctavoError:
    """The first frame of the answer, decoded. Raises OSError, ProtocolError."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[bytes] = loop.create_future()
    transport, _ = await loop.create_connection(lambda: _FirstFrame(answered), *split_address(address))
    try:
        body = encode_hello(hello)
        transport.write(frame_of(body))
        return decode_hello(unpack_body(await answered))
    finally:
        transport.abort()


class _FirstFrame(asyncio.Protocol):
    """Sets a future to the first frame received, or to the error that prevented it."""

    def __init__(self, answered: asyncio.Future[bytes]) -> None:
        self._answered = answered
        self._decoder = FrameDecoder()

    def data_received(self, data: bytes) -> None:
        if self._answered.done():
            return
        try:
            frame = next(iter(self._decoder.feed(data)), None)
        except OctavoError as error:
            self._answered.set_exception(error)
        else:
            if frame is not None:
                self._answered.set_result(bytes(frame))

    def connection_lost(self, error: Exception | None) -> None:
        if not self._answered.done():
            self._answered.set_exception(error or ConnectionResetError("closed without an answer"))
            self._answered.exception()  # retrieved, because the waiting call may have timed out
