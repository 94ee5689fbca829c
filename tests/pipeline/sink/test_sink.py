"""Rows to ledgers: published all at once, exactly once, and nothing is left behind."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import override

import pytest
from octavo.pipeline.base.datasets import Tags, dataset_store
from octavo.pipeline.base.manifest import Publication, PublishedLedger
from octavo.pipeline.base.options import ClusterOptions, parse_sink_options
from octavo.pipeline.datasource import OctavoDataSource
from octavo.pipeline.sink.sink import BatchSink, SinkColumns, StreamSink, TaskWritten, sink_columns
from octavo.pipeline.sink.writing import PIECE_ROWS_MAX
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType
from support.clusters.secrets import write_secret
from support.commands.processes import Up, is_running
from support.spark import ledger_payloads, scan, started, with_client, write_ledger
from support.waiting import wait_until

import octavo


@pytest.fixture(scope="module")
def sinks(spark: SparkSession, module_folder: Path) -> Iterator[Up]:
    """A cluster of its own: every ledger in it is a sink's."""
    with Up(module_folder / "data", "--bookies", 4) as up:
        yield up.wait_ready()


def save(frame: DataFrame, uri: str, dataset: str, mode: str = "append", **options: object) -> None:
    writer = frame.write.format("octavo").mode(mode).option("metadata", uri).option("dataset", dataset)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save()


def numbers(spark: SparkSession, start: int, stop: int, partitions: int = 2) -> DataFrame:
    return spark.range(start, stop, 1, partitions).select(F.col("id").cast("string").cast("binary").alias("value"))


def values(spark: SparkSession, uri: str, dataset: str) -> list[int]:
    """What the dataset holds, in order of ledgers and entries."""
    frame = scan(spark, uri, dataset=dataset)
    return [int(row.value) for row in sorted(frame.collect(), key=lambda row: (row.ledger_id, row.entry_id))]


def published(uri: str, dataset: str) -> list[PublishedLedger]:
    async def read(_client: octavo.Client) -> list[PublishedLedger]:
        async with dataset_store(ClusterOptions(uri)) as datasets:
            return await datasets.ledgers(dataset)

    return with_client(uri, read)


def tagged(uri: str, dataset: str) -> set[int]:
    """Every ledger that was written for the dataset, published or not."""

    async def read(client: octavo.Client) -> set[int]:
        found: set[int] = set()
        async for ledger_id in client.list_ledgers():
            metadata = await client.ledger_metadata(ledger_id)
            if metadata.custom_metadata.get(Tags.DATASET) == dataset.encode():
                assert metadata.state is octavo.LedgerState.CLOSED or ledger_id not in found
                found.add(ledger_id)
        return found

    return with_client(uri, read)


def test_append_adds_and_overwrite_replaces(spark: SparkSession, sinks: Up) -> None:
    # Several pieces of a task are under way at a time, and all must stay in order.
    half = 5 * PIECE_ROWS_MAX
    save(numbers(spark, 0, 2 * half), sinks.uri, "modes")
    ledgers = published(sinks.uri, "modes")
    for ledger, start in zip(ledgers, (0, half), strict=True):
        payloads = [b"%d" % i for i in range(start, start + half)]
        assert (ledger.entries, ledger.payload_bytes) == (half, sum(map(len, payloads)))
        assert ledger_payloads(sinks.uri, ledger.ledger_id) == payloads, "rows stay in order"
    save(numbers(spark, 2 * half, 2 * half + 100), sinks.uri, "modes")
    assert sorted(values(spark, sinks.uri, "modes")) == list(range(2 * half + 100))
    save(numbers(spark, 0, 3, 1), sinks.uri, "modes", mode="overwrite", ensembleSize=4, writeQuorum=2)
    assert values(spark, sinks.uri, "modes") == [0, 1, 2]
    (ledger,) = published(sinks.uri, "modes")
    assert tagged(sinks.uri, "modes") == {ledger.ledger_id}, "what was replaced is deleted"
    metadata = with_client(sinks.uri, lambda client: client.ledger_metadata(ledger.ledger_id))
    assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (4, 2, 2)
    save(numbers(spark, 0, 0), sinks.uri, "modes", mode="overwrite")
    assert (values(spark, sinks.uri, "modes"), tagged(sinks.uri, "modes")) == ([], set())


