"""One connection of a client: a request at a time, answered in order (rule K13).

A frame's size is compared with the limit before any of it is kept. Small frames, and the beginnings of larger ones, lie
in the buffer of the connection; for the rest of a larger one, bytes are taken from the budget that all connections
share. A frame must be whole, and an answer must be read, within a time; a connection that is late is closed. The next
request is not looked at before the client has read the answer to the last one, so a client that does not read holds one
answer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final, NamedTuple

from octavo.gateway.access.access import GatewayAccess
from octavo.gateway.access.gate import Peer
from octavo.gateway.wire.apis import (
    BEFORE_AUTHENTICATION,
    FRAME_PREFIX_BYTES,
    Request,
    UnknownVersionError,
    answer_frame,
    answer_header,
    decode_header,
    frame_size,
    unknown_version_answer,
)
from octavo.gateway.wire.budget import ByteBudget
from octavo.gateway.wire.fields import MalformedError
from octavo.protocol.errors import OctavoError
from octavo.security.names import names_of

type Pieces = list[bytes | bytearray]

_LINGER_SECONDS: Final = 2.0
"""A client that is refused has this time to read why."""

BUFFER_BYTES: Final = 64 * 1024
"""Of each connection: what is read before bytes are taken from the budget."""


class ConnectionLimits(NamedTuple):
    """The bounds of each connection."""

    frame_bytes_max: int = 16 * 1024 * 1024
    """Of a request. The largest batch has 4 MiB; a request may hold batches for several partitions."""
    frame_seconds_max: float = 30.0
    """From the beginning of a frame to its end."""
    answer_seconds_max: float = 60.0
    """Until the client has read an answer, but for what the operating system holds."""
    idle_seconds_max: float = 600.0
    """Between requests; Kafka's servers close idle connections then, too."""

    stranger_frame_bytes_max: int = 16 * 1024
    """Of a client that is not authenticated, where that is required: it has nothing to say but who it is."""


class RequestHandler(NamedTuple):
    """The gateway, as a connection sees it."""

    answer: Callable[[Request, AsyncExitStack], Awaitable[Pieces | None]]
    """The answer behind its header; None: there is none. The stack is left once the client has read the answer."""
    access: GatewayAccess
    """Who the clients are."""


class Connection:
    """See the module."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handler: RequestHandler,
        budget: ByteBudget,
        limits: ConnectionLimits,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handler = handler
        self._budget = budget
        self._limits = limits
        peer = writer.get_extra_info("peername")
        self._host = str(peer[0]) if peer else ""
        tls = writer.get_extra_info("tls_session")
        names = () if tls is None else names_of(tls.peer_certificate())
        address = f"{self._host}:{peer[1]}" if peer else ""
        self._gate = handler.access.gate(Peer(address, over_tls=tls is not None, names=names), writer.transport.abort)

    async def run(self) -> str:
        """Serve the client until it or the gateway ends the connection; why it ended, in words."""
        try:
            return await self._serve_until_refused()
        except asyncio.IncompleteReadError as error:
            return "the client has closed it" if not error.partial else "the client has closed it within a frame"
        except MalformedError as error:
            return str(error)
        except TimeoutError:
            return "the client was too slow, or idle"
        except (ConnectionError, OSError, OctavoError) as error:
            return f"it was lost: {error}"
        finally:
            self._gate.leave()
            self._close()

    async def _serve_until_refused(self) -> str:
        while not self._gate.is_over:
            await self._serve_one()
        return "the client was refused"

    def _close(self) -> None:
        transport = self._writer.transport
        if self._gate.is_over:
            # The client learns why.
            transport.close()
            asyncio.get_running_loop().call_later(_LINGER_SECONDS, transport.abort)
        else:
            # Not after a flush: the client may never read what is left.
            transport.abort()

    async def _serve_one(self) -> None:
        async with AsyncExitStack() as held:
            frame = await self._read_frame(held)
            try:
                request = replace(decode_header(memoryview(frame)), host=self._host, gate=self._gate)
            except UnknownVersionError as error:
                await self._send(unknown_version_answer(error.number))
                return
            if not self._gate.is_open and request.api not in BEFORE_AUTHENTICATION:
                self._gate.refuse_stranger(request.api.name)
                raise MalformedError(f"the client must authenticate before {request.api.name}")
            pieces = await self._handler.answer(request, held)
            if pieces is not None:
                await self._send(answer_frame(answer_header(request), pieces))

    async def _read_frame(self, held: AsyncExitStack) -> bytes:
        reader = self._reader
        async with asyncio.timeout(self._limits.idle_seconds_max):
            first = await reader.readexactly(1)
        async with asyncio.timeout(self._limits.frame_seconds_max):
            size = frame_size(first + await reader.readexactly(FRAME_PREFIX_BYTES - 1))
            limits = self._limits
            bytes_max = limits.frame_bytes_max if self._gate.is_open else limits.stranger_frame_bytes_max
            if not 0 <= size <= bytes_max:
                raise MalformedError(f"a frame of {size} bytes; the limit is {bytes_max}")
            beginning = await reader.readexactly(min(size, BUFFER_BYTES))
            if size == len(beginning):
                return beginning
            await held.enter_async_context(self._budget.holding(size))
            return beginning + await reader.readexactly(size - len(beginning))

    async def _send(self, pieces: Pieces) -> None:
        # Not `writelines`: before CPython 3.13.2 and 3.12.9 it does not pause the writer, and `drain` would not wait
        # (gh-127655).
        self._writer.write(b"".join(pieces))
        async with asyncio.timeout(self._limits.answer_seconds_max):
            await self._writer.drain()
