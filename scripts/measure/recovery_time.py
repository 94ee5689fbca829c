"""Measure how long recovery takes for a ledger with a short last fragment, depending on the size of the ledger.

recovery_time.py [--megabytes 1 32 1024] [--entry-size 1024] [--in-flight 1000] [--rounds 5] [--data-dir DIR]

The benchmark starts a cluster of four bookies and uses ledgers with E = Qw = 3, Qa = 2. For each size it writes that
much, kills a bookie of the ensemble so that a second fragment begins, and adds a few entries. While more adds are in
flight, another client recovers the ledger. The time measured is that of ``open_ledger`` of this client, which is
already connected to the bookies.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

import octavo

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from local_cluster import Cluster, add_data_dir, temporary_cluster

_BATCH = 1000


class Bookies:
    """The bookie processes that `octavo up` starts and restarts."""

    def __init__(self, cluster: Cluster) -> None:
        ready = cluster.wait_for("ready")
        self.uri: str = ready["metadata"]
        self._cluster = cluster
        self._pids: dict[str, int] = {bookie["name"]: bookie["pid"] for bookie in ready["bookies"]}
        self._cookies = {
            bookie["name"]: (Path(bookie["data_dir"]) / "cookie").read_bytes() for bookie in ready["bookies"]
        }

    def pid_of(self, bookie_id: str) -> int:
        """The process of a bookie."""
        return self._pids[next(name for name, cookie in self._cookies.items() if bookie_id.encode() in cookie)]

    def kill(self, bookie_id: str) -> None:
        """SIGKILL a bookie."""
        os.kill(self.pid_of(bookie_id), signal.SIGKILL)

    def wait_started_again(self) -> None:
        """Wait until the killed bookie has been restarted."""
        started = self._cluster.wait_for("started again")
        self._pids[started["name"]] = started["pid"]


async def replace_a_bookie(ledger: octavo.LedgerWriter, bookies: Bookies) -> None:
    """Kill a bookie of the ensemble, and add until the writer has replaced it."""
    failed = ledger.metadata.last_fragment.bookies[0]
    bookies.kill(failed)
    while failed in ledger.metadata.last_fragment.bookies:
        await ledger.add(b"until it is replaced")
        await asyncio.sleep(0.01)
    await asyncio.to_thread(bookies.wait_started_again)


async def recovery(bookies: Bookies, size: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Write a ledger of ``size`` bytes, recover it and check its end."""
    async with (
        octavo.connect(bookies.uri, bookie_loss_seconds=0.05) as writing,
        octavo.connect(bookies.uri) as recovering,
    ):
        ledger = await writing.create_ledger(3, 3, 2)
        payloads = [os.urandom(arguments.entry_size)] * _BATCH
        for _ in range(max(1, size // (arguments.entry_size * _BATCH))):
            await ledger.add_many(payloads)
        await replace_a_bookie(ledger, bookies)
        acknowledged = await ledger.add(b"the last one known to be acknowledged")
        # Connect to the bookies first, by opening the ledger without recovery.
        async with recovering.open_ledger(ledger.id, recover=False):
            pass
        in_flight = [ledger.add_nowait(payloads[0]) for _ in range(arguments.in_flight)]
        await asyncio.sleep(0)
        started_at = time.perf_counter()
        async with recovering.open_ledger(ledger.id) as reader:
            seconds = time.perf_counter() - started_at
            last = reader.last_add_confirmed
        outcomes = await asyncio.gather(*in_flight, return_exceptions=True)
        assert last is not None
        assert last >= max([acknowledged, *(one for one in outcomes if isinstance(one, int))])
        with contextlib.suppress(octavo.LedgerFencedError):
            await ledger.close()
        fragments = [fragment.first_entry_id for fragment in reader.metadata.fragments]
        return {"entries": last + 1, "bytes": reader.length, "fragments_from": fragments, "seconds": seconds}


async def measure(bookies: Bookies, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all sizes."""
    results = []
    for megabytes in arguments.megabytes:
        size = int(megabytes * 1024 * 1024)
        rounds = [await recovery(bookies, size, arguments) for _ in range(arguments.rounds)]
        milliseconds = [round(1000 * one.pop("seconds"), 1) for one in rounds]
        results.append(
            {
                "megabytes": megabytes,
                "first": rounds[0],
                "recovery_ms_median": statistics.median(milliseconds),
                "recovery_ms": milliseconds,
            }
        )
    return results


def main() -> int:
    """Run the benchmark. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1, 32, 1024])
    parser.add_argument("--entry-size", type=int, default=1024)
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    add_data_dir(parser)
    arguments = parser.parse_args()
    with temporary_cluster(arguments.data_dir, bookies=4) as cluster:
        print(json.dumps(uvloop.run(measure(Bookies(cluster), arguments)), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
