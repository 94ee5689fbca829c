import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial

import pytest
from octavo.metadata import BeginRecovery, CloseLedger, LedgerMetadata, LedgerState, Version, update_ledger
from octavo.protocol.entries import header_of
from octavo.protocol.errors import (
    BookieStorageError,
    DuplicateEntryError,
    EntryTooLargeError,
    InvalidArgumentError,
    LedgerClosedError,
    LedgerFencedError,
    NoSuchLedgerError,
    OctavoError,
    QuorumLostError,
    UnauthorizedError,
    UnsupportedOperationError,
    WouldBlock,
)
from octavo.protocol.ids import BookieId, LedgerId
from octavo.protocol.limits import ADD_ENTRIES_TARGET, ENTRY_PAYLOAD_BYTES_MAX, FRAME_PAYLOAD_BYTES_TARGET
from octavo.protocol.messages import Add, Op, Ping
from octavo.protocol.quorums import Quorums
from support.clusters.writing import FakeCluster, fake_cluster
from support.waiting import WAIT_SECONDS


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster() as cluster:
        yield cluster


def adds_at(cluster: FakeCluster, position: int) -> list[Add]:
    return [request for request in cluster.bookies[position].requests if isinstance(request, Add)]


def hold_adds(cluster: FakeCluster) -> None:
    for bookie in cluster.bookies:
        bookie.hold(Op.ADD)


def release_adds(cluster: FakeCluster) -> None:
    for bookie in cluster.bookies:
        bookie.release(Op.ADD)


def holds(cluster: FakeCluster, position: int, ledger_id: LedgerId, expected: dict[int, bytes]) -> bool:
    return cluster.held(position, ledger_id) == expected


# --- adding ---------------------------------------------------------------------------------------------------------


async def test_adds_are_numbered_in_order_and_on_every_bookie(cluster: FakeCluster) -> None:
    async with await cluster.writer() as ledger:
        assert (ledger.last_add_confirmed, ledger.last_add_pushed, ledger.length) == (None, None, 0)
        assert await ledger.add(b"zero") == 0
        assert await ledger.add(bytearray(b"one")) == 1
        assert await ledger.add_many([b"", memoryview(b"three")]) == range(2, 4)
        assert await ledger.add_many([]) == range(4, 4)
        assert (ledger.last_add_confirmed, ledger.last_add_pushed, ledger.length) == (3, 3, 12)
        await cluster.until(lambda: all(len(cluster.held(position, ledger.id)) == 4 for position in range(3)))
        assert cluster.held(2, ledger.id) == {0: b"zero", 1: b"one", 2: b"", 3: b"three"}


async def test_adds_of_one_turn_travel_in_one_frame_per_bookie(cluster: FakeCluster) -> None:
    ledger = await cluster.writer()
    ids = await asyncio.gather(*(ledger.add(b"x") for _ in range(500)))
    assert ids == list(range(500))
    assert [len(adds_at(cluster, 0)), len(adds_at(cluster, 1))] == [1, 1]
    await ledger.close()


async def test_frames_keep_to_both_limits(cluster: FakeCluster) -> None:
    ledger = await cluster.writer(window_entries=100_000)
    await ledger.add_many([b""] * (ADD_ENTRIES_TARGET * 2 + 1))
    big = FRAME_PAYLOAD_BYTES_TARGET // 2
    await ledger.add_many([bytes(big), bytes(big), bytes(big), bytes(big * 3), b"x"])
    assert [len(add.entries) for add in adds_at(cluster, 0)] == [ADD_ENTRIES_TARGET] * 2 + [1, 2, 1, 1, 1]
    await ledger.close()


