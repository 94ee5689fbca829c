"""The benchmark suite: a fresh three-bookie cluster on this machine, and each case of docs/performance.md on it.

bench.py [--seconds 5] [--data-dir DIR]
"""

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from local_cluster import add_data_dir, temporary_cluster

WRITES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("add 100 B, 1,000 in flight", ("--entry-size", "100")),
    ("add 1 KiB, 1,000 in flight", ("--entry-size", "1024")),
    ("add 100 B, 1 in flight", ("--entry-size", "100", "--in-flight", "1")),
    ("add 100 B at 10,000/s", ("--entry-size", "100", "--rate", "10000")),
    ("add 1 KiB at 5,000/s", ("--rate", "5000", "--in-flight", "50000")),
    ("add 1 KiB at 20,000/s", ("--rate", "20000", "--in-flight", "50000")),
    ("add 1 KiB at 50,000/s", ("--rate", "50000", "--in-flight", "50000")),
    ("add 100 B, 1,000 in flight, 100 ledgers", ("--entry-size", "100", "--ledgers", "100")),
    ("add_many 100 x 100 B", ("--entry-size", "100", "--batch", "100", "--in-flight", "10000")),
    ("add 64 KiB, 100 in flight", ("--entry-size", "65536", "--in-flight", "100")),
)


def bench(uri: str, *arguments: str) -> dict[str, Any]:
    """The JSON that one ``octavo bench`` prints. Its errors go to standard error."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "octavo.cli.main", "bench", *arguments, "--json"],
        env={**os.environ, "OCTAVO_METADATA": uri},
        stdout=subprocess.PIPE,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def show(name: str, result: dict[str, Any]) -> None:
    """Print one row of the table."""
    latency = result["latency_ms"]
    times = " | ".join(f"{latency[key]:,.2f}" for key in ("p50", "p99", "p99_9", "max"))
    rate, megabytes = result["entries_per_second"], result["megabytes_per_second"]
    print(f"| {name} | {rate:,.0f} | {megabytes:,.1f} | {times} |", flush=True)


def main() -> int:
    """Run the suite. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each write case")
    add_data_dir(parser)
    arguments = parser.parse_args()
    with temporary_cluster(arguments.data_dir) as cluster:
        uri = cluster.wait_for("ready")["metadata"]
        print("| case | entries/s | MB/s | p50 ms | p99 ms | p99.9 ms | max ms |\n|---|---|---|---|---|---|---|")
        read_back: list[str] = []
        for name, options in WRITES:
            written = bench(uri, "write", "--duration", str(arguments.seconds), *options)
            show(name, written)
            if name.startswith("add 1 KiB"):
                read_back = [str(ledger_id) for ledger_id in written["ledger_ids"]]
        show("read 1 KiB in order", bench(uri, "read", *read_back))
        show(
            "read 1 KiB at random, 100 in flight",
            bench(uri, "read", "--random", "--in-flight", "100", "--duration", str(arguments.seconds), *read_back),
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
