"""The files under a journal: which segments there are, and having the next one ready before it is needed.

Writing and syncing is quickest into blocks that have been written before. So trimmed segments are kept as
spares, and when there is none, a fresh file is filled with zeros in the background. One segment ahead of the
one in use is always *prepared*: header and name durable, file open. When a segment fills before that is done,
filling is cut short and the file is used as it is (its space is reserved, so it works, a little slower).

A file becomes a segment in this order, so that a segment's name never stands for a file without a durable header:
header written and synced -> renamed -> directory synced.

Names: ``journal-<number>.segment``; ``spare-<number>.segment``; ``fresh.segment`` while being made. Leftovers
of the last kind are removed at open."""

import asyncio
import contextlib
import errno
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import structlog
from octavo.bookie.disk.filesystem import File, FileSystem, is_disk_full
from octavo.bookie.journal.format import (
    DATA_START,
    JournalPosition,
    SegmentHeader,
    body_bytes_max,
    encode_header,
    segment_name,
    segment_number,
)

FILL_CHUNK_BYTES = 256 * 1024
"""Zeros written and synced at a time in the background: a few milliseconds of the disk, which is how much a
lone add may have to wait for them."""

FULL_RETRY_SECONDS = 1.0
"""Between two attempts to make a segment on a full disk."""

SEGMENT_BYTES_MIN = 2 * DATA_START
"""Smallest segment: headers and about as much room for records."""

_ZEROS = bytes(FILL_CHUNK_BYTES)
_FRESH_NAME = "fresh.segment"
_SPARE_NAME = re.compile(r"spare-(\d{16})\.segment")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Sizes and limits of a journal. Bytes, records, seconds."""

    segment_bytes: int = 64 * 1024 * 1024
    """Size of a segment file. A journal whose older segments have another size is read all the same."""

    group_bytes_max: int = 8 * 1024 * 1024
    group_records_max: int = 4096

    spare_segments_max: int = 8
    """Trimmed segments kept for reuse. More saves writing zeros under heavy load and costs disk space."""

    first_fill_bytes: int = 16 * 1024 * 1024
    """Zeros written to a journal's very first segment before it is used: start-up stays quick."""

    fill_pause_seconds: float = 0.002
    """Pause between two chunks of background filling."""

    quiet_seconds: float = 0.1
    """Filling goes on only while the journal has written nothing for this long: adds never wait for it."""

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
    """A segment that is open for writing."""

    header: SegmentHeader
    file: File


def _spare_name(number: int) -> str:
    return f"spare-{number:016d}.segment"


