"""A leader that loses the lead says so once, and why; and one whose lease ran out while no other client wants the log
leads on in its term (rule P18)."""

import asyncio
import logging
import re
from functools import partial
from typing import Any, NamedTuple

import pytest
from octavo.client.log.documents.names import lock_name
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.errors import MetadataUnavailableError, NotLeaderError
from support.clusters.log_cluster import LogCluster, collect
from support.inside import line_of
from support.metadata.interposed_store import InterposedStore
from support.metadata.metadata_clusters import LEASE_SECONDS
from support.waiting import WAIT_SECONDS, eventually

import octavo

LEADS_LOST = "octavo_client_leads_lost_total"
GOT_AGAIN = "octavo_client_locks_got_again_total"
LATE = r"the lease of 10 s was not renewed for 1\d\.\d s: was the event loop blocked, or the process stopped\?"
ENDED = r"the metadata store has ended its session"
"""With ZooKeeper, whose sessions a test ends, without a clock."""


class Leader(NamedTuple):
    client: octavo.Client
    handle: MetadataStore
    writer: octavo.LogWriter
    log_id: str


@pytest.fixture(autouse=True)
def _all_records(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "octavo.client")


async def leader_of(logs: LogCluster) -> Leader:
    """A client that has created a log, and leads it."""
    client = await logs.client()
    handle = logs.metadata.handles[-1]
    log = await client.create_log("orders", layout=logs.layout, full_copies=logs.full_copies)  # type: ignore[arg-type]
    writer = await log.lead()
    await writer.add(b"0")
    return Leader(client, handle, writer, log.statistics().log_id)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings so far."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def run_out(logs: LogCluster, leader: Leader) -> None:
    """The leader's process stands still for longer than its lease, and comes back."""
    await logs.metadata.advance(LEASE_SECONDS + 1, asleep=leader.handle)
    await leader.handle.renew_leases()


def _has_got_again(leader: Leader, count: int) -> bool:
    return bool(leader.client.metrics()[GOT_AGAIN] == count)


async def _is_wanted(leader: Leader) -> bool:
    """Whether another client waits for the lock."""
    return await line_of(leader.handle).waiting(lock_name(leader.log_id)) == 1


async def _lead(log: octavo.Log) -> octavo.LogWriter:
    return await log.lead()


async def test_a_leader_that_was_taken_over_from_says_so_once(
    logs: LogCluster, caplog: pytest.LogCaptureFixture
) -> None:
    leader = await leader_of(logs)
    other = await (await logs.client()).open_log("orders")
    async with other.take_over() as successor:
        await asyncio.wait_for(leader.writer.lost.wait(), WAIT_SECONDS)
        reason = leader.writer.lost_reason
        assert reason is not None
        assert reason.startswith(("another client has taken it over", "log orders has been taken over by another"))
        with pytest.raises(NotLeaderError, match=r"taken.* over"):
            await leader.writer.add(b"late")
        assert said(caplog) == [f"log orders: this client does not lead any more: {reason}"]
        assert leader.client.metrics()[LEADS_LOST] == {"NotLeader": 1}
        assert successor.lost_reason is None
    await leader.writer.close()
    assert len(said(caplog)) == 1


async def test_a_leader_that_adds_while_it_is_taken_over_does_not_say_that_it_continues(
    logs: LogCluster, caplog: pytest.LogCaptureFixture
) -> None:
    leader = await leader_of(logs)
    other = await (await logs.client()).open_log("orders")
    adding = [asyncio.ensure_future(leader.writer.add(b"%d" % number)) for number in range(50)]
    async with other.take_over():
        results = await asyncio.wait_for(asyncio.gather(*adding, return_exceptions=True), WAIT_SECONDS)
        assert all(isinstance(one, int | NotLeaderError) for one in results)
        await asyncio.wait_for(leader.writer.lost.wait(), WAIT_SECONDS)
    assert len(said(caplog)) == 1
    assert "does not lead any more" in said(caplog)[0]


