"""A bookie's listening side: accepts connections, and drains them at the end."""

import asyncio
from collections.abc import Callable
from functools import partial

from octavo.bookie.server.connection import Connection
from octavo.bookie.server.service import BookieService
from octavo.security import forks
from octavo.security.tls_port import Arrivals

_BACKLOG = 512
"""Connections that the kernel may hold before they are accepted: all clients of a cluster may come back at once."""


class BookieServer:
    """Listens, and serves every connection from one :class:`BookieService`."""

    def __init__(
        self, service: BookieService, tls: Callable[[Callable[[], asyncio.Protocol]], Arrivals] | None = None
    ) -> None:
        """``tls`` makes what tells TLS from plain connections, given what makes a connection; None: all are plain."""
        self.service = service
        connect = partial(Connection, service)
        self.arrivals = tls(connect) if tls is not None else None
        self._connect: Callable[[], asyncio.Protocol] = connect if self.arrivals is None else self.arrivals.connection
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port listened on. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connect, host, port, backlog=_BACKLOG)
        forks.hold(self)
        return int(self._server.sockets[0].getsockname()[1])

    def on_forked(self) -> None:
        """In a forked child (rule H1): the bookie is the parent's, and its port is free when it ends."""
        for sock in () if self._server is None else self._server.sockets:
            forks.lead_nowhere(sock.fileno())

    def sever(self) -> None:
        """Close the port and every connection at once, as the end of the process would."""
        if self._server is not None:
            self._server.close()
        if self.arrivals is not None:
            self.arrivals.close()
        for connection in list(self.service.connections):
            connection.sever()

    async def stop(self, *, drain_timeout_seconds: float) -> None:
        """Accept no more connections and requests, answer those begun, then close every connection."""
        if self._server is not None:
            self._server.close()
        if self.arrivals is not None:
            self.arrivals.close()
        await self.service.drain(drain_timeout_seconds)
