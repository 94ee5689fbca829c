"""What only a chain of ledgers does: some of them are lost and given up, and programs read them by themselves."""

import asyncio
import contextlib
from contextlib import aclosing

import pytest
from octavo.protocol.errors import Doubt
from support.clusters.log_cluster import LogCluster, collect
from support.waiting import WAIT_SECONDS, pause

import octavo
from octavo import Gap, InvalidArgumentError

LAYOUTS = ("chain",)
"""Only chains have segments that can be lost one by one."""


async def test_a_lost_segment_is_given_up_and_leaves_a_gap(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        for n in range(9):
            await writer.add(b"%d" % n)
            if n % 3 == 2:
                await writer.roll()
    (_, lost, *_) = [segment.ledger_id for segment in (await log.status()).segments]
    with pytest.raises(InvalidArgumentError, match="exists; nothing of it is lost"):
        await log.give_up(lost)
    await logs.store.delete_ledger(lost)
    reader = await (await logs.client()).open_log("orders")
    with pytest.raises(octavo.LogDamagedError):
        await reader.read(3, 5)
    with pytest.raises(InvalidArgumentError, match="holds positions 3 to 5"):
        await log.give_up(lost, last=4)
    assert await log.give_up(lost) == Gap(3, 5)
    assert await log.give_up(lost) == Gap(3, 5), "again changes nothing"
    with pytest.raises(InvalidArgumentError, match="none of its segments"):
        await log.give_up(lost + 1000)
    await reader.refresh()
    with pytest.raises(octavo.LogDamagedError, match="positions 3 to 5 were lost and given up; read on at 6"):
        await reader.read(2, 6)
    assert await collect(reader, 6, 9) == [b"6", b"7", b"8"]
    async with aclosing(reader.follow()) as strict:
        assert [(await anext(strict)).position for _ in range(3)] == [0, 1, 2]
        with pytest.raises(octavo.LogDamagedError, match="positions 3 to 5 were lost and given up; read on at 6"):
            await anext(strict)
    items: list[object] = []
    async with aclosing(reader.follow(on_truncated="skip")) as entries:
        async for item in entries:
            items.append(item if isinstance(item, Gap) else item.position)
            if items[-1] == 8:
                break
    assert items == [0, 1, 2, Gap(3, 5), 6, 7, 8]
    assert (await reader.status()).gaps == ((3, 5),)
    await log.truncate(before=7)
    assert (await log.status()).gaps == ()


def in_doubt(log: octavo.Log, term: int, last: int, sent: int = 1) -> octavo.OctavoError:
    """The error of an add whose payloads were sent to the positions up to ``last``."""
    error = octavo.OctavoTimeoutError("too late", may_have_happened=True)
    error.doubt = Doubt(log.log_id, term, last, sent)
    return error


async def test_an_add_in_doubt_whose_position_was_given_up_has_not_happened(logs: LogCluster) -> None:
    """Rule P6, while its term goes on and afterwards: the caller adds it again, and no entry comes to its position."""
    log = await logs.log()
    writer = await log.take_over()
    for n in range(9):
        await writer.add(b"%d" % n)
        if n % 3 == 2:
            await writer.roll()
    await writer.add(b"9")
    (_, lost, *_) = [segment.ledger_id for segment in (await log.status()).segments]
    await logs.store.delete_ledger(lost)
    assert await log.give_up(lost) == Gap(3, 5)
    other = await (await logs.client()).open_log("orders")

    async def check(handle: octavo.Log) -> None:
        def told(last: int, sent: int = 1) -> octavo.OctavoError:
            return in_doubt(log, writer.term, last, sent)

        assert [await handle.outcome(told(position)) for position in range(1, 8)] == [
            True,
            True,
            *3 * [False],
            True,
            True,
        ]
        assert (await handle.added(told(4, 2)), await handle.added(told(5, 5))) == (0, 2)
        assert await handle.outcome(told(5, 5)) is False
        assert await handle.added(told(2, 3)) == 3
        with pytest.raises(
            octavo.LogDamagedError, match=r"positions 2 to 6 the positions 3 to 5 were lost and given up"
        ):
            await handle.added(told(6, 5))
        with pytest.raises(octavo.LogDamagedError, match="were lost and given up"):
            await handle.outcome(told(6, 3))

    for handle in (log, other):
        await check(handle)
    async with other.take_over():
        for handle in (log, other):
            await check(handle)
    with contextlib.suppress(octavo.OctavoError):
        await writer.close()


async def test_bulk_readers_are_told_that_a_position_was_given_up(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        for n in range(4):
            await writer.add(b"%d" % n)
            await writer.roll()
    (_, lost, *_) = [segment.ledger_id for segment in (await log.status()).segments]
    await logs.store.delete_ledger(lost)
    await log.give_up(lost)
    with pytest.raises(octavo.LogDamagedError, match="positions 1 to 1 were lost and given up; read on at 2"):
        async with log.reader_at(1):
            pass
    async with log.reader_at(2) as (extent, _):
        assert extent.first == 2


async def test_the_last_segment_is_given_up_where_an_operator_says_it_ended(logs: LogCluster) -> None:
    log = await logs.log()
    other = await (await logs.client()).open_log("orders")
    old = await log.take_over()
    await old.add_many([b"0", b"1", b"2"])
    assert await collect(other, 0, 3) == [b"0", b"1", b"2"]
    cursor = await other.cursor("c")
    await cursor.advance(3)
    await cursor.flush()
    (lost,) = await logs.ledgers()
    await logs.store.delete_ledger(lost)  # type: ignore[arg-type]
    with pytest.raises(octavo.LogDamagedError, match=f"octavo log give-up orders --ledger {lost}"):
        await other.take_over()
    for last in (None, 1):
        with pytest.raises(InvalidArgumentError, match="cursors stand at up to 3"):
            await other.give_up(lost, last=last)
    assert await other.give_up(lost, last=9) == Gap(0, 9)
    async with other.take_over() as writer:
        assert await writer.add(b"new") == 10, "no position is given twice"
        with pytest.raises(octavo.OctavoError):
            await asyncio.wait_for(_roll_for_ever(old), WAIT_SECONDS)
        assert await writer.add(b"newer") == 11
    assert await collect(other, 10, 12) == [b"new", b"newer"]
    async with aclosing(other.follow(0, on_truncated="skip")) as entries:
        assert await anext(entries) == Gap(0, 9)
        found = await anext(entries)
        assert isinstance(found, octavo.LogEntry)
        assert found.position == 10
    with contextlib.suppress(octavo.OctavoError):
        await old.close()


async def _roll_for_ever(writer: octavo.LogWriter) -> None:
    while True:
        await writer.roll()
        await pause()


async def test_the_extents_of_a_chain_are_those_of_its_ledgers(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        for n in range(7):
            await writer.add(b"%d" % n)
            if n % 3 == 2:
                await writer.roll()
    extents = await log.extents(1, 6)
    assert [(one.base, one.first, one.last) for one in extents] == [(0, 1, 2), (3, 3, 5), (6, 6, 6)]
    client = await logs.client()
    for extent in extents:
        async with client.open_ledger(extent.ledger_id) as reader:
            entries = await reader.read(extent.first - extent.base, extent.last - extent.base)
            assert [entry.payload for entry in entries] == [b"%d" % n for n in range(extent.first, extent.last + 1)]
