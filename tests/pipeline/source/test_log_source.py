"""Logs as a DataFrame and as a stream: every position once, across rolls, leaders and truncation."""

import asyncio
import runpy
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from octavo.cli.main import main
from octavo.pipeline.base.options import parse_source_options
from octavo.pipeline.base.planning import EntryRange, Piece
from octavo.pipeline.source.log_offsets import LogOffset, batch_positions, within_limits
from octavo.pipeline.source.log_stream import LogStreamReader
from octavo.pipeline.source.offsets import Limits
from octavo.protocol.errors import InvalidArgumentError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.clusters.log_cluster import collect
from support.commands.processes import Up
from support.spark import scan, started, while_late, with_client
from support.tree import ROOT

import octavo


async def write(client: octavo.Client, name: str, payloads: Sequence[bytes], *, rolls_after: int = 4) -> None:
    """Lead the log and add these entries, with a new segment after every few."""
    async with client.open_log(name) as log, log.lead() as writer:
        for at in range(0, len(payloads), rolls_after):
            await writer.add_many(payloads[at : at + rolls_after])
            await writer.roll()


type Layout = Literal["chain", "stream"]
both_layouts = pytest.mark.parametrize("layout", ["chain", "stream"])


def make_log(uri: str, name: str, payloads: Sequence[bytes], layout: Layout = "chain") -> None:
    """A log of several segments and two leaders."""

    async def make(client: octavo.Client) -> None:
        async with client.create_log(name, layout=layout):
            half = len(payloads) // 2
            await write(client, name, payloads[:half])
            await write(client, name, payloads[half:])

    with_client(uri, make)


def truncate(uri: str, name: str, before: int) -> None:
    async def do(client: octavo.Client) -> None:
        async with client.open_log(name) as log:
            await log.truncate(before)

    with_client(uri, do)


def values(frame: DataFrame) -> list[tuple[int, bytes | None]]:
    rows = frame.select("position", "value").collect()
    return sorted((row.position, None if row.value is None else bytes(row.value)) for row in rows)


def numbered(first: int, stop: int) -> list[tuple[int, bytes | None]]:
    return [(n, b"%d" % n) for n in range(first, stop)]


PAYLOADS = [b"%d" % n for n in range(30)]


# --- pure ------------------------------------------------------------------------------------------------------------


