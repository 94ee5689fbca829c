"""``octavo ledger``: create, fill, read, follow and inspect ledgers.

Only ``recover`` fences: reading an open ledger never disturbs its writer.
"""

# ruff: noqa: PLR0917 - the parameters of a command are its options, given by name

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from octavo.cli.event_loop import finish
from octavo.cli.ledger.options import (
    AckQuorumOption,
    CustomOption,
    DigestName,
    DigestOption,
    EnsembleOption,
    FullCopiesName,
    FullCopiesOption,
    LedgerArgument,
    PrivateOption,
    StateName,
    SyncName,
    SyncOption,
    WriteQuorumOption,
)
from octavo.cli.session import PasswordFileOption, Session, command, describe, print_error, read_password
from octavo.protocol.errors import InvalidArgumentError, NoSuchEntryError, NoSuchLedgerError, OctavoError
from octavo.protocol.ids import ID_MAX, LedgerId
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from octavo.cli.ledger.lines import ChunkSplitter, LineSplitter
    from octavo.client.client import Client
    from octavo.client.write.writer import LedgerWriter
    from octavo.metadata import MetadataStore, Versioned
    from octavo.metadata.stream.any_metadata import EitherMetadata

app = typer.Typer(name="ledger", help="Create, fill, read, follow and inspect ledgers.", no_args_is_help=True)

LISTED_AT_ONCE_MAX = 32
"""Ledgers of ``list`` whose metadata are read at the same time: hides the latency of the store without flooding it."""

RESERVED_PREFIX = "octavo."
"""Custom metadata keys with this prefix belong to Octavo's own commands."""


def parse_pairs(option: str, pairs: Sequence[str] | None) -> dict[str, bytes]:
    """The keys and values of an option that takes ``KEY=VALUE``. Raises :class:`InvalidArgumentError`."""
    parsed: dict[str, bytes] = {}
    for pair in pairs or ():
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise InvalidArgumentError(f"{option} {pair}: write KEY=VALUE")
        if key in parsed:
            raise InvalidArgumentError(f"{option} {pair}: the key {key} is given twice")
        # Bytes of the command line that are not UTF-8 are decoded as surrogates; this restores the original bytes.
        parsed[key] = value.encode("utf-8", "surrogateescape")
    return parsed


def _custom_metadata(pairs: Sequence[str] | None) -> dict[str, bytes]:
    custom = parse_pairs("--custom", pairs)
    for key in custom:
        if key.startswith(RESERVED_PREFIX):
            raise InvalidArgumentError(f"--custom {key}: keys that start with {RESERVED_PREFIX} are reserved")
    return custom


