"""Octavo beside a yardstick, in alternating runs, so that a noisy machine is unfair to both alike.

    compare_yardstick.py YARDSTICK_FOLDER [--rounds 5] [--data-dir DIR]

The yardstick is a folder with a ``bookie.py PORT DIRECTORY`` and a
``client.py PORT,PORT,PORT ENTRIES ENTRY_BYTES IN_FLIGHT`` that prints ``... N adds/s ... p50 N ms ...``. Each round
starts three of its bookies on empty folders, measures, stops them, then does the same with Octavo through
``octavo up`` and ``octavo bench write``: never both at once. Printed are the medians over all rounds and their ratio.
"""

import argparse
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from local_cluster import TIME_SECONDS_MAX, Cluster

RUN_SECONDS_MAX = 600.0


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that is measured on both."""

    name: str
    entries: int
    entry_bytes: int
    in_flight: int
    latency: bool
    """Whether the median latency is compared, in milliseconds (less is better), or else the adds per second."""


CASES = (
    Case("100 B, 1,000 in flight: adds/s", 400_000, 100, 1000, latency=False),
    Case("1 KiB, 1,000 in flight: adds/s", 200_000, 1024, 1000, latency=False),
    Case("100 B, 1 in flight: median ms", 2_000, 100, 1, latency=True),
)


@contextmanager
def empty_folder(parent: Path | None) -> Iterator[Path]:
    """A folder that is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="octavo-compare-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens on at this moment."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    try:
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def wait_listening(port: int) -> None:
    """Return once somebody listens on ``port``."""
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


def measure_yardstick(yardstick: Path, folder: Path) -> dict[str, float]:
    """One run of every case on the yardstick, each on bookies of its own: they keep all they ever took in memory."""
    return {case.name: measure_yardstick_case(yardstick, folder, case) for case in CASES}


def measure_yardstick_case(yardstick: Path, folder: Path, case: Case) -> float:
    """Start three bookies, run the client, stop them."""
    ports = free_ports(3)
    bookies = [
        # Standard error: its bookies complain when the client leaves before the slowest has answered.
        subprocess.Popen([sys.executable, yardstick / "bookie.py", str(port), str(folder)], stderr=subprocess.DEVNULL)
        for port in ports
    ]
    try:
        for port in ports:
            wait_listening(port)
        client = subprocess.run(
            [
                *(sys.executable, yardstick / "client.py", ",".join(map(str, ports))),
                *map(str, (case.entries, case.entry_bytes, case.in_flight)),
            ],
            stdout=subprocess.PIPE,
            text=True,
            timeout=RUN_SECONDS_MAX,
            check=True,
        )
        return number_before(client.stdout, "adds/s", after_word="p50" if case.latency else None)
    finally:
        for bookie in bookies:
            bookie.kill()
            bookie.wait()


SETTLE_SECONDS = 5
"""Bookies that have just been created fill their journal's first files in the background while nobody writes. What is
compared is a cluster that runs, so it is given the time; the yardstick has nothing to prepare."""


def number_before(text: str, unit: str, *, after_word: str | None) -> float:
    """The number before ``unit``, or the one after ``after_word``."""
    pattern = rf"{after_word}\s+([\d,.]+)" if after_word else rf"([\d,.]+)\s*{re.escape(unit)}"
    match = re.search(pattern, text)
    if match is None:
        raise SystemExit(f"cannot read the yardstick's output: {text!r}")
    return float(match.group(1).replace(",", ""))


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
    parser.add_argument("yardstick", type=Path, help="folder with bookie.py and client.py")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data-dir", type=Path, help="where both keep their data (default: the temporary folder)")
    arguments = parser.parse_args()

    measured: dict[str, dict[str, list[float]]] = {"yardstick": defaultdict(list), "octavo": defaultdict(list)}
    for round_number in range(1, arguments.rounds + 1):
        for side in ("yardstick", "octavo"):
            with empty_folder(arguments.data_dir) as folder:
                got = measure_yardstick(arguments.yardstick, folder) if side == "yardstick" else measure_octavo(folder)
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
