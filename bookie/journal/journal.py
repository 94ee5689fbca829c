"""The journal of a bookie: where every add, fence and key is durable first (rules B1 to B3).

The flow of a record: :meth:`Journal.append` settles its place and queues it, synchronously -> the writer task
takes all that waits as one group -> one write and one sync in the segment file's own thread -> the futures of
the group are done, in order. What goes together is decided by :mod:`octavo.bookie.journal.group_commit`, how bytes look
by ``journal_format``, how they are read back after a crash by ``journal_replay``; the files are kept by
``journal_segments``.

Life: ``open`` -> ``replay`` (to its end) -> ``start`` -> ``append``... -> ``close``.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from octavo.bookie.disk.filesystem import File, FileSystem
from octavo.bookie.journal.format import (
    DATA_START,
    JournalCorruption,
    JournalPosition,
    RecordKind,
    UnsupportedJournalError,
)
from octavo.bookie.journal.group_commit import Group, GroupCommit, encode_group
from octavo.bookie.journal.replay import DeliverRecord, JournalScan, ReadBytes, ReportCorruption, ScanEnd
from octavo.bookie.journal.segments import JournalSettings, SegmentFiles
from octavo.protocol.errors import BookieStorageError, EntryTooLargeError

__all__ = [
    "Journal",
    "JournalCorruption",
    "JournalFailedError",
    "JournalPosition",
    "JournalSettings",
    "JournalStatistics",
    "RecordKind",
    "UnsupportedJournalError",
]


_log = structlog.get_logger(__name__)


class JournalFailedError(BookieStorageError):
    """A write or sync of the journal failed, or it is closed. Nothing that was pending will be acknowledged,
    and nothing is tried again: a kernel drops the pages of a failed sync. The bookie must stop (rule
    B1)."""


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """Counts since :meth:`Journal.start`, and the state of this moment."""

    records_appended: int
    bytes_appended: int
    groups_synced: int
    bytes_synced: int
    sync_seconds_total: float
    """Time from a group's write to the end of its sync, summed."""
    pending_records: int
    pending_bytes: int
    segments: int
    spare_segments: int
    segments_unprepared: int
    """Segments that had to be waited for, as none was ready."""
    corruptions: int
    failed: bool


