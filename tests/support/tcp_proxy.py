"""A TCP proxy that can hold back all data: a partition that delays data and loses nothing."""

import asyncio
import contextlib
from types import TracebackType
from typing import Self

_PIECE_BYTES = 64 * 1024


class TcpProxy:
    """``async with TcpProxy("host:port") as proxy`` forwards to that server; :attr:`address` is the proxy's address."""

    def __init__(self, server_address: str) -> None:
        self._host, _, port = server_address.rpartition(":")
        self._port = int(port)
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stall(self) -> None:
        """Hold back all data in both directions from now on."""
        self._open.clear()

    def resume(self) -> None:
        """Forward the data held back, and all later data."""
        self._open.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        server_writer: asyncio.StreamWriter | None = None
        try:
            server_reader, server_writer = await asyncio.open_connection(self._host, self._port)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(reader, server_writer))
                group.create_task(self._carry(server_reader, writer))
        except* OSError:
            pass
        finally:
            writer.transport.abort()
            if server_writer is not None:
                server_writer.transport.abort()

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(_PIECE_BYTES):
            await self._open.wait()
            target.write(data)
            await target.drain()
        with contextlib.suppress(OSError):
            target.write_eof()