@asynccontextmanager
async def new_ledger(
    client: "Client",
    *,
    ensemble_size: int,
    write_quorum: int,
    ack_quorum: int,
    digest: DigestName,
    password: bytes,
    private: bool,
    custom_metadata: Mapping[str, bytes],
    sync: SyncName = SyncName.IMMEDIATE,
    full_copies: FullCopiesName = FullCopiesName.NONE,
) -> AsyncIterator["LedgerWriter"]:
    """A ledger that is closed when the block succeeds, and deleted when it fails or is interrupted."""
    import octavo  # noqa: PLC0415 - `octavo --help` needs no client

    ledger = await client.create_ledger(
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        digest=octavo.Digest[digest.name],
        password=password,
        private=private,
        custom_metadata=dict(custom_metadata),
        sync=sync.mode,
        full_copies=full_copies.kind,
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
        print_error(
            f"ledger {ledger.id} is incomplete and could not be deleted: {describe(error)}; "
            f"delete it later with `octavo ledger delete {ledger.id}`"
        )


@command(app, logs=False, brief=True)
async def create(
    session: Session,
    ensemble: EnsembleOption = 3,
    write_quorum: WriteQuorumOption = 3,
    ack_quorum: AckQuorumOption = 2,
    digest: DigestOption = DigestName.CRC32C,
    password_file: PasswordFileOption = None,
    private: PrivateOption = False,
    custom: CustomOption = None,
) -> None:
    """Create an empty ledger, close it and print its id."""
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    custom_metadata = _custom_metadata(custom)

    async with (
        await session.connect() as client,
        new_ledger(
            client,
            ensemble_size=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=digest,
            password=read_password(password_file),
            private=private,
            custom_metadata=custom_metadata,
        ) as ledger,
    ):
        pass
    if session.as_json:
        print_json({"ledger_id": ledger.id})
    else:
        print_line(str(ledger.id))


@command(app, logs=False)
async def append(
    session: Session,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to read; - is standard input.")] = "-",
    ensemble: EnsembleOption = 3,
    write_quorum: WriteQuorumOption = 3,
    ack_quorum: AckQuorumOption = 2,
    digest: DigestOption = DigestName.CRC32C,
    password_file: PasswordFileOption = None,
    private: PrivateOption = False,
    whole_file: Annotated[
        bool, typer.Option("--whole-file", help="Add the file in pieces of --chunk bytes instead of line by line.")
    ] = False,
    chunk: Annotated[
        int,
        typer.Option(
            "--chunk",
            metavar="BYTES",
            min=1,
            max=ENTRY_PAYLOAD_BYTES_MAX,
            help="Size of an entry with --whole-file.",
        ),
    ] = 64 * 1024,
    custom: CustomOption = None,
    sync: SyncOption = SyncName.IMMEDIATE,
    full_copies: FullCopiesOption = FullCopiesName.NONE,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the ledger's id.")] = False,
) -> None:
    """Create a ledger from the lines of a file.

    The command adds one entry per line, without its newline, closes the ledger, and prints its id and the number of
    entries and bytes. Lines that arrive on standard input are added and acknowledged as they arrive, so that `octavo
    ledger tail` can follow them while the input is still open.

    If the command fails or is interrupted, it deletes the new ledger.
    """
    from octavo.cli.ledger.lines import ChunkSplitter, LineSplitter  # noqa: PLC0415
    from octavo.cli.ledger.transfer import SEPARATOR_KEY, SEPARATOR_NONE, append_source, open_source  # noqa: PLC0415
    from octavo.cli.output import print_json, print_line, progress_bar  # noqa: PLC0415

    path = None if file == "-" else Path(file)
    custom_metadata = _custom_metadata(custom)
    if whole_file:
        custom_metadata[SEPARATOR_KEY] = SEPARATOR_NONE
    splitter = ChunkSplitter(chunk) if whole_file else LineSplitter(ENTRY_PAYLOAD_BYTES_MAX)
    created: list[int] = []

    def tell_ledger() -> None:
        print_error(f"waiting for input; `octavo ledger tail {created[0]}` follows the ledger")

    async with (
        open_source(path, on_waiting=tell_ledger) as source,
        await session.connect() as client,
        new_ledger(
            client,
            ensemble_size=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=digest,
            password=read_password(password_file),
            private=private,
            custom_metadata=custom_metadata,
            sync=sync,
            full_copies=full_copies,
        ) as ledger,
    ):
        created.append(ledger.id)
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
    elif quiet:
        print_line(str(ledger.id))
    else:
        print_line(f"ledger {ledger.id}: {appended.entries} entries, {appended.payload_bytes} bytes")


async def _note_final_newline(
    session: Session, ledger: "LedgerWriter", splitter: "LineSplitter | ChunkSplitter"
) -> None:
    # Whether the final newline is missing is known only at the end of the input, so it cannot be recorded when the
    # ledger is created. The metadata of a closed ledger never change, so it is recorded before the close, which keeps
    # it.
    if splitter.final_newline:
        return
    from octavo.cli.ledger.transfer import FINAL_NEWLINE_KEY, FINAL_NEWLINE_NO, NoteInCustomMetadata  # noqa: PLC0415
    from octavo.metadata.connect import open_cluster  # noqa: PLC0415
    from octavo.metadata.updates.update import update_ledger  # noqa: PLC0415

    async with await open_cluster(session.metadata_uri) as store:
        change = NoteInCustomMetadata({FINAL_NEWLINE_KEY: FINAL_NEWLINE_NO})
        await update_ledger(store, ledger.id, change, writer_token=ledger.metadata.writer_token)


@command(app, logs=False)
async def read(
    session: Session,
    ledger_id: LedgerArgument,
    first: Annotated[
        int, typer.Option("--first", metavar="N", min=0, max=ID_MAX, help="Id of the first entry to read.")
    ] = 0,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            metavar="N",
            min=0,
            max=ID_MAX,
            help="Id of the last entry to read. The default is the last entry of the ledger.",
        ),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Write nothing between the payloads.")] = False,
    password_file: PasswordFileOption = None,
) -> None:
    """Write the payloads of a ledger to standard output.

    Each payload is followed by a newline. A ledger made by `octavo ledger append` gives the bytes of its file back. An
    open ledger is read up to the last entry that its writer has confirmed, without disturbing the writer.
    """
    from octavo.cli.ledger.transfer import output_format, write_entries  # noqa: PLC0415
    from octavo.cli.output import progress_bar  # noqa: PLC0415

    if last is not None and last < first:
        raise InvalidArgumentError(f"--first {first} is after --last {last}")
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
        # No progress bar when the lines themselves are shown on the terminal.
        total = reader.length if reader.ledger_closed and first == 0 and last is None else None
        with progress_bar("reading", total, as_bytes=True, shown=not sys.stdout.isatty()) as progress:
            await write_entries(reader, first, stop, output, progress)


