"""``octavo repair balance``: moves closed ledgers from full bookies to empty ones."""

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo.cli.repair.status import balance_lines, bookie_facts, size_in_words
from octavo.cli.session import EXIT_FAILURE, EXIT_OK, CommandError, Session, command, number, print_error
from octavo.protocol.errors import InvalidArgumentError

if TYPE_CHECKING:
    from octavo.metadata import MetadataStore
    from octavo.repair.operate.balancing import PlannedBalance

POLL_SECONDS = 0.5
"""Time between two queries while the command waits."""

MOVES_SHOWN_MAX = 20
"""Moves that --dry-run shows; --json has all of them."""

_GOES_ON = "the balance goes on; `octavo repair balance --stop` ends it, `octavo repair status` shows it"


def register(app: typer.Typer) -> None:
    """Add the command to the group ``octavo repair``."""
    command(app)(balance)


async def balance(
    session: Session,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be moved, and move nothing.")] = False,
    wait_for_it: Annotated[bool, typer.Option("--wait", help="Wait until the balance has ended.")] = False,
    patience_seconds: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=0,
            callback=number,
            help="Stop waiting after this time. The default is to wait for ever.",
        ),
    ] = None,
    stop: Annotated[
        bool, typer.Option("--stop", help="End the balance that is under way. What has been moved stays.")
    ] = False,
) -> int:
    """Move closed ledgers from full bookies to empty ones.

    New bookies get their share, by the size of their disks. A bookie copies a whole ledger, and takes the place of a
    fuller one when every entry is on its disk; the fuller one drops its copies a day later. Copies stay on as many
    racks and hosts. What is to be repaired comes first. `octavo repair status` shows how far the balance is.
    """
    from octavo.repair.operate import balancing  # noqa: PLC0415
    from octavo.repair.operate.operators import read_status  # noqa: PLC0415

    if stop and (dry_run or wait_for_it):
        raise InvalidArgumentError("--stop cannot be combined with --dry-run or --wait")
    if dry_run and wait_for_it:
        raise InvalidArgumentError("--dry-run begins nothing that --wait could wait for")
    if patience_seconds is not None and not wait_for_it:
        raise InvalidArgumentError("--timeout needs --wait: without it, the command does not wait")
    async with await session.open_metadata() as store:
        if stop:
            await balancing.stop_balance(store)
            _say(session, "the balance is stopped; what has been moved stays where it is", {"phase": "stopped"})
            return EXIT_OK
        facts = await bookie_facts(store)
        if dry_run:
            _print_plan(session, await balancing.plan_balance(store, facts))
            return EXIT_OK
        status = await read_status(store)
        state = await balancing.ask_for_balance(store, status.auditor, facts, now_ms=int(time.time() * 1000))
        if wait_for_it:
            try:
                return await _wait(session, store, patience_seconds)
            except asyncio.CancelledError:
                print_error(_GOES_ON)
                raise
    _say(session, "copies are being moved; `octavo repair status` shows how far that is", {"phase": state.phase.value})
    return EXIT_OK


async def _wait(session: Session, store: "MetadataStore", patience_seconds: float | None) -> int:
    from octavo.cli.output import progress_bar  # noqa: PLC0415
    from octavo.repair.base.balance_document import Phase  # noqa: PLC0415
    from octavo.repair.operate.balance_status import balance_fields, read_balance  # noqa: PLC0415

    deadline = None if patience_seconds is None else time.monotonic() + patience_seconds
    said = ""
    with progress_bar("balancing", None, shown=not session.as_json) as progress:
        while True:
            state = await read_balance(store)
            if state is None or not state.is_wanted:
                break
            if state.phase is Phase.WAITING and state.reason != said:
                said = state.reason
                print_error(f"the balance waits: {said}")
            if deadline is not None and time.monotonic() >= deadline:
                raise CommandError(f"the balance has not ended after {patience_seconds:g} s; {_GOES_ON}")
            progress(0, f"{state.moved:,} ledgers moved, {state.under_way:,} under way")
            await asyncio.sleep(POLL_SECONDS)
    fields = balance_fields(state) or {}
    _say(session, "\n".join(balance_lines(fields)), fields)
    return EXIT_OK if state is not None and state.phase is Phase.DONE else EXIT_FAILURE


def _print_plan(session: Session, plan: "PlannedBalance") -> None:
    from octavo.cli.output import print_json, print_line, print_table  # noqa: PLC0415
    from octavo.repair.operate.balance_status import fill_fields  # noqa: PLC0415

    before, after = fill_fields(plan.before), fill_fields(plan.after)
    moves = [
        {"ledger_id": int(one.ledger_id), "from": one.source, "to": one.target, "bytes": one.bytes}
        for one in plan.moves
    ]
    if session.as_json:
        print_json(
            {
                "moves": moves, "bytes": sum(one.bytes for one in plan.moves), "before": before, "after": after,
                "bytes_that_do_not_move": plan.fixed_bytes, "even": plan.is_even,
            }
        )  # fmt: skip
        return
    print_table(
        ["bookie", "holds", "of", "percent", "then"],
        [
            [
                was["bookie_id"], size_in_words(was["held_bytes"]), size_in_words(was["capacity_bytes"]),
                f"{was['percent']:.3g}", f"{becomes['percent']:.3g}",
            ]
            for was, becomes in zip(before, after, strict=True)
        ],
    )  # fmt: skip
    print_line(f"{len(moves):,} ledgers would be moved, {size_in_words(sum(one.bytes for one in plan.moves))}")
    if moves:
        print_table(["ledger", "from", "to", "bytes"], [list(one.values()) for one in moves[:MOVES_SHOWN_MAX]])
    if len(moves) > MOVES_SHOWN_MAX:
        print_line(f"and {len(moves) - MOVES_SHOWN_MAX:,} more; --json shows all of them")
    if plan.fixed_bytes:
        print_line(
            f"{size_in_words(plan.fixed_bytes)} of copies lie in ledgers and streams that do not move: open ones"
        )
    if not plan.is_even:
        print_line("no move brings the bookies nearer to their shares than that")


def _say(session: Session, text: str, fields: dict[str, Any]) -> None:
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    if session.as_json:
        print_json(fields)
    else:
        print_line(text)
