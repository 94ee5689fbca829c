"""``octavo bench create``: measures how fast ledgers are created, compared with what the metadata store can do."""

# ruff: noqa: PLR0917 - the parameters of a command are its options, given by name

import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from octavo.cli.ledger.options import AckQuorumOption, EnsembleOption, WriteQuorumOption
from octavo.cli.session import EXIT_FAILURE, EXIT_OK, Session, command, print_error

KeepOption = Annotated[bool, typer.Option("--keep", help="Close the ledgers afterwards, but do not delete them.")]
ClientsOption = Annotated[
    int, typer.Option("--clients", metavar="N", min=1, max=64, help="Number of client processes.")
]
InFlightOption = Annotated[
    int,
    typer.Option(
        "--in-flight", metavar="N", min=1, max=1000, help="Maximum number of outstanding creations in each client."
    ),
]

YARDSTICKS: Mapping[str, tuple[str, str, str]] = {
    "nodes": ("raw_creates_per_second", "ratio_to_raw", "bare nodes of the same size"),
    "transactions": ("raw_in_transactions_per_second", "ratio_to_raw_in_transactions", "bare nodes in transactions"),
}
"""What the creation of ledgers is compared with in ZooKeeper: key of the rate, key of the ratio, and a description."""


def register(app: typer.Typer) -> None:
    """Add the command, and the hidden one that its client processes run, to the group ``bench``."""
    command(app)(create)
    command(app, "create-client", hidden=True)(create_client)


async def create(
    session: Session,
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, help="Number of ledgers in all.")] = 6000,
    rounds: Annotated[
        int,
        typer.Option("--rounds", metavar="N", min=1, help="Number of rounds. The result is the median of the rounds."),
    ] = 3,
    clients: ClientsOption = 2,
    in_flight: InFlightOption = 200,
    ensemble: EnsembleOption = 3,
    write_quorum: WriteQuorumOption = 3,
    ack_quorum: AckQuorumOption = 2,
    keep: KeepOption = False,
) -> int:
    """Measure how fast ledgers are created.

    Each client process creates many ledgers at the same time. With metadata in ZooKeeper, each round is followed by two
    rounds that create bare nodes of the same size: with one request per node, and with many nodes in one transaction.
    The ratios show the cost that Octavo adds.
    """
    from octavo.cli.bench.client_processes import ask_all, client_processes  # noqa: PLC0415 - `octavo --help` does without
    from octavo.cli.output import progress_bar  # noqa: PLC0415

    shape = {"ensemble_size": ensemble, "write_quorum": write_quorum, "ack_quorum": ack_quorum}
    load = {"number": max(1, count // rounds // clients), "in_flight": in_flight}
    yardsticks = YARDSTICKS if session.metadata_uri.startswith(("zk://", "zk+tls://")) else {}
    measured: dict[str, list[list[dict[str, Any]]]] = {what: [] for what in ("ledgers", *yardsticks)}
    sizes = zip("EWA", shape.values(), strict=True)
    arguments = ["create-client", *(text for option, size in sizes for text in (f"-{option}", str(size)))]
    if keep:
        arguments.append("--keep")
    async with client_processes(session, [arguments] * clients) as processes:
        with progress_bar("creating", rounds) as progress:
            for number in range(rounds):
                for what, answers in measured.items():
                    answers.append(await ask_all(processes, do=what, **load))
                    if what == "ledgers":
                        await ask_all(processes, do="clean")
                progress(number + 1)
    return _report(session, measured, {"clients": clients, "in_flight": in_flight, **shape}, load["number"] * clients)


async def create_client(
    session: Session,
    ensemble: EnsembleOption = 3,
    write_quorum: WriteQuorumOption = 3,
    ack_quorum: AckQuorumOption = 2,
    keep: KeepOption = False,
) -> int:
    """One client of `octavo bench create`, which controls it through standard input and output."""
    from octavo.cli.bench.create_client import serve  # noqa: PLC0415

    shape = {"ensemble_size": ensemble, "write_quorum": write_quorum, "ack_quorum": ack_quorum}
    return await serve(session, shape, keep=keep)


def seconds_of(answers: Sequence[Mapping[str, Any]]) -> float:
    """Time from the start of the first client to the end of the last one."""
    return float(max(answer["ended"] for answer in answers) - min(answer["begun"] for answer in answers))


def _report(
    session: Session, measured: Mapping[str, Sequence[Sequence[dict[str, Any]]]], facts: dict[str, int], nodes: int
) -> int:
    from octavo.cli.bench.histogram import Histogram  # noqa: PLC0415
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    answers = [answer for answers in measured["ledgers"] for answer in answers]
    histogram = Histogram()
    histogram.merge(Histogram.from_fields(answer["latencies"]) for answer in answers)
    made = [sum(answer["operations"] for answer in answers) for answers in measured["ledgers"]]
    seconds = [seconds_of(answers) for answers in measured["ledgers"]]
    rates = [number / took for number, took in zip(made, seconds, strict=True)]
    latency = {name: histogram.percentile(part) for name, part in (("p50", 50), ("p99", 99), ("p99_9", 99.9))}
    latencies = {
        name: None if value is None else round(value * 1000.0, 4)
        for name, value in {**latency, "max": histogram.max}.items()
    }
    errors = sum(answer["errors"] for answer in answers)
    result: dict[str, Any] = {
        "ledgers": sum(made),
        "seconds": round(sum(seconds), 6),
        "ledgers_per_second": round(statistics.median(rates), 1),
    }
    for what, (rate_key, ratio_key, _) in YARDSTICKS.items():
        raw = [nodes / seconds_of(answers) for answers in measured.get(what, ())]
        ratios = [rate / raw_rate for rate, raw_rate in zip(rates, raw, strict=False)]
        result[rate_key] = round(statistics.median(raw), 1) if raw else None
        result[ratio_key] = round(statistics.median(ratios), 3) if ratios else None
    result |= {"latency_ms": latencies, "errors": errors, **facts}
    if session.as_json:
        print_json(result)
    else:
        print_line(f"ledgers created: {result['ledgers']:,}, {result['ledgers_per_second']:,} a second")
        print_line("latency " + ", ".join(f"{name} {value} ms" for name, value in latencies.items()))
        for what, (rate_key, ratio_key, name) in YARDSTICKS.items():
            if what in measured:
                print_line(f"{name}: {result[rate_key]:,} a second; ledgers at {result[ratio_key]} of that")
    if errors:
        first = next(answer["first_error"] for answer in answers if answer["first_error"] is not None)
        print_error(f"creations that failed: {errors:,}; the first error: {first}")
        return EXIT_FAILURE
    return EXIT_OK
