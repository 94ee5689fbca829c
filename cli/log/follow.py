"""Entries of a log to standard output, in large pieces when there are many and at once when there are few."""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable

import aiofiles
from octavo.cli.ledger.transfer import WRITE_BYTES
from octavo.client.log.entries import Gap, LogEntry

type Format = Callable[[LogEntry], bytes]
"""An entry as it is written, with what ends it."""


async def write_entries(
    entries: AsyncIterable[LogEntry | Gap],
    form: Format,
    *,
    on_written: Callable[[int], Awaitable[object]] | None = None,
    on_gap: Callable[[Gap], None] | None = None,
) -> None:
    """Write ``entries`` to standard output until they end. What arrives while a piece is written goes into the next;
    not more than :data:`WRITE_BYTES` wait.

    ``on_written`` is told the position after the last entry of a piece once the piece is written and flushed.
    """
    pieces: list[bytes] = []
    gathered = 0
    stop = 0
    ended = False
    changed, room = asyncio.Event(), asyncio.Event()

    async def gather() -> None:
        nonlocal gathered, stop, ended
        try:
            async for entry in entries:
                if not isinstance(entry, LogEntry):
                    assert on_gap is not None, "gaps come only to those that ask for them"
                    on_gap(entry)
                    stop = entry.last + 1
                else:
                    piece = form(entry)
                    pieces.append(piece)
                    gathered += len(piece)
                    stop = entry.position + 1
                changed.set()
                if gathered >= WRITE_BYTES:
                    room.clear()
                    await room.wait()
        finally:
            ended = True
            changed.set()

    gatherer = asyncio.create_task(gather())
    try:
        while not ended or pieces:
            await changed.wait()
            changed.clear()
            piece, written = b"".join(pieces), stop
            pieces.clear()
            gathered = 0
            room.set()
            if piece:
                await aiofiles.stdout_bytes.write(piece)
                await aiofiles.stdout_bytes.flush()
            if on_written is not None and written:
                await on_written(written)
        await gatherer
    finally:
        gatherer.cancel()
        await asyncio.gather(gatherer, return_exceptions=True)
