"""The journal of a bookie: every add, fence and key is durable here first (rules B1, B2 and B3).

The path of a record: :meth:`Journal.append` assigns its position and queues it, synchronously -> the writer task takes
everything queued as one group -> one write and one sync -> the group's futures complete, in order. Module
``group_commit`` decides which records form a group, ``format`` has the bytes, ``replay`` reads them back after a crash,
and ``segments`` manages the files.

Lifecycle: ``open`` -> ``replay`` (to its end) -> ``start`` -> ``append``... -> ``close``.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
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
from octavo.bookie.journal.group_commit import GroupCommit, encode_group
from octavo.bookie.journal.replay import DeliverRecord, JournalScan, ReadBytes, ReportCorruption, ScanEnd
from octavo.bookie.journal.segments import JournalSettings, SegmentFiles
from octavo.metrics.histogram import Histogram
from octavo.protocol.errors import BookieStorageError, EntryTooLargeError
from octavo.protocol.light_dataclass import dataclass

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

_NOT_STARTED = "start the journal before using it"


class JournalFailedError(BookieStorageError):
    """A write or sync of the journal failed, or it is closed. No pending record is acknowledged, and nothing is tried
    again: the kernel drops the pages of a failed sync. The bookie must stop (rule B1)."""


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """Counts since :meth:`Journal.start`, and the current state."""

    records_appended: int
    bytes_appended: int
    groups_synced: int
    bytes_synced: int
    sync_seconds: Histogram
    """Times from the beginning of a group's write to the end of its sync."""
    queue_seconds: Histogram
    """Times that the oldest record of each group waited until the write began."""
    pending_records: int
    pending_bytes: int
    segments: int
    spare_segments: int
    segments_unprepared: int
    """Segments that the writer waited for, because none was ready."""
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
        clock: Callable[[], float],
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
        self._groups_synced = 0
        self._bytes_synced = 0
        self._clock = clock
        self._sync_seconds = Histogram()
        self._queue_seconds = Histogram()

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
        clock: Callable[[], float] | None = None,
    ) -> "Journal":
        """Open the journal in ``directory``, which is created when missing.

        ``start``: the position from which on records are still needed; None means all. ``on_failure`` is called once,
        with the cause, when the journal fails. ``rng`` draws the segments' seeds; by default the operating system does.
        ``clock`` gives seconds for the statistics; by default the event loop does. Raises OSError when the directory
        cannot be listed."""
        journal = cls(
            filesystem,
            directory,
            settings=settings,
            start=start,
            on_failure=on_failure,
            rng=rng or random.SystemRandom(),
            clock=clock or asyncio.get_running_loop().time,
        )
        await journal._segments.open()
        return journal

    # --- reading back -------------------------------------------------------------------------------------------

    async def replay(self) -> AsyncIterator[tuple[RecordKind, bytes, JournalPosition]]:
        """Every record after the start position, in order: kind, body, position just after it. Call it once, before
        ``start``.

        Damage is not raised: it is in :attr:`corruption` before the next record is returned, and the valid records
        after it follow (rule B3). Records before a torn tail may never have been synced (rule B1). Raises
        UnsupportedJournalError when a newer version wrote the journal."""
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
        """Where replay found a torn tail; None when the log ended cleanly or has not been replayed."""
        return self._scan_end.position if self._scan_end is not None and self._scan_end.torn else None

    # --- writing ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start a new segment, with a number above all existing ones. From here on the torn tail is void: the segment's
        header, durable when this returns, records where the log before it ended. Raises OSError."""
        assert self._scan_end is not None, "replay the journal to its end before starting it"
        assert self._commit is None, "a journal is started once"
        last = max([0, *self._segments.numbers, *([self._start.segment] if self._start else [])])
        await self._segments.begin(last + 1, self._scan_end.position)
        self._commit = GroupCommit(
            JournalPosition(last + 1, DATA_START),
            segment_bytes=self._settings.segment_bytes,
            group_bytes_max=self._settings.group_bytes_max,
            group_records_max=self._settings.group_records_max,
            clock=self._clock,
        )
        self._writer = asyncio.get_running_loop().create_task(self._run(), name="octavo-journal-writer")

    def append(self, kind: RecordKind, buffers: Sequence[bytes]) -> asyncio.Future[None]:
        """Queue a record whose body is the concatenation of the buffers; they must not change afterwards.

        The future completes when the record and everything before it is synced. Records reach the disk, and futures
        complete, in the order of the calls. Cancelling the future does not withdraw the record. It fails with
        JournalFailedError when the journal has failed or been closed. The caller limits the pending bytes (see
        :attr:`pending_bytes`). Raises EntryTooLargeError for a body over ``settings.body_bytes_max``.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.append_then(kind, buffers, partial(settle_future, future))
        return future

    def append_then(
        self, kind: RecordKind, buffers: Sequence[bytes], done: Callable[[BaseException | None], None]
    ) -> None:
        """As :meth:`append`, without a future: ``done`` is called, with the failure or None, in the event-loop step in
        which the outcome is known. It must be fast and must not raise."""
        commit = self._commit
        assert commit is not None, _NOT_STARTED
        if self._failure is not None or self._closing:
            done(self._failed_error())
            return
        body_bytes = sum(map(len, buffers))
        if body_bytes > self._body_bytes_max:
            raise EntryTooLargeError(f"a journal record of {body_bytes} bytes; the largest is {self._body_bytes_max}")
        commit.append(kind, buffers, body_bytes, done)
        self._records_appended += 1
        self._wake_writer()

    def append_each(self, kind: RecordKind, bodies: Sequence[Sequence[bytes]]) -> None:
        """As :meth:`append_unwaited` for a record of each of these bodies. If it raises, none is queued."""
        commit = self._running()
        if self._failure is not None or self._closing:
            raise self._failed_error()
        body_bytes = [sum(map(len, buffers)) for buffers in bodies]
        if max(body_bytes) > self._body_bytes_max:
            raise EntryTooLargeError(
                f"a journal record of {max(body_bytes)} bytes; the largest is {self._body_bytes_max}"
            )
        commit.append_each(kind, bodies, body_bytes)
        self._records_appended += len(bodies)
        self._wake_writer()

    def append_unwaited(self, kind: RecordKind, buffers: Sequence[bytes]) -> None:
        """As :meth:`append`, for a record whose outcome is not reported: it is on its way to the disk when this
        returns. Raises :class:`JournalFailedError`, with nothing queued, if the journal has failed or been closed."""
        commit = self._running()
        if self._failure is not None or self._closing:
            raise self._failed_error()
        body_bytes = sum(map(len, buffers))
        if body_bytes > self._body_bytes_max:
            raise EntryTooLargeError(f"a journal record of {body_bytes} bytes; the largest is {self._body_bytes_max}")
        commit.append(kind, buffers, body_bytes, None)
        self._records_appended += 1
        self._wake_writer()

    def report_last(self, done: Callable[[BaseException | None], None]) -> None:
        """Call ``done``, as :meth:`append_then` does, when the outcome is known of all records appended so far. The
        last of them was appended in this step of the event loop, by :meth:`append_each`."""
        self._running().give_token(done)

    def append_deferred(self, kind: RecordKind, body: bytes) -> None:
        """Queue a record that is written with the next group and does not start one: for records that may be lost, and
        must not delay later adds by a sync of their own. Its outcome is not reported; a failed journal drops it."""
        commit = self._running()
        if self._failure is None and not self._closing:
            assert len(body) <= self._body_bytes_max
            commit.append(kind, (body,), len(body), None, deferred=True)
            self._records_appended += 1

    @property
    def position(self) -> JournalPosition:
        """Just after the last record appended, durable or not; before ``start``, the end of the log found by replay."""
        if self._commit is not None:
            return self._commit.position
        end = self._scan_end.position if self._scan_end is not None else self._start
        return end or JournalPosition(0, 0)

    def mark(self) -> JournalPosition:
        """The position that separates all records appended so far from all later ones: a replay from it delivers
        exactly the later ones. The next record starts a group.

        A checkpoint may rely on it across a crash only once ``synced_position`` has reached it.
        """
        return self._commit.mark() if self._commit is not None else self.position

    @property
    def synced_position(self) -> JournalPosition:
        """Everything before it is durable."""
        return self._commit.synced_position if self._commit is not None else self.position

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet durable: the journal's share of the bookie's bounded memory."""
        return self._commit.pending_bytes if self._commit is not None else 0

    @property
    def bytes_appended(self) -> int:
        """Bytes of disk that the records appended since ``start`` take, with the zeros between groups; never
        decreases."""
        return self._commit.disk_bytes if self._commit is not None else 0

    async def trim(self, up_to: JournalPosition) -> None:
        """Recycle or remove the segments before the segment of ``up_to``. Raises OSError; may be called again."""
        await self._segments.trim(up_to.segment)

    @property
    def directory(self) -> Path:
        return self._directory

    @property
    def segments(self) -> Sequence[int]:
        """Numbers of the existing segments, ascending."""
        return self._segments.numbers

    @property
    def out_of_space(self) -> bool:
        """The disk is full and the next segment cannot be created: the bookie must refuse adds and take a checkpoint
        before the current segment is full."""
        return self._segments.out_of_space

    def on_out_of_space(self, call: Callable[[], None]) -> None:
        """``call`` is called whenever an attempt to create the next segment finds the disk full."""
        self._segments.on_out_of_space = call

    async def release_spares(self, *, keep: int = 0) -> None:
        """Remove the segments kept for reuse but ``keep``, to free their space. Never raises OSError."""
        await self._segments.release_spares(keep=keep)

    def kept_from_growing(self) -> asyncio.Lock:
        """A lock. While it is held, the journal allocates no segment; it uses those that there are."""
        return self._segments.allocating

    def statistics(self) -> JournalStatistics:
        return JournalStatistics(
            records_appended=self._records_appended,
            bytes_appended=self.bytes_appended,
            groups_synced=self._groups_synced,
            bytes_synced=self._bytes_synced,
            sync_seconds=self._sync_seconds,
            queue_seconds=self._queue_seconds,
            pending_records=self._commit.pending_records if self._commit is not None else 0,
            pending_bytes=self.pending_bytes,
            segments=len(self._segments.numbers),
            spare_segments=self._segments.spares,
            segments_unprepared=self._segments.segments_unprepared,
            corruptions=len(self.corruption),
            failed=self._failure is not None,
        )

    async def close(self) -> None:
        """Write and sync the pending records, mark the clean end, and close the files. Later appends fail.

        Never raises for a failed disk: the futures of the pending records have the error.
        """
        if not self._closing:
            self._closing = True
            self._segments.stop_waiting_for_space()
            if self._commit is not None and self._failure is None:
                # With an explicit end, the next start does not search for records after it.
                self._commit.finish()
                self._wake_writer()
        try:
            if self._writer is not None:
                await asyncio.wait([self._writer])
        finally:
            await self._segments.close()

    # --- the writer ---------------------------------------------------------------------------------------------

    def _running(self) -> GroupCommit:
        assert self._commit is not None, _NOT_STARTED
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
        """Write group after group. The loop turn between a wake-up and the group admits all adds of that turn."""
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
            began_at = self._clock()
            self._queue_seconds.observe(began_at - group.queued_at)
            await segment.file.write_and_sync(group.offset, encode_group(group, segment.header, commit.synced_position))
            self._sync_seconds.observe(self._clock() - began_at)
            commit.settle()
            self._segments.note_write()
            self._groups_synced += 1
            self._bytes_synced += group.disk_bytes
            self._report([record.token for record in group.records], None)
            if commit.waiting:
                # The write may have completed in the middle of a turn: its other adds join the next group.
                await asyncio.sleep(0)

    def _fail(self, error: BaseException) -> None:
        """Mark the journal as failed; this is the only way, and it is final."""
        self._failure = error
        self._report(self._running().fail(), self._failed_error())
        if self._on_failure is not None:
            self._on_failure(error)

    def _report(self, tokens: Iterable[Any], outcome: BaseException | None) -> None:
        """Report the outcome of records. A callback that raises must not prevent the other callbacks."""
        for done in tokens:
            if done is None:
                continue
            try:
                done(outcome)
            except Exception:
                _log.exception("cannot report the outcome of a journal record", directory=str(self._directory))

    def _failed_error(self) -> JournalFailedError:
        if self._failure is None:
            return JournalFailedError(f"the journal in {self._directory} is closed", may_have_happened=False)
        error = JournalFailedError(f"the journal in {self._directory} has failed: {self._failure!r}")
        error.__cause__ = self._failure
        return error


def settle_future(future: asyncio.Future[None], failure: BaseException | None) -> None:
    """Set the outcome of a future that its caller may have cancelled."""
    if future.done():  # its caller cancelled it
        return
    if failure is None:
        future.set_result(None)
    else:
        future.set_exception(failure)
        future.exception()  # retrieved: on_failure reports it, so asyncio must not log an abandoned future


def _delivered(effect: DeliverRecord) -> tuple[RecordKind, bytes, JournalPosition]:
    record = effect.record
    try:
        return RecordKind(record.kind), record.body, record.end
    except ValueError as error:
        raise UnsupportedJournalError(
            f"journal record of unknown kind {record.kind} at {record.end}: start the version that wrote it"
        ) from error


class _SegmentReader:
    """Reads parts of segment files for a scan, with one file open at a time."""

    def __init__(self, segments: SegmentFiles) -> None:
        self._segments = segments
        self._number: int | None = None
        self._file: File | None = None

    async def read(self, wanted: ReadBytes) -> bytes | None:
        """The requested bytes; None on an I/O error."""
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