def _end_in_words(last_entry_id: int | None) -> str:
    return "it is empty" if last_entry_id is None else f"its last entry is {last_entry_id}"


@command(app, logs=False)
async def tail(
    session: Session,
    ledger_id: LedgerArgument,
    first: Annotated[
        int,
        typer.Option("--first", metavar="N", min=0, max=ID_MAX, help="Id of the first entry to write."),
    ] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Write nothing between the payloads.")] = False,
    password_file: PasswordFileOption = None,
) -> None:
    """Follow a ledger until it is closed.

    The command writes payloads as `octavo ledger read` does, as soon as the writer has confirmed them, without
    disturbing the writer.
    """
    from octavo.cli.ledger.transfer import follow_entries, output_format  # noqa: PLC0415

    async with (
        await session.connect() as client,
        client.open_ledger(ledger_id, password=read_password(password_file), recover=False) as reader,
    ):
        await follow_entries(reader, first, output_format(reader.metadata, raw=raw, reaches_end=False))


@command(app, logs=False, brief=True)
async def show(session: Session, ledger_id: LedgerArgument) -> None:
    """Show the metadata of a ledger or a stream."""
    from octavo.cli.ledger.views import as_json, fragments_table  # noqa: PLC0415
    from octavo.cli.output import print_json, print_line, print_table  # noqa: PLC0415
    from octavo.metadata.updates.paging import parts_of  # noqa: PLC0415

    async with await session.open_metadata() as store:
        metadata = (await store.read_either(LedgerId(ledger_id))).value
        parts = [part async for part in parts_of(store, metadata)]
    facts = as_json(metadata, parts)
    if session.as_json:
        print_json(facts)
        return
    facts.pop("fragments")
    for key, value in facts.pop("custom_metadata").items():
        facts[f"custom {key}"] = value
    width = max(map(len, facts))
    for key, value in facts.items():
        print_line(f"{key.replace('_', ' '):<{width}}  {'-' if value is None else value}")
    print_line("")
    print_table(*fragments_table(metadata, parts))


