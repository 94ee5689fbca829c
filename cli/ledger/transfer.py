"""Copies files to ledgers and ledgers to files, in bounded memory.

The custom metadata of a ledger hold what the entries alone cannot tell, so that ``append | read`` gives the same bytes
back for any file:

=======================  ======  ==================================================================================
key                      value   meaning
=======================  ======  ==================================================================================
``octavo.separator``     none    entries are pieces of a file (``--whole-file``); nothing belongs between them
``octavo.final-newline`` no      entries are lines, and the last one had no newline
=======================  ======  ==================================================================================

A file of lines that ends with a newline needs neither key, and ledgers of other writers have neither.
"""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from octavo.cli.ledger.lines import (
    LINES,
    LINES_WITHOUT_FINAL_NEWLINE,
    NOTHING_BETWEEN,
    ChunkSplitter,
    LineSplitter,
    OutputFormat,
)
from octavo.cli.ledger.pieces import WRITE_BYTES, write_pieces
from octavo.cli.output import Progress
from octavo.metadata.ledger.changes import Decision
from octavo.metadata.ledger.decisions import Refuse, Settled, Write
from octavo.metadata.ledger.model import LedgerMetadata, LedgerState
from octavo.protocol.errors import InternalError, LedgerClosedError
from octavo.protocol.light_dataclass import dataclass

if TYPE_CHECKING:
    from octavo.client.read.reader import LedgerReader
    from octavo.client.write.writer import LedgerWriter

SEPARATOR_KEY = "octavo.separator"
SEPARATOR_NONE = b"none"
FINAL_NEWLINE_KEY = "octavo.final-newline"
FINAL_NEWLINE_NO = b"no"

READ_BYTES = 1024 * 1024
"""Bytes requested from a file at a time: large enough that the reading thread is seldom woken."""

WAITING_NOTICE_SECONDS = 1.0
"""Time without input after which the user is told how to follow the new ledger."""

ADDS_IN_FLIGHT_MAX = 4
"""Pieces of a file given to the writer and not yet acknowledged: keeps the bookies busy while the file is read, and
memory within a few times :data:`READ_BYTES`."""


class ByteSource(Protocol):
    """A source of bytes."""

    async def read(self) -> bytes:
        """The next bytes, at most :data:`READ_BYTES`; empty at the end."""


@asynccontextmanager
async def open_source(path: Path | None, *, on_waiting: Callable[[], None]) -> AsyncIterator[ByteSource]:
    """The file at ``path``, or standard input for None. Raises :class:`OSError`. ``on_waiting`` is called once if
    nothing arrives on standard input for a while."""
    if path is None:
        yield _StandardInput(on_waiting)
        return
    import aiofiles  # noqa: PLC0415 - only for input

    async with aiofiles.open(path, "rb", buffering=0) as file:
        yield _File(file)


class _File:
    def __init__(self, file: Any) -> None:
        self._file = file

    async def read(self) -> bytes:
        data: bytes = await self._file.read(READ_BYTES)
        return data


class _StandardInput:
    def __init__(self, on_waiting: Callable[[], None]) -> None:
        self._on_waiting = on_waiting
        self._waited = False

    async def read(self) -> bytes:
        import aiofiles  # noqa: PLC0415 - only for input

        notice = None
        if not self._waited:
            notice = asyncio.get_running_loop().call_later(WAITING_NOTICE_SECONDS, self._note_waiting)
        try:
            # read1 returns what a pipe holds now, so that lines reach the ledger and its readers as they arrive.
            data: bytes = await aiofiles.stdin_bytes.read1(READ_BYTES)
        finally:
            if notice is not None:
                notice.cancel()
        return data

    def _note_waiting(self) -> None:
        self._waited = True
        self._on_waiting()


# --- into a ledger ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of an append."""

    entries: int
    payload_bytes: int
    file_bytes: int


