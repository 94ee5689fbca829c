"""``create_log(..., exist_ok=True)``: the log is there afterwards, also if another client made it."""

import asyncio

import pytest
from support.clusters.reading import cluster_of

import octavo

PASSWORD = b"secret"


async def test_several_processes_may_create_a_log_and_all_have_the_same() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        handles = await asyncio.gather(*(client.create_log("orders", exist_ok=True) for _ in range(4)))
        assert len({log.log_id for log in handles}) == 1
        for log in handles:
            await log.close()


async def test_a_log_that_is_there_stays_as_it_was_created() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        async with client.create_log("orders") as log, log.lead() as writer:
            await writer.add(b"first")
        async with client.create_log("orders", keys=octavo.KeyWindow(), exist_ok=True) as log, log.lead() as writer:
            assert log.end == 1
            with pytest.raises(octavo.InvalidArgumentError, match="created without keys"):
                await writer.add(b"second", key="order-2")


async def test_the_password_of_a_log_that_is_there_must_be_right() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        await (await client.create_log("orders", password=PASSWORD)).close()
        with pytest.raises(octavo.UnauthorizedError):
            await client.create_log("orders", password=b"wrong", exist_ok=True)
        async with client.create_log("orders", password=PASSWORD, exist_ok=True) as log:
            assert log.name == "orders"


async def test_without_exist_ok_a_log_that_is_there_is_an_error() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        await (await client.create_log("orders")).close()
        with pytest.raises(octavo.LogExistsError):
            await client.create_log("orders")
