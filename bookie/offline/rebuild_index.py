"""Rebuilds the index of a stopped bookie from its entry logs, which are self-describing.

Only the index records which ledgers are fenced, deleted or private, and the ledger keys. The rebuild takes these from
every ledger state that can still be read. If anything may have been lost (a ledger state, the manifest, an entry, a
log), the bookie starts *in doubt* (rule B4) for every ledger that exists then.
"""

import contextlib
from array import array
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from octavo.bookie.disk.filesystem import FileSystem, read_file, replace_file
from octavo.bookie.entrylog.format import HEADER_BYTES
from octavo.bookie.entrylog.logs import EntryLogs
from octavo.bookie.entrylog.walk import DamagedStretch, DoubtfulEntry, IntactEntry, walk_log
from octavo.bookie.index.format import IndexDamagedError
from octavo.bookie.index.part import Part, PartWriter, part_name
from octavo.bookie.index.runs import RunMap, coalesce, make_run
from octavo.bookie.offline.layout import Layout, refuse_if_incomplete, refuse_if_old
from octavo.bookie.storage.ledger_state import LedgerState
from octavo.bookie.storage.manifest import DOUBT_OF_EVERY_LEDGER, Manifest, decode_manifest, encode_manifest
from octavo.bookie.storage.manifest_keeper import MANIFEST_NAME
from octavo.protocol.entries import header_of

RUN_ENTRIES = 1024
"""Entries collected before they are put into a run map."""


class Rebuilt(NamedTuple):
    """The result of a rebuild, and the reasons why the bookie is in doubt afterwards; without a reason, it is not."""

    entries: int
    ledgers: int
    logs: int
    in_doubt_because: tuple[str, ...]


