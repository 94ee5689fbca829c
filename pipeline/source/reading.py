"""The read task: reads ranges of entries and yields Arrow record batches, in bounded memory.

A task that reads metadata from a server that lags does not see ledgers, terms and bookies that the plan has seen, and
would take entries that exist for lost. So the first loss that a task meets is not believed: the task catches up with
the metadata (:func:`octavo.pipeline.base.cluster.catch_up_with_metadata`), opens the log or ledger again and reads on
from the same entry. From then on its metadata are newer than the plan, and what is lost is lost. That costs one more
try for each task, whatever the number of losses. A truncation is believed at once: the beginning of a log never goes
back.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from octavo.client.client import Client
from octavo.client.log.log import Log
from octavo.client.read.reader import EntryBatch, LedgerReader
from octavo.client.read.terms import PieceMovedError
from octavo.pipeline.base.bridge import LoopThread
from octavo.pipeline.base.cluster import catch_up_with_metadata, connected, open_reader
from octavo.pipeline.base.errors import DataLossError, brief_errors
from octavo.pipeline.base.options import ClusterOptions, SourceOptions
from octavo.pipeline.base.partitions import goes_through_log, ranges_of
from octavo.pipeline.base.planning import EntryRange
from octavo.pipeline.base.worker_memory import prepare_worker
from octavo.pipeline.source.columns import entries_as_arrow, gap_as_arrow
from octavo.pipeline.source.log_scan import open_log
from octavo.protocol.errors import (
    LogDamagedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLogError,
    QuorumLostError,
    TruncatedError,
)
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
    """The part that one task reads."""

    cluster: ClusterOptions
    ranges: tuple[EntryRange, ...]
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    log: str | None = None
    """The log that the ledgers are of, if they are of one."""
    through_log: bool = False
    """Whether the log must be opened to read its entries: it is a stream."""

    def first_of(self, wanted: EntryRange) -> str:
        """The first entry of a range, for messages."""
        where = f"ledger {wanted.ledger_id} entry {wanted.first}"
        return where if self.log is None else f"log {self.log} position {wanted.base + wanted.first} ({where})"


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
        goes_through_log(partition),
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
    async with connected(task.cluster) as client, aclosing(read_with(client, task)) as batches:
        async for batch in batches:
            yield batch


async def read_with(client: Client, task: ReadTask) -> AsyncGenerator[pa.RecordBatch]:
    """As :func:`read_ranges`, with a client that is there."""
    source = _Source(client, task)
    try:
        for wanted in task.ranges:
            async with aclosing(_read_range(source, wanted, task)) as batches:
                async for batch in batches:
                    yield batch
    finally:
        await source.close()


class _Opened(NamedTuple):
    """A reader, and the last entry that it gives."""

    reader: LedgerReader
    last: int
    has_keys: bool = False
    """Whether its entries have the stored form of a log with keys."""


class _Source:
    """Opens what a task reads, and knows whether a loss is to be believed (see the module)."""

    def __init__(self, client: Client, task: ReadTask) -> None:
        self._client = client
        self._task = task
        self._log: Log | None = None
        self._has_caught_up = False

    def believes(self, error: Exception) -> bool:
        """Whether entries are lost because this error says so."""
        return self._has_caught_up or isinstance(error, TruncatedError)

    async def catch_up(self) -> None:
        """See to it that whatever is opened from now on is not older than the plan. Raises
        :class:`MetadataUnavailableError`."""
        await catch_up_with_metadata(self._client)
        self._has_caught_up = True
        await self.close()

    async def close(self) -> None:
        """Close the log, if it is open."""
        log, self._log = self._log, None
        if log is not None:
            await log.close()

    @asynccontextmanager
    async def reader_of(self, wanted: EntryRange) -> AsyncIterator["_Opened"]:
        """A reader of a range or of its beginning."""
        if not self._task.through_log:
            async with await open_reader(self._client, wanted.ledger_id, self._task.cluster) as reader:
                yield _Opened(reader, wanted.last)
        else:
            # The planning of the query has found that the range is below the end.
            log = await self._opened_log()
            async with log.reader_at(wanted.base + wanted.first, stored=True) as (extent, reader):
                yield _Opened(reader, min(wanted.last, extent.last - extent.base), has_keys=log.keys is not None)

    async def _opened_log(self) -> Log:
        assert self._task.log is not None, "entries that are read through a log are of one"
        if self._log is None:
            try:
                self._log = await open_log(self._client, self._task.log, self._task.cluster)
            except NoSuchLogError as error:
                if not self.believes(error):
                    raise
                raise DataLossError(f"{error.message}: it has been deleted since the query was planned") from error
        return self._log


async def _read_range(source: _Source, wanted: EntryRange, task: ReadTask) -> AsyncGenerator[pa.RecordBatch]:
    rest = wanted
    while rest.first <= rest.last:
        try:
            async with source.reader_of(rest) as opened:
                while rest.first <= opened.last:
                    made = _record_batches(opened, rest.first, task.columns, base=rest.base)
                    try:
                        async with aclosing(made) as batches:
                            async for last, batch in batches:
                                rest = replace(rest, first=last + 1)
                                yield batch
                    except QuorumLostError as error:
                        if not source.believes(error):
                            raise
                        lost = _lost_of(rest, error)
                        for gap in _gaps(lost, error, task):
                            yield gap
                        rest = replace(rest, first=lost.last + 1)
        except PieceMovedError:
            continue  # the log looks for the position anew
        except _LOST as error:
            if not source.believes(error):
                await source.catch_up()
                continue
            lost = _lost_of(rest, error)
            for gap in _gaps(lost, error, task):
                yield gap
            rest = replace(rest, first=lost.last + 1)


_LOST = (QuorumLostError, NoSuchEntryError, NoSuchLedgerError, NoSuchLogError, LogDamagedError, TruncatedError)
"""What says that entries cannot be had."""


def _lost_of(rest: EntryRange, error: Exception) -> EntryRange:
    """The entries at the beginning of a range that an error says cannot be had."""
    last = rest.last
    if isinstance(error, QuorumLostError) and error.missing is not None:
        last = min(error.missing[-1], last)
    if isinstance(error, TruncatedError):
        last = min(error.first_position - 1 - rest.base, last)
    return replace(rest, last=max(last, rest.first))


async def _record_batches(
    opened: _Opened, first: int, columns: Sequence[str], *, base: int
) -> AsyncGenerator[tuple[int, pa.RecordBatch]]:
    """The last entry id of each record batch, and the batch. Entries read before an error precede the error."""

    def fragment_of(entry_id: int) -> int:
        fragment = opened.reader.current_term.fragment_of(entry_id)
        return 0 if fragment is None else fragment.first_entry_id

    gathered: list[EntryBatch] = []
    rows = payload_bytes = 0
    failure: Exception | None = None
    # The planning of the query has found that the last one is confirmed.
    async with aclosing(opened.reader.batches(first, opened.last, confirmed=True)) as batches:
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
                made = entries_as_arrow(columns, gathered, fragment_of, base, has_keys=opened.has_keys)
                yield gathered[-1].entries[-1].entry_id, made
                gathered, rows, payload_bytes = [], 0, 0
            if batch is None:
                break
    if failure is not None:
        raise failure


def _gaps(lost: EntryRange, error: Exception, task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Rows for unreadable entries. Raises :class:`DataLossError` with ``failOnDataLoss=true``."""
    if task.fail_on_data_loss:
        text = getattr(error, "message", "") or str(error)
        if task.log is not None and isinstance(error, NoSuchLedgerError | TruncatedError):
            text = f"{text}: the log has been truncated or deleted since the query was planned"
        raise DataLossError(
            f"{task.first_of(lost)} cannot be read: {text} "
            "(the option failOnDataLoss=false gives rows without a value instead)"
        ) from error
    for first in range(lost.first, lost.last + 1, GAP_ROWS_MAX):
        part = replace(lost, first=first, last=min(lost.last, first + GAP_ROWS_MAX - 1))
        yield gap_as_arrow(task.columns, part)
