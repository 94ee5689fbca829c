"""``octavo bookies``: who is there."""

from typing import TYPE_CHECKING, Any

import typer
from octavo.cli.session import Session, command

if TYPE_CHECKING:
    from octavo.client.client import BookieStatus


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    command(app)(bookies)


async def bookies(session: Session) -> None:
    """Show the registered bookies with state, version, rack, capacity and load."""
    from octavo.cli.output import print_json, print_table  # noqa: PLC0415 - `octavo --help` does without

    async with await session.connect() as client:
        known = await client.bookies(details=True)
    if session.as_json:
        print_json([_as_json(bookie) for bookie in known])
        return
    print_table(
        ["bookie", "address", "state", "version", "rack", "free", "capacity", "ledgers", "connections"],
        [
            [
                bookie.bookie_id,
                bookie.address,
                bookie.state.value,
                bookie.version,
                bookie.rack,
                _size(bookie, "free_bytes"),
                _size(bookie, "total_bytes"),
                _fact(bookie, "ledgers"),
                _fact(bookie, "connections"),
            ]
            for bookie in known
        ],
    )


def _as_json(bookie: "BookieStatus") -> dict[str, Any]:
    return {
        "bookie_id": bookie.bookie_id,
        "address": bookie.address,
        "state": bookie.state.value,
        "version": bookie.version,
        "rack": bookie.rack,
        **{name: value for name, value in sorted((bookie.facts or {}).items()) if name not in _NOT_FACTS},
    }


_NOT_FACTS = {"bookie_id", "address", "state", "version", "rack"}


def _fact(bookie: "BookieStatus", name: str) -> object:
    return None if bookie.facts is None else bookie.facts.get(name)


def _size(bookie: "BookieStatus", name: str) -> str | None:
    value = _fact(bookie, name)
    return f"{value / 1e9:,.1f} GB" if isinstance(value, int | float) else None