def test_a_batch_follows_from_its_two_offsets() -> None:
    start, end = LogOffset("id", 5), LogOffset("id", 9)
    assert batch_positions(start, end) == (5, 9)
    assert batch_positions(start, LogOffset("id", 9, begins=7)) == (7, 9)
    assert LogOffset.from_json(end.to_json()) == end
    with pytest.raises(InvalidArgumentError, match="another source"):
        LogOffset.from_json({"below": 3})


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        (Limits(), 15),
        (Limits(entries=7), 7),
        (Limits(entries=100), 15),
        (Limits(payload_bytes=55), 5),
        (Limits(payload_bytes=150), 12),
        (Limits(payload_bytes=1), 1),
        (Limits(entries=3, payload_bytes=55), 3),
    ],
)
def test_limits_of_a_batch(limits: Limits, count: int) -> None:
    pieces = [Piece(EntryRange(1, 0, 9), 10.0), Piece(EntryRange(2, 0, 4), 20.0)]
    assert within_limits(pieces, limits) == count
    assert within_limits([], limits) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"log": "a b"}, "not the name of a log"),
        ({"log": "a", "ledgers": "1"}, "option ledgers cannot be combined with log"),
        ({"log": "a", "startingEntry": "1"}, "option startingEntry cannot be combined with log"),
        ({"ledgers": "1", "startingPosition": "1"}, "give the option log, too"),
        ({"log": "a", "startingOffsets": '{"1": 2}'}, "must be earliest, latest or a position"),
        ({"log": "a", "startingPosition": "-1"}, "option startingPosition must be an integer from 0"),
        ({}, "give the option ledgers"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse_source_options({"metadata": "memory://x", **options})


# --- batch -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def orders(cluster: Up) -> Up:
    """Logs of many segments and two leaders, for tests that change nothing."""
    make_log(cluster.uri, "spark/orders", PAYLOADS)
    make_log(cluster.uri, "spark/orders-stream", PAYLOADS, "stream")
    return cluster


@pytest.mark.parametrize(("name", "ledgers_min"), [("spark/orders", 8), ("spark/orders-stream", 1)])
def test_every_position_is_one_row_with_its_time(spark: SparkSession, orders: Up, name: str, ledgers_min: int) -> None:
    frame = scan(spark, orders.uri, log=name, minPartitions=4)
    assert frame.schema.simpleString() == (
        "struct<position:bigint,timestamp:timestamp,ledger_id:bigint,entry_id:bigint,value:binary,length:bigint,"
        "last_add_confirmed:bigint>"
    )
    rows = sorted(frame.collect(), key=lambda row: row.position)
    assert [(row.position, bytes(row.value)) for row in rows] == numbered(0, 30)
    assert len({row.ledger_id for row in rows}) >= ledgers_min, "a chain has rolled"
    assert frame.rdd.getNumPartitions() >= 4
    now = datetime.now(UTC)
    times = [row.timestamp.astimezone(UTC) for row in rows]
    assert times == sorted(times)
    assert all(now - timedelta(minutes=10) < time <= now for time in times)


@pytest.mark.parametrize("name", ["spark/orders", "spark/orders-stream"])
def test_positions_bound_a_scan(spark: SparkSession, orders: Up, name: str) -> None:
    def some(**options: object) -> list[tuple[int, bytes | None]]:
        return values(scan(spark, orders.uri, log=name, **options))

    assert some(startingPosition=7, endingPosition=20) == numbered(7, 21)
    assert some(startingPosition=29, endingPosition=1000) == numbered(29, 30)
    assert some(startingPosition=30) == []
    for enabled in ("true", "false"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
        try:
            few = scan(spark, orders.uri, log=name).where("position >= 3 and position < 9 and length > 0")
            assert values(few) == numbered(3, 9)
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@both_layouts
def test_a_truncated_start_obeys_fail_on_data_loss(spark: SparkSession, cluster: Up, layout: Layout) -> None:
    name = f"spark/truncated-{layout}"
    make_log(cluster.uri, name, PAYLOADS, layout)
    truncate(cluster.uri, name, 11)
    assert values(scan(spark, cluster.uri, log=name)) == numbered(11, 30)
    with pytest.raises(PySparkException, match="positions 5 to 10 have been truncated; the log begins at 11"):
        scan(spark, cluster.uri, log=name, startingPosition=5).count()
    rest = scan(spark, cluster.uri, log=name, startingPosition=5, failOnDataLoss="false")
    assert values(rest) == numbered(11, 30)
    with pytest.raises(PySparkException, match="there is no log spark/none"):
        scan(spark, cluster.uri, log="spark/none").count()


@both_layouts
def test_a_log_that_is_led_is_read_without_disturbing_its_leader(
    spark: SparkSession, cluster: Up, layout: Layout
) -> None:
    name = f"spark/led-{layout}"

    async def scenario(client: octavo.Client) -> None:
        async with client.create_log(name, layout=layout) as log, log.lead() as writer:
            await writer.add_many(PAYLOADS[:5])
            if layout == "stream":
                await writer.change(ensemble_size=2, write_quorum=2)
            await writer.add_many(PAYLOADS[5:10])
            async with octavo.connect(cluster.uri) as other:  # it learns the end from bookies, as Spark does
                assert await collect(await other.open_log(name), 0, 10) == PAYLOADS[:10]
            found = await asyncio.to_thread(lambda: values(scan(spark, cluster.uri, log=name)))
            assert found == numbered(0, 10)
            assert await writer.add(b"10") == 10
            assert writer.term == 1

    with_client(cluster.uri, scenario)


def test_keys_are_a_column_and_no_part_of_the_value(spark: SparkSession, cluster: Up, tmp_path: Path) -> None:
    name = "spark/keyed"

    async def make(client: octavo.Client) -> None:
        async with client.create_log(name, keys=octavo.KeyWindow()) as log, log.lead() as writer:
            for n in range(10):
                await writer.add(b"%d" % n, key=f"row-{n}" if n % 3 else None)
                if n == 4:
                    await writer.roll()
            assert log.keys == octavo.KeyWindow()

    with_client(cluster.uri, make)
    assert values(scan(spark, cluster.uri, log=name)) == numbered(0, 10)
    rows = scan(spark, cluster.uri, log=name, includeKey="true").select("key", "value").collect()
    assert sorted((int(row.value), row.key) for row in rows) == [(n, f"row-{n}" if n % 3 else None) for n in range(10)]
    stream = Stream(spark, cluster.uri, tmp_path, log=name)
    assert stream.run() == [10]
    assert stream.values() == numbered(0, 10)
    make_log(cluster.uri, "spark/no-keys", PAYLOADS[:3], "stream")
    plain = scan(spark, cluster.uri, log="spark/no-keys", includeKey="true")
    assert [(row.key, bytes(row.value)) for row in plain.orderBy("position").collect()] == [
        (None, b"%d" % n) for n in range(3)
    ]


def test_export_of_a_log(
    spark: SparkSession, orders: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OCTAVO_METADATA", orders.uri)
    assert main(["pipeline", "export", str(tmp_path / "out"), "--log", "spark/orders", "--json"]) == 0
    assert '"entries": 30' in capfd.readouterr().out
    exported = spark.read.parquet(str(tmp_path / "out"))
    assert values(exported) == numbered(0, 30)
    assert "timestamp" in exported.columns
    assert main(["pipeline", "export", str(tmp_path / "no"), "--log", "spark/orders", "--ledgers", "all"]) == 2


# --- streaming -------------------------------------------------------------------------------------------------------


class Stream:
    """A query from a log to a folder, with its checkpoint; may be run again."""

    def __init__(self, spark: SparkSession, uri: str, folder: Path, **options: object) -> None:
        self.spark, self.uri, self.folder, self.options = spark, uri, folder, options

    def run(self, **options: object) -> list[int]:
        """Everything that is there now; the rows of each batch."""
        reader = self.spark.readStream.format("octavo").option("metadata", self.uri)
        for name, value in {**self.options, **options}.items():
            reader = reader.option(name, str(value))
        writer = reader.load().writeStream.format("parquet").option("path", str(self.folder / "out"))
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint")).trigger(availableNow=True)
        query = started(writer.start)
        assert query.awaitTermination(240)
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    def values(self) -> list[tuple[int, bytes | None]]:
        return values(self.spark.read.parquet(str(self.folder / "out")))


@both_layouts
def test_a_query_goes_on_across_rolls_and_leaders(
    spark: SparkSession, cluster: Up, tmp_path: Path, layout: Layout
) -> None:
    name = f"spark/query-{layout}"
    make_log(cluster.uri, name, PAYLOADS, layout)
    stream = Stream(spark, cluster.uri, tmp_path, log=name, maxEntriesPerTrigger=12)
    assert stream.run() == [12, 12, 6]
    with_client(cluster.uri, lambda client: write(client, name, [b"%d" % n for n in range(30, 37)]))
    assert stream.run() == [7]
    assert stream.values() == numbered(0, 37)
    assert stream.run() == [], "nothing new, no batch"


@both_layouts
def test_a_query_over_a_truncated_log_stops_or_goes_on_behind_the_gap(
    spark: SparkSession, cluster: Up, tmp_path: Path, layout: Layout
) -> None:
    name = f"spark/gap-{layout}"
    make_log(cluster.uri, name, PAYLOADS, layout)
    stream = Stream(spark, cluster.uri, tmp_path, log=name, startingOffsets=2)
    assert stream.run() == [28]
    with_client(cluster.uri, lambda client: write(client, name, [b"%d" % n for n in range(30, 40)]))
    truncate(cluster.uri, name, 33)
    with pytest.raises(StreamingQueryException, match="positions 30 to 32 were truncated before the query read them"):
        stream.run()
    assert stream.run(failOnDataLoss="false") == [7]
    assert stream.values() == numbered(2, 30) + numbered(33, 40)


def reader_of(uri: str, **options: object) -> LogStreamReader:
    texts = {name: str(value) for name, value in options.items()}
    return LogStreamReader(parse_source_options({"metadata": uri, **texts}), ("position", "value"))


def test_a_log_that_was_deleted_or_made_again_stops_the_query(cluster: Up) -> None:
    make_log(cluster.uri, "spark/deleted", PAYLOADS[:6])
    reader = reader_of(cluster.uri, log="spark/deleted")
    try:
        start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert start["position"] == 6

        async def delete(client: octavo.Client) -> None:
            await client.delete_log("spark/deleted")

        with_client(cluster.uri, delete)
        with pytest.raises(octavo.OctavoError, match="the query has read it up to position 6"):
            reader.latestOffset(start, ReadAllAvailable())
        make_log(cluster.uri, "spark/deleted", PAYLOADS)
        with pytest.raises(octavo.OctavoError, match="deleted and created again"):
            reader.latestOffset(start, ReadAllAvailable())
    finally:
        reader.stop()


def test_where_a_new_query_starts(orders: Up) -> None:
    def initial(**options: Any) -> int:
        reader = reader_of(orders.uri, log="spark/orders", **options)
        try:
            return int(reader.initialOffset()["position"])
        finally:
            reader.stop()

    assert initial() == 0
    assert initial(startingOffsets="latest") == 30
    assert initial(startingOffsets=30) == 30
    with pytest.raises(InvalidArgumentError, match="beyond the end of the log, 30"):
        initial(startingOffsets=31)


# --- the example -----------------------------------------------------------------------------------------------------


def test_the_example_counts_every_entry_once(spark: SparkSession, cluster: Up, tmp_path: Path) -> None:
    """In this session: a Spark of its own would take another Java."""
    module = runpy.run_path(str(ROOT / "examples" / "spark_counts.py"))
    make_log(cluster.uri, "spark/example", [b"order %d" % n for n in range(10)] + [b"refund 1"])

    def counted() -> dict[str, int]:
        rows = while_late(lambda: module["count"](spark, cluster.uri, "spark/example", str(tmp_path)).collect())
        totals: dict[str, int] = {}
        for row in rows:
            totals[row.word] = totals.get(row.word, 0) + row.entries
        return totals

    assert counted() == {"order": 10, "refund": 1}
    with_client(cluster.uri, lambda client: write(client, "spark/example", [b"refund 2", b"order 11"]))
    truncate(cluster.uri, "spark/example", 5)
    assert counted() == {"order": 11, "refund": 2}
