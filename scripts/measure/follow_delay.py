"""Measure how long after its acknowledgement an entry reaches a tailing reader in another process, and what an idle
reader costs.

follow_delay.py [--count 1000] [--interval-ms 10] [-E 3 -W 3 -A 2] [--idle-seconds 10] [--data-dir DIR]

A fresh three-bookie cluster (more if E asks for them), a writer in this process, a follower in another; both note the
machine's monotonic clock. Adds come one at a time, each so long after the acknowledgement of the one before; with
``--interval-ms 0`` at once. Then nothing is added for a while, and the processor time that the follower and the
bookies use is counted.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

import octavo

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from local_cluster import add_data_dir, temporary_cluster

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


async def follow(uri: str, ledger_id: int) -> None:
    """Record when each entry arrives, and print the times at the end of the ledger."""
    async with octavo.connect(uri) as client, client.open_ledger(ledger_id, recover=False) as reader:
        print("ready", flush=True)
        arrived = [time.monotonic() async for _ in reader.follow()]
    print(json.dumps(arrived), flush=True)


async def measure(uri: str, pids: list[int], arguments: argparse.Namespace) -> dict[str, Any]:
    """Write, idle and close; then compare with the times of the follower."""
    acknowledged: list[float] = []
    latencies: list[float] = []
    async with octavo.connect(uri) as client:
        async with client.create_ledger(arguments.E, arguments.W, arguments.A) as ledger:
            follower = await asyncio.create_subprocess_exec(
                sys.executable, __file__, "--follow", str(ledger.id), "--uri", uri, stdout=asyncio.subprocess.PIPE,
                limit=2**30,
            )  # fmt: skip
            assert follower.stdout is not None
            await follower.stdout.readline()
            for _ in range(arguments.count):
                began = time.monotonic()
                await ledger.add(b"x" * arguments.entry_size)
                acknowledged.append(time.monotonic())
                latencies.append(acknowledged[-1] - began)
                if arguments.interval_ms:
                    await asyncio.sleep(arguments.interval_ms / 1000)
            await asyncio.sleep(1)
            before = [_processor_seconds(pid) for pid in (follower.pid, *pids)]
            await asyncio.sleep(arguments.idle_seconds)
            after = [_processor_seconds(pid) for pid in (follower.pid, *pids)]
        arrived = json.loads(await follower.stdout.readline())
        await follower.wait()
    assert len(arrived) == len(acknowledged), "the follower got every entry"
    delays = sorted(1000 * (seen - known) for seen, known in zip(arrived, acknowledged, strict=True))
    busy = [100 * (end - start) / arguments.idle_seconds for start, end in zip(before, after, strict=True)]
    return {
        "entries": len(delays),
        "add_ms_median": round(1000 * statistics.median(latencies), 3),
        "delay_ms": {
            name: round(delays[min(len(delays) - 1, int(share * len(delays)))], 3)
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        },
        "idle_percent_of_a_core": {"follower": round(busy[0], 2), "bookies": [round(one, 2) for one in busy[1:]]},
    }


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


def main() -> int:
    """Run the benchmark. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--interval-ms", type=float, default=10.0)
    parser.add_argument("--entry-size", type=int, default=100)
    parser.add_argument("-E", type=int, default=3)
    parser.add_argument("-W", type=int, default=3)
    parser.add_argument("-A", type=int, default=2)
    parser.add_argument("--idle-seconds", type=float, default=10.0)
    add_data_dir(parser)
    parser.add_argument("--follow", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--uri", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.follow is not None:
        uvloop.run(follow(arguments.uri, arguments.follow))
        return 0
    with temporary_cluster(arguments.data_dir, bookies=max(3, arguments.E)) as cluster:
        ready = cluster.wait_for("ready")
        pids = [bookie["pid"] for bookie in ready["bookies"]]
        print(json.dumps(uvloop.run(measure(ready["metadata"], pids, arguments)), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
