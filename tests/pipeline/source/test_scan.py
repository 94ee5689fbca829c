"""Ledgers as a DataFrame: every entry once, whatever is open, gone, damaged or killed meanwhile."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from support.clusters.secrets import write_secret
from support.commands.processes import Up, is_running
from support.spark import bookie_ids, collected, rows_of, scan, with_client, write_ledger
from support.waiting import WAIT_SECONDS, wait_until

import octavo

NASTY = [b"", b"\x00", b"line\n", bytes(range(256)), b"\xff\xfe", b"x" * 100_000]


@pytest.fixture(params=["interpreted", "compiled"])
def either_way(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    """Queries as other tests run them, and compiled to Java as they are for users."""
    settings = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "CODEGEN_ONLY"}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items() if request.param == "compiled" else ():
        spark.conf.set(name, value)
    yield
    for name, earlier in before.items():
        spark.conf.set(name, str(earlier))


@pytest.mark.usefixtures("either_way")
def test_every_entry_is_one_row_with_what_was_sealed(spark: SparkSession, cluster: Up) -> None:
    ledger_id = write_ledger(cluster.uri, NASTY)
    frame = scan(spark, cluster.uri, ledgers=ledger_id)
    assert frame.schema.simpleString() == (
        "struct<ledger_id:bigint,entry_id:bigint,value:binary,length:bigint,last_add_confirmed:bigint>"
    )
    rows = sorted(frame.collect(), key=lambda row: row.entry_id)
    assert [(row.ledger_id, row.entry_id, bytes(row.value)) for row in rows] == rows_of(ledger_id, NASTY)
    assert [row.length for row in rows] == [sum(map(len, NASTY[: i + 1])) for i in range(len(NASTY))]
    assert rows[0].last_add_confirmed is None
    plan = frame.where("length >= 0")._jdf.queryExecution().executedPlan()
    assert ("*(1)" in plan.toString()) == (spark.conf.get("spark.sql.codegen.wholeStage") == "true")


def test_selections_partitions_and_bounds(spark: SparkSession, cluster: Up) -> None:
    tag = {"app": b"selections", "kind": b"odd"}
    payloads = {
        write_ledger(cluster.uri, [b"%d/%d" % (n, i) for i in range(3000)], custom_metadata={**tag, "n": b"%d" % n}): n
        for n in range(3)
    }
    first, _, last = ledger_ids = list(payloads)
    write_ledger(cluster.uri, [], custom_metadata=tag)
    frame = scan(spark, cluster.uri, ledgers="app=sel*&kind=odd", minPartitions=5, startingEntry=10, endingEntry=2989)
    counts = frame.groupBy("ledger_id").agg(F.count("*"), F.min("entry_id"), F.max("entry_id")).collect()
    assert sorted(map(tuple, counts)) == [(i, 2980, 10, 2989) for i in ledger_ids]
    assert frame.select(F.spark_partition_id()).distinct().count() >= 5
    by_ledger = scan(
        spark,
        cluster.uri,
        ledgers=f"{first}-{last}",
        startingEntry=f'{{"{first}": 2998}}',
        endingEntry=f'{{"{last}": 0}}',
    )
    counts = by_ledger.groupBy("ledger_id").count().collect()
    assert sorted(map(tuple, counts)) == list(zip(ledger_ids, (2, 3000, 1), strict=True))
    assert scan(spark, cluster.uri, ledgers="app=nothing").count() == 0


def test_columns_on_request_and_pushed_filters(spark: SparkSession, cluster: Up) -> None:
    payloads = [b"%d" % i for i in range(1000)]
    ledger_id, other_id = write_ledger(cluster.uri, payloads), write_ledger(cluster.uri, [b"other"] * 30)
    with_source = scan(spark, cluster.uri, ledgers=ledger_id, includeSource="true")
    rows = with_source.select("bookie", "fragment").distinct().collect()
    assert {row.fragment for row in rows} == {0}
    assert {row.bookie for row in rows} <= {bookie["bookie_id"] for bookie in cluster.run("bookies", "--json").json}
    narrow = spark.read.format("octavo").schema("entry_id long, value binary").option("metadata", cluster.uri)
    narrow_frame = narrow.option("ledgers", str(ledger_id)).load()
    assert narrow_frame.where("entry_id = 7").collect() == [(7, b"7")]
    with pytest.raises(PySparkException, match="no column wrong of type string"):
        narrow.schema("wrong string").option("ledgers", str(ledger_id)).load().count()
    for enabled in ("true", "false"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
        try:
            # Not "all": others' tests leave ledgers with passwords in this cluster.
            frame = scan(spark, cluster.uri, ledgers=f"{other_id},{ledger_id}").where(f"ledger_id = {ledger_id}")
            few = frame.where("entry_id >= 10 and entry_id < 20 and entry_id not in (12, 13) and length > 0")
            assert collected(few) == [
                row for row in rows_of(ledger_id, payloads) if row[1] in {*range(10, 20)} - {12, 13}
            ]
            plan = few._jdf.queryExecution().optimizedPlan().toString()
            assert ("entry_id#" in plan.split("RelationV2")[0]) == (enabled == "false" or "IN" in plan), plan
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_an_open_ledger_is_read_up_to_its_confirmed_end_without_being_fenced(spark: SparkSession, cluster: Up) -> None:
    async def scenario(client: octavo.Client) -> None:
        ledger = await client.create_ledger()
        await ledger.add_many([b"%d" % i for i in range(500)])
        # The first look brings the confirmed end at least to the last but one frame; wait for all of it.
        async with client.open_ledger(ledger.id, recover=False) as reader:
            await reader.wait_last_add_confirmed(499, timeout=WAIT_SECONDS)
        frame = scan(spark, cluster.uri, ledgers=ledger.id)
        planned = await asyncio.to_thread(frame.rdd.getNumPartitions)
        assert planned == 1
        await ledger.add_many([b"later"] * 10)
        rows = await asyncio.to_thread(collected, frame)
        assert rows == rows_of(ledger.id, [b"%d" % i for i in range(500)]), "the end is that of the plan"
        await ledger.add(b"not fenced")
        await ledger.close()
        assert await asyncio.to_thread(scan(spark, cluster.uri, ledgers=ledger.id).count) == 511

    with_client(cluster.uri, scenario)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give the option ledgers: ids and ranges"),
        ({"ledgers": "x"}, "'x' selects nothing"),
        ({"ledgers": "9-3"}, "'9-3' is not a range of ids"),
        ({"ledgers": "all", "leders": "1"}, "unknown option 'leders'"),
        ({"ledgers": "all", "minPartitions": "0"}, "option minPartitions must be an integer from 1"),
        ({"ledgers": "all", "failOnDataLoss": "maybe"}, "option failOnDataLoss must be true or false"),
        ({"ledgers": "all", "startingEntry": "[1]"}, "option startingEntry must be an entry id"),
        ({"ledgers": "all", "client.read_ahead_bytes": "0"}, "option read_ahead_bytes must be a number"),
        ({"ledgers": "all", "client.nonsense": "0"}, "unknown option 'nonsense'"),
        ({"ledgers": "all", "password": "hunter2"}, "there is no option password"),
    ],
)
def test_a_wrong_option_is_one_clear_error_on_the_driver(
    spark: SparkSession, cluster: Up, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        scan(spark, cluster.uri, **options)
    assert message in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_password_comes_from_a_file_and_shows_nowhere(spark: SparkSession, cluster: Up, tmp_path: Path) -> None:
    ledger_id = write_ledger(cluster.uri, [b"a", b"b"], password=b"hunter2", digest=octavo.Digest.HMAC_SHA256)
    file = tmp_path / "password"
    write_secret(file, b"hunter2\n")
    frame = scan(spark, cluster.uri, ledgers=ledger_id, passwordFile=file)
    assert collected(frame) == rows_of(ledger_id, [b"a", b"b"])
    assert "hunter2" not in frame._jdf.queryExecution().toString()
    with pytest.raises(PySparkException, match=f"ledger {ledger_id} needs its password"):
        scan(spark, cluster.uri, ledgers=ledger_id).count()
    with pytest.raises(PySparkException, match="the file must exist on every machine"):
        scan(spark, cluster.uri, ledgers=ledger_id, passwordFile=tmp_path / "missing").count()


def test_a_lost_ledger_is_an_error_or_rows_without_a_value(spark: SparkSession, cluster: Up) -> None:
    ledger_id = write_ledger(cluster.uri, [b"%d" % i for i in range(300)])
    frames = {
        fail: scan(spark, cluster.uri, ledgers=ledger_id, failOnDataLoss=fail, minPartitions=3)
        for fail in ("true", "false")
    }
    for frame in frames.values():
        frame.rdd.getNumPartitions()  # planned while the ledger is there
    with_client(cluster.uri, lambda client: client.delete_ledger(ledger_id))
    with pytest.raises(PySparkException, match=rf"DataLossError: ledger {ledger_id} entry \d+ cannot be read"):
        collected(frames["true"])
    rows = frames["false"].collect()
    assert sorted((row.ledger_id, row.entry_id) for row in rows) == [(ledger_id, i) for i in range(300)]
    assert {(row.value, row.length, row.last_add_confirmed) for row in rows} == {(None, None, None)}
    with pytest.raises(PySparkException, match=f"ledger {ledger_id} does not exist"):
        scan(spark, cluster.uri, ledgers=ledger_id).count()


def test_a_limit_and_a_cancelled_query_leave_no_connection_behind(spark: SparkSession, cluster: Up) -> None:
    ledger_id = write_ledger(cluster.uri, [b"x" * 2000] * 40_000)
    frame = scan(spark, cluster.uri, ledgers=ledger_id, minPartitions=2)
    assert len(frame.limit(5).collect()) == 5

    def run_slowly() -> None:
        spark.sparkContext.setJobGroup("cancelled", "cancelled", interruptOnCancel=True)
        with pytest.raises(Exception, match=r"(?i)cancel"):
            frame.crossJoin(spark.range(1_000_000)).select(F.sum(F.length("value") + F.col("id"))).collect()

    thread = threading.Thread(target=run_slowly)
    thread.start()
    tracker = spark.sparkContext.statusTracker()
    wait_until(lambda: bool(tracker.getActiveStageIds()), "the query runs")
    spark.sparkContext.cancelAllJobs()
    thread.join()
    wait_until(lambda: connections(cluster) == 0, "every connection to a bookie is closed")


def connections(cluster: Up) -> int:
    """Established connections to the bookies of the cluster, without those of other bookies, which repair keeps."""
    own: set[str] = set()
    for pid in cluster.pids.values():
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                own.add(os.readlink(descriptor))
    ports = {int(bookie["address"].rpartition(":")[2]) for bookie in cluster.run("bookies", "--json").json}
    with open("/proc/net/tcp") as table:
        lines = [line.split() for line in table][1:]
    return sum(
        int(line[2].rpartition(":")[2], 16) in ports and line[3] == "01" and f"socket:[{line[9]}]" not in own
        for line in lines
    )


def test_a_bookie_killed_while_it_is_read_from_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    with Up(tmp_path / "data") as up:
        up.wait_ready()
        ledger_id = write_ledger(up.uri, [b"%09d" % i * 250 for i in range(20_000)])
        names = {bookie_id: name for name, bookie_id in bookie_ids(up).items()}
        begun, killed = tmp_path / "begun", tmp_path / "killed"
        given_up = threading.Event()

        def hold(rows: Iterable[Row]) -> Iterator[tuple[int, bool, str]]:
            """The rows of a task, which at its hundredth row tells who gave it, and goes on once that bookie is dead:
            far more of it is unread then than is buffered anywhere."""
            for index, row in enumerate(rows):
                if index == 100:
                    begun.write_text(row.bookie)
                    deadline = time.monotonic() + WAIT_SECONDS
                    while not killed.exists():
                        assert time.monotonic() < deadline, "nobody killed the bookie"
                        time.sleep(0.01)
                yield row.entry_id, bytes(row.value) == b"%09d" % row.entry_id * 250, row.bookie

        def kill() -> None:
            try:
                wait_until(
                    lambda: given_up.is_set() or (begun.exists() and bool(begun.read_text())), "a task is in the middle"
                )
                if given_up.is_set():
                    return
                name = names[begun.read_text()]
                pid = up.pids[name]
                up.kill_bookie(name)
                wait_until(lambda: not is_running(pid), "the bookie is dead")
            finally:
                killed.touch()

        # One task, so that what it holds and what is under way to it (record batches, read-ahead, sockets) is little
        # beside what is left to read.
        options = {"client.read_ahead_bytes": 500_000, "includeSource": "true"}
        frame = scan(spark, up.uri, ledgers=ledger_id, **options)
        with ThreadPoolExecutor(1) as pool:
            killing = pool.submit(kill)
            try:
                rows = frame.rdd.mapPartitions(hold).collect()
            finally:
                given_up.set()
            killing.result()
        # Not one comparison: pytest would take minutes to word how two lists of that length differ.
        assert len(rows) == 20_000
        wrong = [(place, row) for place, row in enumerate(rows) if row[:2] != (place, True)]
        assert not wrong[:1], "each once, in order, with its own bytes"
        assert {row[2] for row in rows} > {begun.read_text()}, "others stood in"
