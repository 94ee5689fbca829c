"""The segment files of a journal: which ones exist, and preparing the next one before it is needed.

Writes and syncs are fastest in blocks that have been written before. Trimmed segments are therefore kept as spares, and
when there is none, a new file is filled with zeros in the background. One segment ahead of the active one is always
*prepared*: header and name durable, file open. If the active segment is full before that is done, the filling stops and
the file is used as it is (its space is reserved, so it works, a little slower).

A file becomes a segment in this order, so that a segment's name never refers to a file without a durable header: header
written and synced -> renamed -> directory synced.

Names: ``journal-<number>.segment``; ``spare-<number>.segment``; ``fresh.segment`` while the file is being created.
Opening the journal removes leftovers of the last kind."""

import asyncio
import contextlib
import errno
import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog
from octavo.bookie.disk.filesystem import File, FileSystem, SyncFailedError, is_disk_full, sync_file, sync_names
from octavo.bookie.journal.format import (
    DATA_START,
    JournalPosition,
    SegmentHeader,
    body_bytes_max,
    encode_header,
    next_page,
    segment_name,
    segment_number,
)
from octavo.protocol.light_dataclass import dataclass

FILL_CHUNK_BYTES = 256 * 1024
"""Zeros written and synced at a time in the background: a few milliseconds of disk time, the longest that a lone add
waits for them."""

SEGMENT_BYTES_MIN = 2 * DATA_START
"""Smallest segment: headers and the same space for records."""

_ZEROS = bytes(FILL_CHUNK_BYTES)
_NEW_NAME = "fresh.segment"
_SPARE_NAME = re.compile(r"spare-(\d{16})\.segment")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Sizes and limits of a journal. Bytes, records, seconds."""

    segment_bytes: int = 64 * 1024 * 1024
    """Size of a segment file. Existing segments of another size remain readable."""

    group_bytes_max: int = 8 * 1024 * 1024
    group_records_max: int = 4096

    spare_segments_max: int = 8
    """Trimmed segments kept for reuse. More of them avoid writing zeros under heavy load and cost disk space."""

    first_fill_bytes: int = 16 * 1024 * 1024
    """Zeros written to a journal's first segment before it is used: limits the time of the first start."""

    fill_pause_seconds: float = 0.002
    """Pause between two chunks of background filling."""

    quiet_seconds: float = 0.1
    """Filling continues only after the journal has been idle for this long, so that adds do not wait for it."""

    full_retry_seconds: float = 1.0
    """Time between two attempts to create a segment on a full disk."""

    def __post_init__(self) -> None:
        if self.segment_bytes < SEGMENT_BYTES_MIN or self.segment_bytes % DATA_START:
            raise ValueError(
                f"segment_bytes is {self.segment_bytes}: it must be a multiple of {DATA_START}, "
                f"at least {SEGMENT_BYTES_MIN}"
            )
        if self.group_bytes_max < 1 or self.group_records_max < 1 or self.spare_segments_max < 0:
            raise ValueError("group limits must be at least 1, spare_segments_max at least 0")

    @property
    def body_bytes_max(self) -> int:
        """Largest body of one record."""
        return body_bytes_max(self.segment_bytes)


@dataclass(slots=True, eq=False)
class Segment:
    """A segment opened for writing."""

    header: SegmentHeader
    file: File


def _spare_name(number: int) -> str:
    return f"spare-{number:016d}.segment"


def spare_segments(names: Iterable[str]) -> list[str]:
    """The spare segments among the file names of a journal's directory, in order."""
    return sorted(name for name in names if _SPARE_NAME.fullmatch(name))


