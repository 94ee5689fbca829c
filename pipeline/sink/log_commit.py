"""The commit of a write into a log: rows that tasks have staged in ledgers are added to the log, each once (rule X2).

:mod:`octavo.pipeline.base.log_writes` says in which steps, and why a commit may die between any two of them and be
repeated, also while an earlier one that was taken for dead goes on.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

from octavo.client.client import Client
from octavo.client.log.log import Log
from octavo.client.log.writer.writer import LogWriter
from octavo.metadata.connect import open_cluster
from octavo.pipeline.base.cluster import catch_up_with_metadata, connected, open_reader, password_hint, read_password
from octavo.pipeline.base.errors import DataLossError
from octavo.pipeline.base.log_write_store import LogWrites
from octavo.pipeline.base.log_writes import LogWrite, State, staged
from octavo.pipeline.base.manifest import PublishedLedger
from octavo.pipeline.base.options import SinkOptions
from octavo.protocol.errors import (
    InternalError,
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchEntryError,
    NoSuchLedgerError,
    OctavoTimeoutError,
    TruncatedError,
    UnauthorizedError,
)

PIECE_BYTES = 1024 * 1024
"""Payload bytes of the adds that are begun together."""

PIECE_ROWS_MAX = 1024
"""Largest number of them."""

PIECES_IN_FLIGHT_MAX = 4
"""Pieces whose adds have no answer yet, so that bookies stay busy while the next rows are read."""

_CONFLICTS_MAX = 100
"""Attempts to store what a write has come to. One fails only when another commit of the write has stored something."""

_LEADER = "spark"
"""The beginning of the name under which a commit leads the log."""


class StagedRows(NamedTuple):
    """Rows that one attempt of a job, or of a batch of a query, has written for a log."""

    job: str
    batch: int | None
    ledgers: tuple[PublishedLedger, ...]
    may_repeat: bool
    """Whether the write may be committed again: it is a query's, or a job's that has a name."""
    first_ledger_id: int | None = None
    """No ledger of this attempt has a lower id; None: derived from the batch before."""


class LogCommit:
    """Commits into one log. See the module."""

    def __init__(self, options: SinkOptions, client: Client, log: Log, writes: LogWrites) -> None:
        self._options = options
        self._client = client
        self._log = log
        self._writes = writes

    async def check(self) -> None:
        """Nothing more: what can be wrong was found when the log was opened."""

    async def next_ledger_id(self) -> int:
        """An id below those of all ledgers created later; ids ascend."""
        return await self._writes.store.allocate_ledger_id()

    async def commit(self, rows: StagedRows) -> None:
        """Add the rows, unless an attempt before has fixed others for the job or batch: those are added then.

        Raises :class:`OctavoTimeoutError` if another client leads the log all the time, :class:`DataLossError` if it
        cannot be known, or is not there, what is to be added.
        """
        write = await self._fixed(rows)
        await self._finish(write)
        # Those of this attempt are other ones if the write was fixed by another.
        await self._writes.delete(ledger.ledger_id for ledger in rows.ledgers)
        await self._writes.sweep(write, write.floor + 1 if rows.first_ledger_id is None else rows.first_ledger_id)
        if not rows.may_repeat:
            await self._writes.forget(rows.job)

    async def abort(self, rows: StagedRows) -> None:
        """Delete what the attempt has staged, unless it is what a later attempt goes on with."""
        write, _ = await self._writes.read(rows.job)
        needed: set[int] = set()
        if write is not None and write.covers(rows.batch):
            if not rows.may_repeat:
                await self._writes.forget(rows.job)
            else:
                needed = {ledger.ledger_id for ledger in write.ledgers}
        await self._writes.delete({ledger.ledger_id for ledger in rows.ledgers} - needed)

    # --- what the write is -------------------------------------------------------------------------------------------

    async def _fixed(self, rows: StagedRows) -> LogWrite:
        """The write of this job or batch, as the first attempt that got here has fixed it."""
        for _ in range(_CONFLICTS_MAX):
            found, version = await self._writes.read(rows.job)
            if found is not None and found.covers(rows.batch):
                return found
            if found is not None and found.state is not State.COMPLETE:
                # The batch before: a query goes on behind a batch only when that is complete.
                await self._finish(found)
                continue
            write = staged(
                self._log.name,
                rows.job,
                rows.batch,
                rows.ledgers,
                may_repeat=rows.may_repeat,
                floor=-1 if found is None else found.floor,
            )
            if await self._writes.store_write(write, version):
                return write
        raise self._conflict(rows.job)

    # --- adding ------------------------------------------------------------------------------------------------------

    async def _finish(self, write: LogWrite) -> None:
        if write.state is State.COMPLETE:
            return
        async with self._leading() as writer:
            started = await self._started(write, writer.end)
            if started is None:
                return
            rows_there = await self._rows_there(started, writer.end)
            await self._add(writer, started, rows_there)
        # If this commit dies now, the next one finds all rows in the log, and needs no ledger.
        await self._writes.delete(ledger.ledger_id for ledger in started.ledgers)
        for _ in range(_CONFLICTS_MAX):
            found, version = await self._writes.read(write.job)
            if found is None or found.batch != write.batch or found.state is State.COMPLETE:
                return
            if await self._writes.store_write(found.completed(), version):
                return
        raise self._conflict(write.job)

    @asynccontextmanager
    async def _leading(self) -> AsyncIterator[LogWriter]:
        seconds = self._options.lead_seconds
        try:
            async with asyncio.timeout(seconds):
                writer = await self._log.lead(_LEADER)
        except OctavoTimeoutError:
            raise
        except TimeoutError as error:
            raise OctavoTimeoutError(
                f"log {self._log.name}: another client has led it for {seconds} seconds (option leadSeconds); the rows "
                "are staged, and a repeated batch, or job with a name, adds them"
            ) from error
        async with writer:
            yield writer

    async def _started(self, write: LogWrite, end: int) -> LogWrite | None:
        """The write with its start, for the leader of a log that ends there; None if another commit has completed
        it."""
        for _ in range(_CONFLICTS_MAX):
            found, version = await self._writes.read(write.job)
            if found is None or found.batch != write.batch or found.state is State.COMPLETE:
                return None
            if found.state is State.STARTED:
                return found
            if await self._writes.store_write(found.started(end), version):
                return found.started(end)
        raise self._conflict(write.job)

    async def _rows_there(self, write: LogWrite, end: int) -> int:
        """How many rows, from the first on, are in the log, which ends there and is led by this commit."""
        assert write.starts_at is not None, "it is started"
        position, rows = write.starts_at, 0
        while position < end:
            position = max(position, self._log.first_position)
            try:
                async with aclosing(self._log.entries(position, end - 1)) as entries:
                    async for entry in entries:
                        row = write.row_of(entry.key)
                        if row is not None:
                            # The first rows may have been truncated.
                            expected = row if not rows and self._log.first_position > write.starts_at else rows
                            if row != expected:
                                raise self._out_of_order(write, row, expected, entry.position)
                            rows = row + 1
                        position = entry.position + 1
            except TruncatedError:
                continue
        if not rows and self._log.first_position > write.starts_at:
            raise DataLossError(
                f"log {self._log.name} was truncated up to position {self._log.first_position} while a write of "
                f"{write.job} was under way from {write.starts_at} on; whether the log held rows of it is not known. "
                "Look at what else the rows have become; a new checkpoint location, or another name of the job, writes "
                "them all again"
            )
        if rows > write.rows:
            raise self._out_of_order(write, rows - 1, write.rows, end)
        return rows

    async def _add(self, writer: LogWriter, write: LogWrite, first_row: int) -> None:
        """Add the rows from ``first_row`` on, each behind the one before or not at all."""
        if first_row == write.rows:
            return
        # The ledgers were made by other processes.
        await catch_up_with_metadata(self._client)
        adds: deque[tuple[int, list[asyncio.Task[int]]]] = deque()
        row, position = first_row, writer.end

        async def oldest_piece() -> None:
            first, piece = adds[0]
            positions = await asyncio.gather(*piece)
            if positions != [*range(first, first + len(piece))]:
                raise InternalError(f"log {self._log.name}: rows of {write.job} are not at {first} and behind it")
            adds.popleft()

        try:
            async with aclosing(self._pieces(write, first_row)) as pieces:
                async for payloads in pieces:
                    piece = [
                        asyncio.ensure_future(
                            writer.add(payload, key=write.key_of(row + at), expected_position=position + at)
                        )
                        for at, payload in enumerate(payloads)
                    ]
                    adds.append((position, piece))
                    row, position = row + len(payloads), position + len(payloads)
                    # The adds must be begun now, so that they stay in order.
                    await asyncio.sleep(0)
                    while len(adds) > PIECES_IN_FLIGHT_MAX:
                        await oldest_piece()
            while adds:
                await oldest_piece()
        finally:
            await asyncio.gather(*(add for _, piece in adds for add in piece), return_exceptions=True)
        if row != write.rows:
            raise InternalError(f"log {self._log.name}: {row} rows of {write.job} were staged, not {write.rows}")

    async def _pieces(self, write: LogWrite, first_row: int) -> AsyncGenerator[list[bytes]]:
        """The payloads from ``first_row`` on, in order."""
        skipped = first_row
        piece: list[bytes] = []
        size = 0
        for ledger in write.ledgers:
            first = min(skipped, ledger.entries)
            skipped -= first
            if first == ledger.entries:
                continue
            try:
                async with (
                    await open_reader(self._client, ledger.ledger_id, self._options.cluster) as reader,
                    aclosing(reader.entries(first, ledger.entries - 1)) as entries,
                ):
                    async for entry in entries:
                        piece.append(entry.payload)
                        size += len(entry.payload)
                        if size >= PIECE_BYTES or len(piece) == PIECE_ROWS_MAX:
                            yield piece
                            piece, size = [], 0
            except (NoSuchLedgerError, NoSuchEntryError) as error:
                raise DataLossError(
                    f"log {self._log.name}: rows of {write.job} that are not in the log yet were staged in ledger "
                    f"{ledger.ledger_id}, which was deleted: {error.message}. A new checkpoint location, or another "
                    "name of the job, writes all rows again"
                ) from error
        if piece:
            yield piece

    def _out_of_order(self, write: LogWrite, row: int, expected: int, position: int) -> InternalError:
        return InternalError(
            f"log {self._log.name}: at position {position} is row {row} of {write.job}, where row {expected} belongs"
        )

    @staticmethod
    def _conflict(job: str) -> MetadataConflictError:
        return MetadataConflictError(f"the write of {job} was changed {_CONFLICTS_MAX} times while it was committed")


@asynccontextmanager
async def log_commit(options: SinkOptions) -> AsyncIterator[LogCommit]:
    """Commits into the log of the options. Disconnected at the end of the block.

    Raises :class:`NoSuchLogError`, :class:`UnauthorizedError`, and :class:`InvalidArgumentError` if the log was created
    without keys.
    """
    assert options.log is not None, "the options name a log"
    async with (
        connected(options.cluster) as client,
        await _open(client, options.log, options) as log,
        await open_cluster(options.cluster.metadata_uri) as store,
    ):
        yield LogCommit(options, client, log, LogWrites(client, store, log.log_id))


async def _open(client: Client, name: str, options: SinkOptions) -> Log:
    password = read_password(options.cluster)
    try:
        log = await client.open_log(name, password=password)
    except UnauthorizedError as error:
        hint = password_hint(options.cluster, password)
        raise UnauthorizedError(f"log {name} needs its password, and {hint}") from error
    if log.keys is None:
        await log.close()
        raise InvalidArgumentError(
            f"log {name} was created without keys, by which each row is added once: create a log with "
            "keys=octavo.KeyWindow()"
        )
    return log
