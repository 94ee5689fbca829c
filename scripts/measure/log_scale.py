"""Measure what logs cost at scale: ten thousand segments, a million entries a minute, a thousand logs in one client.

log_scale.py [--segments 10000] [--seconds 60] [--rate 16667] [--logs 1000] [--idle-seconds 60] [--data-dir DIR]

A fresh three-bookie cluster on this machine with SQLite. Each part runs in a process of its own, whose memory and
processor time are measured. The list of many segments is written by hand: its ledgers need not exist to be listed.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop
from octavo.client.log.documents.chain import (
    PageReference,
    Segment,
    SegmentEnd,
    decode_log,
    encode_page,
    page_reference,
)
from octavo.client.log.documents.names import list_document, page_document
from octavo.metadata import open_metadata_store
from octavo.protocol.ids import LedgerId

import octavo

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from local_cluster import add_data_dir, temporary_cluster

PAGE_SEGMENTS = 100
LISTED_SEGMENTS = 1000
"""As the defaults keep them: up to ten pages in the list itself."""


def memory_bytes() -> int:
    """The memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def processor_seconds() -> float:
    """The processor time that this process has used so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def timed(step: Callable[[], Awaitable[Any]], times: int) -> float:
    """Median of some runs, in milliseconds."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        await step()
        taken.append(time.perf_counter() - began)
    return round(1000 * statistics.median(taken), 2)


# --- many segments ---------------------------------------------------------------------------------------------------


async def write_segments(uri: str, name: str, count: int) -> dict[str, int]:
    """Give a new log this number of closed segments of ten entries, in pages and list as its leader would leave
    them."""
    async with await open_metadata_store(uri) as store:
        found = await store.read_document(list_document(name))
        assert found is not None
        document = decode_log(found.value, name)
        segments = [Segment(LedgerId(10**9 + n), 1, "owner", n, 10 * n, SegmentEnd(10, 1000, n)) for n in range(count)]
        pages: list[PageReference] = []
        while len(segments) > LISTED_SEGMENTS:
            oldest, segments = segments[:PAGE_SEGMENTS], segments[PAGE_SEGMENTS:]
            where = page_document(document.log_id, f"page-{len(pages)}")
            await store.create_document(where, encode_page(oldest))
            pages.append(page_reference(where, oldest))
        document = replace(document, term=1, terms=((1, 0),), segments=tuple(segments), pages=tuple(pages))
        encoded = document.encode()
        await store.compare_and_set_document(list_document(name), encoded, found.version)
        return {"pages": len(pages), "list_bytes": len(encoded)}