async def test_payloads_that_cannot_be_are_refused_before_anything_is_queued(cluster: FakeCluster) -> None:
    ledger = await cluster.writer()
    with pytest.raises(InvalidArgumentError, match="bytes, not str"):
        await ledger.add("text")  # type: ignore[arg-type]
    with pytest.raises(EntryTooLargeError):
        await ledger.add(bytes(ENTRY_PAYLOAD_BYTES_MAX + 1))
    with pytest.raises(EntryTooLargeError):
        await ledger.add_many([b"good", bytes(ENTRY_PAYLOAD_BYTES_MAX + 1)])
    with pytest.raises(InvalidArgumentError):
        ledger.add_nowait(None)  # type: ignore[arg-type]
    assert await ledger.add(bytes(ENTRY_PAYLOAD_BYTES_MAX)) == 0
    await ledger.close()


async def test_add_returns_once_qa_bookies_have_it_and_not_before(cluster: FakeCluster) -> None:
    ledger = await cluster.writer()
    hold_adds(cluster)
    future = ledger.add_nowait(b"x")
    await asyncio.gather(*(bookie.received(Op.ADD) for bookie in cluster.bookies))
    cluster.bookies[2].release(Op.ADD)
    # Answers of one connection arrive in order: once this one is there, the confirmation is too.
    await cluster.pools[0].get(BookieId("b2")).request(Ping(), timeout_seconds=10)
    assert not future.done()
    cluster.bookies[0].release(Op.ADD)
    assert await future == 0
    await ledger.close()
    release_adds(cluster)


async def test_every_entry_carries_the_last_add_confirmed_of_when_it_was_sealed(cluster: FakeCluster) -> None:
    async with await cluster.writer() as ledger:
        for _ in range(3):
            await ledger.add(b"ab")
    sealed = cluster.bookies[0].ledger(ledger.id).entries
    headers = [header_of(sealed[entry_id]) for entry_id in range(3)]
    assert [header.last_add_confirmed for header in headers] == [None, 0, 1]
    assert [header.length for header in headers] == [2, 4, 6]


async def test_an_entry_that_is_not_acknowledged_is_in_no_entrys_last_add_confirmed(cluster: FakeCluster) -> None:
    """Rule W2: readers take a sealed LAC for proof."""
    ledger = await cluster.writer()
    await ledger.add(b"ab")
    hold_adds(cluster)
    adds = []
    for count in range(1, 4):
        adds.append(ledger.add_nowait(b"ab"))
        await cluster.bookies[0].received(Op.ADD, 1 + count)
    sealed = cluster.bookies[0].ledger(ledger.id).entries
    assert [header_of(sealed[entry_id]).last_add_confirmed for entry_id in range(1, 4)] == [0, 0, 0]
    release_adds(cluster)
    assert await asyncio.gather(*adds) == [1, 2, 3]
    await ledger.close()


async def test_an_idle_writer_tells_its_last_add_confirmed_once(cluster: FakeCluster) -> None:
    ledger = await cluster.writer()
    await ledger.add(b"ab")
    await asyncio.gather(*(bookie.received(Op.WRITE_LAC) for bookie in cluster.bookies))
    explicit = cluster.bookies[1].ledger(ledger.id).explicit
    assert explicit is not None
    assert (header_of(explicit).entry_id, header_of(explicit).length) == (0, 2)
    await ledger.add(b"c")
    await cluster.bookies[0].received(Op.WRITE_LAC, 2)
    await ledger.close()
    assert cluster.bookies[0].count(Op.WRITE_LAC) == 2


@pytest.mark.parametrize("lost", ["never sent", "never answered"])
async def test_bookie_that_missed_the_lac_is_told_it_when_it_is_back(cluster: FakeCluster, lost: str) -> None:
    """A follower may have no other bookie to ask."""
    ledger = await cluster.writer(3, 3, 1)
    await ledger.add(b"everywhere")
    await cluster.until(lambda: all(bookie.count(Op.WRITE_LAC) == 1 for bookie in cluster.bookies))
    missing = cluster.bookies[2]
    if lost == "never sent":
        await missing.stop()
    else:
        missing.drop(Op.WRITE_LAC)
    await ledger.add(b"where it can be")
    await asyncio.gather(*(bookie.received(Op.WRITE_LAC, 2) for bookie in cluster.bookies[:2]))
    if lost == "never sent":
        await missing.start()
    else:
        await missing.received(Op.WRITE_LAC, 2)
        missing.accept(Op.WRITE_LAC)
        missing.disconnect()
    await missing.until(lambda: missing.ledger(ledger.id).last_add_confirmed == 1)
    told = missing.count(Op.WRITE_LAC)
    missing.disconnect()
    await ledger.add(b"and on")
    await missing.until(lambda: missing.ledger(ledger.id).last_add_confirmed == 2)
    assert missing.count(Op.WRITE_LAC) == told + 1


