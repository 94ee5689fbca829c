"""Spark's own Kafka source and sink, in batches and streams: ``kafka_spark.py STAGE ADDRESS JARS FOLDER``.

``begin`` writes rows with the sink and reads them with the source: all of them, those from an offset on, and those from
a time on. Then it copies the topic to another one in a stream, with its checkpoint in the folder, until it is killed.
``go-on`` copies what is left, and says what was copied, and does both once more. Each prints lines of JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documents have it

TOPIC, COPY = "of-spark", "of-spark-copied"
COUNT = 300
BATCH_ROWS = 40
"""Of a batch of the stream."""


def session(jars: str) -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .appName("kafka")
        .config("spark.jars", ",".join(map(str, Path(jars).glob("*.jar"))))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "700m")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def numbers(frame: Any) -> list[int]:
    return sorted(int(row.value) for row in frame.collect())


def batch(spark: SparkSession, address: str) -> None:
    rows = spark.range(COUNT).select(
        (F.col("id") % 7).cast("string").alias("key"),
        F.col("id").cast("string").alias("value"),
        F.array(F.struct(F.lit("place").alias("key"), F.lit(b"cellar").alias("value"))).alias("headers"),
    )
    rows.write.format("kafka").option("kafka.bootstrap.servers", address).option("topic", TOPIC).save()

    def read(**options: str) -> Any:
        asked = {"kafka.bootstrap.servers": address, "subscribe": TOPIC, "includeHeaders": "true", **options}
        return spark.read.format("kafka").options(**asked).load()

    whole = read(startingOffsets="earliest", endingOffsets="latest")
    (key, place) = whole.selectExpr("CAST(key AS STRING)", "CAST(headers[0].value AS STRING)").first()
    per_partition = {row.partition: row["count"] for row in whole.groupBy("partition").count().collect()}
    from_ten = read(startingOffsets=json.dumps({TOPIC: dict.fromkeys(map(str, per_partition), 10)}))
    early = read(startingTimestamp="1767225600000")
    late = read(startingTimestamp="4102444800000", startingOffsetsByTimestampStrategy="latest")
    say(
        {
            "numbers": numbers(whole), "has_key": key is not None, "place": place, "partitions": len(per_partition),
            "from_ten": from_ten.count(), "early": early.count(), "late": late.count(),
        }
    )  # fmt: skip


def copy(spark: SparkSession, address: str, folder: str, *, all_at_once: bool) -> None:
    source = {
        "kafka.bootstrap.servers": address, "subscribe": TOPIC, "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(BATCH_ROWS),
    }  # fmt: skip
    copied = spark.readStream.format("kafka").options(**source).load().select("key", "value").writeStream
    copied = copied.format("kafka").option("kafka.bootstrap.servers", address).option("topic", COPY)
    copied = copied.option("checkpointLocation", folder)
    copied = copied.trigger(availableNow=True) if all_at_once else copied.trigger(processingTime="1 second")
    query = copied.start()
    while query.isActive and not query.awaitTermination(1):
        progress = query.lastProgress
        if progress is not None:
            say({"batch": progress["batchId"]})
    error = query.exception()
    if error is not None:
        raise error


def copied(spark: SparkSession, address: str) -> None:
    asked = {"kafka.bootstrap.servers": address, "subscribe": COPY}
    say({"copied": numbers(spark.read.format("kafka").options(**asked).load())})


def main(stage: str, address: str, jars: str, folder: str) -> None:
    spark = session(jars)
    if stage == "begin":
        batch(spark, address)
        copy(spark, address, folder, all_at_once=False)
    for _ in range(2):
        copy(spark, address, folder, all_at_once=True)
        copied(spark, address)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
