"""Scans of a log that are kept between the fetches of a consumer (rules K7 and K13)."""

from collections.abc import AsyncIterator

import pytest
from octavo.client.log.seam.entries import LogEntry
from octavo.gateway.gateway import Gateway
from octavo.gateway.leading.recent import BYTES_MAX as RECENT_BYTES_MAX
from octavo.gateway.leading.scans import Scan, Scans
from octavo.gateway.records.batch import read_header
from octavo.protocol.errors import QuorumLostError
from octavo.protocol.ids import EntryId, LedgerId
from support.clusters.gateway_cluster import GatewayCluster
from support.kafka.batches import batch_of
from support.kafka.client import KafkaClient
from support.waiting import eventually


class Entries:
    """The entries of a log, and whether the iteration over them has ended."""

    def __init__(self, *payloads: bytes, fails: bool = False) -> None:
        self._payloads = payloads
        self._fails = fails
        self.given = 0
        self.has_ended = False

    async def iterate(self) -> AsyncIterator[LogEntry]:
        try:
            for position, payload in enumerate(self._payloads):
                self.given += 1
                yield LogEntry(position, payload, 1, 0, LedgerId(1), EntryId(position), None)
            if self._fails:
                raise QuorumLostError("no bookie has it", may_have_happened=False)
        finally:
            self.has_ended = True


def batches(*counts: int, size: int = 100) -> list[bytes]:
    """Batches with these numbers of records, one after another from offset 0 on."""
    made, offset = [], 0
    for count in counts:
        made.append(offset.to_bytes(8) + batch_of(*[b"x" * size] * count)[8:])
        offset += count
    return made


def scan_of(entries: Entries, offset: int) -> Scan:
    return Scan(entries.iterate(), offset)  # type: ignore[arg-type]


async def test_a_scan_gives_whole_batches_in_order_and_none_twice() -> None:
    stored = batches(2, 1, 3, 1)
    scan = scan_of(Entries(*stored), 0)
    assert await scan.read(len(stored[0]) + len(stored[1])) == stored[:2]
    assert scan.offset == 3
    assert await scan.read(1) == [stored[2]], "at least one"
    assert await scan.read(len(stored[3]) - 1) == [stored[3]]
    assert (scan.offset, scan.is_over) == (7, False)
    assert await scan.read(1000) == []
    assert scan.is_over


async def test_a_batch_that_had_no_room_is_the_first_of_the_next_answer() -> None:
    stored = batches(1, 1, 1)
    entries = Entries(*stored)
    scan = scan_of(entries, 0)
    assert await scan.read(len(stored[0]) + 1) == stored[:1]
    assert (scan.offset, entries.given) == (1, 2)
    assert await scan.read(1000) == stored[1:]
    assert scan.offset == 3


async def test_a_scan_skips_what_lies_before_its_offset_and_what_is_no_batch() -> None:
    first, second, third = batches(2, 2, 2)
    scan = scan_of(Entries(first, b"no batch", second, b"", third), 3)
    assert await scan.read(10_000) == [second, third]


async def test_a_batch_that_cannot_be_read_is_an_error() -> None:
    stored = batches(1)
    scan = scan_of(Entries(*stored, fails=True), 0)
    assert await scan.read(1) == stored
    with pytest.raises(QuorumLostError):
        await scan.read(1)
    await scan.close()


async def test_a_scan_is_kept_for_the_consumer_of_its_next_offset() -> None:
    scans, entries = Scans(), Entries(*batches(1, 1, 1))
    scan = scan_of(entries, 0)
    await scan.read(1)
    scans.keep("log", scan)
    assert scans.take("log", 0) is None
    assert scans.take("another", 1) is None
    assert scans.take("log", 1) is scan
    assert scans.take("log", 1) is None, "one consumer at a time"
    assert not entries.has_ended


async def test_of_two_consumers_at_one_place_one_scan_is_kept() -> None:
    scans, first, second = Scans(), Entries(*batches(1, 1)), Entries(*batches(1, 1))
    for entries in (first, second):
        scan = scan_of(entries, 0)
        await scan.read(1)
        scans.keep("log", scan)
    assert len(scans) == 1
    await eventually(lambda: first.has_ended)
    assert not second.has_ended


async def test_the_scan_that_was_used_longest_ago_gives_way() -> None:
    scans, made = Scans(kept_max=2), [Entries(*batches(1, 1)) for _ in range(3)]
    for number, entries in enumerate(made):
        scan = scan_of(entries, 0)
        await scan.read(1)
        scans.keep(f"log {number}", scan)
    assert len(scans) == 2
    await eventually(lambda: made[0].has_ended)
    assert not made[1].has_ended
    assert scans.take("log 2", 1) is not None


async def test_a_scan_ends_when_its_consumer_does_not_come() -> None:
    scans, entries = Scans(idle_seconds=0), Entries(*batches(1, 1))
    scan = scan_of(entries, 0)
    await scan.read(1)
    scans.keep("log", scan)
    await eventually(lambda: entries.has_ended, seconds=30)
    assert len(scans) == 0
    await scans.end_of("log")


async def test_the_scans_of_a_log_end_with_it() -> None:
    scans, first, second = Scans(), Entries(*batches(1, 1)), Entries(*batches(1, 1))
    for name, entries in (("first", first), ("second", second)):
        scan = scan_of(entries, 0)
        await scan.read(1)
        scans.keep(name, scan)
    await scans.end_of("first")
    assert (first.has_ended, second.has_ended, len(scans)) == (True, False, 1)


# --- in a gateway ---------------------------------------------------------------------------------------------------


BATCHES = 24
BATCH_BYTES = RECENT_BYTES_MAX // 4


async def fill(client: KafkaClient) -> None:
    await client.metadata("orders")
    for _ in range(BATCHES):
        await client.produce("orders", batch_of(b"x" * BATCH_BYTES))


async def test_consumers_that_read_on_have_each_batch_read_once(cluster: GatewayCluster, gateway: Gateway) -> None:
    async with await KafkaClient.connect(gateway.port) as client:
        await fill(client)
        offset = 0
        while offset < BATCHES - 4:
            fetched = await client.fetch("orders", offset, partition_bytes_max=1)
            header = read_header(fetched.records)
            assert header is not None
            assert header.base_offset == offset
            offset = header.next_offset
        # A few more: how far the log can be read was asked for.
        assert BATCHES - 4 <= cluster.clients[gateway].statistics().entries_read <= BATCHES + 8


async def test_what_a_scan_holds_is_not_given_below_the_start_of_the_partition(gateway: Gateway) -> None:
    async with await KafkaClient.connect(gateway.port) as client:
        await fill(client)
        assert (await client.fetch("orders", 0, partition_bytes_max=1)).error_code.value == 0
        (partition,) = gateway.leaders.led
        assert len(partition.scans) == 1
        await partition.delete_below(10)
        assert (await client.fetch("orders", 1)).error_code.value == 1, "OFFSET_OUT_OF_RANGE"
        fetched = await client.fetch("orders", 10, partition_bytes_max=1)
        header = read_header(fetched.records)
        assert header is not None
        assert header.base_offset == 10


async def test_scans_end_with_the_lead(gateway: Gateway) -> None:
    async with await KafkaClient.connect(gateway.port) as client:
        await fill(client)
        await client.fetch("orders", 0, partition_bytes_max=1)
        (partition,) = gateway.leaders.led
        scans = partition.scans
        assert len(scans) == 1
        await partition.close()
        assert len(scans) == 0
