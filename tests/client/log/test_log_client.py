"""Logs of a client made by ``octavo.connect``, as an application has them."""

import asyncio
import gc
import warnings

import pytest
from support.reading import cluster_of

import octavo


async def test_segments_that_the_log_abandons_raise_no_resource_warning() -> None:
    """A segment is no writer of the application's: warnings are errors here, also those of the garbage collector."""
    async with (
        cluster_of() as cluster,
        octavo.connect(cluster.uri, log_duel_pause_seconds=0.001, resend_delay_seconds=0.01) as client,
        client.create_log("orders") as log,
        log.lead() as writer,
    ):
        await writer.add(b"0")
        (ledger_id,) = [ledger_id async for ledger_id in client.list_ledgers()]
        async with client.open_ledger(ledger_id):  # recovers the segment: the leader heals, and abandons it
            pass
        assert await asyncio.wait_for(writer.add(b"1"), 20) == 1
        await writer.roll()
        await writer.add(b"2")
    del writer, log, client
    gc.collect()


async def test_a_handle_and_a_writer_that_nobody_closed_are_told_of() -> None:
    async with cluster_of() as cluster:
        client = await octavo.connect(cluster.uri)
        log = await client.create_log("orders")
        writer = await log.lead()
        for thing in (log, writer):
            with pytest.warns(ResourceWarning, match="was not closed"):
                thing.__del__()
        await client.close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            log.__del__()
            writer.__del__()
