"""Logs that are streams and have full copies (rules I9, G3 to G5), on bookies in memory. With three bookies
each of them is a member of every fragment; the third one answers late, or never."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from octavo.client.log.stream.lead import StreamSegment
from octavo.client.write.copies.policy import RecordedCopies
from octavo.client.write.policies import NO_COPIES
from octavo.metadata.ledger.debts import NO_DEBT, Debt, FullCopies
from octavo.metadata.stream.model import StreamState
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.messages import Op
from octavo.protocol.places import place
from support.clusters.fake_bookie import registered_bookies
from support.clusters.log_cluster import LogCluster, collect, open_log_cluster
from support.inside import active_of
from support.metadata.metadata_clusters import MemoryCluster
from support.waiting import WAIT_SECONDS, eventually, loop_turns

import octavo

PATIENT: dict[str, Any] = {"bookie_loss_seconds": 3600.0, "full_copies_patience_seconds": 0.01}


@pytest.fixture
async def logs() -> AsyncIterator[LogCluster]:
    async with open_log_cluster(MemoryCluster(Path()), "stream") as made:
        yield made


async def recorded_log(logs: LogCluster, **options: Any) -> octavo.Log:
    client = await logs.client(**(PATIENT | options))
    return await client.create_log("orders", layout="stream", full_copies="recorded")


async def recorded(logs: LogCluster) -> dict[int, Debt | None]:
    """What each fragment that holds something says that it owes, by its first place."""
    root = await logs.root()
    return {int(one.first_entry_id): one.debt for one in root.fragments}


def owing(term: int, first: int, last: int) -> Debt:
    return Debt(place(term, first), place(term, last))


async def test_a_log_with_all_copies_rests_without_debt(logs: LogCluster) -> None:
    log = await recorded_log(logs, full_copies_patience_seconds=WAIT_SECONDS)
    async with log.lead() as writer:
        assert isinstance(active_of(writer).core.copies, RecordedCopies)
        await asyncio.gather(*(writer.add(b"x") for _ in range(10)))
    root = await logs.root()
    assert (root.state, root.full_copies) == (StreamState.AT_REST, FullCopies.RECORDED)
    assert root.last_fragment.debt == NO_DEBT
    assert root.debts == ()


async def test_resting_waits_for_a_slow_bookie(logs: LogCluster) -> None:
    log = await recorded_log(logs, full_copies_patience_seconds=WAIT_SECONDS)
    writer = await log.lead()
    logs.bookies[2].hold(Op.ADD)
    for _ in range(3):
        await writer.add(b"x")
    closing = asyncio.ensure_future(writer.close())
    await loop_turns(50)
    assert not closing.done()
    logs.bookies[2].release(Op.ADD)
    await closing
    assert (await logs.root()).last_fragment.debt == NO_DEBT


async def test_what_lacks_copies_at_rest_is_recorded(logs: LogCluster) -> None:
    log = await recorded_log(logs)
    writer = await log.lead()
    await writer.add(b"x")
    await logs.bookies[2].until(lambda: logs.bookies[2].count(Op.ADD) == 1)
    await loop_turns(20)
    logs.bookies[2].hold(Op.ADD)
    for _ in range(3):
        await writer.add(b"x")
    await writer.close()
    root = await logs.root()
    assert root.debts == ((root.last_fragment, owing(root.term, 1, 3)),)
    status = await log.status()
    assert (status.full_copies, [one.owed for one in status.segments]) == ("recorded", [(1, 3)])


async def test_a_roll_and_a_renewal_record_what_they_leave_behind_and_wait_for_nothing(logs: LogCluster) -> None:
    log = await recorded_log(logs, full_copies_patience_seconds=WAIT_SECONDS)
    writer = await log.lead()
    active = active_of(writer)
    assert isinstance(active, StreamSegment)
    assert isinstance(active.core.copies, RecordedCopies)
    segment = active.term
    term = segment.term
    logs.bookies[2].hold(Op.ADD)
    for _ in range(3):
        await writer.add(b"x")
    assert await segment.roll()
    for _ in range(2):
        await writer.add(b"x")
    await segment.renew()
    assert segment.term == term + 1
    assert await recorded(logs) == {
        place(term, 0): owing(term, 0, 2),
        place(term, 3): owing(term, 3, 4),
        place(term + 1, 0): None,
    }
    logs.bookies[2].release(Op.ADD)
    await writer.add(b"y")
    await writer.close()
    assert (await logs.root()).last_fragment.debt == NO_DEBT


async def test_each_term_owes_copies_by_its_own_quorums(logs: LogCluster) -> None:
    """Rule T13: the third bookie answers no adds, and is not a member of every term."""
    log = await recorded_log(logs)
    writer = await log.lead()
    silent = logs.bookies[2]
    silent.hold(Op.ADD)
    await writer.add(b"x")
    members = [True]
    for size, write, ack in ((3, 3, 1), (2, 2, 1), (3, 3, 2), (2, 2, 1)):
        await writer.change(ensemble_size=size, write_quorum=write, ack_quorum=ack)
        await writer.add_many([b"x"] * 3)
        members.append(silent.bookie_id in (await logs.root()).last_fragment.bookies)
    await writer.close()
    root = await logs.root()
    wanted = []
    for fragment, has in zip(root.fragments, members, strict=True):
        end = root.last_id_of(fragment)
        assert end is not None
        wanted.append(Debt(fragment.first_entry_id, end) if has else NO_DEBT)
    assert [one.debt for one in root.fragments] == wanted
    assert NO_DEBT in wanted, "a term without it owes nothing"


async def taken_over(logs: LogCluster, **options: Any) -> tuple[octavo.Log, octavo.LogWriter]:
    """The log in another client, which has taken it over."""
    other = await (await logs.client(**(PATIENT | {"full_copies_patience_seconds": WAIT_SECONDS} | options))).open_log(
        "orders"
    )
    return other, await other.take_over()


async def test_a_takeover_records_exactly_what_lacks_copies(logs: LogCluster) -> None:
    """Rule G5: entries above the LAC that it has found, and ones that were acknowledged long before."""
    log = await recorded_log(logs)
    writer = await log.lead()
    term = (await logs.root()).term
    for number in range(8):
        await writer.add(b"%d" % number)
    ledger_id = (await logs.root()).ledger_id
    await eventually(lambda: all(len(one.ledger(ledger_id).entries) == 8 for one in logs.bookies))
    for offset in (2, 4):
        logs.bookies[2].forget(ledger_id, place(term, offset))
    other, successor = await taken_over(logs)
    root = await logs.root()
    assert root.debts == ((root.fragments[0], owing(term, 2, 4)),)
    assert root.fragments[0].debt == owing(term, 2, 4)
    await successor.add(b"8")
    await successor.close()
    assert await collect(other, 0, 9) == [b"%d" % number for number in range(9)]


async def test_a_takeover_that_finds_all_copies_owes_nothing(logs: LogCluster) -> None:
    writer = await (await recorded_log(logs)).lead()
    for number in range(3):
        await writer.add(b"%d" % number)
    await taken_over(logs)
    root = await logs.root()
    assert (root.debts, root.fragments[0].debt) == ((), NO_DEBT)


async def test_a_member_that_does_not_say_what_it_lacks_may_lack_everything_and_is_not_waited_for(
    logs: LogCluster,
) -> None:
    writer = await (await recorded_log(logs)).lead()
    term = (await logs.root()).term
    for number in range(3):
        await writer.add(b"%d" % number)
    logs.bookies[2].drop(Op.MISSING)
    await taken_over(logs, request_timeout_seconds=3600.0)
    root = await logs.root()
    assert root.debts == ((root.fragments[0], owing(term, 0, 2)),)


async def test_a_takeover_that_replaces_a_bookie_says_what_each_of_its_fragments_owes(logs: LogCluster) -> None:
    (spare,) = await logs.stack.enter_async_context(registered_bookies(logs.store, 1, first=3))
    writer = await (await recorded_log(logs)).lead()
    root = await logs.root()
    term, names = root.term, root.last_fragment.bookies
    members = {one.bookie_id: one for one in [*logs.bookies, spare]}
    await writer.add(b"0")
    await writer.add(b"1")
    await eventually(lambda: all(len(members[name].ledger(root.ledger_id).entries) == 2 for name in names))
    gone = members[names[2]]
    await gone.stop()
    await taken_over(logs, bookie_loss_seconds=0.001)
    root = await logs.root()
    ended = [one for one in root.fragments if one.term == term]
    assert [one.debt is not None for one in ended] == [True] * len(ended)
    owed = {place for one in ended for place in range(root.debt_of(one).first, root.debt_of(one).last + 1)}
    for fragment in ended:
        last = root.last_id_of(fragment)
        assert last is not None
        for entry_id in range(fragment.first_entry_id, last + 1):
            held = all(
                members[name].listening and entry_id in members[name].ledger(root.ledger_id).entries
                for name in fragment.bookies
            )
            assert held != (entry_id in owed)


async def test_a_log_without_the_option_records_nothing(logs: LogCluster) -> None:
    log = await logs.log(**PATIENT)
    writer = await log.lead()
    logs.bookies[2].hold(Op.ADD)
    await writer.add(b"x")
    active = active_of(writer)
    assert isinstance(active, StreamSegment)
    assert active.core.copies is NO_COPIES
    assert await active.term.roll()
    await writer.close()
    root = await logs.root()
    assert root.full_copies is None
    assert [one.debt for one in root.fragments] == [None] * len(root.fragments)
    assert root.debts == ()
    status = await log.status()
    assert (status.full_copies, {one.owed for one in status.segments}) == (None, {None})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"full_copies": "all", "layout": "stream"}, "'recorded', 'required' or None"),
        ({"full_copies": True, "layout": "stream"}, "'recorded', 'required' or None"),
        ({"full_copies": "recorded", "layout": "chain"}, "layout='stream' only"),
        ({"full_copies": "required", "layout": "chain"}, "layout='stream' only"),
    ],
)
async def test_wrong_options_are_refused(logs: LogCluster, options: dict[str, Any], complaint: str) -> None:
    client = await logs.client()
    with pytest.raises(InvalidArgumentError, match=complaint):
        await client.create_log("orders", **options)
