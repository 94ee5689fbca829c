"""The sink: writes rows into ledgers, which are published together when the job, or the batch of a query, commits.

Each attempt of a task writes its own ledgers and lists them in its commit message. The driver commits one attempt of
each task. The next commit, or ``octavo pipeline clean``, deletes the ledgers of other attempts, of aborted jobs and of
batches that were started twice.

Exactly once: a batch of a streaming query is identified by its number and the query's id, which stays the same across
restarts from a checkpoint. The dataset stores the last published batch; a repeated batch publishes nothing.
"""

import secrets
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.pipeline.base.bridge import LoopThread
from octavo.pipeline.base.datasets import DatasetStore, Tags, dataset_store
from octavo.pipeline.base.errors import brief_errors
from octavo.pipeline.base.manifest import Publication, PublishedLedger
from octavo.pipeline.base.options import SinkOptions
from octavo.pipeline.sink.writing import AttemptTags, WriteTask, write_in_worker
from octavo.protocol.errors import InvalidArgumentError
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

_QUERY_PROPERTY = "sql.streaming.queryId"
_BATCH_PROPERTY = "streaming.sql.batchId"
"""Local properties of the tasks of a streaming query: its id, which survives restarts, and the batch number."""


@dataclass(frozen=True, slots=True)
class TaskWritten(WriterCommitMessage):
    """The commit message of a task: the ledgers that it has written. ``query`` is None in a batch job."""

    partition: int
    query: str | None
    ledgers: tuple[PublishedLedger, ...]


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The columns of values and keys."""

    value: str
    key: str | None


def sink_columns(schema: StructType, options: SinkOptions) -> SinkColumns:
    """The columns to write. Raises :class:`InvalidArgumentError` if the schema does not fit."""
    types = {field.name: field.dataType for field in schema.fields}
    key = options.key_column
    if key is None and options.log is None and "key" in types:
        key = "key"
    for option, name in (("valueColumn", options.value_column), ("keyColumn", key)):
        if name is None:
            continue
        if name not in types:
            raise InvalidArgumentError(f"option {option}: no column {name}; the columns are {', '.join(types)}")
        if option == "valueColumn" and not isinstance(types[name], BinaryType | StringType):
            raise InvalidArgumentError(
                f"option {option}: column {name} has type {types[name].simpleString()}; it must be binary or string"
            )
    others = sorted(set(types) - {options.value_column, key})
    if others:
        raise InvalidArgumentError(
            f"an entry is one value and cannot hold columns {', '.join(others)}; select only {options.value_column}"
            f"{' (and a key)' if options.log is None else ''}, or include them in the value, for example with "
            "to_json(struct(*))"
        )
    return SinkColumns(options.value_column, key)


class BatchSink(DataSourceArrowWriter):
    """``df.write.format("octavo")``. Created on the driver and sent to every task and to the commit.

    Raises :class:`MetadataUnavailableError` if the metadata store cannot be reached.
    """

    def __init__(self, options: SinkOptions, columns: SinkColumns, *, overwrite: bool) -> None:
        self._options = options
        self._columns = columns
        self._overwrite = overwrite
        self.job = secrets.token_hex(16)
        """The id of this job, with which its ledgers are tagged."""
        self._first_ledger_id = _on_datasets(options, _next_ledger_id)

    @brief_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """Write the rows of one task."""
        return written_by_task(self._options, self._columns, self.job, iterator)

    @brief_errors()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the ledgers of all tasks."""
        ledgers = ledgers_of(messages)
        publication = Publication(ledgers, self.job, replaces=self._overwrite)
        name, first = _dataset(self._options), self._first_ledger_id
        _on_datasets(self._options, lambda datasets: _commit(datasets, name, publication, first))

    @brief_errors()
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the ledgers of the job, unless they have been published."""
        publication = Publication(ledgers_of(messages), self.job)
        name, first = _dataset(self._options), self._first_ledger_id
        _on_datasets(self._options, lambda datasets: _abort(datasets, name, publication, first))


class StreamSink(DataSourceStreamArrowWriter):
    """``df.writeStream.format("octavo")``. Created for each batch, and again for its commit."""

    def __init__(self, options: SinkOptions, columns: SinkColumns, *, overwrite: bool) -> None:
        self._options = options
        self._columns = columns
        self._overwrite = overwrite

    @brief_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """Write the rows of one task of a batch."""
        return written_by_task(self._options, self._columns, None, iterator)

    @brief_errors()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the batch, unless it has been published before."""
        query = query_of(messages)
        if query is None:
            return
        publication = Publication(ledgers_of(messages), query, batchId, replaces=self._overwrite)
        _on_datasets(self._options, lambda datasets: _commit(datasets, _dataset(self._options), publication))

    @brief_errors()
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Delete the ledgers of the batch, unless they have been published."""
        query = query_of(messages)
        if query is None:
            return
        publication = Publication(ledgers_of(messages), query, batchId)
        _on_datasets(self._options, lambda datasets: _abort(datasets, _dataset(self._options), publication))


# --- in a task -------------------------------------------------------------------------------------------------------


def written_by_task(
    options: SinkOptions, columns: SinkColumns, job: str | None, batches: Iterator[pa.RecordBatch]
) -> TaskWritten:
    """Write the rows of the task that runs here. ``job``: of a batch job; None: a query's, as Spark tells the task."""
    context = TaskContext.get()
    assert context is not None, "tasks run in a worker of Spark"
    query = context.getLocalProperty(_QUERY_PROPERTY) if job is None else None
    batch = context.getLocalProperty(_BATCH_PROPERTY) if job is None else None
    tags = AttemptTags(
        f"{query}/{batch}" if job is None else job,
        query,
        None if batch is None else int(batch),
        context.partitionId(),
        context.taskAttemptId(),
    )
    ledgers = write_in_worker(WriteTask(options, columns.value, columns.key, tags), batches)
    return TaskWritten(context.partitionId(), query, tuple(ledgers))


