"""Measure what a further bookie on a host costs: memory and processor time of clusters of 2, 4 and 8 bookies.

more_bookies.py [--bookies 2 4 8] [--entries 40000] [--idle-seconds 30]

Each cluster stores the same entries of 1 KiB, two copies of each, in 16 ledgers over all of its bookies. Printed for
each: the memory of a bookie after its start and after the load (private pages, and its part of pages that processes
share), the processor time of its start, of a second without work, and of a copy of an entry beyond that, and that of
an entry in the client.

Processor time and memory hardly depend on what else the machine does. Rates and latencies do, and are not measured.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from local_cluster import Cluster, temporary_cluster

import octavo

LEDGERS, IN_FLIGHT, COPIES, ENTRY_BYTES = 16, 16, 2, 1024

_TICKS = os.sysconf("SC_CLK_TCK")


class Used(NamedTuple):
    """Memory in bytes and processor time in seconds of some processes."""

    memory: int
    seconds: float


def used_by(pids: Sequence[int]) -> Used:
    """The sum over these processes."""
    memory, seconds = 0, 0.0
    for pid in pids:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        memory += next(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        seconds += (int(fields[11]) + int(fields[12])) / _TICKS
    return Used(memory, seconds)


async def load(uri: str, entries: int) -> float:
    """Store the entries; the processor time of this process."""
    payload, before = os.urandom(ENTRY_BYTES), time.process_time()
    async with octavo.connect(uri) as client:

        async def one_ledger() -> None:
            async with client.create_ledger(COPIES, COPIES, COPIES) as ledger:
                for _ in range(entries // (LEDGERS * IN_FLIGHT)):
                    await asyncio.gather(*(ledger.add(payload) for _ in range(IN_FLIGHT)))

        await asyncio.gather(*(one_ledger() for _ in range(LEDGERS)))
    return time.process_time() - before


def measure(cluster: Cluster, bookies: int, entries: int, idle_seconds: float) -> str:
    """One row of the table."""
    ready = cluster.wait_for("ready")
    pids = [int(bookie["pid"]) for bookie in ready["bookies"]]
    started = used_by(pids)
    time.sleep(idle_seconds)
    idle = used_by(pids)
    idle_share = (idle.seconds - started.seconds) / idle_seconds
    begun = time.monotonic()
    client_seconds = asyncio.run(load(ready["metadata"], entries))
    loaded = used_by(pids)
    worked = loaded.seconds - idle.seconds - idle_share * (time.monotonic() - begun)
    copies = entries * COPIES
    cells: list[Any] = [
        bookies,
        f"{started.memory / bookies / 1e6:.0f} MB",
        f"{loaded.memory / bookies / 1e6:.0f} MB",
        f"{started.seconds / bookies:.2f} s",
        f"{1000 * idle_share / bookies:.1f} ms",
        f"{1e6 * worked / copies:.1f} µs",
        f"{1e6 * client_seconds / entries:.1f} µs",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bookies", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--entries", type=int, default=40_000)
    parser.add_argument("--idle-seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    print("| bookies | memory at start | after the load | start | a second idle | a copy | an entry, client |")
    print("|---|---|---|---|---|---|---|")
    for bookies in arguments.bookies:
        with temporary_cluster(bookies=bookies) as cluster:
            print(measure(cluster, bookies, arguments.entries, arguments.idle_seconds), flush=True)


if __name__ == "__main__":
    main()
