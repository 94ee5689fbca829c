"""A TCP proxy in front of a ZooKeeper server that understands enough of the protocol to lose chosen messages.

It can cut connections, refuse new ones, hold everything back, and do to one request of a given kind what networks do:
lose it on its way, or lose its answer though it was done.
"""

import asyncio
import contextlib
import struct
from collections import Counter
from types import TracebackType
from typing import Self

CREATE, EXISTS, GET, SET, SYNC, MULTI, CHILDREN = 15, 3, 4, 5, 9, 14, 8
CREATE_CONTAINER, FORGET_WATCHES = 19, 18
"""Kinds of requests (opcodes)."""


class ZooKeeperProxy:
    """``async with ZooKeeperProxy(port) as proxy`` forwards to that port; :attr:`port` is the proxy's port."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.refusing = False
        """Whether new connections are closed at once."""
        self.requests: list[int] = []
        """Kinds of all requests received, in order."""
        self.watched: Counter[str] = Counter()
        """Path -> number of requests to watch it."""
        self.lose_request: int | None = None
        """Kind of a request to lose: the connection is closed before the server receives it."""
        self.lose_answer: int | None = None
        """Kind of a request whose answer to lose: the connection is closed after the server has executed it."""
        self.hold: int | None = None
        """Kind of a request to hold back, and everything after it, until :meth:`resume`."""
        self.held = asyncio.Event()
        """Set when it is held."""
        self.lost = asyncio.Event()
        """Set when one of them was lost."""

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._listener is not None
        self._listener.close()
        self.refusing = True
        self.cut()
        self.resume()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Close every connection."""
        for link in list(self._links):
            link.abort()

    def stall(self) -> None:
        """Hold back all data in both directions from now on."""
        self._open.clear()

    def resume(self) -> None:
        """Forward the data held back, and all later data."""
        self._open.set()

    def away(self) -> None:
        """Act like a host that is down: close all connections and accept none."""
        self.refusing = True
        self.cut()

    def back(self) -> None:
        """Accept connections again."""
        self.refusing = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.refusing:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self, writer, server_writer)
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(link.carry_requests(reader))
                group.create_task(link.carry_answers(server_reader))
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            link.abort()
            self._links.discard(link)

    def note(self, kind: int) -> None:
        """Handle a request of the client."""
        self.requests.append(kind)
        if kind == self.hold:
            self.hold = None
            self.stall()
            self.held.set()

    async def wait_open(self) -> None:
        """Wait until nothing is held back."""
        await self._open.wait()


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: ZooKeeperProxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._lose_answer_to: int | None = None

    def abort(self) -> None:
        for writer in (self._client, self._server):
            with contextlib.suppress(Exception):
                writer.transport.abort()

    async def carry_requests(self, reader: asyncio.StreamReader) -> None:
        proxy = self._proxy
        first = True
        while True:
            frame = await _frame(reader)
            if not first:
                xid, kind = struct.unpack_from("!ii", frame)
                self._note(kind, frame)
                if kind == proxy.lose_request:
                    proxy.lose_request = None
                    proxy.lost.set()
                    self.abort()
                    return
                if kind == proxy.lose_answer:
                    proxy.lose_answer = None
                    self._lose_answer_to = xid
            first = False
            await proxy.wait_open()
            self._server.write(struct.pack("!i", len(frame)) + frame)
            await self._server.drain()

    async def carry_answers(self, reader: asyncio.StreamReader) -> None:
        first = True
        while True:
            frame = await _frame(reader)
            await self._proxy.wait_open()
            if not first and struct.unpack_from("!i", frame)[0] == self._lose_answer_to:
                self._proxy.lost.set()
                self.abort()
                return
            first = False
            self._client.write(struct.pack("!i", len(frame)) + frame)
            await self._client.drain()

    def _note(self, kind: int, frame: bytes) -> None:
        if kind < 0 or kind == 11:  # the end of a session, and heartbeats
            return
        self._proxy.note(kind)
        if kind in {GET, EXISTS, CHILDREN} and frame[-1] == 1:
            self._proxy.watched[frame[12:-1].decode()] += 1


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack("!i", await reader.readexactly(4))
    return await reader.readexactly(length)
