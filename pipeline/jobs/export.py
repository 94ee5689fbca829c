"""The jobs ``export`` and ``ingest``: ledgers to Parquet and back, and text, JSON lines or Parquet into ledgers.

What is exported and ingested again has the same entries in the same order, byte for byte: each ledger becomes one
ledger again, which notes the id it had as its key.
"""

import enum
from dataclasses import dataclass

from octavo.pipeline import FORMAT_NAME, register
from octavo.pipeline.jobs.common import check_one_of, cluster_options, entries_frame
from octavo.pipeline.options import ClusterOptions, check_dataset_name
from octavo.protocol.errors import InvalidArgumentError
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F


@dataclass(frozen=True, slots=True)
class Transferred:
    """What was copied."""

    entries: int
    payload_bytes: int


class InputFormat(enum.StrEnum):
    """What is ingested."""

    TEXT = "text"
    """A line (its bytes up to and without ``\\n``) is an entry."""
    JSON_LINES = "jsonl"
    """A line is an entry, and must be JSON; or one field of it is."""
    PARQUET = "parquet"
    """The column ``value`` (binary or string) is the entry; with ``ledger_id`` and ``entry_id`` beside it, as exported,
    each ledger becomes one ledger."""


@dataclass(frozen=True, slots=True)
class Timestamps:
    """Where a time stands in an entry: the first group of ``pattern`` (a Java regular expression), in ``form`` (Spark's
    pattern of date and time; None: ISO 8601)."""

    pattern: str
    form: str | None = None

    def column(self, value: Column) -> Column:
        """The time, NULL where there is none."""
        text = F.regexp_extract(value.cast("string"), self.pattern, 1)
        return F.try_to_timestamp(text) if self.form is None else F.try_to_timestamp(text, F.lit(self.form))


def export(
    spark: SparkSession,
    cluster: ClusterOptions,
    path: str,
    *,
    ledgers: str | None = None,
    dataset: str | None = None,
    timestamps: Timestamps | None = None,
    overwrite: bool = False,
    fail_on_data_loss: bool = True,
) -> Transferred:
    """Write the entries of ledgers or a dataset to Parquet at ``path``, a folder for each ledger, rows in order.

    ``timestamps`` adds a column ``time``. Raises :class:`InvalidArgumentError`.
    """
    check_one_of("ledgers and dataset", ledgers, dataset)
    frame = entries_frame(
        spark, cluster, ledgers=ledgers, dataset=dataset, failOnDataLoss=str(fail_on_data_loss).lower()
    )
    if timestamps is not None:
        frame = frame.withColumn("time", timestamps.column(F.col("value")))
    frame, observed = _observed(frame, "export")
    frame.write.mode("overwrite" if overwrite else "errorifexists").partitionBy("ledger_id").parquet(path)
    return _transferred(observed)


def ingest(
    spark: SparkSession,
    cluster: ClusterOptions,
    path: str,
    dataset: str,
    *,
    input_format: InputFormat,
    field: str | None = None,
    overwrite: bool = False,
    sink_options: dict[str, str] | None = None,
) -> Transferred:
    """Write the rows at ``path`` into ledgers that are published as ``dataset``, one entry per row.

    ``field``: of JSON, the field whose text is the entry; of Parquet, the column (default ``value``). ``sink_options``
    are further ones of the sink. Raises :class:`InvalidArgumentError`.
    """
    check_dataset_name(dataset)
    register(spark)
    frame, more = _rows(spark, path, input_format, field)
    frame, observed = _observed(frame, "ingest")
    writer = frame.write.format(FORMAT_NAME).mode("overwrite" if overwrite else "append")
    writer.options(**cluster_options(cluster), dataset=dataset, **more, **(sink_options or {})).save()
    return _transferred(observed)


def _rows(
    spark: SparkSession, path: str, input_format: InputFormat, field: str | None
) -> tuple[DataFrame, dict[str, str]]:
    """Rows of ``value`` (and ``key``), and the options of the sink that go with them."""
    if input_format is InputFormat.PARQUET:
        return _parquet_rows(spark.read.parquet(path), field or "value")
    if input_format is InputFormat.TEXT and field is not None:
        raise InvalidArgumentError("a field can be chosen of JSON lines or Parquet; a line of text has none")
    # Without the separator Spark would take a carriage return for the end of a line, too.
    lines = spark.read.option("lineSep", "\n").text(path)
    if input_format is InputFormat.TEXT:
        return lines.select(F.col("value").cast("binary").alias("value")), {}
    parsed = F.try_parse_json("value")
    whole = F.col("value") if field is None else F.get_json_object("value", f"$['{field}']")
    what = "is not JSON" if field is None else f"is not JSON with a field {field}"
    problem = F.concat(F.lit("a line "), F.lit(what), F.lit(": "), F.substring("value", 1, 200))
    checked = F.when(parsed.isNull() | whole.isNull(), F.raise_error(problem)).otherwise(whole)
    return lines.select(checked.cast("binary").alias("value")), {}


def _parquet_rows(frame: DataFrame, column: str) -> tuple[DataFrame, dict[str, str]]:
    if column not in frame.columns:
        raise InvalidArgumentError(f"there is no column {column}; there are {', '.join(frame.columns)}")
    value = F.col(column).alias("value")
    if {"ledger_id", "entry_id"} <= set(frame.columns):
        ordered = frame.repartition("ledger_id").sortWithinPartitions("ledger_id", "entry_id")
        # Many ledgers may meet in one task.
        return ordered.select(value, F.col("ledger_id").cast("string").alias("key")), {"maxKeysPerTask": "10000"}
    return frame.select(value), {}


def _observed(frame: DataFrame, name: str) -> tuple[DataFrame, Observation]:
    """The frame, and what will have been seen of it once it is written."""
    observed = Observation(name)
    length = F.coalesce(F.sum(F.octet_length("value")), F.lit(0)).alias("payload_bytes")
    return frame.observe(observed, F.count("*").alias("entries"), length), observed


def _transferred(observed: Observation) -> Transferred:
    return Transferred(observed.get["entries"], observed.get["payload_bytes"])
