"""``octavo bench log``: adds through a log beside adds to a plain ledger, adds while the log is rolled, and the time
that a failover takes."""

# ruff: noqa: PLR0917 - the parameters of a command are its options, given by name

import os
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo.cli.event_loop import finish
from octavo.cli.ledger.options import AckQuorumOption, EnsembleOption, WriteQuorumOption
from octavo.cli.session import CommandError, Session, command, describe, number
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from octavo.client.client import Client

WARM_UP_SECONDS = 0.5


class Layout(StrEnum):
    """How the log is stored."""

    CHAIN = "chain"
    STREAM = "stream"


def register(app: typer.Typer) -> None:
    """Add the command to the group ``bench``."""
    command(app, "log")(bench_log)


async def bench_log(
    session: Session,
    entry_size: Annotated[
        int,
        typer.Option("--entry-size", metavar="BYTES", min=0, max=ENTRY_PAYLOAD_BYTES_MAX, help="Payload of an entry."),
    ] = 1024,
    duration: Annotated[
        float,
        typer.Option(
            "--duration", metavar="SECONDS", min=0.001, callback=number, help="How long each measurement takes."
        ),
    ] = 3.0,
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds", metavar="N", min=1, help="Number of rounds; each measures the log and a plain ledger."
        ),
    ] = 5,
    in_flight: Annotated[
        int, typer.Option("--in-flight", metavar="N", min=1, max=1_000_000, help="Maximum number of outstanding adds.")
    ] = 1000,
    rolls: Annotated[
        int, typer.Option("--rolls", metavar="N", min=0, help="Rolls during which adds are timed; 0: none.")
    ] = 20,
    roll_rate: Annotated[
        float,
        typer.Option("--roll-rate", metavar="N", min=1, callback=number, help="Adds a second while the log is rolled."),
    ] = 1000.0,
    failovers: Annotated[
        int, typer.Option("--failovers", metavar="N", min=0, help="Leaders killed with SIGKILL; 0: none.")
    ] = 3,
    lease_seconds: Annotated[
        float,
        typer.Option("--lease-seconds", metavar="N", min=0.1, callback=number, help="The lease of the leaders' lock."),
    ] = 2.0,
    layout: Annotated[
        Layout, typer.Option("--layout", metavar="LAYOUT", help="How the log is stored: stream or chain.")
    ] = Layout.STREAM,
    ensemble: EnsembleOption = 3,
    write_quorum: WriteQuorumOption = 3,
    ack_quorum: AckQuorumOption = 2,
) -> None:
    """Measure adds through a log, its rolls, and failovers.

    Each round measures adds through the log and adds to a plain ledger: their rates, and the processor time that this
    process uses for one add.

    Then adds are started at a steady rate, first without rolls, then while the log is rolled ten times a second. The
    latency of an add is measured from the time at which it was due.

    A failover lasts from the kill of the leading process, which has adds in flight, to the first acknowledged add of a
    standby that waits for the lead. It consists of the rest of the lease, the takeover (of a chain: recovery of the
    last segments, creation of a new one; of a stream: recovery of the last term), and the add. The command deletes the
    logs and ledgers that it has created.
    """
    from octavo.cli.bench.failover import measure_failover  # noqa: PLC0415
    from octavo.cli.bench.rolls import measure_rolls  # noqa: PLC0415
    from octavo.cli.output import progress_bar  # noqa: PLC0415

    import octavo  # noqa: PLC0415 - `octavo --help` does without

    shape = (ensemble, write_quorum, ack_quorum)
    payload = os.urandom(entry_size)
    rates: dict[str, list[float]] = {"log": [], "ledger": []}
    processor: dict[str, list[float]] = {"log": [], "ledger": []}
    rolled: dict[str, float | int] = {}
    failed_over: list[dict[str, float]] = []
    async with (
        await session.connect(lease_seconds=lease_seconds) as client,
        _temporary_log(client, shape, layout) as name,
        client.open_log(name) as log,
    ):
        with progress_bar("measuring", rounds + failovers) as progress:
            for number in range(rounds):
                order = sorted(rates, reverse=bool(number % 2))
                for what in order:
                    if what == "log":
                        async with log.lead() as writer:
                            rate, cost = await _measure_adds(partial(writer.add, payload), duration, in_flight)
                    else:
                        async with client.create_ledger(*shape) as ledger:
                            rate, cost = await _measure_adds(partial(ledger.add, payload), duration, in_flight)
                        await client.delete_ledger(ledger.id)
                    rates[what].append(rate)
                    processor[what].append(cost)
                progress(number + 1)
            if rolls:
                rolled = await measure_rolls(log, roll_rate, rolls, payload)
            for number in range(failovers):
                try:
                    failed_over.append(await measure_failover(session, log, lease_seconds, payload))
                except octavo.OctavoError as error:
                    raise CommandError(f"failover {number + 1}: {describe(error)}") from error
                progress(rounds + number + 1)
    facts = {"entry_size": entry_size, "in_flight": in_flight, "lease_s": lease_seconds, "layout": layout.value}
    _report(session, rates, processor, rolled, failed_over, facts)


