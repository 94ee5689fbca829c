"""The bounds of connections: frames, half frames, answers that are not read, shared bytes (rule K13)."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from octavo.gateway.access.access import GatewayAccess
from octavo.gateway.wire.apis import Request
from octavo.gateway.wire.budget import ByteBudget
from octavo.gateway.wire.connection import BUFFER_BYTES, ConnectionLimits, Pieces, RequestHandler
from octavo.gateway.wire.server import GatewayServer
from support.kafka.client import API_VERSIONS, METADATA, frame
from support.waiting import WAIT_SECONDS, eventually

LIMITS = ConnectionLimits(frame_bytes_max=1 << 20)


async def repeat(request: Request, _held: AsyncExitStack) -> Pieces:
    """Answers a request with its own bytes."""
    return [bytes(request.body)]


@asynccontextmanager
async def server(
    answer: Callable[[Request, AsyncExitStack], Awaitable[Pieces | None]] = repeat,
    limits: ConnectionLimits = LIMITS,
    *,
    budget: ByteBudget | None = None,
    connections_max: int = 10,
    access: GatewayAccess | None = None,
) -> AsyncIterator[tuple[GatewayServer, int]]:
    listening = GatewayServer(
        RequestHandler(answer, access or GatewayAccess()), budget or ByteBudget(1 << 24), limits,
        connections_max=connections_max,
    )  # fmt: skip
    port = await listening.start("127.0.0.1", 0)
    try:
        yield listening, port
    finally:
        await listening.close()


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes, number: int = 1) -> bytes:
    writer.write(frame(METADATA, 1, number, body))
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    answer = await reader.readexactly(size)
    assert answer[:4] == struct.pack(">i", number)
    return answer[4:]


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Whether the server closes the connection, in time."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(1), WAIT_SECONDS) == b""
    return True


async def test_requests_are_answered_in_order() -> None:
    async with server() as (_, port):
        reader, writer = await connect(port)
        writer.write(frame(METADATA, 1, 1, b"one") + frame(METADATA, 1, 2, b"two"))
        assert await reader.readexactly(2 * 11) == b"\0\0\0\x07\0\0\0\1one\0\0\0\x07\0\0\0\2two"
        assert await ask(reader, writer, b"three", 3) == b"three"
        writer.close()


async def test_a_request_without_an_answer_does_not_end_the_connection() -> None:
    async def silent(request: Request, _held: AsyncExitStack) -> Pieces | None:
        return None if bytes(request.body) == b"no answer" else [bytes(request.body)]

    async with server(silent) as (_, port):
        reader, writer = await connect(port)
        writer.write(frame(METADATA, 1, 1, b"no answer"))
        assert await ask(reader, writer, b"an answer", 2) == b"an answer"
        writer.close()


@pytest.mark.parametrize("size", [LIMITS.frame_bytes_max + 1, 2**31 - 1, -1])
async def test_a_frame_that_is_too_large_ends_the_connection_before_it_is_read(size: int) -> None:
    async with server() as (listening, port):
        reader, writer = await connect(port)
        writer.write(struct.pack(">i", size))
        assert await is_closed(reader)
        await eventually(lambda: listening.connections == 0)
        writer.close()


async def test_a_large_frame_is_charged_against_the_budget_and_a_small_one_is_not() -> None:
    budget = ByteBudget(1 << 24)
    held: list[int] = []

    async def note(request: Request, _held: AsyncExitStack) -> Pieces:
        held.append(budget.held)
        return [request.body[:1].tobytes()]

    async with server(note, budget=budget) as (_, port):
        reader, writer = await connect(port)
        await ask(reader, writer, b"x" * 1000)
        await ask(reader, writer, b"x" * (2 * BUFFER_BYTES))
        assert held[0] == 0
        assert held[1] > 2 * BUFFER_BYTES
        await ask(reader, writer, b"x")
        assert held[2] == 0
        writer.close()


async def test_half_frames_end_their_connections_after_a_time_and_give_their_bytes_back() -> None:
    budget = ByteBudget(1 << 20)
    limits = ConnectionLimits(frame_bytes_max=1 << 20, frame_seconds_max=0.05)
    async with server(limits=limits, budget=budget) as (listening, port):
        connections = [await connect(port) for _ in range(3)]
        for number, (_, writer) in enumerate(connections):
            writer.write(struct.pack(">i", 1 << 19) + b"x" * (1 << (17 if number else 2)))
        for reader, writer in connections:
            assert await is_closed(reader)
            writer.close()
        await eventually(lambda: listening.connections == 0)
        assert budget.held == 0
        reader, writer = await connect(port)
        assert await ask(reader, writer, b"x" * (1 << 18)) == b"x" * (1 << 18)
        writer.close()


async def test_a_client_that_does_not_read_its_answer_holds_one_and_is_closed() -> None:
    answered: list[int] = []

    async def much(request: Request, _held: AsyncExitStack) -> Pieces:
        answered.append(request.number)
        return [b"x" * (1 << 24)]

    limits = ConnectionLimits(answer_seconds_max=0.05)
    async with server(much, limits) as (listening, port):
        _, writer = await connect(port)
        writer.write(b"".join(frame(METADATA, 1, number, b"") for number in range(10)))
        await eventually(lambda: answered != [])
        await eventually(lambda: listening.connections == 0)
        assert answered == [0]
        writer.close()


async def test_an_idle_connection_is_closed() -> None:
    async with server(limits=ConnectionLimits(idle_seconds_max=0.02)) as (_, port):
        reader, writer = await connect(port)
        assert await is_closed(reader)
        writer.close()


async def test_connections_beyond_the_limit_are_closed_at_once() -> None:
    async with server(connections_max=2) as (listening, port):
        opened = [await connect(port) for _ in range(2)]
        await eventually(lambda: listening.connections == 2)
        reader, writer = await connect(port)
        assert await is_closed(reader)
        assert listening.refused == 1
        assert await ask(*opened[0], b"still served") == b"still served"
        for _, one in [*opened, (reader, writer)]:
            one.close()


async def test_a_request_that_fails_ends_its_connection_and_no_other(logged: list[dict[str, object]]) -> None:
    async def fail(request: Request, _held: AsyncExitStack) -> Pieces:
        if bytes(request.body) == b"fail":
            raise RuntimeError("a defect")
        return []

    async with server(fail) as (_, port):
        first, second = await connect(port), await connect(port)
        first[1].write(frame(METADATA, 1, 1, b"fail"))
        assert await is_closed(first[0])
        assert await ask(*second, b"well") == b""
        await eventually(lambda: logged != [])
        assert "a defect" in str(logged[0]["error"])
        for _, writer in (first, second):
            writer.close()


async def test_a_budget_admits_in_turn() -> None:
    budget = ByteBudget(10)
    order: list[str] = []

    async def take(name: str, size: int, until: asyncio.Event) -> None:
        async with budget.holding(size):
            order.append(name)
            await until.wait()

    done = {name: asyncio.Event() for name in "abcd"}
    sizes = {"a": 6, "b": 6, "c": 1, "d": 100}
    tasks = {}
    for name, size in sizes.items():
        tasks[name] = asyncio.create_task(take(name, size, done[name]))
        await asyncio.sleep(0)
    assert (order, budget.held, budget.left) == (["a"], 6, 4), "c waits behind b"
    done["a"].set()
    await tasks["a"]
    await eventually(lambda: order == ["a", "b", "c"])
    tasks["b"].cancel()
    done["c"].set()
    await asyncio.gather(tasks["b"], tasks["c"], return_exceptions=True)
    await eventually(lambda: order == ["a", "b", "c", "d"])
    assert budget.held == 10, "more than the total are held alone"
    done["d"].set()
    await tasks["d"]
    assert budget.held == 0


async def test_a_request_for_bytes_that_is_cancelled_takes_none() -> None:
    budget = ByteBudget(10)

    async def take() -> None:
        async with budget.holding(8):
            pass

    async with budget.holding(8):
        waiting = [asyncio.create_task(take()) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
    waiting[1].cancel()  # admitted, and cancelled before it goes on
    await asyncio.gather(waiting[1], return_exceptions=True)
    assert budget.held == 0


# --- clients that are not authenticated, where that is required (rule K14) ------------------------------------------


def guarded(**settings: Any) -> GatewayAccess:
    return GatewayAccess(required=True, **settings)


@asynccontextmanager
async def stranger(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await connect(port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def test_a_client_that_is_not_authenticated_asks_for_versions_and_nothing_else() -> None:
    async with server(access=guarded()) as (_, port), stranger(port) as (reader, writer):
        writer.write(frame(API_VERSIONS, 0, 1, b""))
        assert await reader.readexactly(8) == b"\0\0\0\4\0\0\0\1"
        writer.write(frame(METADATA, 1, 2, b"one"))
        assert await is_closed(reader)


async def test_a_large_frame_of_a_client_that_is_not_authenticated_is_not_read() -> None:
    limits = LIMITS._replace(stranger_frame_bytes_max=100, frame_seconds_max=3600)
    patient = guarded(authentication_seconds=3600)
    async with server(limits=limits, access=patient) as (_, port), stranger(port) as (reader, writer):
        writer.write(struct.pack(">i", 101))
        assert await is_closed(reader)
    async with server(limits=limits) as (_, port), stranger(port) as (reader, writer):
        assert await ask(reader, writer, b"x" * 101) == b"x" * 101


async def test_connections_that_are_not_authenticated_leave_places_to_others() -> None:
    access = guarded(connections_max=8)
    async with server(connections_max=8, access=access) as (listening, port):
        async with stranger(port) as (first, _), stranger(port):
            await eventually(lambda: access.strangers == 2)
            async with stranger(port):
                assert await is_closed(first), "the oldest makes way"
                await eventually(lambda: listening.connections == 2)
        await eventually(lambda: access.strangers == 0)


async def test_a_client_that_says_nothing_loses_its_connection() -> None:
    access = guarded(authentication_seconds=0.01)
    async with server(access=access) as (listening, port), stranger(port) as (reader, _):
        assert await is_closed(reader)
        await eventually(lambda: listening.connections == 0)
