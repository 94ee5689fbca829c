"""A small journal on a file system of memory, and what is done with it."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo.bookie.journal.format import DATA_START
from octavo.bookie.journal.journal import Journal, JournalPosition, JournalSettings, RecordKind

DIRECTORY = Path("/bookie/journal")
TINY = JournalSettings(
    segment_bytes=3 * DATA_START,
    first_fill_bytes=3 * DATA_START,
    spare_segments_max=2,
    fill_pause_seconds=0,
    full_retry_seconds=0.001,
)


async def settle() -> None:
    """Let everything that can run now run."""
    for _ in range(50):
        await asyncio.sleep(0)


async def started(
    filesystem: Any,
    *,
    settings: JournalSettings = TINY,
    start: JournalPosition | None = None,
    on_failure: Callable[[BaseException], None] | None = None,
    directory: Path = DIRECTORY,
) -> tuple[Journal, list[bytes]]:
    """A journal that has been replayed and started, and the bodies found."""
    journal = await Journal.open(
        filesystem, directory, settings=settings, start=start, on_failure=on_failure, rng=random.Random(1)
    )
    bodies = [body async for _, body, _ in journal.replay()]
    await journal.start()
    return journal, bodies


async def fill(journal: Journal, count: int, size: int = 1000) -> list[tuple[bytes, JournalPosition]]:
    """Append records one after another."""
    result = []
    for number in range(count):
        body = bytes([number % 256]) * size
        await journal.append(RecordKind.ADD, [body])
        result.append((body, journal.position))
    return result
