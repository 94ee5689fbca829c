"""``octavo repair``: shows what repair does, waits for it, and tells it what operators have decided."""

# ruff: noqa: PLR0917 - the parameters of a command are its options, given by name

import asyncio
import random
import re
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo.cli.asking import agreed
from octavo.cli.repair import balance, status
from octavo.cli.session import (
    EXIT_FAILURE,
    EXIT_OK,
    CommandError,
    PasswordFileOption,
    Session,
    command,
    number,
    print_error,
    read_password,
)
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.ids import ID_MAX, BookieId, LedgerId

if TYPE_CHECKING:
    from octavo.metadata import MetadataStore
    from octavo.repair.operate.operators import RepairStatus

app = typer.Typer(
    name="repair",
    help="Show and control the repair of lost copies. See docs/repair.md.",
    no_args_is_help=True,
)

POLL_SECONDS = 0.5
"""Time between two queries while a command waits."""

STUCK_SECONDS = 20.0
"""How long only blocked work must be left before a command that waits gives up: writers replace bookies, and what is
blocked is tried again, in less time."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

BookieArgument = Annotated[str, typer.Argument(metavar="BOOKIE", help="Id of the bookie.")]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0,
        callback=number,
        help="Give up after this time. The default is to wait for ever.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]

balance.register(app)
status.register(app)


@command(app)
async def wait(session: Session, patience_seconds: TimeoutOption = None) -> int:
    """Wait until no copies are missing.

    Ends with 0 when nothing is queued, copied or blocked, and no ledger names a lost, draining, retired or doubtful
    bookie in a part that can be repaired. Ends with 1 when the time is over, or when only blocked ledgers are left.
    """
    async with await session.open_metadata() as store:
        return await _wait_whole(session, store, patience_seconds)


@command(app)
async def hold(
    session: Session,
    bookie: BookieArgument,
    duration: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long, for example 90m or 2h. At most 7d.")
    ],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for other operators.")] = "",
) -> None:
    """Keep a stopped bookie from being declared lost.

    The bookie may be down for maintenance for the given time. After that it counts as missing, and is declared lost
    like any other.
    """
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415
    from octavo.repair.operate import operators  # noqa: PLC0415

    seconds = parse_duration(duration)
    async with await session.open_metadata() as store:
        held = await operators.hold(store, bookie, seconds=seconds, reason=reason, now_ms=_now_ms())
        known = await operators.read_status(store)
    figures = None if known.summary is None else known.summary.bookies.get(BookieId(bookie))
    at_margin = 0 if figures is None else figures.ledgers_at_margin
    if session.as_json:
        until = None if held.until_ms is None else held.until_ms / 1000
        print_json({"bookie_id": bookie, "state": "held", "until": until, "ledgers_at_margin": at_margin})
        return
    print_line(f"bookie {bookie} is held for {duration}")
    if at_margin:
        print_line(f"warning: {at_margin:,} of its ledgers also have a copy on another bookie that is not available")


@command(app)
async def release(session: Session, bookie: BookieArgument) -> None:
    """End a hold before its time."""
    from octavo.repair.operate import operators  # noqa: PLC0415

    async with await session.open_metadata() as store:
        await operators.release(store, bookie, now_ms=_now_ms())
    _say(session, f"bookie {bookie} is not held any more", {"bookie_id": bookie, "held": False})


@command(app)
async def drain(
    session: Session,
    bookie: BookieArgument,
    wait_for_it: Annotated[
        bool, typer.Option("--wait", help="Wait until nothing is left on the bookie that can be moved.")
    ] = False,
    patience_seconds: TimeoutOption = None,
) -> int:
    """Move everything off a bookie, which serves on meanwhile.

    Nothing new is placed on the bookie, writers replace it, and its copies are made again elsewhere. When `octavo
    repair drain --wait` ends with 0, the bookie can be stopped and retired.
    """
    from octavo.metadata.cluster.repair_states import Condition  # noqa: PLC0415
    from octavo.repair.operate import operators  # noqa: PLC0415

    if patience_seconds is not None and not wait_for_it:
        raise InvalidArgumentError("--timeout needs --wait: without it, the command does not wait")
    async with await session.open_metadata() as store:
        is_lost = await operators.drain(store, bookie, now_ms=_now_ms()) is Condition.LOST
        if wait_for_it:
            try:
                return await _wait_drained(session, store, BookieId(bookie), patience_seconds)
            except asyncio.CancelledError:
                print_error(f"the drain of bookie {bookie} goes on; `octavo repair undrain {bookie}` ends it")
                raise
    text = f"bookie {bookie} is {'lost: its copies are being made again already' if is_lost else 'being drained'}"
    _say(session, text, {"bookie_id": bookie, "state": "lost" if is_lost else "draining"})
    return EXIT_OK


@command(app)
async def undrain(session: Session, bookie: BookieArgument) -> None:
    """End a drain. What has been moved stays where it is."""
    from octavo.repair.operate import operators  # noqa: PLC0415

    async with await session.open_metadata() as store:
        await operators.undrain(store, bookie)
    _say(session, f"bookie {bookie} is not drained any more", {"bookie_id": bookie, "draining": False})


@command(app)
async def retire(
    session: Session,
    bookie: BookieArgument,
    lost: Annotated[
        bool,
        typer.Option("--lost", help="Its disks are lost: retire it although ledgers name it, and repair them at once."),
    ] = False,
    yes: YesOption = False,
) -> int:
    """Take a stopped bookie out of the cluster for good.

    Refused while a ledger names the bookie, because its copies would be lost: drain it first. With --lost it is retired
    all the same, and its copies are made again without a grace time. The id is never used again.
    """
    from octavo.client.options import ClientOptions  # noqa: PLC0415
    from octavo.client.wire.pool import ConnectionPool  # noqa: PLC0415
    from octavo.client.wire.protection import options_with_environment  # noqa: PLC0415
    from octavo.repair.base import ask_bookie as asking  # noqa: PLC0415
    from octavo.repair.operate import retiring  # noqa: PLC0415

    if lost and not yes:
        await _confirm(
            f"Give up what bookie {bookie} holds, for ever?", "retiring a bookie as lost gives up what it holds"
        )
    async with await session.open_metadata() as store:
        cluster_id = await store.cluster_id()
        options = options_with_environment(ClientOptions())
        pool = ConnectionPool(store, cluster_id=cluster_id, options=options, rng=random.Random())
        async with AsyncExitStack() as stack:
            stack.push_async_callback(pool.close)
            # The store's time: how long ago it was decides when a loss may be accepted (rule O4).
            now_ms = await store.time_ms()
            named = await retiring.retire(store, bookie, partial(asking.may_serve, pool), lost=lost, now_ms=now_ms)
    if named and not lost:
        raise CommandError(
            f"bookie {bookie} may hold entries of {_ledgers(named)}, which name it; drain it first, or give --lost if"
            " its disks are lost"
        )
    _say(session, f"bookie {bookie} is retired", {"bookie_id": bookie, "state": "retired"})
    return EXIT_OK


@command(app)
async def unretire(session: Session, bookie: BookieArgument) -> int:
    """Take back a retirement that was interrupted.

    `octavo repair retire` that is stopped, or loses the metadata store, takes back what it began. Where it could not,
    the bookie is still marked as retired and cannot start. A retirement that was completed cannot be taken back.
    """
    from octavo.repair.operate import retiring  # noqa: PLC0415

    async with await session.open_metadata() as store:
        await retiring.unretire(store, bookie, now_ms=_now_ms())
    _say(session, f"bookie {bookie} is not retired; it may start", {"bookie_id": bookie, "state": "missing"})
    return EXIT_OK


@command(app)
async def pause(session: Session) -> None:
    """Pause repair in the whole cluster. Lost bookies are still noticed."""
    from octavo.repair.operate import operators  # noqa: PLC0415

    async with await session.open_metadata() as store:
        await operators.pause(store)
    _say(session, "repair is paused; `octavo repair resume` continues it", {"paused": True})


@command(app)
async def resume(
    session: Session,
    override_brake: Annotated[
        bool,
        typer.Option("--override-brake", help="Declare bookies lost although half of them are missing at once."),
    ] = False,
) -> None:
    """Continue repair after a pause."""
    from octavo.repair.operate import operators  # noqa: PLC0415

    async with await session.open_metadata() as store:
        states = await operators.resume(store, override_brake=override_brake)
    fields = {"paused": False, "brake": states.brake, "brake_overridden": states.brake_overridden}
    brake = "; the brake is on: give --override-brake to declare bookies lost all the same"
    held = states.brake and not states.brake_overridden
    _say(session, f"repair is not paused{brake if held else ''}", fields)


@command(app)
async def check(
    session: Session,
    ledgers: Annotated[list[int], typer.Argument(metavar="LEDGER...", min=0, max=ID_MAX, help="Ids of the ledgers.")],
    patience_seconds: TimeoutOption = None,
) -> int:
    """Verify every copy of some ledgers, and repair them.

    Every bookie of the ledgers reads its copies back, and copies what is damaged or missing from the others. The
    command ends with 1 when a ledger is short: something that it should hold could not be found on any bookie that
    answers.
    """
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415
    from octavo.repair.operate import operators  # noqa: PLC0415

    wanted = [LedgerId(ledger_id) for ledger_id in dict.fromkeys(ledgers)]
    deadline = None if patience_seconds is None else time.monotonic() + patience_seconds
    short: dict[LedgerId, bool] = {}
    async with await session.open_metadata() as store:
        for ledger_id in wanted:
            await store.read_either(ledger_id)  # raises for one that does not exist
        await operators.ask_for_checks(store, wanted, now_ms=_now_ms())
        try:
            while len(short) < len(wanted):
                short |= await operators.take_checked(store, wanted)
                if deadline is not None and time.monotonic() >= deadline and len(short) < len(wanted):
                    raise CommandError(f"{_ledgers(one for one in wanted if one not in short)}: not checked in time")
                if len(short) < len(wanted):
                    await asyncio.sleep(POLL_SECONDS)
        finally:
            if len(short) < len(wanted):
                await operators.forget_checks(store, wanted)
    for ledger_id in wanted:
        if session.as_json:
            print_json({"ledger_id": int(ledger_id), "short": short[ledger_id]})
        else:
            print_line(f"ledger {ledger_id} is {'short; see `octavo repair status`' if short[ledger_id] else 'whole'}")
    return EXIT_FAILURE if any(short.values()) else EXIT_OK


@command(app, name="accept-loss")
async def accept_loss(
    session: Session,
    ledger: Annotated[int, typer.Argument(metavar="LEDGER", min=0, max=ID_MAX, help="Id of the ledger.")],
    without: Annotated[
        list[str],
        typer.Option("--without", metavar="BOOKIE", help="A bookie to give up. May be given several times."),
    ],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")] = "",
    ended: Annotated[
        bool,
        typer.Option(
            "--ended",
            help="You have seen that the processes that were these bookies have ended and can never go on: do not wait"
            " until one that is paused or cut off confirms nothing any more.",
        ),
    ] = False,
    password_file: PasswordFileOption = None,
    yes: YesOption = False,
) -> int:
    """End a ledger or a stream that cannot be recovered.

    The ledger is closed, a stream is put at rest.

    Acknowledged entries may be lost. The bookies given with --without count as if they had denied every entry of which
    they cannot tell. They must be retired or in doubt; a bookie in doubt is asked for what it still has. Of a
    stream they must be retired. A process that was one of them and is paused, or cut off from the metadata, may confirm
    adds for an hour; until 70 minutes after the bookie was retired, or was seen in doubt, the command refuses without
    --ended. The command first tries to recover the ledger without any loss; what was accepted is
    recorded in the metadata.
    """
    from octavo.client.options import ClientOptions  # noqa: PLC0415
    from octavo.client.wire.protection import options_with_environment  # noqa: PLC0415
    from octavo.repair.operate.accept_loss import BlockedRecovery  # noqa: PLC0415

    names = [BookieId(name) for name in dict.fromkeys(without)]
    password = read_password(password_file)
    async with await session.open_metadata() as store:
        options = options_with_environment(ClientOptions())
        recovery = BlockedRecovery(store, LedgerId(ledger), password, await store.cluster_id(), options)
        try:
            why = await recovery.check(names, ended=ended)
            if not yes:
                await _confirm(
                    f"{why}. Close it without {', '.join(names)}? Acknowledged entries may be lost.",
                    "accepting a loss may lose acknowledged entries",
                )
            closed = await recovery.accept(names, reason=reason, now_ms=_now_ms(), ended=ended)
        finally:
            await recovery.close()
    end = "empty" if closed.last_entry_id is None else f"at entry {closed.last_entry_id}"
    fields = {"ledger_id": ledger, "without": list(names), "last_entry_id": closed.last_entry_id}
    _say(session, f"ledger {ledger} is {closed.state.value.replace('-', ' ')} {end}", fields)
    return EXIT_OK


# --- parts --------------------------------------------------------------------------------------------------------


def parse_duration(text: str) -> float:
    """Seconds of ``90s``, ``15m``, ``2h`` or ``7d``. Raises :class:`CommandError`."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd])", text)
    if match is None:
        raise CommandError(f"{text!r} is not a time; give for example 90m, 2h or 7d")
    return float(match[1]) * _UNITS[match[2]]


