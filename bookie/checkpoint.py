"""From the write cache to entry logs and the index, and the order in which that becomes durable.

*Flush*: the active generation of the cache is swapped out and written to the current entry log, sorted by ledger and
entry, into the page cache only; where its runs lie is kept in memory (``flushed``).

*Checkpoint* (DESIGN 5, PROTOCOL B7), each step complete before the next begins:

1. one synchronous step: swap the cache, capture the journal's position (the *mark*) and the set of changed ledger
   states;
2. write the swapped generation, as a flush; freeze what has been flushed so far;
3. sync the entry logs it lies in, and wait until the journal is synced up to the mark;
4. write and sync an index part with the frozen runs and the states;
5. replace the manifest: it names the part, the logs' lengths and the mark. This is the instant of the checkpoint;
6. trim the journal up to the mark.

A crash before 5 leaves files that no manifest names; the next start removes them and replays the journal from the
old mark. Adds, and flushes, go on during 3 to 6. Any OSError here is fatal to the bookie (PROTOCOL B1): nothing is
tried again.

States may be newer than the mark when they are encoded: they only grow, and the journal tells the rest again.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import structlog
from octavo.bookie.checkpoint_manifest import Manifest, encode_manifest
from octavo.bookie.entry_log import EntryLogWriter
from octavo.bookie.filesystem import FileSystem, replace_file
from octavo.bookie.index import Index
from octavo.bookie.index_format import IndexDamagedError
from octavo.bookie.index_merge import choose_merge, merge_parts
from octavo.bookie.index_part import Part
from octavo.bookie.index_runs import Run, RunMap, coalesce, run_bytes, span
from octavo.bookie.journal import Journal, JournalPosition, RecordKind
from octavo.bookie.ledger_state import LedgerState, PackedStates, encode_ledger_record
from octavo.bookie.write_cache import Generation, WriteCache

log = structlog.get_logger()

_WRITE_BYTES = 2 * 1024 * 1024
"""One vectored write of a flush: large enough for the disk, small enough to leave the loop quickly."""
_WRITE_BUFFERS = 512
"""Buffers of one vectored write, and runs handled between two yields: well under a millisecond of Python work."""
_YIELD_LEDGERS = 128
_RUN_WORK = 64
_YIELD_WORK = 16_384
"""A run costs as much work as so many of its entries; after so much work the loop gets its turn."""


class Frozen(NamedTuple):
    """What a checkpoint will make durable, fixed in its synchronous steps."""

    mark: JournalPosition
    states: dict[int, LedgerState]
    barrier: asyncio.Future[None]
    """Done when the journal is synced up to the mark."""


class Checkpointer:
    """Owns the entry logs being written, the runs not yet in the index, and the manifest."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: Path,
        *,
        manifest: Manifest,
        cache: WriteCache,
        index: Index,
        journal: Journal,
        packed: PackedStates,
        entry_log_bytes: int,
        on_room: Callable[[], None],
        on_freeze: Callable[[], None],
    ) -> None:
        self._filesystem = filesystem
        self._manifest_path = directory / "manifest"
        self._logs_directory = directory / "entries"
        self._manifest = manifest
        self._cache = cache
        self._index = index
        self._journal = journal
        self._packed = packed
        self._entry_log_bytes = entry_log_bytes
        self._on_room = on_room
        self._on_freeze = on_freeze
        self._writer: EntryLogWriter | None = None
        self._rolled: list[EntryLogWriter] = []
        self._log_sizes = dict(manifest.logs)
        self._next_part_id = manifest.next_part_id
        self._next_log_id = manifest.next_log_id
        self._flush_lock = asyncio.Lock()
        self._commit_lock = asyncio.Lock()
        self._manifest_lock = asyncio.Lock()
        self._unmergeable: set[int] = set()
        self.doubt_stop = manifest.doubt_stop
        """See :class:`Manifest`. What is set here is durable with the next manifest."""
        self.dirty: dict[int, LedgerState] = {}
        """Ledgers whose state has changed since the last mark."""
        self.committing_states: dict[int, LedgerState] = {}
        self.flushed: dict[int, RunMap] = {}
        """In entry logs since the last freeze; newer than ``committing``."""
        self.committing: dict[int, RunMap] = {}
        self.mark_bytes = 0
        """The journal's ``bytes_appended`` at the last mark."""
        self.checkpoints = 0
        self.merges = 0

    @property
    def log_bytes(self) -> int:
        """Bytes of all live entry logs."""
        return sum(self._log_sizes.values())

    def layers(self, ledger_id: int) -> list[RunMap]:
        """The ledger's run maps between cache and index, newest first."""
        found = (self.flushed.get(ledger_id), self.committing.get(ledger_id))
        return [run_map for run_map in found if run_map is not None]

    @property
    def is_dirty(self) -> bool:
        """There is something that a checkpoint would make durable outside the journal."""
        return bool(self.dirty or self.flushed or self._cache.active.ledgers)

    # --- flush ------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Write the active generation to the entry log. Raises OSError."""
        async with self._flush_lock:
            if self._cache.active.ledgers:
                await self._write_generation(self._cache.swap())

    async def _write_generation(self, generation: Generation) -> None:
        self._on_room()
        batch: list[tuple[int, Run]] = []
        size = 0
        for ledger_id in sorted(generation.ledgers):
            for run in generation.ledgers[ledger_id].runs:
                length = run_bytes(run)
                batch.append((ledger_id, run))
                size += length
                if size >= _WRITE_BYTES or len(batch) >= _WRITE_BUFFERS:
                    await self._write_batch(batch, size)
                    batch, size = [], 0
        if batch:
            await self._write_batch(batch, size)
        self._cache.flushed()
        self._on_room()
        await _dismantle(generation)

    async def _write_batch(self, batch: list[tuple[int, Run]], size: int) -> None:
        writer = await self._log_for(size)
        offset = writer.size
        buffers = []
        placed: dict[int, list[Run]] = {}
        for ledger_id, run in batch:
            assert isinstance(run.place, bytes), "cached runs are in memory"
            start, length = span(run, 0, len(run.ids))
            buffers.append(run.place if length == len(run.place) else run.place[start : start + length])
            placed.setdefault(ledger_id, []).append(run._replace(place=writer.log_id, offset=offset))
            writer.totals[ledger_id] = writer.totals.get(ledger_id, 0) + length
            offset += length
        await writer.append(buffers, size)
        for ledger_id, runs in placed.items():
            run_map = self.flushed.get(ledger_id)
            if run_map is None:
                run_map = self.flushed[ledger_id] = RunMap()
            for run in coalesce(runs):
                run_map.put(run)

    async def _log_for(self, size: int) -> EntryLogWriter:
        writer = self._writer
        if writer is not None and writer.size + size > self._entry_log_bytes and writer.totals:
            self._rolled.append(writer)
            self._writer = writer = None
        if writer is None:
            log_id = self._next_log_id
            self._next_log_id += 1
            self._writer = writer = await EntryLogWriter.create(self._filesystem, self._logs_directory, log_id)
        return writer

    # --- checkpoint -------------------------------------------------------------------------------------------

    async def checkpoint(self) -> None:
        """Make everything up to now durable outside the journal, and trim it. Raises OSError, JournalFailedError."""
        async with self._commit_lock:
            async with self._flush_lock:
                frozen, generation = self._freeze()
                if generation is not None:
                    await self._write_generation(generation)
                assert not self.committing, "one commit at a time"
                self.committing, self.flushed = self.flushed, {}
                rolled, self._rolled = self._rolled, []
                writers = [*rolled, *([self._writer] if self._writer is not None else [])]
                sizes = {writer.log_id: writer.size for writer in writers}
            for writer in writers:
                await writer.sync()
            await frozen.barrier
            part = await self._write_part(frozen.states)
            await self._commit(frozen, part, sizes)
            await self._journal.trim(frozen.mark)
            for writer in rolled:
                await writer.finish()
            self.checkpoints += 1

    def _freeze(self) -> tuple[Frozen, Generation | None]:
        """The synchronous step: whatever the journal holds up to the mark is in the swapped generation or flushed
        before."""
        self._on_freeze()
        mark = self._journal.position
        states, self.dirty = self.dirty, {}
        self.committing_states = states
        self.mark_bytes = self._journal.bytes_appended
        generation = self._cache.swap() if self._cache.active.ledgers else None
        barrier: asyncio.Future[None]
        if self._journal.synced_position < mark:
            barrier = self._journal.append(RecordKind.LEDGER_KEY, [encode_ledger_record(0)])
        else:
            barrier = asyncio.get_running_loop().create_future()
            barrier.set_result(None)
        return Frozen(mark, states, barrier), generation

    async def _write_part(self, states: dict[int, LedgerState]) -> Part | None:
        if not states and not self.committing:
            return None
        part_id = self._next_part_id
        self._next_part_id += 1
        writer = await self._index.new_part(part_id)
        handled = 0
        for ledger_id in sorted(self.committing):
            for run in coalesce(self.committing[ledger_id].runs):
                await writer.add_run(ledger_id, run)
                handled += _RUN_WORK + len(run.ids)
                if handled > _YIELD_WORK:
                    handled = 0
                    await asyncio.sleep(0)
        for at, ledger_id in enumerate(sorted(states)):
            encoded = states[ledger_id].encode()
            self._packed.put(ledger_id, encoded)
            await writer.add_state(ledger_id, encoded)
            if at % _YIELD_LEDGERS == 0:
                await asyncio.sleep(0)
        return await writer.finish()

    async def _commit(self, frozen: Frozen, part: Part | None, sizes: dict[int, int]) -> None:
        async with self._manifest_lock:
            part_ids = tuple(live.part_id for live in self._index.parts)
            if part is not None:
                part_ids = (*part_ids, part.part_id)
            mark = (frozen.mark.segment, frozen.mark.offset)
            await self._replace_manifest(mark, part_ids, self._log_sizes | sizes)
            self._log_sizes |= sizes
            if part is not None:
                self._index.append(part)
            self.committing = {}
            self.committing_states = {}

    async def _replace_manifest(
        self, mark: tuple[int, int] | None, part_ids: tuple[int, ...], log_sizes: dict[int, int]
    ) -> None:
        logs = tuple(sorted(log_sizes.items()))
        manifest = Manifest(mark, self._next_part_id, self._next_log_id, part_ids, logs, self.doubt_stop)
        await replace_file(self._filesystem, self._manifest_path, encode_manifest(manifest))
        self._manifest = manifest

    async def limit_doubt(self, stop: int) -> None:
        """Narrow the doubt to ledgers with ids below ``stop``, durably. Raises OSError."""
        async with self._manifest_lock:
            self.doubt_stop = stop
            parts = tuple(part.part_id for part in self._index.parts)
            await self._replace_manifest(self._manifest.mark, parts, self._log_sizes)

    # --- merging ----------------------------------------------------------------------------------------------

    async def merge(self) -> bool:
        """Merge some neighbouring parts, if that is worth while. False when nothing was to be done. Raises OSError."""
        parts = self._index.parts
        chosen = choose_merge([part.size for part in parts])
        if chosen is None:
            return False
        old = parts[chosen[0] : chosen[1]]
        if any(part.part_id in self._unmergeable for part in old):
            return False
        part_id = self._next_part_id
        self._next_part_id += 1
        writer = await self._index.new_part(part_id)
        try:
            merged = await merge_parts(old, writer)
        except IndexDamagedError as error:
            # The damaged part stays as it is: what it holds elsewhere can still be read, and nothing is lost twice.
            log.error(  # noqa: TRY400 - told in full; a traceback would say nothing more
                "index parts are not merged", path=str(error.path), offset=error.offset, reason=error.message
            )
            self._unmergeable.update(part.part_id for part in old if part.path == error.path)
            await writer.abandon()
            return False
        async with self._manifest_lock:
            gone = {part.part_id for part in old}
            part_ids = [part.part_id for part in self._index.parts]
            at = part_ids.index(old[0].part_id)
            kept = [live for live in part_ids if live not in gone]
            kept.insert(at, part_id)
            await self._replace_manifest(self._manifest.mark, tuple(kept), self._log_sizes)
            await self._index.replace(old, merged)
        self.merges += 1
        return True

    async def close(self) -> None:
        """Let go of the entry logs. What was not checkpointed is in the journal."""
        writers = [*self._rolled, *([self._writer] if self._writer is not None else [])]
        self._rolled, self._writer = [], None
        for writer in writers:
            # Without a checkpoint the totals would be of bytes that may vanish: a scan makes them again.
            complete = self._log_sizes.get(writer.log_id) == writer.size
            with contextlib.suppress(OSError):
                await (writer.finish() if complete else writer.close())


