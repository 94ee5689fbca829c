"""``octavo top``: what the bookies and logs of a cluster are doing, again and again."""

# ruff: noqa: PLR0917 - the parameters of a command are its options, given by name

from contextlib import AsyncExitStack, aclosing
from typing import Annotated

import typer
from octavo.cli.session import Session, command, number


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    command(app, logs=False)(top)


async def top(
    session: Session,
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Of logs, watch those whose names start with it.")
    ] = "",
    logs: Annotated[bool, typer.Option("--logs", help="Begin with the page of logs.")] = False,
    sort: Annotated[
        str | None,
        typer.Option("--sort", metavar="COLUMN", help="Sort by this column, such as adds or lag."),
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Sort the other way round.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Measure one interval, print it and end.")] = False,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", metavar="SECONDS", min=0.2, max=3600, callback=number, help="Time between two measurements."
        ),
    ] = 2.0,
) -> None:
    """Watch what the bookies and logs of the cluster do.

    The page of bookies shows state, rates, latencies, memory and free disk space of each. 99 % of the adds and reads
    took at most "p99 ms", which is exact to a factor of two. The page of logs shows leaders, adds, and how many entries
    the slowest cursor is behind; of many logs, the first 200 by name.

    On a terminal, keys change the page (b, l), the column to sort by (<, >, r), what is in sight (arrows), pause
    (space) and end the command (q). With --json, each interval is a line of JSON.
    """
    from octavo.cli.output import print_json, print_table  # noqa: PLC0415 - `octavo --help` needs no tables
    from octavo.cli.top.looks import BookieLooks, LogLooks, Looks, intervals  # noqa: PLC0415
    from octavo.cli.top.pages import PAGES, PageName  # noqa: PLC0415
    from octavo.cli.top.screen import Order, Screen  # noqa: PLC0415

    page = PAGES[PageName.LOGS if logs else PageName.BOOKIES]
    order = Order(0 if sort is None else page.column_of(sort), reverse)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(await session.connect())
        looks: dict[PageName, Looks] = {PageName.BOOKIES: BookieLooks(client)}
        if logs or not once:
            store = await stack.enter_async_context(await session.open_metadata())
            looks[PageName.LOGS] = of_logs = LogLooks(client, store, prefix)
            stack.push_async_callback(of_logs.close)
        if not once and not session.as_json:
            from octavo.cli.top.live import show_live  # noqa: PLC0415

            await show_live(looks, Screen(page.name, {**Screen().orders, page.name: order}), interval)
            return
        async with aclosing(intervals(looks[page.name], interval, count=1 if once else None)) as measured:
            async for rows in measured:
                ordered = (
                    rows if sort is None and not reverse else page.in_order(rows, order.column, reverse=order.reverse)
                )
                if session.as_json:
                    print_json(ordered)
                else:
                    print_table(page.headers(), [page.cells(row) for row in ordered])
