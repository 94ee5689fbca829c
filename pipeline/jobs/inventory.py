"""The job ``inventory``: counts ledgers, entries and bytes by bookie, state, age and custom metadata, and measures how
evenly the bookies are filled.

It reads only metadata, of ledgers and of streams. A bookie's share of a fragment is counted as Qw / E of the fragment,
which is nearly exact because of striping. The last fragment of an open ledger, and of a stream that is being written,
has no end in the metadata: it is not counted, and the result says of how many it is not (rule X1).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from octavo.pipeline.base.options import ClusterOptions
from octavo.pipeline.jobs.common import cluster_options
from octavo.pipeline.jobs.plots import BarChart, check_plot_path, write_plot
from octavo.pipeline.tables.ledger_table import FORMAT_NAME, LedgerTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

AGES = (
    ("under an hour", 1 / 24),
    ("under a day", 1),
    ("under a week", 7),
    ("under 30 days", 30),
    ("under a year", 365),
)
"""Names and upper bounds, in days, of the age groups."""

OLDEST = "a year and more"

VALUES_PER_KEY_MAX = 20
"""Largest number of groups by custom metadata in an inventory."""


@dataclass(frozen=True, slots=True)
class Share:
    """One line of an inventory. ``length`` in payload bytes; of bookies it counts every copy."""

    name: str
    ledgers: int
    entries: int
    length: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """The result of the job."""

    total: Share
    by_bookie: tuple[Share, ...]
    by_state: tuple[Share, ...]
    by_age: tuple[Share, ...]
    by_custom_metadata: tuple[Share, ...]
    """Named ``key=value``."""
    by_kind: tuple[Share, ...]
    """Ledgers and streams."""
    not_counted: dict[str, int]
    """Kind -> number of ledgers or streams whose last fragment has no end yet and is not counted."""
    imbalance: float
    """Bytes of the fullest bookie divided by the mean of all bookies that hold data; 1.0: even."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def ledger_table(spark: SparkSession, cluster: ClusterOptions, ledgers: str = "all") -> DataFrame:
    """The selected ledgers as a table (:mod:`octavo.pipeline.tables.ledger_table`)."""
    spark.dataSource.register(LedgerTable)
    return spark.read.format(FORMAT_NAME).option("ledgers", ledgers).options(**cluster_options(cluster)).load()


def inventory(
    spark: SparkSession, cluster: ClusterOptions, *, ledgers: str = "all", plot: Path | None = None
) -> Inventory:
    """Count the selected ledgers. ``plot``: a file (.png, .svg, .html) to draw the result into.

    Raises :class:`InvalidArgumentError` for another kind of file.
    """
    if plot is not None:
        check_plot_path(plot)
    table = ledger_table(spark, cluster, ledgers).persist()
    try:
        result = _inventory(table)
    finally:
        table.unpersist()
    if plot is not None:
        write_plot(plot, "Inventory of ledgers", _charts(result))
    return result


def _inventory(table: DataFrame) -> Inventory:
    copies = table.select("ledger_id", F.explode("fragments").alias("fragment"))
    share = F.col("fragment.write_quorum") / F.size("fragment.bookies")
    copies = copies.select(
        "ledger_id",
        F.explode("fragment.bookies").alias("bookie"),
        (F.col("fragment.entries") * share).alias("entries"),
        (F.col("fragment.length") * share).alias("length"),
    )
    custom = table.select("ledger_id", "entries", "length", F.explode("custom_metadata").alias("key", "value"))
    # Values that occur in one ledger only (attempts, jobs) are left out.
    pair = F.concat_ws("=", F.col("key"), F.col("value").cast("string"))
    by_bookie = _shares(copies, F.col("bookie"), limit=None)
    unfinished = table.where(F.exists("fragments", lambda fragment: ~fragment["ends"]))
    sizes = [bookie.length for bookie in by_bookie if bookie.length]
    return Inventory(
        total=_shares(table, F.lit("all"))[0] if not table.isEmpty() else Share("all", 0, 0, 0),
        by_bookie=by_bookie,
        by_state=_shares(table, F.col("state")),
        by_age=_shares(table, _age()),
        by_custom_metadata=tuple(
            share for share in _shares(custom, pair, limit=VALUES_PER_KEY_MAX * 5) if share.ledgers > 1
        )[:VALUES_PER_KEY_MAX],
        by_kind=_shares(table, F.col("kind")),
        not_counted={row.kind: row["count"] for row in unfinished.groupBy("kind").count().orderBy("kind").collect()},
        imbalance=max(sizes) * len(sizes) / sum(sizes) if sizes else 1.0,
    )


def _shares(frame: DataFrame, name: Column, limit: int | None = 1000) -> tuple[Share, ...]:
    """Totals by ``name``, the largest first."""
    grouped = frame.groupBy(name.alias("name")).agg(
        F.count_distinct("ledger_id").alias("ledgers"),
        F.round(F.sum("entries")).cast("long").alias("entries"),
        F.round(F.sum("length")).cast("long").alias("length"),
    )
    ordered = grouped.orderBy(F.desc("length"), F.desc("ledgers"), "name")
    rows = (ordered if limit is None else ordered.limit(limit)).collect()
    return tuple(Share(row.name, row.ledgers, row.entries, row["length"]) for row in rows)


def _age() -> Column:
    days = (F.unix_micros(F.current_timestamp()) - F.unix_micros("created_at")) / (86_400 * 1e6)
    column = F.lit(OLDEST)
    for name, days_max in reversed(AGES):
        column = F.when(days < days_max, F.lit(name)).otherwise(column)
    return column


def _charts(result: Inventory) -> Sequence[BarChart]:
    groups = {
        f"by bookie, every copy (imbalance {result.imbalance:.2f})": result.by_bookie,
        "by state": result.by_state,
        "by age": result.by_age,
        "by custom metadata": result.by_custom_metadata,
    }
    return [
        BarChart(
            f"Bytes {title}", [share.name for share in shares], {"bytes": [share.length for share in shares]}, "bytes"
        )
        for title, shares in groups.items()
    ]
