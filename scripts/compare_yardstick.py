"""Octavo beside the yardstick (scripts/yardstick.py), in alternating runs on the same machine.

    compare_yardstick.py [--rounds 5] [--data-dir DIR]

Each round starts three bookies of the yardstick on empty folders, measures, stops them, and then does the same with
Octavo through ``octavo up`` and ``octavo bench write``. The two never run at the same time, and they alternate, so that
a noisy machine is equally unfair to both. The medians over all rounds and their ratio are printed as a table.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from local_cluster import TIME_SECONDS_MAX, Cluster, add_data_dir, temporary_folder

RUN_SECONDS_MAX = 600.0
YARDSTICK = Path(__file__).parent / "yardstick.py"


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that is measured on both."""

    name: str
    entries: int
    entry_bytes: int
    in_flight: int
    latency: bool
    """True: the median latency is compared, in milliseconds (less is better). False: the adds per second."""


CASES = (
    Case("100 B, 1,000 in flight: adds/s", 400_000, 100, 1000, latency=False),
    Case("1 KiB, 1,000 in flight: adds/s", 200_000, 1024, 1000, latency=False),
    Case("100 B, 1 in flight: median ms", 2_000, 100, 1, latency=True),
)


def free_ports(number: int) -> list[int]:
    """Ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    try:
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def wait_listening(port: int) -> None:
    """Return once a process listens on ``port``."""
    deadline = time.monotonic() + TIME_SECONDS_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def measure_yardstick(folder: Path) -> dict[str, float]:
    """One run of every case on the yardstick, each on bookies of its own: they keep what they index in memory."""
    return {case.name: measure_yardstick_case(folder, case) for case in CASES}


def measure_yardstick_case(folder: Path, case: Case) -> float:
    """Start three bookies, run the client, stop them."""
    ports = free_ports(3)
    bookies = [subprocess.Popen([sys.executable, YARDSTICK, "bookie", str(port), folder]) for port in ports]
    try:
        for port in ports:
            wait_listening(port)
        client = subprocess.run(
            [
                *(sys.executable, YARDSTICK, "client", ",".join(map(str, ports))),
                *("--entries", str(case.entries), "--entry-bytes", str(case.entry_bytes)),
                *("--in-flight", str(case.in_flight)),
            ],
            stdout=subprocess.PIPE,
            timeout=RUN_SECONDS_MAX,
            check=True,
        )
    finally:
        for bookie in bookies:
            bookie.kill()
            bookie.wait()
    got = json.loads(client.stdout)
    return float(got["latency_ms_p50" if case.latency else "entries_per_second"])


SETTLE_SECONDS = 5
"""New bookies of Octavo allocate the first files of their journal in the background. The comparison is between running
clusters, so they get time for it; the yardstick has nothing to prepare."""


def measure_octavo(folder: Path) -> dict[str, float]:
    """One run of every case on Octavo, each on a fresh cluster."""
    return {case.name: measure_octavo_case(folder / str(number), case) for number, case in enumerate(CASES)}


def measure_octavo_case(folder: Path, case: Case) -> float:
    """Start three bookies, run the benchmark, stop them."""
    with Cluster(folder) as cluster:
        uri = cluster.wait_for("ready")["metadata"]
        time.sleep(SETTLE_SECONDS)
        bench = subprocess.run(
            [
                *(sys.executable, "-P", "-m", "octavo.cli.main", "bench", "write", "--json", "--warm-up", "0"),
                *("--count", str(case.entries), "--entry-size", str(case.entry_bytes)),
                *("--in-flight", str(case.in_flight)),
            ],
            env={**os.environ, "OCTAVO_METADATA": uri},
            stdout=subprocess.PIPE,
            timeout=RUN_SECONDS_MAX,
            check=True,
        )
        cluster.stop()
    got = json.loads(bench.stdout)
    return float(got["latency_ms"]["p50"] if case.latency else got["entries_per_second"])


def main() -> int:
    """Measure and print; exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    add_data_dir(parser)
    arguments = parser.parse_args()

    measured: dict[str, dict[str, list[float]]] = {"yardstick": defaultdict(list), "octavo": defaultdict(list)}
    for round_number in range(1, arguments.rounds + 1):
        for side in ("yardstick", "octavo"):
            with temporary_folder(arguments.data_dir) as folder:
                got = measure_yardstick(folder) if side == "yardstick" else measure_octavo(folder)
            for name, value in got.items():
                measured[side][name].append(value)
            print(f"round {round_number}, {side}: {', '.join(f'{value:,.2f}' for value in got.values())}", flush=True)

    print(f"\nMedians of {arguments.rounds} alternating rounds:\n\n| | yardstick | Octavo | ratio |\n|---|---|---|---|")
    for case in CASES:
        yardstick, ours = (statistics.median(measured[side][case.name]) for side in ("yardstick", "octavo"))
        ratio = yardstick / ours if case.latency else ours / yardstick
        form = ",.2f" if case.latency else ",.0f"
        print(f"| {case.name} | {yardstick:{form}} | {ours:{form}} | {ratio:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
