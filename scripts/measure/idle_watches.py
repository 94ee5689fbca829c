"""Measure what watched records and held locks cost a client while nothing happens to them.

    python scripts/measure/idle_watches.py                     a SQLite file, 10,000 watches and locks
    python scripts/measure/idle_watches.py --metadata zk://127.0.0.1:2181/idle --count 1000

Prints bytes of memory for each watch and each lock (``tracemalloc``), Python calls a second in all threads, and the
share of a core, each beside those of a client that watches and holds nothing. A second handle in the same process holds
a lock and renews it, as every other client and bookie of a cluster does.
"""

import argparse
import asyncio
import gc
import sys
import tempfile
import time
import tracemalloc
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from octavo.metadata import MetadataStore, open_metadata_store

_TOOL = sys.monitoring.PROFILER_ID


class Idle(NamedTuple):
    """The work of a process while nothing happens."""

    calls_per_second: float
    core_percent: float


class Calls:
    """Counts the Python functions that are called, in all threads."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> "Calls":
        sys.monitoring.use_tool_id(_TOOL, "idle watches")
        sys.monitoring.register_callback(_TOOL, sys.monitoring.events.PY_START, self._called)
        sys.monitoring.set_events(_TOOL, sys.monitoring.events.PY_START)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.monitoring.set_events(_TOOL, 0)
        sys.monitoring.free_tool_id(_TOOL)

    def _called(self, _code: object, _offset: int) -> None:
        self.count += 1


def used_bytes() -> int:
    """Bytes that Python objects use now."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def idle(seconds: float) -> Idle:
    """Wait, and tell what the process did meanwhile."""
    began_at = time.process_time()
    await asyncio.sleep(seconds)
    core = (time.process_time() - began_at) / seconds
    with Calls() as calls:
        await asyncio.sleep(seconds)
    return Idle(calls.count / seconds, 100 * core)


def show(what: str, found: Idle, bytes_each: float | None = None) -> None:
    """Print a row."""
    memory = "" if bytes_each is None else f"{bytes_each:,.0f}"
    print(f"{what:36} {memory:>10} {found.calls_per_second:>12,.0f} {found.core_percent:>9.2f} %", flush=True)


async def measure(store: MetadataStore, other: MetadataStore, count: int, seconds: float) -> None:
    """Print the table."""
    print(f"{'':36} {'bytes each':>10} {'calls/s':>12} {'of a core':>11}")
    await other.lock("other", "other")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(store.watch_document("idle/first"))
        await anext(first)
        await store.lock("first", "idle")
        show("one watch, one lock", await idle(seconds))
        tracemalloc.start()
        before = used_bytes()
        watches = [await stack.enter_async_context(store.watch_document(f"idle/{n}")) for n in range(count)]
        for watch in watches:
            await anext(watch)
        watch_bytes = (used_bytes() - before) / count
        tracemalloc.stop()
        show(f"{count:,} watches more", await idle(seconds), watch_bytes)
        tracemalloc.start()
        before = used_bytes()
        for start in range(0, count, 100):
            await asyncio.gather(*(store.lock(f"lock/{n}", "idle") for n in range(start, min(start + 100, count))))
        lock_bytes = (used_bytes() - before) / count
        tracemalloc.stop()
        await store.renew_leases()
        show(f"{count:,} locks more", await idle(seconds), lock_bytes)
        with Calls() as calls:
            await other.create_document("idle/0", b"changed")
            await anext(watches[0])
        print(f"one of them changes: {calls.count:,} calls until its watcher has it")


async def main() -> None:
    """Read the options, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--metadata", help="URI of a store for this alone; default: a SQLite file of its own")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each look")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        uri = options.metadata or f"sqlite:///{Path(directory) / 'metadata.db'}"
        async with await open_metadata_store(uri, create=True) as store, await open_metadata_store(uri) as other:
            await measure(store, other, options.count, options.seconds)


if __name__ == "__main__":
    asyncio.run(main())
