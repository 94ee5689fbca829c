"""Clients that send frames in part: their memory is bounded, and honest clients are served meanwhile."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.metadata import open_metadata_store
from octavo.protocol.errors import BookieOverloadedError, ProtocolError
from octavo.protocol.frames import LENGTH
from octavo.protocol.limits import FRAME_BYTES_MAX
from octavo.protocol.messages import Added, Hello, Ping, Pong, decode_hello
from support.disks.faulty_filesystem import MemoryFileSystem
from support.raw_client import RawClient, add, seal
from support.waiting import WAIT_SECONDS

pytestmark = pytest.mark.usefixtures("logged")

MIB = 1 << 20


@asynccontextmanager
async def bookie_with(**settings: object) -> AsyncIterator[Bookie]:
    chosen = {"data_dir": Path("/bookie"), "port": 0, "journal_segment_bytes": 16 << 20, **settings}
    async with await open_metadata_store("memory://", create=True) as store:
        bookie = await Bookie.start(
            load_config(None, {}, chosen),
            filesystem=MemoryFileSystem(),
            store=store,
            rng=random.Random(1),
            software="0",
        )
        try:
            yield bookie
        finally:
            await bookie.stop()


def client_of(bookie: Bookie) -> RawClient:
    host, _, port = bookie.address.rpartition(":")
    return RawClient(host, int(port))


async def send_half(client: RawClient) -> None:
    """A frame of the largest size, of which only half is sent."""
    client.writer.write(LENGTH.pack(FRAME_BYTES_MAX) + bytes(FRAME_BYTES_MAX // 2))
    await asyncio.wait_for(client.writer.drain(), WAIT_SECONDS)


async def refusal_of(client: RawClient) -> object:
    """The error frame that ends the connection."""
    return decode_hello(await asyncio.wait_for(client.receive(), WAIT_SECONDS))


async def test_unfinished_frames_of_many_connections_are_bounded_and_honest_clients_are_served() -> None:
    async with bookie_with(unfinished_frame_bytes=16 * MIB) as bookie, AsyncExitStack() as stack:
        frames = bookie.service.frames
        sending = []
        for _ in range(10):
            attacker = await stack.enter_async_context(client_of(bookie))
            await attacker.greet()
            sending.append(asyncio.ensure_future(send_half(attacker)))
        honest = await stack.enter_async_context(client_of(bookie))
        await honest.greet()
        payload = bytes(3 * MIB)
        for number in range(3):
            async with asyncio.timeout(WAIT_SECONDS):
                assert await honest.ask(add(7, seal(7, 2 * number, [payload, payload]))) == Added()
            # Ten half frames are 40 MiB. What one turn of the loop reads from each socket comes on top.
            assert frames.held <= 16 * MIB + 10 * MIB // 4
        assert frames.dropped > 0
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


async def test_a_frame_must_be_completed_in_time() -> None:
    async with bookie_with(frame_timeout_seconds=0.01) as bookie, client_of(bookie) as slow, client_of(bookie) as idle:
        await slow.greet()
        await idle.greet()
        slow.writer.write(LENGTH.pack(1000) + b"not all of it")
        assert isinstance(await refusal_of(slow), ProtocolError)
        assert await idle.ask(Ping()) == Pong(), "between frames a client may wait as long as it likes"
        assert bookie.service.frames.held == 0


async def test_a_client_must_send_its_hello_in_time() -> None:
    async with bookie_with(hello_timeout_seconds=0.01) as bookie, client_of(bookie) as silent:
        refusal = await refusal_of(silent)
        assert isinstance(refusal, ProtocolError)
        assert "no hello within 0.01 seconds" in refusal.message


async def test_connections_beyond_the_limit_are_refused_until_one_ends() -> None:
    async with bookie_with(connections_max=2) as bookie, client_of(bookie) as first:
        await first.greet()
        async with client_of(bookie) as second:
            await second.greet()
            async with client_of(bookie) as third:
                assert isinstance(await refusal_of(third), BookieOverloadedError)
        async with asyncio.timeout(WAIT_SECONDS):
            while len(bookie.service.connections) > 1:  # noqa: ASYNC110 - the socket's end arrives in the bookie's loop
                await asyncio.sleep(0)
        async with client_of(bookie) as fourth:
            assert isinstance(await fourth.greet(), Hello)
        assert await first.ask(Ping()) == Pong()
