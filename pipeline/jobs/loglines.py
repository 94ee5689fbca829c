"""The job ``loglines``: parses system logs in ledgers, one line per entry, into columns, and counts the lines.

Spark parses the lines without Python, with the formats of :mod:`octavo.pipeline.jobs.log_formats`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Any

from octavo.pipeline.base.options import ClusterOptions
from octavo.pipeline.jobs.common import check_one_of, entries_frame, streams_left_out
from octavo.pipeline.jobs.log_formats import EPOCH, FORMATS, MASKS, UNPARSED, YEAR_UNKNOWN, LogFormat
from octavo.pipeline.jobs.plots import BarChart, Chart, TimeChart, check_plot_path, write_plot
from octavo.pipeline.jobs.timelines import Step, Timeline, timeline
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

TEMPLATES_MAX = 25
"""Largest number of templates in a summary, the most frequent ones."""

HOURS_MAX = 1000
"""Largest number of hours in a summary."""

HOURS_BY_MINUTE_MAX = 6
"""A log with lines in at most this many hours is drawn by minute."""

SERIES_MAX = 7
"""Largest number of levels or components in the chart over time."""


_NO_LEVEL = "none"


@dataclass(frozen=True, slots=True)
class Count:
    """Number of lines with a format, level, hour or template."""

    name: str
    lines: int


@dataclass(frozen=True, slots=True)
class LogSummary:
    """The result of the job."""

    lines: int
    by_format: tuple[Count, ...]
    by_level: tuple[Count, ...]
    by_hour: tuple[Count, ...]
    """In order of time. Times without a year are in 1970."""
    by_template: tuple[Count, ...]
    templates: int
    streams_left_out: int = 0
    """Streams that were selected with ledgers, and not read (rule X1)."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def log_columns(frame: DataFrame) -> DataFrame:
    """``ledger_id``, ``entry_id``, ``format``, ``time``, ``level``, ``component``, ``message`` and ``template`` of each
    line in ``value``. If a line matches no format, its message is the whole line, and time, level and component are
    NULL."""
    text = F.regexp_replace(F.col("value").cast("string"), r"\r$", "")
    lines = frame.select("ledger_id", "entry_id", text.alias("text"))
    form = reduce(
        lambda otherwise, known: F.when(F.col("text").rlike(known.pattern), F.lit(known.name)).otherwise(otherwise),
        reversed(FORMATS),
        F.lit(UNPARSED),
    )
    lines = lines.select("*", form.alias("format"))
    parts = {
        name: reduce(
            lambda otherwise, known, group=group: F.when(  # type: ignore[misc]
                F.col("format") == known.name, F.regexp_extract("text", known.pattern, group)
            ).otherwise(otherwise),
            FORMATS,
            F.col("text") if name == "message" else F.lit(None),
        )
        for group, name in ((2, "level"), (3, "component"), (4, "message"))
    }
    time = reduce(
        lambda otherwise, known: F.when(F.col("format") == known.name, _time(known)).otherwise(otherwise),
        FORMATS,
        F.lit(None).cast("timestamp"),
    )
    template = reduce(lambda column, mask: F.regexp_replace(column, *mask), MASKS, F.col("message"))
    parsed = lines.select(
        "ledger_id",
        "entry_id",
        "format",
        time.alias("time"),
        *(F.nullif(column, F.lit("")).alias(name) for name, column in parts.items() if name != "message"),
        parts["message"].alias("message"),
    )
    return parsed.select("*", template.alias("template"))


