"""The sink of a log: rows of a job, or of the batches of a query, become entries, each once and in order.

Tasks stage their rows in ledgers, as for a dataset; the commit on the driver adds them to the log
(:mod:`octavo.pipeline.sink.log_commit`), because one client at a time leads a log.
"""

import secrets
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pyarrow as pa
from octavo.pipeline.base.bridge import LoopThread
from octavo.pipeline.base.errors import brief_errors
from octavo.pipeline.base.options import SinkOptions
from octavo.pipeline.sink.log_commit import LogCommit, StagedRows, log_commit
from octavo.pipeline.sink.sink import SinkColumns, TaskWritten, ledgers_of, query_of, written_by_task
from octavo.protocol.errors import InvalidArgumentError
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage


class LogBatchSink(DataSourceArrowWriter):
    """``df.write.format("octavo").option("log", name)``. Created on the driver and sent to every task and to the
    commit.

    Raises :class:`InvalidArgumentError` for ``mode("overwrite")`` and for a log without keys, and
    :class:`NoSuchLogError`.
    """

    def __init__(self, options: SinkOptions, columns: SinkColumns, *, overwrite: bool) -> None:
        self._options = options
        self._columns = columns
        if overwrite:
            raise InvalidArgumentError("entries of a log are never replaced: write into a log with mode append")
        self.job = options.job or secrets.token_hex(16)
        """The name of this job, or a token that is used once."""
        self._first_ledger_id = _on_log(options, LogCommit.next_ledger_id)

    @brief_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """Stage the rows of one task."""
        return written_by_task(self._options, self._columns, self.job, iterator)

    @brief_errors()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Add the rows of all tasks, unless a job of this name has."""
        rows = self._staged(messages)
        _on_log(self._options, lambda log: log.commit(rows))

    @brief_errors()
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete what was staged, unless the job goes on with it when it is repeated."""
        rows = self._staged(messages)
        _on_log(self._options, lambda log: log.abort(rows))

    def _staged(self, messages: Sequence[WriterCommitMessage | None]) -> StagedRows:
        has_name = self._options.job is not None
        return StagedRows(self.job, None, tuple(ledgers_of(messages)), has_name, self._first_ledger_id)


class LogStreamSink(DataSourceStreamArrowWriter):
    """``df.writeStream.format("octavo").option("log", name)``. Created for each batch, and again for its commit.

    Raises as :class:`LogBatchSink`: before a batch is computed, and not only by its commit.
    """

    def __init__(self, options: SinkOptions, columns: SinkColumns, *, overwrite: bool) -> None:
        self._options = options
        self._columns = columns
        if overwrite:
            raise InvalidArgumentError("entries of a log are never replaced: the output mode must be append or update")
        if options.job is not None:
            raise InvalidArgumentError("option job is for jobs: a query has the id in its checkpoint")
        _on_log(options, LogCommit.check)

    @brief_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """Stage the rows of one task of a batch."""
        return written_by_task(self._options, self._columns, None, iterator)

    @brief_errors()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Add the rows of the batch, unless they have been added before."""
        rows = _batch_of(messages, batchId)
        if rows is not None:
            _on_log(self._options, lambda log: log.commit(rows))

    @brief_errors()
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Delete what was staged, unless the batch goes on with it when it is repeated."""
        rows = _batch_of(messages, batchId)
        if rows is not None:
            _on_log(self._options, lambda log: log.abort(rows))


def _batch_of(messages: Sequence[WriterCommitMessage | None], batch: int) -> StagedRows | None:
    query = query_of(messages)
    return None if query is None else StagedRows(query, batch, tuple(ledgers_of(messages)), may_repeat=True)


def _on_log[T](options: SinkOptions, work: Callable[[LogCommit], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        async with log_commit(options) as log:
            return await work(log)

    with LoopThread("octavo committing") as loop:
        return loop.run(run())
