"""Measure what adds take at a steady rate while another client scans a cold ledger at full speed, and without it.

scan_beside_adds.py [--megabytes 2000] [--rate 5000] [--seconds 10] [--rounds 3] [--json] [--data-dir DIR]

A fresh three-bookie cluster on this machine with SQLite gets a ledger of 1 KiB entries and is started again, so that
nothing of the ledger is in the memory of a bookie. Each round measures `octavo bench write` at the rate, with the scan
and without it in turn. The scan runs in a process of its own, from the beginning again after the end of the ledger.
Each second the pages of the bookies' files are dropped from the page cache, also without the scan. The ratios of a
round compare its percentiles with the scan to those without it.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

import octavo

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import bench
from local_cluster import Cluster, add_data_dir, temporary_folder

DROP_SECONDS = 1.0
PERCENTILES = {"p50": "p50", "p99": "p99", "p99.9": "p99_9"}


async def scan(uri: str, ledger_id: int) -> None:
    """Read the ledger again and again until standard input ends; then print how much and for how long."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(sys.stdin, ended.set)  # nothing is ever written to it
    payload_bytes, began = 0, 0.0
    async with octavo.connect(uri) as client, client.open_ledger(ledger_id) as reader:
        while not ended.is_set():
            async for entry in reader.entries():
                if not payload_bytes:
                    began = time.perf_counter()
                    print("reading", flush=True)
                payload_bytes += len(entry.payload)
                if ended.is_set():
                    break
    print(json.dumps({"bytes": payload_bytes, "seconds": time.perf_counter() - began}), flush=True)


@contextlib.contextmanager
def scanning(uri: str, ledger_id: int, result: dict[str, float]) -> Iterator[None]:
    """Scan beside what the block does; then ``result`` has the scan's ``megabytes_per_second``."""
    command = [sys.executable, __file__, "--scan", str(ledger_id), "--uri", uri]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        if child.stdout.readline() != "reading\n":
            raise SystemExit(f"the scan ended with status {child.wait()}")
        yield
        child.stdin.close()
        told = child.stdout.readline()
        if not told:
            raise SystemExit(f"the scan ended with status {child.wait()}")
        scanned = json.loads(told)
        result["megabytes_per_second"] = round(scanned["bytes"] / scanned["seconds"] / 1e6, 1)
    finally:
        child.kill()
        child.wait()


def drop_pages(folder: Path) -> None:
    """Drop what the page cache has of the files below ``folder`` and what is on the disk already."""
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):  # it may just have been deleted, or be no file of a disk
            descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def dropping_pages(folders: list[Path]) -> Iterator[None]:
    """Drop the pages of the files below ``folders`` now, and each second while the block runs."""
    ended = threading.Event()

    def drop() -> None:
        while not ended.wait(DROP_SECONDS):
            for folder in folders:
                drop_pages(folder)

    for folder in folders:
        drop_pages(folder)
    thread = threading.Thread(target=drop)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def adds(uri: str, arguments: argparse.Namespace) -> dict[str, float]:
    """The percentiles of adds at the rate, in milliseconds."""
    load = ("--rate", str(arguments.rate), "--in-flight", "50000", "--duration", str(arguments.seconds), "--delete")
    latencies = bench(uri, "write", *load)["latency_ms"]
    return {name: latencies[key] for name, key in PERCENTILES.items()}


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The ledger, then the rounds."""
    entries = max(1, round(arguments.megabytes * 1e6 / 1024))
    with Cluster(folder) as cluster:
        uri = cluster.wait_for("ready")["metadata"]
        (ledger_id,) = bench(uri, "write", "--count", str(entries), "--warm-up", "0")["ledger_ids"]
        cluster.stop()
    os.sync()
    rounds: list[dict[str, Any]] = []
    with Cluster(folder) as cluster:
        ready = cluster.wait_for("ready")
        folders = [Path(bookie["data_dir"]) for bookie in ready["bookies"]]
        for number in range(arguments.rounds):
            one: dict[str, Any] = {"scan": {}}
            for what in ("without", "with") if number % 2 == 0 else ("with", "without"):
                beside = scanning(uri, ledger_id, one["scan"]) if what == "with" else contextlib.nullcontext()
                with dropping_pages(folders), beside:
                    one[what] = adds(uri, arguments)
            one["ratios"] = {name: round(one["with"][name] / one["without"][name], 3) for name in PERCENTILES}
            rounds.append(one)
        cluster.stop()
    return {
        "rate": arguments.rate,
        "ledger_megabytes": round(entries * 1024 / 1e6, 3),
        "scan_megabytes_per_second": statistics.median(one["scan"]["megabytes_per_second"] for one in rounds),
        **{
            what: {name: statistics.median(one[what][name] for one in rounds) for name in PERCENTILES}
            for what in ("without", "with", "ratios")
        },
        "rounds": rounds,
    }


def table(result: dict[str, Any]) -> str:
    """The medians of the rounds."""
    lines = [
        f"| adds at {result['rate']:g}/s | {' | '.join(f'{name} ms' for name in PERCENTILES)} |",
        "|---|---|---|---|",
    ]
    scan_title = f"while a cold ledger is scanned, {result['scan_megabytes_per_second']:,.0f} MB/s"
    for title, what in (("without a scan", "without"), (scan_title, "with"), ("ratio", "ratios")):
        cells = " | ".join(f"{result[what][name]:.2f}" for name in PERCENTILES)
        lines.append(f"| {title} | {cells} |")
    return "\n".join(lines)


def main() -> int:
    """Run the benchmark. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=2000.0, help="size of the ledger that is scanned")
    parser.add_argument("--rate", type=float, default=5000.0, help="adds a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="time of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON, with each round, instead of the table")
    add_data_dir(parser)
    parser.add_argument("--scan", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--uri", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.scan is not None:
        uvloop.run(scan(arguments.uri, arguments.scan))
        return 0
    for name in ("megabytes", "rate", "seconds", "rounds"):
        if not getattr(arguments, name) > 0:
            parser.error(f"--{name} must be above 0")
    with temporary_folder(arguments.data_dir) as folder:
        result = measure(folder / "data", arguments)
    print(json.dumps(result) if arguments.json else table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
