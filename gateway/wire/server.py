"""The port of a gateway: accepts connections, and serves each in a task of its own.

With TLS, connections come from :class:`~octavo.security.tls_port.Arrivals`, which bounds handshakes and connections
that are not ready. A client whose principal is not known gives way to a new connection where there is no place left.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import structlog
from octavo.gateway.wire.budget import ByteBudget
from octavo.gateway.wire.connection import BUFFER_BYTES, Connection, ConnectionLimits, RequestHandler
from octavo.security.contexts import ServerContext
from octavo.security.tls_port import ArrivalLimits, Arrivals

log = structlog.get_logger("octavo.gateway")


CONNECTIONS_MAX: Final = 2000


class TlsListener(NamedTuple):
    """How a port speaks TLS."""

    context: Callable[[], ServerContext]
    """That of the handshakes that begin now."""
    plain_too: bool
    """Whether clients may do without."""
    limits: ArrivalLimits


class GatewayServer:
    """See the module."""

    def __init__(
        self,
        handler: RequestHandler,
        budget: ByteBudget,
        limits: ConnectionLimits | None = None,
        *,
        connections_max: int = CONNECTIONS_MAX,
        tls: TlsListener | None = None,
    ) -> None:
        """``connections_max``: further ones are closed at once. ``tls`` None: the port does not speak TLS."""
        self._tls = tls
        self._arrivals: Arrivals | None = None
        self._handler = handler
        self._budget = budget
        self._limits = limits or ConnectionLimits()
        self._connections_max = connections_max
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[str]] = set()
        self.refused = 0
        """Connections that were closed because there were too many."""

    @property
    def connections(self) -> int:
        """Those that are open."""
        return len(self._serving)

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which the operating system chooses for 0.

        Raises:
            OSError: The address cannot be used.
        """
        loop = asyncio.get_running_loop()

        def protocol() -> asyncio.StreamReaderProtocol:
            reader = asyncio.StreamReader(limit=BUFFER_BYTES, loop=loop)
            return asyncio.StreamReaderProtocol(reader, partial(self._connected), loop=loop)

        accept: Callable[[], asyncio.Protocol] = protocol
        if self._tls is not None:
            tls = self._tls
            # A client of Kafka's protocol that does not speak TLS understands nothing that could be said to it.
            self._arrivals = Arrivals(
                tls.context, plain_too=tls.plain_too, limits=tls.limits, serve=protocol, refusal=lambda _error: b""
            )
            accept = self._arrivals.connection
        self._server = await loop.create_server(accept, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= self._connections_max and not self._handler.access.give_way():
            self.refused += 1
            writer.transport.abort()
            return
        connection = Connection(reader, writer, self._handler, self._budget, self._limits)
        task = asyncio.get_running_loop().create_task(connection.run())
        self._serving.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[str]) -> None:
        self._serving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request has failed, its connection is closed", error=repr(error), exc_info=error)

    async def close(self) -> None:
        """Close the port and all connections. Requests that are being served are abandoned."""
        if self._server is not None:
            self._server.close()
        if self._arrivals is not None:
            self._arrivals.close()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
