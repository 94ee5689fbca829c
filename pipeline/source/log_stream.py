"""The streaming source for one log: tells Spark how far the log can be read.

The object lives in a Python process of the driver while the query runs, with a client and a handle on the log. Its
state does not matter for correctness: the two offsets of a batch determine what the batch reads
(:mod:`octavo.pipeline.source.log_offsets`). Positions are the same for ever, so rolls and new leaders change nothing
here. Committing a batch truncates nothing.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from octavo.client.client import Client
from octavo.client.log.log import Log
from octavo.pipeline.base.errors import DataLossError, brief_errors
from octavo.pipeline.base.options import EARLIEST, LATEST, Position
from octavo.pipeline.base.partitions import RangesPartition
from octavo.pipeline.base.planning import plan_partitions
from octavo.pipeline.source.log_offsets import LogOffset, batch_positions, within_limits
from octavo.pipeline.source.log_scan import SKIP_HINT, LogPieces, log_pieces, opened_log
from octavo.pipeline.source.offsets import Limits
from octavo.pipeline.source.read_limits import limits_of
from octavo.pipeline.source.streaming import Watch, WatchingStreamReader
from octavo.protocol.errors import InvalidArgumentError, NoSuchLogError, TruncatedError
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit


class _LogWatch(Watch):
    """A client and a handle on the log."""

    _opened: tuple[Client, Log] | None = None

    async def work[T](self, work: "Callable[[Client, Log], Coroutine[Any, Any, T]]") -> T:
        """The result of ``work``, whose arguments are the client and the handle."""
        if self._opened is None:
            self._opened = await self._stack.enter_async_context(opened_log(self._options))
        return await work(*self._opened)


class LogStreamReader(WatchingStreamReader[_LogWatch]):
    """The streaming reader of a log."""

    _target: int | None = None
    """With Trigger.AvailableNow: the end of the log at the start of the query."""

    def _make_watch(self) -> _LogWatch:
        return _LogWatch(self._options)

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

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the present end of the log."""
        self._target = self._with_log(_bounds)[1]

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
        return [RangesPartition(ranges, through_log=found.through_log) for ranges in plan]

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
                return first, end, piece.range.base + piece.range.first + count
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
                    return LogPieces([])

    def _truncated(self, position: int, first: int) -> str:
        return (
            f"log {self._options.log}: positions {position} to {first - 1} were truncated before the query read them "
            f"{SKIP_HINT}"
        )

    def _with_log[T](self, work: "Callable[[Client, Log], Coroutine[Any, Any, T]]") -> T:
        return self._with_watch(lambda watch: watch.run(watch.work(work)))


async def _bounds(_client: Client, log: Log) -> tuple[int, int, str]:
    """The first position of the log, its present end, and its id."""
    end = await log.refresh()
    return log.first_position, end, log.log_id
