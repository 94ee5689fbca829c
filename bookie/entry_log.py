"""Entry logs: large append-only files of sealed entries, back to back. Format, writer and readers.

A log is a header of 32 bytes (magic ``OCTVELOG``, format u32 (1), log id u64, 8 bytes of zero, CRC32C u32 of what
precedes; big-endian, the checksum little-endian) and then sealed entries as ``protocol.entries`` lays them out. An
entry is its own record: it says how long it is, whose it is, and carries its own checksum, so a log can be walked
and scrubbed without an index or a password. Bytes after the length that the manifest gives a log are left over from
a crash and mean nothing.

Beside a finished log stands ``<log>.totals``: magic ``OCTVTOTL``, format u32, log id u64, count u32, then ledger id
u64 and bytes u64 of each ledger with entries in it, ascending, and a CRC32C. It serves compaction and can be made
again by a scan.
"""

import contextlib
import struct
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import google_crc32c
import structlog
from octavo.bookie.filesystem import File, FileSystem, is_disk_full, read_file, replace_file, sync_file
from octavo.protocol.entries import SEALED_BYTES_MAX, SEALED_BYTES_MIN, header_of, is_intact, sealed_bytes
from octavo.protocol.errors import BookieStorageError, ProtocolError

log = structlog.get_logger("octavo.bookie")

MAGIC = b"OCTVELOG"
TOTALS_MAGIC = b"OCTVTOTL"
FORMAT = 1
_HEADER = struct.Struct(">8sIQ8x")
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CHECKSUM.size
_TOTALS = struct.Struct(">8sIQI")
_TOTAL = struct.Struct(">QQ")

_OPEN_LOGS_MAX = 256
"""Logs kept open for reading: far below the usual limit of 1,024 file descriptors."""

_SCAN_BYTES = 2 * SEALED_BYTES_MAX
"""One read of a scan: always holds a whole entry."""


def log_name(log_id: int) -> str:
    """File name of a log."""
    return f"{log_id:016x}.log"


def encode_header(log_id: int) -> bytes:
    head = _HEADER.pack(MAGIC, FORMAT, log_id)
    return head + _CHECKSUM.pack(google_crc32c.value(head))


def encode_totals(log_id: int, totals: Mapping[int, int]) -> bytes:
    """The side file of a finished log: bytes of each ledger in it."""
    body = _TOTALS.pack(TOTALS_MAGIC, FORMAT, log_id, len(totals)) + b"".join(
        _TOTAL.pack(ledger_id, totals[ledger_id]) for ledger_id in sorted(totals)
    )
    return body + _CHECKSUM.pack(google_crc32c.value(body))


def decode_totals(log_id: int, data: bytes) -> dict[int, int] | None:
    """What :func:`encode_totals` was given; None when the bytes do not verify: scan the log instead."""
    body = data[: -_CHECKSUM.size]
    if len(body) < _TOTALS.size or data[len(body) :] != _CHECKSUM.pack(google_crc32c.value(body)):
        return None
    magic, version, named, count = _TOTALS.unpack_from(body)
    if (magic, version, named) != (TOTALS_MAGIC, FORMAT, log_id):
        return None
    return dict(_TOTAL.unpack_from(body, _TOTALS.size + at * _TOTAL.size) for at in range(count))


class EntryLogWriter:
    """Appends to one new log. One user at a time; not durable before :meth:`sync`."""

    def __init__(self, filesystem: FileSystem, log_id: int, file: File, sync_file: File) -> None:
        self._filesystem = filesystem
        self._file = file
        self._sync_file = sync_file
        self.log_id = log_id
        self.size = HEADER_BYTES
        self.totals: dict[int, int] = {}

    @classmethod
    async def create(cls, filesystem: FileSystem, directory: Path, log_id: int) -> "EntryLogWriter":
        """Start a log. Its name is durable once this returns, its bytes are not. Raises OSError; then nothing of it
        remains that counts."""
        path = directory / log_name(log_id)
        file = await filesystem.open(path, create=True)
        try:
            await file.write(0, [encode_header(log_id)])
            await filesystem.sync_directory(directory)
            # A second handle with its own thread: a long sync must not hold up the writes of the next flush.
            sync_file = await filesystem.open(path, dedicated_thread=True)
        except OSError:
            await file.close()
            with contextlib.suppress(OSError):
                await filesystem.remove(path)
            raise
        return cls(filesystem, log_id, file, sync_file)

    async def append(self, buffers: Sequence[bytes], size: int) -> None:
        """Write whole sealed entries, ``size`` bytes together, at the end. Raises OSError; then the log ends where it
        did, and is not appended to again."""
        try:
            await self._file.write(self.size, buffers)
        except OSError:
            with contextlib.suppress(OSError):
                await self._file.truncate(self.size)  # gives back what a full disk had taken of it
            raise
        self.size += size

    async def sync(self) -> None:
        """Make durable what was appended before the call."""
        await sync_file(self._sync_file)

    async def finish(self) -> None:
        """Write the totals and close. The log must have been synced."""
        # Totals only save a scan.
        try:
            await replace_file(
                self._filesystem, self._file.path.with_suffix(".totals"), encode_totals(self.log_id, self.totals)
            )
        except OSError as error:
            if not is_disk_full(error):
                raise
            log.warning("totals of an entry log not written", path=str(self._file.path), reason=str(error))
        await self.close()

    async def close(self) -> None:
        await self._file.close()
        await self._sync_file.close()


