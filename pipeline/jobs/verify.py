"""The job ``verify``: checks that every bookie holds every entry that it should hold, with the same bytes: of closed
ledgers, and of all fragments of streams that have an end.

Each replica is read from its own bookie. Problems are reported by ledger, fragment and bookie, and by entry. What is
selected and not looked at is counted with the reason (rule X1).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from octavo.pipeline.base.bridge import LoopThread
from octavo.pipeline.base.cluster import connected
from octavo.pipeline.base.errors import brief_errors
from octavo.pipeline.base.options import ClusterOptions, SourceOptions, parse_source_options
from octavo.pipeline.base.partitions import RangesPartition, ranges_of
from octavo.pipeline.base.paths import settled
from octavo.pipeline.base.planning import plan_partitions
from octavo.pipeline.jobs.common import cluster_options
from octavo.pipeline.jobs.coverage import NotCovered, Why, coverage_of
from octavo.pipeline.jobs.replicas import Problem
from octavo.pipeline.jobs.verify_read import VerifyTask, verify_in_worker
from octavo.pipeline.source.discovery import candidates, published_members
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

FORMAT_NAME = "octavo-replicas"

_COUNTS = tuple(problem.replace("-", "_") for problem in Problem)

_SCHEMA = ", ".join(
    [
        "ledger_id long, stream boolean, fragment long, bookie string, entries long, sealed_bytes long",
        "macs_checked boolean, not_covered string",
        *(f"{name} long" for name in _COUNTS),
        "findings array<struct<first_entry: long, last_entry: long, problem: string>>",
    ]
)


class ReplicasDataSource(DataSource):
    """``spark.read.format("octavo-replicas")``: one row for each bookie and verified range of entries, and one without
    a bookie for each ledger or stream of which something is not verified. Ids of streams are positions."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT_NAME

    @brief_errors()
    def schema(self) -> str:
        """The columns: counts of problems, and the entries that have them."""
        parse_source_options(self.options)
        return _SCHEMA

    @brief_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        options = parse_source_options(self.options)
        return _ReplicasReader(replace(options, cluster=settled(options.cluster)))


class NotCoveredPartition(InputPartition):
    """A part that is not verified; its task reads nothing."""

    def __init__(self, not_covered: tuple[NotCovered, ...]) -> None:
        super().__init__(not_covered)


class _ReplicasReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @brief_errors()
    def partitions(self) -> Sequence[InputPartition]:
        with LoopThread("octavo planning") as loop:
            return loop.run(self._plan())

    async def _plan(self) -> list[InputPartition]:
        options = self._options
        members = await published_members(options)
        async with connected(options.cluster) as client:
            ids = await candidates(client, options, members)
            required = options.selection.required if members is None else members
            covered = await coverage_of(client, ids, options.selection, required)
        plan = plan_partitions(
            covered.pieces, target_bytes=options.target_partition_bytes, partitions_min=options.partitions_min
        )
        partitions: list[InputPartition] = [RangesPartition(ranges) for ranges in plan]
        return [*partitions, NotCoveredPartition(tuple(covered.not_covered))]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        if isinstance(partition, NotCoveredPartition):
            for ledger_id, first, why in partition.value:
                is_stream = why is Why.RUNNING_TERM
                yield ledger_id, is_stream, first, None, 0, 0, False, str(why), *(0 for _ in Problem), []
            return
        for report in verify_in_worker(VerifyTask(self._options.cluster, ranges_of(partition))):
            yield (
                report.ledger_id,
                report.is_stream,
                report.fragment,
                report.bookie,
                report.entries,
                report.sealed_bytes,
                report.macs_checked,
                None,
                *(report.problems[problem] for problem in Problem),
                [(first, last, str(problem)) for first, last, problem in report.findings],
            )


@dataclass(frozen=True, slots=True)
class VerifySummary:
    """The totals of the job. ``problems``: problem -> number of replicas of entries that have it."""

    ledgers: int
    """Ledgers, and streams, of which replicas were read."""
    replicas: int
    sealed_bytes: int
    problems: dict[str, int]
    ledgers_with_problems: tuple[int, ...]
    streams: int = 0
    """How many of :attr:`ledgers` are streams."""
    not_covered: dict[str, int] = field(default_factory=dict)
    """Why (:class:`octavo.pipeline.jobs.coverage.Why`) -> ledgers and streams not verified in full."""
    on_one_host: int = 0
    """Fragments of which all bookies, two or more, are on one host: its loss is the loss of every copy (rule M6)."""

    @property
    def sound(self) -> bool:
        """Whether something was looked at, and has no problem."""
        return self.replicas > 0 and not any(self.problems.values())


