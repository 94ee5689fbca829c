"""Measure how long it takes until the copies of a lost bookie are back.

repair_time.py [--ledgers 10000] [--entries 10] [--entry-size 1024] [--bookies 4] [--load ADDS_PER_SECOND]
               [--metadata URI] [--data-dir DIR]

The benchmark starts bookies in processes of their own and writes closed ledgers with E = Qw = 3, Qa = 2. It kills one
bookie for good and retires it as lost, so that no grace time passes. The time measured runs from there until no ledger
names the bookie any more. With ``--load`` a client adds entries of 1 KiB to one more ledger at that rate all the time,
and does not wait for earlier ones: a delay counts from the moment at which the add was due. The delays before
and during the repair are reported. Half load is half of the adds per second that ``octavo bench add`` reaches.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import uvloop
from octavo.metadata import open_metadata_store
from octavo.protocol.ids import BookieId
from octavo.repair.operate.operators import ledgers_naming, read_status
from octavo.repair.operate.retiring import retire

import octavo

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from local_cluster import add_data_dir, temporary_folder

START_SECONDS_MAX = 60.0
BEFORE_SECONDS = 25.0
"""About as long as a repair takes: the 99th percentile of adds depends on the flushes and stalls that fall into it."""

WRITERS = 64
"""Ledgers written at the same time."""


class Bookies:
    """Bookie processes in ``folder``; they register with short leases."""

    def __init__(self, folder: Path, uri: str, count: int) -> None:
        self._uri = uri
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
        environment |= {"OCTAVO_BOOKIE_LEASE_SECONDS": "1", "OCTAVO_BOOKIE_REPAIR_AUDIT_SECONDS": "5"}
        self.processes = {
            name: subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "octavo.cli.main", "bookie", "--data-dir", str(folder / name)),
                    *("--bookie-id", name, "--port", "0", "--metadata", uri, "--log-level", "warning"),
                ],
                env=environment,
            )
            for name in (f"bookie-{number}" for number in range(count))
        }

    async def wait_registered(self) -> None:
        """Return once all of them serve."""
        async with asyncio.timeout(START_SECONDS_MAX), await open_metadata_store(self._uri) as store:
            while (await store.list_bookies()).keys() != self.processes.keys():  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    def kill(self, name: str) -> None:
        """SIGKILL a bookie for good."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Stop the others."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()


