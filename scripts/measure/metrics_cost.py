"""Measure what metrics cost: counting them, and scraping them under load.

metrics_cost.py counting [--seconds 115]    the same load, with and without counting in the client and the bookies
metrics_cost.py scraping [--seconds 115] [--interval 1.0]    with and without scrapes of every bookie

One cluster serves both sides: its bookies stop counting, and count again, when they get SIGUSR2, so that nothing else
differs. Both sides run in turn, in the opposite order in every second round, so that what else the machine does hits
both. Of each pair the script takes the ratio of adds per second and of the processor time of all processes per entry;
it prints their medians and quartiles. The processor time is the steadier of the two.
"""

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from local_cluster import Cluster

LOADS = {
    "100 B": ("--entry-size", "100", "--count", "400000"),
    "1 KiB": ("--entry-size", "1024", "--count", "150000"),
}

SWITCH = """
import os, signal
from octavo.bookie.server.request_counts import RequestCounts
from octavo.client.counts import AddCounts
from octavo.metrics.histogram import Histogram

def count_nothing(*arguments):
    pass

def forget(self, first, last, payload_bytes):
    self._sent.clear()

def make(self, clock, make=RequestCounts.__init__):
    make(self, clock)
    clocks.append((self, clock))

clocks = []
RequestCounts.__init__ = make
others = [
    (RequestCounts, "answered", count_nothing), (RequestCounts, "note_refused", count_nothing),
    (AddCounts, "acknowledged", forget), (Histogram, "observe", count_nothing),
]

def switch(*signal_and_frame):
    for at, (owner, name, other) in enumerate(others):
        others[at] = (owner, name, getattr(owner, name))
        setattr(owner, name, other)
    counting = others[-1][2] is count_nothing
    for counts, clock in clocks:
        counts.clock = clock if counting else lambda: 0.0

signal.signal(signal.SIGUSR2, switch)
if os.environ.get("METRICS_COST_WITHOUT"):
    switch()
"""
"""Python runs it in every process, as the module sitecustomize."""

_TICKS = os.sysconf("SC_CLK_TCK")


class Result(NamedTuple):
    """Of one run."""

    adds_per_second: float
    cpu_seconds_per_entry: float


class Measured:
    """A cluster that serves the load, and the client that makes it."""

    def __init__(self, cluster: Cluster) -> None:
        ready = cluster.wait_for("ready")
        self._settings = {**os.environ, "OCTAVO_METADATA": ready["metadata"]}
        self._pids = [bookie["pid"] for bookie in ready["bookies"]]
        self.sockets = [Path(bookie["data_dir"]) / "admin.sock" for bookie in ready["bookies"]]

    def run(self, load: tuple[str, ...], *, counting: bool = True) -> Result:
        """One run of the benchmark. Raises :class:`MeasurementError` if bookies count and should not, or do not."""
        if not counting:
            self._switch()
        before = self._adds_counted()
        result = self._run(load, self._settings if counting else self._settings | {"METRICS_COST_WITHOUT": "1"})
        counted = self._adds_counted() - before
        if not counting:
            self._switch()
        if counting != bool(counted):
            raise MeasurementError(f"counting was {'on' if counting else 'off'}, and {counted} adds were counted")
        return result

    def _run(self, load: tuple[str, ...], settings: dict[str, str]) -> Result:
        before, client_before = self._cpu_seconds(), os.times()
        done = subprocess.run(
            [sys.executable, "-P", "-m", "octavo.cli.main", "bench", "write", "--json", "--warm-up", "0.5", "--delete",
             "--in-flight", "1000", *load],
            env=settings, check=True, capture_output=True, text=True,
        )  # fmt: skip
        client_after = os.times()
        cpu = self._cpu_seconds() - before
        cpu += client_after.children_user - client_before.children_user
        cpu += client_after.children_system - client_before.children_system
        found = json.loads(done.stdout.splitlines()[-1])
        return Result(found["entries_per_second"], cpu / found["entries"])

    def _switch(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGUSR2)
        self._adds_counted()  # a bookie that answers has seen the signal; two at once would count as one

    def _adds_counted(self) -> int:
        count = 0
        for path in self.sockets:
            with contextlib.closing(connect(path)) as connection:
                connection.request("GET", "/metrics")
                text = connection.getresponse().read().decode()
            count += int(float(text.partition('octavo_bookie_request_seconds_count{op="add"} ')[2].partition("\n")[0]))
        return count

    def _cpu_seconds(self) -> float:
        spent = 0
        for pid in self._pids:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            spent += int(fields[11]) + int(fields[12])
        return spent / _TICKS


class MeasurementError(Exception):
    """The measurement does not measure what it should."""


@contextmanager
def measured(folder: Path) -> Iterator[Measured]:
    """A cluster whose processes can be switched."""
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SWITCH, encoding="utf-8")
    os.environ["PYTHONPATH"] = str(site)
    with Cluster(folder / "cluster") as cluster:
        yield Measured(cluster)


def connect(path: Path) -> http.client.HTTPConnection:
    """A connection to a bookie's administration socket."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    return connection


class Scraper:
    """Asks every bookie for its metrics, again and again, until its block ends."""

    def __init__(self, sockets: list[Path], interval_seconds: float) -> None:
        self._sockets = sockets
        self._interval_seconds = interval_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.scrapes = 0

    def __enter__(self) -> "Scraper":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _work(self) -> None:
        connections = [connect(path) for path in self._sockets]
        while not self._stopped.wait(self._interval_seconds):
            for connection in connections:
                connection.request("GET", "/metrics")
                connection.getresponse().read()
            self.scrapes += 1
        for connection in connections:
            connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what metrics cost.")
    parser.add_argument("kind", choices=["counting", "scraping"])
    parser.add_argument("--seconds", type=float, default=115.0, help="no round begins after this time")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two scrapes of all bookies")
    arguments = parser.parse_args()
    ratios: dict[str, list[Result]] = {name: [] for name in LOADS}
    scrapes = number = 0
    deadline = time.monotonic() + arguments.seconds
    with tempfile.TemporaryDirectory(prefix="octavo-metrics-cost-") as name, measured(Path(name)) as cluster:
        while number == 0 or time.monotonic() < deadline:
            number += 1
            for load, options in LOADS.items():
                results = {}
                for with_it in (False, True) if number % 2 else (True, False):
                    if arguments.kind == "counting":
                        results[with_it] = cluster.run(options, counting=with_it)
                    elif with_it:
                        with Scraper(cluster.sockets, arguments.interval) as scraper:
                            results[with_it] = cluster.run(options)
                        scrapes += scraper.scrapes
                    else:
                        results[with_it] = cluster.run(options)
                ratios[load].append(Result(*(a / b for a, b in zip(results[True], results[False], strict=True))))
    print(f"with {arguments.kind} / without, {number} rounds{f', {scrapes} scrapes' if scrapes else ''}")
    for load, found in ratios.items():
        for title, values in zip(
            ("adds per second", "processor time per entry"), zip(*found, strict=True), strict=True
        ):
            low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
            print(f"{load:>6}  {title:<24} {middle:.4f}  ({low:.4f} to {high:.4f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
