"""Counts the entries of a log by their first word and by minute, with Spark, and goes on where it was.

    spark_counts.py URI LOG FOLDER         prints the counts of everything so far

Run it again when the log has grown: the checkpoint in FOLDER holds the position that was reached and the counts, so
each entry counts once, whatever leaders, rolls and truncation did to the log meanwhile. Needs
Octavo with its extra `spark`, and Java 17.
"""

import sys

from octavo.pipeline import register
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def count(spark: SparkSession, uri: str, name: str, folder: str) -> DataFrame:
    """Count what is new, and give all counts: minute, word, entries."""
    register(spark)
    entries = spark.readStream.format("octavo").option("metadata", uri).option("log", name).load()
    words = entries.select(
        F.date_trunc("minute", "timestamp").alias("minute"), F.split_part("value", F.lit(" "), F.lit(1)).alias("word")
    )
    counts = words.groupBy("minute", "word").agg(F.count("*").alias("entries"))

    def write(batch: DataFrame, _number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{folder}/counts")

    query = (
        counts.writeStream.outputMode("complete")
        .foreachBatch(write)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)  # until the log's present end; without it the query follows the log
        .start()
    )
    query.awaitTermination()
    return spark.read.parquet(f"{folder}/counts")


if __name__ == "__main__":
    session = SparkSession.builder.appName("counts").getOrCreate()
    count(session, *sys.argv[1:]).orderBy("minute", "word").show(truncate=False)
