"""The index: all live parts together, newest over oldest."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

import structlog
from octavo.bookie.disk.filesystem import FileSystem
from octavo.bookie.index.format import IndexDamagedError
from octavo.bookie.index.part import BlockCache, Part, PartWriter, part_name
from octavo.bookie.index.runs import Run, exclude, merge_runs
from octavo.metrics.histogram import Histogram

log = structlog.get_logger()


class Lookup(NamedTuple):
    """The result for an interval of ids: the bookie holds those in ``runs``; those in ``unknown`` cannot be determined;
    it does not hold the others: every block that could name them was read and is intact."""

    runs: list[Run]
    unknown: list[tuple[int, int]]


class Index:
    """The parts of one directory. The owner of the manifest decides which parts are live."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: Path,
        parts: Sequence[Part],
        cache_bytes: int,
        clock: Callable[[], float] = float,
    ) -> None:
        """Use :meth:`open`."""
        self._filesystem = filesystem
        self._directory = directory
        self._cache = BlockCache(cache_bytes)
        self._reported: set[tuple[PurePath, int]] = set()
        self._replaced: list[Part] = []
        """Parts that have been replaced and whose files may still be open."""
        self.parts: tuple[Part, ...] = tuple(parts)
        """Oldest first."""
        self.damage_seen = 0
        self._clock = clock
        self.lookup_seconds = Histogram()
        """The times of :meth:`lookup`."""

    @classmethod
    async def open(
        cls,
        filesystem: FileSystem,
        directory: Path,
        part_ids: Sequence[int],
        *,
        cache_bytes: int,
        clock: Callable[[], float] | None = None,
    ) -> "Index":
        """Open the given parts, oldest first, and read their footers. ``clock`` gives seconds for the statistics; by
        default the event loop does. Raises :class:`IndexDamagedError`."""
        parts: list[Part] = []
        try:
            for part_id in part_ids:
                parts.append(await Part.open(filesystem, directory / part_name(part_id), part_id))  # noqa: PERF401
        except BaseException:
            for part in parts:
                await part.retire()
            raise
        return cls(filesystem, directory, parts, cache_bytes, clock or asyncio.get_running_loop().time)

    @property
    def directory(self) -> Path:
        return self._directory

    @property
    def cache_bytes(self) -> int:
        """Memory of the cached decoded blocks."""
        return self._cache.bytes

    async def new_part(self, part_id: int) -> PartWriter:
        return await PartWriter.create(self._filesystem, self._directory, part_id)

    async def states(self) -> AsyncIterator[tuple[int, bytes]]:
        """Ledger states of all parts, oldest first: a later one of the same ledger replaces the earlier."""
        for part in self.parts:
            async for item in part.states():
                yield item

    async def lookup(self, ledger_id: int, first: int, last: int, newer: Sequence[Run] = ()) -> Lookup:
        """The runs that hold ids of ``first..last``. ``newer`` are runs of newer layers; they replace older ones."""
        began_at = self._clock()
        found = await self.lookup_in(self.parts, ledger_id, first, last, newer)
        self.lookup_seconds.observe(self._clock() - began_at)
        return found

    async def lookup_in(
        self, parts: Sequence[Part], ledger_id: int, first: int, last: int, newer: Sequence[Run] = ()
    ) -> Lookup:
        """As :meth:`lookup`, in the given parts (oldest first) only."""
        found: list[Run] = list(newer)
        unknown: list[tuple[int, int]] = []
        for part in parts:
            part.acquire()
        try:
            for part in reversed(parts):
                runs, damage = await part.lookup(ledger_id, first, last, self._cache)
                if runs and unknown:
                    # A damaged newer block may have replaced what an older part holds.
                    for low, high in unknown:
                        runs = list(exclude(runs, low, high))
                if runs:
                    found = list(merge_runs(runs, found)) if found else runs
                for error in damage:
                    self.report(error)
                    unknown += gaps_between(found, error.first, error.last)
        finally:
            for part in parts:
                await part.release()
        return Lookup(found, sorted(unknown))

    async def first_id(self, parts: Sequence[Part], ledger_id: int, first: int) -> int | None:
        """The lowest id from ``first`` on that one of the parts names or, where it is damaged, may name: below it a
        look-up finds nothing. None: there is none. A gap costs the same whatever its width."""
        found: int | None = None
        for part in parts:
            part.acquire()
        try:
            for part in parts:
                named = await part.first_id(ledger_id, first, self._cache)
                if named is not None and (found is None or named < found):
                    found = named
        finally:
            for part in parts:
                await part.release()
        return found

    def report(self, error: IndexDamagedError) -> None:
        """Count the damage and log it when it is found for the first time."""
        place = (error.path, error.offset)
        if place not in self._reported and len(self._reported) < 10_000:
            self.damage_seen += 1
            self._reported.add(place)
            log.error("index damaged", path=str(error.path), offset=error.offset, reason=error.message)

    async def replace(self, old: Sequence[Part], new: Part) -> None:
        """Replace adjacent parts by ``new``, which was merged from them, and remove their files. The manifest has
        changed already."""
        at = self.parts.index(old[0])
        assert self.parts[at : at + len(old)] == tuple(old), "merged parts are adjacent"
        self.parts = (*self.parts[:at], new, *self.parts[at + len(old) :])
        self._replaced += old
        for part in old:
            await part.retire()
            self._replaced.remove(part)
            with contextlib.suppress(FileNotFoundError):
                await self._filesystem.remove(part.path)

    def insert_above(self, above: Part, part: Part) -> None:
        """Add a part as the next newer one after ``above``. The manifest has changed already."""
        at = self.parts.index(above) + 1
        self.parts = (*self.parts[:at], part, *self.parts[at:])

    def append(self, part: Part) -> None:
        """Add the newest part. The manifest has changed already."""
        self.parts = (*self.parts, part)

    async def close(self) -> None:
        """Close every part, including those left open by an interrupted replacement."""
        for part in (*self.parts, *self._replaced):
            await part.retire()


def gaps_between(runs: Sequence[Run], first: int, last: int) -> list[tuple[int, int]]:
    """The intervals of ``first..last`` that hold no id of ``runs``."""
    gaps: list[tuple[int, int]] = []
    for run in runs:
        for entry_id in run.ids if not isinstance(run.ids, range) or run.ids.step != 1 else ():
            if first <= entry_id <= last:
                if entry_id > first:
                    gaps.append((first, entry_id - 1))
                first = entry_id + 1
        if isinstance(run.ids, range) and run.ids.step == 1 and run.last >= first and run.first <= last:
            if run.first > first:
                gaps.append((first, run.first - 1))
            first = run.last + 1
    if first <= last:
        gaps.append((first, last))
    return gaps
