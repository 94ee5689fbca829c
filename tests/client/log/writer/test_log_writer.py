"""What the calls of a log's writer have done when they return: flush, close, roll; in each layout."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from octavo.protocol.messages import Op
from support.clusters.log_cluster import LogCluster, collect, open_log_cluster
from support.inside import active_of
from support.metadata.interposed_store import InterposedStore
from support.metadata.metadata_clusters import MemoryCluster
from support.waiting import WAIT_SECONDS, eventually, loop_turns

import octavo


@pytest.fixture(params=[("chain", None), ("stream", None), ("stream", "required")], ids=["chain", "stream", "required"])
async def logs(request: pytest.FixtureRequest) -> AsyncIterator[LogCluster]:
    layout, full_copies = request.param
    async with open_log_cluster(MemoryCluster(Path()), layout, full_copies=full_copies) as made:
        yield made


async def led(logs: LogCluster, **options: Any) -> tuple[octavo.Log, octavo.LogWriter, InterposedStore]:
    """A log, its leader, and the store between this leader and the real one."""
    await logs.log()
    client, store = await logs.interposed_client(**options)
    log = await client.open_log("orders")
    return log, await log.take_over(), store


async def segments(log: octavo.Log) -> int:
    """The segments of the log, also those that hold nothing."""
    return len((await log.status()).segments)


# --- flush and close --------------------------------------------------------------------------------------------------


async def hold_adds(logs: LogCluster, writer: octavo.LogWriter) -> list["asyncio.Task[int]"]:
    """One add that the bookies hold, and two that wait for room."""
    for bookie in logs.bookies:
        bookie.hold(Op.ADD)
    adds = [asyncio.ensure_future(writer.add(b"%d" % number)) for number in range(3)]
    await logs.bookies[0].received(Op.ADD, 1)
    return adds


@pytest.mark.parametrize("call", ["flush", "close"])
@pytest.mark.parametrize("ending", ["cancelled", "refused"])
async def test_what_waits_before_an_add_that_is_not_made_is_waited_for(
    logs: LogCluster, call: str, ending: str
) -> None:
    log, writer, _ = await led(logs, window_entries=1)
    adds = await hold_adds(logs, writer)
    last = adds[2]
    if ending == "refused":
        last = asyncio.ensure_future(writer.add(b"3", expected_position=77))
    await loop_turns(3)
    waiting = asyncio.ensure_future(writer.flush() if call == "flush" else writer.close())
    await loop_turns(3)
    if ending == "cancelled":
        last.cancel()
    await loop_turns(5)
    assert not waiting.done()
    for bookie in logs.bookies:
        bookie.release(Op.ADD)
    await asyncio.wait_for(waiting, WAIT_SECONDS)
    assert [one.result() for one in adds if one is not last] == [*range(2 if ending == "cancelled" else 3)]
    await asyncio.wait([last])
    await writer.close()
    assert await log.refresh() == (2 if ending == "cancelled" else 3)


async def test_an_add_of_the_turn_in_which_the_writer_is_closed_is_refused(logs: LogCluster) -> None:
    log, writer, _ = await led(logs)
    closing = asyncio.ensure_future(writer.close())
    add = asyncio.ensure_future(writer.add(b"0"))  # is called right behind the close
    with pytest.raises(octavo.ClientClosedError) as caught:
        await add
    assert not caught.value.may_have_happened
    await asyncio.wait_for(closing, WAIT_SECONDS)
    assert await log.refresh() == 0


async def fail(writer: octavo.LogWriter) -> None:
    """Let the segment that is written fail, as any defect or lost quorum would."""
    active_of(writer).core.fail(octavo.QuorumLostError("for a test"))


# --- roll -------------------------------------------------------------------------------------------------------------


async def test_a_roll_that_cannot_be_made_raises_and_the_present_segment_serves_on(logs: LogCluster) -> None:
    log, writer, store = await led(logs)
    assert await writer.add(b"0") == 0
    before = await segments(log)
    for method in ("allocate_ledger_id", "read_stream"):
        store.make_unavailable(method)
    with pytest.raises(octavo.MetadataUnavailableError):
        await asyncio.wait_for(writer.roll(), WAIT_SECONDS)
    assert await writer.add(b"1") == 1
    store.restore()
    assert await segments(log) == before
    await writer.roll()
    await writer.add(b"2")
    assert await segments(log) == before + 1
    await writer.close()
    assert await collect(log, 0, 3) == [b"0", b"1", b"2"]


async def test_a_roll_of_a_writer_that_heals_returns_in_the_new_segment(logs: LogCluster) -> None:
    log, writer, _ = await led(logs)
    assert await writer.add(b"0") == 0
    before = writer.statistics().heals
    await fail(writer)
    await asyncio.wait_for(writer.roll(), WAIT_SECONDS)
    assert writer.statistics().heals == before + 1
    assert await writer.add(b"1") == 1
    await writer.close()
    assert await collect(log, 0, 2) == [b"0", b"1"]
    places = {(entry.ledger_id, entry.term) for entry in await log.read(0, 1)}
    assert len(places) == (2 if log.layout == "chain" else 1)


async def test_a_roll_that_a_failure_of_the_segment_cuts_short_returns_in_the_new_segment(logs: LogCluster) -> None:
    log, writer, _ = await led(logs)
    assert await writer.add(b"0") == 0
    for bookie in logs.bookies:
        bookie.hold(Op.ADD)
    adding = asyncio.ensure_future(writer.add(b"1"))
    received = logs.bookies[0].received
    await received(Op.ADD, 2)
    before = writer.statistics().heals
    rolling = asyncio.ensure_future(writer.roll())
    await loop_turns(3)
    await fail(writer)
    for bookie in logs.bookies:
        bookie.release(Op.ADD)
    await asyncio.wait_for(rolling, WAIT_SECONDS)
    assert writer.statistics().heals == before + 1
    assert await asyncio.wait_for(adding, WAIT_SECONDS) == 1
    await writer.close()
    assert await collect(log, 0, 2) == [b"0", b"1"]


async def test_a_roll_waits_for_an_add_that_is_under_way(logs: LogCluster) -> None:
    """What was added before the call is in the segment before, in either layout."""
    log, writer, _ = await led(logs)
    before = await segments(log)
    for bookie in logs.bookies:
        bookie.hold(Op.ADD)
    adding = writer.add_nowait(b"0")
    await logs.bookies[0].received(Op.ADD, 1)
    rolling = asyncio.ensure_future(writer.roll())
    await loop_turns(5)
    assert not rolling.done()
    for bookie in logs.bookies:
        bookie.release(Op.ADD)
    await asyncio.wait_for(rolling, WAIT_SECONDS)
    assert adding.done()
    await writer.add(b"1")
    await eventually(lambda: _has_segments(log, before + 1))
    await writer.close()


async def _has_segments(log: octavo.Log, count: int) -> bool:
    return await segments(log) == count


async def test_a_roll_of_a_writer_that_is_closed_or_lost_raises(logs: LogCluster) -> None:
    log, writer, _ = await led(logs)
    await writer.add(b"0")
    async with log.take_over():
        await asyncio.wait_for(writer.lost.wait(), WAIT_SECONDS)
        with pytest.raises(octavo.NotLeaderError):
            await writer.roll()
    closed = await log.take_over()
    await closed.close()
    with pytest.raises(octavo.ClientClosedError):
        await closed.roll()


async def test_a_segment_of_empty_payloads_holds_something(logs: LogCluster) -> None:
    log, writer, _ = await led(logs)
    assert await writer.add(b"") == 0
    before = await segments(log)
    await writer.roll()
    await writer.add(b"")
    assert await segments(log) == before + 1
    await writer.close()


# --- what is left -----------------------------------------------------------------------------------------------------


async def test_a_segment_that_ended_without_entries_is_not_shown(logs: LogCluster) -> None:
    log, writer, _ = await led(logs)
    await writer.close()
    assert await segments(log) == 0
    async with log.take_over() as second:
        await second.add(b"0")
        await second.roll()
        assert (await log.status()).segments[-1].entries is None, "the running one is shown"
    assert [one.entries for one in (await log.status()).segments] == [1]
    async with log.take_over():
        pass
    if log.layout == "stream":
        await log.seal()
    assert [one.entries for one in (await log.status()).segments] == [1]
    assert await collect(log, 0, 1) == [b"0"]
