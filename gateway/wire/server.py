"""The port of a gateway: accepts connections, and serves each in a task of its own."""

import asyncio
from functools import partial

import structlog
from octavo.gateway.wire.budget import ByteBudget
from octavo.gateway.wire.connection import BUFFER_BYTES, Connection, ConnectionLimits, RequestHandler

log = structlog.get_logger("octavo.gateway")


class GatewayServer:
    """See the module."""

    def __init__(
        self,
        handler: RequestHandler,
        budget: ByteBudget,
        limits: ConnectionLimits | None = None,
        *,
        connections_max: int = 2000,
    ) -> None:
        """``connections_max``: further ones are closed at once."""
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

        self._server = await loop.create_server(protocol, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= self._connections_max:
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
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
