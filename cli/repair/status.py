"""``octavo repair status``: shows what repair does. It logs nothing, so that it starts as quickly as it answers."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo.cli.session import Session, command

if TYPE_CHECKING:
    from octavo.metadata import MetadataStore

BLOCKED_SHOWN_MAX = 100
"""Blocked ledgers shown without --ledgers."""


def register(app: typer.Typer) -> None:
    """Add the command to the group ``octavo repair``."""
    command(app, logs=False, brief=True)(status)


async def status(
    session: Session,
    ledgers: Annotated[
        bool, typer.Option("--ledgers", help="Show all blocked ledgers that are known, not only the first hundred.")
    ] = False,
) -> None:
    """Show what repair does.

    Shows the auditor, bookies that are not in their ordinary condition, how many ledgers are being repaired, and what
    cannot be repaired, with the reason and the bookies that it depends on.
    """
    from octavo.cli.output import print_json  # noqa: PLC0415
    from octavo.repair.operate.balance_status import balance_fields, read_balance  # noqa: PLC0415
    from octavo.repair.operate.operators import read_status, status_fields  # noqa: PLC0415

    async with await session.open_metadata() as store:
        current = await read_status(store)
        facts = await bookie_facts(store)
        fields_of_balance = balance_fields(await read_balance(store))
    fields = status_fields(
        current, facts, now_ms=int(time.time() * 1000), blocked_max=None if ledgers else BLOCKED_SHOWN_MAX
    )
    fields["balance"] = fields_of_balance
    if session.as_json:
        print_json(fields)
        return
    _print_status(fields, len(current.blocked))


async def bookie_facts(store: "MetadataStore") -> dict[str, dict[str, Any]]:
    """The facts that each registered bookie shows, by bookie."""
    from octavo.client.bookie_status import ask_bookies  # noqa: PLC0415

    return {one.bookie_id: dict(one.facts) for one in await ask_bookies(store) if one.facts is not None}


def balance_lines(fields: dict[str, Any] | None) -> list[str]:
    """The lines of `octavo repair status` about a balance; ``fields``: as ``--json`` has them."""
    if fields is None:
        return []
    what = f"{fields['phase']}, {fields['moved']:,} ledgers moved ({size_in_words(fields['moved_bytes'])})"
    if fields["under_way"]:
        what += f", {fields['under_way']:,} under way ({size_in_words(fields['under_way_bytes'])})"
    if fields["failed"]:
        what += f", {fields['failed']:,} could not be moved"
    lines = [f"balance   {what}"]
    if fields["reason"]:
        lines.append(f"          {fields['reason']}")
    if fields["bookies"]:
        lines.append(
            f"          {', '.join(f'{one["bookie_id"]} {one["percent"]:.3g} %' for one in fields['bookies'])}"
        )
    return lines


def _print_status(fields: dict[str, Any], blocked: int) -> None:
    from octavo.cli.output import print_line, print_table  # noqa: PLC0415

    print_line(f"auditor   {fields['auditor'] or 'none is elected'}")
    if fields["last_round_seconds_ago"] is not None:
        print_line(f"round     {fields['last_round_seconds_ago']:,.0f} s ago")
    if fields["paused"]:
        print_line("paused    `octavo repair resume` continues")
    if fields["brake"]:
        print_line("brake     half of the bookies are missing: none is declared lost")
    ledgers = fields["ledgers"]
    print_line(f"ledgers   {', '.join(f'{number:,} {name}' for name, number in ledgers.items() if number) or 'none'}")
    if fields["seconds_left"] is not None:
        print_line(f"left      about {fields['seconds_left']:,.0f} s, {fields['bytes_per_second'] / 1e6:,.1f} MB/s")
    for line in balance_lines(fields["balance"]):
        print_line(line)
    rows = [
        [one["bookie_id"], one["state"], _since(one["since"]), one["ledgers"], one["ledgers_at_margin"], one["reason"]]
        for one in fields["bookies"]
    ]
    if rows:
        print_table(["bookie", "condition", "for", "ledgers", "at margin", "reason"], rows)
    if fields["blocked"]:
        print_table(
            ["ledger", "from", "to", "class", "bookies", "reason"],
            [
                [
                    one["ledger_id"], one["first_entry"], one["last_entry"], one["class"], " ".join(one["bookies"]),
                    one["reason"],
                ]
                for one in fields["blocked"]
            ],
        )  # fmt: skip
    if blocked > len(fields["blocked"]):
        print_line(f"and {blocked - len(fields['blocked'])} more blocked ledgers; --ledgers shows them")


def _since(since: float | None) -> str | None:
    return None if since is None else f"{max(time.time() - since, 0):,.0f} s"


def size_in_words(count: int) -> str:
    """A number of bytes, large ones in megabytes."""
    return f"{count:,} bytes" if count < 1_000_000 else f"{count / 1e6:,.1f} MB"
