"""``octavo bookie show | gc | compact | read-only | scrub | log-level``: administers a running bookie on this host."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo.cli.output import print_json, print_line, print_table
from octavo.cli.rates import LATENCIES
from octavo.cli.session import CommandError, LogLevel, Session, command, directory_of_cluster, number
from octavo.metrics.histogram import BOUNDS_SECONDS, counts_from_text, quantile_of

if TYPE_CHECKING:
    from octavo.cli.bookie.admin_client import AdminClient

BookieArgument = Annotated[
    str,
    typer.Argument(
        metavar="BOOKIE",
        help="The bookie: its data directory, its name in `octavo status`, its id, or the name of its unit.",
    ),
]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Do not wait for the end; print the number of the job.")]


class Switch(StrEnum):
    """A position of a switch."""

    ON = "on"
    OFF = "off"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "show")(show)
    command(app, "gc")(collect_garbage)
    command(app, "compact")(compact)
    command(app, "read-only")(read_only)
    command(app, "scrub")(scrub)
    command(app, "log-level")(log_level)


async def show(
    session: Session,
    bookie: BookieArgument,
    files: Annotated[bool, typer.Option("--files", help="List the bookie's files with their sizes, too.")] = False,
) -> None:
    """Show the state of a running bookie.

    The command shows whether the bookie is ready, its disks and its load. With --json it shows the settings, too.
    """
    client = _client(session, bookie)
    shown: dict[str, Any] = await client.get("/api/v1/bookie")
    ready = await client.get("/readyz")
    shown["ready"], shown["not_ready_because"] = ready["ready"], ready["reasons"]
    if files:
        shown["files"] = await asyncio.to_thread(_files_of, shown["disks"])
    if session.as_json:
        print_json(shown)
        return
    _print_bookie(shown)


def _print_bookie(shown: Mapping[str, Any]) -> None:
    read_only = shown["read_only"]
    lines = {
        "bookie": shown["bookie_id"],
        "cluster": shown["cluster_id"],
        "state": shown["state"],
        "ready": "yes" if shown["ready"] else f"no: {'; '.join(shown['not_ready_because'])}",
        "read-only by operator": "no" if read_only["operator"] is None else f"yes: {read_only['operator']}",
        "read-only by disks": "yes" if read_only["disks"] else "no",
        "registered": "yes" if shown["registered"] else "no",
        "metadata store": "answers" if shown["metadata_up"] else "does not answer",
        "log level": shown["log_level"],
        **{name.replace("_", " "): _readable(name, value) for name, value in shown["facts"].items()},
    }
    width = max(map(len, lines))
    for name, value in lines.items():
        print_line(f"{name:<{width}}  {value}")
    print_line("")
    wanted = shown["facts"].get("disk_short_wanted_bytes")
    print_table(
        ["directory", "path", "free", "size", ""],
        [
            [
                disk["role"],
                disk["path"],
                _size(disk["free_bytes"]),
                _size(disk["total_bytes"]),
                ("short of space" + (f": {_size(wanted)} wanted" if wanted else ""))
                if disk["short_of_space"]
                else None,
            ]
            for disk in shown["disks"]
        ],
    )
    if "files" in shown:
        print_line("")
        print_table(["file", "bytes"], [[found["path"], found["bytes"]] for found in shown["files"]])


def _readable(name: str, value: Any) -> Any:
    """A fact of INFO for people: durations as quantiles since the start, a moment as a date."""
    if name in LATENCIES.values():
        try:
            counts = counts_from_text(value)
        except ValueError:
            return value  # of another release
        half, most = (quantile_of(counts, share) for share in (0.5, 0.99))
        return (
            "none" if half is None or most is None else f"half within {_duration(half)}, 99 % within {_duration(most)}"
        )
    if name == "certificate_expires_at":
        return datetime.fromtimestamp(value, UTC).isoformat(" ", "seconds") if value else "no certificate"
    return value


def _duration(seconds: float) -> str:
    """The bound of a bucket."""
    if seconds == float("inf"):
        return f"more than {BOUNDS_SECONDS[-1]:.0f} s"
    return f"{seconds * 1000:.2g} ms" if seconds < 1 else f"{seconds:.2g} s"


async def collect_garbage(session: Session, bookie: BookieArgument, no_wait: NoWaitOption = False) -> int:
    """Collect deleted ledgers and truncated entries now.

    It tells how many ledgers were deleted, and how many streams were trimmed, with the entries and bytes that the
    bookie held of them. Compaction frees the space.
    """
    return await _run_job(session, _client(session, bookie), "garbage", {}, no_wait=no_wait)


async def compact(
    session: Session,
    bookie: BookieArgument,
    major: Annotated[
        bool, typer.Option("--major", help="Use the threshold of major compactions, not that of minor ones.")
    ] = False,
    pause: Annotated[
        float | None,
        typer.Option(
            "--pause",
            metavar="SECONDS",
            min=0,
            max=24 * 3600,
            callback=number,
            help="Do not compact now, but pause compaction for this time. 0 ends a pause. A disk that is short of"
            " space ends it, too.",
        ),
    ] = None,
    no_wait: NoWaitOption = False,
) -> int:
    """Compact entry logs now.

    Compaction frees the space of deleted ledgers. Only entry logs whose live share is below the setting
    compaction_minor_share or, with --major, compaction_major_share are compacted.
    """
    client = _client(session, bookie)
    if pause is None:
        return await _run_job(session, client, "compaction", {"level": "major" if major else "minor"}, no_wait=no_wait)
    answer = await client.post("/api/v1/bookie/compaction/pause", {"seconds": pause})
    if session.as_json:
        print_json(answer)
    elif pause:
        print_line(f"compaction is paused for {answer['paused_seconds']:.0f} s")
    else:
        print_line("compaction is no longer paused")
    return 0


async def read_only(
    session: Session,
    bookie: BookieArgument,
    switch: Annotated[Switch, typer.Argument(metavar="on|off", help="Whether the bookie is to be read-only.")],
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Reason, shown with the state of the bookie.")
    ] = None,
) -> None:
    """Make a bookie read-only, or writable again.

    A read-only bookie takes no new entries; it serves reads, and recovering clients can still store what they must.
    Writers replace it. The switch holds over restarts, and free disk space never undoes it.
    """
    value: dict[str, Any] = {"read_only": switch is Switch.ON}
    if reason is not None and switch is Switch.ON:
        value["reason"] = reason
    answer = await _client(session, bookie).post("/api/v1/bookie/read-only", value)
    if session.as_json:
        print_json(answer)
    elif answer["operator"] is not None:
        print_line(f"bookie {bookie} is read-only: {answer['operator']}")
    elif answer["disks"]:
        print_line(f"bookie {bookie} stays read-only because its disks are short of space")
    else:
        print_line(f"bookie {bookie} is writable")


async def scrub(
    session: Session,
    bookie: BookieArgument,
    rate: Annotated[
        int | None,
        typer.Option(
            "--rate",
            metavar="BYTES",
            min=1 << 16,
            max=1 << 40,
            help="Bytes verified per second. The default is the setting scrub_bytes_per_second.",
        ),
    ] = None,
    no_wait: NoWaitOption = False,
) -> int:
    """Verify everything that a bookie has stored, now.

    The exit status is 1 if damage is found. The bookie continues to serve; damaged entries are read from other bookies.
    """
    value = {} if rate is None else {"bytes_per_second": rate}
    return await _run_job(session, _client(session, bookie), "scrub", value, no_wait=no_wait)


async def log_level(
    session: Session,
    bookie: BookieArgument,
    level: Annotated[LogLevel, typer.Argument(metavar="LEVEL", help="New level: debug, info, warning or error.")],
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            metavar="SECONDS",
            min=1,
            max=24 * 3600,
            callback=number,
            help="Time after which the configured level returns.",
            show_default=True,
        ),
    ] = 600.0,
) -> None:
    """Change the level of a bookie's log for some time."""
    value = {"level": level.value, "seconds": seconds}
    answer = await _client(session, bookie).post("/api/v1/bookie/log-level", value)
    if session.as_json:
        print_json(answer)
    else:
        print_line(f"bookie {bookie} logs at level {answer['level']} for {answer['seconds']:g} s")


