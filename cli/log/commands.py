"""``octavo log``: logs from the command line.

Only ``append``, ``take-over``, ``change`` and ``seal`` lead, and end the previous leader. Every other command reads, or
changes the log's metadata, and disturbs no leader.
"""

# ruff: noqa: PLR0917 - the parameters of a command are its options, given by name

import contextlib
import os
import socket
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from octavo.cli.ledger.options import (
    AckQuorumOption,
    DigestName,
    DigestOption,
    EnsembleOption,
    FullCopiesName,
    PrivateOption,
    WriteQuorumOption,
)
from octavo.cli.log.reading import NameArgument, opened
from octavo.cli.log.reading import register as register_reading
from octavo.cli.session import CommandError, PasswordFileOption, Session, command, number, read_password
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.ids import ID_MAX
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

app = typer.Typer(name="log", help="Create, append to, read, follow and inspect logs.", no_args_is_help=True)


class LayoutName(StrEnum):
    """How a log is laid out."""

    CHAIN = "chain"
    STREAM = "stream"


RetainSecondsOption = Annotated[
    float | None,
    typer.Option("--retain-seconds", metavar="SECONDS", callback=number, help="Drop segments older than this."),
]
RetainBytesOption = Annotated[
    int | None, typer.Option("--retain-bytes", metavar="BYTES", help="Drop the oldest segments above this size.")
]
RetainCursorsOption = Annotated[
    bool,
    typer.Option(
        "--retain-cursors",
        help="Keep what a cursor has not passed. Without another limit, drop what all cursors have passed.",
    ),
]


@command(app, logs=False, brief=True)
async def create(
    session: Session,
    name: NameArgument,
    ensemble: EnsembleOption = 3,
    write_quorum: WriteQuorumOption = 3,
    ack_quorum: AckQuorumOption = 2,
    layout: Annotated[
        LayoutName,
        typer.Option("--layout", metavar="LAYOUT", help="How the log is stored: as a stream or as a chain of ledgers."),
    ] = LayoutName.STREAM,
    full_copies: Annotated[
        FullCopiesName,
        typer.Option(
            "--full-copies",
            metavar="KIND",
            help="Of a stream: `recorded` notes entries with too few copies, for repair; `required` makes the "
            "leader keep them, and blocks without enough bookies. The default is `none`.",
        ),
    ] = FullCopiesName.NONE,
    retain_seconds: RetainSecondsOption = None,
    retain_bytes: RetainBytesOption = None,
    retain_cursors: RetainCursorsOption = False,
    keys: Annotated[
        int | None,
        typer.Option(
            "--keys",
            metavar="ENTRIES",
            help="Entries may have keys, each of which is added once while fewer than ENTRIES entries follow it.",
        ),
    ] = None,
    digest: DigestOption = DigestName.CRC32C,
    password_file: PasswordFileOption = None,
    private: PrivateOption = False,
) -> None:
    """Create an empty log. Without a --retain option it keeps everything."""
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    import octavo  # noqa: PLC0415 - `octavo --help` does without

    async with (
        await session.connect() as client,
        client.create_log(
            name,
            ensemble,
            write_quorum,
            ack_quorum,
            password=read_password(password_file),
            digest=octavo.Digest[digest.name],
            private=private,
            retention=octavo.Retention(retain_seconds, retain_bytes, retain_cursors),
            layout=layout.value,
            full_copies=full_copies.kind,
            keys=None if keys is None else octavo.KeyWindow(keys),
        ) as log,
    ):
        log_id = log.log_id
    if session.as_json:
        print_json({"name": name, "log_id": log_id})
    else:
        print_line(f"log {name} created")


@command(app, "list", logs=False, brief=True)
async def list_logs(
    session: Session,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only names that start with it.")] = "",
    names: Annotated[bool, typer.Option("--names", help="Print nothing but the names.")] = False,
) -> None:
    """List all logs with end, leader, size and age.

    The command reads metadata and asks no bookie. A + behind the end says that entries may follow it: a leader has the
    last segment open. The size is that of the closed segments.
    """
    from octavo.cli.log.overview import print_overviews  # noqa: PLC0415
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415
    from octavo.client.log.overview import log_overviews, names_of_logs  # noqa: PLC0415

    async with await session.open_metadata() as store:
        if not names:
            await print_overviews(log_overviews(store, prefix), as_json=session.as_json)
            return
        async for name in names_of_logs(store, prefix):
            if session.as_json:
                print_json({"name": name})
            else:
                print_line(name)


@command(app, logs=False, brief=True)
async def show(session: Session, name: NameArgument, password_file: PasswordFileOption = None) -> None:
    """Show positions, leader, segments and cursors.

    The command also shows what retention drops next.
    """
    from octavo.cli.log.show import print_status, status_as_json  # noqa: PLC0415
    from octavo.cli.output import print_json  # noqa: PLC0415

    async with opened(session, name, password_file) as log:
        status = await log.status()
    if session.as_json:
        print_json(status_as_json(status))
    else:
        print_status(status)


