"""The directories of a stopped bookie, for the tools that inspect and repair them."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from octavo.bookie.disk.filesystem import File, FileSystem
from octavo.bookie.identity.errors import BookieStartError
from octavo.bookie.journal.format import JournalCorruption, JournalPosition, Record, segment_name, segment_number
from octavo.bookie.journal.replay import DeliverRecord, JournalScan, ReadBytes, ReportCorruption
from octavo.bookie.storage.manifest import Manifest
from octavo.bookie.storage.manifest_keeper import journal_goes_back_to, refuse_old_manifest


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of one bookie's directories."""

    data: Path
    journal: Path
    entry_homes: tuple[Path, ...]
    """Directories that contain a folder ``entries``; ``data`` is the first."""

    @classmethod
    def of(cls, data: Path, journal: Path | None = None, entry_dirs: tuple[Path, ...] = ()) -> "Layout":
        return cls(data, journal if journal is not None else data / "journal", (data, *entry_dirs))

    @property
    def directories(self) -> dict[str, Path]:
        """Every directory by its role, named as the bookie names them."""
        further = {f"entries-{number}": path for number, path in enumerate(self.entry_homes[1:], 1)}
        return {"data": self.data, "journal": self.journal, **further}

    @property
    def index(self) -> Path:
        return self.data / "index"

    @property
    def entries(self) -> tuple[Path, ...]:
        return tuple(home / "entries" for home in self.entry_homes)


@asynccontextmanager
async def locked(filesystem: FileSystem, layout: Layout) -> AsyncIterator[None]:
    """Lock the directories, so that no bookie starts on them. Raises :class:`BookieStartError` when a bookie runs there
    or a directory is missing."""
    paths = list(dict.fromkeys(layout.directories.values()))
    for path in paths:  # before a lock file is created in what may be the wrong directory
        if not await filesystem.exists(path):
            raise BookieStartError(f"{path} does not exist: name the bookie's own directories")
    with contextlib.ExitStack() as locks:
        for path in paths:
            try:
                locks.callback(await filesystem.lock(path / "lock"))
            except BlockingIOError as error:
                raise BookieStartError(f"{path} is in use by a bookie; stop it first") from error
            except OSError as error:
                raise BookieStartError(f"{path}: {error.strerror or error}") from error
        yield


async def refuse_if_old(filesystem: FileSystem, layout: Layout, manifest: Manifest) -> None:
    """Refuse a manifest that was restored from a copy, as the bookie does. Raises :class:`IndexDamagedError` then, and
    OSError."""
    names = await filesystem.list_directory(layout.journal)
    segments = [number for name in names if (number := segment_number(name)) is not None]
    if not journal_goes_back_to(manifest, segments):
        await refuse_old_manifest(filesystem, layout.data, layout.entries, manifest)


async def scan_journal(
    filesystem: FileSystem, directory: Path, start: JournalPosition | None
) -> AsyncIterator[Record | JournalCorruption]:
    """The records of a journal from a position on, in order, and its damage. Changes nothing. Raises OSError."""
    numbers = sorted(
        number for name in await filesystem.list_directory(directory) if (number := segment_number(name)) is not None
    )
    files: dict[int, File] = {}
    sizes: dict[int, int | None] = dict.fromkeys(numbers)
    try:
        for number in numbers:
            with contextlib.suppress(OSError):
                files[number] = await filesystem.open(directory / segment_name(number))
                sizes[number] = await files[number].size()
        scan = JournalScan(directory, sizes, start).run()
        answer: bytes | None = None
        while True:
            try:
                effect = scan.send(answer)
            except StopIteration:
                return
            answer = None
            if isinstance(effect, ReadBytes):
                with contextlib.suppress(OSError, KeyError):
                    answer = await files[effect.segment].read(effect.offset, effect.size)
            elif isinstance(effect, ReportCorruption):
                yield effect.corruption
            elif isinstance(effect, DeliverRecord):
                yield effect.record
    finally:
        for file in files.values():
            await file.close()
