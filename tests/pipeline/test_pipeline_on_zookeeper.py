"""Spark on a cluster whose metadata are in a real ZooKeeper: the way of a row there and back, batch and streaming."""

from pathlib import Path

from pyspark.sql import SparkSession
from support.commands.processes import Up
from support.metadata.zookeeper import new_cluster_uri
from support.spark import collected, ledger_payloads, rows_of, scan, started, write_ledger


def test_rows_go_through_datasets_whose_lists_are_in_zookeeper(spark: SparkSession, tmp_path: Path) -> None:
    payloads = [b"%d" % number for number in range(300)]
    with Up(tmp_path / "data", "--metadata", new_cluster_uri()) as up:
        up.wait_ready()
        assert up.uri.startswith("zk://")
        source = write_ledger(up.uri, payloads, custom_metadata={"app": b"orders"})
        frame = scan(spark, up.uri, ledgers="app=orders", minPartitions=2)
        assert collected(frame) == rows_of(source, payloads)
        for mode in ("append", "overwrite"):
            sink = frame.select("value").coalesce(1).write.format("octavo").mode(mode)
            sink.option("metadata", up.uri).option("dataset", "copy").save()
        stream = spark.readStream.format("octavo").option("metadata", up.uri).option("ledgers", "app=orders")
        writer = stream.option("maxEntriesPerTrigger", 200).load().select("value").writeStream.format("octavo")
        writer = writer.option("metadata", up.uri).option("dataset", "copy")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query = started(writer.start)
        assert query.awaitTermination(240)
        rows = scan(spark, up.uri, dataset="copy").select("ledger_id").distinct().orderBy("ledger_id").collect()
        copies = [ledger_payloads(up.uri, row.ledger_id) for row in rows]
        assert copies == [payloads, payloads[:200], payloads[200:]]
        cleaned = up.run("pipeline", "clean", "--older-than", "0", "--json").json
        assert cleaned == {
            "datasets": [{"dataset": "copy", "ledger_ids": [], "segments": 0}],
            "log_writes": {"ledger_ids": [], "writes": 0},
        }
