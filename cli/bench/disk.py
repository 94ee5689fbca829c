"""``octavo bench disk``: measures a disk as a bookie's journal uses it."""

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo.cli.session import CommandError, Session, command, number

if TYPE_CHECKING:
    from octavo.bookie.disk.filesystem import File

FILE_BYTES = 64 * 1024 * 1024
"""As large as a journal segment; writes start again at its beginning."""

GROUP_BYTES = (4096, 65536, 1024 * 1024)
"""Sizes of one synced write: a lone add, a group under load, a full frame."""


def register(app: typer.Typer) -> None:
    """Add the command to the group ``bench``."""
    command(app)(disk)


async def disk(
    session: Session,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory on the disk to measure.")],
    duration: Annotated[
        float,
        typer.Option(
            "--duration", metavar="SECONDS", min=0.1, max=3600, callback=number, help="Time for each size of write."
        ),
    ] = 3.0,
) -> None:
    """Measure how fast a disk syncs.

    Every add waits for a synced write of the journal. The command writes and syncs as the journal does: one write
    after another, into a preallocated file of 64 MiB, past the page cache where the file system allows it. The file is
    removed afterwards. A disk for journals syncs 4 KiB in less than a millisecond.
    """
    from octavo.cli.output import print_json, print_table  # noqa: PLC0415

    results = await measure_disk(directory, GROUP_BYTES, duration)
    if session.as_json:
        print_json({"directory": str(directory), "writes": results})
        return
    print_table(
        ["write", "per second", "MB/s", "p50", "p99", "p99.9", "max"],
        [
            (
                f"{result['bytes'] // 1024} KiB",
                f"{result['writes_per_second']:,.0f}",
                f"{result['bytes_per_second'] / 1e6:,.1f}",
                *(f"{1000 * result[name]:.2f} ms" for name in ("p50_seconds", "p99_seconds", "p999_seconds")),
                f"{1000 * result['max_seconds']:.2f} ms",
            )
            for result in results
        ],
    )


async def measure_disk(directory: Path, sizes: tuple[int, ...], duration_seconds: float) -> list[dict[str, Any]]:
    """Latencies in seconds and rates of synced writes of each size, as JSON. Raises :class:`CommandError`."""
    from octavo.bookie.disk.filesystem import RealFileSystem  # noqa: PLC0415 - no other command needs a bookie's modules

    filesystem = RealFileSystem()
    path = directory / f".octavo-bench-{os.getpid()}"
    try:
        file = await filesystem.open(path, create=True, dedicated_thread=True, direct=True)
        try:
            await file.allocate(FILE_BYTES)
            await file.sync()
            return [await _measure(file, size, duration_seconds) for size in sizes]
        finally:
            await file.close()
            path.unlink(missing_ok=True)
    except OSError as error:
        raise CommandError(f"cannot measure the disk of {directory}: {error.strerror or error}") from error
    finally:
        await filesystem.close()


async def _measure(file: "File", size: int, duration_seconds: float) -> dict[str, Any]:
    from octavo.cli.bench.histogram import Histogram  # noqa: PLC0415

    histogram = Histogram()
    data = [os.urandom(size)]
    offset = 0
    begun = now = time.perf_counter()
    while now - begun < duration_seconds or not histogram.count:
        await file.write_and_sync(offset, data)
        after = time.perf_counter()
        histogram.record(after - now)
        now = after
        offset = (offset + size) % (FILE_BYTES - size)
        offset -= offset % 4096
        await asyncio.sleep(0)  # a disk that is as fast as memory must not keep Ctrl-C waiting
    elapsed = now - begun
    return {
        "bytes": size,
        "writes_per_second": histogram.count / elapsed,
        "bytes_per_second": histogram.count * size / elapsed,
        "p50_seconds": histogram.percentile(50),
        "p99_seconds": histogram.percentile(99),
        "p999_seconds": histogram.percentile(99.9),
        "max_seconds": histogram.max,
    }
