"""A yardstick: the least that a durable, replicated log can do, as a baseline for Octavo's performance.

    yardstick.py bookie PORT FOLDER
    yardstick.py client PORT,PORT,PORT --entries N --entry-bytes N --in-flight N

It uses the same building blocks as Octavo (uvloop, msgpack, one frame per bookie and turn of the event loop) and the
same durability: a bookie answers after ``fdatasync``, and the client acknowledges an add when two bookies have answered
and all earlier adds are acknowledged. The second copy that makes entries readable (the *entry file*) is written in the
background and not synced. Everything else is missing: recovery, fencing, replacement of failed bookies, limits on
memory, checks of what arrives, and a format that a restart could read.

``client`` prints one JSON object: ``entries_per_second`` and ``latency_ms_p50``.
"""

import argparse
import asyncio
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import google_crc32c
import msgpack
import uvloop

ACK_QUORUM = 2
PREFIX_BYTES = 4
ENTRIES_PER_FRAME_MAX = 512
BUFFERS_PER_WRITE_MAX = 1024
"""The most that one ``writev`` takes on Linux."""

ENTRY_FILE_CHUNK_BYTES = 4 * 1024 * 1024


def framed(values: tuple[object, ...]) -> bytes:
    """A frame: the length of the rest, big-endian, and one msgpack array."""
    body: bytes = msgpack.packb(values)
    return len(body).to_bytes(PREFIX_BYTES) + body


class FrameProtocol(asyncio.Protocol):
    """Cuts the bytes of a connection into frames and hands over the body of each."""

    def __init__(self, on_body: Callable[[asyncio.Transport, bytes], None]) -> None:
        self._on_body = on_body
        self._received = bytearray()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=16 * 1024 * 1024)

    def data_received(self, data: bytes) -> None:
        self._received += data
        for body in self._bodies():
            self._on_body(self.transport, body)

    def _bodies(self) -> Iterator[bytes]:
        received, start = self._received, 0
        while len(received) >= (body_start := start + PREFIX_BYTES):
            stop = body_start + int.from_bytes(received[start:body_start])
            if len(received) < stop:
                break
            yield bytes(received[body_start:stop])
            start = stop
        del received[:start]


# --- bookie -----------------------------------------------------------------------------------------------------------

type Done = Callable[[], None]


def open_file(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)


def drain[T](waiting: "queue.SimpleQueue[T]") -> list[T]:
    """Everything in the queue; waits for the first."""
    drained = [waiting.get()]
    while True:
        try:
            drained.append(waiting.get_nowait())
        except queue.Empty:
            return drained


class Journal(threading.Thread):
    """Writes and syncs what is appended, in groups: one group while the next one gathers."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._file = open_file(path)
        self._loop = asyncio.get_running_loop()
        self._waiting: queue.SimpleQueue[tuple[bytes, Done]] = queue.SimpleQueue()

    def append(self, record: bytes, done: Done) -> None:
        """Write ``record``; ``done`` is called in the event loop once it is on disk."""
        self._waiting.put((record, done))

    def run(self) -> None:
        while True:
            group = drain(self._waiting)
            records = [record for record, _ in group]
            for start in range(0, len(records), BUFFERS_PER_WRITE_MAX):
                os.writev(self._file, records[start : start + BUFFERS_PER_WRITE_MAX])
            os.fdatasync(self._file)
            self._loop.call_soon_threadsafe(self._finish, [done for _, done in group])

    @staticmethod
    def _finish(group: list[Done]) -> None:
        for done in group:
            done()


class EntryFile(threading.Thread):
    """The copy that reads would use: payloads in large chunks, and where each of them is."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._file = open_file(path)
        self._chunks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._size = 0
        self.places: dict[int, tuple[int, int]] = {}
        """First id of a batch -> its number of entries and its offset in the file."""

    def add(self, first: int, payloads: Sequence[bytes]) -> None:
        data = b"".join(payloads)
        self.places[first] = (len(payloads), self._size)
        self._size += len(data)
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= ENTRY_FILE_CHUNK_BYTES:
            self._chunks.put(b"".join(self._gathered))
            self._gathered, self._gathered_bytes = [], 0

    def run(self) -> None:
        while True:
            os.write(self._file, self._chunks.get())