def loglines(
    spark: SparkSession,
    cluster: ClusterOptions,
    *,
    ledgers: str | None = None,
    dataset: str | None = None,
    table: str | None = None,
    plot: Path | None = None,
) -> LogSummary:
    """Parse the lines of ledgers or a dataset, and count them by hour, level and template.

    ``table``: a new folder for the parsed lines in Parquet. ``plot``: a file (.png, .svg, .html) to draw the result
    into. Raises :class:`InvalidArgumentError`.
    """
    check_one_of("ledgers and dataset", ledgers, dataset)
    if plot is not None:
        check_plot_path(plot)
    parsed = log_columns(entries_frame(spark, cluster, ledgers=ledgers, dataset=dataset)).persist()
    try:
        if table is not None:
            parsed.write.parquet(table)
        summary = replace(_summary(parsed), streams_left_out=streams_left_out(cluster, ledgers))
        times = None if plot is None else _timeline(parsed, summary)
    finally:
        parsed.unpersist()
    if plot is not None and times is not None:
        write_plot(plot, f"{summary.lines:,} log lines", _charts(summary, times))
    return summary


def _summary(parsed: DataFrame) -> LogSummary:
    hour = F.date_format(F.date_trunc("hour", "time"), "yyyy-MM-dd HH:00")
    most = (F.desc("lines"), F.asc("name"))
    return LogSummary(
        lines=parsed.count(),
        by_format=_counts(parsed, F.col("format"), most),
        by_level=_counts(parsed, F.coalesce(F.col("level"), F.lit(_NO_LEVEL)), most),
        by_hour=_counts(parsed.where("time is not null"), hour, (F.asc("name"),), HOURS_MAX),
        by_template=_counts(parsed, F.col("template"), most, TEMPLATES_MAX),
        templates=parsed.select("template").distinct().count(),
    )


def _counts(frame: DataFrame, name: Column, order: Sequence[Column], limit: int = HOURS_MAX) -> tuple[Count, ...]:
    grouped = frame.groupBy(name.alias("name")).agg(F.count("*").alias("lines"))
    return tuple(Count(row.name, row.lines) for row in grouped.orderBy(*order).limit(limit).collect())


def _time(known: LogFormat) -> Column:
    text = F.regexp_extract("text", known.pattern, 1)
    if known.time_form == EPOCH:
        return F.timestamp_seconds(F.try_to_number(text, F.lit("9999999999")))
    if not known.has_year:
        # syslog pads the day with a second blank.
        text = F.concat(F.lit(f"{YEAR_UNKNOWN} "), F.regexp_replace(text, " +", " "))
    return F.try_to_timestamp(text, F.lit(known.time_form))


def _timeline(parsed: DataFrame, summary: LogSummary) -> tuple[str, Timeline]:
    """The kind of series (``level`` if any line has one, otherwise ``component``), and the lines of each over time."""
    levels = any(count.name != _NO_LEVEL for count in summary.by_level)
    what = "level" if levels else "component"
    step = Step.MINUTE if len(summary.by_hour) <= HOURS_BY_MINUTE_MAX else Step.HOUR
    name = F.coalesce(F.col(what), F.lit(f"no {what}")).alias("name")
    grouped = parsed.where("time is not null").groupBy(name, F.date_trunc(step, "time").alias("at"))
    # As text, because Spark would convert a timestamp to the time zone of this process.
    rows = grouped.agg(F.count("*").alias("lines")).select("name", F.col("at").cast("string"), "lines").collect()
    counts = {(row.name, datetime.fromisoformat(row.at)): row.lines for row in rows}
    return what, timeline(counts, step, series_max=SERIES_MAX)


def _charts(summary: LogSummary, times: tuple[str, Timeline]) -> Sequence[Chart]:
    what, when = times
    groups = {
        "Lines by form": summary.by_format,
        # Left out if no line has a level.
        "Lines by level": summary.by_level if what == "level" else (),
        f"Lines by template ({summary.templates:,} in all)": summary.by_template,
    }
    bars = [
        BarChart(title, [count.name for count in counts], {"lines": [count.lines for count in counts]}, "lines")
        for title, counts in groups.items()
    ]
    return [TimeChart(f"Lines by {when.step} and {what}", when, "lines", what), *bars]