@command(app, "list", logs=False, brief=True)
async def list_ledgers(
    session: Session,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="KEY=VALUE",
            help="List only ledgers with this key and value in their custom metadata. May be given several times.",
        ),
    ] = None,
    state: Annotated[
        StateName | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="List only ledgers in this state: open, in-recovery, at-rest (of streams) or closed.",
        ),
    ] = None,
    bookie: Annotated[
        str | None,
        typer.Option("--bookie", metavar="ID", help="List only ledgers with this bookie in one of their ensembles."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="List at most this number of ledgers.")
    ] = None,
) -> None:
    """List ledgers and streams in the order of their ids.

    The number of entries is known once no client writes; the length is the payload of what has an end. The last column
    names the log to which a ledger or stream belongs.
    """
    from octavo.bookie.admin.ledger_view import summary  # noqa: PLC0415
    from octavo.cli.output import print_json, print_line, visible  # noqa: PLC0415

    wanted = parse_pairs("--where", where).items()
    listed = 0
    async with await session.open_metadata() as store, aclosing(_all_metadata(store)) as all_metadata:
        if not session.as_json:
            print_line(_LISTED.format("ledger", "kind", "state", "entries", "length", "created", "log"))
        async for metadata in all_metadata:
            if state is not None and metadata.state.value != state.value:
                continue
            if not wanted <= metadata.custom_metadata.items():
                continue
            if bookie is not None and bookie not in await _names_in(store, metadata):
                continue
            facts = summary(metadata)
            if session.as_json:
                print_json(facts)
            else:
                shown = [facts[key] for key in ("ledger_id", "kind", "state", "entries", "length")]
                created = metadata.created_at.isoformat(sep=" ", timespec="seconds")
                row = ["-" if value is None else value for value in (*shown, created, facts["log"])]
                print_line(visible(_LISTED.format(*row)))
            listed += 1
            if listed == limit:
                break


async def _names_in(store: "MetadataStore", metadata: "EitherMetadata") -> Collection[str]:
    """The bookies that a ledger or a stream names; none of one that was deleted just now."""
    from octavo.metadata.updates.paging import members_of  # noqa: PLC0415

    try:
        return await members_of(store, metadata)
    except NoSuchLedgerError:
        return ()


_LISTED = "{:>10}  {:<6}  {:<11}  {:>12}  {:>15}  {:<25}  {}"


async def _all_metadata(store: "MetadataStore") -> AsyncGenerator["EitherMetadata"]:
    """Metadata of every ledger and stream, in order, reading some ahead. Leaves out those that are deleted
    meanwhile."""
    pending: deque[asyncio.Task[Versioned[EitherMetadata]]] = deque()

    async def oldest() -> "EitherMetadata | None":
        try:
            return (await pending.popleft()).value
        except NoSuchLedgerError:
            return None

    try:
        async for ledger_id in store.list_ledgers():
            pending.append(asyncio.ensure_future(store.read_either(ledger_id)))
            if len(pending) >= LISTED_AT_ONCE_MAX and (metadata := await oldest()) is not None:
                yield metadata
        while pending:
            if (metadata := await oldest()) is not None:
                yield metadata
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


@command(app, logs=False, brief=True)
async def recover(session: Session, ledger_id: LedgerArgument, password_file: PasswordFileOption = None) -> None:
    """Recover a ledger whose writer is gone, and close it.

    The command finds the end of the ledger and keeps every acknowledged entry. It fences the ledger: a writer that is
    still running can add nothing more. A closed ledger stays as it is. If too few bookies answer to find the end, the
    command fails and names the bookies that are missing; run it again later.
    """
    from octavo.cli.ledger.views import ledger_as_json  # noqa: PLC0415
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    async with (
        await session.connect() as client,
        client.open_ledger(ledger_id, password=read_password(password_file)) as reader,
    ):
        metadata = reader.metadata
    if session.as_json:
        print_json(ledger_as_json(metadata))
    else:
        print_line(f"ledger {ledger_id} is closed: {_end_in_words(metadata.last_entry_id)}, {metadata.length} bytes")


@command(app, logs=False, brief=True)
async def delete(session: Session, ledger_id: LedgerArgument) -> None:
    """Delete a ledger for good.

    If the ledger still has a writer, the writer fails.
    """
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    async with await session.connect() as client:
        await client.delete_ledger(ledger_id)
    if session.as_json:
        print_json({"ledger_id": ledger_id, "deleted": True})
    else:
        print_line(f"ledger {ledger_id} deleted")