class Journal:
    """One journal directory, open. Used from one event loop; nothing here is thread-safe."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: Path,
        *,
        settings: JournalSettings,
        start: JournalPosition | None,
        on_failure: Callable[[BaseException], None] | None,
        rng: random.Random,
    ) -> None:
        """Use :meth:`open`."""
        self._directory = directory
        self._settings = settings
        self._body_bytes_max = settings.body_bytes_max
        self._start = start
        self._on_failure = on_failure
        self._segments = SegmentFiles(filesystem, directory, settings, rng)
        self.corruption: list[JournalCorruption] = []
        self._scan_end: ScanEnd | None = None
        self._replaying = False
        self._commit: GroupCommit | None = None
        self._writer: asyncio.Task[None] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None
        self._closing = False
        self._records_appended = 0
        self._bytes_appended = 0
        self._groups_synced = 0
        self._bytes_synced = 0
        self._sync_seconds_total = 0.0

    @classmethod
    async def open(
        cls,
        filesystem: FileSystem,
        directory: Path,
        *,
        settings: JournalSettings,
        start: JournalPosition | None,
        on_failure: Callable[[BaseException], None] | None = None,
        rng: random.Random | None = None,
    ) -> "Journal":
        """Open the journal in ``directory``, which is made when missing.

        ``start``: the position from which records are still wanted; None wants all. ``on_failure`` is called
        once, with the cause, when the journal fails. ``rng`` draws the segments' seeds; by default the
        operating system does. Raises OSError when the directory cannot be listed."""
        journal = cls(
            filesystem,
            directory,
            settings=settings,
            start=start,
            on_failure=on_failure,
            rng=rng or random.SystemRandom(),
        )
        await journal._segments.open()
        return journal

    # --- reading back -------------------------------------------------------------------------------------------

    async def replay(self) -> AsyncIterator[tuple[RecordKind, bytes, JournalPosition]]:
        """Every record after the start position, in order: kind, body, position just after it. Once, before
        ``start``.

        Damage is never raised: it is in :attr:`corruption` by the time the next record arrives, and the
        following valid records still come (rule B3). What comes from a torn tail's beginning may never have
        been synced (rule B1). Raises UnsupportedJournalError when a newer version wrote the journal."""
        assert not self._replaying, "a journal is replayed once"
        self._replaying = True
        reader = _SegmentReader(self._segments)
        try:
            scan = JournalScan(self._directory, await self._segments.sizes(), self._start).run()
            answer: bytes | None = None
            while True:
                try:
                    effect = scan.send(answer)
                except StopIteration as finished:
                    self._scan_end = finished.value
                    return
                answer = None
                if isinstance(effect, ReadBytes):
                    answer = await reader.read(effect)
                elif isinstance(effect, ReportCorruption):
                    self.corruption.append(effect.corruption)
                else:
                    yield _delivered(effect)
        finally:
            await reader.close()

    @property
    def torn_tail(self) -> JournalPosition | None:
        """Where replay left out a torn tail; None when the log ended cleanly or has not been replayed."""
        return self._scan_end.position if self._scan_end is not None and self._scan_end.torn else None

    # --- writing ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin a fresh segment, with a number above any there is. From here on the torn tail is void: the segment's
        header, durable when this returns, says where the log before it ended. Raises OSError."""
        assert self._scan_end is not None, "replay the journal to its end before starting it"
        assert self._commit is None, "a journal is started once"
        last = max([0, *self._segments.numbers, *([self._start.segment] if self._start else [])])
        await self._segments.begin(last + 1, self._scan_end.position)
        self._commit = GroupCommit(
            JournalPosition(last + 1, DATA_START),
            segment_bytes=self._settings.segment_bytes,
            group_bytes_max=self._settings.group_bytes_max,
            group_records_max=self._settings.group_records_max,
        )
        self._writer = asyncio.get_running_loop().create_task(self._run(), name="octavo-journal-writer")

    def append(self, kind: RecordKind, buffers: Sequence[bytes]) -> asyncio.Future[None]:
        """Queue a record whose body is the buffers one after another; they must not change any more.

        The future is done once the record and everything before it is synced. Records are on disk, and futures done,
        in the order of the calls. Cancelling the future withdraws nothing. It fails with JournalFailedError when the
        journal has failed or been closed. The caller bounds what is pending (see :attr:`pending_bytes`).
        Raises EntryTooLargeError for a body over ``settings.body_bytes_max``.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.append_then(kind, buffers, partial(settle_future, future))
        return future

    def append_then(
        self, kind: RecordKind, buffers: Sequence[bytes], done: Callable[[BaseException | None], None]
    ) -> None:
        """As :meth:`append`, without a future: ``done`` is called, with the failure or None, in the very step in
        which the outcome is known. It must be quick and must not raise."""
        commit = self._running()
        if self._failure is not None or self._closing:
            done(self._failed_error())
            return
        body_bytes = len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
        if body_bytes > self._body_bytes_max:
            raise EntryTooLargeError(f"a journal record of {body_bytes} bytes; the largest is {self._body_bytes_max}")
        self._bytes_appended += commit.append(kind, buffers, body_bytes, done)
        self._records_appended += 1
        self._wake_writer()

    def append_along(self, kind: RecordKind, body: bytes) -> None:
        """Queue a record that goes to disk with the next group and causes none: for what may be lost, and must not make
        the adds after it wait for a sync of its own. Nobody hears of its fate; a journal that has failed drops it."""
        commit = self._running()
        if self._failure is None and not self._closing:
            assert len(body) <= self._body_bytes_max
            self._bytes_appended += commit.append(kind, (body,), len(body), None, along=True)
            self._records_appended += 1

    @property
    def position(self) -> JournalPosition:
        """Just after the last record appended, durable or not; before ``start``, where replay found the log to end.

        A checkpoint that captured it may rely on it across a crash only once ``synced_position`` has reached it.
        """
        if self._commit is not None:
            return self._commit.position
        end = self._scan_end.position if self._scan_end is not None else self._start
        return end or JournalPosition(0, 0)

    @property
    def synced_position(self) -> JournalPosition:
        """Everything before it is durable."""
        return self._commit.synced_position if self._commit is not None else self.position

    @property
    def pending_bytes(self) -> int:
        """Bytes appended that are not durable yet: the journal's share of the bookie's bounded memory."""
        return self._commit.pending_bytes if self._commit is not None else 0

    @property
    def bytes_appended(self) -> int:
        """Bytes of all records appended since ``start``; never falls."""
        return self._bytes_appended

    async def trim(self, up_to: JournalPosition) -> None:
        """Recycle or remove the segments that end before ``up_to``'s segment. Raises OSError; may be called again."""
        await self._segments.trim(up_to.segment)

    @property
    def directory(self) -> Path:
        return self._directory

    @property
    def segments(self) -> Sequence[int]:
        """Numbers of the segments there are, ascending."""
        return self._segments.numbers

    @property
    def starved(self) -> bool:
        """The disk has no room for the next segment: take no more adds, and checkpoint, before this one is full."""
        return self._segments.starved

    async def release_spares(self) -> None:
        """Give back the space of segments kept for reuse. Never raises OSError."""
        await self._segments.release_spares()

    def statistics(self) -> JournalStatistics:
        return JournalStatistics(
            records_appended=self._records_appended,
            bytes_appended=self._bytes_appended,
            groups_synced=self._groups_synced,
            bytes_synced=self._bytes_synced,
            sync_seconds_total=self._sync_seconds_total,
            pending_records=self._commit.pending_records if self._commit is not None else 0,
            pending_bytes=self.pending_bytes,
            segments=len(self._segments.numbers),
            spare_segments=self._segments.spares,
            segments_unprepared=self._segments.segments_unprepared,
            corruptions=len(self.corruption),
            failed=self._failure is not None,
        )

    async def close(self) -> None:
        """Write and sync what is pending, mark the clean end, and let go of the files. Later appends fail.

        Never raises for a failed disk: the futures of what was pending tell.
        """
        if not self._closing:
            self._closing = True
            self._segments.give_up()
            if self._commit is not None and self._failure is None:
                # A log with an explicit end needs no search behind it at the next start.
                self._commit.finish()
                self._wake_writer()
        try:
            if self._writer is not None:
                await asyncio.wait([self._writer])
        finally:
            await self._segments.close()

    # --- the writer ---------------------------------------------------------------------------------------------

    def _running(self) -> GroupCommit:
        assert self._commit is not None, "start the journal before using it"
        return self._commit

    def _wake_writer(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _run(self) -> None:
        try:
            await self._write_groups()
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise

    async def _write_groups(self) -> None:
        """Group after group. The loop turn between a wake-up and the group lets all adds of that turn in."""
        commit = self._running()
        loop = asyncio.get_running_loop()
        segment = self._segments.active
        while True:
            while not commit.waiting:
                if self._closing:
                    return
                self._wake = loop.create_future()
                await self._wake
                self._wake = None
            group = commit.take()
            if group.segment != segment.header.segment:
                segment = await self._segments.roll()
                assert group.segment == segment.header.segment, "segments are used in order of their numbers"
            began_at = loop.time()
            await segment.file.write_and_sync(group.offset, encode_group(group, segment.header, commit.synced_position))
            self._sync_seconds_total += loop.time() - began_at
            self._settle(commit.settle())

    def _settle(self, group: Group) -> None:
        self._segments.note_write()
        self._groups_synced += 1
        self._bytes_synced += group.size
        for record in group.records:
            if record.token is not None:
                self._tell(record.token, None)

    def _fail(self, error: BaseException) -> None:
        """The one way in which the journal fails; it never recovers from it."""
        self._failure = error
        failed = self._failed_error()
        for done in self._running().fail():
            if done is not None:
                self._tell(done, failed)
        if self._on_failure is not None:
            self._on_failure(error)

    def _tell(self, done: Any, outcome: BaseException | None) -> None:
        """Hand over an outcome. Whoever fails to take it must not take the others' away."""
        try:
            done(outcome)
        except Exception:
            _log.exception("an add's outcome could not be handed over", directory=str(self._directory))

    def _failed_error(self) -> JournalFailedError:
        if self._failure is None:
            return JournalFailedError(f"the journal in {self._directory} is closed", may_have_happened=False)
        error = JournalFailedError(f"the journal in {self._directory} has failed: {self._failure!r}")
        error.__cause__ = self._failure
        return error


def settle_future(future: asyncio.Future[None], failure: BaseException | None) -> None:
    """Hand an outcome to a future that its waiter may have cancelled."""
    if future.done():  # cancelled by its waiter
        return
    if failure is None:
        future.set_result(None)
    else:
        future.set_exception(failure)
        future.exception()  # on_failure tells it; a future nobody waits for must not be reported as forgotten


def _delivered(effect: DeliverRecord) -> tuple[RecordKind, bytes, JournalPosition]:
    record = effect.record
    try:
        return RecordKind(record.kind), record.body, record.end
    except ValueError as error:
        raise UnsupportedJournalError(
            f"a journal record of kind {record.kind} at {record.end}: start the version that wrote it"
        ) from error


class _SegmentReader:
    """Reads pieces of segment files for a scan, one file open at a time."""

    def __init__(self, segments: SegmentFiles) -> None:
        self._segments = segments
        self._number: int | None = None
        self._file: File | None = None

    async def read(self, wanted: ReadBytes) -> bytes | None:
        """The bytes asked for; None on an I/O error."""
        try:
            if self._file is None or wanted.segment != self._number:
                await self.close()
                self._file = await self._segments.open_for_reading(wanted.segment)
                self._number = wanted.segment
            return await self._file.read(wanted.offset, wanted.size)
        except OSError:
            return None

    async def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            await file.close()
