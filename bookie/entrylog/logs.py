"""Entry logs: their files, writers and readers. Module ``format`` has the bytes."""

import contextlib
import errno
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import structlog
from octavo.bookie.disk.filesystem import (
    File,
    FileSystem,
    is_disk_full,
    read_file,
    replace_file,
    sync_file,
    sync_names,
)
from octavo.bookie.entrylog.format import (
    HEADER_BYTES,
    Totals,
    add_to_totals,
    decode_totals,
    encode_filler,
    encode_header,
    encode_totals,
    log_name,
)
from octavo.bookie.entrylog.walk import DamagedStretch, walk_log
from octavo.protocol.entries import header_of
from octavo.protocol.errors import BookieStorageError

log = structlog.get_logger("octavo.bookie")

_OPEN_LOGS_MAX = 256
"""Maximum of logs kept open for reading: far below the usual limit of 1,024 file descriptors."""


class EntryLogWriter:
    """Appends to one new log. One user at a time; not durable before :meth:`sync`."""

    def __init__(self, filesystem: FileSystem, log_id: int, file: File, sync_file: File) -> None:
        self._filesystem = filesystem
        self._file = file
        self._sync_file = sync_file
        self.log_id = log_id
        self.size = HEADER_BYTES
        self.totals: Totals = {}

    @classmethod
    async def create(cls, filesystem: FileSystem, directory: Path, log_id: int) -> "EntryLogWriter":
        """Create a log. Its name is durable when this returns, its bytes are not. Raises OSError after removing the
        file, if the disk allows that."""
        path = directory / log_name(log_id)
        file = await filesystem.open(path, create=True)
        try:
            await file.write(0, [encode_header(log_id)])
            await sync_names(filesystem, directory)
            # A second handle with its own thread: a long sync must not hold up the writes of the next flush.
            sync_file = await filesystem.open(path, dedicated_thread=True)
        except BaseException:  # a cancelled compaction must leave nothing open either
            await file.close()
            with contextlib.suppress(OSError):
                await filesystem.remove(path)
            raise
        return cls(filesystem, log_id, file, sync_file)

    async def append(self, buffers: Sequence[bytes], size: int) -> None:
        """Write whole sealed entries, ``size`` bytes together, at the end. Raises OSError; then the log keeps its old
        end, and its owner must not append to it again."""
        try:
            await self._file.write(self.size, buffers)
        except OSError:
            with contextlib.suppress(OSError):
                await self._file.truncate(self.size)  # releases the space of a partial write
            raise
        self.size += size

    async def fill_page(self) -> None:
        """Append a filler up to the end of the page, if something is in it. Raises OSError as :meth:`append` does."""
        filler = encode_filler(self.size)
        if filler:
            await self.append([filler], len(filler))

    async def sync(self) -> None:
        """Make everything appended before the call durable."""
        await sync_file(self._sync_file)

    async def finish(self) -> None:
        """Write the totals and close. The log must have been synced."""
        # Missing totals only cost a scan.
        try:
            await replace_file(
                self._filesystem, self._file.path.with_suffix(".totals"), encode_totals(self.log_id, self.totals)
            )
        except OSError as error:
            if not is_disk_full(error):
                raise
            log.warning("totals of an entry log not written", path=str(self._file.path), reason=str(error))
        finally:
            await self.close()

    async def close(self) -> None:
        await self._file.close()
        await self._sync_file.close()


