"""What test_log_sink_kills kills: a query that adds the entries of ledgers to a log, until it has added all.

``log_sink_program.py URI LEDGERS LOG FOLDER``
"""

import sys
from pathlib import Path

from support.spark import start_spark, started


def main() -> None:
    """Run the query to its end."""
    uri, ledgers, log, folder = sys.argv[1:]
    spark = start_spark(Path(folder))
    source = spark.readStream.format("octavo").option("metadata", uri).option("ledgers", ledgers)
    # Partitions of a shuffle have no order of their own: a batch that is computed anew may have another one.
    frame = source.option("maxEntriesPerTrigger", "20000").load().select("value").repartition(3)
    writer = frame.writeStream.format("octavo").option("metadata", uri).option("log", log)
    writer = writer.option("client.lease_seconds", "2").option("checkpointLocation", f"{folder}/checkpoint")
    query = started(writer.trigger(availableNow=True).start)
    assert query.awaitTermination(240)
    spark.stop()


if __name__ == "__main__":
    main()
