"""The write task: writes rows into ledgers and closes them. They are not visible before they are published.

Memory is bounded: values are taken from Arrow piece by piece, and only a few pieces are in flight at a time.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from octavo.client.client import Client
from octavo.client.log.documents.key_window import KEY_BYTES_MAX
from octavo.client.write.writer import LedgerWriter
from octavo.pipeline.base.bridge import LoopThread
from octavo.pipeline.base.cluster import connected, read_password
from octavo.pipeline.base.datasets import Tags
from octavo.pipeline.base.manifest import KEY_CHARACTERS_MAX, PublishedLedger
from octavo.pipeline.base.options import SinkOptions
from octavo.pipeline.base.worker_memory import prepare_worker
from octavo.protocol.errors import InvalidArgumentError, OctavoError
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

PIECE_BYTES = 1024 * 1024
"""Payload bytes of one piece (one call of ``add_many``)."""

PAYLOAD_BYTES_MAX_WITH_KEY = ENTRY_PAYLOAD_BYTES_MAX - 1 - KEY_BYTES_MAX
"""The largest value of a row that goes into a log, where its key stands in the entry."""

PIECE_ROWS_MAX = 4096
"""Largest number of rows in one piece."""

PIECES_IN_FLIGHT_MAX = 4
"""Largest number of unacknowledged pieces, so that bookies stay busy while Spark produces the next rows."""


class AttemptTags(NamedTuple):
    """Identifies an attempt of a task; stored in the custom metadata of its ledgers."""

    job: str
    query: str | None
    batch: int | None
    partition: int
    attempt: int

    def custom_metadata(self, options: SinkOptions, key: str | None) -> dict[str, bytes]:
        """The custom metadata of a ledger of this attempt."""
        tags = {
            Tags.DATASET: options.dataset,
            Tags.FOR_LOG: options.log,
            Tags.JOB: self.job,
            Tags.QUERY: self.query,
            Tags.BATCH: self.batch,
            Tags.PARTITION: self.partition,
            Tags.ATTEMPT: self.attempt,
            Tags.KEY: key,
        }
        return {name: str(value).encode() for name, value in tags.items() if value is not None}


@dataclass(frozen=True, slots=True)
class WriteTask:
    """The work of one write task."""

    options: SinkOptions
    value_column: str
    key_column: str | None
    tags: AttemptTags


def write_in_worker(task: WriteTask, batches: Iterator[pa.RecordBatch]) -> list[PublishedLedger]:
    """Write all rows of a task. Returns its ledgers, closed, in the order of their first rows. For Spark's worker.

    After a failure it deletes the ledgers as far as possible.
    """
    prepare_worker()
    with LoopThread("octavo writing") as loop:
        writer = loop.run(_open_writer(task))
        try:
            for batch in batches:
                for key, payloads in _pieces(batch, task, writer.rows):
                    loop.run(writer.add(key, payloads))
                writer.rows += batch.num_rows
            return loop.run(writer.finish())
        except BaseException:
            loop.run(writer.discard())
            raise
        finally:
            loop.run(writer.close())


async def _open_writer(task: WriteTask) -> "_TaskWriter":
    stack = AsyncExitStack()
    client = await stack.enter_async_context(connected(task.options.cluster))
    return _TaskWriter(task, client, stack, read_password(task.options.cluster))


class _TaskWriter:
    """The ledgers of one task, one for each key, created when the first row of the key arrives."""

    def __init__(self, task: WriteTask, client: Client, stack: AsyncExitStack, password: bytes) -> None:
        self.rows = 0
        """Number of rows in the batches before the current one."""
        self._task = task
        self._client = client
        self._stack = stack
        self._password = password
        self._ledgers: dict[str | None, LedgerWriter] = {}
        self._in_flight: deque[asyncio.Task[range]] = deque()

    async def add(self, key: str | None, payloads: list[bytes]) -> None:
        """Add entries to the ledger of the key. Waits while too many pieces are in flight. Also raises earlier
        failures."""
        ledger = self._ledgers.get(key)
        if ledger is None:
            ledger = await self._create(key)
        self._in_flight.append(asyncio.ensure_future(ledger.add_many(payloads)))
        # The task must run now, so that the pieces of one ledger are added in order.
        await asyncio.sleep(0)
        while len(self._in_flight) > PIECES_IN_FLIGHT_MAX:
            await self._in_flight.popleft()

    async def finish(self) -> list[PublishedLedger]:
        """Wait for all adds and close the ledgers."""
        while self._in_flight:
            await self._in_flight.popleft()
        for ledger in self._ledgers.values():
            await ledger.close()
        return [
            PublishedLedger(ledger.id, (ledger.last_add_confirmed or 0) + 1, ledger.length)
            for ledger in self._ledgers.values()
        ]

    async def discard(self) -> None:
        """Delete the ledgers. A later commit sweeps those that cannot be deleted now."""
        for add in self._in_flight:
            add.cancel()
        await asyncio.gather(*self._in_flight, return_exceptions=True)
        for ledger in self._ledgers.values():
            with contextlib.suppress(OctavoError):
                await self._client.delete_ledger(ledger.id)
            # The ledger is gone; closing the writer here keeps the client from reporting an error.
            with contextlib.suppress(OctavoError):
                await ledger.close()
        self._ledgers.clear()

    async def close(self) -> None:
        """Disconnect from the cluster."""
        await self._stack.aclose()

    async def _create(self, key: str | None) -> LedgerWriter:
        options = self._task.options
        if len(self._ledgers) >= options.keys_per_task_max:
            raise InvalidArgumentError(
                f"more than {options.keys_per_task_max} different keys in one task, each of which needs a ledger: "
                f"repartition by column {self._task.key_column}, or raise the option maxKeysPerTask"
            )
        ledger = await self._client.create_ledger(
            *options.quorums,
            digest=options.digest,
            password=self._password,
            custom_metadata=self._task.tags.custom_metadata(options, key),
        )
        self._ledgers[key] = ledger
        return ledger


# --- rows ------------------------------------------------------------------------------------------------------------


def _pieces(batch: pa.RecordBatch, task: WriteTask, rows_before: int) -> Iterator[tuple[str | None, list[bytes]]]:
    """The rows of a batch in order, as runs of one key and of bounded size."""
    where = partial(_describe_row, task, rows_before)
    values = batch.column(task.value_column)
    if values.null_count:
        raise InvalidArgumentError(
            f"column {task.value_column} is NULL in {where(_first(pc.is_null(values)))}; an entry needs a value: "
            "filter such rows out"
        )
    if not pa.types.is_binary(values.type):
        values = values.cast(pa.binary())
    sizes = pc.binary_length(values).to_pylist()
    limit = ENTRY_PAYLOAD_BYTES_MAX if task.options.log is None else PAYLOAD_BYTES_MAX_WITH_KEY
    if sizes and max(sizes) > limit:
        row = next(row for row, size in enumerate(sizes) if size > limit)
        raise InvalidArgumentError(
            f"column {task.value_column} has {sizes[row]} bytes in {where(row)}; an entry has at most {limit}"
        )
    keys = _keys(batch, task, where)
    for start, stop in _runs(sizes, keys):
        yield (None if keys is None else keys[start]), values.slice(start, stop - start).to_pylist()


def _runs(sizes: list[int], keys: list[str | None] | None) -> Iterator[tuple[int, int]]:
    start = held = 0
    for row, size in enumerate(sizes):
        full = held + size > PIECE_BYTES or row - start >= PIECE_ROWS_MAX
        if row > start and (full or (keys is not None and keys[row] != keys[start])):
            yield start, row
            start, held = row, 0
        held += size
    if start < len(sizes):
        yield start, len(sizes)


def _keys(batch: pa.RecordBatch, task: WriteTask, where: "partial[str]") -> list[str | None] | None:
    if task.key_column is None:
        return None
    column = batch.column(task.key_column)
    if pa.types.is_binary(column.type):
        try:
            column = column.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise InvalidArgumentError(f"column {task.key_column} holds a key that is not UTF-8: {error}") from None
    keys: list[str | None] = column.cast(pa.string()).to_pylist()
    for row, key in enumerate(keys):
        if key is not None and len(key) > KEY_CHARACTERS_MAX:
            raise InvalidArgumentError(
                f"column {task.key_column} has {len(key)} characters in {where(row)}; a key has at most "
                f"{KEY_CHARACTERS_MAX}"
            )
    return keys


def _describe_row(task: WriteTask, rows_before: int, row: int) -> str:
    return f"row {rows_before + row} of partition {task.tags.partition}"


def _first(mask: pa.Array) -> int:
    return int(mask.to_pylist().index(True))