async def test_no_lac_is_told_by_itself_while_adds_follow_one_another(cluster: FakeCluster) -> None:
    """Each add carries the LAC of those before it; the last one's LAC is told soon after it."""
    delay_seconds = 0.05
    ledger = await cluster.writer(explicit_lac_delay_seconds=delay_seconds)
    clock = asyncio.get_running_loop().time
    told: int | None = None
    streak_began_at = clock()
    while told is None or clock() < streak_began_at + 6 * delay_seconds:
        before = clock()
        last = await ledger.add(b"one after another")
        if clock() > before + delay_seconds / 2:
            told, streak_began_at = None, clock()  # the machine made a pause, and a LAC may have been told in it
        elif told is None and clock() > streak_began_at + delay_seconds:
            told = cluster.bookies[0].count(Op.WRITE_LAC)  # what was told in a pause has arrived
        assert told in (None, cluster.bookies[0].count(Op.WRITE_LAC))
    await asyncio.gather(*(bookie.received(Op.WRITE_LAC) for bookie in cluster.bookies))
    assert cluster.bookies[0].ledger(ledger.id).last_add_confirmed == last


@pytest.mark.parametrize(
    "quorums", [(1, 1, 1), (3, 3, 1), (3, 2, 2), (3, 1, 1), (2, 2, 2)], ids=lambda quorums: "-".join(map(str, quorums))
)
async def test_every_bookie_gets_exactly_its_stripe(cluster: FakeCluster, quorums: tuple[int, int, int]) -> None:
    payloads = [bytes([number]) for number in range(50)]
    async with await cluster.writer(*quorums) as ledger:
        await ledger.add_many(payloads[:33])
        for payload in payloads[33:]:
            await ledger.add(payload)
    arithmetic = Quorums(*quorums)
    for position in range(quorums[0]):
        expected = {i: payloads[i] for i in range(50) if position in arithmetic.write_set(i)}
        await cluster.until(partial(holds, cluster, position, ledger.id, expected))


# --- windows and cancelling -----------------------------------------------------------------------------------------


async def test_a_full_window_makes_adds_wait_in_order_and_add_nowait_refuse(cluster: FakeCluster) -> None:
    ledger = await cluster.writer(window_entries=2)
    hold_adds(cluster)
    first = [ledger.add_nowait(b"0"), ledger.add_nowait(b"1")]
    with pytest.raises(WouldBlock):
        ledger.add_nowait(b"refused")
    waiting = [asyncio.create_task(ledger.add(b"%d" % number)) for number in (2, 3)]
    many = asyncio.create_task(ledger.add_many([b"4", b"5", b"6", b"7", b"8"]))
    last = asyncio.create_task(ledger.add(b"9"))
    await cluster.bookies[0].received(Op.ADD)
    with pytest.raises(WouldBlock):
        ledger.add_nowait(b"refused")
    assert ledger.last_add_pushed == 1
    release_adds(cluster)
    assert await asyncio.gather(*first, *waiting) == [0, 1, 2, 3]
    assert await many == range(4, 9)
    assert await last == 9
    await ledger.close()
    assert cluster.held(0, ledger.id) == {number: b"%d" % number for number in range(10)}
    assert all(len(add.entries) <= 2 for add in adds_at(cluster, 0))