def test_keys_route_rows_and_select_ledgers(spark: SparkSession, sinks: Up, tmp_path: Path) -> None:
    password = tmp_path / "password"
    write_secret(password, b"secret")
    rows = [("a", "1"), (None, "2"), ("b", "3"), ("a", "4"), ("a", "")]
    frame = spark.createDataFrame(rows, "key string, value string").coalesce(1)
    save(frame, sinks.uri, "keys", passwordFile=password, digest="hmac-sha256")
    found = scan(spark, sinks.uri, dataset="keys", ledgers=f"{Tags.KEY}=a", passwordFile=password).orderBy("entry_id")
    assert [bytes(row.value) for row in found.collect()] == [b"1", b"4", b""]
    assert scan(spark, sinks.uri, dataset="keys", passwordFile=password).count() == 5
    with pytest.raises(PySparkException, match="more than 2 different keys in one task"):
        save(frame, sinks.uri, "keys", maxKeysPerTask=2)
    assert len(tagged(sinks.uri, "keys")) == 3, "a job that failed leaves nothing behind"


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("id as value", {}, "column value has type bigint"),
        ("cast(id as string) as text", {}, "option valueColumn: no column value; the columns are text"),
        ("cast(id as string) as value, id as other", {}, "an entry is one value and cannot hold columns other"),
        ("cast(id as string) as value", {"dataset": "a/b"}, "'a/b' is not a valid name of a dataset"),
        ("cast(id as string) as value", {"writeQuorum": "4"}, "E >= Qw"),
        ("cast(id as string) as value", {"digest": "md5"}, "option digest must be one of crc32c"),
    ],
)
def test_rows_and_options_are_checked_on_the_driver(
    spark: SparkSession, sinks: Up, columns: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        save(spark.range(3).selectExpr(*columns.split(", ")), sinks.uri, **{"dataset": "checked", **options})
    assert message in str(caught.value)


def test_rows_that_can_be_no_entry_are_named_and_nothing_is_published(spark: SparkSession, sinks: Up) -> None:
    with_null = spark.range(0, 10, 1, 1).selectExpr("case when id = 7 then null else cast(id as string) end as value")
    with pytest.raises(PySparkException, match="column value is NULL in row 7 of partition 0"):
        save(with_null, sinks.uri, "refused")
    too_large = spark.range(0, 2, 1, 1).selectExpr("repeat('x', cast(id as int) * 5000000) as value")
    with pytest.raises(PySparkException, match="column value has 5000000 bytes in row 1 of partition 0"):
        save(too_large, sinks.uri, "refused")
    assert tagged(sinks.uri, "refused") == set()
    with pytest.raises(AnalysisException, match="there is no dataset 'refused'"):
        scan(spark, sinks.uri, dataset="refused").count()


def test_losers_and_leftovers_are_swept_and_other_ledgers_are_not(spark: SparkSession, sinks: Up) -> None:
    save(numbers(spark, 0, 10, 1), sinks.uri, "swept")
    (kept,) = published(sinks.uri, "swept")
    job = with_client(sinks.uri, lambda client: client.ledger_metadata(kept.ledger_id)).custom_metadata[Tags.JOB]
    loser = write_ledger(sinks.uri, [b"x"], custom_metadata={Tags.DATASET: b"swept", Tags.JOB: job})
    unknown = write_ledger(sinks.uri, [b"x"], custom_metadata={Tags.DATASET: b"swept", Tags.JOB: b"under way"})
    stranger = write_ledger(sinks.uri, [b"x"], custom_metadata={"app": b"mine"})
    cleaned = sinks.run("pipeline", "clean", "--json").json
    assert {"dataset": "swept", "ledger_ids": [loser], "segments": 0} in cleaned["datasets"]
    assert tagged(sinks.uri, "swept") == {kept.ledger_id, unknown}
    never = write_ledger(sinks.uri, [b"x"], custom_metadata={Tags.DATASET: b"never"})
    assert sinks.run("pipeline", "clean", "swept", "--older-than", "0").status == 0
    assert tagged(sinks.uri, "never") == {never}
    assert sinks.run("pipeline", "clean", "never", "--older-than", "0").stdout == b"never: 1 ledger deleted\n"
    sinks.run("pipeline", "clean", "never").failed_with_one_line(2, "there is no dataset 'never'")
    assert tagged(sinks.uri, "swept") == {kept.ledger_id}
    assert ledger_payloads(sinks.uri, stranger) == [b"x"]


def test_a_commit_sweeps_what_losers_of_speculation_wrote_and_happens_once(sinks: Up) -> None:
    options = parse_sink_options({"metadata": sinks.uri, "dataset": "speculation"})
    sink = BatchSink(options, SinkColumns("value", None), overwrite=False)
    tags = {Tags.DATASET: b"speculation", Tags.JOB: sink.job.encode()}
    winner, loser = (
        write_ledger(sinks.uri, [b"x"], custom_metadata={**tags, Tags.ATTEMPT: attempt}) for attempt in (b"1", b"2")
    )
    other = write_ledger(sinks.uri, [b"x"], custom_metadata={**tags, Tags.JOB: b"another, under way"})
    messages = [TaskWritten(0, None, (PublishedLedger(winner, 1, 1),))]
    assert tagged(sinks.uri, "speculation") == {winner, loser, other}
    sink.commit(messages)
    assert tagged(sinks.uri, "speculation") == {winner, other}
    sink.commit(messages)
    sink.abort(messages)
    assert [ledger.ledger_id for ledger in published(sinks.uri, "speculation")] == [winner]
    assert tagged(sinks.uri, "speculation") == {winner, other}, "what is published outlives an abort that comes late"


def test_an_abort_deletes_what_the_job_wrote_whether_it_was_told_of_it_or_not(sinks: Up) -> None:
    options = parse_sink_options({"metadata": sinks.uri, "dataset": "aborted"})
    sink = BatchSink(options, SinkColumns("value", None), overwrite=False)
    tags = {Tags.DATASET: b"aborted", Tags.JOB: sink.job.encode()}
    done, _ = (write_ledger(sinks.uri, [b"x"], custom_metadata=tags) for _ in range(2))
    other = write_ledger(sinks.uri, [b"x"], custom_metadata={**tags, Tags.JOB: b"another, under way"})
    sink.abort([TaskWritten(0, None, (PublishedLedger(done, 1, 1),)), None])
    assert tagged(sinks.uri, "aborted") == {other}
    with pytest.raises(octavo.InvalidArgumentError, match="there is no dataset 'aborted'"):
        published(sinks.uri, "aborted")


def test_jobs_that_publish_at_the_same_time_all_get_in_once(sinks: Up) -> None:
    jobs = {f"job {number}": [PublishedLedger(10 * number + part, 1, 1) for part in range(3)] for number in range(8)}

    async def publish(job: str) -> list[bool]:
        async with dataset_store(ClusterOptions(sinks.uri)) as datasets:
            publication = Publication(jobs[job], job)
            return [await datasets.publish("crowded", publication), await datasets.publish("crowded", publication)]

    async def all_of_them(_client: octavo.Client) -> list[list[bool]]:
        return await asyncio.gather(*map(publish, jobs))

    assert with_client(sinks.uri, all_of_them) == [[True, False]] * len(jobs)
    ledgers = published(sinks.uri, "crowded")
    assert sorted(ledgers) == sorted(ledger for one in jobs.values() for ledger in one)
    runs = {tuple(ledgers[start : start + 3]) for start in range(0, len(ledgers), 3)}
    assert runs == set(map(tuple, jobs.values())), "what one job publishes stands together, in its order"


def test_tasks_that_fail_are_tried_again_and_publish_once(spark: SparkSession, sinks: Up, tmp_path: Path) -> None:
    marker = str(tmp_path / "failed")

    def fail_once(rows: Iterable[Row]) -> Iterable[tuple[bytes]]:
        for number, row in enumerate(rows):
            if number == 50 and not Path(marker).exists():
                Path(marker).touch()
                raise RuntimeError("a machine went away")
            yield (bytes(row.value),)

    flaky = spark.createDataFrame(numbers(spark, 0, 100, 1).rdd.mapPartitions(fail_once), "value binary")
    with pytest.raises(PySparkException, match="a machine went away"):
        save(flaky, sinks.uri, "flaky")
    assert tagged(sinks.uri, "flaky") == set(), "the abort swept"
    save(flaky, sinks.uri, "flaky")
    assert values(spark, sinks.uri, "flaky") == list(range(100))


# --- streaming -------------------------------------------------------------------------------------------------------


def start_stream(
    spark: SparkSession, uri: str, folder: Path, dataset: str, source: str, *, sink: str = "octavo"
) -> StreamingQuery:
    stream = spark.readStream.format("octavo").option("metadata", uri).option("ledgers", source)
    frame = stream.option("maxEntriesPerTrigger", "40").load()
    writer = frame.select("value").writeStream.format(sink).option("metadata", uri).option("dataset", dataset)
    return started(writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start)


def run_stream(spark: SparkSession, uri: str, folder: Path, dataset: str, source: str) -> None:
    assert start_stream(spark, uri, folder, dataset, source).awaitTermination(240)


def test_a_batch_that_is_played_again_publishes_nothing_twice(spark: SparkSession, sinks: Up, tmp_path: Path) -> None:
    source = write_ledger(sinks.uri, [b"%d" % i for i in range(100)])
    run_stream(spark, sinks.uri, tmp_path, "exactly", str(source))
    assert values(spark, sinks.uri, "exactly") == list(range(100))
    before = tagged(sinks.uri, "exactly")
    commits = tmp_path / "checkpoint" / "commits"
    for note in (commits / "2", commits / ".2.crc"):
        note.unlink(missing_ok=True)  # Spark died between the publication and its note of it
    run_stream(spark, sinks.uri, tmp_path, "exactly", str(source))
    assert values(spark, sinks.uri, "exactly") == list(range(100))
    assert tagged(sinks.uri, "exactly") == before, "what the second time wrote is deleted"


def test_what_a_batch_wrote_before_its_driver_died_is_swept_by_its_second_time(
    spark: SparkSession, sinks: Up, tmp_path: Path
) -> None:
    source = write_ledger(sinks.uri, [b"%d" % i for i in range(50)])
    run_stream(spark, sinks.uri, tmp_path, "died", str(source))
    (first, *_) = published(sinks.uri, "died")
    custom = with_client(sinks.uri, lambda client: client.ledger_metadata(first.ledger_id)).custom_metadata
    left = write_ledger(sinks.uri, [b"x"], custom_metadata={**custom, Tags.BATCH: b"2"})
    more = write_ledger(sinks.uri, [b"%d" % i for i in range(50, 60)])
    run_stream(spark, sinks.uri, tmp_path, "died", f"{source}-{more}")
    assert left not in tagged(sinks.uri, "died")


def register_held(spark: SparkSession, folder: Path) -> None:
    """A format ``octavo-held``, whose streaming sink says in ``folder`` that a batch is written, and commits it when
    it is told to."""

    class HeldSink(StreamSink):
        @override
        def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
            (folder / f"written-{batchId}").touch()
            while not (folder / "commit").exists():
                time.sleep(0.01)
            super().commit(messages, batchId)

    class HeldSource(OctavoDataSource):
        @classmethod
        def name(cls) -> str:
            return "octavo-held"

        @override
        def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
            options = self._sink_options()
            return HeldSink(options, sink_columns(schema, options), overwrite=overwrite)

    spark.dataSource.register(HeldSource)


def test_a_bookie_killed_between_writing_and_commit_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    register_held(spark, tmp_path)
    with Up(tmp_path / "data") as up:
        up.wait_ready()
        source = write_ledger(up.uri, [b"%d" % i for i in range(120)])
        query = start_stream(spark, up.uri, tmp_path, "killed", str(source), sink="octavo-held")
        try:
            wait_until((tmp_path / "written-0").exists, "the first batch is written")
            written = tagged(up.uri, "killed")
            assert written
            assert with_client(up.uri, lambda client: states(client, written)) == {octavo.LedgerState.CLOSED}
            with pytest.raises(octavo.InvalidArgumentError, match="there is no dataset 'killed'"):
                published(up.uri, "killed")
            name, pid = next(iter(up.pids.items()))
            up.kill_bookie(name)
            wait_until(lambda: not is_running(pid), "the bookie is dead")
            (tmp_path / "commit").touch()
            assert query.awaitTermination(240)
        finally:
            (tmp_path / "commit").touch()
            query.stop()
        ledger_ids = {ledger.ledger_id for ledger in published(up.uri, "killed")}
        assert ledger_ids > written, "what was written before is what is published, and more batches came"
        assert sorted(values(spark, up.uri, "killed")) == list(range(120))
        assert tagged(up.uri, "killed") == ledger_ids


async def states(client: octavo.Client, ledger_ids: Iterable[int]) -> set[octavo.LedgerState]:
    return {(await client.ledger_metadata(ledger_id)).state for ledger_id in ledger_ids}
