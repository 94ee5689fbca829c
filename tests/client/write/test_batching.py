"""When adds are sent at once and when they wait for later ones, as a table and in the writers."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from octavo.client.write.front import batching
from octavo.client.write.front.batching import (
    BYTES_MAX,
    ENTRIES_MAX,
    FLOW_ADDS_MIN,
    FLOW_INTERVAL_SECONDS,
    REST_FRAMES_MAX,
    REST_FRAMES_STEP,
    Flow,
    earliest_next_frame,
    interval_left,
    should_wait_for_more,
)
from octavo.client.write.writer import LedgerWriter
from octavo.metadata import BeginRecovery, update_ledger
from octavo.protocol.errors import LedgerFencedError
from octavo.protocol.ids import EntryId
from octavo.protocol.messages import Add, Op
from support.clusters.writing import FakeCluster, fake_cluster


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
    ("under_way", "payloads", "early", "waits"),
    [
        (0, [b"x"], False, False),
        (0, [b"x"] * (ENTRIES_MAX - 1), False, False),
        (1, [b"x"], False, True),
        (1, [b"x"] * (ENTRIES_MAX - 1), False, True),
        (1, [b"x"] * ENTRIES_MAX, False, False),
        (1, [bytes(BYTES_MAX - 1)], False, True),
        (1, [bytes(BYTES_MAX)], False, False),
        (1, [b"x", bytes(BYTES_MAX - 1)], False, False),
        (7, [b"x"], False, True),
        (0, [b"x"], True, True),
        (1, [b"x"], True, True),
        (0, [b"x"] * ENTRIES_MAX, True, False),
        (0, [bytes(BYTES_MAX)], True, False),
    ],
)
def test_adds_wait_only_behind_a_frame_or_until_they_are_due_and_only_while_they_are_few(
    under_way: int, payloads: list[bytes], early: bool, waits: bool
) -> None:
    assert should_wait_for_more(under_way, payloads, early=early) is waits


SENT_AT = 10.0
DUE_AT = SENT_AT + FLOW_INTERVAL_SECONDS


def due_at(flow: Flow, now: float = SENT_AT + FLOW_INTERVAL_SECONDS / 2) -> float:
    """When the next frame is due after the last one has been acknowledged, with several adds behind it."""
    flow.sent_at = SENT_AT
    flow.on_acknowledged(now, 5, 10_000, 2**25)
    return flow.due_at


@pytest.mark.parametrize(
    ("now", "came", "free_entries", "free_bytes", "due"),
    [
        (SENT_AT, 5, 10_000, 2**25, DUE_AT),
        (DUE_AT - 1e-6, FLOW_ADDS_MIN, 10_000, 2**25, DUE_AT),
        (DUE_AT, 5, 10_000, 2**25, 0.0),
        (SENT_AT, 5, 5, BYTES_MAX, DUE_AT),
        (SENT_AT, 5, 4, 2**25, 0.0),
        (SENT_AT, 5, 10_000, BYTES_MAX - 1, 0.0),
    ],
)
def test_a_frame_of_a_flow_is_due_an_interval_after_the_one_before_if_there_is_room_for_more(
    now: float, came: int, free_entries: int, free_bytes: int, due: float
) -> None:
    flow = Flow()
    flow.sent_at = SENT_AT
    flow.on_acknowledged(now, came, free_entries, free_bytes)
    assert flow.due_at == due


def test_each_acknowledgement_decides_anew() -> None:
    flow = Flow()
    assert due_at(flow) == DUE_AT
    assert due_at(flow, DUE_AT) == 0.0


def test_nothing_is_due_any_more_when_the_frame_is_sent_or_a_caller_waits_for_all_adds() -> None:
    flow = Flow()
    assert due_at(flow)
    flow.on_sent()
    assert not flow.due_at
    assert due_at(flow)
    flow.give_up()
    assert not flow.due_at
    assert due_at(flow), "neither is a failure"


def rests(flow: Flow) -> int:
    """For how many frames there is no flow now."""
    frames = 0
    while not due_at(flow):
        frames += 1
    return frames


def test_waiting_in_vain_is_given_up_for_longer_and_longer() -> None:
    flow = Flow()
    pauses = []
    for _ in range(9):
        pauses.append(rests(flow))
        flow.on_waited_in_full(DUE_AT)
        assert not flow.due_at
    assert pauses[:4] == [0, REST_FRAMES_STEP, 3 * REST_FRAMES_STEP, 7 * REST_FRAMES_STEP]
    assert pauses[-1] == REST_FRAMES_MAX == max(pauses)


def test_after_waiting_that_was_not_in_vain_the_next_pause_is_shorter() -> None:
    flow = Flow()
    for _ in range(3):
        rests(flow)
        flow.on_waited_in_full(DUE_AT)
    assert rests(flow) == 7 * REST_FRAMES_STEP
    for _ in range(5):
        flow.on_sent()
        assert rests(flow) == 0
    flow.on_waited_in_full(DUE_AT)
    assert rests(flow) == REST_FRAMES_STEP


def test_a_longest_wait_that_ends_before_the_frame_is_due_or_behind_a_frame_under_way_is_no_failure() -> None:
    flow = Flow()
    flow.on_waited_in_full(DUE_AT + 1)
    assert due_at(flow)
    flow.on_waited_in_full(DUE_AT - 1e-6)
    flow.on_sent()
    assert due_at(flow)


async def adds_behind_a_frame(cluster: FakeCluster, ledger: LedgerWriter, number: int) -> list[asyncio.Future[EntryId]]:
    """The futures of an add that is acknowledged, and of ``number`` that came while it was under way."""
    adds = [ledger.add_nowait(b"0")]
    await asyncio.gather(*(bookie.received(Op.ADD) for bookie in cluster.bookies))
    for _ in range(number):
        adds.append(ledger.add_nowait(b"behind"))
        await asyncio.sleep(0)
    assert ledger.last_add_pushed == number
    let_go(cluster)
    await adds[0]
    return adds


async def test_an_add_behind_a_frame_leaves_once_it_is_acknowledged(behind_one: FakeCluster) -> None:
    ledger = await behind_one.writer()
    adds = await adds_behind_a_frame(behind_one, ledger, 1)
    assert await asyncio.gather(*adds) == [0, 1]
    assert frames(behind_one) == [1, 1]
    await ledger.close()


class StandingClock:
    """A clock that goes on only when it is told to."""

    def __init__(self) -> None:
        self.now = SENT_AT

    def __call__(self) -> float:
        return self.now


async def writer_and_clock(cluster: FakeCluster) -> tuple[LedgerWriter, StandingClock]:
    """A writer whose frames are never due unless its clock goes on."""
    cluster.frame_clock = clock = StandingClock()
    return await cluster.writer(), clock


async def test_adds_that_came_behind_a_frame_wait_until_one_comes_after_the_interval(behind_one: FakeCluster) -> None:
    ledger, clock = await writer_and_clock(behind_one)
    adds = await adds_behind_a_frame(behind_one, ledger, 5)
    for _ in range(4):
        adds.append(ledger.add_nowait(b"early"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert frames(behind_one) == [1]
    clock.now = DUE_AT
    adds.append(ledger.add_nowait(b"in time"))
    assert await asyncio.gather(*adds) == list(range(11))
    assert frames(behind_one) == [1, 10]
    assert await ledger.add(b"alone") == 11
    await ledger.close()


async def test_many_adds_do_not_wait_for_the_interval(behind_one: FakeCluster) -> None:
    ledger, _ = await writer_and_clock(behind_one)
    adds = await adds_behind_a_frame(behind_one, ledger, 5)
    adds += [ledger.add_nowait(b"x") for _ in range(ENTRIES_MAX - 5)]
    assert await asyncio.gather(*adds) == list(range(ENTRIES_MAX + 1))
    assert frames(behind_one) == [1, ENTRIES_MAX]
    await ledger.close()


async def test_adds_behind_which_no_other_comes_leave_after_a_while(cluster: FakeCluster) -> None:
    for bookie in cluster.bookies:
        bookie.hold(Op.ADD)
    cluster.wait_seconds_max = 0.05
    ledger, _ = await writer_and_clock(cluster)
    adds = await adds_behind_a_frame(cluster, ledger, 5)
    assert await asyncio.gather(*adds) == list(range(6))
    assert frames(cluster) == [1, 5]
    await ledger.close()


@pytest.mark.parametrize("flush_first", [True, False])
async def test_adds_that_are_flushed_do_not_wait_for_more(behind_one: FakeCluster, flush_first: bool) -> None:
    ledger, _ = await writer_and_clock(behind_one)
    ledger.add_nowait(b"0")
    await asyncio.gather(*(bookie.received(Op.ADD) for bookie in behind_one.bookies))
    acknowledged = ledger.add_nowait(b"1")
    await asyncio.sleep(0)
    ledger.add_nowait(b"2")
    await asyncio.sleep(0)
    if flush_first:
        flushing = asyncio.create_task(ledger.flush())
        await asyncio.sleep(0)
        let_go(behind_one)
        await flushing
    else:
        let_go(behind_one)
        await behind_one.until(lambda: ledger.last_add_confirmed == 0)
        assert frames(behind_one) == [1]
        await ledger.flush()
    assert await acknowledged == 1
    assert frames(behind_one) == [1, 2]
    await ledger.close()


async def test_callers_that_go_on_when_they_are_answered_wait_for_nothing(behind_one: FakeCluster) -> None:
    let_go(behind_one)
    ledger, _ = await writer_and_clock(behind_one)
    for round_ in range(5):
        assert await asyncio.gather(*(ledger.add(b"x") for _ in range(8))) == list(range(8 * round_, 8 * round_ + 8))
    assert frames(behind_one) == [8] * 5
    await ledger.close()


async def test_a_callers_next_add_joins_those_that_waited(behind_one: FakeCluster) -> None:
    """Callers that add one entry after another come to travel together, instead of by turns."""

    async def caller() -> None:
        for _ in range(3):
            await ledger.add(b"x")

    ledger, _ = await writer_and_clock(behind_one)
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
    ledger, _ = await writer_and_clock(behind_one)
    adds = [ledger.add_nowait(b"0")]
    await behind_one.bookies[0].received(Op.ADD)
    adds += [ledger.add_nowait(b"x") for _ in range(ENTRIES_MAX)]
    await behind_one.bookies[0].received(Op.ADD, 2)
    assert frames(behind_one) == [1, ENTRIES_MAX]
    let_go(behind_one)
    await asyncio.gather(*adds)
    await ledger.close()


async def test_adds_behind_a_frame_that_is_not_acknowledged_leave_after_a_while(cluster: FakeCluster) -> None:
    ledger, _ = await writer_and_clock(cluster)
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
    ledger = await cluster.writer(frame_interval_seconds=0.25)
    loop = asyncio.get_running_loop()
    await asyncio.gather(ledger.add(b"0"), ledger.add(b"1"))
    began = loop.time()
    waiting = [asyncio.create_task(ledger.add(b"2"))]
    await asyncio.sleep(0)
    waiting.append(asyncio.create_task(ledger.add(b"3")))
    assert await asyncio.gather(*waiting) == [2, 3]
    assert frames(cluster) == [2, 2]
    assert loop.time() - began > 0.2
    await ledger.close()


async def test_with_an_interval_callers_that_are_alone_wait_for_nothing(cluster: FakeCluster) -> None:
    async with await cluster.writer(frame_interval_seconds=1.0) as ledger:
        async with asyncio.timeout(10.0):  # twenty intervals are twice as long
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
