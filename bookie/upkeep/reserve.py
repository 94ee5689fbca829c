"""Disk space set aside for a full disk: a file of its own, and the journal's spare segments.

A bookie whose disk is full must write before it can collect garbage. While it runs it gives up the reserve when a write
finds no space. A start writes too (cookies get a new generation, and what the journal holds is made durable anew, rule
B1), so a start on a full disk gives up the reserve and the spare segments first. The start takes one of these itself.
"""

import contextlib
from collections.abc import Collection
from pathlib import Path

import structlog
from octavo.bookie.disk.filesystem import FileSystem
from octavo.bookie.journal.segments import spare_segments

log = structlog.get_logger("octavo.bookie")

RESERVE_BYTES_MAX = 16 * 1024 * 1024
"""Enough for many manifests and index parts, and to compact small logs."""


class Reserve:
    """The file that holds disk space for the day on which there is no other. ``size_bytes`` 0: none."""

    def __init__(self, filesystem: FileSystem, data_directory: Path, size_bytes: int) -> None:
        self._filesystem = filesystem
        self._path = reserve_path(data_directory)
        self._size_bytes = size_bytes
        self._exists = False

    async def find(self) -> None:
        """Look whether it is there. Raises OSError."""
        self._exists = await self._filesystem.exists(self._path)

    async def make(self) -> None:
        """Set the space aside unless that has been done. A failure is logged."""
        if self._exists or not self._size_bytes:
            return
        try:
            with contextlib.suppress(FileExistsError):
                file = await self._filesystem.open(self._path, create=True)
                try:
                    await file.allocate(self._size_bytes)
                finally:
                    await file.close()
            self._exists = True
        except OSError as error:
            log.warning("no reserve of disk space could be set aside", path=str(self._path), reason=str(error))
            with contextlib.suppress(OSError):
                await self._filesystem.remove(self._path)

    async def give_up(self) -> None:
        """Free the space."""
        with contextlib.suppress(OSError):
            await self._filesystem.remove(self._path)
        self._exists = False


def reserve_path(data_directory: Path) -> Path:
    """Where a bookie keeps its reserve."""
    return data_directory / "reserve"


async def release_reserves_if_full(
    filesystem: FileSystem, directories: Collection[Path], *, data_directory: Path, journal_directory: Path
) -> None:
    """Before a start: give up what was set aside if one of the disks has less space than the start may need. Raises
    OSError."""
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
            "almost no free disk space for a start: the reserve and the spare journal segments are removed",
            free_bytes=min(free.values()),
            files=len(given_up),
        )
