"""``octavo bench logs``: many logs led and followed by one process, idle and with an add under way in each."""

# ruff: noqa: PLR0917 - the parameters of a command are its options, given by name

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo.cli.bench.ledgers import Shape
from octavo.cli.bench.log import Layout
from octavo.cli.bench.processes import Processes, grown, in_words, processor_per_entry, share_of_a_core
from octavo.cli.ledger.options import AckQuorumOption, EnsembleOption, WriteQuorumOption
from octavo.cli.session import EXIT_FAILURE, EXIT_OK, Session, command, describe, number, print_error
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from octavo.cli.bench.load import Measurement

LogsOption = Annotated[int, typer.Option("--logs", metavar="N", min=1, max=100_000, help="Number of logs.")]
LayoutOption = Annotated[
    Layout, typer.Option("--layout", metavar="LAYOUT", help="How the logs are stored: stream or chain.")
]
EntrySizeOption = Annotated[
    int, typer.Option("--entry-size", metavar="BYTES", min=0, max=ENTRY_PAYLOAD_BYTES_MAX, help="Payload of an entry.")
]


def register(app: typer.Typer) -> None:
    """Add the command to the group ``bench``."""
    command(app, "logs")(bench_logs)


async def bench_logs(
    session: Session,
    logs: LogsOption = 1000,
    entry_size: EntrySizeOption = 1024,
    duration: Annotated[
        float,
        typer.Option(
            "--duration", metavar="SECONDS", min=0.001, callback=number, help="Time for which entries are added."
        ),
    ] = 10.0,
    idle: Annotated[
        float,
        typer.Option(
            "--idle", metavar="SECONDS", min=0, callback=number, help="Time for which nothing happens, before that."
        ),
    ] = 10.0,
    layout: LayoutOption = Layout.STREAM,
    ensemble: EnsembleOption = 3,
    write_quorum: WriteQuorumOption = 3,
    ack_quorum: AckQuorumOption = 2,
) -> int:
    """Measure many logs led and followed by one process.

    One client creates and leads all logs; another one in the same process follows them all. The command measures how
    long it takes to create them, to lead them, and to follow them until the first entry of each has arrived; the share
    of a core that the client process and each bookie use while nothing happens; adds, with one under way in each log;
    and closing.

    Figures of bookies need `octavo up` on this machine. The command deletes its logs.
    """
    from octavo.cli.bench.load import Extent, closed_loop  # noqa: PLC0415 - `octavo --help` does without
    from octavo.cli.bench.many_logs import many_logs  # noqa: PLC0415
    from octavo.cli.output import progress_bar  # noqa: PLC0415

    payload = os.urandom(entry_size)
    shape = Shape(ensemble, write_quorum, ack_quorum)
    result: dict[str, Any] = {"logs": logs, "layout": layout.value, "entry_size": entry_size, **shape.sizes}

    async def timed(what: str, *steps: Callable[[], Awaitable[object]]) -> None:
        began = time.perf_counter()
        for step in steps:
            await step()
        result[f"{what}_seconds"] = round(time.perf_counter() - began, 4)

    async with await session.connect() as leader, await session.connect() as follower:
        processes = Processes.of(session)
        async with many_logs((leader, follower), logs, shape, layout) as many:
            await timed("create", many.create)
            await timed("lead", many.lead)
            await timed("first_add", partial(many.add_to_each, payload))
            await timed("follow", many.follow, partial(many.received.wait_for, logs))
            if idle:
                before = processes.processor_seconds()
                await asyncio.sleep(idle)
                result["idle_share"] = share_of_a_core(grown(before, processes.processor_seconds()), idle)
            with progress_bar("adding", 1) as progress:
                before = processes.processor_seconds()
                adds = [partial(writer.add, payload) for writer in many.writers]
                measured = await closed_loop(adds, Extent(None, duration), logs, progress)
                added = measured.operations
                if measured.first_error is None:
                    await timed("catch_up", partial(many.received.wait_for, logs + added))
                spent = grown(before, processes.processor_seconds())
            result |= {"entries_followed": many.received.entries - logs}
            result["processor_us_per_entry"] = processor_per_entry(spent, added)
            await timed("close_followers", many.stop_following)
            await timed("close_leaders", many.stop_leading)
    return _report(session, measured, result)


def _report(session: Session, measured: "Measurement", facts: dict[str, Any]) -> int:
    from octavo.cli.bench.load import latency_ms  # noqa: PLC0415
    from octavo.cli.output import print_json, print_line, print_table  # noqa: PLC0415

    rate = measured.operations / measured.seconds
    latency = latency_ms(measured.histogram)
    result = {
        "entries": measured.operations,
        "seconds": round(measured.seconds, 6),
        "entries_per_second": round(rate, 1),
        "latency_ms": latency,
        "errors": measured.errors,
        **facts,
    }
    if session.as_json:
        print_json(result)
    else:
        shown = [f"{latency[name] or 0:,.3f}" for name in ("p50", "p99", "max")]
        print_table(
            ["logs", "entries", "entries/s", "p50 ms", "p99 ms", "max ms", "errors"],
            [[f"{facts['logs']:,}", f"{measured.operations:,}", f"{rate:,.0f}", *shown, measured.errors]],
        )
        print_line(f"processor time per entry: {in_words(facts['processor_us_per_entry'], 'us')}")
        if "idle_share" in facts:
            print_line(f"idle, of a core: {in_words(facts['idle_share'], '%', scale=100, digits=2)}")
        steps = {
            "create": "create", "lead": "lead", "first add": "first_add", "follow": "follow",
            "last entries to followers": "catch_up",
            "close followers": "close_followers", "close leaders": "close_leaders",
        }  # fmt: skip
        seconds = {title: facts.get(f"{name}_seconds") for title, name in steps.items()}
        print_line(in_words(seconds, "s", digits=2))
    if measured.first_error is not None:
        print_error(f"adds that failed: {measured.errors:,}; the first error: {describe(measured.first_error)}")
        return EXIT_FAILURE
    return EXIT_OK