async def test_a_leader_that_continues_says_so(logs: LogCluster, caplog: pytest.LogCaptureFixture) -> None:
    leader = await leader_of(logs)
    segments = sorted(await logs.ledgers())
    await logs.end_segment_by_hand(await logs.client(), segments[-1])
    assert await asyncio.wait_for(leader.writer.add(b"1"), WAIT_SECONDS) == 1
    await eventually(lambda: any("healed after" in text for text in said(caplog)))
    assert await asyncio.wait_for(leader.writer.add(b"2"), WAIT_SECONDS) == 2
    assert leader.writer.lost_reason is None
    assert leader.client.metrics()[LEADS_LOST] == {}
    assert not [text for text in said(caplog) if "does not lead" in text]
    await leader.writer.close()


async def test_a_closed_writer_has_lost_nothing(logs: LogCluster, caplog: pytest.LogCaptureFixture) -> None:
    leader = await leader_of(logs)
    await leader.writer.close()
    assert leader.writer.lost.is_set()
    assert leader.writer.lost_reason is None
    assert said(caplog) == []
    assert leader.client.metrics()[LEADS_LOST] == {}


# --- the lease --------------------------------------------------------------------------------------------------------


async def test_a_lease_that_ran_out_while_no_other_client_wants_the_log_is_got_again(
    logs: LogCluster, caplog: pytest.LogCaptureFixture
) -> None:
    leader = await leader_of(logs)
    for number in range(1, 4):
        await run_out(logs, leader)
        await eventually(partial(_has_got_again, leader, number))
        assert await leader.writer.add(b"%d" % number) == number
    assert not leader.writer.lost.is_set()
    assert leader.writer.term == 1
    assert len(said(caplog)) == 3
    assert all("leads on" in text for text in said(caplog))
    other = await (await logs.client()).open_log("orders")
    waiting = asyncio.ensure_future(_lead(other))
    await leader.writer.close()
    async with await asyncio.wait_for(waiting, WAIT_SECONDS) as successor:
        assert await successor.add(b"4") == 4
    assert len(await collect(other, 0, 5)) == 5


async def test_a_lease_that_ran_out_while_another_client_waits_is_lost(
    logs: LogCluster, caplog: pytest.LogCaptureFixture
) -> None:
    leader = await leader_of(logs)
    other = await (await logs.client()).open_log("orders")
    waiting = asyncio.ensure_future(_lead(other))
    await eventually(lambda: _is_wanted(leader))
    await run_out(logs, leader)
    successor = await asyncio.wait_for(waiting, WAIT_SECONDS)
    await asyncio.wait_for(leader.writer.lost.wait(), WAIT_SECONDS)
    assert leader.writer.lost_reason is not None
    assert await successor.add(b"1") == 1
    lost = [text for text in said(caplog) if "does not lead any more" in text]
    assert len(lost) == 1
    assert not successor.lost.is_set()
    assert sum(leader.client.metrics()[LEADS_LOST].values()) == 1
    await leader.writer.close()
    await successor.close()


async def test_the_reason_of_a_lease_that_was_lost_says_how_late_it_was(
    logs: LogCluster, caplog: pytest.LogCaptureFixture
) -> None:
    leader = await leader_of(logs)
    other = await logs.metadata.open()
    await logs.metadata.advance(LEASE_SECONDS + 1, asleep=leader.handle)
    held = await asyncio.wait_for(other.lock(lock_name(leader.log_id), "another"), WAIT_SECONDS)
    await leader.handle.renew_leases()
    await asyncio.wait_for(leader.writer.lost.wait(), WAIT_SECONDS)
    (text,) = said(caplog)
    reason = leader.writer.lost_reason or ""
    assert text == f"log orders: this client does not lead any more: {reason}"
    assert reason.endswith("Another client has the lock by now, or waits for it")
    assert re.match(rf"({LATE}|{ENDED}\.) ", reason), reason
    assert leader.client.metrics()[LEADS_LOST] == {"Lease": 1}
    with pytest.raises(NotLeaderError, match=r"this client no longer leads \(the "):
        await leader.writer.add(b"late")
    await held.release()
    await leader.writer.close()


async def test_a_lease_that_ran_out_while_another_client_led_is_lost(logs: LogCluster) -> None:
    """That client is gone again, and its lock is free."""
    leader = await leader_of(logs)
    other = await (await logs.client()).open_log("orders")
    await logs.metadata.advance(LEASE_SECONDS + 1, asleep=leader.handle)
    async with asyncio.timeout(WAIT_SECONDS):
        async with other.lead() as successor:
            assert await successor.add(b"1") == 1
        await leader.handle.renew_leases()
        await leader.writer.lost.wait()
    assert leader.writer.lost_reason
    # It has given back what it had got again: no client waits until it is closed.
    async with asyncio.timeout(WAIT_SECONDS), other.lead() as successor:
        assert await successor.add(b"2") == 2
    await leader.writer.close()


