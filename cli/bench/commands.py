"""``octavo bench``: measures throughput and latency of a cluster."""

# ruff: noqa: PLR0917 - the parameters of a command are its options, given by name

import os
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo.cli.bench import create as bench_create
from octavo.cli.bench import disk as bench_disk
from octavo.cli.bench import followers as bench_followers
from octavo.cli.bench import log as bench_log
from octavo.cli.bench import logs as bench_logs
from octavo.cli.bench import memory as bench_memory
from octavo.cli.bench.ledgers import Shape, open_ledgers
from octavo.cli.bench.processes import Processes, grown, in_words, processor_per_entry
from octavo.cli.ledger.options import (
    AckQuorumOption,
    DigestName,
    DigestOption,
    EnsembleOption,
    SyncName,
    SyncOption,
    WriteQuorumOption,
)
from octavo.cli.session import (
    EXIT_FAILURE,
    EXIT_OK,
    CommandError,
    PasswordFileOption,
    Session,
    command,
    describe,
    number,
    print_error,
    read_password,
)
from octavo.protocol.errors import InvalidArgumentError, LedgerKindError, NoSuchLedgerError
from octavo.protocol.ids import ID_MAX
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from octavo.cli.bench.load import Extent, Measurement, Operation
    from octavo.client.client import Client
    from octavo.client.read.reader import LedgerReader
    from octavo.client.write.writer import LedgerWriter

app = typer.Typer(name="bench", help="Measure throughput and latency.", no_args_is_help=True)

DURATION_SECONDS_DEFAULT = 10.0

LEDGERS_NAMED_MAX = 20
"""Ledgers that a table is followed by one by one; JSON names all."""

DurationOption = Annotated[
    float | None,
    typer.Option(
        "--duration", metavar="SECONDS", min=0.001, callback=number, help="Time to measure. The default is 10 seconds."
    ),
]
CountOption = Annotated[
    int | None,
    typer.Option("--count", metavar="N", min=1, help="Number of entries to measure, instead of --duration."),
]
InFlightOption = Annotated[
    int,
    typer.Option("--in-flight", metavar="N", min=1, max=1_000_000, help="Maximum number of outstanding operations."),
]
RateOption = Annotated[
    float | None,
    typer.Option(
        "--rate",
        metavar="N",
        min=0.001,
        callback=number,
        help="Start this number of operations per second. The latency of an operation is then measured from the time at"
        " which it was due.",
    ),
]


