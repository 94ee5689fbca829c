"""``octavo log read`` and ``octavo log tail``: entries of a log on standard output."""

# ruff: noqa: PLR0917 - the parameters of a command are its options, given by name

import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo.cli.log.forms import PayloadForm, format_of
from octavo.cli.log.moments import parse_moment
from octavo.cli.session import PasswordFileOption, Session, command, print_error, read_password
from octavo.protocol.errors import InvalidArgumentError, NoSuchEntryError, TruncatedError
from octavo.protocol.ids import ID_MAX

if TYPE_CHECKING:
    from octavo.client.log.log import Log
    from octavo.client.log.seam.entries import Gap

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The log's name.")]

PayloadOption = Annotated[
    PayloadForm | None,
    typer.Option(
        "--payload",
        metavar="FORM",
        help="How payloads are written: text (as they are), json (each on one line), base64 or hex. With --json the "
        "default is text for UTF-8 and base64 for other bytes.",
    ),
]

_TIME = "such as 10m or 2h30m ago, or 2026-01-31T12:00"


def register(app: typer.Typer) -> None:
    """Add both commands to ``app``."""
    command(app, logs=False)(read)
    command(app, logs=False)(tail)


@asynccontextmanager
async def opened(session: Session, name: str, password_file: Path | None, **options: Any) -> AsyncIterator["Log"]:
    """The log, opened by a client of its own, which has these options."""
    async with (
        await session.connect(**options) as client,
        client.open_log(name, password=read_password(password_file)) as log,
    ):
        yield log


async def read(
    session: Session,
    name: NameArgument,
    first: Annotated[
        int | None,
        typer.Option(
            "--first", metavar="N", min=0, max=ID_MAX, help="First position to read. The default is the log's first."
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--last", metavar="N", min=0, max=ID_MAX, help="Last position to read. The default is the log's last."
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help=f"Only what was added at this time or later: {_TIME}.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Only what was added before this time.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="The first entry added at this time or later, alone.")
    ] = None,
    records: Annotated[
        bool,
        typer.Option(
            "--records",
            help="Of a partition of a Kafka topic, such as kafka/orders/0: write the records in its entries.",
        ),
    ] = False,
    payload: PayloadOption = None,
    password_file: PasswordFileOption = None,
) -> None:
    """Write payloads, each followed by a newline.

    With --json, one object per entry. Times are those at which the leader sealed the entries.

    With --records, one line per record: offset, time of the producer, key, headers and value, with tabs between them;
    with --json, one object per record. A position is the number of an entry, which is a batch of records; an offset is
    the number of a record, by which Kafka clients read. Every other option goes by positions, or by times of entries.
    """
    from octavo.cli.log.follow import write_entries  # noqa: PLC0415

    if records:
        from octavo.cli.log.records import check_partition, write_records  # noqa: PLC0415

        check_partition(name)
    if first is not None and last is not None and last < first:
        raise InvalidArgumentError(f"--first {first} lies after --last {last}")
    _at_most_one({"--first": first, "--since": since, "--at": at})
    _at_most_one({"--last": last, "--until": until, "--at": at})
    now = datetime.now(UTC)
    begin, stop_at, only = (None if text is None else parse_moment(text, now) for text in (since, until, at))
    if begin is not None and stop_at is not None and stop_at < begin:
        raise InvalidArgumentError(f"--since {since} lies after --until {until}")
    async with opened(session, name, password_file) as log:
        end = await log.refresh()
        if only is not None:
            first = last = await log.position_at(only)
            if first >= log.end:
                raise NoSuchEntryError(f"log {name} has no entry added at {only.isoformat()} or later")
            end = log.end
        start = log.first_position if first is None else first
        stop = end - 1 if last is None else last
        if begin is not None:
            start = await log.position_at(begin)
        if stop_at is not None:
            stop = min(stop, await log.position_at(stop_at) - 1)
        if first is not None and start < log.first_position:
            raise TruncatedError(
                f"log {name}: position {start} has been truncated; the log begins at {log.first_position}",
                first_position=log.first_position,
            )
        if (last is not None and stop >= end) or (first is not None and start > end):
            missing = stop if stop >= end else start
            raise NoSuchEntryError(f"log {name} has no position {missing} yet; its end is {end}")
        if start <= stop:
            async with aclosing(log.entries(start, stop)) as entries:
                if records:
                    await write_records(entries, name, payload, as_json=session.as_json)
                else:
                    await write_entries(entries, format_of(payload, as_json=session.as_json))


async def tail(
    session: Session,
    name: NameArgument,
    from_start: Annotated[bool, typer.Option("--from-start", help="Begin with the log's first entry.")] = False,
    last: Annotated[
        int | None,
        typer.Option("--last", metavar="N", min=0, max=ID_MAX, help="Begin with the last N entries that are there."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help=f"Begin with what was added at this time or later: {_TIME}."),
    ] = None,
    first: Annotated[
        int | None, typer.Option("--first", metavar="N", min=0, max=ID_MAX, help="Begin at this position.")
    ] = None,
    cursor: Annotated[
        str | None,
        typer.Option(
            "--cursor", metavar="CURSOR", help="Begin at this cursor, and advance it past each entry that is written."
        ),
    ] = None,
    skip_truncated: Annotated[
        bool, typer.Option("--skip-truncated", help="Continue after positions that have been truncated.")
    ] = False,
    payload: PayloadOption = None,
    password_file: PasswordFileOption = None,
) -> None:
    """Follow a log from its end on, until interrupted.

    It goes on across leaders. What is there already is written only on request: --from-start, --last, --since, --first
    or --cursor.

    The command also ends at the end of a sealed log, and writes payloads as `read` does. With --cursor it creates the
    cursor, at the beginning of the log, if there is none, and stores it about once a second and when it ends: after a
    crash it shows some entries again and misses none.
    """
    from octavo.cli.log.follow import write_entries  # noqa: PLC0415

    _at_most_one(
        {"--from-start": from_start or None, "--last": last, "--since": since, "--first": first, "--cursor": cursor}
    )
    begin = None if since is None else parse_moment(since, datetime.now(UTC))

    async with opened(session, name, password_file) as log:

        def on_gap(gap: "Gap") -> None:
            if gap.last < log.first_position and not skip_truncated:
                raise TruncatedError(
                    f"log {name}: position {gap.first} has been truncated; the log begins at {log.first_position}",
                    first_position=log.first_position,
                )
            print_error(f"log {name}: positions {gap.first} to {gap.last} are not there any more")

        if cursor is None:
            if begin is not None:
                first = await log.position_at(begin)
            elif first is None and not from_start:
                end = await log.refresh()
                first = max(log.first_position, end - (last or 0))
                if last is None and sys.stderr.isatty():
                    print_error(f"log {name}: following from its end, {first}; --from-start shows what is there")
            entries = log.follow(first, on_truncated="skip")
            on_written = None
        else:
            stored = await log.cursor(cursor)
            entries = stored.follow(on_truncated="skip")
            on_written = stored.advance
        form = format_of(payload, as_json=session.as_json)
        async with aclosing(entries):
            await write_entries(entries, form, on_written=on_written, on_gap=on_gap)
        print_error(f"log {name} is sealed; it ends at {log.end}")


def _at_most_one(given: dict[str, object]) -> None:
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise InvalidArgumentError(f"give either {names[0]} or {names[1]}: each says where to begin or to end")
