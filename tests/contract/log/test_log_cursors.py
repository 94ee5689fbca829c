"""What the cursors of a log promise, whatever its layout and wherever its metadata are (rules P8, P11 and P15)."""

import asyncio
from contextlib import aclosing

import pytest
from support.clusters.log_cluster import LogCluster

import octavo
from octavo import (
    InvalidArgumentError,
    NoSuchLogError,
)


async def test_cursors_are_kept_and_only_move_forward(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add_many([b"%d" % n for n in range(10)])
    cursor = await log.cursor("billing")
    assert cursor.position == 0
    async with aclosing(cursor.follow()) as entries:
        async for entry in entries:
            await cursor.advance(entry.position + 1)
            if entry.position == 4:
                break
    with pytest.raises(InvalidArgumentError):
        await cursor.advance(3)
    with pytest.raises(InvalidArgumentError):
        await cursor.advance(11)
    await log.close()
    again = await (await logs.client()).open_log("orders")
    assert (await again.cursor("billing")).position == 5
    assert {name: state.position for name, state in (await again.cursors()).items()} == {"billing": 5}


async def test_two_processes_move_one_cursor(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add_many([b"x"] * 20)
    others = [await (await logs.client()).open_log("orders") for _ in range(2)]
    cursors = [await other.cursor("shared") for other in others]
    await cursors[0].advance(15)
    await cursors[1].advance(7)
    await asyncio.gather(*(cursor.flush() for cursor in cursors))
    assert (await log.cursors())["shared"].position == 15


async def test_a_cursor_that_is_deleted_stays_deleted(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add_many([b"x"] * 20)
    consumer, other = [await (await logs.client()).open_log("orders") for _ in range(2)]
    cursor = await consumer.cursor("billing")
    await cursor.advance(7)
    await (await other.cursor("billing")).delete()
    await cursor.advance(8)
    with pytest.raises(octavo.CursorDeletedError):
        await cursor.flush()
    with pytest.raises(octavo.CursorDeletedError):
        await cursor.advance(9)
    await consumer.close()
    assert await log.cursors() == {}


async def test_a_new_cursor_stands_where_the_log_begins_now(logs: LogCluster) -> None:
    """Rule P20: retention has written the floor where cursors stand, and the handle is older than the truncation."""
    log = await logs.log()
    handle = await (await logs.client()).open_log("orders")
    async with log.lead() as writer:
        for _ in range(4):
            await writer.add_many([b"x"] * 5)
            await writer.roll()
        other = await log.cursor("other")
        await other.advance(17)
        await other.flush()
        await log.set_retention(octavo.Retention(bytes=1, cursors=True))
        first = await log.retain()
        assert first > 0
    assert (await handle.cursor("new")).position == first
    assert {name: state.position for name, state in (await log.cursors()).items()} == {"other": 17, "new": first}


async def test_a_deleted_log_takes_no_cursor(logs: LogCluster) -> None:
    log = await logs.log()
    cursor = await log.cursor("early")
    await (await logs.client()).delete_log("orders")
    with pytest.raises(NoSuchLogError):
        await log.cursor("late")
    await cursor.advance(0)
    with pytest.raises(NoSuchLogError):
        await cursor.flush()


async def test_a_log_created_again_has_no_cursors(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add(b"x")
    await (await log.cursor("c")).advance(1)
    await log.close()
    client = await logs.client()
    await client.delete_log("orders")
    assert await logs.ledgers() == set()
    again = await client.create_log("orders")
    assert await again.cursors() == {}
    assert (again.first_position, again.end) == (0, 0)
