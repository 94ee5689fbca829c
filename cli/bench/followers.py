"""``octavo bench followers``: how long after its add an entry has reached every follower."""

# ruff: noqa: PLR0917 - the parameters of a command are its options, given by name

import os
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo.cli.bench.ledgers import Shape, open_ledgers
from octavo.cli.bench.log import Layout
from octavo.cli.bench.logs import EntrySizeOption, LayoutOption
from octavo.cli.bench.processes import Processes, grown, in_words, processor_per_entry
from octavo.cli.event_loop import finish
from octavo.cli.ledger.options import AckQuorumOption, EnsembleOption, WriteQuorumOption
from octavo.cli.session import EXIT_FAILURE, EXIT_OK, Session, command, describe, number, print_error
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.ids import ID_MAX

if TYPE_CHECKING:
    from octavo.cli.bench.load import Measurement
    from octavo.client.client import Client
    from octavo.client.log.writer.writer import LogWriter
    from octavo.client.write.writer import LedgerWriter

ENTRIES_MAX = 1_000_000
"""Entries of one measurement: each process keeps a time for each."""

IN_FLIGHT_MAX = 100_000
"""Adds under way at most; a cluster that falls so far behind does not keep up."""


class Through(StrEnum):
    """The kind of thing that is followed."""

    LOG = "log"
    LEDGER = "ledger"


def register(app: typer.Typer) -> None:
    """Add the command, and the hidden one that its client processes run, to the group ``bench``."""
    command(app, "followers")(bench_followers)
    command(app, "follow-client", hidden=True)(follow_client)


