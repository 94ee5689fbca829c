"""What test_standalone submits to a cluster of Spark: reads, writes, and says in which folders executors did it.

``standalone_program.py URI LEDGERS DATASET``
"""

import json
import os
import sys
from collections.abc import Iterable

from octavo.pipeline import register
from pyspark.sql import Row, SparkSession


def rows_here(rows: Iterable[Row]) -> list[tuple[str, int]]:
    """The working directory, which is that of the executor, and the rows of this task."""
    return [(os.getcwd(), sum(1 for _ in rows))]


def main() -> None:
    """Run the program."""
    uri, ledgers, dataset = sys.argv[1:]
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
