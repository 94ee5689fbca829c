"""A start on a full disk: it must write before it can collect garbage, so what was set aside for such a day goes first.

Cookies get a new generation, and what the journal holds is made durable anew (rule B1). The reserve and the
journal's spare segments, of which the start itself takes one, are room that nobody else could take while the bookie was
down.
"""

import contextlib
from collections.abc import Collection
from pathlib import Path

import structlog
from octavo.bookie.disk.filesystem import FileSystem
from octavo.bookie.journal.segments import spare_segments
from octavo.bookie.upkeep.upkeep import RESERVE_BYTES_MAX, reserve_path

log = structlog.get_logger("octavo.bookie")


async def make_room_if_full(
    filesystem: FileSystem, directories: Collection[Path], *, data_directory: Path, journal_directory: Path
) -> None:
    """Give up what was set aside if one of the disks has less room than it may need. Raises OSError."""
    free = {path: (await filesystem.disk_space(path)).free_bytes for path in directories}
    if min(free.values()) >= RESERVE_BYTES_MAX:
        return
    spares = spare_segments(await filesystem.list_directory(journal_directory))
    given_up = [journal_directory / name for name in spares[:-1]]
    if await filesystem.exists(reserve_path(data_directory)):
        given_up.append(reserve_path(data_directory))
    for path in given_up:
        with contextlib.suppress(OSError):
            await filesystem.remove(path)
    if given_up:
        log.warning(
            "hardly any room for a start: reserve and spare segments are given up",
            free_bytes=min(free.values()),
            files=len(given_up),
        )
