"""The background work of a bookie besides that of its storage: free space, garbage, scrubbing.

Three loops under one supervisor: one looks at the disks and turns the bookie read-only and back; one collects deleted
ledgers, trims streams, drops copies that repair has replaced, and compacts, at its hours or when space is short; one
scrubs. An operator can ask for a round at any time. While the metadata store does not answer nothing is collected, and
nothing else changes. Time is the loop's; the hour of the day is that of ``wall_clock``.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import field
from pathlib import Path, PurePath

import structlog
from octavo.bookie.disk.filesystem import DiskSpace, FileSystem
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.storage.compaction import CompactionResult
from octavo.bookie.storage.scrubber import ScrubResult
from octavo.bookie.storage.storage import Storage
from octavo.bookie.upkeep.disk_watch import DiskLimits, DiskRoles, DiskState, Shortage, judge, shortage_of
from octavo.bookie.upkeep.garbage import Collection, GarbageCollector
from octavo.bookie.upkeep.hours import Hours
from octavo.bookie.upkeep.relieved import RelievedRanges
from octavo.bookie.upkeep.replaced import ReplacedCopies
from octavo.bookie.upkeep.reserve import Reserve
from octavo.bookie.upkeep.truncated import TruncatedStreams
from octavo.protocol.errors import BookieShuttingDownError, MetadataError, MetadataUnavailableError, OctavoError
from octavo.protocol.light_dataclass import dataclass

log = structlog.get_logger("octavo.bookie")

JITTER = 0.2
"""Share by which intervals vary: the bookies of a cluster must not all read the metadata at once."""

_MEBIBYTE = 1024 * 1024

SCRUB_BYTES_PER_SECOND = 4.0 * _MEBIBYTE
"""Default rate of scrubbing, and the rate of a round that is asked for while the background does none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepSettings:
    """Times in seconds, sizes in bytes. A log's *live share* is the part of its bytes that belongs to ledgers that are
    not deleted."""

    limits: DiskLimits = field(default_factory=lambda: DiskLimits(4096 * _MEBIBYTE, 2048 * _MEBIBYTE, 1024 * _MEBIBYTE))
    disk_check_seconds: float = 5.0
    garbage_seconds: float = 900.0
    minor_live_share: float = 0.2
    """Logs with a lower live share are compacted at every round."""
    major_live_share: float = 0.8
    """Logs with a lower live share are compacted at the major rounds, and when a disk is short of space."""
    major_seconds: float = 86_400.0
    major_hours: Hours = field(default_factory=Hours)
    """When major rounds may begin."""
    compaction_bytes_per_second: float = 32.0 * _MEBIBYTE
    """Read and written bytes together."""
    scrub_bytes_per_second: float = SCRUB_BYTES_PER_SECOND
    """0: no scrubbing."""
    scrub_pause_seconds: float = 3600.0
    """Between two rounds."""
    reserve_bytes: int = 16 * _MEBIBYTE
    """Set aside in a file, and given up when the disk is full, for the manifest and for compaction. 0: none."""


