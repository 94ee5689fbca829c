"""What aiozk's own session does that ours must not: the reasons for docs/decisions/010-zookeeper-session.md.

Each test shows a fault that the driver works round by not using aiozk's session. One that fails tells that aiozk has
mended it: a reason less.
"""

import asyncio
import contextlib
import gc
import logging
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiozk import ZKClient, exc, retry
from octavo.metadata.zookeeper.messages import close_session, handshake
from support.metadata.metadata_clusters import soon
from support.metadata.zookeeper import new_cluster_uri, shared_server


class Network:
    """A way to the server on which answers can be lost; it understands nothing of what it carries."""

    def __init__(self) -> None:
        self.port = 0
        self.begun: list[bytes] = []
        """The first bytes of each connection."""
        self.lose_answer_to = b""
        """The connection breaks when the server has answered a request that has these bytes in it."""
        self.lost = asyncio.Event()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(
            "127.0.0.1", shared_server().servers[0].client_port
        )
        losing = False

        async def requests() -> None:
            nonlocal losing
            first = True
            while piece := await reader.read(65536):
                if first:
                    self.begun.append(piece[:4])
                    first = False
                losing = losing or bool(self.lose_answer_to and self.lose_answer_to in piece)
                server_writer.write(piece)

        async def answers() -> None:
            while piece := await server_reader.read(65536):
                if losing:
                    self.lose_answer_to = b""
                    self.lost.set()
                    break
                writer.write(piece)

        ways = [asyncio.ensure_future(requests()), asyncio.ensure_future(answers())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for one in (writer, server_writer):
                one.close()
                with contextlib.suppress(OSError):
                    await one.wait_closed()


@asynccontextmanager
async def aiozk_client() -> AsyncIterator[tuple[ZKClient, Network, str]]:
    """aiozk on a network, and a path that is its own."""
    network = Network()
    listener = await asyncio.start_server(network.carry, "127.0.0.1", 0)
    network.port = listener.sockets[0].getsockname()[1]
    client = ZKClient(f"127.0.0.1:{network.port}", session_timeout=2)
    await soon(client.start())
    try:
        yield client, network, f"/aiozk-{new_cluster_uri().rpartition('-')[2]}"
    finally:
        with contextlib.suppress(exc.ZKError, TimeoutError):
            await soon(client.close())
        listener.close()
        await soon(listener.wait_closed())
        del client
        with warnings.catch_warnings(action="ignore"):
            await asyncio.sleep(0)
            gc.collect()  # one more fault: it leaves connections open


async def answer[T](ask: Callable[[], Awaitable[T]]) -> T:
    """Asked for until it comes: aiozk waits two seconds for it, and a busy machine may need more."""
    while True:
        with contextlib.suppress(exc.TimeoutError):
            return await soon(ask())


async def test_own_create_that_was_done_is_reported_as_failed() -> None:
    """Sent again by itself, or given up without looking, according to how the connection broke."""
    async with aiozk_client() as (client, network, path):
        network.lose_answer_to = b"what I wanted"
        with pytest.raises((exc.NodeExists, exc.TimeoutError)):
            await soon(client.create(path, b"what I wanted"))
        assert network.lost.is_set()
        assert await answer(lambda: client.get_data(path)) == b"what I wanted"


async def test_own_change_that_was_done_is_reported_as_failed() -> None:
    async with aiozk_client() as (client, network, path):
        await soon(client.create(path, b"before"))
        network.lose_answer_to = b"what I wanted"
        with pytest.raises((exc.BadVersion, exc.TimeoutError)):
            await soon(client.set(path, b"what I wanted", 0))
        assert await answer(lambda: client.get_data(path)) == b"what I wanted"


async def test_expired_session_is_replaced_without_a_word() -> None:
    async with aiozk_client() as (client, _, path):
        await soon(client.create(path, b"", ephemeral=True))
        ended = client.session.session_id
        await end_session(ended, client.session.password)
        with contextlib.suppress(exc.TimeoutError):  # of what happened to be under way, as of any slow server
            await soon(client.exists(path))
        assert not await answer(lambda: client.exists(path)), "it is gone, and nobody was told why"
        assert client.session.session_id != ended


async def end_session(session_id: int, password: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", shared_server().servers[0].client_port)
    for payload in (handshake(session_id, password, 1.0, 0), close_session().payload(1)):
        writer.write(len(payload).to_bytes(4, "big") + payload)
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    writer.close()


async def test_each_connection_is_preceded_by_another_for_a_command() -> None:
    async with aiozk_client() as (_, network, _):
        assert network.begun[0] == b"srvr"
        assert len(network.begun) == 2


async def test_pauses_between_rounds_outlast_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 5:
            raise asyncio.CancelledError

    monkeypatch.setattr(retry, "asyncio", SimpleNamespace(sleep=pause))
    client = ZKClient("127.0.0.1:1", session_timeout=4)
    with pytest.raises(asyncio.CancelledError):
        await client.session.find_server(allow_read_only=False)
    assert pauses == [4, 8, 16, 32, 60]


async def test_neither_sync_nor_authentication_can_be_asked_for() -> None:
    assert not [name for name in dir(ZKClient) if "sync" in name or "auth" in name]


async def test_what_is_sent_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="aiozk.connection.payload")
    async with aiozk_client() as (client, _, path):
        await soon(client.create(path, b"a secret"))
    assert "a secret" in caplog.text


async def test_set_data_takes_no_version() -> None:
    """Its third argument is `force`: a version there overwrites what any other client wrote."""
    async with aiozk_client() as (client, _, path):
        await soon(client.create(path, b"one"))
        await soon(client.set(path, b"another's", 0))
        stale: Any = 7
        await soon(client.set_data(path, b"mine", stale))
        assert await soon(client.get_data(path)) == b"mine"