async def append_source(
    ledger: "LedgerWriter", source: ByteSource, splitter: LineSplitter | ChunkSplitter, progress: Progress
) -> Appended:
    """Add the entries of ``source`` in order; returns once the last one is acknowledged. Several pieces are in flight
    at a time; each is acknowledged as soon as the bookies have it, whether or not the source gives more.

    Raises the errors of reading and adding, and :class:`EntryTooLargeError` naming the line.
    """
    pending: deque[asyncio.Future[range]] = deque()
    entries = payload_bytes = file_bytes = 0

    async def acknowledge_oldest() -> None:
        nonlocal entries
        ids = await pending.popleft()
        if ids.start != entries:
            raise InternalError(f"ledger {ledger.id}: entry {entries} of this file got the id {ids.start}")
        entries = ids.stop

    try:
        at_end = False
        while not at_end:
            chunk = await source.read()
            at_end = not chunk
            payloads = splitter.finish() if at_end else splitter.feed(chunk)
            if payloads:
                pending.append(asyncio.ensure_future(ledger.add_many(payloads)))
                payload_bytes += sum(map(len, payloads))
            file_bytes += len(chunk)
            while len(pending) >= ADDS_IN_FLIGHT_MAX:
                await acknowledge_oldest()
            progress(file_bytes)
        while pending:
            await acknowledge_oldest()
    finally:
        for add in pending:
            add.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
    return Appended(entries, payload_bytes, file_bytes)


@dataclass(frozen=True, slots=True)
class NoteInCustomMetadata:
    """Adds to the custom metadata of an open ledger. For :func:`octavo.metadata.updates.update.update_ledger`."""

    notes: Mapping[str, bytes]

    def decide(self, current: LedgerMetadata) -> Decision:
        """Write while the ledger is open; settled once every note is stored; refused once it is closed or recovered."""
        if all(current.custom_metadata.get(key) == value for key, value in self.notes.items()):
            return Settled()
        if current.state is not LedgerState.OPEN:
            return Refuse(
                LedgerClosedError(f"ledger {current.ledger_id} was closed by another client while it was written")
            )
        return Write(replace(current, custom_metadata={**current.custom_metadata, **self.notes}))


# --- out of a ledger -------------------------------------------------------------------------------------------------


def output_format(metadata: LedgerMetadata, *, raw: bool, reaches_end: bool) -> OutputFormat:
    """How payloads become a file. ``reaches_end``: the output ends with the last entry of a closed ledger."""
    if raw or metadata.custom_metadata.get(SEPARATOR_KEY) == SEPARATOR_NONE:
        return NOTHING_BETWEEN
    lacks_newline = reaches_end and metadata.custom_metadata.get(FINAL_NEWLINE_KEY) == FINAL_NEWLINE_NO
    return LINES_WITHOUT_FINAL_NEWLINE if lacks_newline else LINES


async def write_entries(
    reader: "LedgerReader", first: int, last: int, output: OutputFormat, progress: Progress
) -> None:
    """Write the payloads of ``first`` to ``last`` (inclusive) to standard output, in large pieces.

    Writes nothing if last < first. While a piece is being written, the next one is already being read.
    """
    if last < first:
        return
    writing: asyncio.Future[Any] | None = None
    written_bytes = 0
    payloads: list[bytes] = []
    gathered = 0

    async def write(piece: bytes) -> None:
        nonlocal writing
        if writing is not None:
            await writing
        writing = asyncio.ensure_future(asyncio.to_thread(sys.stdout.buffer.write, piece))

    try:
        async for entry in reader.entries(first, last):
            payload = entry.payload
            payloads.append(payload)
            gathered += len(payload) + 1
            if gathered >= WRITE_BYTES and entry.entry_id < last:
                await write(output.join(payloads, ends=False))
                written_bytes += gathered
                progress(written_bytes)
                payloads, gathered = [], 0
        await write(output.join(payloads, ends=True))
        if writing is not None:
            await writing
        await asyncio.to_thread(sys.stdout.buffer.flush)
    finally:
        if writing is not None and not writing.done():
            writing.cancel()


async def follow_entries(reader: "LedgerReader", first: int, output: OutputFormat) -> None:
    """Write payloads from ``first`` on as they become readable, until the ledger is closed."""

    async def pieces() -> AsyncGenerator[tuple[bytes, int]]:
        async for entry in reader.follow(first):
            yield output.join([entry.payload], ends=False), entry.entry_id + 1

    await write_pieces(pieces())
