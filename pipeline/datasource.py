"""The data source ``octavo``: thin implementations of Spark's interface around the other modules.

Spark creates and pickles these objects in several processes, so they hold nothing but options. Each of these processes
loads this module first, and most of them need only one of the others: methods load what they need. A process that only
checks options thus needs neither NumPy nor Arrow's kernels.
"""

# ruff: noqa: PLC0415 - see above

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.pipeline.base.errors import brief_errors
from octavo.pipeline.base.format_name import FORMAT_NAME
from octavo.pipeline.base.options import SinkOptions, SourceOptions, parse_sink_options, parse_source_options
from octavo.pipeline.base.partitions import RangesPartition
from octavo.pipeline.base.paths import settled
from octavo.pipeline.base.schema import check_schema, source_schema
from octavo.pipeline.source.filters import IdBounds, take_over
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyarrow import RecordBatch


class OctavoDataSource(DataSource):
    """``spark.read.format("octavo")``; the options are those of :mod:`octavo.pipeline.base.options`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT_NAME

    @brief_errors()
    def schema(self) -> StructType:
        """The fixed schema of the source. Raises :class:`InvalidArgumentError` for a wrong option."""
        options = self._source_options()
        return source_schema(
            of_log=options.log is not None, include_source=options.include_source, include_key=options.include_key
        )

    @brief_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        options = self._source_options()
        return ScanReader(options, check_schema(schema, of_log=options.log is not None))

    @brief_errors()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``."""
        options = self._source_options()
        if options.log is not None:
            from octavo.pipeline.source.log_stream import LogStreamReader

            return LogStreamReader(options, check_schema(schema, of_log=True))
        from octavo.pipeline.source.stream import StreamReader

        return StreamReader(options, check_schema(schema))

    @brief_errors()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For ``df.write``."""
        from octavo.pipeline.sink.sink import BatchSink, sink_columns

        options = self._sink_options()
        if options.log is not None:
            from octavo.pipeline.sink.log_sink import LogBatchSink

            return LogBatchSink(options, sink_columns(schema, options), overwrite=overwrite)
        return BatchSink(options, sink_columns(schema, options), overwrite=overwrite)

    @brief_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For ``df.writeStream``."""
        from octavo.pipeline.sink.sink import StreamSink, sink_columns

        options = self._sink_options()
        if options.log is not None:
            from octavo.pipeline.sink.log_sink import LogStreamSink

            return LogStreamSink(options, sink_columns(schema, options), overwrite=overwrite)
        return StreamSink(options, sink_columns(schema, options), overwrite=overwrite)

    def _source_options(self) -> SourceOptions:
        options = parse_source_options(self.options)
        return replace(options, cluster=settled(options.cluster))

    def _sink_options(self) -> SinkOptions:
        options = parse_sink_options(self.options)
        return replace(options, cluster=settled(options.cluster))


class ScanReader(DataSourceReader):
    """One scan. It is planned once on the driver, which fixes the end of open ledgers; retried tasks read the same."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._bounds = IdBounds()

    @property
    def pushFilters(self) -> "_FilterPushdown":
        """Accepts filters on ledger_id and entry_id; see :class:`_FilterPushdown`."""
        return _FilterPushdown(self._push)

    @brief_errors()
    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        from octavo.pipeline.base.bridge import LoopThread

        with LoopThread("octavo planning") as loop:
            if self._options.log is not None:
                from octavo.pipeline.source.log_scan import plan_log_scan

                found = loop.run(plan_log_scan(self._options, self._bounds))
                return [RangesPartition(ranges, through_log=found.through_log) for ranges in found.partitions]
            from octavo.pipeline.source.discovery import plan_scan

            plan = loop.run(plan_scan(self._options, self._bounds))
        return [RangesPartition(ranges) for ranges in plan]

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        """The rows of one task."""
        from octavo.pipeline.source.reading import read_partition

        yield from read_partition(self._options, self._columns, partition)

    def _push(self, filters: list[Filter]) -> list[Filter]:
        self._bounds, left = take_over(self._bounds, filters)
        return left


class _FilterPushdown:
    """The reader's ``pushFilters``. While Spark's setting ``spark.sql.python.filterPushdown.enabled`` is off, the
    default, Spark rejects a reader that overrides ``pushFilters``, which it detects by ``__func__``. This reader is
    correct either way, so it shows Spark the method of the base class."""

    def __init__(self, push: Callable[[list[Filter]], list[Filter]]) -> None:
        self._push = push
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._push(filters)
