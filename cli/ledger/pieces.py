"""Bytes to standard output as they come: in large pieces when there are many, and at once when there are few."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

WRITE_BYTES = 1024 * 1024
"""Payload bytes collected before they are written to the output."""


async def write_pieces(
    pieces: AsyncGenerator[tuple[bytes, int]], *, on_written: Callable[[int], Awaitable[object]] | None = None
) -> None:
    """Write pieces to standard output until they end, and close the generator. What comes while one write is under way
    goes into the next one; the generator waits while :data:`WRITE_BYTES` are to be written.

    Each piece comes with the position after it. ``on_written`` gets that of the last piece, once it is written and
    flushed.
    """
    waiting: list[bytes] = []
    gathered = 0
    stop = 0
    ended = False
    changed, room = asyncio.Event(), asyncio.Event()

    async def gather() -> None:
        nonlocal gathered, stop, ended
        try:
            async with aclosing(pieces):
                async for piece, behind in pieces:
                    stop = behind
                    waiting.append(piece)
                    gathered += len(piece)
                    changed.set()
                    if gathered >= WRITE_BYTES:
                        room.clear()
                        await room.wait()
        finally:
            ended = True
            changed.set()

    gatherer = asyncio.create_task(gather())
    try:
        while not ended or waiting:
            await changed.wait()
            changed.clear()
            together, written = b"".join(waiting), stop
            waiting.clear()
            gathered = 0
            room.set()
            if together:
                await asyncio.to_thread(sys.stdout.buffer.write, together)
                await asyncio.to_thread(sys.stdout.buffer.flush)
            if on_written is not None and written:
                await on_written(written)
        await gatherer
    finally:
        gatherer.cancel()
        await asyncio.gather(gatherer, return_exceptions=True)