def verify(
    spark: SparkSession,
    cluster: ClusterOptions,
    *,
    ledgers: str | None = None,
    dataset: str | None = None,
    report: Path | str | None = None,
    partitions_min: int | None = None,
) -> VerifySummary:
    """Verify closed ledgers, and what has an end of streams: those of ``dataset``, those that ``ledgers`` selects
    (default: all), or those in both.

    ``report``: a folder for three Parquet tables, ``replicas`` (a row by ledger, fragment and bookie), ``findings`` (a
    row for each run of entries with a problem) and ``not_covered`` (a row for each ledger and stream of which something
    was not looked at); it must not hold them yet. Raises :class:`InvalidArgumentError`.
    """
    options = cluster_options(cluster) | {"ledgers": ledgers or "all"}
    if dataset is not None:
        options["dataset"] = dataset
    parse_source_options(options)
    frame = replicas_frame(spark, options, partitions_min or spark.sparkContext.defaultParallelism)
    hosts = hosts_of(cluster)
    frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        if report is not None:
            by = ("ledger_id", "fragment", "bookie")
            totals = [F.sum(name).alias(name) for name in ("entries", "sealed_bytes", *_COUNTS)]
            verified = frame.where("bookie is not null")
            grouped = verified.groupBy(*by).agg(
                *totals, F.min("macs_checked").alias("macs_checked"), F.max("stream").alias("stream")
            )
            grouped.coalesce(1).write.parquet(str(Path(str(report)) / "replicas"))
            findings = frame.select(*by, F.explode("findings").alias("finding")).select(*by, "finding.*")
            findings.coalesce(1).write.parquet(str(Path(str(report)) / "findings"))
            left_out = frame.where("bookie is null").select(
                "ledger_id", "stream", F.col("fragment").alias("first_entry"), F.col("not_covered").alias("why")
            )
            left_out.coalesce(1).write.parquet(str(Path(str(report)) / "not_covered"))
        verified_row = F.col("bookie").isNotNull()
        wrong = sum((F.col(name) for name in _COUNTS[1:]), F.col(_COUNTS[0]))
        totals_row = frame.agg(
            F.count_distinct(F.when(verified_row, F.col("ledger_id"))).alias("ledgers"),
            F.count_distinct(F.when(verified_row & F.col("stream"), F.col("ledger_id"))).alias("streams"),
            *(F.count_if(F.col("not_covered") == str(why)).alias(str(why)) for why in Why),
            *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("entries", "sealed_bytes", *_COUNTS)),
            F.array_sort(F.collect_set(F.when(wrong > 0, F.col("ledger_id")))).alias("wrong"),
        ).first()
        on_one_host = fragments_on_one_host(frame, hosts)
    finally:
        frame.unpersist()
    assert totals_row is not None, "an aggregate has a row"
    return VerifySummary(
        totals_row.ledgers,
        totals_row.entries,
        totals_row.sealed_bytes,
        {str(problem): totals_row[name] for problem, name in zip(Problem, _COUNTS, strict=True)},
        tuple(totals_row.wrong),
        totals_row.streams,
        {str(why): totals_row[str(why)] for why in Why if totals_row[str(why)]},
        on_one_host,
    )


def hosts_of(cluster: ClusterOptions) -> dict[str, str]:
    """Bookie -> the host on which it runs, of those bookies that are registered with one."""

    async def look() -> dict[str, str]:
        async with connected(settled(cluster)) as client:
            found = await client.bookies()
        return {one.bookie_id: one.host_id for one in found if one.host_id is not None}

    with LoopThread("octavo hosts") as loop:
        return loop.run(look())


def fragments_on_one_host(frame: DataFrame, hosts: Mapping[str, str]) -> int:
    """The fragments in these rows that have several bookies, all of them on one of ``hosts``."""
    if not hosts:
        return 0
    host_of = F.create_map(*(F.lit(word) for pair in hosts.items() for word in pair))
    # A bookie that is not there is counted as a host of its own.
    host = F.coalesce(F.try_element_at(host_of, F.col("bookie")), F.concat(F.lit("~"), F.col("bookie")))
    fragments = frame.where("bookie is not null").groupBy("ledger_id", "fragment")
    counted = fragments.agg(F.count_distinct("bookie").alias("bookies"), F.count_distinct(host).alias("hosts"))
    return counted.where("bookies > 1 and hosts = 1").count()


def replicas_frame(spark: SparkSession, options: Mapping[str, str], partitions_min: int) -> DataFrame:
    """The rows of :class:`ReplicasDataSource` with these options of the source."""
    spark.dataSource.register(ReplicasDataSource)
    reader = spark.read.format(FORMAT_NAME).option("minPartitions", str(partitions_min))
    return reader.options(**options).load()
