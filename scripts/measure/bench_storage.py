"""Measures a bookie's storage by itself, without network.

    python scripts/measure/bench_storage.py FOLDER [--gigabytes N]

Each line is one number of docs/performance.md. FOLDER should be on the disk that is meant; it is emptied at the end.
``--parts journal pauses`` measures only those.
With ``fio`` installed, the journal is compared with it, in the same run and with the same pattern."""

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import structlog
import uvloop
from octavo.bookie.disk.filesystem import RealFileSystem
from octavo.bookie.disk.rate import RateLimiter
from octavo.bookie.journal.journal import Journal, JournalSettings, RecordKind
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.protocol.entries import SEALED_BYTES_MIN, Digest, Sealer, derive_secrets
from octavo.protocol.ids import EntryId, LedgerId

MEBIBYTE = 1024 * 1024
ENTRY_BYTES = 1000
FRAME_ENTRIES = 64
GROUP_BYTES = MEBIBYTE
JOURNAL_ROUNDS = 7
"""Rounds, in which Octavo and fio alternate, because the speed of a shared disk varies from second to second."""


def say(what: str, value: float, unit: str) -> None:
    print(f"{what:62} {value:12,.2f} {unit}", flush=True)


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


class Writer:
    """Seals frames of one ledger."""

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = LedgerId(ledger_id)
        secrets = derive_secrets(b"", self.ledger_id)
        self.key = secrets.ledger_key
        self._sealer = Sealer(self.ledger_id, Digest.CRC32C, secrets)
        self.next = 0

    def frame(self, entries: int = FRAME_ENTRIES, size: int = ENTRY_BYTES) -> list[bytes]:
        sealed = self._sealer.seal(
            EntryId(self.next), [bytes(size)] * entries, last_add_confirmed=None, length=0, sealed_at_ms=0
        )
        self.next += entries
        return sealed


async def open_storage(folder: Path, filesystem: RealFileSystem, **settings: float) -> Storage:
    return await Storage.open(
        filesystem,
        directory=folder / "data",
        journal_directory=folder / "journal",
        settings=StorageSettings(**settings),  # type: ignore[arg-type]
        on_fatal=lambda error: os.abort(),
    )


async def journal_speed(folder: Path, filesystem: RealFileSystem) -> None:
    """Write groups of 1 MiB, each synced before the next, into segments whose blocks have been written before."""
    settings = JournalSettings(
        segment_bytes=512 * MEBIBYTE, group_bytes_max=GROUP_BYTES, first_fill_bytes=512 * MEBIBYTE
    )
    ours, theirs = [], []
    for round_number in range(JOURNAL_ROUNDS):
        journal = await Journal.open(filesystem, folder / f"j{round_number}", settings=settings, start=None)
        async for _ in journal.replay():
            pass
        await journal.start()
        body = [random.randbytes(GROUP_BYTES - 4096)]
        began_at = time.perf_counter()
        under_way: deque[asyncio.Future[None]] = deque()
        for _ in range(200):
            under_way.append(journal.append(RecordKind.ADD, body))
            if len(under_way) > 2:  # the next group waits while one is written, as under load
                await under_way.popleft()
        await asyncio.gather(*under_way)
        ours.append(200 * GROUP_BYTES / MEBIBYTE / (time.perf_counter() - began_at))
        await journal.close()
        await asyncio.to_thread(shutil.rmtree, folder / f"j{round_number}")
        theirs.append(await asyncio.to_thread(fio_speed, folder))
    say("journal, groups of 1 MiB, each synced before the next", percentile(ours, 0.5), "MB/s")
    if all(theirs):
        say("fio: 1 MiB, direct, synchronous, overwriting", percentile(theirs, 0.5), "MB/s")
        ratios = [our / their for our, their in zip(ours, theirs, strict=True)]
        say("journal / fio, median of the rounds", percentile(ratios, 0.5), "")
        say("journal / fio, lowest of the rounds", min(ratios), "")


def fio_speed(folder: Path) -> float:
    """MB/s of fio with the write pattern of the journal; 0 without fio."""
    if shutil.which("fio") is None:
        return 0.0
    common = [
        "fio", "--name=journal", f"--filename={folder / 'fio'}", "--rw=write", "--bs=1m", "--size=200m",
        "--ioengine=psync", "--output-format=json",
    ]  # fmt: skip
    subprocess.run([*common, "--end_fsync=1"], check=True, capture_output=True)
    done = subprocess.run([*common, "--direct=1", "--sync=dsync", "--overwrite=1"], check=True, capture_output=True)
    (folder / "fio").unlink()
    return float(json.loads(done.stdout)["jobs"][0]["write"]["bw_bytes"]) / MEBIBYTE


