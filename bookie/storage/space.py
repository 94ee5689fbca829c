"""The disk space of a storage: how much there is, where writes have found none, and what can be given back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path, PurePath

from octavo.bookie.disk.filesystem import DiskSpace, FileSystem
from octavo.bookie.disk.full_disk import FullDiskRetry
from octavo.bookie.entrylog.logs import EntryLogs
from octavo.bookie.journal.journal import Journal


class StorageSpace:
    """``directory`` holds manifest and index; ``entry_homes`` are all directories in which entry logs stand."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: Path,
        entry_homes: Sequence[Path],
        *,
        logs: EntryLogs,
        journal: Journal,
        disk_retry: FullDiskRetry,
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._entry_homes = entry_homes
        self._logs = logs
        self._journal = journal
        self._disk_retry = disk_retry
        journal.on_out_of_space(disk_retry.met.set)

    @property
    def disk_full(self) -> asyncio.Event:
        """Set when a write has found the disk full; see :meth:`take_full_directories`."""
        return self._disk_retry.met

    async def largest(self) -> DiskSpace:
        """Of the disk with entry logs that has the most free space."""
        spaces = [await self._filesystem.disk_space(folder) for folder in self._entry_homes]
        return max(spaces, key=lambda space: space.free_bytes)

    def take_full_directories(self) -> frozenset[Path]:
        """The directories in which writes have found the disk full since the last call, or wait for free space."""
        found = {self._journal.directory} if self._journal.out_of_space else set()
        for place in self._disk_retry.take_full_places():  # entry logs wait only when no directory of theirs has space
            found.update(self._entry_homes if place in self._logs.directories else [self._directory])
        return frozenset(found)

    def avoid(self, short: Collection[PurePath]) -> None:
        """Begin no entry log in these directories, whose disks are short of space, while there is another."""
        self._logs.full = {folder / "entries" for folder in self._entry_homes if folder in short}
        if not short:
            self._disk_retry.space_freed()

    @property
    def urgent_writes_wait(self) -> bool:
        """Whether an index part or the manifest waits for free space."""
        return self._disk_retry.urgent_writes_wait

    @contextlib.asynccontextmanager
    async def kept_for_compaction(self) -> AsyncIterator[None]:
        """Inside, neither entries that are flushed nor new journal segments take free space. Segments that are there
        already go on being used."""
        async with self._disk_retry.kept_for_urgent_writes(), self._journal.kept_from_growing():
            yield

    async def release_spares(self) -> None:
        """Give back the journal's spare segments but one, in which tombstones find room. Never raises OSError."""
        await self._journal.release_spares(keep=1)
        self._disk_retry.space_freed()

    async def urgent_writes_ended(self) -> None:
        """Space has been freed: returns when the index part or manifest that waited has been written, or has found the
        disk full again."""
        self._disk_retry.space_freed()
        await self._disk_retry.urgent_writes_ended()