@asynccontextmanager
async def _temporary_log(client: "Client", shape: Sequence[int], layout: Layout) -> AsyncIterator[str]:
    name = f"octavo-bench/{os.urandom(6).hex()}"
    await (await client.create_log(name, *shape, layout=layout.value)).close()
    try:
        yield name
    finally:
        await finish(client.delete_log(name))


async def _measure_adds(add: Any, seconds: float, in_flight: int) -> tuple[float, float]:
    """Adds a second, and seconds of this process's processor time for each."""
    from octavo.cli.bench.load import Extent, closed_loop  # noqa: PLC0415

    await closed_loop([add], Extent(None, min(seconds, WARM_UP_SECONDS)), in_flight, _quiet)
    processor_began = time.process_time()
    measured = await closed_loop([add], Extent(None, seconds), in_flight, _quiet)
    if measured.first_error is not None:
        raise measured.first_error
    processor_seconds = time.process_time() - processor_began
    return measured.operations / measured.seconds, processor_seconds / max(1, measured.operations)


def _quiet(done: float, note: str = "") -> None:
    pass


def _report(
    session: Session,
    rates: dict[str, list[float]],
    processor: dict[str, list[float]],
    rolled: dict[str, float | int],
    failovers: list[dict[str, float]],
    facts: dict[str, Any],
) -> None:
    from octavo.cli.output import print_json, print_line, print_table  # noqa: PLC0415

    ratios = [log / ledger for log, ledger in zip(rates["log"], rates["ledger"], strict=True)]
    costs = {what: round(statistics.median(seconds) * 1e6, 2) for what, seconds in processor.items()}
    result = {
        "log_entries_per_second": round(statistics.median(rates["log"]), 1),
        "ledger_entries_per_second": round(statistics.median(rates["ledger"]), 1),
        "ratio": round(statistics.median(ratios), 4),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "log_processor_us": costs["log"],
        "ledger_processor_us": costs["ledger"],
        "rolled": rolled,
        "failovers_s": [{part: round(seconds, 4) for part, seconds in one.items()} for one in failovers],
        **facts,
    }
    if session.as_json:
        print_json(result)
        return
    print_table(
        ["", "adds/s", "least", "most", "processor us/add"],
        [
            (what, *(f"{rate:,.0f}" for rate in (statistics.median(several), min(several), max(several))), costs[what])
            for what, several in rates.items()
        ],
    )
    print_line(
        f"log to ledger: {result['ratio']:.3f} (median of {len(ratios)} rounds, {min(ratios):.3f} to {max(ratios):.3f})"
    )
    if rolled:
        print_line("")
        print_table(
            [f"{rolled['adds_per_second']:,.0f} adds/s", "p50 ms", "p99 ms", "longest ms"],
            [
                (title, *(f"{rolled[f'{name}_{what}_ms']:.2f}" for what in ("p50", "p99", "max")))
                for title, name in (("without rolls", "without"), (f"{rolled['rolls']} rolls", "with_rolls"))
            ],
        )
        print_line(f"longest roll: {rolled['roll_ms_max']:.1f} ms")
    if failovers:
        print_line("")
        print_table(
            ["failover", "total s", "lease s", "takeover s", "first add s"],
            [
                (number, *(f"{one[part]:.3f}" for part in ("total", "lease", "takeover", "first_add")))
                for number, one in enumerate(failovers, 1)
            ],
        )
