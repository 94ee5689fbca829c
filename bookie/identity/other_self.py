"""Whether a bookie of the same name serves already: the original, where this process stands on a copy of its files.

Generations (``cookie``) tell a copy from the original once one of them has been started after the copying. Of two that
look alike to the metadata, the one that serves is the original: it is asked. An address that does not answer says
nothing, as of a host that is down; then the generations decide.
"""

import asyncio

from octavo.metadata.registration import split_address
from octavo.metadata.store import MetadataStore
from octavo.protocol.errors import OctavoError
from octavo.protocol.frames import LENGTH, FrameDecoder, unpack_body
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import MAGIC, PROTOCOL_VERSION, Hello, decode_hello, encode_hello

ANSWER_SECONDS = 2.0
"""How long an address may take to connect and answer. A start waits so long where a host drops packets."""


async def serving_elsewhere(store: MetadataStore, bookie_id: BookieId, cluster_id: str, software: str) -> str | None:
    """The registered address at which a bookie of this id answers; None when none is known to. For a process that does
    not listen itself yet. Raises what the metadata store raises."""
    registration = (await store.list_bookies()).get(bookie_id)
    if registration is None:
        return None
    wanted = Hello(MAGIC, PROTOCOL_VERSION, PROTOCOL_VERSION, software, cluster_id, bookie_id, "", ())
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            answer = await _greet(registration.address, wanted)
    except (OSError, OctavoError):  # TimeoutError is an OSError
        return None
    same = isinstance(answer, Hello) and (answer.bookie_id, answer.cluster_id) == (bookie_id, cluster_id)
    return registration.address if same else None


async def _greet(address: str, hello: Hello) -> Hello | OctavoError:
    """What stands behind the first frame that comes back. Raises OSError, ProtocolError."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[bytes] = loop.create_future()
    transport, _ = await loop.create_connection(lambda: _FirstFrame(answered), *split_address(address))
    try:
        body = encode_hello(hello)
        transport.write(LENGTH.pack(len(body)) + body)
        return decode_hello(unpack_body(await answered))
    finally:
        transport.abort()


class _FirstFrame(asyncio.Protocol):
    """Gives the first frame that arrives to a future, or why none did."""

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
            self._answered.exception()  # whoever waited may have given up
