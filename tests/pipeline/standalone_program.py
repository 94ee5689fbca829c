"""What test_standalone submits to a cluster of Spark: runs a job by the script of ``octavo pipeline``, as if that had
been submitted; then reads, writes, and says in which folders executors did it. Java is started once for both.

``standalone_program.py URI LEDGERS DATASET SCRIPT``
"""

import json
import os
import runpy
import sys
from collections.abc import Iterable

from octavo.pipeline import register
from pyspark.sql import Row, SparkSession


def rows_here(rows: Iterable[Row]) -> list[tuple[str, int]]:
    """The working directory, which is that of the executor, and the rows of this task."""
    return [(os.getcwd(), sum(1 for _ in rows))]


def run_script(script: str, *arguments: str) -> None:
    """Run a script to its end; it stops its session. Its failure is that of this program."""
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    assert SparkSession.getActiveSession() is None


def main() -> None:
    """Run the program."""
    uri, ledgers, dataset, script = sys.argv[1:]
    run_script(script, "verify", "--metadata", uri, "--ledgers", ledgers, "--json")
    spark = SparkSession.builder.appName("standalone").getOrCreate()
    register(spark)
    reader = spark.read.format("octavo").option("metadata", uri).option("ledgers", ledgers)
    frame = reader.option("minPartitions", "8").load()
    told = frame.rdd.mapPartitions(rows_here).collect()
    sink = frame.select("value").write.format("octavo").mode("append").option("metadata", uri)
    sink.option("dataset", dataset).save()
    result = {"rows": sum(count for _, count in told), "executors": sorted({folder for folder, _ in told})}
    sys.stdout.write(json.dumps(result) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