async def test_the_window_of_bytes_lets_one_larger_add_go_alone(cluster: FakeCluster) -> None:
    ledger = await cluster.writer(window_bytes=10)
    hold_adds(cluster)
    ledger.add_nowait(b"123456")
    with pytest.raises(WouldBlock):
        ledger.add_nowait(b"12345")
    ledger.add_nowait(b"1234")
    large = asyncio.create_task(ledger.add(bytes(50)))
    await cluster.bookies[0].received(Op.ADD)
    release_adds(cluster)
    assert await large == 2
    assert await ledger.add_nowait(bytes(20)) == 3
    # All of it is free again.
    assert [await add for add in [ledger.add_nowait(bytes(5)), ledger.add_nowait(bytes(5))]] == [4, 5]
    await ledger.close()
    assert ledger.length == 90


async def test_no_add_overtakes_one_that_waits_for_room(cluster: FakeCluster) -> None:
    ledger = await cluster.writer(window_bytes=10)
    hold_adds(cluster)
    ledger.add_nowait(b"123456")
    waiting = asyncio.create_task(ledger.add(b"12345678"))
    await asyncio.sleep(0)
    with pytest.raises(WouldBlock):
        ledger.add_nowait(b"1")
    small = asyncio.create_task(ledger.add(b"1"))
    await cluster.bookies[0].received(Op.ADD)
    assert ledger.last_add_pushed == 0
    release_adds(cluster)
    assert [await waiting, await small] == [1, 2]
    await ledger.close()


async def test_cancelling_withdraws_nothing_and_disturbs_no_other(cluster: FakeCluster) -> None:
    ledger = await cluster.writer(window_entries=3)
    hold_adds(cluster)
    tasks = [asyncio.create_task(ledger.add(b"%d" % number)) for number in range(6)]
    await cluster.bookies[0].received(Op.ADD)
    tasks[1].cancel()
    tasks[4].cancel()  # still waiting for room
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ledger.add(b"6"), 0.001)
    release_adds(cluster)
    assert [await tasks[number] for number in (0, 2, 3, 5)] == [0, 2, 3, 5]
    await ledger.flush()
    await ledger.close()
    assert cluster.held(0, ledger.id) == {number: b"%d" % number for number in range(7)}


async def test_flush_waits_for_everything_added_so_far_and_for_nothing_later(cluster: FakeCluster) -> None:
    ledger = await cluster.writer(window_entries=1)
    await ledger.flush()
    hold_adds(cluster)
    adds = [asyncio.create_task(ledger.add(b"x")) for _ in range(2)]
    await cluster.bookies[0].received(Op.ADD)
    flushing = asyncio.create_task(ledger.flush())
    await asyncio.sleep(0)
    later = asyncio.create_task(ledger.add(b"later"))
    for count in (1, 2):
        await asyncio.gather(*(bookie.received(Op.ADD, count) for bookie in cluster.bookies))
        assert not flushing.done()
        for bookie in cluster.bookies:
            bookie.release(Op.ADD, 1)
    await flushing
    assert not later.done()
    assert [await add for add in adds] == [0, 1]
    release_adds(cluster)
    assert await later == 2
    await ledger.close()


# --- bookies that fail ----------------------------------------------------------------------------------------------


async def test_writing_goes_on_without_a_bookie_and_it_is_caught_up_when_it_is_back(cluster: FakeCluster) -> None:
    ledger = await cluster.writer()
    await ledger.add(b"0")
    await cluster.bookies[1].received(Op.ADD)
    await cluster.bookies[1].stop()
    for number in range(1, 20):
        await ledger.add(b"%d" % number)
    await cluster.bookies[1].start()
    expected = {number: b"%d" % number for number in range(20)}
    await cluster.until(lambda: cluster.held(1, ledger.id) == expected)
    await ledger.close()