class Upkeep:
    """The supervisor. ``on_disk_state`` is called with every change of what the disks allow, and again at the next look
    if it raises an :class:`OctavoError`; ``on_failure`` with a failure after which the bookie must stop."""

    def __init__(
        self,
        storage: Storage,
        collector: GarbageCollector,
        filesystem: FileSystem,
        roles: DiskRoles,
        settings: UpkeepSettings,
        *,
        rng: random.Random,
        wall_clock: Callable[[], float] | None,
        on_disk_state: Callable[[DiskState], Awaitable[None]],
        on_failure: Callable[[BaseException], None],
        truncated: TruncatedStreams | None = None,
        replaced: ReplacedCopies | None = None,
    ) -> None:
        self._storage = storage
        self._collector = collector
        self._truncated = truncated
        self._replaced = replaced
        self._filesystem = filesystem
        self._roles = roles
        self._settings = settings
        self._rng = rng
        self._wall_clock = wall_clock
        self._on_disk_state = on_disk_state
        self._on_failure = on_failure
        self.compaction_limiter = RateLimiter(settings.compaction_bytes_per_second)
        """Limits and pauses compaction."""
        self._unlimited = RateLimiter(1e15)
        self._reclaim_wanted = asyncio.Event()
        self._full = False
        """A write has found the disk full since the last round of garbage collection began."""
        self._compacting_full_disk = False
        self._reserve = Reserve(filesystem, Path(roles.single[0]), settings.reserve_bytes)
        self._supervisor: asyncio.Task[None] | None = None
        self.disks = DiskState()
        self.spaces: dict[PurePath, DiskSpace] = {}
        """Of the disk of each directory, when the disks were last looked at."""
        self._announcement_due = False
        self._collecting = asyncio.Lock()
        self._scrubbing = asyncio.Lock()
        self._checkpoint: asyncio.Task[None] | None = None
        self._collected_at = asyncio.get_running_loop().time()
        self.garbage_rounds = 0
        self.garbage_rounds_failed = 0
        self.ledgers_deleted = 0

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Look at the disks once, then go on in the background. Raises OSError."""
        await self._reserve.find()
        await self._look_at_disks()
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise(), name="octavo-upkeep")

    async def stop(self) -> None:
        """Cancel what runs; a compaction may be cancelled at any point, a checkpoint is waited for."""
        if self._checkpoint is not None:
            await asyncio.wait([self._checkpoint])
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)

    async def _supervise(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch_disks())
                group.create_task(self._collect())
                if self._settings.scrub_bytes_per_second > 0:
                    group.create_task(self._scrub())
        except* BookieShuttingDownError:
            pass
        except* Exception as errors:
            self._on_failure(errors.exceptions[0])

    # --- on request -----------------------------------------------------------------------------------------------

    @property
    def garbage_age_seconds(self) -> float:
        """Time since a garbage collection succeeded, or since the start."""
        return asyncio.get_running_loop().time() - self._collected_at

    @property
    def copies_dropped(self) -> int:
        """Ledgers whose copies were given up because other bookies have taken this one's place (rule C8)."""
        return 0 if self._replaced is None else self._replaced.dropped

    @property
    def relieved(self) -> RelievedRanges | None:
        """The ranges of streams that were given up for the same reason (rule C11)."""
        return None if self._replaced is None else self._replaced.relieved

    @property
    def streams_trimmed(self) -> int:
        """How often a stream was trimmed to where it begins (rule U5)."""
        return 0 if self._truncated is None else self._truncated.trims

    async def collect_garbage(self) -> Collection:
        """One garbage collection, after the one that may be running: deleted ledgers, truncated streams, copies that
        repair has replaced. Raises as :meth:`GarbageCollector.collect`."""
        async with self._collecting:
            self.garbage_rounds += 1
            try:
                collection = await self._collector.collect()
                if self._truncated is not None:
                    trimmed = await self._truncated.round()
                    collection = collection._replace(
                        streams_trimmed=trimmed.streams, entries_trimmed=trimmed.entries, bytes_trimmed=trimmed.bytes
                    )
                if self._replaced is not None:
                    await self._replaced.round()
            except OctavoError:
                self.garbage_rounds_failed += 1
                raise
            self._collected_at = asyncio.get_running_loop().time()
            self.ledgers_deleted += collection.deleted
        if collection.deleted:
            log.info("deleted ledgers collected", **collection._asdict())
        return collection

    async def compact(self, *, major: bool) -> CompactionResult:
        """One compaction, after the one that may be running. A failed write or sync ends the bookie."""
        threshold = self._settings.major_live_share if major else self._settings.minor_live_share
        with self._fatal():
            return await self._compact(threshold, self.compaction_limiter)

    @property
    def compaction_paused_seconds(self) -> float:
        """Seconds for which compaction is still paused."""
        return self.compaction_limiter.paused_seconds

    def pause_compaction(self, seconds: float) -> None:
        """Pause compaction for so long, or until a disk is short of space; 0 ends the pause."""
        self.compaction_limiter.pause(seconds)

    async def scrub(self, bytes_per_second: float | None = None) -> ScrubResult:
        """Verify everything stored once, after the round that may be running; at the configured rate unless another is
        given."""
        rate = bytes_per_second or self._settings.scrub_bytes_per_second or SCRUB_BYTES_PER_SECOND
        with self._fatal():
            async with self._scrubbing:
                result = await self._storage.scrubber.round(RateLimiter(rate))
        report = log.error if result.damaged_places else log.info
        report("scrubbed", **result._asdict())
        return result

    async def checkpoint(self) -> None:
        """Take a checkpoint. Cancelling the call does not stop it. A failed write or sync ends the bookie."""
        if self._checkpoint is None or self._checkpoint.done():
            self._checkpoint = asyncio.get_running_loop().create_task(self._take_checkpoint())
        await asyncio.shield(self._checkpoint)

    async def _take_checkpoint(self) -> None:
        with self._fatal():
            await self._storage.checkpoint()

    @contextlib.contextmanager
    def _fatal(self) -> Iterator[None]:
        """A failure of the disk inside the block ends the bookie (rule B1), as it does in the background."""
        try:
            yield
        except OSError as error:
            self._on_failure(error)
            raise

    # --- disks ----------------------------------------------------------------------------------------------------

    async def _watch_disks(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._storage.space.disk_full.wait(), self._settings.disk_check_seconds)
            met_full = self._storage.space.take_full_directories()
            if met_full:
                self._full = True
                self.reclaim_space()
            await self._look_at_disks(met_full)
            if met_full:
                await asyncio.sleep(min(1.0, self._settings.disk_check_seconds))

    async def _look_at_disks(self, met_full: frozenset[Path] = frozenset()) -> None:
        self.spaces = {path: await self._filesystem.disk_space(Path(path)) for path in self._roles.all}
        free = {path: space.free_bytes for path, space in self.spaces.items()}
        before = self.disks
        self.disks = judge(before, free, self._roles, self._settings.limits, met_full)
        self._storage.space.avoid(self.disks.short)
        for path in sorted(self.disks.warned - before.warned):
            log.warning("disk is filling up", path=str(path), free_bytes=free[path])
        if self.disks.read_only and not before.read_only:
            short = sorted(self.disks.short)
            log.error(
                "read-only: a disk is short of space",
                paths=list(map(str, short)),
                free_bytes=[free[path] for path in short],
                wanted_bytes=self._settings.limits.writable_bytes,
                writes_refused=[str(path) for path in short if path in met_full],
            )
            self.reclaim_space()
        elif before.read_only and not self.disks.read_only:
            log.info("writable again: the disks have enough free space")
        if self.disks.announced != before.announced:
            self._announcement_due = True
        if self._announcement_due:
            await self._announce_disk_state()
        if not self._compacting_full_disk:
            await self._reserve.make()

    async def _announce_disk_state(self) -> None:
        try:
            await self._on_disk_state(self.disks)
            self._announcement_due = False
        except OctavoError as error:
            # The metadata store does not answer, which ends no bookie: tried again at the next look.
            log.warning("state of the disks not announced", error=type(error).__name__, reason=error.message)

    @property
    def shortage(self) -> Shortage:
        """The space that the bookie lacks while it is read-only for lack of space, when the disks were last looked
        at."""
        free = {path: space.free_bytes for path, space in self.spaces.items()}
        return shortage_of(self.disks, free, self._settings.limits)

    def reclaim_space(self) -> None:
        """Collect garbage and compact soon, ending a pause that was asked for: a disk is short of space."""
        self.compaction_limiter.pause(0)
        self._reclaim_wanted.set()

    # --- garbage --------------------------------------------------------------------------------------------------

    async def _collect(self) -> None:
        settings, loop = self._settings, asyncio.get_running_loop()
        major_due_at = loop.time() + self._jittered(settings.major_seconds)
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._reclaim_wanted.wait(), self._jittered(settings.garbage_seconds))
            short_of_space, full = self._reclaim_wanted.is_set(), self._full
            self._full = False
            self._reclaim_wanted.clear()
            if full:
                await self._compact_full_disk()  # what is garbage already: tombstones need room in the journal
            await self._try_to_collect_garbage()
            major = loop.time() >= major_due_at and self._is_hour_for_major()
            if major:
                major_due_at = loop.time() + self._jittered(settings.major_seconds)
            if full:
                await self._compact_full_disk()
                continue
            threshold = settings.major_live_share if major or short_of_space else settings.minor_live_share
            await self._compact(threshold, self._unlimited if short_of_space else self.compaction_limiter)

    async def _compact_full_disk(self) -> None:
        """Compact with the reserve, which nothing but compaction, index parts and the manifest gets: it is set aside
        again before entries and journal segments may take what has been freed."""
        space, threshold = self._storage.space, self._settings.major_live_share
        if not space.urgent_writes_wait and not await self._storage.has_compactable(threshold, self._unlimited):
            return
        async with space.kept_for_compaction():
            self._compacting_full_disk = True
            try:
                await self._reserve.give_up()
                await space.release_spares()
                await self._compact(threshold, self._unlimited)
                await space.urgent_writes_ended()
            finally:
                self._compacting_full_disk = False
            await self._reserve.make()

    async def _compact(self, threshold: float, limiter: RateLimiter) -> CompactionResult:
        result = await self._storage.compact(threshold, limiter)
        if result.logs_removed or result.out_of_space:
            log.info("compacted", **result._asdict())
        return result

    def _is_hour_for_major(self) -> bool:
        return self._wall_clock is None or self._settings.major_hours.include(self._wall_clock())

    def _jittered(self, seconds: float) -> float:
        return seconds * self._rng.uniform(1 - JITTER, 1 + JITTER)

    async def _try_to_collect_garbage(self) -> None:
        try:
            await self.collect_garbage()
        except (MetadataError, MetadataUnavailableError) as error:
            log.warning("no garbage collected: the metadata cannot be relied upon", reason=error.message)
        except OctavoError as error:
            log.warning("no garbage collected", error=type(error).__name__, reason=error.message)

    # --- scrubbing --------------------------------------------------------------------------------------------------

    async def _scrub(self) -> None:
        while True:
            await asyncio.sleep(self._jittered(self._settings.scrub_pause_seconds))
            await self.scrub()
