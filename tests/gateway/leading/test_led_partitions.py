"""Requests for several partitions, and batches that the writer of a log has no room for yet (rules K2 and K3)."""

import asyncio

from octavo.gateway.codes import Code
from support.clusters.gateway_cluster import GatewayCluster
from support.kafka.batches import batch_of
from support.kafka.client import KafkaClient


async def test_partitions_of_which_some_are_led_are_answered_each_with_its_own(cluster: GatewayCluster) -> None:
    gateway = await cluster.gateway(partitions=4)
    async with await KafkaClient.connect(gateway.port) as client:
        await client.metadata("orders")
        for partition, records in ((1, 2), (3, 5)):
            await client.produce_at("orders", partition, batch_of(*[b"x"] * records))
        assert len(gateway.leaders) == 2
        answers = await client.produce("orders", *(batch_of(b"batch for %d" % partition) for partition in range(4)))
        assert [(one.index, Code(one.error_code.value), one.base_offset) for one in answers] == [
            (0, Code.NONE, 0),
            (1, Code.NONE, 2),
            (2, Code.NONE, 0),
            (3, Code.NONE, 5),
        ]
        assert len(gateway.leaders) == 4
        for partition, offset in enumerate([0, 2, 0, 5]):
            fetched = await client.fetch("orders", offset, partition=partition)
            assert b"batch for %d\0" % partition in fetched.records


async def test_batches_that_wait_for_room_in_the_writer_keep_their_order(cluster: GatewayCluster) -> None:
    cluster.client_options = {"window_entries": 2}
    gateway = await cluster.gateway()

    async def produce(number: int) -> int:
        async with await KafkaClient.connect(gateway.port) as client:
            await client.metadata("orders")
            (answer,) = await client.produce("orders", batch_of(b"from client %d" % number))
            assert answer.error_code.value == Code.NONE
            offset: int = answer.base_offset
            return offset

    offsets = await asyncio.gather(*(produce(number) for number in range(12)))
    assert sorted(offsets) == list(range(12))
    async with await KafkaClient.connect(gateway.port) as client:
        for number, offset in enumerate(offsets):
            fetched = await client.fetch("orders", offset, partition_bytes_max=1)
            assert b"from client %d\0" % number in fetched.records
