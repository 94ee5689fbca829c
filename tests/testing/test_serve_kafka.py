"""`Cluster.serve_kafka`: a gateway for the tests of programs that speak Kafka's protocol."""

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest
from octavo.gateway.codes import Code
from octavo.protocol.errors import InvalidArgumentError
from octavo.testing import Cluster, cluster
from support.kafka.batches import batch_of
from support.kafka.client import KafkaClient
from support.waiting import eventually, loop_turns

pytestmark = pytest.mark.usefixtures("logged")


@pytest.fixture
def running() -> Iterator[Cluster]:
    with cluster() as started:
        yield started


def port_of(address: str) -> int:
    return int(address.removeprefix("127.0.0.1:"))


async def produced(address: str, *values: bytes) -> int:
    """The offset of the first value, once it is acknowledged: a client tries again."""
    offsets: list[int] = []

    async def is_acknowledged() -> bool:
        try:
            async with await KafkaClient.connect(port_of(address)) as client:
                await client.metadata("orders")
                (answer,) = await client.produce("orders", batch_of(*values))
        except (OSError, EOFError):
            return False
        offsets.append(answer.base_offset)
        return bool(answer.error_code.value == Code.NONE)

    await eventually(is_acknowledged)
    return offsets[-1]


async def test_kafka_clients_are_served_and_nothing_is_left_behind() -> None:
    threads = threading.active_count()
    with cluster() as started:
        address = started.serve_kafka()
        assert started.serve_kafka() == address, "there is one gateway"
        assert await produced(address, b"one", b"two") == 0
        assert await produced(address, b"three") == 2
    await eventually(lambda: threading.active_count() <= threads)
    gc.collect()  # a warning of something that was not closed would fail this test
    with pytest.raises(InvalidArgumentError, match="does not run"):
        started.serve_kafka()


@pytest.mark.parametrize("way", ["kill", "stop"])
async def test_what_was_acknowledged_is_there_after_a_gateway_has_ended(running: Cluster, way: str) -> None:
    address = running.serve_kafka()
    assert await produced(address, b"one") == 0
    getattr(running, way)("gateway")
    getattr(running, way)("gateway")  # does nothing
    with pytest.raises(OSError, match="Connect"):
        await KafkaClient.connect(port_of(address))
    running.start("gateway")
    running.start("gateway")  # does nothing
    assert running.serve_kafka() == address, "it keeps its port"
    assert await produced(address, b"two") == 1
    assert running.running == running.bookies, "a gateway is no bookie"


async def test_a_kill_breaks_the_connections_of_clients(running: Cluster) -> None:
    async with await KafkaClient.connect(port_of(running.serve_kafka())) as client:
        await client.metadata("orders")
        running.kill("gateway")
        assert await client.reader.read() == b""


async def test_a_paused_gateway_answers_once_it_is_resumed() -> None:
    with cluster(lease_seconds=60) as started:
        async with await KafkaClient.connect(port_of(started.serve_kafka())) as client:
            await client.metadata("orders")
            started.pause("gateway")
            asked = asyncio.ensure_future(client.produce("orders", batch_of(b"one")))
            await loop_turns(20)
            assert not asked.done()
            started.resume("gateway")
            assert (await asked)[0].error_code.value == Code.NONE


def test_a_cluster_of_one_bookie_serves_kafka_clients_too() -> None:
    with cluster(bookies=1) as started:
        assert started.serve_kafka().startswith("127.0.0.1:")


def test_without_a_gateway_there_is_none_to_kill(running: Cluster) -> None:
    with pytest.raises(InvalidArgumentError, match="there is no bookie 'gateway'"):
        running.kill("gateway")