@command(app, logs=False)
async def append(
    session: Session,
    name: NameArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file; - is standard input.")] = "-",
    leader: Annotated[
        str | None,
        typer.Option(
            "--leader", metavar="TEXT", help="Name of this leader in `show`. The default is host and process."
        ),
    ] = None,
    lease_seconds: Annotated[
        float | None,
        typer.Option(
            "--lease-seconds",
            metavar="N",
            min=0.1,
            callback=number,
            help="How long other clients wait for the lead if this process dies. The default is 10.",
        ),
    ] = None,
    positions: Annotated[
        bool, typer.Option("--positions", help="Print the position of each line as soon as it is acknowledged.")
    ] = False,
    password_file: PasswordFileOption = None,
) -> None:
    """Lead the log and add lines of a file or of a pipe.

    Each line is added without its newline, as soon as it arrives, also from a pipe that stays open.

    Waits until no other client leads. At the end of the input, and when it is interrupted, it waits for the
    acknowledgements of the lines that it has read, gives the lead back and prints what it has added.
    """
    from octavo.cli.ledger.lines import LineSplitter  # noqa: PLC0415
    from octavo.cli.ledger.transfer import open_source  # noqa: PLC0415
    from octavo.cli.log.append import AppendReport, append_lines, lead_log  # noqa: PLC0415
    from octavo.cli.log.standard_input import InterruptibleInput  # noqa: PLC0415
    from octavo.cli.output import progress_bar  # noqa: PLC0415

    path = None if file == "-" else Path(file)
    splitter = LineSplitter(ENTRY_PAYLOAD_BYTES_MAX, advice="cut it into shorter lines")
    options = {} if lease_seconds is None else {"lease_seconds": lease_seconds}
    report = AppendReport(name, as_json=session.as_json, each_position=positions)
    async with contextlib.AsyncExitStack() as stack:
        source = (
            await stack.enter_async_context(open_source(path, on_waiting=_nothing))
            if path is not None
            else InterruptibleInput()
        )
        log = await stack.enter_async_context(opened(session, name, password_file, **options))
        size = path.stat().st_size if path is not None and path.is_file() else None
        with report.completed():
            async with await lead_log(log, leader or f"{socket.gethostname()}:{os.getpid()}") as writer:
                report.term = writer.term
                with progress_bar("appending", size, as_bytes=True, shown=not positions) as progress:
                    await append_lines(writer, source, splitter, report, progress=progress)


def _nothing() -> None:
    """Reading a file never waits for its writer."""


register_reading(app)


@command(app, logs=False, brief=True)
async def truncate(
    session: Session,
    name: NameArgument,
    before: Annotated[
        int, typer.Option("--before", metavar="N", min=0, max=ID_MAX, help="The first position that is kept.")
    ],
    password_file: PasswordFileOption = None,
) -> None:
    """Drop everything below a position, for good. A position below the log's first changes nothing."""
    async with opened(session, name, password_file) as log:
        await log.truncate(before)
        first_position = log.first_position
    _print_first_position(session, name, first_position)


@command(app, logs=False, brief=True)
async def retain(session: Session, name: NameArgument, password_file: PasswordFileOption = None) -> None:
    """Apply the log's retention now. A leader does so once a minute."""
    async with opened(session, name, password_file) as log:
        first_position = await log.retain()
    _print_first_position(session, name, first_position)


@command(app, "set-retention", logs=False, brief=True)
async def set_retention(
    session: Session,
    name: NameArgument,
    retain_seconds: RetainSecondsOption = None,
    retain_bytes: RetainBytesOption = None,
    retain_cursors: RetainCursorsOption = False,
    password_file: PasswordFileOption = None,
) -> None:
    """Replace the retention of a log. Without a --retain option it keeps everything.

    The leader applies it within a minute, `octavo log retain` at once.
    """
    from octavo.cli.log.show import retention_as_json, retention_in_words  # noqa: PLC0415
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    import octavo  # noqa: PLC0415 - `octavo --help` does without

    retention = octavo.Retention(retain_seconds, retain_bytes, retain_cursors)
    async with opened(session, name, password_file) as log:
        await log.set_retention(retention)
    if session.as_json:
        print_json({"name": name, "retention": retention_as_json(retention)})
    else:
        print_line(f"log {name}: {retention_in_words(retention)}")


@command(app, "give-up", logs=False, brief=True)
async def give_up(
    session: Session,
    name: NameArgument,
    ledger_id: Annotated[
        int, typer.Option("--ledger", metavar="ID", min=0, max=ID_MAX, help="The ledger that no longer exists.")
    ],
    last: Annotated[
        int | None,
        typer.Option(
            "--last", metavar="N", min=0, max=ID_MAX, help="Last position of the segment, if the log does not know it."
        ),
    ] = None,
    password_file: PasswordFileOption = None,
) -> None:
    """Skip a segment whose ledger was deleted by hand. Its positions are lost; followers skip them.

    If the log does not know where the segment ended, give a position that no reader has passed: a position that a
    reader has seen must never get another entry.
    """
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    async with opened(session, name, password_file) as log:
        gap = await log.give_up(ledger_id, last=last)
    if session.as_json:
        print_json({"name": name, "ledger_id": ledger_id, "first": gap.first, "last": gap.last})
    elif gap.last < gap.first:
        print_line(f"log {name}: ledger {ledger_id} given up; it held no entries")
    else:
        print_line(f"log {name}: ledger {ledger_id} given up, with positions {gap.first} to {gap.last}")