@command(app)
async def write(
    session: Session,
    entry_size: Annotated[
        int,
        typer.Option(
            "--entry-size", metavar="BYTES", min=0, max=ENTRY_PAYLOAD_BYTES_MAX, help="Payload bytes of an entry."
        ),
    ] = 1024,
    duration: DurationOption = None,
    count: CountOption = None,
    in_flight: InFlightOption = 1000,
    rate: RateOption = None,
    ledgers: Annotated[
        int,
        typer.Option("--ledgers", metavar="N", min=1, max=100_000, help="Number of ledgers written at the same time."),
    ] = 1,
    batch: Annotated[
        int,
        typer.Option(
            "--batch",
            metavar="N",
            min=1,
            max=100_000,
            help="Entries per call of add_many. With 1, each entry is added by a call of its own.",
        ),
    ] = 1,
    warm_up: Annotated[
        float,
        typer.Option(
            "--warm-up",
            metavar="SECONDS",
            min=0,
            callback=number,
            help="Time of the same load on other ledgers before measuring.",
        ),
    ] = 1.0,
    ensemble: EnsembleOption = 3,
    write_quorum: WriteQuorumOption = 3,
    ack_quorum: AckQuorumOption = 2,
    digest: DigestOption = DigestName.CRC32C,
    password_file: PasswordFileOption = None,
    sync: SyncOption = SyncName.IMMEDIATE,
    frame_interval: Annotated[
        float,
        typer.Option(
            "--frame-interval",
            metavar="SECONDS",
            min=0,
            max=1,
            callback=number,
            help="Shortest time between frames with few adds: saves processor time at steady rates, for latency.",
        ),
    ] = 0.0,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the ledgers afterwards.")] = False,
) -> int:
    """Measure acknowledged adds.

    Without --batch, each add is a call of its own; without --rate, a task of its own awaits it. The adds under way are
    dealt out evenly over --ledgers; if these are more, they take turns. The command prints the ids of the new ledgers
    and keeps them, so that `octavo bench read` can read them.

    It also prints the processor time of an entry: that of the client, and, with `octavo up` on this machine, that of
    each bookie and of all processes.
    """
    from octavo.cli.bench.garbage import collect_seldom  # noqa: PLC0415
    from octavo.cli.bench.load import Extent  # noqa: PLC0415
    from octavo.cli.output import progress_bar  # noqa: PLC0415

    extent = _extent(duration, count, batch)
    payload = os.urandom(entry_size)
    parallel = max(1, in_flight // batch)
    shape = Shape(ensemble, write_quorum, ack_quorum, digest, read_password(password_file), sync)

    def operation(writer: "LedgerWriter") -> "Operation":
        if batch > 1:
            return partial(writer.add_many, [payload] * batch)
        return partial(writer.add if rate is None else writer.add_nowait, payload)

    async with await session.connect(frame_interval_seconds=frame_interval) as client:
        processes = Processes.of(session)
        opened = partial(open_ledgers, client, ledgers, shape)
        if warm_up:
            async with opened(keep=False) as writers:
                with progress_bar("warming up", 1) as progress:
                    await _run([*map(operation, writers)], Extent(None, warm_up), parallel, rate, batch, progress)
        async with opened(keep=not delete) as writers:
            collect_seldom()
            with progress_bar("writing", 1) as progress:
                before = processes.processor_seconds()
                measured = await _run([*map(operation, writers)], extent, parallel, rate, batch, progress)
                spent = grown(before, processes.processor_seconds())
        facts = {
            "ledger_ids": [writer.id for writer in writers],
            "entry_size": entry_size,
            "in_flight": in_flight,
            "batch": batch,
            **shape.sizes,
            "sync": sync.value,
            "frame_interval_seconds": frame_interval,
            "processor_us_per_entry": processor_per_entry(spent, measured.operations * batch),
            **await _client_cost(measured, rate, batch),
        }
    return _report(
        session, "write", measured, measured.operations * batch, measured.operations * batch * entry_size, facts
    )


@command(app)
async def read(
    session: Session,
    ledger_ids: Annotated[
        list[int] | None, typer.Argument(metavar="ID...", min=0, max=ID_MAX, help="Ids of the ledgers to read.")
    ] = None,
    ledgers: Annotated[
        int | None,
        typer.Option(
            "--ledgers", metavar="N", min=1, max=10_000, help="Read the N newest closed ledgers that have entries."
        ),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            "--duration",
            metavar="SECONDS",
            min=0.001,
            callback=number,
            help="Read for this time, from the beginning again after the end of a ledger.",
        ),
    ] = None,
    count: CountOption = None,
    scattered: Annotated[
        bool, typer.Option("--random", help="Read single entries in random order instead of all entries in order.")
    ] = False,
    in_flight: InFlightOption = 1000,
    rate: RateOption = None,
    warm_up: Annotated[
        float,
        typer.Option(
            "--warm-up", metavar="SECONDS", min=0, callback=number, help="Time of the same load before measuring."
        ),
    ] = 0.0,
    password_file: PasswordFileOption = None,
) -> int:
    """Measure reads.

    By default the command reads each ledger once from its first to its last entry, all ledgers at the same time, and
    the latency of an entry is the time for which its reader waited. With --random or --rate it reads single entries,
    with up to --in-flight outstanding reads, and the latency is the time of a read.
    """
    from octavo.cli.bench.load import Extent  # noqa: PLC0415
    from octavo.cli.output import progress_bar  # noqa: PLC0415

    if bool(ledger_ids) == (ledgers is not None):
        raise InvalidArgumentError("give either the ids of ledgers or --ledgers N")
    scattered = scattered or rate is not None
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(await session.connect())
        chosen = ledger_ids or await _newest_ledgers(client, ledgers or 0)
        password = read_password(password_file)
        readers = [
            await stack.enter_async_context(client.open_ledger(ledger_id, password=password, recover=False))
            for ledger_id in chosen
        ]
        for reader in readers:
            if reader.last_add_confirmed is None:
                raise CommandError(f"ledger {reader.id} has no entries to read")
        extents = [Extent(None, warm_up)] if warm_up else []
        if scattered:
            extents.append(_extent(duration, count, 1))
        else:
            extents.append(_scan_extent(readers, duration, count))
        for extent in extents:
            with progress_bar("reading", 1) as progress:
                sizes = [0]
                if scattered:
                    operations = [_read_at_random(reader, sizes) for reader in readers]
                    measured = await _run(operations, extent, in_flight, rate, 1, progress)
                else:
                    measured = await _scan(readers, extent, sizes, progress)
        facts = {"ledger_ids": chosen, "mode": "random" if scattered else "sequential"}
        facts |= await _client_cost(measured, rate, 1)
    return _report(session, "read", measured, measured.operations, sizes[0], facts)


async def _newest_ledgers(client: "Client", number: int) -> list[int]:
    import octavo  # noqa: PLC0415

    ledger_ids = [ledger_id async for ledger_id in client.list_ledgers()]
    chosen: list[int] = []
    for ledger_id in reversed(ledger_ids):
        try:
            metadata = await client.ledger_metadata(ledger_id)
        except (NoSuchLedgerError, LedgerKindError):
            continue
        if metadata.state is octavo.LedgerState.CLOSED and metadata.last_entry_id is not None:
            chosen.append(ledger_id)
            if len(chosen) == number:
                return chosen
    raise CommandError(
        f"there are only {len(chosen)} closed ledgers with entries, not {number} (logs that are streams are not read)"
    )


def _read_at_random(reader: "LedgerReader", sizes: list[int]) -> "Operation":
    entries = (reader.last_add_confirmed or 0) + 1
    rng = random.Random(reader.id)

    async def read_one() -> None:
        entry_id = rng.randrange(entries)
        (entry,) = await reader.read(entry_id, entry_id)
        sizes[0] += len(entry.payload)

    return read_one