async def fill(storage: Storage, gigabytes: float, ledgers: int) -> list[Writer]:
    writers = [Writer(ledger_id) for ledger_id in range(1, ledgers + 1)]
    total, under_way = 0, set[asyncio.Future[None]]()
    while total < gigabytes * 1024 * MEBIBYTE:
        for writer in writers:
            frame = writer.frame()
            under_way.add(storage.writer.add(writer.ledger_id, writer.key, frame, recovery=False))
            total += sum(map(len, frame))
            if len(under_way) >= 32:
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for future in done:
                    future.result()
            await storage.admission.wait_for_room()
    await asyncio.gather(*under_way)
    return writers


async def bulk(folder: Path, filesystem: RealFileSystem, gigabytes: float) -> None:
    storage = await open_storage(folder, filesystem)
    began_at, written_before = time.perf_counter(), written_bytes()
    writers = await fill(storage, gigabytes, 64)
    await storage.checkpoint()
    seconds = time.perf_counter() - began_at
    payload = sum(writer.next for writer in writers) * ENTRY_BYTES
    say("stored: entries of 1,000 bytes, checkpointed", payload / MEBIBYTE / seconds, "MB/s")
    say("bytes written to disk per byte of payload", (written_bytes() - written_before) / payload, "")
    statistics = storage.statistics()
    index_bytes = sum(path.stat().st_size for path in (folder / "data" / "index").iterdir())
    say("index on disk per entry", index_bytes / sum(writer.next for writer in writers), "bytes")
    await storage.close()

    began_at = time.perf_counter()
    storage = await open_storage(folder, filesystem)
    say(f"start with {statistics.log_bytes / 1024 / MEBIBYTE:.1f} GB stored", time.perf_counter() - began_at, "s")
    for path in (folder / "data" / "entries").iterdir():
        drop_from_page_cache(path)
    await random_reads(storage, writers)
    await storage.close()


async def random_reads(storage: Storage, writers: Sequence[Writer]) -> None:
    """Read single entries at random, 16 at a time, with the entry logs dropped from the page cache."""
    chance, count = random.Random(1), 0

    async def reader(until: float) -> None:
        nonlocal count
        while time.perf_counter() < until:
            writer = chance.choice(writers)
            at = chance.randrange(writer.next)
            result = await storage.reader.read(writer.ledger_id, at, at, entries_max=1, bytes_max=1 << 20)
            assert len(result.entries) == 1
            count += 1

    began_at = time.perf_counter()
    await asyncio.gather(*(reader(began_at + 5) for _ in range(16)))
    say("random reads of single entries, 16 at a time", count / (time.perf_counter() - began_at), "/s")


