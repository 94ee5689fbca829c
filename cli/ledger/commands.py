"""``octavo ledger``: create, fill, read, follow and look at ledgers.

Only ``recover`` fences: reading an open ledger never disturbs its writer.
"""

# ruff: noqa: PLR0917 - the parameters of a command are its options, given by name

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo.cli.session import (
    PasswordFileOption,
    Session,
    command,
    describe,
    finish,
    print_error,
    read_password,
)
from octavo.protocol.errors import InvalidArgumentError, NoSuchEntryError, NoSuchLedgerError, OctavoError
from octavo.protocol.ids import ID_MAX
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from octavo.cli.ledger.lines import ChunkSplitter, LineSplitter
    from octavo.client.client import Client
    from octavo.client.write.writer import LedgerWriter
    from octavo.metadata.model import LedgerMetadata

app = typer.Typer(name="ledger", help="Create, fill, read, follow and look at ledgers.", no_args_is_help=True)

LISTED_AT_ONCE_MAX = 32
"""Ledgers of ``list`` whose metadata are read at the same time: hides the store's latency without flooding it."""


class DigestName(StrEnum):
    """Digest types, as options spell them."""

    CRC32C = "crc32c"
    HMAC_SHA256 = "hmac-sha256"


LedgerArgument = Annotated[int, typer.Argument(metavar="ID", min=0, max=ID_MAX, help="The ledger's id.")]
EnsembleOption = Annotated[int, typer.Option("-E", "--ensemble", help="Ensemble size: bookies that share the entries.")]
WriteQuorumOption = Annotated[int, typer.Option("-W", "--write-quorum", help="Bookies that get each entry.")]
AckQuorumOption = Annotated[int, typer.Option("-A", "--ack-quorum", help="Bookies that must have it on disk.")]
DigestOption = Annotated[DigestName, typer.Option("--digest", help="What guards each entry against damage.")]


@asynccontextmanager
async def new_ledger(
    client: "Client",
    *,
    ensemble_size: int,
    write_quorum: int,
    ack_quorum: int,
    digest: DigestName,
    password: bytes,
    custom_metadata: Mapping[str, bytes],
) -> AsyncIterator["LedgerWriter"]:
    """A ledger that is closed when the block succeeds, and deleted when it fails or is interrupted."""
    import octavo  # noqa: PLC0415 - `octavo --help` does without

    ledger = await client.create_ledger(
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        digest=octavo.Digest[digest.name],
        password=password,
        custom_metadata=dict(custom_metadata),
    )
    try:
        yield ledger
        await ledger.close()
    except BaseException:
        await finish(_discard(client, ledger))
        raise


async def _discard(client: "Client", ledger: "LedgerWriter") -> None:
    try:
        await client.delete_ledger(ledger.id)
    except NoSuchLedgerError:
        return
    except OctavoError as error:
        print_error(f"ledger {ledger.id} is incomplete and could not be deleted: {describe(error)}; delete it later")


@command(app)
async def create(
    session: Session,
    ensemble: EnsembleOption = 3,
    write_quorum: WriteQuorumOption = 3,
    ack_quorum: AckQuorumOption = 2,
    digest: DigestOption = DigestName.CRC32C,
    password_file: PasswordFileOption = None,
) -> None:
    """Create an empty ledger, close it and print its id."""
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    async with (
        await session.connect() as client,
        new_ledger(
            client,
            ensemble_size=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=digest,
            password=read_password(password_file),
            custom_metadata={},
        ) as ledger,
    ):
        pass
    if session.as_json:
        print_json({"ledger_id": ledger.id})
    else:
        print_line(str(ledger.id))