# --- on the driver ---------------------------------------------------------------------------------------------------


def _dataset(options: SinkOptions) -> str:
    assert options.dataset is not None, "rows for a log have another sink"
    return options.dataset


def ledgers_of(messages: Sequence[WriterCommitMessage | None]) -> list[PublishedLedger]:
    """The ledgers of all tasks in the order of partitions, which is the order of rows."""
    written = sorted(
        (message for message in messages if isinstance(message, TaskWritten)), key=lambda message: message.partition
    )
    return [ledger for message in written for ledger in message.ledgers]


def query_of(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    """The id of the query whose tasks these are; None for a job, or if there is no task."""
    queries = {message.query for message in messages if isinstance(message, TaskWritten)}
    return next(iter(queries), None)


async def _next_ledger_id(datasets: DatasetStore) -> int:
    """An id below those of all ledgers created later; ids ascend."""
    return await datasets.store.allocate_ledger_id()


async def _commit(datasets: DatasetStore, name: str, publication: Publication, first: int | None = None) -> None:
    """``first``: no ledger of this publication has a lower id; None: derived from the head."""
    head, _ = await datasets.read_head(name)
    ours = {ledger.ledger_id for ledger in publication.ledgers}
    if head.has(publication.job, publication.batch):
        # The batch is repeated, after a failure between its publication and Spark's own record of it.
        published = {ledger.ledger_id for ledger in await datasets.ledgers(name)}
        await datasets.delete(ours - published)
        return
    await datasets.publish(name, publication)
    await datasets.sweep(name, ours, _IsOf(publication), head.floor(publication.job) + 1 if first is None else first)


async def _abort(datasets: DatasetStore, name: str, publication: Publication, first: int | None = None) -> None:
    head, _ = await datasets.read_head(name)
    if head.has(publication.job, publication.batch):
        # Only the answer of the publication was lost, or the batch is repeated and the next commit sweeps its ledgers.
        return
    await datasets.delete(ledger.ledger_id for ledger in publication.ledgers)
    await datasets.sweep(name, (), _IsOf(publication), head.floor(publication.job) + 1 if first is None else first)


class _IsOf:
    """A predicate: whether a ledger was written by the job, or the batch of the query, that is published."""

    def __init__(self, publication: Publication) -> None:
        self._wanted = (
            {Tags.JOB: publication.job.encode()}
            if publication.batch is None
            else {Tags.QUERY: publication.job.encode(), Tags.BATCH: str(publication.batch).encode()}
        )

    def __call__(self, metadata: LedgerMetadata) -> bool:
        return all(metadata.custom_metadata.get(key) == value for key, value in self._wanted.items())


def _on_datasets[T](options: SinkOptions, work: Callable[[DatasetStore], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        async with dataset_store(options.cluster) as datasets:
            return await work(datasets)

    with LoopThread("octavo committing") as loop:
        return loop.run(run())
