"""Verifies every file of a stopped bookie, and that the files agree with each other. Changes nothing."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from octavo.bookie.disk.filesystem import FileSystem, read_file
from octavo.bookie.entrylog.format import HEADER_BYTES, decode_totals, is_header
from octavo.bookie.entrylog.logs import EntryLogs
from octavo.bookie.entrylog.walk import DamagedStretch, IntactEntry, walk_log
from octavo.bookie.identity.cookie import COOKIE_NAME, decode_cookie
from octavo.bookie.index.format import IndexDamagedError
from octavo.bookie.index.merge import merged_runs
from octavo.bookie.index.part import Part, part_name
from octavo.bookie.index.runs import Run, clip, sizes_between, slice_entries, span
from octavo.bookie.journal.format import JournalCorruption, JournalPosition
from octavo.bookie.offline.layout import Layout, refuse_if_old, scan_journal
from octavo.bookie.storage.ledger_state import first_kept_in, is_without_entries
from octavo.bookie.storage.manifest import Manifest, decode_manifest
from octavo.bookie.storage.manifest_keeper import MANIFEST_NAME
from octavo.protocol.entries import header_of, is_intact

READ_BYTES = 1 << 20


class Finding(NamedTuple):
    """A problem found. ``offset`` in bytes, None when it concerns the whole file."""

    path: Path
    offset: int | None
    what: str

    def __str__(self) -> str:
        place = "" if self.offset is None else f", offset {self.offset}"
        return f"{self.path}{place}: {self.what}"


class OfflineCheck:
    """One pass over a bookie's directories. ``counts`` has the number of items verified, by kind."""

    def __init__(self, filesystem: FileSystem, layout: Layout) -> None:
        self._filesystem = filesystem
        self._layout = layout
        self._logs = EntryLogs(filesystem, layout.entries)
        self.counts: Counter[str] = Counter()
        self._unreadable: set[int] = set()
        """Entry logs already reported as unreadable."""
        self._hidden: Counter[int] = Counter()
        """Entries that the index places in each log and that are not there."""

    async def findings(self) -> AsyncIterator[Finding]:
        """Problems, as they are found. Raises OSError for a directory that cannot be read."""
        for role, directory in self._layout.directories.items():
            async for finding in self._check_cookie(role, directory):
                yield finding
        manifest_path = self._layout.data / MANIFEST_NAME
        manifest: Manifest | None = None
        try:
            manifest = decode_manifest(await read_file(self._filesystem, manifest_path))
        except FileNotFoundError:
            yield Finding(manifest_path, None, "missing")
        except ValueError as error:
            yield Finding(manifest_path, 0, str(error))
        except OSError as error:
            yield Finding(manifest_path, None, f"cannot be read: {error.strerror}")
        if manifest is not None:
            if manifest.doubt is not None and not manifest.doubt.is_over:
                self.counts["in doubt"] = 1
            async for finding in self._check_what_counts(manifest_path, manifest):
                yield finding
        mark = manifest.mark if manifest is not None else None
        async for found in scan_journal(
            self._filesystem, self._layout.journal, JournalPosition(*mark) if mark is not None else None
        ):
            if isinstance(found, JournalCorruption):
                yield Finding(Path(found.path), found.offset, found.what)
            else:
                self.counts["journal records"] += 1

    async def _check_what_counts(self, manifest_path: Path, manifest: Manifest) -> AsyncIterator[Finding]:
        try:
            await refuse_if_old(self._filesystem, self._layout, manifest)
        except IndexDamagedError as error:
            yield Finding(manifest_path, 0, error.what)
        try:
            await self._logs.find()
            async for finding in self._check_logs(manifest):
                yield finding
            async for finding in self._check_index(manifest):
                yield finding
        finally:
            await self._logs.close()

    async def _check_cookie(self, role: str, directory: Path) -> AsyncIterator[Finding]:
        path = directory / COOKIE_NAME
        try:
            cookie = decode_cookie(await read_file(self._filesystem, path))
        except FileNotFoundError:
            yield Finding(path, None, "missing: this is not a bookie's directory, or it was emptied")
            return
        except OSError as error:
            yield Finding(path, None, f"cannot be read: {error.strerror}")
            return
        if cookie is None:
            yield Finding(path, 0, "the cookie is damaged; see `octavo bookie reset-identity DIR`")
        elif role not in cookie.role.split("+"):
            yield Finding(path, None, f"this directory has the role {cookie.role}, not {role}")
        else:
            self.counts["cookies"] += 1

    async def _check_logs(self, manifest: Manifest) -> AsyncIterator[Finding]:
        for log_id, size in manifest.logs:
            path = self._logs.path(log_id)
            try:
                async for finding in self._check_log(log_id, path, size):
                    yield finding
                async for finding in self._check_totals(log_id, path.with_suffix(".totals")):
                    yield finding
            except OSError as error:
                self._unreadable.add(log_id)
                yield Finding(path, None, f"cannot be read: {error.strerror}")

    async def _check_log(self, log_id: int, path: Path, size: int) -> AsyncIterator[Finding]:
        file = await self._filesystem.open(path)
        try:
            actual = await file.size()
            if actual < size:
                yield Finding(path, actual, f"the entry log ends here, {size - actual} bytes too early")
            if not is_header(log_id, await file.read(0, HEADER_BYTES)):
                yield Finding(path, 0, "the header does not verify")
            async for found in walk_log(file.read, stop=min(size, actual)):
                if isinstance(found, DamagedStretch):
                    yield Finding(path, found.offset, f"{found.size} bytes contain no intact entry")
                elif isinstance(found, IntactEntry):
                    self.counts["entries"] += 1
            self.counts["entry logs"] += 1
        finally:
            await file.close()

    async def _check_totals(self, log_id: int, path: Path) -> AsyncIterator[Finding]:
        if await self._filesystem.exists(path):
            if decode_totals(log_id, await read_file(self._filesystem, path)) is None:
                yield Finding(path, 0, "the totals are damaged; the bookie computes them again when it needs them")
            else:
                self.counts["totals"] += 1

    async def _check_index(self, manifest: Manifest) -> AsyncIterator[Finding]:
        parts: list[Part] = []
        damaged = False
        try:
            for part_id in manifest.part_ids:
                path = self._layout.index / part_name(part_id)
                try:
                    parts.append(await Part.open(self._filesystem, path, part_id))
                    async for _, damage in parts[-1].verify():
                        self.counts["index blocks"] += 1
                        if damage is not None:
                            damaged = True
                            yield Finding(path, damage.offset, damage.what)
                except IndexDamagedError as error:
                    damaged = True
                    yield Finding(path, error.offset, error.what)
                except OSError as error:
                    damaged = True
                    yield Finding(path, None, f"cannot be read: {error.strerror}")
            if not damaged:  # the readable parts of a damaged index may be older than the unreadable ones
                async for finding in self._check_runs(parts, dict(manifest.logs)):
                    yield finding
        finally:
            for part in parts:
                await part.retire()

    async def _check_runs(self, parts: list[Part], lengths: dict[int, int]) -> AsyncIterator[Finding]:
        without_entries: set[int] = set()
        first_kept: dict[int, int] = {}
        for part in parts:
            async for ledger_id, state in part.states():
                if is_without_entries(state):
                    without_entries.add(ledger_id)
                if trimmed := first_kept_in(state):
                    first_kept[ledger_id] = trimmed
        async for ledger_id, run in merged_runs(parts):
            kept = clip(run, first_kept.get(ledger_id, 0), run.last)
            if kept is not None and ledger_id not in without_entries:
                async for finding in self._check_run(ledger_id, kept, lengths):
                    yield finding
        for log_id, entries in sorted(self._hidden.items()):
            yield Finding(self._logs.path(log_id), None, f"{entries} entries that the index places here are missing")

    async def _check_run(self, ledger_id: int, run: Run, lengths: dict[int, int]) -> AsyncIterator[Finding]:
        """Check that the entries of a run are where the index says."""
        assert isinstance(run.place, int)
        path = self._logs.path(run.place)
        offset, size = span(run, 0, len(run.ids))
        if offset + size > lengths.get(run.place, 0):
            yield Finding(path, offset, f"the index points past the end, for ledger {ledger_id} from {run.first} on")
            return
        if run.place in self._unreadable:
            self._hidden[run.place] += len(run.ids)
            return
        sizes = sizes_between(run, 0, len(run.ids))
        start = 0
        while start < len(run.ids):
            stop, length = start, 0
            while stop < len(run.ids) and (length + sizes[stop] <= READ_BYTES or stop == start):
                length += sizes[stop]
                stop += 1
            try:
                data = await self._logs.read(run.place, offset, length)
            except OSError as error:
                yield Finding(path, offset, f"cannot be read: {error.strerror}")
                return
            for entry_id, sealed in zip(run.ids[start:stop], slice_entries(data, 0, sizes[start:stop]), strict=True):
                if is_intact(sealed):  # damage has been reported already
                    header = header_of(sealed)
                    if (header.ledger_id, header.entry_id) != (ledger_id, entry_id):
                        yield Finding(
                            path,
                            offset,
                            f"ledger {header.ledger_id} entry {header.entry_id} is where the index has ledger "
                            f"{ledger_id} entry {entry_id}",
                        )
                    self.counts["indexed entries"] += 1
                elif len(sealed) == 0:
                    self._hidden[run.place] += 1
                offset += sizes[start]
                start += 1
