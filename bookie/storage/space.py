"""The disk space of a storage: how much there is, where writes have found none, and what can be given back."""

import asyncio
from collections.abc import Collection, Sequence
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

    def keep_for_compaction(self) -> None:
        """From now on no entries are flushed into what is freed, until :meth:`compaction_ended`."""
        self._disk_retry.hold()

    def compaction_ended(self) -> None:
        """Flushes go on."""
        self._disk_retry.release()

    async def release_spares(self) -> None:
        """Give back the journal's spare segments. Never raises OSError."""
        await self._journal.release_spares()
        self._disk_retry.space_freed()
