"""Streaming queries over ledgers: nothing lost, nothing doubled, whatever opens, closes, stops or dies."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from octavo.pipeline.base.options import parse_source_options
from octavo.pipeline.base.partitions import ranges_of
from octavo.pipeline.base.planning import EntryRange
from octavo.pipeline.source.offsets import Offsets
from octavo.pipeline.source.stream import StreamReader
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.query import StreamingQuery
from support.commands.processes import Up
from support.spark import started, with_client, write_ledger
from support.waiting import WAIT_SECONDS, wait_until

import octavo


class Stream:
    """A query from the source to a folder of Parquet files, with its checkpoint; may be stopped and started again."""

    def __init__(self, spark: SparkSession, uri: str, folder: Path, **options: object) -> None:
        self.spark = spark
        self.uri = uri
        self.folder = folder
        self.options = options

    def start(self, *, available_now: bool = False, **options: object) -> StreamingQuery:
        reader = self.spark.readStream.format("octavo").option("metadata", self.uri)
        for name, value in {**self.options, **options}.items():
            reader = reader.option(name, str(value))
        writer = reader.load().writeStream.format("parquet").option("path", str(self.folder / "out"))
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
        return started(writer.start)

    def run(self, **options: object) -> StreamingQuery:
        """Everything that is there now."""
        query = self.start(available_now=True, **options)
        assert query.awaitTermination(240)
        return query

    def rows(self) -> list[tuple[int, int, bytes | None]]:
        frame: DataFrame = self.spark.read.parquet(str(self.folder / "out"))
        return sorted(
            (row.ledger_id, row.entry_id, None if row.value is None else bytes(row.value)) for row in frame.collect()
        )

    def offsets(self) -> Offsets:
        """The offsets of the last batch."""
        folder = self.folder / "checkpoint" / "offsets"
        last = max(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
        return Offsets.from_json(json.loads((folder / str(last)).read_text().splitlines()[-1]))


@pytest.fixture(scope="module")
def streams(spark: SparkSession, module_folder: Path) -> Iterator[Up]:
    """A cluster of its own: `all` means what these tests wrote."""
    with Up(module_folder / "data") as up:
        yield up.wait_ready()


def payloads(name: str, count: int) -> list[bytes]:
    return [b"%s/%d" % (name.encode(), number) for number in range(count)]


def batch_rows(query: StreamingQuery) -> list[int]:
    """Rows of each batch that had some."""
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def test_ledgers_appear_and_close_while_a_query_is_stopped_and_started(
    spark: SparkSession, streams: Up, tmp_path: Path
) -> None:
    tag = {"test": b"life"}
    stream = Stream(spark, streams.uri, tmp_path, ledgers="test=life")
    first = write_ledger(streams.uri, payloads("first", 10), custom_metadata=tag)
    write_ledger(streams.uri, payloads("other", 10))
    stream.run()
    expected = [(first, i, p) for i, p in enumerate(payloads("first", 10))]
    assert stream.rows() == expected
    assert dict(stream.offsets().ledgers) == {}, "what is drained has left the offsets"

    async def go_on(client: octavo.Client) -> tuple[int, int]:
        slow = await client.create_ledger(custom_metadata=tag)
        await slow.add_many(payloads("slow", 5))
        async with client.open_ledger(slow.id, recover=False) as reader:
            await reader.wait_last_add_confirmed(4, timeout=WAIT_SECONDS)
        await asyncio.to_thread(stream.run)
        middle = stream.offsets()
        assert middle.ledgers == {slow.id: 5}
        quick = await client.create_ledger(custom_metadata=tag)
        await quick.add_many(payloads("quick", 3))
        await quick.close()
        await slow.add_many(payloads("late", 4))
        await slow.close()
        return slow.id, quick.id

    slow, quick = with_client(streams.uri, go_on)
    stream.run()
    expected += [(slow, i, p) for i, p in enumerate(payloads("slow", 5) + payloads("late", 4))]
    expected += [(quick, i, p) for i, p in enumerate(payloads("quick", 3))]
    assert stream.rows() == expected
    assert (dict(stream.offsets().ledgers), str(stream.offsets().undecided)) == ({}, "")
    batches = len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))
    stream.run()
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) == batches, "nothing new, no batch"


def test_a_running_query_follows_open_ledgers(spark: SparkSession, streams: Up, tmp_path: Path) -> None:
    tag = {"test": b"follow"}
    stream = Stream(spark, streams.uri, tmp_path, ledgers="test=follow")

    async def scenario(client: octavo.Client) -> None:
        ledger = await client.create_ledger(custom_metadata=tag)
        await ledger.add(b"0")
        query = stream.start()
        try:
            for number in range(1, 4):
                await ledger.add(b"%d" % number)
                await asyncio.to_thread(wait_for_rows, query, number + 1)
            await ledger.add(b"last")
            await ledger.close()
            await asyncio.to_thread(wait_for_rows, query, 5)
        finally:
            await asyncio.to_thread(query.stop)
        assert stream.rows() == [(ledger.id, i, p) for i, p in enumerate((b"0", b"1", b"2", b"3", b"last"))]

    with_client(streams.uri, scenario)


def wait_for_rows(query: StreamingQuery, number: int) -> None:
    def seen() -> bool:
        assert query.exception() is None, query.exception()
        return sum(batch_rows(query)) >= number

    wait_until(seen, f"{number} entries were processed")


@pytest.mark.parametrize(
    ("limits", "batches"),
    [
        ({"maxEntriesPerTrigger": 40}, [40, 40, 10]),
        ({"maxBytesPerTrigger": 60_000}, [60, 30]),
        ({"maxEntriesPerTrigger": 40, "maxBytesPerTrigger": 35_000}, [35, 35, 20]),
    ],
)
def test_limits_bound_every_batch(
    spark: SparkSession, streams: Up, tmp_path: Path, limits: dict[str, Any], batches: list[int]
) -> None:
    tag = {"test": json.dumps(limits).encode()}
    ids = [write_ledger(streams.uri, [b"%03d" % i + b"x" * 997 for i in range(45)], custom_metadata=tag) for _ in "ab"]
    stream = Stream(spark, streams.uri, tmp_path, ledgers=f"{ids[0]},{ids[1]}", **limits)
    assert batch_rows(stream.run()) == batches
    assert [row[:2] for row in stream.rows()] == [(ledger_id, i) for ledger_id in ids for i in range(45)]


def test_available_now_ends_where_the_ledgers_ended_when_it_began(streams: Up) -> None:
    tag = {"test": b"now"}
    options = parse_source_options({"metadata": streams.uri, "ledgers": "test=now"})
    reader = StreamReader(options, ("ledger_id", "entry_id"))

    async def scenario(client: octavo.Client) -> None:
        async with client.create_ledger(custom_metadata=tag) as ledger:
            await ledger.add_many(payloads("early", 3))
            async with client.open_ledger(ledger.id, recover=False) as tail:
                await tail.wait_last_add_confirmed(2, timeout=WAIT_SECONDS)
            await asyncio.to_thread(reader.prepareForTriggerAvailableNow)
            await ledger.add_many(payloads("late", 4))
        later = await client.create_ledger(custom_metadata=tag)
        await later.add(b"later")
        await later.close()
        begin = reader.initialOffset()
        end = await asyncio.to_thread(reader.latestOffset, begin, ReadAllAvailable())
        assert ranges(reader, begin, end) == [EntryRange(ledger.id, 0, 2)]
        assert await asyncio.to_thread(reader.latestOffset, end, ReadAllAvailable()) == end, "nothing more for this run"
        following = StreamReader(options, ("ledger_id", "entry_id"))
        try:
            last = await asyncio.to_thread(following.latestOffset, end, ReadAllAvailable())
        finally:
            await asyncio.to_thread(following.stop)
        assert ranges(reader, end, last) == [EntryRange(ledger.id, 3, 6), EntryRange(later.id, 0, 0)]

    try:
        with_client(streams.uri, scenario)
    finally:
        reader.stop()


def ranges(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[EntryRange]:
    return sorted(one for partition in reader.partitions(start, end) for one in ranges_of(partition))


def test_starting_offsets(spark: SparkSession, streams: Up, tmp_path: Path) -> None:
    old = write_ledger(streams.uri, payloads("old", 5), custom_metadata={"test": b"starting"})
    latest = Stream(spark, streams.uri, tmp_path / "latest", ledgers="test=starting", startingOffsets="latest")
    latest.run()
    new = write_ledger(streams.uri, payloads("new", 2), custom_metadata={"test": b"starting"})
    latest.run(startingOffsets="earliest")
    new_rows = [(new, i, p) for i, p in enumerate(payloads("new", 2))]
    assert latest.rows() == new_rows, "the checkpoint wins"
    some = Stream(
        spark, streams.uri, tmp_path / "json", ledgers="test=starting", startingOffsets=json.dumps({old: 3, new: -1})
    )
    some.run()
    assert some.rows() == [(old, 3, b"old/3"), (old, 4, b"old/4")]


def test_a_ledger_deleted_before_it_was_read_stops_the_query_or_leaves_a_row(
    spark: SparkSession, streams: Up, tmp_path: Path
) -> None:
    tag = {"test": b"deleted"}
    stream = Stream(spark, streams.uri, tmp_path, ledgers="test=deleted", maxEntriesPerTrigger=3)

    async def scenario(client: octavo.Client) -> int:
        ledger = await client.create_ledger(custom_metadata=tag)
        await ledger.add_many(payloads("gone", 3))
        async with client.open_ledger(ledger.id, recover=False) as reader:
            await reader.wait_last_add_confirmed(2, timeout=WAIT_SECONDS)
        await asyncio.to_thread(stream.run)
        await client.delete_ledger(ledger.id)
        with pytest.raises(octavo.NoSuchLedgerError):
            await ledger.close()
        return ledger.id

    gone = with_client(streams.uri, scenario)
    query = stream.start(available_now=True)
    with pytest.raises(StreamingQueryException, match=f"ledger {gone} was deleted before the query read entry"):
        query.awaitTermination(240)
    stays = write_ledger(streams.uri, payloads("stays", 2), custom_metadata=tag)
    stream.run(failOnDataLoss="false")
    assert stream.rows() == [
        *((gone, i, p) for i, p in enumerate(payloads("gone", 3))),
        (gone, 3, None),
        *((stays, i, p) for i, p in enumerate(payloads("stays", 2))),
    ]
    stream.run()
