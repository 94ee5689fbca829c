"""The read task: reads ranges of entries and yields Arrow record batches, in bounded memory."""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from octavo.client.client import Client
from octavo.client.read.reader import EntryBatch, LedgerReader
from octavo.pipeline.bridge import LoopThread
from octavo.pipeline.cluster import connected, open_reader
from octavo.pipeline.columns import entries_as_arrow, gap_as_arrow
from octavo.pipeline.errors import DataLossError, brief_errors
from octavo.pipeline.options import ClusterOptions, SourceOptions
from octavo.pipeline.partitions import bases_of, ranges_of
from octavo.pipeline.planning import EntryRange
from octavo.pipeline.worker_memory import prepare_worker
from octavo.protocol.errors import NoSuchEntryError, NoSuchLedgerError, QuorumLostError
from octavo.protocol.ids import EntryId
from pyspark.sql.datasource import InputPartition

RECORD_BATCH_BYTES = 4 * 1024 * 1024
"""Payload after which a record batch is passed to Spark: large enough that the fixed cost of a batch is small compared
with its bytes. A task holds a few batches."""

RECORD_BATCH_ROWS = 16 * 1024
"""Rows after which a record batch of small entries is passed to Spark."""

GAP_ROWS_MAX = 64 * 1024
"""Rows of one record batch of unreadable entries."""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """What one task reads."""

    cluster: ClusterOptions
    ranges: tuple[EntryRange, ...]
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    log: str | None = None
    """The log that the ledgers are of, if they are of one."""
    bases: Mapping[int, int] = field(default_factory=dict)
    """Ledger of the log -> position of its entry 0."""

    def base_of(self, ledger_id: int) -> int:
        """The position of the ledger's entry 0."""
        return self.bases.get(ledger_id, 0)

    def name_of(self, ledger_id: int, entry_id: int) -> str:
        """An entry, for messages."""
        where = f"ledger {ledger_id} entry {entry_id}"
        return where if self.log is None else f"log {self.log} position {self.base_of(ledger_id) + entry_id} ({where})"


def read_partition(
    options: SourceOptions, columns: tuple[str, ...], partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, for Spark's worker. Raises as :func:`read_ranges`."""
    task = ReadTask(
        options.cluster,
        ranges_of(partition),
        columns,
        options.fail_on_data_loss,
        options.log,
        bases_of(partition),
    )
    with brief_errors():
        yield from read_in_worker(task)


def read_in_worker(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """The rows of a task, for Spark's synchronous worker. Closing the iterator closes the connections."""
    prepare_worker()
    with LoopThread("octavo reading") as loop:
        yield from loop.iterate(partial(read_ranges, task))


async def read_ranges(task: ReadTask) -> AsyncGenerator[pa.RecordBatch]:
    """The rows of a task, range by range, in order.

    Raises :class:`DataLossError` for an unreadable entry, naming the ledger, the entry and each bookie's answer; with
    ``failOnDataLoss=false`` the entry becomes a row without a value.
    """
    async with connected(task.cluster) as client:
        for wanted in task.ranges:
            async with aclosing(_read_range(client, wanted, task)) as batches:
                async for batch in batches:
                    yield batch


async def _read_range(client: Client, wanted: EntryRange, task: ReadTask) -> AsyncGenerator[pa.RecordBatch]:
    try:
        reader = await open_reader(client, wanted.ledger_id, task.cluster)
    except (NoSuchLedgerError, QuorumLostError) as error:
        for gap in _gaps(wanted, error, task):
            yield gap
        return
    async with reader:
        position = wanted.first
        while position <= wanted.last:
            try:
                made = _record_batches(reader, position, wanted.last, task.columns, base=task.base_of(wanted.ledger_id))
                async with aclosing(made) as batches:
                    async for last, batch in batches:
                        position = last + 1
                        yield batch
            except (QuorumLostError, NoSuchEntryError, NoSuchLedgerError) as error:
                missing = error.missing if isinstance(error, QuorumLostError) else None
                last_lost = wanted.last if missing is None else min(missing[-1], wanted.last)
                lost = EntryRange(wanted.ledger_id, position, last_lost)
                for gap in _gaps(lost, error, task):
                    yield gap
                position = last_lost + 1


async def _record_batches(
    reader: LedgerReader, first: int, last: int, columns: Sequence[str], *, base: int
) -> AsyncGenerator[tuple[int, pa.RecordBatch]]:
    """The last entry id of each record batch, and the batch. Entries read before an error precede the error."""

    def fragment_of(entry_id: int) -> int:
        return reader.metadata.fragment_of(EntryId(entry_id)).first_entry_id

    gathered: list[EntryBatch] = []
    rows = payload_bytes = 0
    failure: Exception | None = None
    # The planning of the query has found that `last` is confirmed.
    async with aclosing(reader.batches(first, last, confirmed=True)) as batches:
        while failure is None:
            try:
                batch = await anext(batches, None)
            except (QuorumLostError, NoSuchEntryError, NoSuchLedgerError) as error:
                batch, failure = None, error
            if batch is not None:
                gathered.append(batch)
                rows += len(batch.entries)
                begin, end = batch.entries[0], batch.entries[-1]
                payload_bytes += end.length - begin.length + len(begin.payload)
                if payload_bytes < RECORD_BATCH_BYTES and rows < RECORD_BATCH_ROWS:
                    continue
            if gathered:
                yield gathered[-1].entries[-1].entry_id, entries_as_arrow(columns, gathered, fragment_of, base)
                gathered, rows, payload_bytes = [], 0, 0
            if batch is None:
                break
    if failure is not None:
        raise failure


def _gaps(lost: EntryRange, error: Exception, task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Rows for unreadable entries. Raises :class:`DataLossError` with ``failOnDataLoss=true``."""
    if task.fail_on_data_loss:
        text = getattr(error, "message", "") or str(error)
        if task.log is not None and isinstance(error, NoSuchLedgerError):
            text = f"{text}: the log has been truncated or deleted since the query was planned"
        raise DataLossError(
            f"{task.name_of(lost.ledger_id, lost.first)} cannot be read: {text} "
            "(the option failOnDataLoss=false gives rows without a value instead)"
        ) from error
    for first in range(lost.first, lost.last + 1, GAP_ROWS_MAX):
        part = EntryRange(lost.ledger_id, first, min(lost.last, first + GAP_ROWS_MAX - 1))
        yield gap_as_arrow(task.columns, part, task.base_of(lost.ledger_id))