async def measure_segments(uri: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The same log with few and with many segments."""
    return {str(count): await measure_segments_of(uri, count) for count in (10, arguments.segments)}


async def measure_segments_of(uri: str, count: int) -> dict[str, Any]:
    """The times of opening, seeking, leading, adding and rolling in a log of ``count`` segments."""
    name = f"segments/{count}"
    async with octavo.connect(uri) as client:
        await (await client.create_log(name, layout="chain")).close()
        facts: dict[str, Any] = dict(await write_segments(uri, name, count))

        async def open_and_close() -> None:
            async with client.open_log(name):
                pass

        facts["open_ms"] = await timed(open_and_close, 20)
        before = memory_bytes()
        async with client.open_log(name) as log:
            facts["handle_bytes"] = memory_bytes() - before
            places = iter([n * 10 * count // 20 for n in range(20)])

            async def seek() -> None:
                position = next(places)
                await log.extents(position, position)

            facts["seek_ms"] = await timed(seek, 20)
            began = time.perf_counter()
            async with log.lead() as writer:
                facts["lead_ms"] = round(1000 * (time.perf_counter() - began), 1)

                async def add() -> None:
                    await writer.add(b"x" * 100)

                async def add_and_roll() -> None:
                    await writer.add(b"x" * 100)
                    await writer.roll()

                facts["add_ms"] = await timed(add, 200)
                facts["roll_ms"] = await timed(add_and_roll, 20)
        return facts


# --- many entries ----------------------------------------------------------------------------------------------------


async def measure_entries(uri: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Add entries of 100 B at a rate, with rolls; followed in the same process."""
    latencies: list[float] = []
    async with (
        octavo.connect(uri, log_segment_bytes=10_000_000) as client,
        client.create_log("entries") as log,
        log.lead() as writer,
    ):
        before, used_before = memory_bytes(), processor_seconds()
        batch = max(1, arguments.rate // 100)
        payloads = [b"x" * 100] * batch
        pending: set[asyncio.Task[None]] = set()

        async def add() -> None:
            began = time.perf_counter()
            await writer.add_many(payloads)
            latencies.append(time.perf_counter() - began)

        began = time.perf_counter()
        sent = 0
        while (elapsed := time.perf_counter() - began) < arguments.seconds:
            while sent < elapsed * arguments.rate:
                task = asyncio.create_task(add())
                pending.add(task)
                task.add_done_callback(pending.discard)
                sent += batch
            await asyncio.sleep(0.005)
        await writer.flush()
        await asyncio.gather(*pending)
        seconds = time.perf_counter() - began
        latencies.sort()
        status = await log.status()
        return {
            "entries": writer.end,
            "entries_per_minute": round(60 * writer.end / seconds),
            "segments": len(status.segments) + status.paged_segments,
            "batch_ms_p50": round(1000 * latencies[len(latencies) // 2], 2),
            "batch_ms_p99": round(1000 * latencies[len(latencies) * 99 // 100], 2),
            "memory_grown_bytes": memory_bytes() - before,
            "processor_share": round((processor_seconds() - used_before) / seconds, 3),
        }


# --- many logs -------------------------------------------------------------------------------------------------------


async def measure_logs(uri: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Create, lead and write many logs in one client, and leave them idle."""
    count = arguments.logs
    names = [f"many/{n}" for n in range(count)]
    result: dict[str, Any] = {"logs": count}

    async def each[T](step: Callable[[Any], Awaitable[T]], things: list[Any], what: str) -> list[T]:
        """Run a step for each, some at once; note time and memory of one."""
        permits = asyncio.Semaphore(32)
        before, began = memory_bytes(), time.perf_counter()

        async def run(thing: Any) -> T:
            async with permits:
                return await step(thing)

        made = await asyncio.gather(*(run(thing) for thing in things))
        result[f"{what}_ms_each"] = round(1000 * (time.perf_counter() - began) / count, 2)
        result[f"{what}_bytes_each"] = (memory_bytes() - before) // count
        return list(made)

    async def idle(what: str) -> None:
        used, began = processor_seconds(), time.perf_counter()
        await asyncio.sleep(arguments.idle_seconds)
        share = (processor_seconds() - used) / (time.perf_counter() - began)
        result[f"{what}_idle_processor_share"] = round(share, 4)

    async with octavo.connect(uri) as client:
        await idle("client")

        async def create(name: str) -> octavo.Log:
            return await client.create_log(name)

        async def lead(log: octavo.Log) -> octavo.LogWriter:
            return await log.lead()

        logs = await each(create, names, "create")
        writers = await each(lead, logs, "lead")
        result["tasks_each"] = round(len(asyncio.all_tasks()) / count, 1)
        await idle("led")
        await each(lambda writer: writer.add(b"x"), writers, "first_add")
        await each(lambda writer: writer.add(b"x"), writers, "next_add")
        result["tasks_each_written"] = round(len(asyncio.all_tasks()) / count, 1)
        await idle("written")
        await each(lambda writer: writer.close(), writers, "close")
    return result


PARTS = {"segments": measure_segments, "entries": measure_entries, "logs": measure_logs}


def main() -> int:
    """Run the parts. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segments", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="time for which entries are added")
    parser.add_argument("--rate", type=int, default=16_667, help="entries a second")
    parser.add_argument("--logs", type=int, default=1000)
    parser.add_argument("--idle-seconds", type=float, default=60.0)
    parser.add_argument("--part", choices=PARTS, help="only this one")
    parser.add_argument("--uri", help=argparse.SUPPRESS)
    add_data_dir(parser)
    arguments = parser.parse_args()
    if arguments.uri is not None:
        print(json.dumps(uvloop.run(PARTS[arguments.part](arguments.uri, arguments))))
        return 0
    with temporary_cluster(arguments.data_dir) as cluster:
        uri = cluster.wait_for("ready")["metadata"]
        for part in [arguments.part] if arguments.part else PARTS:
            command = [sys.executable, __file__, "--part", part, "--uri", uri]
            for name in ("segments", "seconds", "rate", "logs", "idle_seconds"):
                command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            print(part, json.dumps(json.loads(done.stdout), indent=2), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
