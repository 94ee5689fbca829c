"""When adds are sent at once and when they wait for later ones, as a table and in the writers."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from octavo.client.write import batching
from octavo.client.write.batching import (
    BYTES_MAX,
    ENTRIES_MAX,
    earliest_next_frame,
    interval_left,
    should_wait_for_more,
)
from octavo.metadata import BeginRecovery, update_ledger
from octavo.protocol.errors import LedgerFencedError
from octavo.protocol.messages import Add, Op
from support.writing import FakeCluster, fake_cluster


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster() as cluster:
        yield cluster


def frames(cluster: FakeCluster, position: int = 0) -> list[int]:
    """How many entries each frame has that the bookie has received."""
    return [len(request.entries) for request in cluster.bookies[position].requests if isinstance(request, Add)]


def let_go(cluster: FakeCluster) -> None:
    for bookie in cluster.bookies:
        bookie.release(Op.ADD)


@pytest.fixture
async def behind_one(cluster: FakeCluster) -> FakeCluster:
    """Bookies answer no add before :func:`let_go`, and adds wait without a limit."""
    cluster.wait_seconds_max = 3600.0
    for bookie in cluster.bookies:
        bookie.hold(Op.ADD)
    return cluster


@pytest.mark.parametrize(
    ("under_way", "payloads", "waits"),
    [
        (0, [b"x"], False),
        (0, [b"x"] * (ENTRIES_MAX - 1), False),
        (1, [b"x"], True),
        (1, [b"x"] * (ENTRIES_MAX - 1), True),
        (1, [b"x"] * ENTRIES_MAX, False),
        (1, [bytes(BYTES_MAX - 1)], True),
        (1, [bytes(BYTES_MAX)], False),
        (1, [b"x", bytes(BYTES_MAX - 1)], False),
        (7, [b"x"], True),
    ],
)
def test_adds_wait_only_behind_a_frame_and_only_while_they_are_few(
    under_way: int, payloads: list[bytes], waits: bool
) -> None:
    assert should_wait_for_more(under_way, payloads) is waits


async def test_adds_behind_a_frame_travel_together_once_it_is_acknowledged(behind_one: FakeCluster) -> None:
    ledger = await behind_one.writer()
    adds = [ledger.add_nowait(b"0")]
    await asyncio.gather(*(bookie.received(Op.ADD) for bookie in behind_one.bookies))
    for number in range(1, 6):
        adds.append(ledger.add_nowait(b"%d" % number))
        await asyncio.sleep(0)
    assert ledger.last_add_pushed == 5
    let_go(behind_one)
    assert await asyncio.gather(*adds) == [0, 1, 2, 3, 4, 5]
    assert frames(behind_one) == [1, 5]
    await ledger.close()


async def test_a_callers_next_add_joins_those_that_waited(behind_one: FakeCluster) -> None:
    """Callers that add one entry after another come to travel together, instead of by turns."""

    async def caller() -> None:
        for _ in range(3):
            await ledger.add(b"x")

    ledger = await behind_one.writer()
    first = asyncio.create_task(caller())
    await asyncio.gather(*(bookie.received(Op.ADD) for bookie in behind_one.bookies))
    second = asyncio.create_task(caller())
    await asyncio.sleep(0)
    let_go(behind_one)
    await asyncio.gather(first, second)
    assert frames(behind_one) == [1, 2, 2, 1]
    await ledger.close()


async def test_a_lone_add_never_waits(behind_one: FakeCluster) -> None:
    let_go(behind_one)
    async with await behind_one.writer() as ledger:
        for number in range(20):
            assert await ledger.add(b"alone") == number
    assert frames(behind_one) == [1] * 20


async def test_many_adds_do_not_wait_behind_a_frame(behind_one: FakeCluster) -> None:
    ledger = await behind_one.writer()
    adds = [ledger.add_nowait(b"0")]
    await behind_one.bookies[0].received(Op.ADD)
    adds += [ledger.add_nowait(b"x") for _ in range(ENTRIES_MAX)]
    await behind_one.bookies[0].received(Op.ADD, 2)
    assert frames(behind_one) == [1, ENTRIES_MAX]
    let_go(behind_one)
    await asyncio.gather(*adds)
    await ledger.close()


async def test_adds_behind_a_frame_that_is_not_acknowledged_leave_after_a_while(cluster: FakeCluster) -> None:
    ledger = await cluster.writer()
    for bookie in cluster.bookies:
        bookie.hold(Op.ADD)
    adds = [ledger.add_nowait(b"0")]
    await cluster.bookies[0].received(Op.ADD)
    adds.append(ledger.add_nowait(b"1"))
    await cluster.bookies[0].received(Op.ADD, 2)
    adds.append(ledger.add_nowait(b"2"))
    await cluster.bookies[0].received(Op.ADD, 3)
    let_go(cluster)
    assert await asyncio.gather(*adds) == [0, 1, 2]
    await ledger.close()


async def test_adds_that_wait_are_flushed_and_closed_with_the_others(behind_one: FakeCluster) -> None:
    ledger = await behind_one.writer()
    ledger.add_nowait(b"0")
    await behind_one.bookies[0].received(Op.ADD)
    ledger.add_nowait(b"1")
    flushing = asyncio.create_task(ledger.flush())
    await asyncio.sleep(0)
    closing = asyncio.create_task(ledger.close())
    await asyncio.sleep(0)
    let_go(behind_one)
    await flushing
    await closing
    assert ledger.metadata.last_entry_id == 1


async def test_an_add_that_waits_when_the_writer_fails_did_not_happen(behind_one: FakeCluster) -> None:
    ledger = await behind_one.writer()
    sent = ledger.add_nowait(b"0")
    await asyncio.gather(*(bookie.received(Op.ADD) for bookie in behind_one.bookies))
    waiting = ledger.add_nowait(b"1")
    await asyncio.sleep(0)
    await update_ledger(behind_one.store, ledger.id, BeginRecovery(), writer_token="another")
    for add, may_have_happened in ((sent, True), (waiting, False)):
        with pytest.raises(LedgerFencedError) as raised:
            await add
        assert raised.value.may_have_happened is may_have_happened
    assert frames(behind_one) == [1]
    with pytest.raises(LedgerFencedError):
        await ledger.close()


@pytest.mark.parametrize(
    ("payloads", "now", "left"),
    [
        ([b"x"], 10.0, 2.0),
        ([b"x"] * (ENTRIES_MAX - 1), 11.5, 0.5),
        ([b"x"], 12.0, 0.0),
        ([b"x"], 99.0, 0.0),
        ([b"x"] * ENTRIES_MAX, 10.0, 0.0),
        ([bytes(BYTES_MAX)], 10.0, 0.0),
    ],
)
def test_few_adds_wait_until_the_interval_is_over(payloads: list[bytes], now: float, left: float) -> None:
    assert interval_left(payloads, now, next_frame_at=12.0) == left


@pytest.mark.parametrize(("entries", "earliest"), [(1, 10.0), (2, 10.5), (500, 10.5)])
def test_an_interval_follows_frames_with_several_entries_only(entries: int, earliest: float) -> None:
    assert earliest_next_frame(10.0, 0.5, entries) == earliest


async def test_with_an_interval_adds_wait_although_no_frame_is_under_way(cluster: FakeCluster) -> None:
    ledger = await cluster.writer(frame_interval_seconds=0.05)
    loop = asyncio.get_running_loop()
    await asyncio.gather(ledger.add(b"0"), ledger.add(b"1"))
    began = loop.time()
    waiting = [asyncio.create_task(ledger.add(b"2"))]
    await asyncio.sleep(0)
    waiting.append(asyncio.create_task(ledger.add(b"3")))
    assert await asyncio.gather(*waiting) == [2, 3]
    assert frames(cluster) == [2, 2]
    assert loop.time() - began > 0.03
    await ledger.close()


async def test_with_an_interval_callers_that_are_alone_wait_for_nothing(cluster: FakeCluster) -> None:
    async with await cluster.writer(frame_interval_seconds=1.0) as ledger:
        async with asyncio.timeout(1.0):
            for number in range(20):
                assert await ledger.add(b"alone") == number
    assert frames(cluster) == [1] * 20


async def test_with_an_interval_many_adds_leave_at_once(cluster: FakeCluster) -> None:
    async with await cluster.writer(frame_interval_seconds=1.0) as ledger:
        await asyncio.gather(ledger.add(b"0"), ledger.add(b"1"))
        async with asyncio.timeout(1.0):
            await asyncio.gather(*(ledger.add(b"x") for _ in range(ENTRIES_MAX)))
    assert frames(cluster) == [2, ENTRIES_MAX]


async def test_with_an_interval_the_acknowledgement_is_waited_for_as_well(behind_one: FakeCluster) -> None:
    ledger = await behind_one.writer(frame_interval_seconds=0.001)
    sent = [ledger.add_nowait(b"0"), ledger.add_nowait(b"1")]
    await asyncio.gather(*(bookie.received(Op.ADD) for bookie in behind_one.bookies))
    sent.append(ledger.add_nowait(b"2"))
    interval_over = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.01, interval_over.set_result, None)
    await interval_over
    assert frames(behind_one) == [2]
    let_go(behind_one)
    assert await asyncio.gather(*sent) == [0, 1, 2]
    assert frames(behind_one) == [2, 1]
    await ledger.close()


async def test_closing_sends_what_waits_for_the_interval(cluster: FakeCluster) -> None:
    ledger = await cluster.writer(frame_interval_seconds=0.05)
    await asyncio.gather(ledger.add(b"0"), ledger.add(b"1"))
    waiting = ledger.add_nowait(b"2")
    await ledger.close()
    assert await waiting == 2
    assert ledger.metadata.last_entry_id == 2


def test_the_wait_is_bounded_and_short() -> None:
    assert 0 < batching.WAIT_SECONDS_MAX <= 0.005
