"""Clients that want to take the gateway from all others (rule K13): no bound is passed, and another client goes on."""

import asyncio
import contextlib
import socket
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from octavo.gateway.codes import Code
from octavo.gateway.gateway import ANSWER_BYTES_MAX, REQUEST_BYTES_MAX, Gateway
from octavo.gateway.service.fetch import ANSWER_BYTES_MAX as ANSWER_BYTES_EACH
from octavo.gateway.wire.connection import BUFFER_BYTES
from support.kafka.batches import batch_of
from support.kafka.client import FETCH, PRODUCE, KafkaClient, fetch_request
from support.waiting import WAIT_SECONDS, eventually

HALF_FRAMES = 300
CONSUMERS = 200
EVERYTHING = 2**31 - 1


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[KafkaClient]:
    """The other client; the topic `orders` is there."""
    async with await KafkaClient.connect(gateway.port) as made:
        await made.metadata("orders")
        yield made


async def goes_on(client: KafkaClient, topic: str = "orders") -> None:
    """The other client produces, and fetches what it has produced."""
    async with asyncio.timeout(WAIT_SECONDS):
        (answer,) = await client.produce(topic, batch_of(b"a record"))
        assert answer.error_code.value == 0
        found = await client.fetch(topic, answer.base_offset, bytes_max=EVERYTHING, partition_bytes_max=EVERYTHING)
        assert b"a record" in found.records


@pytest.mark.parametrize("size", [2**31 - 1, -(2**31), 16 * 1024 * 1024 + 1])
async def test_the_length_of_a_frame_that_is_too_large(gateway: Gateway, client: KafkaClient, size: int) -> None:
    async with await KafkaClient.connect(gateway.port) as hostile:
        hostile.writer.write(struct.pack(">i", size))
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(hostile.reader.read(1), WAIT_SECONDS) == b""
    assert held(gateway, "requests") == 0
    await goes_on(client)


async def test_half_frames_by_the_hundred(gateway: Gateway, client: KafkaClient) -> None:
    half = struct.pack(">ihhih", 16 * 1024 * 1024, PRODUCE, 8, 1, -1) + bytes(BUFFER_BYTES + 1)
    async with AsyncExitStack() as stack:
        for _ in range(HALF_FRAMES):
            hostile = await stack.enter_async_context(await KafkaClient.connect(gateway.port))
            hostile.writer.write(half)
        await eventually(lambda: held(gateway, "requests") == REQUEST_BYTES_MAX, "the budget is used up")
        await goes_on(client)
        assert held(gateway, "requests") <= REQUEST_BYTES_MAX
    await eventually(lambda: held(gateway, "requests") == 0, "the bytes are given back")


async def test_consumers_that_ask_for_everything_and_read_nothing(gateway: Gateway, client: KafkaClient) -> None:
    for topic in ("orders", "large"):
        await client.metadata(topic)
    await client.produce("large", *[batch_of(bytes(900_000))])
    for _ in range(5):
        await client.produce("large", batch_of(bytes(900_000)))
    asked = fetch_request("large", 0, wait_ms=60_000, bytes_max=EVERYTHING, partition_bytes_max=EVERYTHING)
    async with AsyncExitStack() as stack:
        for _ in range(CONSUMERS):
            await (await stack.enter_async_context(await stubborn(gateway.port))).send(FETCH, 11, asked)
        full = ANSWER_BYTES_MAX - ANSWER_BYTES_EACH
        await eventually(lambda: held(gateway, "answers") > full, "the budget is used up")
        await goes_on(client)
        assert full < held(gateway, "answers") <= ANSWER_BYTES_MAX
    await eventually(lambda: held(gateway, "answers") == 0, "the bytes are given back")


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (batch_of(b"one", count=2), Code.INVALID_RECORD),
        (batch_of(b"one", count=2**31 - 1), Code.INVALID_RECORD),
        (batch_of(b"one", b"two", count=1), Code.INVALID_RECORD),
        (batch_of(b"one", last_offset_delta=2**31 - 1), Code.INVALID_RECORD),
        (batch_of(b"one", crc=1), Code.CORRUPT_MESSAGE),
        (batch_of(b"one", length=2**31 - 1), Code.CORRUPT_MESSAGE),
        # Compressed: more records than any compression of these bytes can hold.
        (batch_of(records=zlib.compress(bytes(1 << 20)), count=2**31 - 1, attributes=1), Code.INVALID_RECORD),
    ],
)
async def test_a_batch_that_lies(gateway: Gateway, client: KafkaClient, batch: bytes, code: Code) -> None:
    async with await KafkaClient.connect(gateway.port) as hostile:
        (answer,) = await hostile.produce("orders", batch)
        assert Code(answer.error_code.value) is code
    assert (await client.offset_at("orders", -1)).offset == 0
    await goes_on(client)


async def test_a_compressed_bomb_is_stored_as_it_is_and_never_unpacked(gateway: Gateway, client: KafkaClient) -> None:
    """What a reader would unpack is its own matter: no part of a gateway does."""
    bomb = zlib.compress(zlib.compress(bytes(64 << 20), 9), 9)
    batch = batch_of(records=bomb, count=1, attributes=1)
    (answer,) = await client.produce("orders", batch)
    assert answer.error_code.value == 0
    assert bomb in (await client.fetch("orders", answer.base_offset)).records
    assert (await client.offset_at("orders", 1)).offset == answer.base_offset
    await goes_on(client)


async def stubborn(port: int) -> KafkaClient:
    """A connection of a client that reads nothing, and of which the operating system takes little."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return KafkaClient(reader, writer)


def held(gateway: Gateway, name: str) -> int:
    """The bytes of a budget that are held."""
    return gateway.budgets[name].held