async def run_bookie(port: int, folder: Path) -> None:
    """Serve until the process is killed."""
    journal, entries = Journal(folder / f"journal-{port}"), EntryFile(folder / f"entries-{port}")
    journal.start()
    entries.start()

    def received(transport: asyncio.Transport, body: bytes) -> None:
        first, _last_add_confirmed, payloads, _checksums = msgpack.unpackb(body)
        entries.add(first, payloads)
        journal.append(body, lambda: transport.write(framed((first,))))

    server = await asyncio.get_running_loop().create_server(lambda: FrameProtocol(received), "127.0.0.1", port)
    await server.serve_forever()


# --- client -----------------------------------------------------------------------------------------------------------


class Batch:
    """The adds of one turn of the event loop, at most ``ENTRIES_PER_FRAME_MAX``."""

    def __init__(self, futures: list[asyncio.Future[int]]) -> None:
        self.futures = futures
        self.answers = 0


class Log:
    """Appends entries to all bookies."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._bookies: list[FrameProtocol] = []
        self._turn: list[tuple[bytes, asyncio.Future[int]]] = []
        self._next_id = 0
        self._last_add_confirmed = -1
        self._pending: dict[int, Batch] = {}
        """First id -> batch, in the order in which they were sent."""

    async def connect(self, ports: Sequence[int]) -> None:
        for port in ports:
            _, bookie = await self._loop.create_connection(lambda: FrameProtocol(self._answered), "127.0.0.1", port)
            self._bookies.append(bookie)

    def add(self, payload: bytes) -> asyncio.Future[int]:
        """Append an entry; the future gets its id when it is acknowledged."""
        if not self._turn:
            self._loop.call_soon(self._end_turn)
        future: asyncio.Future[int] = self._loop.create_future()
        self._turn.append((payload, future))
        return future

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, []
        for start in range(0, len(turn), ENTRIES_PER_FRAME_MAX):
            part = turn[start : start + ENTRIES_PER_FRAME_MAX]
            payloads = [payload for payload, _ in part]
            frame = framed((self._next_id, self._last_add_confirmed, payloads, [*map(google_crc32c.value, payloads)]))
            self._pending[self._next_id] = Batch([future for _, future in part])
            self._next_id += len(part)
            for bookie in self._bookies:
                bookie.transport.write(frame)

    def _answered(self, _transport: asyncio.Transport, body: bytes) -> None:
        (first,) = msgpack.unpackb(body)
        batch = self._pending.get(first)
        if batch is None:  # acknowledged without this bookie
            return
        batch.answers += 1
        while self._pending:
            lowest, batch = next(iter(self._pending.items()))
            if batch.answers < ACK_QUORUM:
                return
            del self._pending[lowest]
            self._last_add_confirmed = lowest + len(batch.futures) - 1
            for entry_id, future in enumerate(batch.futures, lowest):
                future.set_result(entry_id)


async def run_client(ports: Sequence[int], entries: int, entry_bytes: int, in_flight: int) -> None:
    """Add entries from ``in_flight`` tasks, each of which awaits one add at a time; print what was measured."""
    log = Log()
    await log.connect(ports)
    payload, latencies = os.urandom(entry_bytes), []

    async def produce(count: int) -> None:
        for _ in range(count):
            started = time.perf_counter()
            await log.add(payload)
            latencies.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(produce(entries // in_flight) for _ in range(in_flight)))
    seconds = time.perf_counter() - started
    latencies.sort()
    measured = {
        "entries_per_second": len(latencies) / seconds,
        "latency_ms_p50": latencies[len(latencies) // 2] * 1000,
    }
    sys.stdout.write(json.dumps(measured) + "\n")


def main() -> int:
    """Run one process of the yardstick; exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    roles = parser.add_subparsers(dest="role", required=True)
    bookie = roles.add_parser("bookie", help="serve until killed")
    bookie.add_argument("port", type=int)
    bookie.add_argument("folder", type=Path)
    client = roles.add_parser("client", help="measure")
    client.add_argument("ports", type=lambda text: [int(port) for port in text.split(",")])
    for name in ("--entries", "--entry-bytes", "--in-flight"):
        client.add_argument(name, type=int, required=True)
    chosen = parser.parse_args()
    work = (
        run_bookie(chosen.port, chosen.folder)
        if chosen.role == "bookie"
        else run_client(chosen.ports, chosen.entries, chosen.entry_bytes, chosen.in_flight)
    )
    asyncio.run(work, loop_factory=uvloop.new_event_loop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
