"""``octavo top``: what the bookies of a cluster are doing, again and again."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo.cli.rates import compare
from octavo.cli.session import Session, command, number

if TYPE_CHECKING:
    from octavo.client.client import Client
    from rich.table import Table


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    command(app)(top)


async def top(
    session: Session,
    once: Annotated[bool, typer.Option("--once", help="Measure one interval, print it and end.")] = False,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", metavar="SECONDS", min=0.2, max=3600, callback=number, help="Time between two measurements."
        ),
    ] = 2.0,
) -> None:
    """Watch what the bookies of the cluster do.

    The table shows state, rates, latencies, memory and free disk space of each bookie. 99 % of the adds and reads took
    at most "p99 ms", which is exact to a factor of two. With --json, each interval is a line of
    JSON. Ctrl-C ends the command.
    """
    from octavo.cli.output import print_json, print_table  # noqa: PLC0415 - `octavo --help` needs no tables

    async with await session.connect() as client:
        if not once and not session.as_json:
            await _watch(client, interval)
        async for rows in _intervals(client, interval, count=1 if once else None):
            if session.as_json:
                print_json(rows)
            else:
                print_table(_HEADERS, [_cells(row) for row in rows])


async def _watch(client: "Client", interval: float) -> None:
    from rich.live import Live  # noqa: PLC0415 - `octavo --help` needs no tables

    with Live(auto_refresh=False, screen=True) as live:
        live.update("measuring ...", refresh=True)
        async for rows in _intervals(client, interval, count=None):
            live.update(_table(rows), refresh=True)


async def _intervals(client: "Client", interval: float, *, count: int | None) -> AsyncGenerator[list[dict[str, Any]]]:
    """The work of each bookie in each of ``count`` intervals (None: for ever)."""
    loop = asyncio.get_running_loop()
    before, then = await client.bookies(details=True), loop.time()
    while count is None or count > 0:
        await asyncio.sleep(interval)
        after, now = await client.bookies(details=True), loop.time()
        yield compare(before, after, now - then)
        before, then = after, now
        count = None if count is None else count - 1


_HEADERS = (
    "bookie", "state", "adds/s", "entries/s", "in MB/s", "p99 ms", "reads/s", "entries/s", "out MB/s", "p99 ms",
    "conns", "ledgers", "journal MB", "cache MB", "free",
)  # fmt: skip


def _cells(row: Mapping[str, Any]) -> list[str]:
    state = row["state"] + (", in doubt" if row["in_doubt"] else "")
    free = "-"
    if row["free_bytes"] is not None and row["total_bytes"]:
        free = f"{100 * row['free_bytes'] / row['total_bytes']:.0f}%"
    return [
        row["bookie_id"],
        state,
        _number(row["adds_per_second"]),
        _number(row["entries_added_per_second"]),
        _number(row["bytes_added_per_second"], 1e6),
        _number(row["add_p99_seconds"], 1e-3),
        _number(row["reads_per_second"]),
        _number(row["entries_read_per_second"]),
        _number(row["bytes_read_per_second"], 1e6),
        _number(row["read_p99_seconds"], 1e-3),
        _number(row["connections"]),
        _number(row["ledgers"]),
        _number(row["journal_bytes"], 1e6),
        _number(row["cache_bytes"], 1e6),
        free,
    ]


def _number(value: float | None, unit: float = 1.0) -> str:
    if value is None:
        return "-"
    return f"{value / unit:,.1f}" if unit != 1.0 else f"{value:,.0f}"


def _table(rows: Sequence[Mapping[str, Any]]) -> "Table":
    from rich.table import Table  # noqa: PLC0415 - `octavo --help` needs no tables
    from rich.text import Text  # noqa: PLC0415

    table = Table(expand=True, header_style="bold", box=None)
    for at, header in enumerate(_HEADERS):
        table.add_column(header, justify="left" if at < 2 else "right", no_wrap=True)
    for row in rows:
        cells = [Text(cell) for cell in _cells(row)]
        if row["state"] != "writable" or row["in_doubt"]:
            cells[1].stylize("bold red" if row["state"] == "unavailable" else "yellow")
        table.add_row(*cells)
    return table