async def write_ledgers(client: octavo.Client, arguments: argparse.Namespace) -> None:
    """Write the ledgers that are to be repaired."""
    payloads = [os.urandom(arguments.entry_size)] * min(arguments.entries, 1000)
    numbers = iter(range(arguments.ledgers))

    async def write_some() -> None:
        for _ in numbers:
            async with client.create_ledger(3, 3, 2) as ledger:
                for _ in range(max(1, arguments.entries // len(payloads))):
                    await ledger.add_many(payloads)

    await asyncio.gather(*(write_some() for _ in range(min(WRITERS, arguments.ledgers))))


async def serves_no_more(_bookie_id: BookieId) -> bool:
    """The bookie was killed."""
    return False


class Load:
    """Adds entries at a rate, whatever becomes of those before, and notes how long each took."""

    def __init__(self, ledger: octavo.LedgerWriter, per_second: float) -> None:
        self.delays: list[float] = []
        self._ledger = ledger
        self._adds: set[asyncio.Task[None]] = set()
        self._task = asyncio.ensure_future(self._produce(1 / per_second))

    async def _produce(self, pause_seconds: float) -> None:
        due = time.perf_counter()
        while True:
            while due <= time.perf_counter():
                add = asyncio.ensure_future(self._add(due))
                self._adds.add(add)
                add.add_done_callback(self._adds.discard)
                due += pause_seconds
            await asyncio.sleep(min(max(due - time.perf_counter(), 0.001), pause_seconds))

    async def _add(self, due: float) -> None:
        await self._ledger.add(b"x" * 1024)
        self.delays.append(time.perf_counter() - due)

    def take(self) -> dict[str, float]:
        """The delays since the last call, in milliseconds."""
        delays, self.delays = sorted(self.delays), []
        if not delays:
            return {}
        return {
            "adds": len(delays),
            "p50_ms": round(1000 * delays[len(delays) // 2], 2),
            "p99_ms": round(1000 * delays[len(delays) * 99 // 100], 2),
        }

    async def wait_pending(self) -> None:
        """Return when all adds that are under way have ended."""
        await asyncio.gather(*self._adds)

    async def stop(self) -> None:
        """Add no more. Raises the error of an add."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await asyncio.gather(*self._adds)


async def measure(uri: str, bookies: Bookies, arguments: argparse.Namespace) -> dict[str, Any]:
    """Write, kill, and wait until everything is whole."""
    await bookies.wait_registered()
    result: dict[str, Any] = {
        name: getattr(arguments, name) for name in ("ledgers", "entries", "entry_size", "bookies")
    }
    async with octavo.connect(uri) as client, await open_metadata_store(uri) as store:
        begun = time.perf_counter()
        await write_ledgers(client, arguments)
        seconds = result["write_seconds"] = round(time.perf_counter() - begun, 2)
        written = 3 * arguments.ledgers * arguments.entries * arguments.entry_size
        result["add_megabytes_per_second_of_a_bookie"] = round(written / 1e6 / arguments.bookies / seconds, 2)
        async with contextlib.AsyncExitStack() as stack:
            load = None
            if arguments.load:
                load = Load(await stack.enter_async_context(client.create_ledger(3, 3, 2)), arguments.load)
                stack.push_async_callback(load.stop)
                await asyncio.sleep(BEFORE_SECONDS)
                result["adds_before"] = load.take()
            lost = BookieId("bookie-0")
            bookies.kill(lost)
            while lost in await store.list_bookies():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            if load is not None:
                await load.wait_pending()  # adds that waited for the replacement of the bookie
                load.take()
            begun = time.perf_counter()
            await retire(store, lost, serves_no_more, lost=True, now_ms=int(time.time() * 1000))
            left, progress = True, [(begun, 0)]
            while left:
                await asyncio.sleep(0.5)
                status = await read_status(store)
                progress.append((time.perf_counter(), 0 if status.summary is None else status.summary.bytes_copied))
                if status.is_quiet:
                    left = bool([one async for one in ledgers_naming(store, lost, count=1)])
            seconds = time.perf_counter() - begun
            if load is not None:
                result["adds_during"] = load.take()
    copied = 0 if status.summary is None else status.summary.bytes_copied
    return result | {
        "repair_seconds": round(seconds, 2),
        "bytes_copied": copied,
        "ledgers_per_second": round(arguments.ledgers * 3 / arguments.bookies / seconds, 1),
        "megabytes_per_second": round(copied / 1e6 / seconds, 2),
        "megabytes_per_second_while_copying": round(copying_rate(progress) / 1e6, 2),
    }


def copying_rate(progress: list[tuple[float, int]]) -> float:
    """Bytes per second from the first report of a copy to the last one: without the seconds that pass before the first
    copy and after the last one, which do not depend on the size of the ledgers. 0.0 with fewer than two reports."""
    reports = [(moment, copied) for (_, before), (moment, copied) in itertools.pairwise(progress) if copied > before]
    (first_at, first), (last_at, last) = (reports[0], reports[-1]) if reports else ((0.0, 0), (0.0, 0))
    return (last - first) / (last_at - first_at) if last_at > first_at else 0.0


def main() -> int:
    """Run the benchmark. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ledgers", type=int, default=10_000)
    parser.add_argument("--entries", type=int, default=10, help="entries of each ledger")
    parser.add_argument("--entry-size", type=int, default=1024)
    parser.add_argument("--bookies", type=int, default=4)
    parser.add_argument("--load", type=float, default=0, help="adds per second meanwhile")
    parser.add_argument("--metadata", help="URI of an empty metadata store (default: SQLite)")
    add_data_dir(parser)
    arguments = parser.parse_args()
    with temporary_folder(arguments.data_dir) as folder:
        uri = arguments.metadata or f"sqlite:///{folder}/metadata.db"
        uvloop.run(create(uri))
        bookies = Bookies(folder, uri, arguments.bookies)
        try:
            print(json.dumps(uvloop.run(measure(uri, bookies, arguments)), indent=1))
        finally:
            bookies.stop()
    return 0


async def create(uri: str) -> None:
    """Create the cluster."""
    async with await open_metadata_store(uri, create=True):
        pass


if __name__ == "__main__":
    sys.exit(main())
