"""What a handle sees of the adds of its own writers, and of those of other clients (docs/logs.md: reading); and that it
leads once at a time."""

import asyncio
from functools import partial

import pytest
from octavo.protocol.errors import BookieOverloadedError
from octavo.protocol.messages import Op
from support.clusters.log_cluster import LogCluster
from support.waiting import WAIT_SECONDS, eventually

import octavo

PAYLOADS = [b"0", b"1", b"2"]


async def test_what_the_own_writer_has_added_is_seen_at_once(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        for number, payload in enumerate(PAYLOADS, 1):
            await writer.add(payload)
            assert log.end == number
            assert [entry.payload async for entry in log] == PAYLOADS[:number]
            assert [entry.payload async for entry in log.entries(0)] == PAYLOADS[:number]
            assert [entry.payload async for entry in log.entries(number - 1)] == [payload]
            await writer.roll()
            assert [entry.payload async for entry in log] == PAYLOADS[:number]
    assert log.end == 3
    assert [entry.payload async for entry in log] == PAYLOADS


async def test_what_the_own_writer_has_added_is_seen_after_it_was_closed(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add_many(PAYLOADS)
    assert log.end == 3, "nothing was read or asked since"
    assert [entry.payload async for entry in log] == PAYLOADS
    assert [entry.position for entry in await log.read(0, 2)] == [0, 1, 2]


async def test_what_other_clients_have_added_is_seen_by_an_iteration_that_begins(logs: LogCluster) -> None:
    log = await logs.log()
    other = await (await logs.client()).open_log("orders")
    async with log.lead() as writer:
        for number, payload in enumerate(PAYLOADS, 1):
            await writer.add(payload)
            assert await other.refresh() == other.end
            await eventually(partial(_reaches, other, number))
            assert [entry.payload async for entry in other] == PAYLOADS[:number]
            await writer.roll()
    late = await (await logs.client()).open_log("orders")
    async with log.lead() as writer:
        await writer.add(b"3")
    assert [entry.payload async for entry in late] == [*PAYLOADS, b"3"]
    assert [entry.payload async for entry in other.entries(1, 3)] == [b"1", b"2", b"3"]


async def _reaches(log: octavo.Log, count: int) -> bool:
    return await log.refresh() >= count


async def test_an_iteration_begins_where_the_log_begins_now(logs: LogCluster) -> None:
    log = await logs.log()
    other = await (await logs.client()).open_log("orders")
    async with log.lead() as writer:
        await writer.add_many(PAYLOADS)
    await log.truncate(2)
    assert [entry.payload async for entry in other] == [b"2"]
    with pytest.raises(octavo.TruncatedError):
        [entry async for entry in other.entries(0, 9)]


async def test_an_iteration_beyond_the_end_is_refused_and_from_beyond_it_is_empty(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add_many(PAYLOADS)
    with pytest.raises(octavo.NoSuchEntryError, match="position 3 is not below its end, 3"):
        [entry async for entry in log.entries(0, 3)]
    assert [entry async for entry in log.entries(3)] == []
    assert [entry async for entry in log.entries(7)] == []


async def test_an_iteration_gives_what_is_known_before_it_says_that_the_end_is_not(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add_many(PAYLOADS)
        other = await (await logs.client()).open_log("orders")
        await eventually(lambda: _reaches(other, 3))
        for bookie in logs.bookies:
            bookie.refuse(Op.READ_LAC, BookieOverloadedError("for a test"))
        entries = other.entries()
        assert [(await anext(entries)).payload for _ in PAYLOADS] == PAYLOADS
        with pytest.raises(octavo.QuorumLostError):
            await anext(entries)
        for bookie in logs.bookies:
            bookie.accept(Op.READ_LAC)


# --- once at a time ---------------------------------------------------------------------------------------------------


async def test_a_handle_that_leads_is_not_led_a_second_time(logs: LogCluster) -> None:
    log = await logs.log()
    async with asyncio.timeout(WAIT_SECONDS), log.lead() as writer:
        with pytest.raises(octavo.InvalidArgumentError, match="this handle leads already"):
            await log.lead()
        assert await writer.add(b"0") == 0
    async with asyncio.timeout(WAIT_SECONDS), log.lead() as writer:
        assert await writer.add(b"1") == 1


async def test_a_handle_that_waits_to_lead_does_not_wait_twice(logs: LogCluster) -> None:
    log = await logs.log()
    other = await (await logs.client()).open_log("orders")
    async with asyncio.timeout(WAIT_SECONDS):
        async with other.lead():
            waiting = asyncio.ensure_future(_lead(log))
            await asyncio.sleep(0)
            with pytest.raises(octavo.InvalidArgumentError, match="waiting to lead already"):
                await log.lead()
            waiting.cancel()
            await asyncio.wait([waiting])
        async with log.lead() as writer:
            await writer.add(b"0")


async def test_a_handle_whose_writer_was_taken_over_from_leads_again(logs: LogCluster) -> None:
    """Although the program has not closed the writer, which still has the lock."""
    log = await logs.log()
    other = await (await logs.client()).open_log("orders")
    async with asyncio.timeout(WAIT_SECONDS):
        old = await log.lead()
        async with other.take_over() as rival:
            await rival.add(b"0")
            await old.lost.wait()
        async with log.lead() as writer:
            assert await writer.add(b"1") == 1
        await old.close()


async def _lead(log: octavo.Log) -> octavo.LogWriter:
    return await log.lead()
