"""The streaming source for one log: tells Spark how far the log can be read.

The object lives in a Python process of the driver while the query runs, with a client and a handle on the log. Its
state does not matter for correctness: the two offsets of a batch determine what the batch reads
(:mod:`octavo.pipeline.log_offsets`). Positions are the same for ever, so rolls and new leaders change nothing here.
Committing a batch truncates nothing.
"""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pyarrow as pa
from octavo.client.client import Client
from octavo.client.log.log import Log
from octavo.pipeline.bridge import LoopThread
from octavo.pipeline.errors import DataLossError, brief_errors
from octavo.pipeline.log_offsets import LogOffset, batch_positions, within_limits
from octavo.pipeline.log_scan import SKIP_HINT, LogPieces, log_pieces, opened_log
from octavo.pipeline.offsets import Limits
from octavo.pipeline.options import EARLIEST, LATEST, Position, SourceOptions
from octavo.pipeline.partitions import RangesPartition, bases_of, ranges_of
from octavo.pipeline.planning import plan_partitions
from octavo.pipeline.read_limits import default_read_limit, limits_of
from octavo.pipeline.reading import ReadTask, read_in_worker
from octavo.protocol.errors import InvalidArgumentError, NoSuchLogError, OctavoError, TruncatedError
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The streaming reader of a log."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._watch: _LogWatch | None = None
        self._target: int | None = None
        """With Trigger.AvailableNow: the end of the log at the start of the query."""
        self._latest: dict[str, Any] | None = None

    # --- offsets, on the driver --------------------------------------------------------------------------------------

    @brief_errors()
    def initialOffset(self) -> dict[str, Any]:
        """The offset at which a new query begins. A restarted query uses its checkpoint instead.

        Raises :class:`DataLossError` for a starting position below the log's first, :class:`InvalidArgumentError` for
        one beyond its end.
        """
        first, end, log_id = self._with_log(_bounds)
        starting = self._options.starting_offsets
        if starting in {EARLIEST, LATEST}:
            return LogOffset(log_id, first if starting == EARLIEST else end).to_json()
        assert isinstance(starting, Position)
        position = starting.everywhere or 0
        if position > end:
            raise InvalidArgumentError(f"startingOffsets {position} is beyond the end of the log, {end}")
        if position < first and self._options.fail_on_data_loss:
            raise DataLossError(self._truncated(position, first))
        return LogOffset(log_id, max(position, first)).to_json()

    @brief_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the batch that begins at ``start``.

        Raises :class:`DataLossError` if the log was truncated above ``start``, deleted, or deleted and created again;
        with ``failOnDataLoss=false`` a truncated log is read from its first position on.
        """
        offset, limits = LogOffset.from_json(start), limits_of(self._options, limit)
        try:
            first, end, stop = self._with_log(lambda client, log: self._batch_end(client, log, offset, limits))
        except NoSuchLogError as error:
            raise DataLossError(f"{error.message}; the query has read it up to position {offset.position}") from error
        if offset.position < first and self._options.fail_on_data_loss:
            raise DataLossError(self._truncated(offset.position, first))
        self._latest = LogOffset(offset.log_id, end).to_json()
        if stop == offset.position:
            return start
        return LogOffset(offset.log_id, stop, first if first > offset.position else 0).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """What one batch takes."""
        return default_read_limit(self._options)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """How far the log went when it was last looked at: for the query's progress report."""
        return self._latest

    def prepareForTriggerAvailableNow(self) -> None:
        """Note how far the log goes now."""
        self._target = self._with_log(_bounds)[1]

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is truncated."""

    def stop(self) -> None:
        """Let go of the cluster."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    # --- batches -----------------------------------------------------------------------------------------------------

    @brief_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch; the same positions for the same offsets."""
        first, stop = batch_positions(LogOffset.from_json(start), LogOffset.from_json(end))
        if first >= stop:
            return []
        found = self._with_log(lambda client, log: self._pieces(client, log, first, stop))
        plan = plan_partitions(
            found.pieces, target_bytes=self._options.target_partition_bytes, partitions_min=self._options.partitions_min
        )
        return [RangesPartition(ranges, found.bases) for ranges in plan]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        options = self._options
        task = ReadTask(
            options.cluster,
            ranges_of(partition),
            self._columns,
            options.fail_on_data_loss,
            options.log,
            bases_of(partition),
        )
        with brief_errors():
            yield from read_in_worker(task)

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _batch_end(self, client: Client, log: Log, offset: LogOffset, limits: Limits) -> tuple[int, int, int]:
        """The first position of the log, its end, and the end of the next batch."""
        first, end, log_id = await _bounds(client, log)
        if log_id != offset.log_id:
            raise DataLossError(
                f"log {log.name} was deleted and created again since the checkpoint was written, which was at position "
                f"{offset.position} of the old log; use a new checkpoint location"
            )
        if end < offset.position:
            raise DataLossError(f"log {log.name} ends at {end}, and the query has read it up to {offset.position}")
        stop = end if self._target is None else max(offset.position, min(end, self._target))
        begin = max(first, offset.position)
        if begin >= stop or limits == Limits():
            return first, end, max(stop, offset.position)
        found = await self._pieces(client, log, begin, stop)
        count = within_limits(found.pieces, limits)
        for piece in found.pieces:
            if count <= piece.range.count:
                return first, end, found.bases[piece.range.ledger_id] + piece.range.first + count
            count -= piece.range.count
        return first, end, stop

    async def _pieces(self, client: Client, log: Log, first: int, stop: int) -> LogPieces:
        while True:
            try:
                return await log_pieces(client, log, self._options.cluster, first=first, last=stop - 1)
            except TruncatedError as error:
                if self._options.fail_on_data_loss:
                    raise DataLossError(self._truncated(first, error.first_position)) from error
                first = max(first + 1, error.first_position)
                if first >= stop:
                    return LogPieces([], {})

    def _truncated(self, position: int, first: int) -> str:
        return (
            f"log {self._options.log}: positions {position} to {first - 1} were truncated before the query read them "
            f"{SKIP_HINT}"
        )

    def _with_log[T](self, work: "Callable[[Client, Log], Coroutine[Any, Any, T]]") -> T:
        watch, self._watch = self._watch or _LogWatch(self._options), None
        try:
            done = watch.run(work)
        except BaseException:
            # Connections may be broken, or the log another one: the next call connects again.
            watch.close()
            raise
        self._watch = watch
        return done


async def _bounds(_client: Client, log: Log) -> tuple[int, int, str]:
    """The first position of the log, its present end, and its id."""
    end = await log.refresh()
    return log.first_position, end, log.log_id


class _LogWatch:
    """A client and a handle on the log, kept open in a thread of their own."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._loop = LoopThread("octavo streaming")
        self._stack = AsyncExitStack()
        self._opened: tuple[Client, Log] | None = None

    def run[T](self, work: "Callable[[Client, Log], Coroutine[Any, Any, T]]") -> T:
        """The result of ``work``."""

        async def run() -> T:
            if self._opened is None:
                self._opened = await self._stack.enter_async_context(opened_log(self._options))
            return await work(*self._opened)

        return self._loop.run(run())

    def close(self) -> None:
        """Disconnect. Never raises."""
        try:
            self._loop.run(self._stack.aclose())
        except OctavoError:
            pass
        finally:
            self._loop.close()