class EntryLogs:
    """The entry logs of a bookie, in one directory or several. Keeps recently read logs open."""

    def __init__(self, filesystem: FileSystem, directories: Sequence[Path]) -> None:
        assert directories, "entry logs need a directory"
        self._filesystem = filesystem
        self.directories = tuple(directories)
        self._homes: dict[int, Path] = {}
        self._open: OrderedDict[int, File] = OrderedDict()
        self._closed = False
        self._turn = 0
        self.full: set[Path] = set()
        """Directories on full disks: new logs are created elsewhere while another directory exists."""

    async def find(self) -> None:
        """Find the logs and their directories. Raises OSError."""
        for directory in self.directories:
            for name in await self._filesystem.list_directory(directory):
                stem, _, suffix = name.partition(".")
                if suffix == "log" and _is_hexadecimal(stem):
                    known = self._homes.setdefault(int(stem, 16), directory)
                    if known != directory:
                        log.error("an entry log is in two directories", name=name, used=str(known))

    @property
    def ids(self) -> list[int]:
        """Ids of all known logs, ascending."""
        return sorted(self._homes)

    def path(self, log_id: int) -> Path:
        return self._homes.get(log_id, self.directories[0]) / log_name(log_id)

    async def create(self, log_id: int) -> EntryLogWriter:
        """Create a log, in each directory in turn. Raises OSError."""
        usable = [directory for directory in self.directories if directory not in self.full] or self.directories
        self._turn += 1
        directory = usable[self._turn % len(usable)]
        self._homes[log_id] = directory
        try:
            return await EntryLogWriter.create(self._filesystem, directory, log_id)
        except OSError:
            self.note_full(log_id)
            raise

    @property
    def has_other_disks(self) -> bool:
        """Whether some directory is not known to be full."""
        return not self.full.issuperset(self.directories)

    def is_full(self, log_id: int) -> bool:
        """Whether the disk of this log is known to be full."""
        return self._homes[log_id] in self.full

    def note_full(self, log_id: int) -> None:
        """A write to this log failed, usually because its disk is full: create the next log elsewhere if possible. The
        disk watch corrects :attr:`full` later."""
        self.full.add(self._homes[log_id])

    async def read(self, log_id: int, offset: int, size: int) -> bytes:
        """Bytes of a log, fewer than ``size`` at its end. Raises OSError."""
        file = self._open.get(log_id)
        if file is None:
            file = await self._open_log(log_id)
        elif len(self._open) > 1:
            self._open.move_to_end(log_id)
        return await file.read(offset, size)

    async def _open_log(self, log_id: int) -> File:
        path = self.path(log_id)
        file = await self._filesystem.open(path)
        if self._closed:
            # The read of a closing connection arrived late; no later step would close this file.
            await file.close()
            raise OSError(errno.EBADF, "the entry logs are closed", str(path))
        raced = self._open.setdefault(log_id, file)
        if raced is not file:
            await file.close()
        while len(self._open) > _OPEN_LOGS_MAX:
            _, oldest = self._open.popitem(last=False)
            await oldest.close()
        return raced

    async def totals(self, log_id: int, size: int) -> Totals:
        """The amount that each ledger has in the first ``size`` bytes of a log. Raises :class:`BookieStorageError`,
        OSError."""
        path = self.path(log_id)
        return await log_totals(self._filesystem, path.parent, log_id, size)

    async def remove(self, log_id: int) -> None:
        """Remove a log that the manifest does not name and no reader uses. Raises OSError."""
        path = self.path(log_id)
        self._homes.pop(log_id, None)
        file = self._open.pop(log_id, None)
        if file is not None:
            await file.close()
        for gone in (path, path.with_suffix(".totals")):
            with contextlib.suppress(FileNotFoundError):
                await self._filesystem.remove(gone)

    async def close(self) -> None:
        """Close every log. Later reads fail with OSError."""
        self._closed = True
        while self._open:
            _, file = self._open.popitem()
            await file.close()


def _is_hexadecimal(stem: str) -> bool:
    try:
        int(stem, 16)
    except ValueError:
        return False
    return True


async def scan_log(filesystem: FileSystem, path: Path, *, stop: int | None = None) -> AsyncIterator[tuple[int, bytes]]:
    """Every entry of a log with its offset, in order, up to ``stop`` (default: the end of the file).

    Raises :class:`BookieStorageError`, naming the offset, at the first place that is no intact entry.
    """
    file = await filesystem.open(path)
    try:
        end = await file.size() if stop is None else stop
        async for found in walk_log(file.read, stop=end):
            if isinstance(found, DamagedStretch):
                raise BookieStorageError(f"entry log {path}, offset {found.offset}: no intact entry at this offset")
            yield found
    finally:
        await file.close()


async def log_totals(filesystem: FileSystem, directory: Path, log_id: int, size: int) -> Totals:
    """The amount that each ledger has in a log: from its totals file, otherwise by a scan of its first ``size``
    bytes."""
    path = directory / log_name(log_id)
    try:
        known = decode_totals(log_id, await read_file(filesystem, path.with_suffix(".totals")))
    except FileNotFoundError:
        known = None
    if known is not None:
        return known
    totals: Totals = {}
    async for _, sealed in scan_log(filesystem, path, stop=size):
        header = header_of(sealed)
        add_to_totals(totals, header.ledger_id, len(sealed), header.entry_id)
    return totals