async def test_a_leader_looks_at_the_log_before_it_leads_on(logs: LogCluster) -> None:
    """Another client has led meanwhile, and is gone; this one hears nothing of it by itself."""
    log = await logs.log()
    client, store = await logs.interposed_client()
    for watch in ("watch_document", "watch_ledger", "watch_stream"):
        store.silence(watch)
    leading = await client.open_log("orders")
    writer = await leading.lead()
    is_gone = asyncio.Event()

    async def try_lock(*arguments: Any, **options: Any) -> Any:
        await is_gone.wait()  # a store that reports the end of a session at once makes the leader ask before that
        return await store.real.try_lock(*arguments, **options)

    store.interpose("try_lock", try_lock)
    await logs.metadata.advance(LEASE_SECONDS + 1, asleep=store.real)
    async with asyncio.timeout(WAIT_SECONDS):
        async with log.lead() as successor:
            assert await successor.add(b"0") == 0
        is_gone.set()
        await store.real.renew_leases()
        await writer.lost.wait()
    assert (writer.lost_reason or "").endswith("Another client has taken the log over meanwhile")
    await writer.close()


# --- a store that answers and takes no writes -------------------------------------------------------------------------


class FullStore:
    """The client of a leader, whose metadata store has no space from :meth:`fill` on."""

    def __init__(self, logs: LogCluster, client: octavo.Client, store: InterposedStore) -> None:
        self.logs, self.client, self.store, self.handle = logs, client, store, store.real
        self.refused = 0

    async def fill(self) -> None:
        """The lease runs out, and its lock cannot be got again."""

        async def refuse(*_arguments: object) -> object:
            self.refused += 1
            raise MetadataUnavailableError("the disk is full")

        self.store.interpose("try_lock", refuse)
        await self.logs.metadata.advance(LEASE_SECONDS + 1, asleep=self.handle)
        await self.handle.renew_leases()


@pytest.fixture
async def full(logs: LogCluster) -> FullStore:
    return FullStore(logs, *await logs.interposed_client(lease_seconds=1.5))


async def test_a_leader_leads_on_while_the_store_has_no_space(
    logs: LogCluster, full: FullStore, caplog: pytest.LogCaptureFixture
) -> None:
    log = await logs.log()
    leading = await full.client.open_log("orders")
    writer = await leading.lead()
    await full.fill()
    await eventually(lambda: full.refused >= 3)
    assert await writer.add(b"0") == 0
    assert not writer.lost.is_set()
    assert len(said(caplog)) == 1
    assert "no client can get the lock now" in said(caplog)[0]
    full.store.restore()
    await eventually(lambda: full.client.metrics()[GOT_AGAIN] == 1)
    assert await writer.add(b"1") == 1
    assert writer.term == 1
    await writer.close()
    assert len(await collect(log, 0, 2)) == 2


async def test_a_leader_stops_once_another_client_gets_the_lock_of_a_store_that_had_no_space(
    logs: LogCluster, full: FullStore
) -> None:
    log = await logs.log()
    leading = await full.client.open_log("orders")
    writer = await leading.lead()
    await full.fill()
    await eventually(lambda: full.refused >= 2)
    async with asyncio.timeout(WAIT_SECONDS), log.lead() as successor:
        await writer.lost.wait()
        assert writer.lost_reason
        assert await successor.add(b"0") == 0
    await writer.close()


async def test_a_leader_whose_store_does_not_answer_at_all_is_lost(logs: LogCluster, full: FullStore) -> None:
    await logs.log()
    leading = await full.client.open_log("orders")
    writer = await leading.lead()
    full.store.make_unavailable("read_lock")
    await full.fill()
    await asyncio.wait_for(writer.lost.wait(), WAIT_SECONDS)
    assert writer.lost_reason is not None
    assert writer.lost_reason.endswith("no answer")
    full.store.restore()
    await writer.close()
