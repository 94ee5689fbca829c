"""``octavo bookie check | inspect | rebuild-index | reset-identity``: tools for a stopped bookie's files."""

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from octavo.cli.bookie.options import EntryDirOption, JournalDirOption
from octavo.cli.output import counted, print_json, print_line
from octavo.cli.session import CommandError, Session, command

if TYPE_CHECKING:
    from octavo.bookie.disk.filesystem import RealFileSystem
    from octavo.bookie.offline.layout import Layout

# ruff: noqa: PLC0415 - no other command needs a bookie's modules

DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Data directory of the bookie.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "check")(check)
    command(app, "inspect")(inspect)
    command(app, "rebuild-index")(rebuild_index)
    command(app, "reset-identity")(reset_identity)


@asynccontextmanager
async def _files(
    directory: Path, journal_dir: Path | None, entry_dirs: list[Path] | None
) -> "AsyncIterator[tuple[RealFileSystem, Layout]]":
    """The files of a bookie, whether it runs or not."""
    from octavo.bookie.disk.filesystem import RealFileSystem
    from octavo.bookie.offline.layout import Layout

    filesystem = RealFileSystem()
    try:
        yield filesystem, Layout.of(directory, journal_dir, tuple(entry_dirs or ()))
    except OSError as error:
        raise CommandError(f"{error.filename or directory}: {error.strerror or error}") from error
    finally:
        await filesystem.close()


@asynccontextmanager
async def _stopped(
    directory: Path, journal_dir: Path | None, entry_dirs: list[Path] | None
) -> "AsyncIterator[tuple[RealFileSystem, Layout]]":
    """The files of a stopped bookie, locked."""
    from octavo.bookie.offline.layout import locked

    async with _files(directory, journal_dir, entry_dirs) as (filesystem, layout), locked(filesystem, layout):
        yield filesystem, layout


async def check(
    session: Session,
    directory: DirectoryArgument,
    journal_dir: JournalDirOption = None,
    entry_dir: EntryDirOption = None,
) -> int:
    """Verify all files of a stopped bookie.

    The command changes nothing. It prints what is wrong, and its exit status is 1 if anything is.
    """
    from octavo.bookie.offline.check import OfflineCheck

    found = 0
    async with _stopped(directory, journal_dir, entry_dir) as (filesystem, layout):
        checking = OfflineCheck(filesystem, layout)
        async for finding in checking.findings():
            found += 1
            if session.as_json:
                print_json({"path": str(finding.path), "offset": finding.offset, "problem": finding.what})
            else:
                print_line(str(finding))
        counts = dict(sorted(checking.counts.items()))
    if session.as_json:
        print_json({"checked": counts, "problems": found})
    else:
        checked = ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing"
        print_line(f"{checked}; {counted(found, 'problem')}")
    return 1 if found else 0


async def inspect(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="One file of a bookie.")],
    ledgers: Annotated[
        bool, typer.Option("--ledgers", help="Of an entry log, show one line per ledger instead of one per entry.")
    ] = False,
) -> None:
    """Show the contents of one file of a bookie.

    The file may be a journal segment, an entry log or its totals, a part of the index, a manifest or a cookie.
    """
    from octavo.bookie.disk.filesystem import RealFileSystem
    from octavo.bookie.offline.inspect_file import inspect_file, ledgers_in_log

    filesystem = RealFileSystem()
    try:
        if ledgers:
            for part in await ledgers_in_log(filesystem, file):
                if session.as_json:
                    print_json(part._asdict())
                else:
                    print_line(
                        f"ledger {part.ledger_id}: {counted(part.entries, 'entry', 'entries')} from "
                        f"{part.first_entry_id} to {part.last_entry_id}, {counted(part.bytes, 'byte')}"
                    )
            return
        async for line in inspect_file(filesystem, file):
            if session.as_json:
                print_json({"line": line})
            else:
                print_line(line)
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror or error}") from error
    finally:
        await filesystem.close()


async def rebuild_index(
    session: Session,
    directory: DirectoryArgument,
    journal_dir: JournalDirOption = None,
    entry_dir: EntryDirOption = None,
    lost_dir: Annotated[
        list[Path] | None,
        typer.Option(
            "--lost-dir", metavar="DIR", help="One of these directories, whose files are gone for good. Repeatable."
        ),
    ] = None,
) -> None:
    """Rebuild the index of a stopped bookie from its entry logs.

    Name all directories of the bookie: entries in a directory that is left out would be lost. If entries have been
    lost, the bookie starts in doubt about its ledgers.
    """
    from octavo.bookie.offline.rebuild_index import IndexRebuild

    async with _stopped(directory, journal_dir, entry_dir) as (filesystem, layout):
        rebuilt = await IndexRebuild(filesystem, layout, lost=lost_dir or ()).run()
    if session.as_json:
        print_json(rebuilt._asdict())
        return
    print_line(
        f"indexed {counted(rebuilt.entries, 'entry', 'entries')} of {counted(rebuilt.ledgers, 'ledger')} from "
        f"{counted(rebuilt.logs, 'entry log')}"
    )
    for reason in rebuilt.in_doubt_because:
        print_line(f"lost: {reason}")
    if rebuilt.in_doubt_because:
        print_line("the bookie is in doubt: it refuses adds to existing ledgers and never reports an entry as absent")


async def reset_identity(
    session: Session,
    directory: DirectoryArgument,
    journal_dir: JournalDirOption = None,
    entry_dir: EntryDirOption = None,
    bookie_id: Annotated[
        str | None,
        typer.Option(
            "--bookie-id", metavar="ID", help="The bookie that the directories belong to, if no cookie names it."
        ),
    ] = None,
) -> None:
    """Let a bookie start on changed directories.

    The directories were wiped, restored or exchanged. The bookie keeps its id and starts in doubt about every ledger
    that exists.
    """
    from octavo.bookie.offline import reset_identity as identity_reset
    from octavo.metadata.connect import open_cluster

    async with await open_cluster(session.metadata_uri) as store:
        # Nothing is created before it is certain that these are the right directories.
        async with _files(directory, journal_dir, entry_dir) as (filesystem, layout):
            await identity_reset.find_owner(filesystem, layout, store, bookie_id)
            for path in layout.directories.values():
                await filesystem.make_directory(path)
        async with _stopped(directory, journal_dir, entry_dir) as (filesystem, layout):
            reset = await identity_reset.reset_identity(
                filesystem, layout, store, bookie_id=bookie_id, rng=random.Random(os.urandom(16))
            )
    if session.as_json:
        print_json(reset._asdict())
    else:
        print_line(f"{directory} belongs to bookie {reset.bookie_id}, which is in doubt about every ledger that exists")
