"""``octavo bench create``: how fast ledgers are made, beside what the metadata store can do at all."""

# ruff: noqa: PLR0917 - the parameters of a command are its options, given by name

import asyncio
import gc
import statistics
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo.cli.bench import BENCH_KEY, InFlightOption
from octavo.cli.ledger import AckQuorumOption, EnsembleOption, WriteQuorumOption
from octavo.cli.session import EXIT_FAILURE, EXIT_OK, Session, command, describe, finish, print_error
from octavo.protocol.errors import NoSuchLedgerError, OctavoError

if TYPE_CHECKING:
    from octavo.cli.load import Measurement
    from octavo.client.client import Client
    from octavo.client.writer import LedgerWriter

CLEAN_UP_AT_ONCE = 200
"""Ledgers closed and deleted at the same time afterwards."""


def register(app: typer.Typer) -> None:
    """Add the command to the group ``bench``."""
    command(app)(create)


async def create(
    session: Session,
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, help="Ledgers in all.")] = 6000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="In so many rounds; the median counts.")] = 3,
    in_flight: InFlightOption = 200,
    ensemble: EnsembleOption = 3,
    write_quorum: WriteQuorumOption = 3,
    ack_quorum: AckQuorumOption = 2,
    keep: Annotated[bool, typer.Option("--keep", help="Close the ledgers afterwards, but do not delete them.")] = False,
) -> int:
    """Measure how fast empty ledgers are created, many at a time.

    With metadata in ZooKeeper each round is followed by one of bare nodes of the same size in folders like those of
    ledgers, made by the same connection's code: what Octavo adds shows in the ratio.
    """
    from octavo.cli.load import Extent, closed_loop  # noqa: PLC0415 - `octavo --help` does without
    from octavo.cli.output import progress_bar  # noqa: PLC0415

    shape: dict[str, Any] = {"ensemble_size": ensemble, "write_quorum": write_quorum, "ack_quorum": ack_quorum}
    per_round = max(1, count // rounds)
    measured: list[Measurement] = []
    raw_seconds: list[float] = []
    async with await session.connect() as client:
        await _warm_up(client, shape)
        # What the program itself is made of does not change: going through it again and again is no part of either.
        gc.freeze()
        raw = await _raw(session.metadata_uri, client, shape)
        try:
            with progress_bar("creating", rounds) as progress:
                for number in range(rounds):
                    made: list[LedgerWriter] = []
                    operation = partial(_create, client, shape, made)
                    try:
                        measured.append(await closed_loop([operation], Extent(per_round, None), in_flight, _quiet))
                    finally:
                        await finish(_clean_up(client, made, keep=keep))
                    if raw is not None:
                        raw_seconds.append(await raw.measure(per_round, in_flight))
                    progress(number + 1)
        finally:
            if raw is not None:
                await finish(raw.close())
    return _report(session, measured, [per_round / seconds for seconds in raw_seconds], in_flight, shape)


def _quiet(done: float, note: str = "") -> None:
    """No progress within a round: it lasts a second or two."""


async def _create(client: "Client", shape: dict[str, Any], made: "list[LedgerWriter]") -> None:
    made.append(await client.create_ledger(**shape, custom_metadata={BENCH_KEY: b"create"}))


async def _warm_up(client: "Client", shape: dict[str, Any]) -> None:
    """A few ledgers before measuring: the client takes ledger ids in blocks that grow."""
    made: list[LedgerWriter] = []
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(CLEAN_UP_AT_ONCE):
                group.create_task(_create(client, shape, made))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        await finish(_clean_up(client, made, keep=False))


async def _raw(uri: str, client: "Client", shape: dict[str, Any]) -> Any:
    """What makes bare nodes where the metadata are in ZooKeeper; None elsewhere."""
    if not uri.startswith("zk://"):
        return None
    from octavo.metadata.model import encode_ledger  # noqa: PLC0415
    from octavo.metadata.zookeeper_measure import RawCreates  # noqa: PLC0415

    made: list[LedgerWriter] = []
    await _create(client, shape, made)
    raw = RawCreates(uri, len(encode_ledger(made[0].metadata)))
    await finish(_clean_up(client, made, keep=False))
    await raw.open()
    return raw


async def _clean_up(client: "Client", made: "list[LedgerWriter]", *, keep: bool) -> None:
    remaining = iter(made)

    async def work() -> None:
        for writer in remaining:
            try:
                await writer.close()
                if not keep:
                    await client.delete_ledger(writer.id)
            except NoSuchLedgerError:
                pass
            except OctavoError as error:
                print_error(f"ledger {writer.id} could not be cleaned up: {describe(error)}")

    async with asyncio.TaskGroup() as group:
        for _ in range(min(CLEAN_UP_AT_ONCE, len(made))):
            group.create_task(work())


def _report(
    session: Session, rounds: "list[Measurement]", raw: list[float], in_flight: int, shape: dict[str, Any]
) -> int:
    from octavo.cli.histogram import Histogram  # noqa: PLC0415
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    histogram = Histogram()
    histogram.merge(measured.histogram for measured in rounds)
    rates = [measured.operations / measured.seconds for measured in rounds]
    ratios = [rate / raw_rate for rate, raw_rate in zip(rates, raw, strict=False)]
    latency = {name: histogram.percentile(part) for name, part in (("p50", 50), ("p99", 99), ("p99_9", 99.9))}
    errors = sum(measured.errors for measured in rounds)
    latencies = {
        name: None if seconds is None else round(seconds * 1000.0, 4)
        for name, seconds in {**latency, "max": histogram.max}.items()
    }
    result = {
        "ledgers": sum(measured.operations for measured in rounds),
        "seconds": round(sum(measured.seconds for measured in rounds), 6),
        "ledgers_per_second": round(statistics.median(rates), 1),
        "raw_creates_per_second": round(statistics.median(raw), 1) if raw else None,
        "ratio_to_raw": round(statistics.median(ratios), 3) if ratios else None,
        "latency_ms": latencies,
        "errors": errors,
        "in_flight": in_flight,
        **shape,
    }
    if session.as_json:
        print_json(result)
    else:
        print_line(f"{result['ledgers']:,} ledgers created, {result['ledgers_per_second']:,} a second")
        print_line("latency " + ", ".join(f"{name} {value} ms" for name, value in latencies.items()))
        if raw:
            print_line(
                f"bare nodes of the same size: {result['raw_creates_per_second']:,} a second; "
                f"ledgers at {result['ratio_to_raw']} of that"
            )
    if errors:
        first = next(measured.first_error for measured in rounds if measured.first_error is not None)
        print_error(f"{errors} creations failed, the first with: {describe(first)}")
        return EXIT_FAILURE
    return EXIT_OK
