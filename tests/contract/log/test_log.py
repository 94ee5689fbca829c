"""What a log promises, whatever its layout and wherever its metadata are (rules P1 to P20)."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from octavo.protocol.errors import Doubt
from octavo.protocol.messages import Op
from support.clusters.log_cluster import LogCluster, collect
from support.waiting import WAIT_SECONDS, eventually

import octavo
from octavo import (
    Gap,
    InvalidArgumentError,
    LogExistsError,
    NoSuchEntryError,
    NoSuchLogError,
    NotLeaderError,
    PositionMismatchError,
    TruncatedError,
    UnauthorizedError,
)


async def test_positions_are_dense_over_rolls_and_leaders(logs: LogCluster) -> None:
    log = await logs.log()
    expected: list[bytes] = []
    positions: list[int] = []
    for term in range(1, 4):
        async with log.lead() as writer:
            assert writer.term == term
            for _ in range(2):
                payloads = [b"%d" % (len(expected) + n) for n in range(3)]
                positions += await asyncio.gather(*map(writer.add, payloads))
                expected += payloads
                await writer.roll()
    assert positions == list(range(18))
    reader = await (await logs.client()).open_log("orders")
    entries = [entry async for entry in reader.entries()]
    assert [entry.payload for entry in entries] == expected
    assert [entry.position for entry in entries] == positions
    assert [entry.term for entry in entries] == [1] * 6 + [2] * 6 + [3] * 6
    assert [entry.payload for entry in await reader.read(4, 13)] == expected[4:14]
    assert (reader.first_position, reader.end) == (0, 18)


async def test_add_many_and_flush_and_nowait(logs: LogCluster) -> None:
    log = await logs.log(window_entries=4)
    async with log.take_over() as writer:
        assert await writer.add_many([b"%d" % n for n in range(10)]) == range(10)
        future = writer.add_nowait(b"x")
        await writer.flush()
        assert future.result() == 10
        assert await writer.add_many([]) == range(11, 11)
        assert writer.end == 11
    assert await collect(log, 0, 11) == [*(b"%d" % n for n in range(10)), b"x"]


async def test_a_follower_sees_every_position_once_across_rolls_and_leaders(logs: LogCluster) -> None:
    log = await logs.log()
    reader = await (await logs.client()).open_log("orders")
    seen: list[tuple[int, bytes]] = []

    async def follow() -> None:
        async with aclosing(reader.follow()) as entries:
            async for entry in entries:
                seen.append((entry.position, entry.payload))
                if len(seen) == 30:
                    return

    following = asyncio.create_task(follow())
    for _ in range(3):
        async with log.lead() as writer:
            for n in range(10):
                await writer.add(b"%d" % n)
                if n % 4 == 3:
                    await writer.roll()
    await asyncio.wait_for(following, WAIT_SECONDS)
    assert [position for position, _ in seen] == list(range(30))
    assert [payload for _, payload in seen] == [b"%d" % n for n in range(10)] * 3


async def test_opening_to_read_disturbs_no_leader(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add(b"one")
        reader = await (await logs.client()).open_log("orders")
        assert await collect(reader, 0, 1) == [b"one"]
        assert await writer.add(b"two") == 1
        assert await collect(reader, 0, 2) == [b"one", b"two"]


async def test_lead_waits_and_take_over_does_not(logs: LogCluster) -> None:
    log = await logs.log()
    other = await (await logs.client()).open_log("orders")
    async with log.lead() as first:
        waiting = asyncio.ensure_future(_lead(other))
        await first.add(b"one")
        assert not waiting.done()
        async with other.take_over() as second:
            assert second.term > first.term
            assert await second.add(b"two") == 1
            with pytest.raises(NotLeaderError):
                await asyncio.wait_for(first.add(b"late"), WAIT_SECONDS)
            await asyncio.wait_for(first.lost.wait(), WAIT_SECONDS)
    third = await asyncio.wait_for(waiting, WAIT_SECONDS)
    assert third.term > second.term
    assert await third.add(b"three") == 2
    await third.close()
    assert await collect(log, 0, 3) == [b"one", b"two", b"three"]


async def _lead(log: octavo.Log) -> octavo.LogWriter:
    return await log.lead()


async def test_an_idle_leader_learns_that_it_does_not_lead_any_more(logs: LogCluster) -> None:
    log = await logs.log()
    other = await (await logs.client()).open_log("orders")
    idle = await log.take_over()
    async with other.take_over():
        await asyncio.wait_for(idle.lost.wait(), WAIT_SECONDS)
        with pytest.raises(NotLeaderError, match="another client has taken it over") as caught:
            await idle.add(b"late")
        assert not caught.value.may_have_happened
    await idle.close()


async def test_an_old_leader_adds_nothing_late(logs: LogCluster) -> None:
    log = await logs.log()
    other = await (await logs.client()).open_log("orders")
    old = await log.take_over()
    await old.add(b"old")
    async with other.take_over() as new:
        futures = [asyncio.ensure_future(old.add(b"late %d" % n)) for n in range(5)]
        results = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), WAIT_SECONDS)
        assert all(isinstance(result, NotLeaderError) for result in results)
        assert await new.add(b"new") == 1
    await old.close()
    assert await collect(other, 0, 2) == [b"old", b"new"]


async def test_ten_candidates_lead_one_after_another(logs: LogCluster) -> None:
    await logs.log()
    terms: list[int] = []

    async def candidate(number: int, log: octavo.Log) -> None:
        async with log.lead(name=f"node-{number}") as writer:
            terms.append(writer.term)
            await writer.add(b"%d" % writer.term)

    handles = [await (await logs.client()).open_log("orders") for _ in range(10)]
    await asyncio.wait_for(asyncio.gather(*map(candidate, range(10), handles)), WAIT_SECONDS)
    assert terms == list(range(1, 11))
    reader = await (await logs.client()).open_log("orders")
    assert await collect(reader, 0, 10) == [b"%d" % term for term in terms]


async def test_two_takeovers_at_once_never_interleave(logs: LogCluster) -> None:
    await logs.log()

    async def duel(name: bytes, log: octavo.Log) -> None:
        for n in range(3):
            try:
                async with log.take_over() as writer:
                    for i in range(3):
                        await writer.add(b"%s %d %d" % (name, n, i))
            except NotLeaderError:
                continue

    handles = [await (await logs.client()).open_log("orders") for _ in range(3)]
    await asyncio.wait_for(asyncio.gather(*map(duel, (b"a", b"b", b"c"), handles)), WAIT_SECONDS)
    reader = await (await logs.client()).open_log("orders")
    entries = [entry async for entry in reader.entries()]
    assert [entry.position for entry in entries] == list(range(len(entries)))
    by_term = [list(group) for _, group in itertools.groupby(entries, key=lambda entry: entry.term)]
    assert len({group[0].term for group in by_term}) == len(by_term), "a term came twice"
    for group in by_term:
        # A prefix of what that leader sent.
        name, n, _ = group[0].payload.split()
        assert [entry.payload for entry in group] == [b"%s %s %d" % (name, n, i) for i in range(len(group))]


# --- truncation ---------------------------------------------------------------------------------------------------


async def test_a_handle_reads_at_once_what_its_own_writer_has_had_acknowledged(logs: LogCluster) -> None:
    """Bookies hear of an acknowledgement with later entries, or once the writer is idle; here they never do."""
    log = await logs.log(explicit_lac_delay_seconds=3600.0)
    async with log.lead() as writer:
        for n in range(6):
            assert await writer.add(b"%d" % n) == n
            assert [entry.payload for entry in await log.read(n, n)] == [b"%d" % n]
            if n % 2:
                await writer.roll()
        with pytest.raises(NoSuchEntryError):
            await log.read(5, 6)


async def test_truncation_is_exact_and_frees_whole_segments(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        for n in range(12):
            await writer.add(b"%d" % n)
            if n % 3 == 2:
                await writer.roll()
        pieces = await logs.pieces()
        await log.truncate(before=4)
        assert log.first_position == 4
        with pytest.raises(TruncatedError) as caught:
            await log.read(3, 5)
        assert caught.value.first_position == 4
        assert [entry.payload for entry in await log.read(4, 5)] == [b"4", b"5"]
        await eventually(lambda: _fewer(logs, pieces))
        await log.truncate(before=2)
        assert log.first_position == 4
        with pytest.raises(InvalidArgumentError):
            await log.truncate(before=100)
        with pytest.raises(InvalidArgumentError):
            await log.truncate(before=-1)
        assert await writer.add(b"12") == 12
    reader = await (await logs.client()).open_log("orders")
    assert [entry.position async for entry in reader.entries()] == list(range(4, 13))


async def _fewer(logs: LogCluster, before: set[tuple[int, int]]) -> bool:
    return len(await logs.pieces()) < len(before)


async def test_a_follower_that_truncation_overtakes_is_told(logs: LogCluster) -> None:
    log = await logs.log()
    reader = await (await logs.client()).open_log("orders")
    async with log.lead() as writer:
        await writer.add_many([b"%d" % n for n in range(6)])
        follower, skipping = reader.follow(), reader.follow(on_truncated="skip")
        assert (await anext(follower)).position == 0
        assert (await anext(skipping)).position == 0  # type: ignore[union-attr]
        await log.truncate(before=4)
        await reader.refresh()
        with pytest.raises(TruncatedError) as caught:
            await _drain(follower)
        assert caught.value.first_position == 4
        items = [await anext(skipping) for _ in range(3)]
        gap = next(item for item in items if isinstance(item, Gap))
        assert gap.last == 3
        await skipping.aclose()


async def _drain(entries: "AsyncIterator[object]") -> None:
    async for _ in entries:
        pass


# --- names, passwords, errors ---------------------------------------------------------------------------------------


async def test_create_list_delete(logs: LogCluster) -> None:
    client = await logs.client()
    names = ["a", "a/b", "a_b", "b.c-d", "Z9"]
    for name in names:
        await client.create_log(name)
    assert {name async for name in client.list_logs()} == set(names)
    assert {name async for name in client.list_logs("a")} == {"a", "a/b", "a_b"}
    with pytest.raises(LogExistsError):
        await client.create_log("a/b")
    await client.delete_log("a/b")
    with pytest.raises(NoSuchLogError):
        await client.open_log("a/b")
    with pytest.raises(NoSuchLogError):
        await client.delete_log("a/b")
    assert {name async for name in client.list_logs()} == set(names) - {"a/b"}


@pytest.mark.parametrize("name", ["", ".", "..", "a/..", "a//b", "/a", "a/", "a b", "ä", "x" * 256])
async def test_bad_names_are_refused(logs: LogCluster, name: str) -> None:
    client = await logs.client()
    with pytest.raises(InvalidArgumentError):
        client.create_log(name)
    with pytest.raises(InvalidArgumentError):
        client.open_log(name)


async def test_of_concurrent_creates_one_wins(logs: LogCluster) -> None:
    clients = [await logs.client() for _ in range(4)]
    results = await asyncio.gather(*(_create(client, logs.layout) for client in clients), return_exceptions=True)
    assert sum(isinstance(result, octavo.Log) for result in results) == 1
    assert sum(isinstance(result, LogExistsError) for result in results) == 3
    assert len(await logs.ledgers()) == (0 if logs.layout == "chain" else 1)


async def _create(client: octavo.Client, layout: str) -> octavo.Log:
    return await client.create_log("one", layout=layout)  # type: ignore[arg-type]


async def test_a_wrong_password_is_found_before_anything_is_fenced(logs: LogCluster) -> None:
    client = await logs.client()
    log = await client.create_log("secret", password=b"right")
    async with log.lead() as writer:
        await writer.add(b"x")
        with pytest.raises(UnauthorizedError):
            await client.open_log("secret", password=b"wrong")
        assert await writer.add(b"y") == 1


async def test_a_deleted_log_ends_its_leader_and_its_followers(logs: LogCluster) -> None:
    log = await logs.log()
    client = await logs.client()
    reader = await client.open_log("orders")
    writer = await log.lead()
    await writer.add(b"x")
    follower = reader.follow()
    await anext(follower)
    waiting = asyncio.ensure_future(_drain(follower))
    await client.delete_log("orders")
    with pytest.raises(NoSuchLogError):
        await asyncio.wait_for(waiting, WAIT_SECONDS)
    with pytest.raises((NoSuchLogError, NotLeaderError)):
        await asyncio.wait_for(_add_for_ever(writer), WAIT_SECONDS)
    assert writer.lost.is_set()
    await writer.close()


async def _add_for_ever(writer: octavo.LogWriter) -> None:
    while True:
        await writer.add(b"late")


async def test_expected_position_is_checked_before_sending(logs: LogCluster) -> None:
    log = await logs.log()
    async with log.lead() as writer:
        assert await writer.add(b"a", expected_position=0) == 0
        with pytest.raises(PositionMismatchError) as caught:
            await writer.add(b"b", expected_position=5)
        assert caught.value.end == 1
        assert not caught.value.may_have_happened
        first, second = await asyncio.gather(
            writer.add(b"c", expected_position=1), writer.add(b"d", expected_position=1), return_exceptions=True
        )
        assert first == 1
        assert isinstance(second, PositionMismatchError)
    assert await collect(log, 0, 2) == [b"a", b"c"]


# --- time ---------------------------------------------------------------------------------------------------------


async def test_position_at_a_time(logs: LogCluster) -> None:
    log = await logs.log()
    before = datetime.now(UTC) - timedelta(seconds=1)
    async with log.lead() as writer:
        await writer.add_many([b"x"] * 5)
        await writer.roll()
        await writer.add_many([b"y"] * 5)
        assert await collect(log, 0, 10) == [b"x"] * 5 + [b"y"] * 5
        entries = await log.read(0, 9)
        assert all(a.sealed_at <= b.sealed_at for a, b in itertools.pairwise(entries))
        assert await log.position_at(before) == 0
        assert await log.position_at(datetime.now(UTC) + timedelta(seconds=60)) == 10
        time = entries[5].sealed_at
        position = await log.position_at(time)
        assert entries[position].sealed_at >= time
        assert position == 0 or entries[position - 1].sealed_at < time
    with pytest.raises(InvalidArgumentError):
        await log.position_at(datetime(2026, 1, 1))  # noqa: DTZ001


# --- healing --------------------------------------------------------------------------------------------------------


async def test_the_writer_heals_when_its_segment_is_recovered_by_hand(logs: LogCluster) -> None:
    log = await logs.log()
    client = await logs.client()
    async with log.lead() as writer:
        assert await writer.add(b"0") == 0
        (ledger_id,) = await logs.ledgers()
        await logs.end_segment_by_hand(client, ledger_id)  # ends the segment, not the leader
        positions = await asyncio.wait_for(asyncio.gather(*(writer.add(b"%d" % n) for n in range(1, 6))), WAIT_SECONDS)
        assert positions == [1, 2, 3, 4, 5]
        assert not writer.lost.is_set()
        assert writer.term == 1
    assert await collect(log, 0, 6) == [b"%d" % n for n in range(6)]
    assert await log.refresh() == 6, "nothing twice"


async def test_outcome_tells_what_became_of_an_add_in_doubt(logs: LogCluster) -> None:
    log = await logs.log()
    other = await (await logs.client()).open_log("orders")
    old = await log.take_over()
    await old.add(b"kept")
    async with other.take_over() as new:
        futures = [asyncio.ensure_future(old.add(b"late %d" % n)) for n in range(3)]
        errors = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), WAIT_SECONDS)
        await new.add(b"new")
        for error in errors:
            assert isinstance(error, NotLeaderError)
            assert await other.outcome(error) is False
    await old.close()
    with pytest.raises(InvalidArgumentError):
        await other.outcome(octavo.OctavoTimeoutError("of something else"))


async def test_of_an_add_many_in_doubt_it_is_told_how_much_was_added(logs: LogCluster) -> None:
    log = await logs.log(window_entries=2)
    other = await (await logs.client()).open_log("orders")
    old = await log.take_over()
    assert await old.add_many([b"0", b"1", b"2"]) == range(3)
    assert await collect(log, 0, 3) == [b"0", b"1", b"2"]

    def failed(last: int, *, sent: int, unsent: int) -> octavo.OctavoError:
        error = NotLeaderError("as of an add_many", may_have_happened=True)
        error.doubt = Doubt(log.log_id, old.term, last, sent, unsent)
        return error

    assert await log.added(failed(3, sent=4, unsent=0)) is None, "its last payload may still come"
    timed_out = failed(2, sent=2, unsent=1)
    assert (await log.added(timed_out), await log.outcome(timed_out)) == (2, False)
    async with other.take_over():
        with pytest.raises(NotLeaderError) as caught:
            await asyncio.wait_for(old.add_many([b"%d" % n for n in range(5)]), WAIT_SECONDS)
        refused = caught.value
        assert (await other.added(refused), await other.outcome(refused)) == (0, False)
        partly, whole = failed(4, sent=4, unsent=1), failed(2, sent=3, unsent=0)
        assert (await other.added(partly), await other.outcome(partly)) == (2, False)
        assert (await other.added(whole), await other.outcome(whole)) == (3, True)
    assert await log.added(octavo.NotLeaderError("nothing was sent", may_have_happened=False)) == 0
    await old.close()


async def test_the_writer_heals_when_a_quorum_was_lost_and_is_back(logs: LogCluster) -> None:
    """Every add is in the log exactly once, although most of them are sent twice (rule P5)."""
    log = await logs.log(add_quorum_timeout_seconds=0.2, bookie_loss_seconds=5.0)
    async with log.lead() as writer:
        assert await writer.add(b"0") == 0
        for bookie in logs.bookies[:2]:
            bookie.hold(Op.ADD)
        adds = [asyncio.ensure_future(writer.add(b"%d" % n)) for n in range(1, 30)]
        await eventually(lambda: _is_healing(writer))
        for bookie in logs.bookies[:2]:
            bookie.release(Op.ADD)
        assert await asyncio.wait_for(asyncio.gather(*adds), WAIT_SECONDS) == list(range(1, 30))
    assert await collect(log, 0, 30) == [b"%d" % n for n in range(30)]
    assert await log.refresh() == 30, "nothing twice"


async def _is_healing(writer: octavo.LogWriter) -> bool:
    return "healing" in repr(writer)


async def test_a_takeover_that_cannot_recover_says_why_and_a_leader_that_heals_tries_again(logs: LogCluster) -> None:
    quick: dict[str, Any] = {
        "recovery_timeout_seconds": 0.3,
        "request_timeout_seconds": 0.3,
        "add_quorum_timeout_seconds": 0.3,
    }
    log = await logs.log(**quick)
    other = await (await logs.client(**quick)).open_log("orders")
    writer = await log.take_over()
    assert await writer.add(b"0") == 0
    for bookie in logs.bookies[:2]:
        bookie.hold(Op.READ)
    with pytest.raises(octavo.LedgerRecoveryError):
        await other.take_over()
    for bookie in logs.bookies[:2]:
        bookie.hold(Op.ADD)
    adding = asyncio.ensure_future(writer.add(b"1"))
    reads = logs.bookies[0].held(Op.READ)
    await eventually(lambda: _has_held(logs, reads + 2))
    assert "healing" in repr(writer)
    for bookie in logs.bookies[:2]:
        bookie.release(Op.ADD)
        bookie.release(Op.READ)
    assert await asyncio.wait_for(adding, WAIT_SECONDS) == 1
    await writer.close()
    assert await collect(other, 0, 2) == [b"0", b"1"]


async def _has_held(logs: LogCluster, reads: int) -> bool:
    return logs.bookies[0].held(Op.READ) >= reads


async def test_a_cancelled_add_that_was_not_sent_is_withdrawn(logs: LogCluster) -> None:
    log = await logs.log(window_entries=2)
    async with log.lead() as writer:
        for bookie in logs.bookies:
            bookie.hold(Op.ADD)
        sent = [asyncio.ensure_future(writer.add(b"%d" % n)) for n in range(2)]
        waiting = [asyncio.ensure_future(writer.add(b"late %d" % n)) for n in range(2)]
        await logs.bookies[0].received(Op.ADD, 1)
        waiting[0].cancel()
        for bookie in logs.bookies:
            bookie.release(Op.ADD)
        assert await asyncio.wait_for(asyncio.gather(*sent), WAIT_SECONDS) == [0, 1]
        assert await asyncio.wait_for(waiting[1], WAIT_SECONDS) == 2
    assert await collect(log, 0, 3) == [b"0", b"1", b"late 1"]


async def test_rolls_under_load_lose_and_repeat_nothing(logs: LogCluster) -> None:
    log = await logs.log(log_segment_bytes=200, window_entries=16)
    async with log.lead() as writer:
        assert await writer.add(b"%04d" % 0) == 0
        others = asyncio.gather(*(writer.add(b"%04d" % n) for n in range(1, 1500)))
        await writer.roll()
        assert await asyncio.wait_for(others, WAIT_SECONDS) == list(range(1, 1500))
    status = await log.status()
    assert len(status.segments) >= 2, "it rolled"
    assert await log.refresh() == 1500
    assert await collect(log, 0, 1500) == [b"%04d" % n for n in range(1500)]


async def test_a_writer_that_is_closed_in_the_middle_of_a_roll_repeats_nothing(logs: LogCluster) -> None:
    log = await logs.log(close_timeout_seconds=0.4)
    writer = await log.lead()
    await writer.add(b"0")
    for bookie in logs.bookies:
        bookie.hold(Op.ADD)
    pending = asyncio.ensure_future(writer.add(b"1"))
    await logs.bookies[0].received(Op.ADD, 2)
    rolling = asyncio.ensure_future(writer.roll())
    with pytest.raises(octavo.OctavoError):
        await writer.close()
    with pytest.raises(octavo.OctavoError):
        await pending
    await asyncio.wait([rolling])
    rolling.exception()
    for bookie in logs.bookies:
        bookie.release(Op.ADD)
    async with log.lead() as successor:
        assert await successor.add(b"2") in (1, 2)
    await log.refresh()
    payloads = [entry.payload async for entry in log.entries()]
    assert payloads in ([b"0", b"2"], [b"0", b"1", b"2"])
