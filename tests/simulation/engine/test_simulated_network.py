"""The simulated network guarantees what TCP guarantees, and nothing more."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from simulation.engine.loop import Process, SimulationLoop
from simulation.engine.network import Network, NetworkSettings
from simulation.engine.trace import Trace


class Recorder(asyncio.Protocol):
    """Records what happens to one end of a connection."""

    def __init__(self) -> None:
        self.received = b""
        self.reads = 0
        self.lost: list[Exception | None] = []
        self.paused = 0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.reads += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.paused -= 1


class Pair:
    """A server process and a client process with one connection between them."""

    def __init__(self, **settings: Any) -> None:
        self.loop = SimulationLoop()
        self.network = Network(self.loop, random.Random(1), NetworkSettings(**settings), Trace())
        self.server = Process(self.loop, "server")
        self.client = Process(self.loop, "client")
        for process in (self.server, self.client):
            self.network.attach(process, process.name)
        self.there = Recorder()
        self.here = Recorder()
        self.failed: list[BaseException] = []

    async def connect(self) -> None:
        async def listen() -> None:
            await asyncio.get_running_loop().create_server(lambda: self.there, "server", 1)

        async def dial() -> None:
            await asyncio.get_running_loop().create_connection(lambda: self.here, "server", 1)

        self.server.spawn(listen(), "listen")
        await asyncio.sleep(0.01)
        self.client.spawn(dial(), "dial")
        await asyncio.sleep(1)

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def both() -> None:
            await self.connect()
            await main()

        self.loop.run_until_complete(both())


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair(split_chance=0.3)
    yield pair
    pair.loop.close()


def test_bytes_arrive_in_order_whole_and_in_other_pieces(pair: Pair) -> None:
    sent = [bytes([number]) * (number + 1) for number in range(100)]

    async def main() -> None:
        for piece in sent:
            pair.here.transport.write(piece)
        await asyncio.sleep(1)
        assert pair.there.received == b"".join(sent)
        assert 1 < pair.there.reads < 100

    pair.run(main)


def test_partition_delays_and_does_not_lose(pair: Pair) -> None:
    async def main() -> None:
        pair.network.set_blocked("client", "server", True)
        pair.here.transport.write(b"late")
        pair.there.transport.write(b"other way")
        await asyncio.sleep(60)
        assert (pair.there.received, pair.here.received) == (b"", b"other way")
        pair.network.heal()
        await asyncio.sleep(1)
        assert pair.there.received == b"late"
        assert not pair.there.lost

    pair.run(main)


def test_steady_delay_is_the_same_for_every_packet(pair: Pair) -> None:
    async def main() -> None:
        link = pair.network.link("client", "server")
        link.extra_delay_seconds, link.steady = 0.5, True
        for _ in range(20):
            assert 0.5 < pair.network.delay("client", "server") < 0.51
        pair.network.heal()
        assert pair.network.delay("client", "server") < 0.01

    pair.run(main)


def test_reset_gives_each_end_a_prefix_and_an_error(pair: Pair) -> None:
    async def main() -> None:
        pair.here.transport.write(b"x" * 1000)
        pair.network.reset_some("server", 1.0)
        await asyncio.sleep(1)
        assert len(pair.there.received) < 1000
        assert isinstance(pair.there.lost[0], ConnectionResetError)
        assert isinstance(pair.here.lost[0], ConnectionResetError)

    pair.run(main)


def test_killed_process_is_noticed_and_a_power_cut_is_not_until_the_machine_is_back(pair: Pair) -> None:
    async def main() -> None:
        pair.network.power_off("server")
        pair.server.kill()
        pair.here.transport.write(b"into the void")
        await asyncio.sleep(100)
        assert pair.here.lost == []
        pair.network.power_on("server")
        await asyncio.sleep(1)
        assert isinstance(pair.here.lost[0], ConnectionResetError)

    pair.run(main)


def test_kill_ends_the_connection_at_the_other_side(pair: Pair) -> None:
    async def main() -> None:
        pair.server.kill()
        await asyncio.sleep(1)
        assert len(pair.here.lost) == 1

    pair.run(main)


def test_slow_reader_pauses_the_writer() -> None:
    pair = Pair(socket_bytes=1000)

    async def main() -> None:
        pair.here.transport.set_write_buffer_limits(high=500)
        pair.there.transport.pause_reading()
        pair.here.transport.write(b"x" * 1400)
        assert pair.here.paused == 0
        pair.here.transport.write(b"x" * 200)
        assert pair.here.paused == 1
        pair.there.transport.resume_reading()
        await asyncio.sleep(1)
        assert pair.here.paused == 0
        assert len(pair.there.received) == 1600

    pair.run(main)
    pair.loop.close()


def test_close_delivers_what_was_written(pair: Pair) -> None:
    async def main() -> None:
        pair.here.transport.write(b"farewell")
        pair.here.transport.close()
        await asyncio.sleep(1)
        assert pair.there.received == b"farewell"
        assert (pair.there.lost, pair.here.lost) == ([None], [None])

    pair.run(main)


def test_connection_is_refused_without_a_server_and_retried_during_a_partition(pair: Pair) -> None:
    outcome: list[object] = []

    async def dial(port: int) -> None:
        try:
            await asyncio.get_running_loop().create_connection(Recorder, "server", port)
            outcome.append("connected")
        except ConnectionRefusedError:
            outcome.append("refused")

    async def main() -> None:
        pair.client.spawn(dial(2), "dial")
        await asyncio.sleep(1)
        pair.network.set_blocked("client", "server", True)
        pair.client.spawn(dial(1), "dial again")
        await asyncio.sleep(5)
        assert outcome == ["refused"]
        pair.network.heal()
        await asyncio.sleep(10)
        assert outcome == ["refused", "connected"]

    pair.run(main)