async def bench_followers(
    session: Session,
    followers: Annotated[
        int, typer.Option("--followers", metavar="N", min=1, max=10_000, help="Number of followers in all.")
    ] = 1,
    processes: Annotated[
        int, typer.Option("--processes", metavar="N", min=1, max=64, help="Number of processes that they run in.")
    ] = 1,
    rate: Annotated[
        float, typer.Option("--rate", metavar="N", min=0.1, callback=number, help="Adds a second.")
    ] = 1000.0,
    entry_size: EntrySizeOption = 1024,
    duration: Annotated[
        float, typer.Option("--duration", metavar="SECONDS", min=0.001, callback=number, help="Time to measure.")
    ] = 10.0,
    warm_up: Annotated[
        float,
        typer.Option("--warm-up", metavar="SECONDS", min=0, callback=number, help="Time of the same load before that."),
    ] = 1.0,
    through: Annotated[
        Through, typer.Option("--through", metavar="KIND", help="What is followed: a log or a ledger.")
    ] = Through.LOG,
    layout: LayoutOption = Layout.STREAM,
    ensemble: EnsembleOption = 3,
    write_quorum: WriteQuorumOption = 3,
    ack_quorum: AckQuorumOption = 2,
) -> int:
    """Measure how long an entry takes to reach its followers.

    The command adds entries at a steady rate to one log or ledger, which many followers in other processes follow. It
    measures, from the time at which an add was due, when the add was acknowledged and when the last of all followers
    received the entry; and the processor time of an entry in this process and in each bookie (with `octavo up` on this
    machine). It deletes the log or ledger.
    """
    from octavo.cli.bench.client_processes import ask_all, client_processes  # noqa: PLC0415 - `octavo --help` does without
    from octavo.cli.bench.load import Extent, Measurement, open_loop  # noqa: PLC0415
    from octavo.cli.output import progress_bar  # noqa: PLC0415

    if followers < processes:
        raise InvalidArgumentError(f"--followers {followers} cannot be in --processes {processes}: one would have none")
    if rate * (duration + warm_up) > ENTRIES_MAX:
        raise InvalidArgumentError(
            f"--rate {rate:g} for {duration + warm_up:g} seconds are more than {ENTRIES_MAX:,} entries"
        )
    payload = os.urandom(entry_size)
    shape = Shape(ensemble, write_quorum, ack_quorum)
    delays = Measurement()
    async with await session.connect() as client, _written(client, through, shape, layout) as (writer, name):
        watched = Processes.of(session)
        shares = [followers // processes + (number < followers % processes) for number in range(processes)]
        commands = [["follow-client", f"--{through.value}", name, "--followers", str(share)] for share in shares]
        async with client_processes(session, commands) as children:
            await writer.add(payload)
            added = 1
            await ask_all(children, do="wait", entries=added)
            adding = partial(writer.add_nowait, payload)
            if warm_up:
                warmed = await open_loop([adding], Extent(None, warm_up), IN_FLIGHT_MAX, rate, _quiet)
                added += warmed.operations
                if warmed.first_error is None:
                    await ask_all(children, do="wait", entries=added)
            with progress_bar("adding", 1) as progress:
                before = watched.processor_seconds()
                measured = await open_loop([adding], Extent(None, duration), IN_FLIGHT_MAX, rate, progress)
                spent = grown(before, watched.processor_seconds())
            if measured.first_error is None:
                answers = await ask_all(children, do="arrivals", entries=added + measured.operations, first=added)
                delays.latencies = array("f", delays_of([answer["last"] for answer in answers], measured.begun, rate))
                await delays.count_latencies()
    facts: dict[str, Any] = {"followers": followers, "processes": processes, "rate": rate, "through": through.value}
    facts |= {"layout": layout.value if through is Through.LOG else None, "entry_size": entry_size, **shape.sizes}
    facts["processor_us_per_entry"] = processor_per_entry(spent, measured.operations)
    return _report(session, measured, delays, facts)


async def follow_client(
    session: Session,
    log: Annotated[str | None, typer.Option("--log", metavar="NAME", help="The log to follow.")] = None,
    ledger: Annotated[
        int | None, typer.Option("--ledger", metavar="ID", min=0, max=ID_MAX, help="The ledger to follow.")
    ] = None,
    followers: Annotated[int, typer.Option("--followers", metavar="N", min=1, help="Number of followers.")] = 1,
) -> int:
    """One client of `octavo bench followers`, which controls it through standard input and output."""
    from octavo.cli.bench.follow_client import serve_followers  # noqa: PLC0415

    if (log is None) == (ledger is None):
        raise InvalidArgumentError("give either --log or --ledger")
    return await serve_followers(session, log, ledger, followers)


def delays_of(arrivals: Sequence[Sequence[float]], begun: float, rate: float) -> list[float]:
    """From the time at which each add was due until the last follower of any process had its entry, in seconds.
    ``arrivals``: of each process, the times of the entries in their order."""
    return [max(times) - (begun + number / rate) for number, times in enumerate(zip(*arrivals, strict=True))]


@asynccontextmanager
async def _written(
    client: "Client", through: Through, shape: Shape, layout: Layout
) -> "AsyncIterator[tuple[LogWriter | LedgerWriter, str]]":
    """A writer of a new log or ledger, and the name or id by which it is followed."""
    if through is Through.LEDGER:
        async with open_ledgers(client, 1, shape, keep=False) as (ledger,):
            yield ledger, str(ledger.id)
        return
    name = f"octavo-bench/{os.urandom(6).hex()}"
    sizes = (shape.ensemble_size, shape.write_quorum, shape.ack_quorum)
    async with await client.create_log(name, *sizes, layout=layout.value) as log:
        try:
            async with log.lead() as writer:
                yield writer, name
        finally:
            await finish(client.delete_log(name))


def _quiet(done: float, note: str = "") -> None:
    """Show no progress."""


def _report(session: Session, measured: "Measurement", delays: "Measurement", facts: dict[str, Any]) -> int:
    from octavo.cli.bench.load import latency_ms  # noqa: PLC0415
    from octavo.cli.output import print_json, print_line, print_table  # noqa: PLC0415

    known, seen = latency_ms(measured.histogram), latency_ms(delays.histogram)
    ratio = None if not known["p50"] or seen["p50"] is None else round(seen["p50"] / known["p50"], 3)
    result = {
        "entries": measured.operations,
        "entries_per_second": round(measured.operations / measured.seconds, 1),
        "acknowledged_ms": known,
        "last_follower_ms": seen,
        "ratio_p50": ratio,
        "errors": measured.errors,
        "unsent": measured.unsent,
        **facts,
    }
    if session.as_json:
        print_json(result)
    else:
        columns = ("p50", "p99", "p99_9", "max")
        print_table(
            [f"{measured.operations:,} adds, until", *(f"{name.replace('_', '.')} ms" for name in columns)],
            [
                (title, *("-" if (value := times[name]) is None else f"{value:,.3f}" for name in columns))
                for title, times in (
                    ("acknowledged", known),
                    (f"at the last of {facts['followers']:,} followers", seen),
                )
            ],
        )
        print_line(f"last follower to acknowledgement, p50: {'-' if ratio is None else f'{ratio:.3f}'}")
        print_line(f"processor time per entry: {in_words(facts['processor_us_per_entry'], 'us')}")
    if measured.unsent:
        print_error(f"the cluster did not keep up: adds that were due and not started: {measured.unsent:,}")
    if measured.first_error is not None:
        print_error(f"adds that failed: {measured.errors:,}; the first error: {describe(measured.first_error)}")
        return EXIT_FAILURE
    return EXIT_OK