class SegmentFiles:
    """The segment files of one journal directory."""

    def __init__(self, filesystem: FileSystem, directory: Path, settings: JournalSettings, rng: random.Random) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._settings = settings
        self._rng = rng
        self._numbers: list[int] = []
        self._spares: list[str] = []
        self._spare_number = 0
        self._spares_expected = 0
        self._prepared: Segment | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._work = asyncio.Event()
        self._hurry = asyncio.Event()
        self._retired: list[Segment] = []
        self._active: Segment | None = None
        self._preparer: asyncio.Task[None] | None = None
        self._trim_lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._last_write_at = 0.0
        self._sync_failure: SyncFailedError | None = None
        self.segments_unprepared = 0
        self._closing = False
        self.allocating = asyncio.Lock()
        """Held while the space of a new segment is allocated; what must have the free space instead may hold it."""
        self.out_of_space = False
        """The disk is full and the next segment cannot be created."""
        self.on_out_of_space: Callable[[], None] | None = None
        """Called at every attempt that finds the disk full."""

    @property
    def numbers(self) -> list[int]:
        """Numbers of the existing segments, ascending, without the prepared one."""
        return self._numbers

    @property
    def spares(self) -> int:
        return len(self._spares)

    @property
    def active(self) -> Segment:
        assert self._active is not None, "the journal has not been started"
        return self._active

    async def open(self) -> None:
        """List the directory, which is created when missing. Raises OSError."""
        await self._filesystem.make_directory(self._directory)
        for name in await self._filesystem.list_directory(self._directory):
            number = segment_number(name)
            spare = _SPARE_NAME.fullmatch(name)
            if number is not None:
                self._numbers.append(number)
            elif spare:
                self._spares.append(name)
                self._spare_number = max(self._spare_number, int(spare[1]))
            elif name == _NEW_NAME:
                await self._filesystem.remove(self._directory / name)
        self._numbers.sort()

    async def sizes(self) -> dict[int, int | None]:
        """Size of every segment file; None for one that cannot be opened."""
        sizes: dict[int, int | None] = {}
        for number in self._numbers:
            sizes[number] = None
            with contextlib.suppress(OSError):
                file = await self.open_for_reading(number)
                try:
                    sizes[number] = await file.size()
                finally:
                    await file.close()
        return sizes

    async def open_for_reading(self, number: int) -> File:
        return await self._filesystem.open(self._directory / segment_name(number))

    async def begin(self, number: int, cut: JournalPosition | None) -> None:
        """Create the first segment of a new incarnation, durable with its cut, and start preparing the next. Raises
        OSError."""
        while not self._spares:
            await self._make_spare(fill_bytes=self._settings.first_fill_bytes, paced=False)
        self._active = await self._make_segment(number, number, cut)
        self._numbers.append(number)
        self._preparer = asyncio.get_running_loop().create_task(self._prepare_all(), name="octavo-journal-preparer")
        self._work.set()

    async def roll(self) -> Segment:
        """Switch to the next segment: at once if it is prepared, otherwise as soon as possible. Raises OSError."""
        self.note_write()
        if self._prepared is None:
            if self._sync_failure is not None:
                raise self._sync_failure
            self.segments_unprepared += 1
            self._waiter = asyncio.get_running_loop().create_future()
            self._hurry.set()
            self._work.set()
            try:
                await self._waiter
            finally:
                self._waiter = None
                self._hurry.clear()
        segment, self._prepared = self._prepared, None
        assert segment is not None
        self._retired.append(self.active)
        self._active = segment
        self._numbers.append(segment.header.segment)
        self._work.set()
        return segment

    def note_write(self) -> None:
        """The journal has just written: filling pauses until it has been idle for a while."""
        self._last_write_at = self._loop.time()

    async def trim(self, stop: int) -> None:
        """Recycle or remove the segments with numbers below ``stop``, oldest first, but never the active one. Raises
        OSError."""
        async with self._trim_lock:
            recycled: list[str] = []
            try:
                if await self._remove_oldest(stop, recycled):
                    await sync_names(self._filesystem, self._directory)
                    # Only now: if a spare became a segment while a crash could restore its old name, the file would
                    # appear under both names.
                    self._spares.extend(recycled)
                    if self.out_of_space:
                        self._work.set()
            finally:
                self._spares_expected -= len(recycled)

    async def _remove_oldest(self, stop: int, recycled: list[str]) -> bool:
        changed = False
        while len(self._numbers) > 1 and self._numbers[0] < stop:
            path = self._directory / segment_name(self._numbers[0])
            if len(self._spares) + self._spares_expected < self._settings.spare_segments_max:
                self._spare_number += 1
                self._spares_expected += 1
                recycled.append(_spare_name(self._spare_number))
                await self._filesystem.rename(path, self._directory / recycled[-1])
            else:
                await self._filesystem.remove(path)
            changed = True
            del self._numbers[0]
        return changed

    async def close(self) -> None:
        """Stop preparing and close all files. The prepared segment becomes a spare. Never raises OSError."""
        if self._preparer is not None:
            self._preparer.cancel()
            await asyncio.gather(self._preparer, return_exceptions=True)
        with contextlib.suppress(OSError):
            await self._return_prepared()
        for segment in [*self._retired, *([self._active] if self._active else [])]:
            with contextlib.suppress(OSError):
                await segment.file.close()
        self._retired.clear()
        self._active = None

    async def _return_prepared(self) -> None:
        segment, self._prepared = self._prepared, None
        if segment is None:
            return
        await segment.file.close()
        self._spare_number += 1
        name = segment_name(segment.header.segment)
        await self._filesystem.rename(self._directory / name, self._directory / _spare_name(self._spare_number))
        await sync_names(self._filesystem, self._directory)

    # --- in the background --------------------------------------------------------------------------------------

    async def _prepare_all(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                await self._prepare()
            except OSError as error:
                if isinstance(error, SyncFailedError):  # never tried again: the next roll fails (rule B1)
                    self._sync_failure = error
                if is_disk_full(error):
                    self._await_space(error)
                elif self._waiter is not None and not self._waiter.done():
                    self._waiter.set_exception(error)
                else:  # the next roll tries again
                    _log.warning("cannot prepare a journal segment", directory=str(self._directory), error=str(error))
            except Exception as error:
                if self._waiter is not None and not self._waiter.done():
                    self._waiter.set_exception(error)
                else:
                    _log.exception("cannot prepare a journal segment", directory=str(self._directory))
            else:
                self.out_of_space = False

    def _await_space(self, error: OSError) -> None:
        """The disk is full: a roll, and the records pending behind it, wait for free space; nothing has failed yet."""
        if not self.out_of_space:
            _log.error(
                "disk full, cannot create the next journal segment",
                directory=str(self._directory),
                reason=error.strerror,
            )
        self.out_of_space = True
        if self.on_out_of_space is not None:
            self.on_out_of_space()
        if self._closing:
            self.stop_waiting_for_space()
        else:
            asyncio.get_running_loop().call_later(self._settings.full_retry_seconds, self._work.set)

    def stop_waiting_for_space(self) -> None:
        """Stop waiting for free space, because the journal is closing. A waiting roll raises OSError."""
        self._closing = True
        if self.out_of_space and self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(OSError(errno.ENOSPC, "disk full, cannot create the next journal segment"))

    async def release_spares(self, *, keep: int = 0) -> None:
        """Remove the spares but ``keep``; new ones are created when needed. Never raises OSError."""
        released, self._spares = self._spares[keep:], self._spares[:keep]
        for name in released:
            with contextlib.suppress(OSError):
                await self._filesystem.remove(self._directory / name)

    async def _prepare(self) -> None:
        while self._retired:
            await self._retired.pop().file.close()
        if self._prepared is None:
            while not self._spares:  # again if the spares have been given up meanwhile
                await self._make_spare(fill_bytes=self._settings.segment_bytes, paced=True)
            previous = self.active.header
            self._prepared = await self._make_segment(previous.segment + 1, previous.incarnation, previous.cut)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        elif not self._spares and self._settings.spare_segments_max:
            await self._make_spare(fill_bytes=self._settings.segment_bytes, paced=True)

    async def _make_spare(self, *, fill_bytes: int, paced: bool) -> None:
        path = self._directory / _NEW_NAME
        with contextlib.suppress(FileNotFoundError):
            await self._filesystem.remove(path)
        file = await self._filesystem.open(path, create=True, direct=True)
        try:
            async with self.allocating:
                await file.allocate(self._settings.segment_bytes)
            stop = min(next_page(fill_bytes), self._settings.segment_bytes)
            for offset in range(0, stop, FILL_CHUNK_BYTES):
                if self._hurry.is_set() or self._spares:
                    break
                zeros = _ZEROS[: min(FILL_CHUNK_BYTES, stop - offset)]
                if paced:
                    await file.write_and_sync(offset, [zeros])
                    await self._pause()
                else:
                    await file.write(offset, [zeros])
            await file.sync()
        finally:
            await file.close()
        if self._spares or (self._spares_expected and self._prepared is not None):
            # Trimming has recycled a segment meanwhile, all of whose blocks have been written.
            await self._filesystem.remove(path)
            return
        self._spare_number += 1
        name = _spare_name(self._spare_number)
        self._spares_expected += 1
        try:
            await self._filesystem.rename(path, self._directory / name)
        finally:
            self._spares_expected -= 1
        self._spares.append(name)

    async def _pause(self) -> None:
        """Pause between two chunks, then wait until the journal is idle or needs the file being filled."""
        loop = asyncio.get_running_loop()
        wait_seconds = self._settings.fill_pause_seconds
        while wait_seconds > 0 and not self._hurry.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), wait_seconds)
            wait_seconds = self._last_write_at + self._settings.quiet_seconds - loop.time()

    async def _make_segment(self, number: int, incarnation: int, cut: JournalPosition | None) -> Segment:
        """Turn a spare into segment ``number``. A spare of another size is resized."""
        seed = self._rng.randrange(1, 2**32)
        header = SegmentHeader(number, seed, self._settings.segment_bytes, incarnation, cut)
        spare = self._directory / self._spares.pop()
        path = self._directory / segment_name(number)
        # Renamed only when the header is durable, then opened by its final name, which errors will show.
        try:
            file = await self._filesystem.open(spare, direct=True)
            try:
                if await file.size() != self._settings.segment_bytes:
                    await file.truncate(self._settings.segment_bytes)
                # Two steps: a write that finds the disk full may be tried again, a failed sync may not.
                await file.write(0, [encode_header(header)])
                await sync_file(file)
            finally:
                await file.close()
            await self._filesystem.rename(spare, path)
        except OSError:
            # No other attempt uses the file: its space must not stay taken, least of all on a full disk.
            with contextlib.suppress(OSError):
                await self._filesystem.remove(spare)
            raise
        await sync_names(self._filesystem, self._directory)
        return Segment(header, await self._filesystem.open(path, dedicated_thread=True, direct=True))
