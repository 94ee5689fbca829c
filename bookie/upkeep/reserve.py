"""Disk space set aside for a full disk: a file of its own, and the journal's spare segments.

A bookie whose disk is full must write before it can free space. While it runs it gives up the reserve to compaction,
and sets it aside again before anything else may take what compaction has freed. A start writes too (cookies get a new
generation, and what the journal holds is made durable again, rule B1), so a start on a full disk gives up the reserve
and the spare segments first. The start takes one of these itself.
"""

import contextlib
from collections.abc import Collection
from pathlib import Path

import structlog
from octavo.bookie.disk.filesystem import FileSystem, is_disk_full
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
        self._held_bytes = 0
        self._lack_reported = False

    async def find(self) -> None:
        """Look whether it is there. Raises OSError."""
        self._held_bytes = 0
        with contextlib.suppress(FileNotFoundError):
            file = await self._filesystem.open(self._path)
            try:
                self._held_bytes = await file.size()
            finally:
                await file.close()

    async def make(self) -> None:
        """Set the space aside unless that has been done; if there is not enough, a half, a quarter or an eighth of it.
        A failure is logged."""
        size_bytes, failure = self._size_bytes, None
        while size_bytes > self._held_bytes and size_bytes >= self._size_bytes // 8:
            try:
                await self._allocate(size_bytes)
            except OSError as error:
                failure, size_bytes = error, size_bytes // 2
                if not is_disk_full(error):
                    break
            else:
                self._held_bytes = size_bytes
        if failure is None:
            self._lack_reported = False
        elif not self._lack_reported:
            self._lack_reported = True
            log.warning(
                "no room for the whole reserve of disk space", path=str(self._path), reserve_bytes=self._held_bytes,
                wanted_bytes=self._size_bytes, reason=str(failure),
            )  # fmt: skip
        if not self._held_bytes:
            with contextlib.suppress(OSError):
                await self._filesystem.remove(self._path)

    async def _allocate(self, size_bytes: int) -> None:
        try:
            file = await self._filesystem.open(self._path, create=True)
        except FileExistsError:
            file = await self._filesystem.open(self._path)
        try:
            await file.allocate(size_bytes)
        finally:
            await file.close()

    async def give_up(self) -> None:
        """Free the space."""
        with contextlib.suppress(OSError):
            await self._filesystem.remove(self._path)
        self._held_bytes = 0


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