async def _wait_whole(session: Session, store: "MetadataStore", patience_seconds: float | None) -> int:
    from octavo.cli.output import progress_bar  # noqa: PLC0415
    from octavo.repair.operate.operators import UNFINISHED_MAX, find_unfinished, read_status  # noqa: PLC0415

    deadline = None if patience_seconds is None else time.monotonic() + patience_seconds
    stuck_since: float | None = None
    notices = _Notices()
    with progress_bar("repairing", None, shown=not session.as_json) as progress:
        while True:
            current = await read_status(store)
            unfinished: list[LedgerId] = []
            if current.is_quiet and not (unfinished := await find_unfinished(store, current.states)):
                return _say_whole(session, current)
            now = time.monotonic()
            stuck_since = (stuck_since or now) if current.is_stuck else None
            if stuck_since is not None and now - stuck_since > STUCK_SECONDS:
                raise CommandError(f"only blocked work is left: {_blocked(current)}")
            notices.look(current, now)
            if deadline is not None and now >= deadline:
                raise CommandError(f"not everything is whole after {patience_seconds:g} s; see `octavo repair status`")
            progress(0, _note(current, unfinished, UNFINISHED_MAX))
            await asyncio.sleep(POLL_SECONDS)


def _say_whole(session: Session, current: "RepairStatus") -> int:
    from octavo.metadata.cluster.repair_states import Condition  # noqa: PLC0415

    away = sorted(current.states.in_condition(Condition.MISSING, Condition.HELD))
    text = "everything is whole"
    if away:
        named = f"bookie {away[0]}, which is" if len(away) == 1 else f"bookies {', '.join(away)}, which are"
        text += f", if the copies on {named} missing or held, are counted"
    _say(session, text, {"whole": True, "missing_or_held": list(away)})
    return EXIT_OK