class IndexRebuild:
    """One rebuild. Until its last step, replacing the manifest, a bookie sees no change on disk.

    It works on all of the bookie's directories, or not at all: the next start removes every log that the new manifest
    does not name (rule B8). ``lost``: directories whose files are gone for good."""

    def __init__(self, filesystem: FileSystem, layout: Layout, *, lost: Collection[Path] = ()) -> None:
        self._filesystem = filesystem
        self._layout = layout
        self._lost_directories = lost
        self._logs = EntryLogs(filesystem, layout.entries)
        self._states: dict[int, LedgerState] = {}
        self._runs: dict[int, RunMap] = {}
        self._lost: list[str] = []
        self._entries = 0

    async def run(self) -> Rebuilt:
        """Perform the rebuild. Raises :class:`DataWrongError` unless the directories are all that the bookie has, and
        OSError, also for an entry log that is there and cannot be opened."""
        await refuse_if_incomplete(self._filesystem, self._layout, lost=self._lost_directories)
        try:
            for folder in (*self._layout.entries, self._layout.index):
                await self._filesystem.make_directory(folder)
            await self._logs.find()
            manifest = await self._read_manifest()
            highest_part = await self._read_states(manifest)
            sizes: dict[int, int] = {}
            for log_id in sorted({*self._logs.ids, *(dict(manifest.logs) if manifest is not None else ())}):
                size = await self._read_log(log_id, manifest)
                if size is not None:
                    sizes[log_id] = size
            part_id = max(highest_part + 1, manifest.next_part_id if manifest is not None else 1)
            await self._write_part(part_id)
            await self._write_manifest(manifest, part_id, sizes)
            return Rebuilt(self._entries, len(self._states), len(sizes), tuple(self._lost))
        finally:
            await self._logs.close()

    async def _read_manifest(self) -> Manifest | None:
        path = self._layout.data / MANIFEST_NAME
        try:
            manifest = decode_manifest(await read_file(self._filesystem, path))
            await refuse_if_old(self._filesystem, self._layout, manifest)
            if manifest.mark is None and not manifest.logs and self._logs.ids:
                # Nothing has been checkpointed under it: `reset-identity` has made it after the one before was lost, or
                # the first start was interrupted. Then the journal has what is in the logs, and no harm is done.
                self._lost.append(f"{path}: it names no entry log, but there are some")
                return None
        except IndexDamagedError as error:
            self._lost.append(error.message)
            return None
        except (OSError, ValueError) as error:
            self._lost.append(f"{path}: {error}")
            return None
        return manifest

    async def _read_states(self, manifest: Manifest | None) -> int:
        """Read every intact ledger state, newer over older. Returns the highest part number found.

        Without a manifest the order of the parts is not known (a merge writes old states into a part with a new
        number): then nothing that one of them says is forgotten, and a ledger is gone only if all say so."""
        present = []
        for name in await self._filesystem.list_directory(self._layout.index):
            stem, _, suffix = name.partition(".")
            with contextlib.suppress(ValueError):
                if suffix == "runs":
                    present.append(int(stem, 16))
        chosen: Sequence[int] = manifest.part_ids if manifest is not None else sorted(present)
        for part_id in chosen:
            path = self._layout.index / part_name(part_id)
            try:
                part = await Part.open(self._filesystem, path, part_id)
            except IndexDamagedError as error:
                self._lost.append(error.message)
                continue
            try:
                for block in part.state_blocks:
                    try:
                        for ledger_id, encoded in await part.states_in(block):
                            state = LedgerState.decode(ledger_id, encoded)
                            if manifest is None and (other := self._states.get(ledger_id)) is not None:
                                state.absorb(other)
                            self._states[ledger_id] = state
                    except IndexDamagedError as error:
                        self._lost.append(error.message)
            finally:
                await part.retire()
        return max(present, default=0)

    async def _read_log(self, log_id: int, manifest: Manifest | None) -> int | None:
        """Index the log. Returns the bytes of it that are in use, None when it is missing or not the bookie's."""
        path = self._logs.path(log_id)
        known = dict(manifest.logs) if manifest is not None else None
        if known is not None and log_id not in known:
            return None  # left over from a crash
        try:
            file = await self._filesystem.open(path)
        except FileNotFoundError:
            self._lost.append(f"{path}: the file is missing")
            return None
        try:
            actual = await file.size()
            stop = min(known[log_id], actual) if known is not None else actual
            whole = known is not None and known[log_id] <= actual
            if known is not None and not whole:
                self._lost.append(f"{path}: it ends {known[log_id] - actual} bytes too early")
            builder = _RunBuilder(log_id, self._runs)
            end = HEADER_BYTES
            doubtful: list[DoubtfulEntry] = []
            async for found in walk_log(file.read, stop=stop, ends_with_entry=whole):
                if isinstance(found, DamagedStretch):
                    self._lost.append(f"{path}, offset {found.offset}: {found.size} bytes contain no intact entry")
                elif isinstance(found, DoubtfulEntry):
                    doubtful.append(found)
                else:
                    self._add_entry(found, builder)
                    end = found.offset + len(found.sealed)
            builder.flush()
            if doubtful:
                self._lost.append(
                    f"{path}, offset {doubtful[0].offset}: {len(doubtful)} entries after damage are left out, because "
                    "they may be parts of the payload of a damaged entry"
                )
            return stop if known is not None else end
        finally:
            await file.close()

    def _add_entry(self, found: IntactEntry, builder: "_RunBuilder") -> None:
        header = header_of(found.sealed)
        state = self._states.get(header.ledger_id)
        if state is None:
            state = self._states[header.ledger_id] = LedgerState(header.ledger_id)
        if not state.deleted and not state.dropped and header.entry_id >= state.first_kept:
            builder.add(header.ledger_id, header.entry_id, len(found.sealed), found.offset)
            state.highest_plus_one = max(state.highest_plus_one, header.entry_id + 1)
            state.lac_plus_one = max(state.lac_plus_one, header.last_add_confirmed_plus_one)
            self._entries += 1

    async def _write_part(self, part_id: int) -> None:
        path = self._layout.index / part_name(part_id)
        with contextlib.suppress(FileNotFoundError):
            await self._filesystem.remove(path)
        writer = await PartWriter.create(self._filesystem, self._layout.index, part_id)
        try:
            for ledger_id in sorted(self._runs):
                for run in coalesce(self._runs[ledger_id].runs):
                    await writer.add_run(ledger_id, run)
            for ledger_id in sorted(self._states):
                await writer.add_state(ledger_id, self._states[ledger_id].encode())
            part = await writer.finish()
        except BaseException:  # no manifest names the part
            with contextlib.suppress(OSError):
                await writer.abandon()
            raise
        await part.retire()

    async def _write_manifest(self, old: Manifest | None, part_id: int, sizes: dict[int, int]) -> None:
        doubt = DOUBT_OF_EVERY_LEDGER if self._lost else old.doubt if old is not None else None
        manifest = Manifest(
            old.mark if old is not None else None,
            part_id + 1,
            max([*self._logs.ids, *sizes, (old.next_log_id if old is not None else 1) - 1]) + 1,
            (part_id,),
            tuple(sorted(sizes.items())),
            doubt,
        )
        await replace_file(self._filesystem, self._layout.data / MANIFEST_NAME, encode_manifest(manifest))


class _RunBuilder:
    """Collects entries that are adjacent in one log, for the run maps."""

    def __init__(self, log_id: int, runs: dict[int, RunMap]) -> None:
        self._log_id = log_id
        self._runs = runs
        self._ledger_id = -1
        self._ids: array[int] = array("Q")
        self._sizes: array[int] = array("I")
        self._offset = self._end = 0

    def add(self, ledger_id: int, entry_id: int, size: int, offset: int) -> None:
        continues = ledger_id == self._ledger_id and offset == self._end and self._ids and entry_id > self._ids[-1]
        if not continues or len(self._ids) >= RUN_ENTRIES:
            self.flush()
            self._ledger_id, self._offset = ledger_id, offset
        self._ids.append(entry_id)
        self._sizes.append(size)
        self._end = offset + size

    def flush(self) -> None:
        """Put the collected entries into their ledger's run map; they replace those of older logs."""
        if self._ids:
            run = make_run(self._ids, self._sizes, self._log_id, self._offset)
            self._runs.setdefault(self._ledger_id, RunMap()).put(run)
        self._ids, self._sizes = array("Q"), array("I")