@command(app)
async def append(
    session: Session,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file; - is standard input.")] = "-",
    ensemble: EnsembleOption = 3,
    write_quorum: WriteQuorumOption = 3,
    ack_quorum: AckQuorumOption = 2,
    digest: DigestOption = DigestName.CRC32C,
    password_file: PasswordFileOption = None,
    whole_file: Annotated[
        bool, typer.Option("--whole-file", help="Entries are pieces of --chunk bytes instead of lines.")
    ] = False,
    chunk: Annotated[
        int, typer.Option("--chunk", metavar="BYTES", min=1, max=ENTRY_PAYLOAD_BYTES_MAX, help="With --whole-file.")
    ] = 64 * 1024,
) -> None:
    """Create a ledger, add one entry per line (without its newline), close it, print its id and number of entries.

    If anything fails, or Ctrl-C interrupts, the new ledger is deleted again.
    """
    from octavo.cli.ledger.lines import ChunkSplitter, LineSplitter  # noqa: PLC0415
    from octavo.cli.ledger.transfer import SEPARATOR_KEY, SEPARATOR_NONE, append_source, open_source  # noqa: PLC0415
    from octavo.cli.output import print_json, print_line, progress_bar  # noqa: PLC0415

    path = None if file == "-" else Path(file)
    splitter = ChunkSplitter(chunk) if whole_file else LineSplitter(ENTRY_PAYLOAD_BYTES_MAX)
    async with (
        open_source(path) as source,
        await session.connect() as client,
        new_ledger(
            client,
            ensemble_size=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=digest,
            password=read_password(password_file),
            custom_metadata={SEPARATOR_KEY: SEPARATOR_NONE} if whole_file else {},
        ) as ledger,
    ):
        size = path.stat().st_size if path is not None and path.is_file() else None
        with progress_bar("appending", size, as_bytes=True) as progress:
            appended = await append_source(ledger, source, splitter, progress)
        await _note_final_newline(session, ledger, splitter)
    if session.as_json:
        print_json(
            {
                "ledger_id": ledger.id,
                "entries": appended.entries,
                "bytes": appended.payload_bytes,
                "file_bytes": appended.file_bytes,
            }
        )
    else:
        print_line(f"ledger {ledger.id}: {appended.entries} entries, {appended.payload_bytes} bytes")


async def _note_final_newline(
    session: Session, ledger: "LedgerWriter", splitter: "LineSplitter | ChunkSplitter"
) -> None:
    # Only the end of the input tells, so this cannot be given when the ledger is created; and a closed ledger's
    # metadata never change, so it comes before the close, which merges it.
    if splitter.final_newline:
        return
    from octavo.cli.ledger.transfer import FINAL_NEWLINE_KEY, FINAL_NEWLINE_NO, NoteInCustomMetadata  # noqa: PLC0415
    from octavo.metadata.connect import open_metadata_store  # noqa: PLC0415
    from octavo.metadata.update import update_ledger  # noqa: PLC0415

    async with await open_metadata_store(session.metadata_uri) as store:
        change = NoteInCustomMetadata({FINAL_NEWLINE_KEY: FINAL_NEWLINE_NO})
        await update_ledger(store, ledger.id, change, writer_token=ledger.metadata.writer_token)