async def test_adds_wait_for_a_quorum_and_are_sent_again_with_the_same_bytes(cluster: FakeCluster) -> None:
    ledger = await cluster.writer()
    hold_adds(cluster)
    adds = [asyncio.create_task(ledger.add(b"x")) for _ in range(3)]
    await asyncio.gather(*(bookie.received(Op.ADD) for bookie in cluster.bookies))
    for bookie in cluster.bookies:
        bookie.disconnect()
    for bookie in cluster.bookies[:2]:
        await bookie.received(Op.ADD, 2)
    release_adds(cluster)
    assert await asyncio.gather(*adds) == [0, 1, 2]
    first, again = adds_at(cluster, 0)[:2]
    assert first.entries == again.entries
    await ledger.close()


async def test_a_bookie_that_refuses_for_a_while_is_tried_again(cluster: FakeCluster) -> None:
    ledger = await cluster.writer()
    for bookie in cluster.bookies:
        bookie.refuse(Op.ADD, BookieStorageError("disk"), times=2)
    assert await ledger.add(b"x") == 0
    await ledger.close()


async def test_a_bookie_that_does_not_answer_is_tried_again(cluster: FakeCluster) -> None:
    ledger = await cluster.writer(request_timeout_seconds=0.02)
    for bookie in cluster.bookies:
        bookie.drop(Op.ADD)
    add = asyncio.create_task(ledger.add(b"x"))
    await asyncio.gather(*(bookie.received(Op.ADD) for bookie in cluster.bookies))
    for bookie in cluster.bookies:
        bookie.accept(Op.ADD)
    assert await add == 0
    await ledger.close()


async def test_the_quorum_timeout_names_each_bookie_and_ends_the_writer(cluster: FakeCluster) -> None:
    ledger = await cluster.writer(add_quorum_timeout_seconds=3.0, window_entries=2, resend_delay_seconds=0.4)
    assert await ledger.add(b"good") == 0
    await cluster.bookies[1].stop()
    cluster.bookies[2].refuse(Op.ADD, BookieStorageError("disk on fire"))
    sent = ledger.add_nowait(b"sent")
    also = ledger.add_nowait(b"also")
    queued = asyncio.create_task(ledger.add(b"waits for room"))
    await cluster.bookies[2].received(Op.ADD, 2)
    with pytest.raises(QuorumLostError) as caught:
        await sent
    assert caught.value.may_have_happened
    assert not caught.value.retryable, "this writer never recovers (rule W7)"
    for named in ("b0: has confirmed", "b1: not connected", "disk on fire"):
        assert named in caught.value.message
    with pytest.raises(QuorumLostError):
        await also
    with pytest.raises(QuorumLostError) as never_sent:
        await queued
    assert not never_sent.value.may_have_happened
    cluster.bookies[2].accept(Op.ADD)
    with pytest.raises(QuorumLostError) as dead:
        await ledger.add(b"later")
    assert not dead.value.may_have_happened
    assert not dead.value.retryable
    with pytest.raises(QuorumLostError):
        await ledger.close()
    # Closed all the same, with what was acknowledged.
    assert (ledger.metadata.state, ledger.metadata.last_entry_id) == (LedgerState.CLOSED, 0)


@pytest.mark.parametrize(
    "refusal",
    [LedgerFencedError("x"), UnauthorizedError("x"), DuplicateEntryError("x"), NoSuchLedgerError("x")],
    ids=repr,
)
async def test_some_refusals_end_the_writer_whatever_others_say(cluster: FakeCluster, refusal: OctavoError) -> None:
    ledger = await cluster.writer()
    cluster.bookies[0].hold(Op.ADD)
    cluster.bookies[1].hold(Op.ADD)
    cluster.bookies[2].refuse(Op.ADD, refusal)
    with pytest.raises(type(refusal), match="b2") as caught:
        await ledger.add(b"x")
    assert caught.value.may_have_happened
    release_adds(cluster)
    for position in (0, 1):  # behind the confirmations, which are two of three
        connection = cluster.pools[0].get(BookieId(f"b{position}"))
        with contextlib.suppress(UnsupportedOperationError):
            await connection.request(Ping(), timeout_seconds=10)
    with pytest.raises(type(refusal)) as later:
        await ledger.add(b"y")
    assert not later.value.may_have_happened
    assert ledger.last_add_confirmed is None, "a writer that has failed acknowledges nothing"
    with pytest.raises(OctavoError):
        await ledger.close()