async def _wait_drained(
    session: Session, store: "MetadataStore", bookie_id: BookieId, patience_seconds: float | None
) -> int:
    from octavo.cli.output import progress_bar  # noqa: PLC0415
    from octavo.metadata.cluster.repair_states import LEAVING  # noqa: PLC0415
    from octavo.repair.operate.operators import NAMED_MAX, ledgers_naming, read_status  # noqa: PLC0415

    deadline = None if patience_seconds is None else time.monotonic() + patience_seconds
    stuck_since: float | None = None
    notices = _Notices()
    with progress_bar(f"draining {bookie_id}", None, shown=not session.as_json) as progress:
        while True:
            current = await read_status(store)
            if current.states.condition_of(bookie_id) not in LEAVING:
                raise CommandError(f"bookie {bookie_id} is not being drained any more")
            quiet = current.summary is None or not (current.summary.queued or current.summary.copying)
            named = [one async for one in ledgers_naming(store, bookie_id, count=NAMED_MAX)] if quiet else []
            if quiet and not named:
                _say(session, f"bookie {bookie_id} is drained", {"bookie_id": bookie_id, "drained": True})
                return EXIT_OK
            blocked = [one for one in current.blocked if one.ledger_id in named]
            now = time.monotonic()
            stuck_since = (stuck_since or now) if quiet and len(blocked) == len(named) else None
            if stuck_since is not None and now - stuck_since > STUCK_SECONDS:
                reasons = "; ".join(f"ledger {one.ledger_id}: {one.reason}" for one in blocked[:3])
                raise CommandError(f"bookie {bookie_id} cannot be drained of {_ledgers(named)}: {reasons}")
            notices.look(current, now)
            if deadline is not None and now >= deadline:
                raise CommandError(
                    f"bookie {bookie_id} is not drained after {patience_seconds:g} s, and the drain goes on; see"
                    " `octavo repair status`"
                )
            progress(0, _note(current, named, NAMED_MAX))
            await asyncio.sleep(POLL_SECONDS)


