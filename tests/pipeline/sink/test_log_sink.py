"""Rows of jobs and queries into a log: each once, in order (rule X2)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from octavo.pipeline.base.datasets import Tags
from octavo.pipeline.base.options import parse_sink_options
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from support.commands.processes import Up
from support.spark import scan, started, while_late, with_client, write_ledger

import octavo


@pytest.fixture(scope="module")
def logs(spark: SparkSession, module_folder: Path) -> Iterator[Up]:
    """A cluster of its own: every ledger in it is a sink's."""
    with Up(module_folder / "data") as up:
        yield up.wait_ready()


def make_log(uri: str, name: str, keys: octavo.KeyWindow | None = octavo.KeyWindow(entries=20)) -> None:  # noqa: B008
    async def make(client: octavo.Client) -> None:
        await client.create_log(name, keys=keys)

    with_client(uri, make)


def numbers(spark: SparkSession, start: int, stop: int, partitions: int = 2) -> DataFrame:
    return spark.range(start, stop, 1, partitions).select(F.col("id").cast("string").alias("value"))


def save(frame: DataFrame, uri: str, log: str, mode: str = "append", **options: object) -> None:
    writer = frame.write.format("octavo").mode(mode).option("metadata", uri).option("log", log)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save()


def entries(uri: str, name: str) -> list[int]:
    async def read(client: octavo.Client) -> list[int]:
        async with client.open_log(name) as log:
            return [int(entry.payload) async for entry in log]

    return with_client(uri, read)


def staged(uri: str) -> list[int]:
    async def read(client: octavo.Client) -> list[int]:
        found: list[int] = []
        async for ledger_id in client.list_ledgers():
            try:
                metadata = await client.ledger_metadata(ledger_id)
            except octavo.LedgerKindError:
                continue
            found += [ledger_id] if Tags.FOR_LOG in metadata.custom_metadata else []
        return found

    return with_client(uri, read)


def test_rows_of_a_job_are_added_in_the_order_of_the_frame(spark: SparkSession, logs: Up) -> None:
    make_log(logs.uri, "jobs")
    save(numbers(spark, 0, 3000, 3), logs.uri, "jobs", job="named", ensembleSize=2, writeQuorum=2)
    save(numbers(spark, 3000, 3010), logs.uri, "jobs", job="named")
    assert entries(logs.uri, "jobs") == list(range(3000)), "a job with a name is added once"
    keys = scan(spark, logs.uri, log="jobs", startingPosition=2990, includeKey="true").orderBy("position")
    assert [row.key for row in keys.collect()] == [f"spark/named/{n}" for n in range(2990, 3000)]
    assert staged(logs.uri) == []


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("cast(id as string) as value", {"mode": "overwrite"}, "entries of a log are never replaced"),
        ("cast(id as string) as value", {"log": "plain"}, "log plain was created without keys"),
        (
            "cast(id as string) as value, 'a' as key",
            {},
            "an entry is one value and cannot hold columns key; select only",
        ),
    ],
)
def test_rows_and_options_are_checked_on_the_driver(
    spark: SparkSession, logs: Up, columns: str, options: dict[str, str], message: str
) -> None:
    make_log_once(logs.uri, "checked", octavo.KeyWindow())
    make_log_once(logs.uri, "plain", None)
    with pytest.raises(AnalysisException) as caught:
        save(spark.range(3).selectExpr(*columns.split(", ")), logs.uri, **{"log": "checked", **options})
    assert message in str(caught.value)


def make_log_once(uri: str, name: str, keys: octavo.KeyWindow | None) -> None:
    try:
        make_log(uri, name, keys)
    except octavo.LogExistsError:
        return


def run_stream(spark: SparkSession, uri: str, folder: Path, source: str, log: str) -> None:
    stream = spark.readStream.format("octavo").option("metadata", uri).option("ledgers", source)
    writer = stream.option("maxEntriesPerTrigger", "40").load().select("value").writeStream.format("octavo")
    writer = writer.option("metadata", uri).option("log", log).option("checkpointLocation", str(folder / "checkpoint"))

    def run() -> None:
        assert started(writer.trigger(availableNow=True).start).awaitTermination(240)

    while_late(run)


def test_a_batch_that_is_played_again_adds_nothing_twice(spark: SparkSession, logs: Up, tmp_path: Path) -> None:
    make_log(logs.uri, "stream")
    source = write_ledger(logs.uri, [b"%d" % i for i in range(100)])
    run_stream(spark, logs.uri, tmp_path, str(source), "stream")
    assert entries(logs.uri, "stream") == list(range(100))
    commits = tmp_path / "checkpoint" / "commits"
    for note in (commits / "2", commits / ".2.crc"):
        note.unlink(missing_ok=True)  # Spark died between the last add and its note of it
    more = write_ledger(logs.uri, [b"%d" % i for i in range(100, 110)])
    run_stream(spark, logs.uri, tmp_path, f"{source}-{more}", "stream")
    assert entries(logs.uri, "stream") == list(range(110))
    assert staged(logs.uri) == []


def test_a_query_into_a_log_without_keys_fails_before_it_writes(spark: SparkSession, logs: Up, tmp_path: Path) -> None:
    make_log_once(logs.uri, "plain", None)
    source = write_ledger(logs.uri, [b"1"])
    with pytest.raises(StreamingQueryException, match="log plain was created without keys"):
        run_stream(spark, logs.uri, tmp_path, str(source), "plain")
    assert (entries(logs.uri, "plain"), staged(logs.uri)) == ([], [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "a"}, "option dataset cannot be combined with log"),
        ({"keyColumn": "key"}, "option keyColumn cannot be combined with log"),
        ({"job": "a/b"}, "'a/b' is not a valid name of a job"),
        ({"leadSeconds": "0"}, "option leadSeconds must be an integer from 1"),
    ],
)
def test_options_are_of_one_kind_of_sink(options: dict[str, str], message: str) -> None:
    with pytest.raises(octavo.InvalidArgumentError) as caught:
        parse_sink_options({"metadata": "memory://", "log": "orders", **options})
    assert message in str(caught.value)
    with pytest.raises(octavo.InvalidArgumentError, match="option job is for logs"):
        parse_sink_options({"metadata": "memory://", "dataset": "a", "job": "daily"})
