"""Detects another process that runs, or may run, as the bookie that is about to start (rule B10).

The generations of the cookies (``cookie``) distinguish a copy from the original once one of them has been started after
the copy was made. Before that, the bookie that runs is the original: this module asks at its registered address, and at
the one in its cookie, because a bookie that is cut off from the metadata serves on unregistered. What answers there
with anything that only Octavo says may be the original, also if it refuses to talk: a bookie with ``tls = "required"``
says nothing else to a stranger. So may a registered one that takes the connection and does not answer: it is paused.
An address that nothing answers at proves nothing, because its host may be down; then the generations decide.
"""

import asyncio
import enum
from typing import NamedTuple

from octavo.bookie.identity.errors import BookieStartError
from octavo.metadata.cluster.registration import endpoint_of, split_address
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.errors import OctavoError, WrongClusterError
from octavo.protocol.frames import FrameDecoder, frame_of, unpack_body
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import MAGIC, PROTOCOL_VERSION, Hello, decode_hello, encode_hello

ANSWER_SECONDS = 2.0
"""Default time for an address to accept a connection and answer. A start takes this long when a host drops packets."""


class _Found(enum.Enum):
    """The process at an address."""

    NOTHING = "nothing that could be the bookie"
    SILENCE = "a process takes connections and does not answer"
    OCTAVO = "a bookie that does not say who it is"
    BOOKIE = "the bookie"


class Original(NamedTuple):
    """The process that runs, or may run, as the bookie."""

    where: str
    """The beginning of a sentence."""
    certain: bool
    """It said so itself. Otherwise it may be something else, or gone in a moment."""


async def find_running_original(
    store: MetadataStore,
    bookie_id: BookieId,
    cluster_id: str,
    software: str,
    *,
    answer_seconds: float = ANSWER_SECONDS,
) -> Original | None:
    """The process that runs, or may run, as the bookie with this id; None if nothing is found within
    ``answer_seconds``. Call it before the calling process listens. Raises the errors of the metadata store."""
    cookie = await store.read_cookie(bookie_id)
    registrations = await store.list_bookies()
    registration = registrations.get(bookie_id)
    addresses = {} if registration is None else {registration.address: True}
    if cookie is not None and all(one.address != cookie.value.address for one in registrations.values()):
        addresses[cookie.value.address] = False  # where no other bookie has moved in
    wanted = Hello(MAGIC, PROTOCOL_VERSION, PROTOCOL_VERSION, software, cluster_id, bookie_id, "", ())
    for address, registered in addresses.items():
        found = await _look_at(address, wanted, answer_seconds)
        if found is _Found.BOOKIE:
            return Original(f"bookie {bookie_id} is already running at {address}", certain=True)
        if found is _Found.OCTAVO:
            where = f"bookie {bookie_id} may be running at {address}, where a bookie answers and does not say its name"
            return Original(where, certain=False)
        if found is _Found.SILENCE and registered:
            where = f"bookie {bookie_id} is registered at {address}, where a process listens and does not answer"
            return Original(where, certain=False)
    return None


async def wait_until_unregistered(store: MetadataStore, bookie_id: BookieId, *, seconds: float) -> None:
    """Wait until no process is registered under the id, which is to get other data: what is registered is sure of its
    id, and confirms and denies. A registration that is not renewed ends by itself. Raises :class:`BookieStartError` if
    there still is one after ``seconds``."""
    try:
        async with asyncio.timeout(seconds), store.watch_bookies() as watch:
            async for registrations in watch:
                if bookie_id not in registrations:
                    return
    except TimeoutError as error:
        raise BookieStartError(
            f"a process keeps itself registered as bookie {bookie_id}, and it does not have the data of these "
            "directories; `octavo bookies` shows where it is: stop it first, or wait until its registration has ended"
        ) from error


async def _look_at(address: str, hello: Hello, answer_seconds: float) -> _Found:
    host, port = split_address(address)
    if port == 0:
        return _Found.NOTHING  # no address: the bookie took any free port
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[bytes] = loop.create_future()
    connected = False
    try:
        endpoint_of(address)  # raises for a host that cannot be looked up: nothing answers there
        async with asyncio.timeout(answer_seconds):
            transport, _ = await loop.create_connection(lambda: _FirstFrame(answered), host, port)
            connected = True
            try:
                transport.write(frame_of(encode_hello(hello)))
                return _who_answers(await answered, hello)
            finally:
                transport.abort()
    except TimeoutError:
        return _Found.SILENCE if connected else _Found.NOTHING
    except (OSError, OctavoError):
        return _Found.NOTHING


def _who_answers(body: bytes, hello: Hello) -> _Found:
    """Raises :class:`OctavoError` for what is no frame of Octavo."""
    answer = decode_hello(unpack_body(body))
    if isinstance(answer, Hello):
        same = (answer.bookie_id, answer.cluster_id) == (hello.bookie_id, hello.cluster_id)
        return _Found.BOOKIE if same else _Found.NOTHING
    return _Found.NOTHING if isinstance(answer, WrongClusterError) else _Found.OCTAVO


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
