"""``octavo bench memory``: what many open ledgers, led logs and followed logs take, in the client and in bookies."""

# ruff: noqa: PLR0917 - the parameters of a command are its options, given by name

import gc
import os
import tracemalloc
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from octavo.cli.bench.ledgers import Shape, open_ledgers, run_each
from octavo.cli.bench.log import Layout
from octavo.cli.bench.logs import EntrySizeOption, LayoutOption
from octavo.cli.bench.processes import CLIENT, Processes
from octavo.cli.ledger.options import AckQuorumOption, EnsembleOption, WriteQuorumOption
from octavo.cli.session import Session, command

WARM_UP = 10
"""Logs and ledgers that are opened and put away first, so that what a client makes once is not counted."""


def register(app: typer.Typer) -> None:
    """Add the command to the group ``bench``."""
    command(app, "memory")(bench_memory)


async def bench_memory(
    session: Session,
    count: Annotated[
        int, typer.Option("--count", metavar="N", min=1, max=100_000, help="Number of ledgers, and of logs.")
    ] = 1000,
    entry_size: EntrySizeOption = 100,
    layout: LayoutOption = Layout.STREAM,
    ensemble: EnsembleOption = 3,
    write_quorum: WriteQuorumOption = 3,
    ack_quorum: AckQuorumOption = 2,
) -> None:
    """Measure the memory of open ledgers, led logs and followed logs.

    The command opens many ledgers and adds an entry to each, then does the same with logs, and at last follows these
    logs with another client. Each time it counts how much more Python's objects take in its own process (by
    tracemalloc), and how much more anonymous memory each bookie has, for one ledger or log. The pages of a bookie's
    cache that the entries fill are among that: choose small entries, and many of them.

    Figures of bookies need `octavo up` on this machine. The command deletes its ledgers and logs.
    """
    from octavo.cli.bench.many_logs import many_logs  # noqa: PLC0415 - `octavo --help` does without
    from octavo.cli.output import print_json, print_line, print_table  # noqa: PLC0415

    payload = os.urandom(entry_size)
    shape = Shape(ensemble, write_quorum, ack_quorum)
    processes = Processes.of(session)
    taken: dict[str, dict[str, float]] = {}

    def growth(before: Mapping[str, int]) -> dict[str, int]:
        return {name: now - before[name] for name, now in _memory(processes).items()}

    async def measure(number: int) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        before = _memory(processes)
        async with open_ledgers(leader, number, shape, keep=False) as writers:
            await run_each(lambda writer: writer.add(payload), writers)
            found["open ledger"] = growth(before)
        async with many_logs((leader, follower), number, shape, layout) as many:
            before = _memory(processes)
            await many.create()
            await many.lead()
            await many.add_to_each(payload)
            found["led log"] = growth(before)
            before = _memory(processes)
            await many.follow()
            await many.received.wait_for(number)
            found["followed log"] = growth(before)
        return found

    async with await session.connect() as leader, await session.connect() as follower:
        tracemalloc.start()
        try:
            await measure(WARM_UP)
            taken = _each(await measure(count), count)
        finally:
            tracemalloc.stop()
    if session.as_json:
        facts: dict[str, Any] = {"count": count, "entry_size": entry_size, "layout": layout.value, **shape.sizes}
        print_json({"bytes_each": {what.replace(" ", "_"): figures for what, figures in taken.items()}, **facts})
        return
    names = list(next(iter(taken.values())))
    print_table(
        ["bytes for one", *names],
        [[what, *(f"{figures[name]:,.0f}" for name in names)] for what, figures in taken.items()],
    )
    print_line(f"with {count:,} of each")


def _memory(processes: Processes) -> dict[str, int]:
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    return {**processes.anonymous_bytes(), CLIENT: used}


def _each(grown: Mapping[str, Mapping[str, int]], count: int) -> dict[str, dict[str, float]]:
    """The growth for one of ``count``."""
    return {
        what: {name: round(more / count, 1) for name, more in processes.items()} for what, processes in grown.items()
    }