_END_THE_HOLD = "when no ledger is missing, end the hold with `octavo cluster release-garbage`"


class _Notices:
    """Says on standard error why a command that waits would wait for ever, when it becomes so."""

    def __init__(self) -> None:
        self._said: str | None = None
        self._without_auditor_since: float | None = None

    def look(self, current: "RepairStatus", now: float) -> None:
        """Look at the state of repair at a moment."""
        from octavo.metadata.cluster.repair_states import Condition  # noqa: PLC0415

        if current.auditor is not None:
            self._without_auditor_since = None
        elif self._without_auditor_since is None:
            self._without_auditor_since = now
        told: str | None = None
        if current.states.paused:
            told = "repair is paused, nothing is copied; `octavo repair resume` continues it"
        elif self._without_auditor_since is not None and now - self._without_auditor_since > STUCK_SECONDS:
            told = "no bookie is the auditor, nothing is copied; start one that takes part in repair (setting `repair`)"
        elif current.hold is not None and current.states.in_condition(Condition.DOUBTFUL):
            told = f"garbage collection is on hold, no doubt ends: {current.hold.reason}; {_END_THE_HOLD}"
        if told is not None and told != self._said:
            print_error(told)
        self._said = told


def _note(current: "RepairStatus", unfinished: list[LedgerId], at_most: int) -> str:
    """The work that is left; ``unfinished`` has at most this number of ledgers."""
    summary = current.summary
    if summary is None or summary.is_quiet:
        if not unfinished:
            return "looking"
        more = "or more " if len(unfinished) >= at_most else ""
        return f"{len(unfinished)} {more}ledger{'s' if len(unfinished) != 1 else ''} to begin with"
    left = summary.queued + summary.copying
    return f"{left:,} ledger{'s' if left != 1 else ''} left, {summary.bytes_per_second / 1e6:,.1f} MB/s"


def _blocked(current: "RepairStatus") -> str:
    shown = "; ".join(f"ledger {one.ledger_id}: {one.reason}" for one in current.blocked[:3])
    more = f"; and {len(current.blocked) - 3} more" if len(current.blocked) > 3 else ""
    return shown + more


def _ledgers(ledger_ids: Any) -> str:
    ids = [str(one) for one in ledger_ids]
    return f"ledger {ids[0]}" if len(ids) == 1 else f"ledgers {', '.join(ids)}"


def _say(session: Session, text: str, fields: dict[str, Any]) -> None:
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    if session.as_json:
        print_json(fields)
    else:
        print_line(text)


def _now_ms() -> int:
    return int(time.time() * 1000)


async def _confirm(question: str, what: str) -> None:
    """Ask on the terminal. Raises :class:`CommandError` for any answer but yes."""
    if not await agreed(question, without_terminal=what):
        raise CommandError("nothing has been changed")
