"""Clients that send much and expect nothing sensible: the memory of a real bookie stays bounded, and others are served.

Measured from /proc, because what a frame costs is more than its bytes.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from octavo.protocol.frames import LENGTH, frame_of
from octavo.protocol.limits import FRAME_BYTES_MAX
from octavo.protocol.messages import Added
from support.commands.processes import BookieProcess
from support.raw_client import RawClient, add, key_of, seal
from support.waiting import WAIT_SECONDS

MIB = 1 << 20
CACHE_BYTES = 16 * MIB
UNFINISHED_BYTES = 16 * MIB

RESENDERS, FRAMES_EACH = 4, 24
"""Connections that add held entries again, and how often. All their frames together are six times the bound."""

ADDS_SERVED = 4
"""Adds of an honest client that a bookie must serve while it is attacked. The attackers stay until then."""

HALF_FRAMES = 96
"""Connections with half a frame each: four times the bound, twenty times what they may hold."""


class Host(NamedTuple):
    """A running bookie."""

    port: int
    pid: int

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[RawClient]:
        async with RawClient("127.0.0.1", self.port) as client:
            await client.greet()
            yield client

    def anonymous_bytes(self) -> int:
        """Resident memory that is no file's."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no RssAnon")


@asynccontextmanager
async def running_bookie(directory: Path) -> AsyncIterator[Host]:
    config = directory / "bookie.toml"
    config.write_text(f"cache_bytes = {CACHE_BYTES}\nunfinished_frame_bytes = {UNFINISHED_BYTES}\n")
    metadata = f"sqlite:///{directory}/metadata.db"
    with BookieProcess(directory / "bookie", "--port", 0, "--metadata", metadata, "--config", config) as bookie:
        await asyncio.to_thread(bookie.wait_ready)
        yield Host(int(bookie.stderr.partition("address=127.0.0.1:")[2].split()[0]), bookie.process.pid)


async def most_memory_during(host: Host, attack: Awaitable[object], served: asyncio.Event, honest: RawClient) -> int:
    """Bytes of memory above those before the attack, while another client adds entries one by one.

    ``served`` is set when the bookie has served that client.
    """
    before = most = host.anonymous_bytes()
    under_way = asyncio.ensure_future(attack)
    added = 0
    while not under_way.done():
        async with asyncio.timeout(WAIT_SECONDS):
            assert await honest.ask(add(2, seal(2, added, [b"goes on"]))) == Added()
        added += 1
        most = max(most, host.anonymous_bytes())
        if added == ADDS_SERVED:
            served.set()
    await under_way
    return most - before


async def add_again(host: Host, frame: bytes, served: asyncio.Event) -> None:
    """Send adds of held entries as fast as the socket takes them; then stay until the other client was served."""
    async with host.connected() as client:

        async def answers() -> None:
            for _ in range(FRAMES_EACH):
                _, outcome = await client.receive_reply()
                assert outcome == Added()

        answering = asyncio.ensure_future(answers())
        for _ in range(FRAMES_EACH):
            client.writer.write(frame)
            await client.writer.drain()
        await answering
        await served.wait()


async def test_adds_of_held_entries_that_are_sent_again_and_again_cost_bounded_memory(tmp_path: Path) -> None:
    entries = seal(1, 0, [bytes(61_000)] * 128)
    body = add(1, entries, key=key_of(1)).encode(1)
    assert 7 * MIB < len(body) <= FRAME_BYTES_MAX
    served = asyncio.Event()
    async with running_bookie(tmp_path) as host, host.connected() as writer, host.connected() as honest:
        assert await writer.ask(add(1, entries)) == Added()
        frame = frame_of(body)
        attack = asyncio.gather(*(add_again(host, frame, served) for _ in range(RESENDERS)))
        most = await most_memory_during(host, attack, served, honest)
    # Two generations of the cache, and for each connection the frame that came last, as it arrived and as entries.
    bound = 2 * CACHE_BYTES + RESENDERS * 3 * FRAME_BYTES_MAX
    assert most < bound, f"{most >> 20} MiB more than before"
    assert RESENDERS * FRAMES_EACH * len(body) > 5 * bound, "without a bound they could cost far more"


async def send_half(host: Host, seconds: float, served: asyncio.Event) -> None:
    """Send as much of half a frame as the bookie takes within a time; close when the other client was served."""
    async with host.connected() as client:
        client.writer.write(LENGTH.pack(FRAME_BYTES_MAX) + bytes(FRAME_BYTES_MAX // 2))
        # The bookie drops stalled frames: then the connection is gone.
        with contextlib.suppress(TimeoutError, ConnectionError):
            await asyncio.wait_for(client.writer.drain(), seconds)
            await asyncio.wait_for(client.reader.read(), seconds)
        await served.wait()


async def test_half_frames_of_very_many_connections_cost_bounded_memory(tmp_path: Path) -> None:
    served = asyncio.Event()
    async with running_bookie(tmp_path) as host, AsyncExitStack() as stack:
        honest = await stack.enter_async_context(host.connected())
        assert await honest.ask(add(2, seal(2, 10_000, [b"first"]))) == Added()
        attack = asyncio.gather(*(send_half(host, 2.0, served) for _ in range(HALF_FRAMES)))
        most = await most_memory_during(host, attack, served, honest)
    bound = 2 * UNFINISHED_BYTES + HALF_FRAMES * MIB // 2
    assert most < bound, f"{most >> 20} MiB more than before"
    assert 4 * bound < HALF_FRAMES * FRAME_BYTES_MAX // 2, "without a bound they would cost far more"