def spare_segments(names: Iterable[str]) -> list[str]:
    """The spares among the names of files in a journal's directory, in their order."""
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
        self._spares_coming = 0
        self._prepared: Segment | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._work = asyncio.Event()
        self._hurry = asyncio.Event()
        self._retired: list[Segment] = []
        self._active: Segment | None = None
        self._preparer: asyncio.Task[None] | None = None
        self._trim_lock = asyncio.Lock()
        self._last_write_at = 0.0
        self.segments_unprepared = 0
        self._given_up = False
        self.starved = False
        """The disk has no room for the segment after the one in use."""

    @property
    def numbers(self) -> list[int]:
        """Numbers of the segments there are, ascending; the prepared one is not counted."""
        return self._numbers

    @property
    def spares(self) -> int:
        return len(self._spares)

    @property
    def active(self) -> Segment:
        assert self._active is not None, "the journal has not been started"
        return self._active

    async def open(self) -> None:
        """Learn what is in the directory, which is made when missing. Raises OSError."""
        await self._filesystem.make_directory(self._directory)
        for name in await self._filesystem.list_directory(self._directory):
            number = segment_number(name)
            spare = _SPARE_NAME.fullmatch(name)
            if number is not None:
                self._numbers.append(number)
            elif spare:
                self._spares.append(name)
                self._spare_number = max(self._spare_number, int(spare[1]))
            elif name == _FRESH_NAME:
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
        """Make the first segment of a new incarnation, durable with its cut, and start preparing the next.
        Raises OSError."""
        if not self._spares:
            await self._make_spare(fill_bytes=self._settings.first_fill_bytes, paced=False)
        self._active = await self._make_segment(number, number, cut)
        self._numbers.append(number)
        self._preparer = asyncio.get_running_loop().create_task(self._prepare_all(), name="octavo-journal-preparer")
        self._work.set()

    async def roll(self) -> Segment:
        """Go on to the next segment. At once when it is prepared, else as soon as it can be. Raises OSError."""
        self.note_write()
        if self._prepared is None:
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
        """The journal has just written: filling waits until it has been quiet for a while."""
        self._last_write_at = asyncio.get_running_loop().time()

    async def trim(self, stop: int) -> None:
        """Recycle or remove the segments with numbers below ``stop``, oldest first; the one in use always
        stays. Raises OSError."""
        async with self._trim_lock:
            recycled: list[str] = []
            try:
                if await self._take_off(stop, recycled):
                    await self._filesystem.sync_directory(self._directory)
                    # Only now: a spare that became a segment while its old name could still come back would stand
                    # under both.
                    self._spares.extend(recycled)
                    if self.starved:
                        self._work.set()
            finally:
                self._spares_coming -= len(recycled)

    async def _take_off(self, stop: int, recycled: list[str]) -> bool:
        changed = False
        while len(self._numbers) > 1 and self._numbers[0] < stop:
            path = self._directory / segment_name(self._numbers[0])
            if len(self._spares) + self._spares_coming < self._settings.spare_segments_max:
                self._spare_number += 1
                self._spares_coming += 1
                recycled.append(_spare_name(self._spare_number))
                await self._filesystem.rename(path, self._directory / recycled[-1])
            else:
                await self._filesystem.remove(path)
            changed = True
            del self._numbers[0]
        return changed

    async def close(self) -> None:
        """Stop preparing and let go of all files. The prepared segment becomes a spare. Never raises OSError."""
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
        await self._filesystem.sync_directory(self._directory)

    # --- in the background --------------------------------------------------------------------------------------

    async def _prepare_all(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                await self._prepare()
            except OSError as error:
                if is_disk_full(error):
                    self._await_room(error)
                elif self._waiter is not None and not self._waiter.done():
                    self._waiter.set_exception(error)
                else:  # tried again at the next roll, where it matters
                    _log.warning("cannot prepare a journal segment", directory=str(self._directory), error=str(error))
            except Exception as error:
                if self._waiter is not None and not self._waiter.done():
                    self._waiter.set_exception(error)
                else:
                    _log.exception("cannot prepare a journal segment", directory=str(self._directory))
            else:
                self.starved = False

    def _await_room(self, error: OSError) -> None:
        """No room for the next segment: a roll waits for it, and what is pending with it; nothing has failed yet."""
        if not self.starved:
            _log.error("no room for the next journal segment", directory=str(self._directory), reason=error.strerror)
        self.starved = True
        if self._given_up:
            self.give_up()
        else:
            asyncio.get_running_loop().call_later(FULL_RETRY_SECONDS, self._work.set)

    def give_up(self) -> None:
        """Wait for room no more: the journal closes. Whoever waits for a segment gets an OSError."""
        self._given_up = True
        if self.starved and self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(OSError(errno.ENOSPC, "no room for the next journal segment"))

    async def release_spares(self) -> None:
        """Remove the spares; they are made again as they are needed. Never raises OSError."""
        spares, self._spares = self._spares, []
        for name in spares:
            with contextlib.suppress(OSError):
                await self._filesystem.remove(self._directory / name)

    async def _prepare(self) -> None:
        while self._retired:
            await self._retired.pop().file.close()
        if self._prepared is None:
            if not self._spares:
                await self._make_spare(fill_bytes=self._settings.segment_bytes, paced=True)
            previous = self.active.header
            self._prepared = await self._make_segment(previous.segment + 1, previous.incarnation, previous.cut)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        elif not self._spares and self._settings.spare_segments_max:
            await self._make_spare(fill_bytes=self._settings.segment_bytes, paced=True)

    async def _make_spare(self, *, fill_bytes: int, paced: bool) -> None:
        path = self._directory / _FRESH_NAME
        with contextlib.suppress(FileNotFoundError):
            await self._filesystem.remove(path)
        file = await self._filesystem.open(path, create=True, direct=True)
        try:
            await file.allocate(self._settings.segment_bytes)
            stop = min(fill_bytes, self._settings.segment_bytes)
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
        if self._spares or (self._spares_coming and self._prepared is not None):
            # Trimming has given one meanwhile, all of whose blocks have been written.
            await self._filesystem.remove(path)
            return
        self._spare_number += 1
        name = _spare_name(self._spare_number)
        self._spares_coming += 1
        try:
            await self._filesystem.rename(path, self._directory / name)
        finally:
            self._spares_coming -= 1
        self._spares.append(name)

    async def _pause(self) -> None:
        """Between two chunks: a moment, and then until the journal is quiet or in need of what is being filled."""
        loop = asyncio.get_running_loop()
        wait_seconds = self._settings.fill_pause_seconds
        while wait_seconds > 0 and not self._hurry.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), wait_seconds)
            wait_seconds = self._last_write_at + self._settings.quiet_seconds - loop.time()

    async def _make_segment(self, number: int, incarnation: int, cut: JournalPosition | None) -> Segment:
        """Turn a spare into segment ``number``. A spare of another size is brought to the right one."""
        seed = self._rng.randrange(1, 2**32)
        header = SegmentHeader(number, seed, self._settings.segment_bytes, incarnation, cut)
        spare = self._directory / self._spares.pop()
        path = self._directory / segment_name(number)
        # Renamed only when the header is durable, and opened by its final name: the handle says what it is.
        file = await self._filesystem.open(spare, direct=True)
        try:
            if await file.size() != self._settings.segment_bytes:
                await file.truncate(self._settings.segment_bytes)
            await file.write_and_sync(0, [encode_header(header)])
        finally:
            await file.close()
        await self._filesystem.rename(spare, path)
        await self._filesystem.sync_directory(self._directory)
        return Segment(header, await self._filesystem.open(path, dedicated_thread=True, direct=True))