async def test_a_ledger_deleted_meanwhile_ends_its_writer(cluster: FakeCluster) -> None:
    ledger = await cluster.writer()
    await ledger.add(b"x")
    await cluster.store.delete_ledger(ledger.id)
    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(NoSuchLedgerError):  # noqa: PT012 - the change takes some turns of the loop to arrive
            while True:
                await ledger.add(b"y")
    with pytest.raises(NoSuchLedgerError):
        await ledger.close()


@pytest.mark.parametrize("closed", [False, True])
async def test_a_ledger_taken_over_meanwhile_ends_its_writer(cluster: FakeCluster, closed: bool) -> None:
    ledger = await cluster.writer()
    fragment = (await cluster.store.read_ledger(ledger.id)).value.last_fragment
    begin = BeginRecovery(datetime(2026, 5, 4, 12, 30, tzinfo=UTC), "host-2, process 99")
    change = CloseLedger(fragment, None, 0) if closed else begin
    await update_ledger(cluster.store, ledger.id, change, writer_token="other")
    named = r"another client \(host-2, process 99\), which fenced it at 2026-05-04"
    async with asyncio.timeout(WAIT_SECONDS):
        # The change takes some turns of the loop to arrive.
        with pytest.raises(LedgerFencedError, match="another client recovered" if closed else named):  # noqa: PT012
            while True:
                await ledger.add(b"y")
    with pytest.raises(LedgerFencedError):
        await ledger.close()


# --- closing --------------------------------------------------------------------------------------------------------


