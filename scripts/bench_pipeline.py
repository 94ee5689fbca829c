"""The pipeline's speed beside that of plain clients, on one fresh three-bookie cluster.

bench_pipeline.py [--megabytes 2000] [--rounds 1] [--data-dir DIR]

Entries of 1 KiB; ledgers with E = Qw = 3, Qa = 2. *Write*: two processes of ``octavo bench write``, against a Spark job
(``local[2]``) that ingests Parquet. *Read*: two processes, each iterating over one ledger, before and after scans of
both with ``local[2]``, which sum up the values' lengths: the first of a session, which starts Python workers and
compiles the query, and two more, while Java compiles what it finds hot. *Verify*: every replica of those ledgers.
Memory is the most that any Python worker ever had.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from local_cluster import Cluster

ENTRY_BYTES = 1024
OCTAVO = (sys.executable, "-P", "-m", "octavo.cli.main")


def side_by_side(uri: str, commands: Sequence[Sequence[str]]) -> tuple[list[dict[str, Any]], float]:
    """What commands that run at the same time print, and the seconds until the last has ended its measurement."""
    environment = {**os.environ, "OCTAVO_METADATA": uri}
    processes = [
        subprocess.Popen([*OCTAVO, *command, "--json"], env=environment, stdout=subprocess.PIPE) for command in commands
    ]
    results = [json.loads(process.communicate()[0]) for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a benchmark failed")
    return results, max(result["seconds"] for result in results)


def timed[T](work: Callable[[], T]) -> tuple[T, float]:
    """What ``work`` returns, and how long it took."""
    begun = time.perf_counter()
    return work(), time.perf_counter() - begun


def largest_worker_bytes() -> int:
    """The most memory that any of the Python workers alive has ever had resident; they outlive their tasks."""
    largest = 0
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdecimal() and b"pyspark.daemon" in (folder / "cmdline").read_bytes():
                status = (folder / "status").read_text()
                largest = max(largest, *(1024 * int(found) for found in re.findall(r"VmHWM:\s+(\d+) kB", status)), 0)
    return largest


def measure(uri: str, entries: int, folder: Path) -> dict[str, float]:
    """One round: rates in MB/s of payload."""
    from octavo.pipeline.jobs.export import InputFormat, ingest  # noqa: PLC0415 - after the environment is set
    from octavo.pipeline.jobs.verify import verify  # noqa: PLC0415
    from octavo.pipeline.options import ClusterOptions  # noqa: PLC0415
    from octavo.pipeline.session import spark_session  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    megabytes = entries * ENTRY_BYTES / 1e6
    half = ("bench", "write", "--entry-size", str(ENTRY_BYTES), "--count", str(entries // 2))
    written, seconds = side_by_side(uri, [half, half])
    rates = {"write, two clients": megabytes / seconds}
    ledgers = [str(result["ledger_ids"][0]) for result in written]
    reads = [("bench", "read", ledger) for ledger in ledgers]
    _, seconds = side_by_side(uri, reads)
    rates["read, two clients, before"] = megabytes / seconds
    with spark_session("bench", master="local[2]") as spark:
        spark.range(1).count()
        cluster = ClusterOptions(uri)
        reader = spark.read.format("octavo").option("metadata", uri).option("ledgers", ",".join(ledgers))
        reader = reader.option("minPartitions", "2")
        for case in ("first", "second", "third"):
            # A frame of its own: Spark keeps what one has shuffled.
            scanned = reader.load().agg(F.count("*"), F.sum(F.length("value")))
            rows, seconds = timed(scanned.collect)
            assert tuple(rows[0]) == (entries, entries * ENTRY_BYTES), rows
            rates[f"read, Spark local[2], {case} of its session"] = megabytes / seconds
        _, seconds = side_by_side(uri, reads)
        rates["read, two clients, after"] = megabytes / seconds
        print(f"largest Python worker after reading: {largest_worker_bytes() / 1e6:,.0f} MB resident")
        found, seconds = timed(lambda: verify(spark, cluster, ledgers=",".join(ledgers)))
        rates["verify, Spark local[2], of all replicas"] = found.sealed_bytes / 1e6 / seconds
        print(f"largest Python worker after verifying: {largest_worker_bytes() / 1e6:,.0f} MB resident")
        source = str(folder / "rows.parquet")
        values = spark.range(0, entries, 1, 2).select(
            F.rpad(F.col("id").cast("string"), ENTRY_BYTES, "x").alias("value")
        )
        values.write.parquet(source)
        _, seconds = timed(lambda: ingest(spark, cluster, source, "bench", input_format=InputFormat.PARQUET))
        rates["write, Spark local[2]"] = megabytes / seconds
        print(f"largest Python worker after writing: {largest_worker_bytes() / 1e6:,.0f} MB resident")
        shutil.rmtree(source)
    return rates


def main() -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=2000, help="payload of each case")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--data-dir", type=Path, help="where the cluster keeps its data (default: the temporary folder)"
    )
    arguments = parser.parse_args()
    os.environ["PYTHONSAFEPATH"] = "1"
    entries = arguments.megabytes * 1_000_000 // ENTRY_BYTES // 2 * 2
    for number in range(arguments.rounds):
        folder = Path(tempfile.mkdtemp(prefix="octavo-bench-", dir=arguments.data_dir))
        try:
            with Cluster(folder / "data") as cluster:
                rates = measure(cluster.wait_for("ready")["metadata"], entries, folder)
                cluster.stop()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(f"round {number + 1}: {arguments.megabytes} MB in entries of {ENTRY_BYTES} B")
        for name, rate in rates.items():
            print(f"  {name}: {rate:,.0f} MB/s")
        plain = (rates["read, two clients, before"] + rates["read, two clients, after"]) / 2
        for case in ("first", "second", "third"):
            rate = rates[f"read, Spark local[2], {case} of its session"]
            print(f"  read, {case} of its session: {rate / plain:.2f} of two clients")
        print(f"  write: {rates['write, Spark local[2]'] / rates['write, two clients']:.2f} of two clients", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