def _scan_extent(readers: Sequence["LedgerReader"], duration: float | None, count: int | None) -> "Extent":
    from octavo.cli.bench.load import Extent  # noqa: PLC0415

    if duration is not None and count is not None:
        raise InvalidArgumentError("give either --duration or --count")
    if duration is not None:
        return Extent(None, duration)
    return Extent(count or sum((reader.last_add_confirmed or 0) + 1 for reader in readers), None)


async def _scan(readers: Sequence["LedgerReader"], extent: "Extent", sizes: list[int], progress: Any) -> "Measurement":
    from octavo.cli.bench.load import scan  # noqa: PLC0415

    def entries_of(reader: "LedgerReader") -> Any:
        return reader.entries(0, reader.last_add_confirmed)

    return await scan([partial(entries_of, reader) for reader in readers], extent, sizes, progress)


# --- both ------------------------------------------------------------------------------------------------------------


def _extent(duration: float | None, count: int | None, batch: int) -> "Extent":
    from octavo.cli.bench.load import Extent  # noqa: PLC0415

    if duration is not None and count is not None:
        raise InvalidArgumentError("give either --duration or --count")
    if count is None:
        return Extent(None, duration if duration is not None else DURATION_SECONDS_DEFAULT)
    if count % batch:
        raise InvalidArgumentError(f"--count {count} is not a multiple of --batch {batch}")
    return Extent(count // batch, None)


async def _run(
    operations: Sequence["Operation"], extent: "Extent", in_flight: int, rate: float | None, batch: int, progress: Any
) -> "Measurement":
    from octavo.cli.bench.load import closed_loop, open_loop  # noqa: PLC0415

    if rate is None:
        return await closed_loop(operations, extent, in_flight, progress)
    return await open_loop(operations, extent, in_flight, rate / batch, progress)


async def _client_cost(measured: "Measurement", rate: float | None, batch: int) -> dict[str, Any]:
    """The processor time that the client's process spent on an entry of an open loop, and the share of that which is
    the benchmark's own: finding what is due, timers, latencies."""
    from octavo.cli.bench.load import generator_seconds  # noqa: PLC0415

    if rate is None or not measured.operations:
        return {}
    own = await generator_seconds(rate / batch) * measured.operations
    return {
        "client_us_per_entry": round(1e6 * measured.processor_seconds / (measured.operations * batch), 2),
        "generator_share": round(min(1.0, own / measured.processor_seconds), 3),
    }


def _report(
    session: Session, kind: str, measured: "Measurement", entries: int, payload_bytes: int, facts: dict[str, Any]
) -> int:
    from octavo.cli.bench.load import latency_ms  # noqa: PLC0415
    from octavo.cli.output import print_json, print_line, print_table  # noqa: PLC0415

    latency = latency_ms(measured.histogram)
    result = {
        "entries": entries,
        "seconds": round(measured.seconds, 6),
        "entries_per_second": round(entries / measured.seconds, 1),
        "megabytes_per_second": round(payload_bytes / measured.seconds / 1e6, 3),
        "latency_ms": latency,
        "errors": measured.errors,
        "unsent": measured.unsent,
        **facts,
    }
    if session.as_json:
        print_json(result)
    else:
        shown = {key: "-" if value is None else f"{value:,.3f}" for key, value in latency.items()}
        print_table(
            ["entries", "seconds", "entries/s", "MB/s", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "errors"],
            [
                [
                    f"{entries:,}",
                    f"{measured.seconds:.2f}",
                    f"{entries / measured.seconds:,.0f}",
                    f"{payload_bytes / measured.seconds / 1e6:,.1f}",
                    shown["p50"],
                    shown["p99"],
                    shown["p99_9"],
                    shown["max"],
                    measured.errors,
                ]
            ],
        )
        print_line(f"{kind} of {_named(facts['ledger_ids'])}")
        if "processor_us_per_entry" in facts:
            print_line(f"processor time per entry: {in_words(facts['processor_us_per_entry'], 'us')}")
        if "generator_share" in facts:
            print_line(
                f"processor time of the client: {facts['client_us_per_entry']} us an entry; of it, making the load: "
                f"{facts['generator_share']:.0%}"
            )
    if measured.unsent:
        print_error(f"the cluster did not keep up: operations that were due and not started: {measured.unsent:,}")
    if measured.first_error is not None:
        print_error(f"operations that failed: {measured.errors:,}; the first error: {describe(measured.first_error)}")
        return EXIT_FAILURE
    return EXIT_OK


def _named(ledger_ids: Sequence[int]) -> str:
    """The ledgers in a line that can be read: of many only the first, the last, and how many they are."""
    if len(ledger_ids) <= LEDGERS_NAMED_MAX:
        return f"ledger {' '.join(map(str, ledger_ids))}"
    return f"{len(ledger_ids):,} ledgers, {min(ledger_ids)} to {max(ledger_ids)}"


bench_create.register(app)
bench_log.register(app)
bench_followers.register(app)
bench_logs.register(app)
bench_memory.register(app)
bench_disk.register(app)
