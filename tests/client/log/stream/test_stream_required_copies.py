"""Logs that are streams and require all copies of their entries (rules I9 and G2 to G5), on bookies in memory. With
three bookies each of them is a member of every fragment; the third one answers late, or never."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from octavo.client.log.documents.names import lock_name
from octavo.client.log.stream.lead import StreamSegment
from octavo.client.log.writer.writer import LogWriter
from octavo.client.options import ClientOptions
from octavo.client.terms.term import OpenedTerm
from octavo.client.write.copies.policy import RequiredCopies
from octavo.metadata.ledger.debts import NO_DEBT, Debt, FullCopies
from octavo.metadata.stream.model import StreamMetadata, StreamState
from octavo.protocol.errors import (
    BookieInDoubtError,
    BookieReadOnlyError,
    ClientClosedError,
    UnderReplicatedError,
    WouldBlock,
)
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import Add, AddFlag, Op, Reply
from octavo.protocol.places import place
from support.clusters.fake_bookie import FakeBookie, registered_bookies
from support.clusters.log_cluster import LogCluster, collect, open_log_cluster
from support.inside import active_of, leader_of
from support.metadata.metadata_clusters import LEASE_SECONDS, MemoryCluster
from support.waiting import WAIT_SECONDS, eventually, loop_turns

PATIENT: dict[str, Any] = {"bookie_loss_seconds": 3600.0, "full_copies_patience_seconds": 0.01}
HASTY: dict[str, Any] = {"bookie_loss_seconds": 0.001}
BRIEF: dict[str, Any] = {**PATIENT, "close_timeout_seconds": 0.05}


@pytest.fixture
async def logs() -> AsyncIterator[LogCluster]:
    async with open_log_cluster(MemoryCluster(Path()), "stream", full_copies="required") as made:
        yield made


def segment_of(writer: LogWriter) -> OpenedTerm:
    segment = active_of(writer)
    assert isinstance(segment, StreamSegment)
    assert isinstance(segment.core.copies, RequiredCopies)
    return segment.term


def renewals() -> "set[asyncio.Task[Any]]":
    """Those that are under way."""
    return {task for task in asyncio.all_tasks() if task.get_name().startswith("octavo renewal of stream")}


async def until_full(writer: LogWriter) -> None:
    await eventually(lambda: segment_of(writer).core.pipeline.debt().is_empty)


def check_copies(logs: LogCluster, root: StreamMetadata) -> None:
    """Rule I9: every position is on all members of its fragment."""
    assert root.end_position is not None
    for position in range(root.end_position + 1):
        fragment = root.fragment_at(position)
        found = root.place_at(position)
        lacking = [
            one.bookie_id
            for one in logs.bookies
            if one.bookie_id in fragment.bookies and found not in one.ledger(root.ledger_id).entries
        ]
        assert not lacking, f"position {position} is not on {lacking}"


async def test_a_log_rests_with_all_copies(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await asyncio.gather(*(writer.add(b"x") for _ in range(10)))
    root = await logs.root()
    assert (root.state, root.full_copies) == (StreamState.AT_REST, FullCopies.REQUIRED)
    assert (root.last_fragment.debt, root.end_position) == (NO_DEBT, 9)
    check_copies(logs, root)


async def test_entries_take_room_in_the_window_of_the_log_until_they_have_all_copies(logs: LogCluster) -> None:
    """Rule G2."""
    log = await logs.log(window_entries=4, **PATIENT)
    async with log.lead() as writer:
        logs.bookies[2].hold(Op.ADD)
        assert [await writer.add(b"x") for _ in range(4)] == [0, 1, 2, 3]
        with pytest.raises(WouldBlock):
            writer.add_nowait(b"y")
        blocked = asyncio.ensure_future(writer.add(b"y"))
        await loop_turns(20)
        assert not blocked.done()
        logs.bookies[2].release(Op.ADD)
        assert await blocked == 4
        await until_full(writer)
        adds = writer.statistics().adds
        assert (adds.free_entries, adds.held_entries, adds.held_bytes) == (4, 0, 0)
        assert adds.free_bytes == ClientOptions().window_bytes
    check_copies(logs, await logs.root())


async def test_closing_without_all_copies_is_refused_loses_nothing_and_can_be_tried_again(logs: LogCluster) -> None:
    """Rule G4. The leader goes on leading, and copying."""
    log = await logs.log(**BRIEF)
    writer = await log.lead()
    await writer.add(b"w")
    logs.bookies[2].hold(Op.ADD)
    for _ in range(3):
        await writer.add(b"x")
    for _ in range(2):
        with pytest.raises(
            UnderReplicatedError, match=r"was not closed: its entries 1 to 3 .*: bookie b2: no answer yet$"
        ):
            await writer.close()
        assert not writer.closed
        assert (await log.status()).leader is not None
        assert (await logs.root()).state is StreamState.OPEN
        with pytest.raises(ClientClosedError):
            await writer.add(b"y")
    logs.bookies[2].release(Op.ADD)
    await until_full(writer)
    await writer.close()
    assert writer.closed
    root = await logs.root()
    assert (root.state, root.end_position, root.debts) == (StreamState.AT_REST, 3, ())
    assert (await log.status()).leader is None
    check_copies(logs, root)


async def test_closing_waits_for_a_slow_bookie(logs: LogCluster) -> None:
    writer = await (await logs.log(**PATIENT)).lead()
    logs.bookies[2].hold(Op.ADD)
    await writer.add(b"x")
    closing = asyncio.ensure_future(writer.close())
    await loop_turns(50)
    assert not closing.done()
    logs.bookies[2].release(Op.ADD)
    await closing
    assert (await logs.root()).debts == ()


async def test_a_client_that_is_closed_leaves_the_log_to_the_next_leader(logs: LogCluster) -> None:
    client = await replace(logs, stack=contextlib.AsyncExitStack()).client(**BRIEF)
    log = await client.create_log("orders", layout="stream", full_copies="required")
    writer = await log.lead()
    logs.bookies[2].hold(Op.ADD)
    await writer.add(b"x")
    with pytest.raises(UnderReplicatedError):
        await client.close()
    assert writer.closed
    assert (await logs.root()).state is StreamState.OPEN
    logs.bookies[2].release(Op.ADD)
    following = await (await logs.client(**PATIENT)).open_log("orders")
    async with following.lead() as successor:
        assert await successor.add(b"y") == 1
    assert await collect(following, 0, 2) == [b"x", b"y"]


@pytest.mark.parametrize("has_copies", [False, True])
async def test_a_client_does_not_wait_for_copies_after_its_writer_has(logs: LogCluster, *, has_copies: bool) -> None:
    """The end of a block in which a client leads closes the writer, and then the client."""
    client = await replace(logs, stack=contextlib.AsyncExitStack()).client(**BRIEF)
    log = await client.create_log("orders", layout="stream", full_copies="required")
    writer = await log.lead()
    logs.bookies[2].hold(Op.ADD)
    await writer.add(b"x")
    with pytest.raises(UnderReplicatedError):
        await writer.close()
    leader = leader_of(writer)
    leader._options = replace(leader._options, close_timeout_seconds=3600.0)  # how long another closing would wait
    if has_copies:
        logs.bookies[2].release(Op.ADD)
        await until_full(writer)
    async with asyncio.timeout(60):
        with contextlib.nullcontext() if has_copies else pytest.raises(UnderReplicatedError):
            await client.close()
    assert writer.closed
    assert (await logs.root()).state is (StreamState.AT_REST if has_copies else StreamState.OPEN)


async def test_a_leader_whose_lock_is_lost_does_not_wait_for_copies_for_ever(logs: LogCluster) -> None:
    log = await logs.log(**BRIEF)
    handle = logs.metadata.handles[-1]
    writer = await log.lead()
    logs.bookies[2].hold(Op.ADD)
    await writer.add(b"x")
    await logs.metadata.advance(LEASE_SECONDS + 1, asleep=handle)
    await logs.store.lock(lock_name(log.statistics().log_id), "another")
    await handle.renew_leases()
    await writer.lost.wait()
    await writer.close()
    assert writer.closed
    assert (await logs.root()).state is StreamState.OPEN


# --- rolls ------------------------------------------------------------------------------------------------------------


async def test_a_roll_begins_behind_what_has_all_copies_and_owes_nothing(logs: LogCluster) -> None:
    """Rules G3 and U6: on the same bookies nothing is copied."""
    writer = await (await logs.log(**PATIENT)).lead()
    segment = segment_of(writer)
    await writer.add(b"full")
    await until_full(writer)
    logs.bookies[2].hold(Op.ADD)
    for _ in range(2):
        await writer.add(b"short")
    assert await segment.roll()
    root = await logs.root()
    assert [(one.first_position, one.debt) for one in root.fragments] == [(0, NO_DEBT), (1, None)]
    assert root.fragments[0].bookies == root.fragments[1].bookies
    with pytest.raises(UnderReplicatedError, match="no fragment begins behind entries that do not have all copies"):
        await segment.roll()
    with pytest.raises(UnderReplicatedError, match="no fragment begins behind entries"):
        await writer.roll()
    assert len((await logs.root()).fragments) == 2, "the log goes on in the present fragment"
    logs.bookies[2].release(Op.ADD)
    await until_full(writer)
    await writer.add(b"y")
    await writer.close()
    root = await logs.root()
    assert (root.debts, root.end_position) == ((), 3)
    check_copies(logs, root)


async def more_bookies(logs: LogCluster, count: int) -> list[FakeBookie]:
    """Registers this number of further bookies."""
    bookies = await logs.stack.enter_async_context(registered_bookies(logs.store, count, first=len(logs.bookies)))
    logs.bookies += bookies
    return bookies


async def roll_to(segment: OpenedTerm, place: Callable[[], Awaitable[Sequence[BookieId]]]) -> bool:
    """Roll onto bookies that the test chooses."""
    path = segment.core.path
    assert path is not None
    return await path.replication.replacing.roll(place)


async def test_a_roll_onto_other_bookies_copies_first(logs: LogCluster) -> None:
    writer = await (await logs.log(**PATIENT)).lead()
    segment = segment_of(writer)
    await writer.add(b"full")
    await until_full(writer)
    logs.bookies[2].hold(Op.ADD)
    for _ in range(2):
        await writer.add(b"short")
    others = await more_bookies(logs, 3)
    names = tuple(one.bookie_id for one in others)

    async def other_ones() -> tuple[BookieId, ...]:
        for name in names:
            await segment.core.tools.pool.get(BookieId(name)).wait_writable(timeout_seconds=WAIT_SECONDS)
        return tuple(map(BookieId, names))

    for one in others:
        one.hold(Op.ADD)
    rolling = asyncio.ensure_future(roll_to(segment, other_ones))
    for one in others:
        await one.received(Op.ADD, 2)
    await loop_turns(50)
    assert not rolling.done()
    assert len((await logs.root()).fragments) == 1
    for one in others[:2]:
        one.release(Op.ADD)
    assert await rolling
    root = await logs.root()
    assert [(one.first_position, one.debt) for one in root.fragments] == [(0, NO_DEBT), (1, None)]
    assert root.last_fragment.bookies == names
    others[2].release(Op.ADD)
    assert await writer.add(b"y") == 3
    await writer.close()
    root = await logs.root()
    assert root.debts == ()
    check_copies(logs, root)
    assert not segment.core.tools.pool.quarantined()


async def test_a_roll_whose_new_bookie_fails_changes_nothing(logs: LogCluster) -> None:
    writer = await (await logs.log(**PATIENT)).lead()
    segment = segment_of(writer)
    await writer.add(b"full")
    await until_full(writer)
    logs.bookies[2].hold(Op.ADD)
    await writer.add(b"short")
    (other,) = await more_bookies(logs, 1)
    other.refuse(Op.ADD, BookieReadOnlyError("full"))
    present = segment.stream.last_fragment.bookies

    async def other_ones() -> tuple[BookieId, ...]:
        await segment.core.tools.pool.get(BookieId(other.bookie_id)).wait_writable(timeout_seconds=WAIT_SECONDS)
        return tuple(BookieId(one.bookie_id) for one in (other, logs.bookies[2], logs.bookies[0]))

    assert not await roll_to(segment, other_ones)
    assert [one.bookies for one in (await logs.root()).fragments] == [present]
    assert await writer.add(b"y") == 2
    logs.bookies[2].release(Op.ADD)
    await writer.close()
    check_copies(logs, await logs.root())


# --- replaced bookies -------------------------------------------------------------------------------------------------


async def test_a_bookie_that_is_gone_is_replaced_and_nothing_is_owed(logs: LogCluster) -> None:
    await more_bookies(logs, 1)
    writer = await (await logs.log(**HASTY)).lead()
    await writer.add(b"full")
    await until_full(writer)
    gone, slow = (
        next(one for one in logs.bookies if one.bookie_id == segment_of(writer).stream.last_fragment.bookies[at])
        for at in (0, 1)
    )
    slow.hold(Op.ADD)
    await writer.add(b"short")
    await gone.stop()
    adding = asyncio.ensure_future(writer.add(b"after"))
    await eventually(lambda: len(segment_of(writer).stream.fragments) == 2)
    slow.release(Op.ADD)
    assert await adding == 2
    await writer.close()
    root = await logs.root()
    assert [one.first_position for one in root.fragments] == [0, 1]
    assert root.debts == ()
    check_copies(logs, root)


async def test_without_a_spare_adds_wait_once_the_window_is_full(logs: LogCluster) -> None:
    writer = await (await logs.log(window_entries=3, **HASTY)).lead()
    await logs.bookies[2].stop()
    assert [await writer.add(b"x") for _ in range(3)] == [0, 1, 2]
    blocked = asyncio.ensure_future(writer.add(b"y"))
    await loop_turns(50)
    assert not blocked.done()
    await more_bookies(logs, 1)
    assert await blocked == 3
    await writer.close()
    root = await logs.root()
    assert root.debts == ()
    check_copies(logs, root)


# --- renewals ---------------------------------------------------------------------------------------------------------


async def test_a_renewal_that_no_one_needs_is_given_up_without_the_copies(logs: LogCluster) -> None:
    writer = await (await logs.log(**PATIENT)).lead()
    segment = segment_of(writer)
    logs.bookies[2].hold(Op.ADD)
    await writer.add(b"x")
    term = segment.term
    await segment.renew()
    assert segment.term == term
    assert await writer.add(b"y") == 1
    logs.bookies[2].release(Op.ADD)
    await segment.renew()
    assert segment.term == term + 1
    assert await writer.add(b"z") == 2
    await writer.close()
    root = await logs.root()
    assert root.debts == ()
    check_copies(logs, root)


async def test_a_renewal_at_the_end_of_a_term_waits_for_the_copies(logs: LogCluster) -> None:
    writer = await (await logs.log(**PATIENT)).lead()
    segment = segment_of(writer)
    logs.bookies[2].hold(Op.ADD)
    await writer.add(b"x")
    term = segment.term
    segment._renewal_place = segment.core.limit = place(term, 1)
    waiting = asyncio.ensure_future(writer.add(b"y"))
    await eventually(lambda: len(renewals()) == 1)
    (renewing,), loop = renewals(), asyncio.get_running_loop()
    began = loop.time()
    await eventually(lambda: loop.time() > began + 10 * PATIENT["full_copies_patience_seconds"])
    assert renewals() == {renewing}, "it is not given up and begun again"
    assert (segment.term, waiting.done()) == (term, False)
    logs.bookies[2].release(Op.ADD)
    assert await waiting == 1
    assert segment.term == term + 1
    await writer.close()
    root = await logs.root()
    assert root.debts == ()
    check_copies(logs, root)


async def test_a_bookie_that_lost_a_disk_gets_its_copies_and_the_next_term(logs: LogCluster) -> None:
    """Rules T11 and T12: it refuses the adds of the term, and takes recovery adds."""
    writer = await (await logs.log(window_entries=3, log_retention_seconds=0.02, **PATIENT)).lead()
    segment, doubtful = segment_of(writer), logs.bookies[2]
    term = segment.term

    def in_doubt(add: Any) -> Reply:
        assert isinstance(add, Add)
        if add.term == term and not add.flags & AddFlag.RECOVERY:
            raise BookieInDoubtError("lost a disk")
        return usually(add)

    usually = doubtful.answer(Add, in_doubt)
    for _ in range(3):
        await writer.add(b"x")
    blocked = asyncio.ensure_future(writer.add(b"y"))
    assert await asyncio.wait_for(blocked, WAIT_SECONDS) == 3
    assert segment.term == term + 1
    await writer.close()
    root = await logs.root()
    assert root.debts == ()
    check_copies(logs, root)


async def test_quorums_are_changed_once_everything_has_all_copies(logs: LogCluster) -> None:
    """Rule T13, whose change ends the term."""
    writer = await (await logs.log(**PATIENT)).lead()
    logs.bookies[2].hold(Op.ADD)
    await writer.add(b"x")
    with pytest.raises(UnderReplicatedError):
        await writer.change(ack_quorum=1)
    assert await writer.add(b"y") == 1
    assert (await logs.root()).last_fragment.ack_quorum == 2
    logs.bookies[2].release(Op.ADD)
    await until_full(writer)
    await writer.change(ack_quorum=1)
    assert await writer.add(b"z") == 2
    await writer.close()
    root = await logs.root()
    assert (root.last_fragment.ack_quorum, root.debts) == (1, ())
    check_copies(logs, root)


# --- takeovers --------------------------------------------------------------------------------------------------------


async def test_a_leader_heals_and_gives_back_the_room_of_what_the_term_before_lacks(logs: LogCluster) -> None:
    writer = await (await logs.log(window_entries=4, log_duel_pause_seconds=0.001, **PATIENT)).lead()
    logs.bookies[2].hold(Op.ADD)
    for _ in range(4):
        await writer.add(b"x")
    blocked = asyncio.ensure_future(writer.add(b"y"))
    await loop_turns(20)
    assert not blocked.done()
    await logs.end_segment_by_hand(await logs.client(), next(iter(await logs.ledgers())))
    assert await blocked == 4
    logs.bookies[2].release(Op.ADD)
    await until_full(writer)
    adds = writer.statistics().adds
    assert (adds.free_entries, adds.held_entries) == (4, 0)
    await writer.close()
    assert (await logs.root()).end_position == 4


async def test_a_takeover_records_what_it_finds_and_does_not_wait(logs: LogCluster) -> None:
    """Rule G5: the cluster would otherwise stop with a leader that is gone."""
    log = await logs.log(**PATIENT)
    writer = await log.lead()
    logs.bookies[2].hold(Op.ADD)
    for number in range(3):
        await writer.add(b"%d" % number)
    await logs.bookies[2].stop()
    other = await (await logs.client(**PATIENT)).open_log("orders")
    successor = await other.take_over()
    root = await logs.root()
    ((fragment, debt),) = root.debts
    assert debt == Debt(fragment.first_entry_id, fragment.first_entry_id + 2)
    logs.bookies[2].release(Op.ADD)
    await logs.bookies[2].start()
    assert await successor.add(b"3") == 3
    await successor.close()
    assert (await logs.root()).last_fragment.debt == NO_DEBT
    assert await collect(other, 0, 4) == [b"0", b"1", b"2", b"3"]


async def test_readers_follow_across_fragments_that_begin_below_the_last_acknowledged_entry(logs: LogCluster) -> None:
    writer = await (await logs.log(**PATIENT)).lead()
    reader = await (await logs.client(**PATIENT)).open_log("orders")
    logs.bookies[2].hold(Op.ADD)
    for number in range(20):
        await writer.add(b"%d" % number)
        if number % 3 == 2:
            logs.bookies[2].release(Op.ADD)
            await until_full(writer)
            logs.bookies[2].hold(Op.ADD)
            await writer.add(b"%d+" % number)
            assert await segment_of(writer).roll()
    logs.bookies[2].release(Op.ADD)
    expected = [b"%d%s" % (n, plus) for n in range(20) for plus in ((b"", b"+") if n % 3 == 2 else (b"",))]
    assert await collect(reader, 0, len(expected)) == expected
    await writer.close()
    check_copies(logs, await logs.root())