async def remove_orphans(filesystem: FileSystem, directory: Path, manifest: Manifest) -> tuple[int, int]:
    """Remove index parts and entry logs that no manifest names: what a crash interrupted.

    Returns ids from which new parts and logs may be numbered.
    """
    next_part_id, next_log_id = manifest.next_part_id, manifest.next_log_id
    for folder, live in (("entries", set(dict(manifest.logs))), ("index", set(manifest.part_ids))):
        for name in await filesystem.list_directory(directory / folder):
            stem, _, suffix = name.partition(".")
            try:
                number = int(stem, 16)
            except ValueError:
                continue  # nothing of ours
            if folder == "entries":
                next_log_id = max(next_log_id, number + 1)
            else:
                next_part_id = max(next_part_id, number + 1)
            if number not in live or suffix.endswith("tmp"):
                await filesystem.remove(directory / folder / name)
    await filesystem.sync_directory(directory / "entries")
    await filesystem.sync_directory(directory / "index")
    return next_part_id, next_log_id


async def _dismantle(generation: Generation) -> None:
    """Free a generation in pieces: dropping a hundred thousand runs at once would hold up the loop."""
    handled = 0
    while generation.ledgers:
        _, run_map = generation.ledgers.popitem()
        while run_map.runs:
            handled += min(len(run_map.runs), _WRITE_BUFFERS)
            del run_map.runs[-_WRITE_BUFFERS:]
            if handled >= _WRITE_BUFFERS:
                handled = 0
                await asyncio.sleep(0)
