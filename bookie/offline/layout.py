"""The directories of a stopped bookie, for the tools that inspect and repair them."""

import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from octavo.bookie.disk.filesystem import File, FileSystem, read_file
from octavo.bookie.identity.cookie import COOKIE_NAME, DirectoryCookie, by_path, decode_cookie
from octavo.bookie.identity.errors import BookieStartError, DataWrongError
from octavo.bookie.journal.format import JournalCorruption, JournalPosition, Record, segment_name, segment_number
from octavo.bookie.journal.replay import DeliverRecord, JournalScan, ReadBytes, ReportCorruption
from octavo.bookie.storage.manifest import Manifest
from octavo.bookie.storage.manifest_keeper import journal_goes_back_to, refuse_old_manifest
from octavo.protocol.light_dataclass import dataclass


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


async def refuse_if_incomplete(filesystem: FileSystem, layout: Layout, *, lost: Collection[Path] = ()) -> None:
    """Refuse to work on a part of a bookie's directories (rule B8). The cookies tell which directories it has.

    ``lost``: directories whose files are gone for good; they need no cookie. Raises :class:`DataWrongError`, and
    OSError."""
    directories = by_path(layout.directories)
    if unknown := sorted(map(str, {*lost} - {*directories.values()})):
        raise DataWrongError(f"{unknown[0]} is not one of the directories named, so it is not a lost one of them")
    cookies = await _cookies_in(filesystem, directories)
    intact = [cookie for cookie in cookies.values() if cookie is not None]
    if not intact:
        return
    newest = max(intact, key=lambda cookie: cookie.generation)
    _refuse_if_unnamed(newest, directories)
    missing = [path for role, path in directories.items() if role in newest.roles and role not in cookies]
    unmounted = [str(path) for path in missing if path not in lost]
    if unmounted:
        raise DataWrongError(
            f"{', '.join(unmounted)}: no cookie, but other directories of bookie {newest.bookie_id} have one: mount "
            f"the disk; if its files are gone for good, say so with --lost-dir {' --lost-dir '.join(unmounted)}"
        )


async def refuse_if_unnamed(filesystem: FileSystem, layout: Layout) -> None:
    """Refuse directories whose cookies tell of further ones that are not named. Raises :class:`DataWrongError`, and
    OSError."""
    directories = by_path(layout.directories)
    for cookie in (await _cookies_in(filesystem, directories)).values():
        if cookie is not None:
            _refuse_if_unnamed(cookie, directories)


async def _cookies_in(filesystem: FileSystem, directories: Mapping[str, Path]) -> dict[str, DirectoryCookie | None]:
    """The cookies by the role of the directory that they are in; None for a damaged one, which proves at least that the
    disk is mounted."""
    cookies: dict[str, DirectoryCookie | None] = {}
    for role, path in directories.items():
        with contextlib.suppress(FileNotFoundError):
            cookies[role] = decode_cookie(await read_file(filesystem, path / COOKIE_NAME))
    return cookies


def _refuse_if_unnamed(cookie: DirectoryCookie, directories: Mapping[str, Path]) -> None:
    given = tuple(directories)
    if given[: len(cookie.roles)] != cookie.roles:
        raise DataWrongError(
            f"bookie {cookie.bookie_id} has the directories {', '.join(cookie.roles)}, but {', '.join(given)} are "
            "named: name all of them, with --journal-dir and --entry-dir, in the order of the configuration"
        )


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