@command(app, "take-over", logs=False, brief=True)
async def take_over(session: Session, name: NameArgument, password_file: PasswordFileOption = None) -> None:
    """End the leader's term without waiting for its lock.

    The log then has an end that is the same for all, and no leader; a client that waits for the lead can take it. Use
    this against a leader that hangs, or to let followers of a chain have the last entries of one that crashed.
    """
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    async with opened(session, name, password_file) as log, log.take_over() as writer:
        term, end = writer.term, writer.end
    if session.as_json:
        print_json({"name": name, "term": term, "end": end})
    else:
        print_line(f"log {name} taken over in term {term}; it ends at {end}")


@command(app, logs=False, brief=True)
async def change(
    session: Session,
    name: NameArgument,
    ensemble: Annotated[
        int | None, typer.Option("-E", "--ensemble", metavar="N", help="New ensemble size. By default it stays.")
    ] = None,
    write_quorum: Annotated[
        int | None, typer.Option("-W", "--write-quorum", metavar="N", help="New write quorum. By default it stays.")
    ] = None,
    ack_quorum: Annotated[
        int | None, typer.Option("-A", "--ack-quorum", metavar="N", help="New ack quorum. By default it stays.")
    ] = None,
    password_file: PasswordFileOption = None,
) -> None:
    """Store what is added from now on with other quorums.

    Only for logs with the layout stream. The command takes the log over, like `octavo log take-over`: a leader, if
    there is one, loses its leadership, and the next leader keeps to the new quorums. What has been added before stays
    as it is.
    """
    from octavo.cli.log.show import quorums_as_json, quorums_in_words  # noqa: PLC0415
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415
    from octavo.client.log.seam.quorum_change import QuorumChange  # noqa: PLC0415

    wanted = QuorumChange(ensemble, write_quorum, ack_quorum)
    async with opened(session, name, password_file) as log:
        if log.layout != "stream":
            raise InvalidArgumentError(f"log {name} has the layout {log.layout}; only streams can change their quorums")
        wanted.of((await log.status()).quorums)  # before a leader is disturbed
        async with log.take_over() as writer:
            await writer.change(ensemble_size=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
            end = writer.end
        quorums = (await log.status()).quorums
    if session.as_json:
        print_json({"name": name, "quorums": quorums_as_json(quorums), "end": end})
    else:
        print_line(f"log {name}: {quorums_in_words(quorums)} from position {end} on")


@command(app, logs=False, brief=True)
async def seal(session: Session, name: NameArgument, password_file: PasswordFileOption = None) -> None:
    """End a log for good: no client can add to it any more.

    Only logs with the layout stream can be sealed. A leader, if there is one, loses its leadership. Followers end after
    the last entry.
    """
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    async with opened(session, name, password_file) as log:
        end = await log.seal()
    if session.as_json:
        print_json({"name": name, "end": end})
    else:
        print_line(f"log {name} sealed; it ends at {end}")


def _print_first_position(session: Session, name: str, first_position: int) -> None:
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    if session.as_json:
        print_json({"name": name, "first_position": first_position})
    else:
        print_line(f"log {name} begins at {first_position}")


@command(app, logs=False, brief=True)
async def cursors(
    session: Session,
    name: NameArgument,
    delete_cursor: Annotated[
        str | None, typer.Option("--delete", metavar="CURSOR", help="Delete this cursor instead of listing.")
    ] = None,
    password_file: PasswordFileOption = None,
) -> None:
    """List the log's cursors with their positions.

    With --json, one object per cursor.
    """
    from octavo.cli.log.show import cursors_as_json, print_cursors  # noqa: PLC0415
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    async with opened(session, name, password_file) as log:
        status = await log.status()
        if delete_cursor is not None:
            if delete_cursor not in status.cursors:
                raise CommandError(f"log {name} has no cursor {delete_cursor}")
            await (await log.cursor(delete_cursor)).delete()
    if delete_cursor is not None:
        if session.as_json:
            print_json({"name": delete_cursor, "deleted": True})
        else:
            print_line(f"cursor {delete_cursor} of log {name} deleted")
    elif session.as_json:
        for cursor in cursors_as_json(status.cursors, status.end, status.idle_cursors):
            print_json(cursor)
    else:
        print_cursors(status)


@command(app, logs=False, brief=True)
async def delete(
    session: Session,
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete a log with its entries and cursors, after asking.

    This happens at once and cannot be undone. Its leader, if there is one, fails: if a client leads the log, the
    command asks for the log's name."""
    from octavo.cli.log.deleting import confirm_deletion  # noqa: PLC0415
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    if not yes:
        async with await session.open_metadata() as store:
            await confirm_deletion(store, name)
    async with await session.connect() as client:
        await client.delete_log(name)
    if session.as_json:
        print_json({"name": name, "deleted": True})
    else:
        print_line(f"log {name} deleted")
