"""``octavo bookies``: who is there."""

from typing import Any

import typer
from octavo.cli.session import Session, command


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    command(app)(bookies)


async def bookies(session: Session) -> None:
    """Show the registered bookies with state, version, capacity and load."""
    from octavo.cli.output import print_json, print_table  # noqa: PLC0415

    async with await session.connect() as client:
        known: list[Any] = list(await client.bookies(details=True))
    print(known)
    print_json
    print_table
