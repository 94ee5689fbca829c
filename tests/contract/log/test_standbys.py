"""A standby: a client that opened the log long ago, and leads it, follows it or reads it when it has gone on (rules P3
and T14)."""

import asyncio
from typing import Any

import pytest
from octavo.metadata.ledger.changes import ReplaceMember
from octavo.metadata.stream.model import StreamMetadata
from octavo.metadata.updates.update import update_ledger, update_stream
from octavo.protocol.errors import BookieOverloadedError
from octavo.protocol.ids import LedgerId
from octavo.protocol.messages import Op
from support.clusters.fake_bookie import registered_bookies
from support.clusters.log_cluster import LogCluster, collect
from support.waiting import WAIT_SECONDS

import octavo

IMPATIENT: dict[str, Any] = {"recovery_timeout_seconds": 0.3, "read_quorum_timeout_seconds": 0.3}
"""Bookies that have nothing are not asked for long."""


async def standby_of(logs: LogCluster, **options: Any) -> octavo.Log:
    """A handle on the log in a client of its own."""
    return await (await logs.client(**IMPATIENT, **options)).open_log("orders")


async def add(log: octavo.Log, *payloads: bytes) -> None:
    """Lead the log, and add these, each in a segment of its own."""
    async with log.lead() as writer:
        for payload in payloads:
            await writer.roll()
            await writer.add(payload)


async def collect_garbage(logs: LogCluster) -> None:
    """Bookies forget what no ledger and no fragment names any more."""
    kept = dict.fromkeys(await logs.ledgers(), 0)
    if logs.layout == "stream":
        root = await logs.root()
        kept[root.ledger_id] = root.fragments[0].first_entry_id
    for bookie in logs.bookies:
        for ledger_id, ledger in bookie.ledgers.items():
            first = kept.get(LedgerId(ledger_id))
            for entry_id in [one for one in ledger.entries if first is None or one < first]:
                bookie.forget(ledger_id, entry_id)


async def replace_bookies(logs: LogCluster) -> None:
    """Repair puts new bookies into the places of all the present ones, which are gone then."""
    others = await logs.stack.enter_async_context(registered_bookies(logs.store, len(logs.bookies), first=10))
    for gone, other in zip(logs.bookies, others, strict=True):
        other.ledgers = gone.ledgers
        for ledger_id in await logs.ledgers():
            await replace_in(logs, LedgerId(ledger_id), gone.registration().bookie_id, other.registration().bookie_id)
        await gone.stop()
    logs.bookies[:] = others


async def replace_in(logs: LogCluster, ledger_id: LedgerId, gone: Any, other: Any) -> None:
    """Repair replaces a bookie in every fragment of the ledger or stream."""
    found = (await logs.store.read_either(ledger_id)).value
    if isinstance(found, StreamMetadata):
        for fragment in found.fragments:
            at = fragment.bookies.index(gone)
            change = ReplaceMember(fragment.first_entry_id, _last_of(found, fragment), at, gone, other)
            await update_stream(logs.store, ledger_id, change, writer_token="repair")
        return
    for part in found.fragments:
        last = found.last_id_of(part)
        assert last is not None, "the ledger is closed"
        ledger_change = ReplaceMember(part.first_entry_id, last, part.bookies.index(gone), gone, other)
        await update_ledger(logs.store, ledger_id, ledger_change, writer_token="repair")


def _last_of(stream: StreamMetadata, fragment: Any) -> int:
    last = stream.last_id_of(fragment)
    assert last is not None, "the stream is at rest"
    return last


async def test_a_standby_from_a_time_of_rest_leads_a_log_that_was_truncated_since(logs: LogCluster) -> None:
    log = await logs.log()
    await add(log, b"0")
    standby = await standby_of(logs)
    await add(log, b"1", b"2", b"3", b"4")
    await log.truncate(4)
    await add(log, b"5")
    await collect_garbage(logs)
    async with asyncio.timeout(WAIT_SECONDS), standby.lead() as writer:
        assert await writer.add(b"6") == 6
    assert await collect(standby, 4, 7) == [b"4", b"5", b"6"]


async def test_a_standby_from_a_time_of_rest_leads_a_log_whose_bookies_were_replaced_since(logs: LogCluster) -> None:
    log = await logs.log()
    await add(log, b"0")
    standby = await standby_of(logs)
    await replace_bookies(logs)
    async with asyncio.timeout(WAIT_SECONDS), standby.lead() as writer:
        assert await writer.add(b"1") == 1
    assert await collect(standby, 0, 2) == [b"0", b"1"]


async def test_a_standby_from_before_the_first_leader_leads(logs: LogCluster) -> None:
    """Two processes that start together."""
    log = await logs.log()
    standby = await standby_of(logs)
    await add(log, b"0", b"1", b"2")
    await log.truncate(3)
    await collect_garbage(logs)
    async with asyncio.timeout(WAIT_SECONDS), standby.lead() as writer:
        assert await writer.add(b"3") == 3


@pytest.mark.parametrize("how", ["follow", "read", "entries", "refresh"])
async def test_a_handle_from_before_bookies_were_replaced_reads(logs: LogCluster, how: str) -> None:
    """It was opened while a leader wrote, so that its bookies would be asked how far the segment can be read."""
    log = await logs.log()
    async with log.lead() as writer:
        await writer.add(b"0")
        old = await standby_of(logs)
        assert await collect(old, 0, 1) == [b"0"]
        for bookie in logs.bookies:
            bookie.refuse(Op.READ_LAC, BookieOverloadedError("for a test"))
        unread = await standby_of(logs)
        for bookie in logs.bookies:
            bookie.accept(Op.READ_LAC)
    await replace_bookies(logs)
    await add(log, b"1")
    for handle in (old, unread):
        async with asyncio.timeout(WAIT_SECONDS):
            match how:
                case "follow":
                    following = handle.follow(0)
                    seen = [await anext(following) for _ in range(2)]
                    assert [one.payload for one in seen] == [b"0", b"1"]
                    await following.aclose()
                case "read":
                    assert [entry.payload for entry in await handle.read(0, 0)] == [b"0"]
                case "entries":
                    assert [entry.payload async for entry in handle.entries(0, 0)] == [b"0"]
                case _:
                    assert await handle.refresh() == 2


async def test_bookies_that_are_replaced_while_a_standby_takes_over_are_not_asked_for_ever(logs: LogCluster) -> None:
    log = await logs.log()
    await add(log, b"0")
    client, store = await logs.interposed_client(**IMPATIENT)
    standby = await client.open_log("orders")
    replaced: list[bool] = []

    async def overtaken(ledger_id: LedgerId) -> Any:
        found = await store.real.read_stream(ledger_id)
        if not replaced:
            replaced.append(True)
            await replace_bookies(logs)
        return found

    store.interpose("read_stream", overtaken)
    async with asyncio.timeout(WAIT_SECONDS), standby.lead() as writer:
        assert replaced or logs.layout == "chain"
        assert await writer.add(b"1") == 1
    assert await collect(standby, 0, 2) == [b"0", b"1"]
