"""Measure how long a writer takes to replace a bookie that fails under load, and the latency of its adds meanwhile.

replacement_time.py [--rounds 5] [--rate 5000] [--entry-size 1024] [-E 3 -W 3 -A 2] [--data-dir DIR]

The benchmark starts a cluster with one bookie more than the ensemble needs. A writer in this process adds at a steady
rate, without waiting for acknowledgements. Each round kills a bookie of the ensemble with SIGKILL. The result has the
time from the kill to the first acknowledgement by the new ensemble, and the latency of adds, counted from the moment
each was due, in the second before the kill and from the kill until a second after the change. It also has the longest
time for which the writer's process did not run, because such a delay is not caused by a bookie.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

import octavo

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from local_cluster import TIME_SECONDS_MAX, Cluster, add_data_dir, temporary_cluster

_SETTLE_SECONDS = 2.0
"""Duration of the load before the first kill and after each change."""

_AROUND_SECONDS = 1.0
"""Duration of the intervals before the kill and after the change whose adds are evaluated."""

_TICK_SECONDS = 0.001


class SteadyLoad:
    """Adds at a steady rate, and records when each add was due and how long after that it was acknowledged."""

    def __init__(self, ledger: octavo.LedgerWriter, rate: float, payload: bytes) -> None:
        self.latencies: list[tuple[float, float]] = []
        """(due, seconds until acknowledged), on the monotonic clock."""
        self.failures: list[str] = []
        self.turns: list[tuple[float, float]] = []
        """(begin, seconds) of every tick, on the monotonic clock."""
        self._ledger = ledger
        self._rate = rate
        self._payload = payload
        self._stopping = False
        self._adds: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Add until :meth:`stop` is called, then wait until all adds are acknowledged."""
        began, count = time.monotonic(), 0
        while not self._stopping:
            due = began + count / self._rate
            now = time.monotonic()
            if due > now:
                await asyncio.sleep(_TICK_SECONDS)
                self.turns.append((now, time.monotonic() - now))
                continue
            task = asyncio.create_task(self._add(due))
            self._adds.add(task)
            task.add_done_callback(self._adds.discard)
            count += 1
        await asyncio.gather(*self._adds)

    def stop(self) -> None:
        """Stop adding."""
        self._stopping = True

    def between(self, start: float, stop: float) -> list[float]:
        """Latencies in milliseconds of the adds that were due in this interval, sorted."""
        return sorted(1000 * latency for due, latency in self.latencies if start <= due < stop)

    def held_up(self, start: float, stop: float) -> float:
        """Milliseconds of the longest tick that began in this interval."""
        return 1000 * max((seconds for began, seconds in self.turns if start <= began < stop), default=0.0)

    async def _add(self, due: float) -> None:
        try:
            await self._ledger.add(self._payload)
        except octavo.OctavoError as error:
            self.failures.append(str(error))
        else:
            self.latencies.append((due, time.monotonic() - due))


async def measure(
    cluster: Cluster, ready: dict[str, Any], cookies: dict[str, bytes], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Run the rounds."""
    replaced_ms: list[float] = []
    before: list[float] = []
    during: list[float] = []
    held_up_ms = {"before": 0.0, "during": 0.0}
    pids = {bookie["name"]: bookie["pid"] for bookie in ready["bookies"]}
    async with octavo.connect(ready["metadata"]) as client:
        ids = [one.bookie_id for one in await client.bookies()]
        names = {one: name for one in ids for name, cookie in cookies.items() if one.encode() in cookie}
        async with client.create_ledger(arguments.E, arguments.W, arguments.A) as ledger:
            load = SteadyLoad(ledger, arguments.rate, b"x" * arguments.entry_size)
            running = asyncio.create_task(load.run())
            await asyncio.sleep(_SETTLE_SECONDS)
            windows: list[tuple[float, float]] = []
            for _ in range(arguments.rounds):
                victim = ledger.metadata.last_fragment.bookies[0]
                killed_at = time.monotonic()
                os.kill(pids[names[victim]], signal.SIGKILL)
                await _replaced(ledger, victim)
                changed_at = time.monotonic()
                replaced_ms.append(1000 * (changed_at - killed_at))
                windows.append((killed_at, changed_at))
                back = await asyncio.to_thread(cluster.wait_for, "started again")
                pids[back["name"]] = back["pid"]
                await asyncio.sleep(_SETTLE_SECONDS)
            load.stop()
            await running
            fragments = len(ledger.metadata.fragments)
    for killed_at, changed_at in windows:
        for name, start, stop, found in (
            ("before", killed_at - _AROUND_SECONDS, killed_at, before),
            ("during", killed_at, changed_at + _AROUND_SECONDS, during),
        ):
            found.extend(load.between(start, stop))
            held_up_ms[name] = round(max(held_up_ms[name], load.held_up(start, stop)), 1)
    return {
        "adds": len(load.latencies),
        "failed": len(load.failures),
        "fragments": fragments,
        "replaced_ms": {"median": round(statistics.median(replaced_ms), 1), "max": round(max(replaced_ms), 1)},
        "add_ms_before": _percentiles(sorted(before)),
        "add_ms_during": _percentiles(sorted(during)),
        "writer_held_up_ms": held_up_ms,
    }


async def _replaced(ledger: octavo.LedgerWriter, victim: str) -> None:
    """Wait until the new ensemble has acknowledged an entry."""
    async with asyncio.timeout(TIME_SECONDS_MAX):
        while victim in ledger.metadata.last_fragment.bookies:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(_TICK_SECONDS)
        known = ledger.last_add_confirmed
        while ledger.last_add_confirmed == known:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(_TICK_SECONDS)


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    shares = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    return {name: round(values[min(len(values) - 1, int(share * len(values)))], 2) for name, share in shares}


def main() -> int:
    """Run the benchmark. Returns the exit status, 0 only if no add failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", type=float, default=5000.0, help="adds per second")
    parser.add_argument("--entry-size", type=int, default=1024)
    parser.add_argument("-E", type=int, default=3)
    parser.add_argument("-W", type=int, default=3)
    parser.add_argument("-A", type=int, default=2)
    add_data_dir(parser)
    arguments = parser.parse_args()
    with temporary_cluster(arguments.data_dir, bookies=arguments.E + 1) as cluster:
        ready = cluster.wait_for("ready")
        cookies = {one["name"]: Path(one["data_dir"], "cookie").read_bytes() for one in ready["bookies"]}
        told = uvloop.run(measure(cluster, ready, cookies, arguments))
        print(json.dumps(told, indent=1))
    return 1 if told["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