class EntryLogs:
    """The entry logs of a bookie, in one directory or several. Keeps those recently read from open."""

    def __init__(self, filesystem: FileSystem, directories: Sequence[Path]) -> None:
        assert directories, "entry logs need a directory"
        self._filesystem = filesystem
        self.directories = tuple(directories)
        self._homes: dict[int, Path] = {}
        self._open: OrderedDict[int, File] = OrderedDict()
        self._turn = 0
        self.full: set[Path] = set()
        """Directories in which no new log is begun while there is another."""

    async def find(self) -> None:
        """Learn which log is where. Raises OSError."""
        for directory in self.directories:
            for name in await self._filesystem.list_directory(directory):
                stem, _, suffix = name.partition(".")
                if suffix == "log" and _is_hexadecimal(stem):
                    known = self._homes.setdefault(int(stem, 16), directory)
                    if known != directory:
                        log.error("an entry log stands in two directories", name=name, used=str(known))

    def path(self, log_id: int) -> Path:
        return self._homes.get(log_id, self.directories[0]) / log_name(log_id)

    async def create(self, log_id: int) -> EntryLogWriter:
        """Begin a log, in the directories by turns. Raises OSError."""
        usable = [directory for directory in self.directories if directory not in self.full] or self.directories
        self._turn += 1
        directory = usable[self._turn % len(usable)]
        self._homes[log_id] = directory
        try:
            return await EntryLogWriter.create(self._filesystem, directory, log_id)
        except OSError:
            self.note_trouble(log_id)
            raise

    def note_trouble(self, log_id: int) -> None:
        """The disk of this log has no room, or worse: begin the next one elsewhere if that is possible. Whoever watches
        the disks corrects :attr:`full`."""
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
        file = await self._filesystem.open(self.path(log_id))
        raced = self._open.setdefault(log_id, file)
        if raced is not file:
            await file.close()
        while len(self._open) > _OPEN_LOGS_MAX:
            _, oldest = self._open.popitem(last=False)
            await oldest.close()
        return raced

    async def totals(self, log_id: int, size: int) -> dict[int, int]:
        """Bytes of each ledger in the first ``size`` bytes of a log. Raises :class:`BookieStorageError`, OSError."""
        path = self.path(log_id)
        return await log_totals(self._filesystem, path.parent, log_id, size)

    async def remove(self, log_id: int) -> None:
        """Remove a log that the manifest does not name and nobody reads. Raises OSError."""
        path = self.path(log_id)
        self._homes.pop(log_id, None)
        file = self._open.pop(log_id, None)
        if file is not None:
            await file.close()
        for gone in (path, path.with_suffix(".totals")):
            with contextlib.suppress(FileNotFoundError):
                await self._filesystem.remove(gone)

    async def close(self) -> None:
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
    """Every intact entry of a log with its offset, in order, up to ``stop`` (default: the end of the file).

    Raises :class:`BookieStorageError`, naming the offset, where the bytes stop being entries: nothing after that
    place can be found without the index.
    """
    file = await filesystem.open(path)
    offset, at = HEADER_BYTES, 0
    try:
        end = await file.size() if stop is None else stop
        while offset < end:
            buffer = await file.read(offset, min(_SCAN_BYTES, end - offset))
            at = 0
            while len(buffer) - at >= SEALED_BYTES_MIN:
                size = sealed_bytes(header_of(buffer[at : at + SEALED_BYTES_MIN]))
                if at + size > len(buffer):
                    break
                sealed = buffer[at : at + size]
                if not is_intact(sealed):
                    raise ProtocolError("an entry's checksum does not match its bytes")  # noqa: TRY301
                yield offset + at, sealed
                at += size
            if not at:
                raise ProtocolError("the log ends inside an entry")  # noqa: TRY301
            offset, at = offset + at, 0
    except ProtocolError as error:
        raise BookieStorageError(f"entry log {path}, offset {offset + at}: {error}") from error
    finally:
        await file.close()


async def log_totals(filesystem: FileSystem, directory: Path, log_id: int, size: int) -> dict[int, int]:
    """Bytes of each ledger in a log: from its side file, or else by a scan of its first ``size`` bytes."""
    path = directory / log_name(log_id)
    try:
        known = decode_totals(log_id, await read_file(filesystem, path.with_suffix(".totals")))
    except FileNotFoundError:
        known = None
    if known is not None:
        return known
    totals: dict[int, int] = {}
    async for _, sealed in scan_log(filesystem, path, stop=size):
        ledger_id = header_of(sealed).ledger_id
        totals[ledger_id] = totals.get(ledger_id, 0) + len(sealed)
    return totals