# --- shared ----------------------------------------------------------------------------------------------------------


def _client(session: Session, bookie: str) -> "AdminClient":
    from octavo.cli.bookie.admin_client import find_bookie  # noqa: PLC0415 - it imports HTTP

    return find_bookie(bookie, directory_of_cluster(session.metadata_uri))


async def _run_job(
    session: Session, client: "AdminClient", kind: str, value: Mapping[str, Any], *, no_wait: bool
) -> int:
    job = (await client.post(f"/api/v1/bookie/{kind}", value))["job"]
    if no_wait:
        if session.as_json:
            print_json({"job": job})
        else:
            print_line(f"job {job} started")
        return 0
    try:
        ended = await client.wait_job(job)
    except asyncio.CancelledError:
        # Ctrl-C ends the work, as it would if the command did it itself.
        await client.delete(f"/api/v1/jobs/{job}")
        raise
    if session.as_json:
        print_json(ended)
    if ended["state"] != "done":
        raise CommandError(f"{kind}: job {job} {ended['state']}: {ended['error'] or 'no reason known'}")
    result = ended["result"] or {}
    if not session.as_json:
        facts = ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in result.items())
        print_line(f"{kind} done in {ended['seconds']:g} s{': ' + facts if facts else ''}")
    return 1 if result.get("damaged_places") else 0


def _files_of(disks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The files in a bookie's directories. Raises :class:`CommandError`."""
    found: dict[str, int] = {}
    for disk in disks:
        try:
            for path in sorted(Path(disk["path"]).rglob("*")):
                if path.is_file():
                    found[str(path)] = path.stat().st_size
        except OSError as error:
            raise CommandError(f"cannot list {disk['path']}: {error.strerror or error}") from error
    return [{"path": path, "bytes": size} for path, size in sorted(found.items())]


def _size(value: int) -> str:
    return f"{value / 1e9:,.1f} GB"
