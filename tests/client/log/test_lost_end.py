"""A log that has lost its end (rule O4), and was truncated above what is left of it: what a leader adds then lies where
readers get it, and stays (rule P7)."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from octavo.client.log.documents.names import list_document
from octavo.client.log.logs import Layout
from octavo.metadata.ledger.model import LedgerState
from octavo.metadata.store.values import Version
from octavo.metadata.stream.model import StreamMetadata
from octavo.protocol.errors import Doubt, InvalidArgumentError, MetadataUnavailableError
from octavo.protocol.ids import EntryId, LedgerId
from octavo.protocol.places import place
from support.clusters.log_cluster import LogCluster, collect, open_log_cluster
from support.metadata.interposed_store import InterposedStore
from support.metadata.metadata_clusters import MemoryCluster

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


class Intruder:
    """Does something before one of the changes that a client makes of the log's document."""

    def __init__(self, store: InterposedStore, number: int, happens: Callable[[], Awaitable[object]]) -> None:
        self.happened = False
        self._left = number
        self._happens = happens
        self._real = store.real
        store.interpose("compare_and_set_document", self._change)

    async def _change(self, name: str, value: bytes, expected: Version) -> Version:
        if name == list_document("orders"):
            self._left -= 1
            if not self._left:
                await self._happens()
                self.happened = True
        return await self._real.compare_and_set_document(name, value, expected)


@pytest.mark.parametrize("change", [1, 2])
async def test_a_loss_that_is_accepted_between_the_look_and_the_write_is_noticed(logs: LogCluster, change: int) -> None:
    """A chain is truncated with one change, a stream with two: the look between them is the one that counts."""
    if logs.layout == "chain" and change == 2:
        change = 1
    log = await logs.log()
    writer = await log.take_over()
    for number in range(10):
        await writer.add(str(number).encode())
    client, store = await logs.interposed_client()
    truncating = await client.open_log("orders")
    assert len(await collect(truncating, 0, 10)) == 10
    successor = await (await logs.client()).open_log("orders")

    async def lose_end_and_lead() -> None:
        await lose_end(logs)
        leader = await successor.take_over()
        assert await leader.add(b"a") == LEFT

    intruder = Intruder(store, change, lose_end_and_lead)
    with pytest.raises(InvalidArgumentError, match="8 is beyond its end"):
        await truncating.truncate(8)
    assert intruder.happened
    reader = await (await logs.client()).open_log("orders")
    assert await collect(reader, LEFT, LEFT + 1) == [b"a"]
    assert reader.first_position == 0


async def test_a_leader_that_begins_while_a_log_is_truncated_makes_it_look_again_and_no_more(logs: LogCluster) -> None:
    log = await logs.log()
    writer = await log.take_over()
    for number in range(10):
        await writer.add(str(number).encode())
    client, store = await logs.interposed_client()
    truncating = await client.open_log("orders")
    assert len(await collect(truncating, 0, 10)) == 10
    successor = await (await logs.client()).open_log("orders")

    async def lead() -> None:
        leader = await successor.take_over()
        assert await leader.add(b"a") == 10

    intruder = Intruder(store, 1 if logs.layout == "chain" else 2, lead)
    await truncating.truncate(8)
    assert intruder.happened
    assert truncating.first_position == 8
    assert await successor.refresh() == 11
    assert await collect(successor, 8, 11) == [b"8", b"9", b"a"]


async def test_two_clients_that_truncate_at_once_both_succeed(logs: LogCluster) -> None:
    log = await logs.log()
    writer = await log.take_over()
    for number in range(10):
        await writer.add(str(number).encode())
    client, store = await logs.interposed_client()
    first = await client.open_log("orders")
    second = await (await logs.client()).open_log("orders")
    for handle in (first, second):
        assert len(await collect(handle, 0, 10)) == 10
    intruder = Intruder(store, 1 if logs.layout == "chain" else 2, lambda: second.truncate(6))
    await first.truncate(8)
    assert intruder.happened
    assert await second.refresh() == 10
    assert second.first_position == 8


async def test_a_truncation_that_was_given_up_half_way_is_forgotten_by_the_next_leader(logs: LogCluster) -> None:
    log = await logs.log()
    writer = await log.take_over()
    for number in range(10):
        await writer.add(str(number).encode())
    client, store = await logs.interposed_client()
    truncating = await client.open_log("orders")
    assert len(await collect(truncating, 0, 10)) == 10

    async def fail() -> None:
        raise MetadataUnavailableError("no answer")

    Intruder(store, 1 if logs.layout == "chain" else 2, fail)
    with pytest.raises(MetadataUnavailableError):
        await truncating.truncate(8)
    async with log.take_over() as leader:
        assert await leader.add(b"a") == 10
    assert log.first_position == 0
    found = await logs.store.read_document(list_document("orders"))
    assert found is not None
    assert b"truncating" not in found.value


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