def drop_from_page_cache(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def written_bytes() -> int:
    """Bytes that this process has caused to be written to disks."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("write_bytes"):
            return int(line.split()[1])
    return 0


async def keep_loading(storage: Storage, writer: Writer, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await storage.writer.add(writer.ledger_id, writer.key, writer.frame(), recovery=False)
        await storage.admission.wait_for_room()
        await asyncio.sleep(0.003)


async def keep_checkpointing(storage: Storage, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await storage.checkpoint()
        await asyncio.sleep(0.2)


async def lone_adds(storage: Storage, writer: Writer, seconds: float) -> list[float]:
    """The seconds that each of many adds took; an add begins 2 ms after the one before."""
    latencies: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        began_at = time.perf_counter()
        await storage.writer.add(writer.ledger_id, writer.key, writer.frame(1), recovery=False)
        latencies.append(time.perf_counter() - began_at)
        await asyncio.sleep(0.002)
    return latencies


async def pauses(folder: Path, filesystem: RealFileSystem) -> None:
    """Lone adds during a load of about 15 MB/s, with and without checkpoints."""
    storage = await open_storage(folder, filesystem, cache_bytes_max=16 * MEBIBYTE)
    load, lone = Writer(1), Writer(2)
    slowest = []
    for name in ("without checkpoints", "with a checkpoint every 0.2 s"):
        stop = asyncio.Event()
        others = [asyncio.ensure_future(keep_loading(storage, load, stop))]
        if name.startswith("with "):
            others.append(asyncio.ensure_future(keep_checkpointing(storage, stop)))
        latencies = await lone_adds(storage, lone, 20)
        stop.set()
        await asyncio.gather(*others)
        say(f"lone adds under load, {name}: p50", percentile(latencies, 0.5) * 1000, "ms")
        say(f"lone adds under load, {name}: p99.9", percentile(latencies, 0.999) * 1000, "ms")
        slowest.append(percentile(latencies, 0.999))
    say("p99.9 with checkpoints over p99.9 without", slowest[1] / slowest[0], "")
    await storage.close()


async def full_journal(folder: Path, filesystem: RealFileSystem) -> None:
    """Start after a power cut shortly before a checkpoint, with 512 MiB of journal to replay."""
    storage = await open_storage(
        folder, filesystem, checkpoint_seconds=86_400, checkpoint_journal_bytes=1 << 40, cache_bytes_max=1 << 30
    )
    await fill(storage, 0.5, 16)
    shutil.copytree(folder / "data", folder / "crashed" / "data")  # before close, which checkpoints
    shutil.copytree(folder / "journal", folder / "crashed" / "journal")
    await storage.close()
    began_at = time.perf_counter()
    storage = await open_storage(folder / "crashed", filesystem)
    say("start with a journal of 512 MiB to replay", time.perf_counter() - began_at, "s")
    await storage.close()


async def space(folder: Path, filesystem: RealFileSystem, gigabytes: float) -> None:
    """Delete all but one of twenty ledgers in small logs, and read that one while compaction frees space."""
    storage = await open_storage(folder, filesystem, entry_log_bytes=64 * MEBIBYTE)
    kept, *others = await fill(storage, gigabytes, 20)
    await storage.checkpoint()
    say("space of twenty ledgers", disk_bytes(folder / "data") / MEBIBYTE, "MiB")
    for writer in others:
        await storage.writer.delete(writer.ledger_id)
    reading = asyncio.ensure_future(random_reads(storage, [kept]))
    for _ in range(2):
        await storage.compact(0.8, RateLimiter(1e12))
        await storage.checkpoint()
    await reading
    live = kept.next * (ENTRY_BYTES + SEALED_BYTES_MIN)
    say("space after all but one were deleted, over what counts", disk_bytes(folder / "data") / live, "")
    await storage.close()


async def compaction(folder: Path, filesystem: RealFileSystem) -> None:
    """Lone adds during a load, while logs with two fifths of live data are compacted at the default rate."""
    storage = await open_storage(folder, filesystem, entry_log_bytes=64 * MEBIBYTE)
    writers = await fill(storage, 1.0, 10)
    await storage.checkpoint()
    load, lone = Writer(101), Writer(102)
    slowest = []
    for name in ("without compaction", "with compaction"):
        stop = asyncio.Event()
        loading = asyncio.ensure_future(keep_loading(storage, load, stop))
        compacting = None
        if name.startswith("with "):
            for writer in writers[4:]:
                await storage.writer.delete(writer.ledger_id)
            compacting = asyncio.ensure_future(storage.compact(0.8, RateLimiter(32 * MEBIBYTE)))
        latencies = await lone_adds(storage, lone, 15)
        if compacting is not None:
            copied = storage.statistics().compaction_bytes_copied
            say("copied meanwhile", copied / MEBIBYTE, "MiB")
            compacting.cancel()
            await asyncio.gather(compacting, return_exceptions=True)
        stop.set()
        await loading
        say(f"lone adds under load, {name}: p50", percentile(latencies, 0.5) * 1000, "ms")
        say(f"lone adds under load, {name}: p99.9", percentile(latencies, 0.999) * 1000, "ms")
        slowest.append(percentile(latencies, 0.999))
    say("p99.9 with compaction over p99.9 without", slowest[1] / slowest[0], "")
    await storage.close()


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


async def many_ledgers(folder: Path, filesystem: RealFileSystem) -> None:
    storage = await open_storage(folder, filesystem, checkpoint_seconds=86_400)
    before = resident_bytes()
    writers = [Writer(ledger_id) for ledger_id in range(1, 10_001)]
    for start in range(0, len(writers), 100):
        await asyncio.gather(
            *(
                storage.writer.add(writer.ledger_id, writer.key, writer.frame(4, 100), recovery=False)
                for writer in writers[start : start + 100]
            )
        )
    await storage.checkpoint()
    say("memory per open ledger, 10,000 of them", (resident_bytes() - before) / len(writers), "bytes")
    chance, count, began_at = random.Random(2), 0, time.perf_counter()
    while time.perf_counter() < began_at + 3:
        writer = chance.choice(writers)
        await storage.reader.read(writer.ledger_id, 2, 2, entries_max=1, bytes_max=1 << 20)
        count += 1
    say("reads of single entries of 10,000 ledgers, one after another", count / (time.perf_counter() - began_at), "/s")
    say("index blocks in memory", storage.statistics().index_cache_bytes / MEBIBYTE, "MiB")
    await storage.close()


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


PARTS: dict[str, Callable[[Path, RealFileSystem, float], Awaitable[None]]] = {
    "ledgers": lambda folder, filesystem, _: many_ledgers(folder, filesystem),
    "journal": lambda folder, filesystem, _: journal_speed(folder, filesystem),
    "full": lambda folder, filesystem, _: full_journal(folder, filesystem),
    "pauses": lambda folder, filesystem, _: pauses(folder, filesystem),
    "compaction": lambda folder, filesystem, _: compaction(folder, filesystem),
    "space": space,
    "bulk": bulk,
}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="entries stored for restart and reads")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure")
    options = parser.parse_args()
    filesystem = RealFileSystem()
    folder = options.folder / "bench-storage"
    if folder.exists():
        parser.error(f"{folder} exists; if an interrupted run has left it, remove it")
    try:
        for name in options.parts:
            (folder / name).mkdir(parents=True)
            await PARTS[name](folder / name, filesystem, options.gigabytes)
            await asyncio.to_thread(shutil.rmtree, folder / name)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        await filesystem.close()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    uvloop.run(main())