@command(app)
async def read(
    session: Session,
    ledger_id: LedgerArgument,
    first: Annotated[int, typer.Option("--first", min=0, max=ID_MAX, help="First entry.")] = 0,
    last: Annotated[
        int | None, typer.Option("--last", min=0, max=ID_MAX, help="Last entry, included. (default: the last)")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Payloads with nothing between them.")] = False,
    password_file: PasswordFileOption = None,
) -> None:
    """Write the payloads, each followed by a newline; a whole ledger that `append` made gives the same bytes back.

    An open ledger is read up to what its writer has confirmed, without disturbing it.
    """
    from octavo.cli.ledger.transfer import output_format, write_entries  # noqa: PLC0415
    from octavo.cli.output import progress_bar  # noqa: PLC0415

    if last is not None and last < first:
        raise InvalidArgumentError(f"--first {first} lies after --last {last}")
    async with (
        await session.connect() as client,
        client.open_ledger(ledger_id, password=read_password(password_file), recover=False) as reader,
    ):
        confirmed = reader.last_add_confirmed
        end = -1 if confirmed is None else confirmed
        if not reader.ledger_closed:
            upto = "no entry is confirmed yet" if confirmed is None else f"read up to entry {confirmed}"
            print_error(f"ledger {ledger_id} is still open: {upto}; `octavo ledger tail {ledger_id}` follows it")
        if last is not None and last > end:
            raise NoSuchEntryError(f"ledger {ledger_id} has no entry {last}; " + _end_in_words(confirmed))
        if first > max(end, 0):
            raise NoSuchEntryError(f"ledger {ledger_id} has no entry {first}; " + _end_in_words(confirmed))
        stop = end if last is None else last
        output = output_format(reader.metadata, raw=raw, reaches_end=reader.ledger_closed and stop == end)
        # A bar would be drawn over the lines that are shown on the same terminal.
        total = reader.length if reader.ledger_closed and first == 0 and last is None else None
        with progress_bar("reading", total, as_bytes=True, shown=not sys.stdout.isatty()) as progress:
            await write_entries(reader, first, stop, output, progress)


def _end_in_words(last_entry_id: int | None) -> str:
    return "it is empty" if last_entry_id is None else f"its last entry is {last_entry_id}"


@command(app)
async def tail(
    session: Session,
    ledger_id: LedgerArgument,
    first: Annotated[
        int,
        typer.Option("--first", min=0, max=ID_MAX, help="Entry to start from."),
    ] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Payloads with nothing between them.")] = False,
    password_file: PasswordFileOption = None,
) -> None:
    """Follow an open ledger without disturbing its writer, until it is closed."""
    from octavo.cli.ledger.transfer import follow_entries, output_format  # noqa: PLC0415

    async with (
        await session.connect() as client,
        client.open_ledger(ledger_id, password=read_password(password_file), recover=False) as reader,
    ):
        await follow_entries(reader, first, output_format(reader.metadata, raw=raw, reaches_end=False))


@command(app)
async def show(session: Session, ledger_id: LedgerArgument) -> None:
    """Show a ledger's metadata with its fragments."""
    from octavo.cli.output import print_json, print_line, print_table  # noqa: PLC0415

    async with await session.connect() as client:
        metadata = await client.ledger_metadata(ledger_id)
    if session.as_json:
        print_json(_metadata_as_json(metadata))
        return
    facts = _metadata_as_json(metadata)
    facts.pop("fragments")
    for key, value in facts.pop("custom_metadata").items():
        facts[f"custom {key}"] = value
    width = max(map(len, facts))
    for key, value in facts.items():
        print_line(f"{key.replace('_', ' '):<{width}}  {'-' if value is None else value}")
    print_line("")
    print_table(
        ["first entry", "bookies"],
        [(fragment.first_entry_id, " ".join(fragment.bookies)) for fragment in metadata.fragments],
    )


def _metadata_as_json(metadata: "LedgerMetadata") -> dict[str, Any]:
    from octavo.cli.output import custom_metadata_as_json  # noqa: PLC0415

    return {
        "ledger_id": metadata.ledger_id,
        "state": metadata.state.value,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "last_entry_id": metadata.last_entry_id,
        "length": metadata.length,
        "digest": metadata.digest.value,
        "created_at": metadata.created_at.isoformat(),
        "custom_metadata": custom_metadata_as_json(metadata.custom_metadata),
        "fragments": [
            {"first_entry_id": fragment.first_entry_id, "bookies": list(fragment.bookies)}
            for fragment in metadata.fragments
        ],
    }


@command(app, "list")
async def list_ledgers(session: Session) -> None:
    """List all ledgers, in the order of their ids."""
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    async with await session.connect() as client:
        if not session.as_json:
            print_line(_LISTED.format("ledger", "state", "last entry", "length", "created"))
        async for metadata in _all_metadata(client):
            if session.as_json:
                print_json(
                    {
                        "ledger_id": metadata.ledger_id,
                        "state": metadata.state.value,
                        "last_entry_id": metadata.last_entry_id,
                        "length": metadata.length,
                        "created_at": metadata.created_at.isoformat(),
                    }
                )
            else:
                last = "-" if metadata.last_entry_id is None else metadata.last_entry_id
                created = metadata.created_at.isoformat(sep=" ", timespec="seconds")
                print_line(_LISTED.format(metadata.ledger_id, metadata.state.value, last, metadata.length, created))


_LISTED = "{:>10}  {:<11}  {:>12}  {:>15}  {}"


async def _all_metadata(client: "Client") -> AsyncIterator["LedgerMetadata"]:
    """Metadata of every ledger, in order, some being read ahead. A ledger deleted meanwhile is left out."""
    pending: deque[asyncio.Task[LedgerMetadata]] = deque()

    async def oldest() -> "LedgerMetadata | None":
        try:
            return await pending.popleft()
        except NoSuchLedgerError:
            return None

    try:
        async for ledger_id in client.list_ledgers():
            pending.append(asyncio.ensure_future(client.ledger_metadata(ledger_id)))
            if len(pending) >= LISTED_AT_ONCE_MAX and (metadata := await oldest()) is not None:
                yield metadata
        while pending:
            if (metadata := await oldest()) is not None:
                yield metadata
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


@command(app)
async def recover(session: Session, ledger_id: LedgerArgument, password_file: PasswordFileOption = None) -> None:
    """Find the end of a ledger whose writer is gone, and close it there. A writer it still has can add no more.

    Every entry whose add succeeded is kept. A closed ledger stays as it is. If too few bookies answer to tell the end,
    those that are missing are named, and it can be tried again.
    """
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    async with (
        await session.connect() as client,
        client.open_ledger(ledger_id, password=read_password(password_file)) as reader,
    ):
        metadata = reader.metadata
    if session.as_json:
        print_json(_metadata_as_json(metadata))
    else:
        print_line(f"ledger {ledger_id} is closed: {_end_in_words(metadata.last_entry_id)}, {metadata.length} bytes")


@command(app)
async def delete(session: Session, ledger_id: LedgerArgument) -> None:
    """Delete a ledger, at once and for good. Its writer, if there is one, fails."""
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    async with await session.connect() as client:
        await client.delete_ledger(ledger_id)
    if session.as_json:
        print_json({"ledger_id": ledger_id, "deleted": True})
    else:
        print_line(f"ledger {ledger_id} deleted")
