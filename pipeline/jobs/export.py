"""The jobs ``export`` (ledgers or a log to Parquet) and ``ingest`` (text, JSON lines or Parquet into ledgers).

Exporting and ingesting again gives the same entries in the same order, byte for byte. Each exported ledger becomes one
ledger, whose key is the id of the exported ledger.
"""

import enum
from dataclasses import dataclass, replace

from octavo.pipeline import FORMAT_NAME, register
from octavo.pipeline.base.options import ClusterOptions, check_dataset_name
from octavo.pipeline.jobs.common import check_one_of, cluster_options, entries_frame, streams_left_out
from octavo.protocol.errors import InvalidArgumentError
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F


@dataclass(frozen=True, slots=True)
class Transferred:
    """Amount of data copied."""

    entries: int
    payload_bytes: int
    streams_left_out: int = 0
    """Streams that were selected with ledgers: they are exported by the names of their logs (rule X1)."""


class InputFormat(enum.StrEnum):
    """Formats of ingested files."""

    TEXT = "text"
    """Each line, without ``\\n``, is an entry."""
    JSON_LINES = "jsonl"
    """Each line must be JSON; the line or one of its fields is an entry."""
    PARQUET = "parquet"
    """The column ``value`` (binary or string) is the entry. If there are columns ``ledger_id`` and ``entry_id``, as in
    an export, each ledger becomes one ledger."""


@dataclass(frozen=True, slots=True)
class Timestamps:
    """How to find the time in an entry: the first group of ``pattern`` (a Java regular expression), in the format
    ``form`` (a datetime pattern of Spark; None: ISO 8601)."""

    pattern: str
    form: str | None = None

    def column(self, value: Column) -> Column:
        """The time in ``value``; NULL if there is none."""
        text = F.regexp_extract(value.cast("string"), self.pattern, 1)
        return F.try_to_timestamp(text) if self.form is None else F.try_to_timestamp(text, F.lit(self.form))


def export(
    spark: SparkSession,
    cluster: ClusterOptions,
    path: str,
    *,
    ledgers: str | None = None,
    dataset: str | None = None,
    log: str | None = None,
    timestamps: Timestamps | None = None,
    overwrite: bool = False,
    fail_on_data_loss: bool = True,
) -> Transferred:
    """Write the entries of ledgers, a dataset or a log to Parquet at ``path``, one folder for each ledger, rows in
    order.

    Rows of a log also have their ``position`` and ``timestamp``. ``timestamps`` adds a column ``time``. Raises
    :class:`InvalidArgumentError`.
    """
    check_one_of("ledgers, dataset and log", ledgers, dataset, log)
    frame = entries_frame(
        spark, cluster, ledgers=ledgers, dataset=dataset, log=log, failOnDataLoss=str(fail_on_data_loss).lower()
    )
    if timestamps is not None:
        frame = frame.withColumn("time", timestamps.column(F.col("value")))
    frame, observed = _observed(frame, "export")
    frame.write.mode("overwrite" if overwrite else "errorifexists").partitionBy("ledger_id").parquet(path)
    return replace(_transferred(observed), streams_left_out=streams_left_out(cluster, ledgers))


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

    ``field``: the JSON field, or the Parquet column (default ``value``), that is the entry. ``sink_options``:
    additional options of the sink. Raises :class:`InvalidArgumentError`.
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
    """Rows of ``value`` (and ``key``), and the sink options that they need."""
    if input_format is InputFormat.PARQUET:
        return _parquet_rows(spark.read.parquet(path), field or "value")
    if input_format is InputFormat.TEXT and field is not None:
        raise InvalidArgumentError("a line of text has no fields; a field can be given only for JSON lines and Parquet")
    # Without this option Spark would also end a line at a carriage return.
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
        raise InvalidArgumentError(f"no column {column}; the columns are {', '.join(frame.columns)}")
    value = F.col(column).alias("value")
    if {"ledger_id", "entry_id"} <= set(frame.columns):
        ordered = frame.repartition("ledger_id").sortWithinPartitions("ledger_id", "entry_id")
        # One task may get the rows of many ledgers.
        return ordered.select(value, F.col("ledger_id").cast("string").alias("key")), {"maxKeysPerTask": "10000"}
    return frame.select(value), {}


def _observed(frame: DataFrame, name: str) -> tuple[DataFrame, Observation]:
    """The frame, and an observation that holds its totals once it has been written."""
    observed = Observation(name)
    length = F.coalesce(F.sum(F.octet_length("value")), F.lit(0)).alias("payload_bytes")
    return frame.observe(observed, F.count("*").alias("entries"), length), observed


def _transferred(observed: Observation) -> Transferred:
    return Transferred(observed.get["entries"], observed.get["payload_bytes"])
