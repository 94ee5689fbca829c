"""A log that has lost its end (rule O4), and was truncated above what is left of it: what a leader adds then lies where
readers get it, and stays (rule P7)."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from octavo.client.log.logs import Layout
from octavo.metadata.model import LedgerState
from octavo.metadata.stream_model import StreamMetadata
from octavo.protocol.errors import Doubt, InvalidArgumentError
from octavo.protocol.ids import EntryId, LedgerId
from octavo.protocol.places import place
from support.log_cluster import LogCluster, collect, open_log_cluster
from support.metadata_clusters import MemoryCluster

import octavo

LEFT = 5
"""Entries that are left."""


@pytest.fixture(params=["stream", "chain"])
async def logs(request: pytest.FixtureRequest) -> AsyncIterator[LogCluster]:
    layout: Layout = request.param
    async with open_log_cluster(MemoryCluster(Path()), layout) as made:
        yield made


async def lose_end(logs: LogCluster) -> None:
    """As a recovery ends whose blocked end an operator gave up."""
    ledger_id = max(await logs.ledgers())
    found = await logs.store.read_either(LedgerId(ledger_id))
    if isinstance(found.value, StreamMetadata):
        last = EntryId(place(found.value.term, LEFT - 1))
        rested = found.value.in_recovery(datetime.now(UTC), "operator").at_rest(last, LEFT)
        await logs.store.compare_and_set_stream(rested, found.version)
    else:
        assert found.value.state is LedgerState.OPEN
        closed = found.value.in_recovery().closed(EntryId(LEFT - 1), LEFT)
        await logs.store.compare_and_set_ledger(closed, found.version)


async def truncated_above_its_end(logs: LogCluster) -> octavo.Log:
    """A log of which LEFT entries are left, and which begins above them."""
    log = await logs.log()
    writer = await log.take_over()
    for number in range(10):
        await writer.add(str(number).encode())
    await log.truncate(8)
    await lose_end(logs)
    return log


async def test_a_new_segment_begins_where_readers_begin(logs: LogCluster) -> None:
    await truncated_above_its_end(logs)
    log = await (await logs.client()).open_log("orders")
    async with log.take_over() as writer:
        assert await writer.add(b"a") == 8
    again = await (await logs.client()).open_log("orders")
    async with again.take_over() as writer:
        assert await writer.add(b"b") == 9
    assert await collect(again, 8, 10) == [b"a", b"b"]


async def test_a_truncation_by_another_client_is_seen_by_a_handle_from_before(logs: LogCluster) -> None:
    log = await logs.log()
    writer = await log.take_over()
    for number in range(10):
        await writer.add(str(number).encode())
    standby = await (await logs.client()).open_log("orders")
    await standby.refresh()
    await log.truncate(8)
    await lose_end(logs)
    async with standby.take_over() as successor:
        assert await successor.add(b"a") == 8
    assert await collect(standby, 8, 9) == [b"a"]


async def test_without_a_truncation_positions_follow_from_what_is_left(logs: LogCluster) -> None:
    log = await logs.log()
    writer = await log.take_over()
    for number in range(10):
        await writer.add(str(number).encode())
    await log.truncate(LEFT - 1)
    await lose_end(logs)
    successor = await (await logs.client()).open_log("orders")
    async with successor.take_over() as leader:
        assert await leader.add(b"a") == LEFT
    assert await collect(successor, LEFT - 1, LEFT + 1) == [b"4", b"a"]


async def test_a_handle_that_remembers_what_is_lost_does_not_truncate_above_what_is_left(logs: LogCluster) -> None:
    log = await logs.log()
    writer = await log.take_over()
    for number in range(10):
        await writer.add(str(number).encode())
    remembers = await (await logs.client()).open_log("orders")
    assert len(await collect(remembers, 0, 10)) == 10
    await lose_end(logs)
    with pytest.raises(InvalidArgumentError, match="8 is beyond its end, 5"):
        await remembers.truncate(8)
    successor = await (await logs.client()).open_log("orders")
    async with successor.take_over() as leader:
        assert await leader.add(b"a") == LEFT
        for handle in (remembers, log, successor):
            with pytest.raises(InvalidArgumentError, match="8 is beyond its end"):
                await handle.truncate(8)
        await remembers.truncate(LEFT)
        await leader.add(b"b")
    assert await collect(successor, LEFT, LEFT + 2) == [b"a", b"b"]


async def test_an_add_in_doubt_that_was_lost_has_not_happened(logs: LogCluster) -> None:
    """Rule P6; the handle remembers that it could be read."""
    log = await logs.log()
    writer = await log.take_over()
    for number in range(10):
        await writer.add(str(number).encode())
    remembers = await (await logs.client()).open_log("orders")
    assert len(await collect(remembers, 0, 10)) == 10

    def in_doubt(position: int, sent: int = 1) -> octavo.OctavoError:
        error = octavo.OctavoTimeoutError("too late", may_have_happened=True)
        error.doubt = Doubt(log.log_id, writer.term, position, sent)
        return error

    assert await remembers.outcome(in_doubt(7)) is True
    await lose_end(logs)
    kept, lost, partly = in_doubt(LEFT - 1), in_doubt(7), in_doubt(7, 5)
    for handle in (remembers, log):
        assert await handle.outcome(kept) is True
        assert await handle.outcome(lost) is None, "its writer may heal, and send it again"
        assert await handle.added(partly) is None
    successor = await (await logs.client()).open_log("orders")
    async with successor.take_over() as leader:
        assert await leader.add(b"a") == LEFT
        for handle in (remembers, log, successor):
            assert await handle.outcome(kept) is True
            assert await handle.outcome(lost) is False
            assert await handle.added(partly) == LEFT - 3


async def test_what_is_added_after_a_loss_is_read_and_stays(logs: LogCluster) -> None:
    await truncated_above_its_end(logs)
    log = await (await logs.client()).open_log("orders")
    async with log.take_over() as writer:
        positions = [await writer.add(payload) for payload in (b"a", b"b", b"c")]
        await writer.roll()
        positions += [await writer.add(payload) for payload in (b"d", b"e")]
        await log.retain()
    assert positions == list(range(positions[0], positions[0] + 5))
    assert log.first_position <= positions[0]
    reader = await (await logs.client()).open_log("orders")
    await reader.retain()
    assert await reader.refresh() == positions[-1] + 1
    assert reader.first_position == 8
    assert await collect(reader, 8, reader.end) == [b"a", b"b", b"c", b"d", b"e"]