async def test_closing_lets_pending_adds_finish_and_writes_the_end(cluster: FakeCluster) -> None:
    ledger = await cluster.writer(window_entries=2)
    hold_adds(cluster)
    adds = [asyncio.create_task(ledger.add(b"abc")) for _ in range(5)]
    await cluster.bookies[0].received(Op.ADD)
    closes = [asyncio.create_task(ledger.close()) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(LedgerClosedError) as caught:
        await ledger.add(b"late")
    assert not caught.value.may_have_happened
    assert not ledger.closed
    closes[0].cancel()
    release_adds(cluster)
    await asyncio.gather(*closes[1:])
    assert await asyncio.gather(*adds) == list(range(5))
    metadata = (await cluster.store.read_ledger(ledger.id)).value
    assert (metadata.state, metadata.last_entry_id, metadata.length) == (LedgerState.CLOSED, 4, 15)
    assert ledger.closed
    assert ledger.metadata == metadata
    await ledger.close()
    with pytest.raises(LedgerClosedError):
        await ledger.add(b"late")


async def test_an_empty_ledger_closes_empty(cluster: FakeCluster) -> None:
    async with await cluster.writer() as ledger:
        pass
    assert (ledger.metadata.state, ledger.metadata.last_entry_id) == (LedgerState.CLOSED, None)


async def test_closing_while_bookies_hang_is_bounded_and_what_is_cut_off_did_not_happen(cluster: FakeCluster) -> None:
    ledger = await cluster.writer(close_timeout_seconds=2.0)
    await ledger.add(b"kept")
    hold_adds(cluster)
    lost = ledger.add_nowait(b"lost")
    with pytest.raises(QuorumLostError, match="b0: no answer yet"):
        await asyncio.wait_for(ledger.close(), WAIT_SECONDS)
    with pytest.raises(QuorumLostError) as caught:
        await lost
    assert not caught.value.may_have_happened
    assert (ledger.metadata.state, ledger.metadata.last_entry_id) == (LedgerState.CLOSED, 0)
    release_adds(cluster)


async def test_a_flush_that_comes_after_a_close_that_cut_adds_off_says_so(cluster: FakeCluster) -> None:
    ledger = await cluster.writer(close_timeout_seconds=0.05)
    hold_adds(cluster)
    cut_off = ledger.add_nowait(b"x")
    closing = asyncio.ensure_future(ledger.close())
    during = asyncio.ensure_future(ledger.flush())
    for ended in (closing, cut_off, during):
        with pytest.raises(QuorumLostError, match="closed before the add reached its ack quorum"):
            await asyncio.wait_for(ended, WAIT_SECONDS)
    for flush in (ledger.flush, ledger.force):
        with pytest.raises(QuorumLostError, match="closed before the add reached its ack quorum"):
            await asyncio.wait_for(flush(), WAIT_SECONDS)


async def test_once_the_end_is_being_written_no_answer_of_a_bookie_changes_what_adds_are_told(
    cluster: FakeCluster,
) -> None:
    ledger = await cluster.writer(close_timeout_seconds=2.0)
    await ledger.add(b"kept")
    hold_adds(cluster)
    lost = ledger.add_nowait(b"lost")
    await asyncio.gather(*(bookie.received(Op.ADD, 2) for bookie in cluster.bookies))

    async def answers_come_first(metadata: LedgerMetadata, expected: Version) -> Version:
        release_adds(cluster)
        for bookie in cluster.bookies:
            await cluster.pools[0].get(BookieId(bookie.bookie_id)).request(Ping(), timeout_seconds=10)
        version = await cluster.interposed.real.compare_and_set_ledger(metadata, expected)
        # Our own end is in the watch before we know that it stands.
        for _ in range(20):
            await asyncio.sleep(0)
        return version

    cluster.interposed.interpose("compare_and_set_ledger", answers_come_first)
    with pytest.raises(QuorumLostError):
        await ledger.close()
    with pytest.raises(QuorumLostError) as caught:
        await lost
    assert not caught.value.may_have_happened
    assert (ledger.last_add_confirmed, ledger.metadata.last_entry_id) == (0, 0)


async def test_leaving_the_block_on_an_exception_closes_and_does_not_mask_it(cluster: FakeCluster) -> None:
    ledger = await cluster.writer(close_timeout_seconds=2.0)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is tested
        async with ledger:
            await ledger.add(b"kept")
            hold_adds(cluster)
            ledger.add_nowait(b"lost")
            raise ZeroDivisionError
    assert (ledger.metadata.state, ledger.metadata.last_entry_id) == (LedgerState.CLOSED, 0)
    release_adds(cluster)


async def test_leaving_the_block_raises_a_failure_that_no_caller_awaited(cluster: FakeCluster) -> None:
    ledger = await cluster.writer(add_quorum_timeout_seconds=0.02)
    with pytest.raises(QuorumLostError):  # noqa: PT012 - the block is what is tested
        async with ledger:
            hold_adds(cluster)
            ledger.add_nowait(b"x")
    release_adds(cluster)


async def test_closing_a_ledger_that_another_client_recovered_to_the_same_end_is_a_success(
    cluster: FakeCluster,
) -> None:
    ledger = await cluster.writer()
    await ledger.add(b"abc")
    current = await cluster.store.read_ledger(ledger.id)
    await cluster.store.compare_and_set_ledger(current.value.closed(ledger.last_add_confirmed, 3), current.version)
    await ledger.close()
    assert ledger.metadata.is_closed


async def test_closing_a_ledger_that_another_client_closed_elsewhere_is_an_error(cluster: FakeCluster) -> None:
    ledger = await cluster.writer()
    await ledger.add(b"abc")
    current = await cluster.store.read_ledger(ledger.id)
    await cluster.store.compare_and_set_ledger(current.value.closed(None, 0), current.version)
    with pytest.raises(LedgerFencedError):
        await ledger.close()


async def test_a_closed_writer_leaves_nothing_running(cluster: FakeCluster) -> None:
    before = asyncio.all_tasks()
    ledger = await cluster.writer()
    await ledger.add(b"x")
    await ledger.close()
    for pool in cluster.pools:
        await pool.close()
    # What is left is the store's own.
    names = {task.get_name() for task in asyncio.all_tasks() - before}
    assert not any("octavo writer" in name or "octavo closing" in name or "connections" in name for name in names)
